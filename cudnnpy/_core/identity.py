"""What stands for operation objects in the keys of the plan cache."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from cudnnpy._options.options_base import ImmutableOptions


class Identity:
    """What stands for an object in the keys of the plan cache: it is equal to itself alone.

    A copy of an identity, an unpickled one too, is another identity. A key keeps its identities alive, so that none is
    ever taken for another one that lay at the same address.
    """

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[Identity], tuple[()]]:
        return Identity, ()


# An identity is forgotten with the last object and the last key that hold it.
_of_values: WeakValueDictionary[Any, Identity] = WeakValueDictionary()


def identity_of(kind: type, *values: Any) -> Identity:
    """The identity of a kind of object with these values: the same one for the same values, as long as it is in use.

    Values are told apart by their types, too. Two threads that ask at once may get two identities for the same values,
    which costs a second plan, and never one identity for different values.
    """
    key = kind, values, tuple(map(type, values))
    return _of_values.setdefault(key, Identity())


class Identified(ImmutableOptions):
    """Options with an identity: objects of one class with equal options share it, and so they share plans."""

    _identity: Identity

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_identity": self._identified()}

    def _identified(self) -> Identity:
        return identity_of(type(self), *self._fields().values())
