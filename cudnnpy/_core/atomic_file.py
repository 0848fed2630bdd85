"""Atomic writes: replace a file in one step."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_SECONDS = 3600.0  # since a temporary file was last written, after which its process is taken to have been killed


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file for the block to write, and replace `target` by this file at the end of the block.

    If the block raises, the temporary file is removed and `target` is unchanged. The temporary file is in the same folder;
    temporary files that killed processes left there are removed, too.
    """
    for left in target.parent.glob(f".{'[0-9a-f]' * 16}.partial"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                left.unlink()
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file in one step. The mode of a replaced file stays, and a symbolic link is followed."""
    target = Path(os.path.realpath(path))
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with replacing(target) as partial:
        partial.touch(0o666 if mode is None else 0o600)  # the content of a private file is never public
        partial.write_bytes(content)
        if mode is not None:
            partial.chmod(mode)
