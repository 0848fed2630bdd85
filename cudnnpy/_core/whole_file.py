"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which the block makes and writes, in the folder of `target`.

    At the end of the block it takes the place of `target`. If the block raises, it is removed and `target` stays as it was.
    """
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
