"""The documentation: its programs that need no GPU run, its links lead somewhere, its tables agree with cuDNN."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pages
import pytest

from cudnnpy import errors, raw
from cudnnpy._measuring import stub_driver
from cudnnpy._options.algorithms import algorithm_named, algorithm_names
from cudnnpy._options.convolution import POLICIES, PREFERENCES
from cudnnpy._planning.device_profile import FIRST_RELEASE, DeviceProfile
from cudnnpy.convolution import problem

DOCS = pages.ROOT / "docs"
WITH_PROGRAMS = [page for page in pages.PAGES if () in pages.packages(page, gpu=False)]


def test_there_are_pages_and_programs():
    wanted = {"quickstart.md", "choosing-algorithms.md", "arrays-and-streams.md", "errors.md", "porting/from-c.md"}
    wanted |= {"operations.md", "graphs.md", "framework-authors.md"}
    assert wanted <= set(pages.PAGES)
    assert {"quickstart.md", "errors.md", "porting/from-c.md", "operations.md", "graphs.md"} <= set(WITH_PROGRAMS)
    assert all(pages.packages(page) for page in wanted - {"errors.md"})


@pytest.mark.parametrize("page", WITH_PROGRAMS)
def test_a_pages_programs_run_without_a_gpu(page, tmp_path):
    """But the blocks that need a package: tests/torch runs those for torch, tests/index those for cudnn-frontend."""
    if page == "planning-without-a-gpu.md" and raw.version() < FIRST_RELEASE:
        pytest.skip("the loaded cuDNN has no device profiles")
    assert set(pages.packages(page, gpu=False)) <= {(), ("torch",), ("cudnn",)}
    pages.run(page, tmp_path, gpu=False)


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_pages_programs_can_be_compiled(page):
    """Those for a GPU too, so that a slip is found here."""
    text = (pages.ROOT / "docs" / page).read_text()
    for gpu in (False, True):
        for needs in {(), *pages.packages(page, gpu)}:
            compile(pages.program(text, needs, gpu), page, "exec")


@pytest.mark.parametrize("page", pages.PAGES)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (DOCS / page).read_text())
    assert [link for link in links if not (DOCS / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", pages.PAGES)
def test_links_within_the_pages_lead_to_headings(page):
    for target, heading in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", (DOCS / page).read_text()):
        text = (DOCS / page).parent.joinpath(target or Path(page).name).read_text()
        titles = [
            re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)", text, re.M)
        ]
        assert heading in titles, f"{target}#{heading}"


def test_every_exception_is_in_the_tree():
    page = (pages.ROOT / "docs" / "errors.md").read_text()
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 15
    assert [name for name in kinds if f" {name}`" not in page and f"`{name}`" not in page] == []


def test_every_preference_policy_and_algorithm_is_listed():
    text = (pages.ROOT / "docs" / "choosing-algorithms.md").read_text()
    assert re.findall(r'^\| `"(\w+)"`', text, re.M) == list(PREFERENCES)
    assert all(f'policy="{policy}"' in text for policy in POLICIES)
    for operation in problem.OPERATIONS:
        names, theano = re.findall(rf"^\| {operation} \| ([\w, ]+) \| ([\w, ]+) \|$", text, re.M)[0]
        assert tuple(names.split(", ")) == algorithm_names(operation)
        for name in theano.split(", "):
            assert algorithm_named(operation, name) in algorithm_names(operation)


def test_the_profiles_of_the_package_are_listed():
    text = (DOCS / "planning-without-a-gpu.md").read_text().partition("## Device profiles")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| .*? \| (.*?) \| (.*?) \|$", text, re.M)
    profiles = [(name, DeviceProfile.load(name)) for name in DeviceProfile.names()]
    assert rows == [
        (name, one.properties["deviceName"], ", ".join(one.set_by_hand) or "none", one.releases)
        for name, one in profiles
    ]


# How the programs are found


# What choosing-algorithms.md says of cuDNN 9.28.0 on an H200


PLANNING = """
import ast, sys
import cudnnpy
from cudnnpy._planning import candidates, selection
from cudnnpy._planning.engines import Target
from cudnnpy._core.layouts import TensorSpec

target = Target(profile=open(sys.argv[1]).read())
memory = 140 * 2**30


def ask(how, operation, first, second, shape=None, **options):
    asked = cudnnpy.Convolution(padding=1, **options)
    problem = asked._problem(operation, TensorSpec(first), TensorSpec(second), shape, device=0)
    return how(problem, asked._planning, target, memory)


x, w = (64, 256, 28, 28), (256, 256, 3, 3)
of = {"forward": (x, w, None), "backward_data": (x, w, x), "backward_filter": (x, x, w)}
for line in sys.stdin.read().splitlines():
    operation, _, options = line.partition(" ")
    found, _ = ask(selection.choose, operation, *of[operation], **eval(f"dict({options})"))
    print(f"{line} | engine {found.engine.index} | {found.workspace_size:,}")
x, w = (32, 64, 56, 56), (64, 64, 3, 3)
strict = {"prefer": "no_workspace", "tf32": False, "deterministic": True}
everything = ask(selection.survey, "backward_filter", x, x, w, **strict)
print(cudnnpy.candidates_table(everything))
print(len(everything), "candidates")
try:
    ask(selection.choose, "forward", x, w, prefer="no_workspace", algorithm=cudnnpy.Engine(2))
except cudnnpy.NoAlgorithmError as error:
    print(error)
"""
PROFILE = pages.ROOT / "tests" / "data" / "h200-cudnn-9.28.json"


@pytest.mark.skipif(raw.version() != 92800, reason="the page's tables are cuDNN 9.28.0's")
def test_the_tables_are_what_cudnn_answers(tmp_path):
    (tmp_path / stub_driver.LIBRARY).write_bytes(stub_driver.content())
    text = (pages.ROOT / "docs" / "choosing-algorithms.md").read_text()
    rows = re.findall(r"^\| (\w+) \|(.*?)\| (engine \d+) \| ([\d,]+) \|$", text, re.M)
    questions = [f"{operation} {options.strip(' `')}" for operation, options, _, _ in rows]
    done = subprocess.run(
        [sys.executable, "-c", PLANNING, str(PROFILE)],
        cwd=pages.ROOT,
        input="\n".join(questions),
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = done.stdout.splitlines()
    wanted = [f"{question} | {engine} | {size}" for question, (_, _, engine, size) in zip(questions, rows, strict=True)]
    assert len(wanted) > 8
    assert [line for line in answers if " | " in line] == wanted, done.stderr[-2000:]
    printed = [line for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(printed) > 8
    assert [line for line in printed if line not in answers] == []
    count = next(line for line in answers if line.endswith(" candidates"))
    assert f"(some of {count})" in text
