"""A file is replaced at the end of the block, or stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudnnpy._core.atomic_file import replacing


@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_the_file_is_there_after_the_block(tmp_path: Path, earlier: str | None) -> None:
    target = tmp_path / "file"
    if earlier is not None:
        target.write_text(earlier)
    with replacing(target) as partial:
        partial.write_text("new")
        assert partial.parent == tmp_path
        assert target.exists() == (earlier is not None)
    assert target.read_text() == "new"
    assert [*tmp_path.iterdir()] == [target]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("is_written", [True, False])
def test_a_block_that_raises_leaves_the_file_as_it_was(
    tmp_path: Path, error: type[BaseException], is_written: bool
) -> None:
    target = tmp_path / "file"
    target.write_text("earlier")
    with pytest.raises(error), replacing(target) as partial:
        if is_written:
            partial.write_text("half")
        raise error
    assert target.read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [target]


def test_files_that_killed_processes_left_are_removed_by_the_next_one(tmp_path: Path) -> None:
    with replacing(tmp_path / "killed") as partial:
        partial.write_text("half")
        killed, written = partial.with_name(f".{'1' * 16}.partial"), partial.with_name(f".{'2' * 16}.partial")
        others = [tmp_path / "old", tmp_path / ".other.partial"]
        for file in (killed, written, *others):
            file.write_text("half")
        for file in (killed, *others):
            os.utime(file, (0, 0))
        with replacing(tmp_path / "file") as another:
            another.write_text("new")
        assert partial.exists()
    assert {*tmp_path.iterdir()} == {tmp_path / "killed", tmp_path / "file", written, *others}


def test_a_block_that_writes_nothing_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "file"):
        pass
    assert [*tmp_path.iterdir()] == []
