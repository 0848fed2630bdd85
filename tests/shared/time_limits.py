"""A limit of time for each test, by its folder, as hooks of pytest: no test waits for ever.

A test that takes longer fails with the place where its main thread is. If it waits in C, where Python handles no signal, the
process ends instead, and prints where each thread is; likewise if threads keep it from ending after the last test. A fixture's
set-up and its clean-up have the same limit.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic  # not one that a test replaces

import pytest

VARIABLE = "CUDNNPY_TEST_SECONDS"
_SECONDS = 300.0
_OF_FOLDERS = {"gpu": 1200.0, "index": 1800.0}
_stderr = 2  # that of the process, whatever pytest captures
_watched = (0.0, 0.0)  # the limit of the thread that ends the process, and when it began


class TimeLimitError(BaseException):
    """A test takes too long. It is no Exception, which the code of the test might handle."""


def seconds(folder: str) -> float:
    """Return the limit of a test in a folder of tests."""
    if VARIABLE in os.environ:
        return float(os.environ[VARIABLE])
    asked = float(os.environ.get("CUDNNPY_FUZZ_SECONDS", "0")) if folder == "fuzz" else 0.0
    return _OF_FOLDERS.get(folder, _SECONDS) + asked


def folder_of(path: Path) -> str:
    """Return the folder of tests that a file is in, at any depth: "host" for tests/host/store/test_files.py."""
    below = path.parts[len(path.parts) - path.parts[::-1].index("tests") : -1] if "tests" in path.parts else ()
    return below[0] if below else path.parent.name


def pytest_configure() -> None:
    """Keep standard error, which pytest does not capture yet."""
    global _stderr
    _stderr = os.dup(2)


def _watch(limit: float) -> None:
    """Have the process ended where tests of this limit wait in C.

    That takes a thread and a millisecond, so one thread is for all tests of a tenth of the limit, and has that much more time.
    """
    global _watched
    now = monotonic()
    if not math.isfinite(limit):
        faulthandler.cancel_dump_traceback_later()
        _watched = (limit, now)
    elif _watched[0] != limit or now > _watched[1] + limit / 10:
        faulthandler.dump_traceback_later(1.6 * limit, exit=True, file=_stderr)
        _watched = (limit, now)


@contextmanager
def _limited(path: Path) -> Iterator[None]:
    limit = seconds(folder_of(path))
    _watch(limit)
    if not math.isfinite(limit):
        yield
        return

    def end(_number: int, _frame: object) -> None:
        raise TimeLimitError(f"longer than {limit:g} s, the limit of a test ({VARIABLE})")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit, limit / 10)  # again, since the clean-up may wait, too
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _limited(item.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _limited(item.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _limited(item.path):
        return (yield)


def pytest_unconfigure() -> None:
    """Limit the time in which the process ends, which waits for threads."""
    if math.isfinite(limit := seconds("")):
        faulthandler.dump_traceback_later(limit, exit=True, file=_stderr)
