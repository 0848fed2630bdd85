"""The command `cudnnpy faults`, and the list of faults by engine from which a developer writes known issues."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stored import entry, fault

from cudnnpy.cli import command
from cudnnpy.store import Store
from tools import known_issues

FIRST = (
    "limit exceeded: engine 3 (multiply=1); forward 1x64x56x56 64x64x3x3 pad=1; NVIDIA H200 (132 multiprocessors), "
    "cuDNN 9.19.0, driver 13.0; 2026-02-01: no end after 2.0 s\n"
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's store, with two faults of two problems."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("CUDNNPY_STORE", str(path))
    with Store(path) as store:
        store.put(entry(1))
        store.add_faults([fault(1), fault(2, candidate="engine 20", symptom="context lost")])
    return path


def test_faults_are_listed_one_a_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["faults"]) == 0
    lines = capsys.readouterr().out.splitlines(keepends=True)
    assert (len(lines), lines[0]) == (2, FIRST)
    assert lines[1].startswith("context lost: engine 20; forward 2x64x56x56 ")


@pytest.mark.parametrize("is_export", [False, True])
def test_a_named_store_or_export_is_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_export: bool
) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", "")
    export = tmp_path / "choices.jsonl"
    Store(path).export(export)
    assert command.main(["faults", "--store", str(export if is_export else path), "--json"]) == 0
    (first, second) = json.loads(capsys.readouterr().out)
    assert first == fault(1).plain()
    assert second["candidate"] == "engine 20"


def test_the_faults_of_one_problem_are_removed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(path).add_faults([fault(1, candidate="engine 9", text="forward 1x64x56x56 64x64x3x3 pad=1 tf32=False")])
    assert command.main(["faults", "--remove", fault(1).text]) == 0
    removed = capsys.readouterr().out
    assert removed.startswith(FIRST)
    assert removed.count("\n") == 2  # those of the problem that were found with other options, too
    assert [one.candidate for one in Store(path).faults()] == ["engine 20"]
    assert len(Store(path)) == 1


def test_all_faults_are_removed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["faults", "--remove", "all", "--store", str(path)]) == 0
    assert Store(path).faults() == []
    assert capsys.readouterr().out.count("\n") == 2
    assert command.main(["faults", "--remove", "all"]) == 0
    assert capsys.readouterr().out == "no faults\n"


def test_a_store_that_is_not_there_has_no_faults_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "store.sqlite"))
    assert command.main(["faults"]) == 0
    assert capsys.readouterr().out == "no faults\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--remove", "forward"], "--remove must be a problem that cudnnpy faults lists, or all; got 'forward'"),
        (["--store", "{folder}/none"], "{folder}/none: no such store"),
        (
            ["--store", "{folder}"],
            "path must be a file; got {folder}, a folder. Name a file in it, such as store.sqlite",
        ),
        (["--store", "{folder}/choices.jsonl", "--remove", "all"], "store must be open for writing to be changed"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Store(path).export(path.parent / "choices.jsonl")
    assert command.main(["faults", *(part.format(folder=path.parent) for part in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cudnnpy faults: {message.format(folder=path.parent)}")
    assert len(Store(path).faults()) == 2


def test_a_store_that_cannot_be_written_keeps_its_faults(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "makedirs", _read_only)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert command.main(["faults", "--remove", "all"]) == 1
    assert capsys.readouterr().err == f"cudnnpy faults: {path} cannot be changed: [Errno 30] Read-only file system\n"
    assert len(Store(path).faults()) == 2


def _read_only(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_faults_are_listed_by_engine_for_a_developer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(path).add_faults(
        [fault(3, candidate="engine 3"), fault(1, candidate="engine 3 + copies", symptom="wrong result")]
    )
    page = (known_issues.ROOT / known_issues.PAGE).read_bytes()
    assert known_issues.main(["--faults", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    seen = "with cuDNN 9.19.0 on an NVIDIA H200"
    assert lines[0] == f"engine 3: 2 limit exceeded {seen}; 1 wrong result {seen}"
    assert lines[1].strip() == f"{fault(1).text}: engine 3 (multiply=1): limit exceeded: no end after 2.0 s"
    assert (lines[4], len(lines)) == (f"engine 20: 1 context lost {seen}", 6)
    assert (known_issues.ROOT / known_issues.PAGE).read_bytes() == page
