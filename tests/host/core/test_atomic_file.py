"""A file is replaced in one step, or stays as it was; a device and a pipe are never replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from stored import entry

from cudnnpy._core.atomic_file import replace_file
from cudnnpy.store import Store


@pytest.mark.parametrize("mode", [None, 0o600, 0o664])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_mode_of_the_one_that_it_replaces_or_the_default(
    tmp_path: Path, mode: int | None, umask: int
) -> None:
    target, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(target)
    if mode is not None:
        target.write_text("earlier")
        target.chmod(mode)
    before = os.umask(umask)
    try:
        replace_file(link, b"new")
    finally:
        os.umask(before)
    assert (target.read_text(), link.is_symlink()) == ("new", True)
    assert target.stat().st_mode & 0o777 == (0o666 & ~umask if mode is None else mode)
    assert {*tmp_path.iterdir()} == {target, link}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_ends_early_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], step: str
) -> None:
    target = tmp_path / "file"
    target.write_text("earlier")

    def end(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, end)
    with pytest.raises(error):
        replace_file(target, b"half")
    assert target.read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [target]


def test_a_device_and_a_pipe_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Root may replace them."""
    pipe, received = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    with Store("") as choices:
        choices.put(entry())
        choices.export(tmp_path / "file")
        reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
        reader.start()
        assert choices.export("/dev/null") == choices.export(pipe) == 1
        reader.join(60)
    assert received == [(tmp_path / "file").read_bytes()]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
