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


def test_files_of_others_stay(tmp_path: Path) -> None:
    others = [tmp_path / "data.partial", tmp_path / f".{'1' * 16}.partial"]
    for file in others:
        file.write_text("theirs")
        os.utime(file, (0, 0))
    with replacing(tmp_path / "file") as partial:
        partial.write_text("new")
    assert {*tmp_path.iterdir()} == {tmp_path / "file", *others}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_has_the_default_mode(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "file") as partial:
            partial.write_text("new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_block_that_writes_nothing_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "file"):
        pass
    assert [*tmp_path.iterdir()] == []
