"""Files that commands write: paths that are rejected before the work, and that nothing is written half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.output_files import check_writable, write


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "is not the name of a file"),
        (".", ".: is a folder"),
        ("/dev/null", "/dev/null: is not a file"),
        ("there", "there: the file exists; --force overwrites it"),
        ("there/x", "there/x: there is no folder|Not a directory"),
        ("nowhere/at/all", "nowhere/at/all: there is no folder"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_one_line(path: str, words: str) -> None:
    Path("there").write_text("mine")
    before = sorted(Path().iterdir())
    with pytest.raises(UsageError, match=words) as caught:
        check_writable(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError):
        write(path, "other", overwrite=False)
    assert Path("there").read_text() == "mine"
    assert sorted(Path().iterdir()) == before
    check_writable("there", overwrite=True)


def test_a_folder_that_cannot_be_written_to_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    with pytest.raises(UsageError, match=r"^new: the folder .* cannot be written to$"):
        check_writable("new")
