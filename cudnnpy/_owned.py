"""One lifetime for everything that cuDNN creates and destroys."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_void_p, cast
from functools import cache, partial
from typing import Any, ClassVar, NoReturn, Self

from cudnnpy import raw
from cudnnpy.errors import ClosedError, CudnnError

_forks = 0


def forks() -> int:
    """How many forks lie between the first process and this one: cheaper to compare than os.getpid()."""
    return _forks


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


@cache
def created_type(create: str) -> tuple[int, Any]:
    """Which parameter of a create function is the new handle's, and the handle's type."""
    for at, (_name, kind, _direction) in enumerate(raw.parameters(create)):
        if kind.endswith("*"):
            return at, raw.ctype(kind)._type_
    raise AttributeError(f"{create} gives no handle: {raw.prototype(create)}")


def _destroy_unless_forked(destroy: str, pointer: Any, made_at: int) -> None:
    """For garbage collection, where an exception could only be printed."""
    if made_at == _forks:
        with suppress(Exception):
            raw.call(destroy, pointer)


class Owned:
    """A C object with one owner. A subclass names the two C functions, and sets the object up in its constructor:

        with self._created():
            raw.call("cudnnSetActivationDescriptor", self, ...)

    It is destroyed by close(), at the end of a `with` block, or when garbage collected; not at interpreter exit, where
    the driver may be gone already. A process forked from the owner's can neither use it nor destroy it.
    """

    _create: ClassVar[str]
    _destroy: ClassVar[str]
    _pointer: Any = None
    _finalizer: weakref.finalize[..., Any] | None = None
    _made_at = 0

    @contextmanager
    def _created(self, *arguments: Any) -> Iterator[None]:
        """Creates the C object for the block that sets it up, and destroys it again if the block fails.

        `arguments` are those of the create function beside the new handle's address.
        """
        self._pointer = self._new(*arguments)
        self._made_at = _forks
        self._finalizer = weakref.finalize(self, self._when_collected())
        self._finalizer.atexit = False
        try:
            yield
        except BaseException:
            with suppress(CudnnError):
                self.close()
            raise

    def _new(self, *arguments: Any) -> Any:
        at, kind = created_type(self._create)
        pointer = kind()
        raw.call(self._create, *arguments[:at], byref(pointer), *arguments[at:])
        return pointer

    def _when_collected(self) -> Callable[[], object]:
        """What garbage collection calls. It may not refer to self, nor raise."""
        return partial(_destroy_unless_forked, self._destroy, self._pointer, self._made_at)

    @property
    def closed(self) -> bool:
        """Whether the object can no longer be used: after close(), or in a process forked from its owner's."""
        return self._pointer is None or self._made_at != _forks

    @property
    def pointer(self) -> Any:
        """The C handle: a ctypes pointer of its own type. Functions of cudnnpy.raw take the object itself as well.

        Raises ClosedError.
        """
        pointer = self._pointer
        if pointer is None:
            raise ClosedError(f"this {type(self).__name__} is closed")
        if self._made_at != _forks:
            raise ClosedError(
                f"this {type(self).__name__} was made before this process was forked from its owner's: make a new one "
                "here, and start processes that use CUDA with the 'spawn' method"
            )
        return pointer

    _as_parameter_ = pointer

    @property
    def address(self) -> int:
        """The C handle as a number, for other libraries. Raises ClosedError."""
        return cast(self.pointer, c_void_p).value or 0

    def close(self) -> None:
        """Destroys the C object; a second call does nothing. Raises StatusError if cuDNN refuses."""
        finalizer, pointer = self._finalizer, self._pointer
        self._pointer = None
        # detach() answers one caller only, were close() called by two threads at once
        if finalizer is not None and finalizer.detach() is not None and self._made_at == _forks:
            raw.call(self._destroy, pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has one owner: it cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self.closed else hex(self.address)}>"
