"""A lock file for each GPU, so that only one process of a user measures on it at a time and times are not disturbed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cudnnpy._core.atomic_file import make_private_folder

_POLL_SECONDS = 0.02


@contextmanager
def gpu_lock(uuid: str, until: float) -> Iterator[bool]:
    """Wait for the lock of a GPU until a time of time.monotonic(), and yield whether the block holds it.

    The operating system releases it with the process. Where no file can be locked, as in a home folder that cannot be written
    or without platformdirs, it counts as held.
    """
    with ExitStack() as stack:
        try:
            file = os.open(_path(uuid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, ImportError):
            yield True
            return
        stack.callback(os.close, file)
        yield _is_locked(file, until)


def _is_locked(file: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        except OSError:  # a file system without locks
            return True
        else:
            return True


def _path(uuid: str) -> Path:
    from platformdirs import user_cache_path

    folder = user_cache_path("cudnnpy", appauthor=False)
    make_private_folder(folder)
    return folder / f"{uuid}.lock"
