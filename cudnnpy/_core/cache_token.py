"""Cache tokens, which represent an operation's options in plan cache keys."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from cudnnpy._process.module_state import declare


class CacheToken:
    """A token that is equal only to itself.

    Copies and unpickled tokens are new tokens. A key holds its tokens, so an address is never reused for another token
    while the key exists.
    """

    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[type[CacheToken], tuple[()]]:
        return CacheToken, ()


# An entry is dropped with the last object and the last key that hold its token.
_of_values: WeakValueDictionary[Any, CacheToken] = WeakValueDictionary()

declare(__name__, "_of_values", resets=False)


def cache_token(kind: type, *values: Any) -> CacheToken:
    """Return the token for a class and option values.

    Equal values of equal types share one token while any object or key refers to it. Two threads that call this at the
    same time may get two tokens for the same values, which costs a second plan.
    """
    key = kind, values, tuple(map(type, values))
    return _of_values.setdefault(key, CacheToken())
