"""Atomic writes, which replace a file in one step, and private folders."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file for the block to write, and replace `target` by this file at the end of the block.

    If the block raises, the temporary file is removed and `target` is unchanged. The temporary file is in a folder of its own
    beside `target`, so that its mode is the default one.
    """
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent, ignore_cleanup_errors=True) as folder:
        partial = Path(folder, "content")
        yield partial
        os.replace(partial, target)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file in one step. The mode of a replaced file stays, and a symbolic link is followed."""
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with replacing(target) as partial:
        partial.touch(0o666 if mode is None else 0o600)  # the content of a private file is never public
        partial.write_bytes(content)
        if mode is not None:
            partial.chmod(mode)


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, for this user alone whatever the umask. Those that exist stay as they are.

    Raises OSError.
    """
    for folder in reversed((Path(path), *Path(path).parents)):
        os.makedirs(folder, 0o700, exist_ok=True)
