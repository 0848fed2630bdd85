"""A stand-in for libcudnn, which records calls of C: it answers them itself, or the real library does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest

from cudnnpy.raw import _library

RELEASE = 92800  # of a library that is not the real one


class Answer(Protocol):
    """Returns the status of a call; None leaves the call to the real library, or succeeds without one."""

    def __call__(self, name: str, *arguments: Any) -> int | None: ...


class Function:
    """A function of the stand-in, with what ctypes lets be set on one."""

    def __init__(self, library: StandInLibrary, name: str) -> None:
        self.library, self.name = library, name
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> Any:
        library = self.library
        library.names.append(self.name)
        status = library.answer(self.name, *arguments)
        if status is not None or library.real is None:
            return status or 0
        function = library.real[self.name]
        function.restype, function.argtypes = self.restype, self.argtypes
        return function(*arguments)


class StandInLibrary:
    """The functions of libcudnn by name. `names` are those that were called; arguments would stay alive if they were kept."""

    def __init__(self, answer: Answer, real: Any = None) -> None:
        self.answer, self.real = answer, real
        self.names: list[str] = []

    def __getitem__(self, name: str) -> Function:
        return Function(self, name)


LibcudnnFixture = Callable[..., StandInLibrary]


def nothing(name: str, *_: Any) -> int | None:
    """The answer that is none."""
    return None


@contextmanager
def stand_in_library(answer: Answer = nothing, *, real: bool = False) -> Iterator[StandInLibrary]:
    """A stand-in in the place of libcudnn, which answers what is left if `real`."""
    made = StandInLibrary(answer, _library.load() if real else None)
    with _library.replaced(made, _library.version() if real else RELEASE):
        yield made


@pytest.fixture
def libcudnn() -> Iterator[LibcudnnFixture]:
    """Puts a stand-in in the place of libcudnn until the test ends: libcudnn(answer), or libcudnn(answer, real=True)."""
    with ExitStack() as stack:
        yield lambda *answer, **how: stack.enter_context(stand_in_library(*answer, **how))
