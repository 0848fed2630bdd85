"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_SECONDS = 3600.0  # since a temporary file was last written, after which its process is taken to have been killed


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which the block makes and writes, in the folder of `target`.

    At the end of the block it takes the place of `target`. If the block raises, it is removed and `target` stays as it was.
    Temporary files that killed processes left in the folder are removed, too.
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
