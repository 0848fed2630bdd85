"""The documentation: its programs that need no GPU run, its links lead somewhere, its tables agree with cuDNN."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pytest
from fresh_process import python

from cudnnpy import raw
from cudnnpy.tuning.profiles.device_profile import FIRST_RELEASE

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
    text = (pages.ROOT / "docs" / page).read_text()
    if "DeviceProfile.load(" in pages.program(text, (), gpu=False) and raw.version() < FIRST_RELEASE:
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


def test_the_readmes_programs_run():
    programs = re.findall(r"```python\n(.*?)```", (pages.ROOT / "README.md").read_text(), re.DOTALL)
    assert programs
    for program in programs:
        python(program)


@pytest.mark.parametrize("page", [*pages.PAGES, "../README.md", "../CONTRIBUTING.md", "../SECURITY.md"])
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
