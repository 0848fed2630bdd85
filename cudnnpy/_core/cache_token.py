"""What stands for operation objects in the keys of the plan cache."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from cudnnpy._options.options_base import ImmutableOptions


class CacheToken:
    """What stands for an object in the keys of the plan cache: it is equal to itself alone.

    A copy of an identity, an unpickled one too, is another identity. A key keeps its identities alive, so that none is
    ever taken for another one that lay at the same address.
    """

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[CacheToken], tuple[()]]:
        return CacheToken, ()


# An identity is forgotten with the last object and the last key that hold it.
_of_values: WeakValueDictionary[Any, CacheToken] = WeakValueDictionary()


def cache_token(kind: type, *values: Any) -> CacheToken:
    """The identity of a kind of object with these values: the same one for the same values, as long as it is in use.

    Values are told apart by their types, too. Two threads that ask at once may get two identities for the same values,
    which costs a second plan, and never one identity for different values.
    """
    key = kind, values, tuple(map(type, values))
    return _of_values.setdefault(key, CacheToken())


class TokenizedOptions(ImmutableOptions):
    """Options with an identity: objects of one class with equal options share it, and so they share plans."""

    _token: CacheToken

    def _derived(self) -> dict[str, Any]:
        return {**super()._derived(), "_token": self._make_token()}

    def _make_token(self) -> CacheToken:
        return cache_token(type(self), *self._fields().values())
