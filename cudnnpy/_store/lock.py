"""A lock beside a store's file. Processes that use the file share it; a process that replaces the file holds it alone.

SQLite locks the file that a process has opened. A file that takes its place is another one, so this needs a lock of its own.
The system releases it when a process ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudnnpy._store.faults import Unusable

_PAUSE = 0.01  # seconds


@contextmanager
def held(path: Path, seconds: float, *, make: bool = True, alone: bool = False) -> Iterator[bool]:
    """Hold the lock of a path; it is False where no lock can be had, as in a folder that is read only.

    Without `make`, there is none before something was written. Raises Unusable if another process holds it for that time.
    """
    try:
        file = os.open(lock_of(path), os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o666)
    except OSError:
        yield False
        return
    try:
        locked = _lock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, time.monotonic() + seconds)
        try:
            yield locked
        finally:
            if locked:  # closing would not release it if a fork shares the file
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def lock_of(path: Path) -> str:
    """Return the name of the file that is locked."""
    return f"{path}.lock"


def _lock(file: int, kind: int, end: float) -> bool:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise Unusable("it stays locked") from None
            time.sleep(_PAUSE)
        except OSError:  # a file system without such locks
            return False
        else:
            return True
