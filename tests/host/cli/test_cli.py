"""The command: help, Ctrl-C, closed pipes and full disks, which its parts share, and `info`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fresh_process import python

import cudnnpy
from cudnnpy import availability, raw
from cudnnpy._planning import known_issues
from cudnnpy.cli import command as cli
from cudnnpy.cli import info, text_table
from cudnnpy.tuning.ranking import model

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_GPU = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": ""}


def command(*arguments, cwd=ROOT, **environment):
    """Run `python -m cudnnpy ...`; no GPU is visible to it, so that the outcome is the same everywhere."""
    return subprocess.run(
        [sys.executable, "-m", "cudnnpy", *map(str, arguments)],
        cwd=cwd,
        env={**WITHOUT_GPU, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_alone_it_prints_its_help():
    alone, asked = command(), command("--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    for name in ("info", "edges", "explain", "plan", "device-profile"):
        assert f"\n    {name}" in alone.stdout


@pytest.mark.parametrize("arguments", [["paint"], ["--paint"], ["info", "more\nthan this"]])
def test_wrong_arguments_are_one_line_and_status_2(arguments):
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"cudnnpy{' info' * (arguments[0] == 'info')}: ")
    assert done.stderr.endswith(" --help)\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("edge", "cudnnpy: command must be one of info, ...; got 'edge'. Did you mean 'edges'? (see cudnnpy --help)"),
        ("help", "cudnnpy: command must be one of info, ...; got 'help' (see cudnnpy --help)"),
        (
            "device_profile",
            "cudnnpy: command ...; got 'device_profile'. Did you mean 'device-profile'? (see ...)",
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 --workspace-limit 64MiB",
            (
                "cudnnpy explain: unrecognized arguments: --workspace-limit 64MiB; an option of the problem is a word without "
                "dashes, such as workspace_limit=64MiB (see cudnnpy explain --help)"
            ),
        ),
        (
            "plan forward 1x3x8x8 4x3x3x3 --device h200 -o plans.jsonl",
            (
                "cudnnpy plan: unrecognized arguments: 1x3x8x8 4x3x3x3; a file of problems must be named, and cudnnpy explain "
                "takes a problem itself (see cudnnpy plan --help)"
            ),
        ),
        (
            "plan none.txt --device h200 -o plans.jsonl",
            "cudnnpy plan: none.txt: No such file or directory; a file of problems must be named, and cudnnpy explain ...",
        ),
        (
            "plan none.txt --device a100 -o plans.jsonl",
            "cudnnpy plan: none.txt: No such file or directory; ...",
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 --device a100",
            (
                "cudnnpy explain: a100: cannot be read as a device profile: No such file or directory; the package has h100, "
                "h200, and `cudnnpy device-profile -o FILE` writes the profile of another GPU, where it is"
            ),
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 --device H200",
            "cudnnpy explain: H200: ...where it is. Did you mean 'h200'?",
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 kernel=3",
            "cudnnpy explain: ...: kernel must be left out: the size of the filter is in the shape of w; got 'kernel=3'",
        ),
        (
            f"explain {__file__} --device h200",
            "cudnnpy explain: ...: a problem must be named, and cudnnpy plan takes a file of problems",
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 --device=",
            "cudnnpy explain: '': cannot be read as a device profile: No such file or directory; ...",
        ),
        ("explain fprop 1x3x8x8 4x3x3x3", "cudnnpy explain: column 1: ...; got 'fprop'. Did you mean 'forward'?"),
        (
            "explain wgrad 1x3x8x8 4x3x3x3",
            "cudnnpy explain: column 1: ...; got 'wgrad'. Did you mean 'backward_filter'?",
        ),
        (
            "explain forward 1x3x8x8 4x3x3x3 nhwc",
            "cudnnpy explain: ...: nhwc must be written as channels_last, with ...'nhwc'",
        ),
    ],
)
def test_what_people_type_is_told_what_to_type(monkeypatch, tmp_path, capsys, arguments, error):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(re.escape(error).replace(re.escape("..."), ".*"), line), line


PRINTING = [
    (["info"], ""),
    (["info"], "1"),
    (["--help"], ""),
    ([], ""),
    (["edges", "-o", "{folder}/x.png", "--device", "cpu"], ""),
]


@pytest.mark.parametrize(("arguments", "unbuffered"), PRINTING)
def test_a_closed_pipe_ends_it_quietly(tmp_path, arguments, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        done = run_into(closed, tmp_path, arguments, unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("arguments", "unbuffered"), PRINTING)
def test_a_full_disk_is_one_line(tmp_path, arguments, unbuffered):
    with open("/dev/full", "wb") as full:
        done = run_into(full, tmp_path, arguments, unbuffered)
    assert (done.returncode, done.stderr) == (2, "cudnnpy: standard output: No space left on device\n")


def test_without_standard_output_it_does_its_work(monkeypatch, capsys):
    with_output = cli.main(["info"])
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts with a closed one
    assert cli.main(["info"]) == with_output
    text_table.show(["a line"])
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def run_into(output, folder, arguments, unbuffered):
    return subprocess.run(
        [sys.executable, "-m", "cudnnpy", *(word.format(folder=folder) for word in arguments)],
        env={**WITHOUT_GPU, "PYTHONUNBUFFERED": unbuffered},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("before", "status"), [(signal.SIG_DFL, 128), (signal.SIG_IGN, 0), (lambda number, frame: None, 0)]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_as_ctrl_c_does_unless_it_is_ignored_or_handled(
    monkeypatch, capsys, number, before, status
):
    """It is ignored under nohup; a program that calls `main` may handle it."""
    monkeypatch.setattr(info, "run", lambda options: signal.raise_signal(number) or 0)
    outside = signal.signal(number, before)
    try:
        assert cli.main(["info"]) == (status and status + number)
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)
    assert capsys.readouterr() == ("", "")


def test_the_command_loads_neither_cudnn_nor_cuda():
    program = (
        "import sys, cudnnpy.cli.command, cudnnpy.cli.edges; from cudnnpy.raw import _library; "
        "assert _library._loaded is None; "
        "print(*{name for name in sys.modules if name in ('cuda.core', 'cuda.bindings', 'torch', 'PIL')})"
    )
    assert python(program) == "\n"


def test_info_without_a_gpu(tmp_path):
    done = command("info", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "cuDNN cannot be used here"
    assert str(Path(raw.path()).resolve().parent) in done.stdout
    assert raw.version_text(raw.version()) in done.stdout
    files = [line for line in done.stdout.splitlines() if line.startswith(("  loaded ", "  not loaded "))]
    for path in Path(raw.path()).parent.glob("libcudnn*.so.9"):
        assert sum(bool(re.search(rf"[/{{ ]{path.name}(?:$|[,}}])", line)) for line in files) == 1, path
    assert "problem: " in done.stdout
    assert (f"not measured: {model.release_note()}\n" in done.stdout) == bool(model.release_note())


def test_info_as_json():
    done = command("info", "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["why_unavailable"] is None else 1)
    assert set(found) == {field.name for field in dataclasses.fields(availability.Report)} | {"not_measured"}
    assert found["not_measured"] == [note for note in (model.release_note(), known_issues.release_note()) if note]
    assert found["cudnn"] == raw.version_text(raw.version())
    first = found["libraries"][0]
    assert {**first, "origin": ""} == {
        "name": "libcudnn.so.9",
        "path": raw.path(),
        "version": found["cudnn"],
        "origin": "",
    }
    assert first["origin"].startswith("wheel nvidia-cudnn-cu")
    assert {"numpy", "cuda-pathfinder", "cuda-bindings"} <= set(found["packages"])
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert found["system"].startswith("Linux ")


def test_info_where_no_cudnn_is(tmp_path):
    done = command("info", CUDNNPY_LIBRARY=str(tmp_path / "libcudnn.so.9"))
    assert done.returncode == 1
    assert "not loaded" in done.stdout
    assert "CUDNNPY_LIBRARY" in done.stdout


def test_info_names_mixed_origins_and_missing_files(tmp_path):
    """A folder with libcudnn, and of the sub-libraries one alone, which lies elsewhere."""
    original = Path(raw.path()).resolve()
    library = Path(shutil.copy(original, tmp_path))
    (tmp_path / "libcudnn_graph.so.9").symlink_to(original.with_name("libcudnn_graph.so.9"))
    done = command("info", CUDNNPY_LIBRARY=str(library))
    assert done.returncode == 1
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    mixed = next(line for line in problems if "different folders" in line)
    assert str(tmp_path) in mixed
    assert str(original.parent) in mixed
    missing = next(line for line in problems if "not found" in line)
    for part in ("ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled"):
        assert f"libcudnn_{part}.so.9" in missing
    assert "libcudnn_graph" not in missing


def test_the_report_and_the_two_questions_agree():
    found = availability.report()
    assert found.why_unavailable == cudnnpy.why_unavailable()
    assert cudnnpy.is_available() is (found.why_unavailable is None)
    assert found.cudnn == raw.version_text(raw.version())
    assert found.libraries[0].path == raw.path()
    assert bool(found.gpus) or found.problems
    assert len({library.path for library in found.libraries}) == len(found.libraries)
