"""PublicDir, the base class whose `dir` lists public names only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_") or name.endswith("__")]


def no_attribute(owner: object, name: str) -> str:
    """Return the message for an attribute that an object lacks: it lists the public ones."""
    has = "" if name.startswith("_") else f". It has {', '.join(one for one in dir(owner) if not one.startswith('_'))}"
    return f"{type(owner).__name__!r} object has no attribute {name!r}{has}"


class _PublicDirType(type):
    def __dir__(cls) -> list[str]:
        return [name for name in _public(super().__dir__()) if hasattr(cls, name)]


class PublicDir(metaclass=_PublicDirType):
    """A class whose private names, which start with an underscore, are not completed at a prompt.

    Nor are names that a class inherits and refuses, as cudnnpy.reference refuses methods that need a GPU.
    """

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return _public({*dir(type(self)), *getattr(self, "__dict__", ())})

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name):
            raise AttributeError(no_attribute(self, name), name=name, obj=self)
