"""One lifetime for everything that cuDNN creates and destroys."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_void_p
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar

from cudnnpy import raw
from cudnnpy.errors import ClosedError, CudnnError

if TYPE_CHECKING:
    from ctypes import _Pointer

# The ctypes pointer that stands for the C object.
PointerT = TypeVar("PointerT", bound="_Pointer[Any]")


@cache
def created_type(create: str) -> tuple[int, Any]:
    """Which parameter of a create function is the new handle's, and the handle's type."""
    for at, (_name, kind, _direction) in enumerate(raw.parameters(create)):
        if kind.endswith("*"):
            return at, raw.ctype(kind)._type_
    raise AttributeError(f"{create} gives no handle: {raw.prototype(create)}")


class _Life(weakref.ref[Any]):
    """The life of one C object: as long as that of the ctypes pointer to it that its owner and all who use it share.

    ctypes holds a reference to the pointer while a call runs, and a prepared launch one as long as it is kept. So
    whoever drops the last one, the owner's close() as a rule, ends the life, and the C object is never destroyed under
    a call of another thread. That costs a call nothing.
    """

    __slots__ = ("closing", "destroy", "end", "error", "owner", "same")
    __hash__, __eq__ = object.__hash__, object.__eq__  # a pointer, like other numbers of ctypes, has no hash

    def __new__(cls, pointer: Any, _owner: Owned[Any]) -> Self:
        return super().__new__(cls, pointer, _ended)

    def __init__(self, pointer: Any, owner: Owned[Any]) -> None:
        self.owner = weakref.ref(owner)
        self.destroy = owner._destroy
        self.same = type(pointer).from_buffer_copy(pointer)  # for the end, when the other is gone
        self.end = owner._when_collected(self.same)
        self.closing = False  # whether close() waits for what comes of it
        self.error: BaseException | None = None


_alive: set[_Life] = set()


def _ended(life: _Life, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Called when the last reference to the pointer is gone."""
    if finalizing():
        return  # the driver may be gone already
    _alive.discard(life)
    if not life.closing:
        life.end()
        return
    try:
        raw.call(life.destroy, life.same)
    except BaseException as error:
        life.error = error  # what a weak reference's callback raises would only be printed


def _forked() -> None:
    """In a forked child: what was made before is neither used nor destroyed."""
    for life in tuple(_alive):
        life.end, life.closing = _nothing, False
        owner = life.owner()
        if owner is not None:
            owner._was_forked = True
            owner._forget()
    _alive.clear()


def _nothing() -> None:
    pass


os.register_at_fork(after_in_child=_forked)


def _destroy(function: str, pointer: Any) -> None:
    """For garbage collection, where an exception could only be printed."""
    with suppress(Exception):
        raw.call(function, pointer)


class _Closed:
    """What ctypes finds as the parameter of an object that holds none: the exception that says why."""

    def __get__(self, owned: Owned[Any] | None, _kind: type[Owned[Any]]) -> Any:
        return self if owned is None else owned.pointer


class Owned(Generic[PointerT]):
    """A C object with one owner. A subclass names the two C functions, and sets the object up in its constructor:

        with self._created():
            raw.call("cudnnSetActivationDescriptor", self, ...)

    It is destroyed by close(), at the end of a `with` block, or when garbage collected, once no call that was given it is
    still running; not at interpreter exit, where the driver may be gone already. A process forked from the owner's can
    neither use it nor destroy it.
    """

    _create: ClassVar[str]
    _destroy: ClassVar[str]
    _pointer: PointerT | None = None
    _life: _Life | None = None
    _was_forked = False

    @contextmanager
    def _created(self, *arguments: Any) -> Iterator[None]:
        """Creates the C object for the block that sets it up, and destroys it again if the block fails.

        `arguments` are those of the create function beside the new handle's address.
        """
        pointer = self._new(*arguments)
        self._life = _Life(pointer, self)
        _alive.add(self._life)
        # What ctypes finds in this attribute it takes without running Python, in which Ctrl-C could interrupt it.
        self._pointer = self._as_parameter_ = pointer
        del pointer
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

    def _when_collected(self, pointer: Any) -> Callable[[], object]:
        """What is done with the C object when all references to it are gone. It may not refer to self, nor raise."""
        return partial(_destroy, self._destroy, pointer)

    @property
    def closed(self) -> bool:
        """Whether the object can no longer be used: after close(), or in a process forked from its owner's."""
        return self._pointer is None

    @property
    def pointer(self) -> PointerT:
        """The C handle: a ctypes pointer of its own type. Functions of cudnnpy.raw take the object itself as well.

        Whoever keeps it keeps the C object from being destroyed. Raises ClosedError.
        """
        pointer = self._pointer
        if pointer is not None:
            return pointer
        if not self._was_forked:
            raise ClosedError(f"this {type(self).__name__} is closed")
        raise ClosedError(
            f"this {type(self).__name__} was made before this process was forked from its owner's: make a new one "
            "here, and start processes that use CUDA with the 'spawn' method"
        )

    if TYPE_CHECKING:
        _as_parameter_: PointerT
    else:
        _as_parameter_ = _Closed()

    @property
    def address(self) -> int:
        """The C handle as a number, for other libraries. Raises ClosedError."""
        return c_void_p.from_buffer_copy(self.pointer).value or 0  # cast() would put the pointer into a cycle

    def close(self) -> None:
        """Destroys the C object, or where a call or a kept `pointer` still uses it, leaves that to the last of them.

        A second call does nothing. Raises StatusError if cuDNN refuses.
        """
        life, self._life = self._life, None
        if life is not None:
            life.closing = True
        self._forget()
        if life is not None:
            life.closing = False
            error, life.error = life.error, None
            if error is not None:
                raise error

    def _forget(self) -> None:
        self._pointer = None
        self.__dict__.pop("_as_parameter_", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__name__}: it has one owner")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self.closed else hex(self.address)}>"
