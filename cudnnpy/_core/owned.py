"""Owned, the base class of objects that cuDNN creates and destroys: handles and descriptors."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_void_p
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar

from cudnnpy import raw
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._process.module_state import declare, in_forked_child
from cudnnpy.errors import ClosedError, CudnnError

if TYPE_CHECKING:
    from ctypes import _Pointer

# The type of the ctypes pointer to the C object.
PointerT = TypeVar("PointerT", bound="_Pointer[Any]")


@cache
def created_type(create: str) -> tuple[int, Any]:
    """Return the position of the new handle among the parameters of a create function, and the handle's type."""
    for at, (_name, kind, _direction) in enumerate(raw.parameters(create)):
        if kind.endswith("*"):
            return at, raw.ctype(kind)._type_
    raise AttributeError(f"{create} gives no handle: {raw.prototype(create)}")


class _Lifetime(weakref.ref[Any]):
    """The lifetime of one C object, which ends with the ctypes pointer that its owner and all of its users share.

    ctypes holds a reference to the pointer during a call, and a prepared launch holds one as long as it exists.
    Dropping the last reference, usually by the owner's close(), ends the lifetime. So the C object is never destroyed
    during a call of another thread, at no cost for the call.
    """

    __slots__ = ("closing", "destroy", "end", "error", "owner", "same")
    __hash__, __eq__ = object.__hash__, object.__eq__  # ctypes pointers are not hashable

    def __new__(cls, pointer: Any, _owner: Owned[Any]) -> Self:
        return super().__new__(cls, pointer, _on_last_reference)

    def __init__(self, pointer: Any, owner: Owned[Any]) -> None:
        self.owner = weakref.ref(owner)
        self.destroy = owner._destroy
        self.same = type(pointer).from_buffer_copy(pointer)  # used at the end, when the shared pointer is gone
        self.end = owner._when_collected(self.same)
        self.closing = False  # whether close() waits for the result
        self.error: BaseException | None = None


_alive: set[_Lifetime] = set()

declare(__name__, "_alive", resets=False)


def _on_last_reference(life: _Lifetime, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Destroy the C object: called when the last reference to the pointer is dropped."""
    if finalizing():
        return  # the driver may be unloaded already
    _alive.discard(life)
    if not life.closing:
        life.end()
        return
    try:
        raw.call(life.destroy, life.same)
    except BaseException as error:
        life.error = error  # an exception of a weak reference's callback is only printed


def _forked() -> None:
    """In a forked child, neither use nor destroy objects that were made before the fork."""
    for life in tuple(_alive):
        life.end, life.closing = lambda: None, False
        owner = life.owner()
        if owner is not None:
            owner._was_forked = True
            owner._forget()
    _alive.clear()


in_forked_child(_forked)


def _destroy(function: str, pointer: Any) -> None:
    """Destroy a C object during garbage collection, where an exception could only be printed."""
    with suppress(Exception):
        raw.call(function, pointer)


class _Closed:
    """The ctypes parameter of a closed object: it raises the exception that says why."""

    def __get__(self, owned: Owned[Any] | None, _kind: type[Owned[Any]]) -> Any:
        return self if owned is None else owned.pointer


class Owned(PublicDir, Generic[PointerT]):
    """A C object with one owner.

    A subclass names the two C functions, and sets the object up in its constructor::

        with self._created():
            raw.call("cudnnSetActivationDescriptor", self, ...)

    The object is destroyed by close(), at the end of a `with` block, or by garbage collection, once no call that uses
    it is running. At interpreter exit it is not destroyed, since the driver may be unloaded already. A process forked
    from the owner's can neither use nor destroy it.
    """

    _create: ClassVar[str]
    _destroy: ClassVar[str]
    _pointer: PointerT | None = None
    _life: _Lifetime | None = None
    _was_forked = False

    @contextmanager
    def _created(self, *arguments: Any) -> Iterator[None]:
        """Create the C object for the block that sets it up, and destroy it if the block fails.

        `arguments` are the create function's arguments except the address of the new handle.
        """
        pointer = self._new(*arguments)
        self._life = _Lifetime(pointer, self)
        _alive.add(self._life)
        # ctypes takes this attribute without running Python code, which Ctrl-C could interrupt.
        self._pointer = self._as_parameter_ = pointer
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
        """Return the function that ends the C object. It must neither refer to self nor raise."""
        return partial(_destroy, self._destroy, pointer)

    @property
    def closed(self) -> bool:
        """Whether the object can no longer be used: after close(), or in a process forked from its owner's."""
        return self._pointer is None

    @property
    def pointer(self) -> PointerT:
        """The C handle: a ctypes pointer of its own type. Functions of `cudnnpy.raw` also take the object itself.

        The C object is not destroyed while a reference to the pointer exists. Raises ClosedError.
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
        """The C handle as an integer, for other libraries. Raises ClosedError."""
        return c_void_p.from_buffer_copy(self.pointer).value or 0  # cast() would make a reference cycle

    def close(self) -> None:
        """Destroy the C object. While a call or a reference to `pointer` still uses it, the end of the last use destroys it.

        A second call does nothing. Raises StatusError if cuDNN reports an error.
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
