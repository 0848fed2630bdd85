"""The plan cache: plans by everything that they depend on. Each thread has one, which evicts the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from cudnnpy._checks.option_values import check_integer
from cudnnpy._checks.public_dir import list_attributes
from cudnnpy._core.cache_token import CacheToken
from cudnnpy._launch import launcher
from cudnnpy._process.module_state import declare

DEFAULT_LIMIT = 16_384

_limit = DEFAULT_LIMIT
_generation = 0


@list_attributes
class CacheInfo(NamedTuple):
    """The state of the calling thread's plan cache, and of the direct launches of the whole process.

    Attributes
    ----------
    size : int
        The number of plans in the cache.
    limit : int
        The largest number of call signatures with a plan. Those that differ only in the strides of axes of size 1 share one.
    misses : int
        The number of calls that had to plan.
    evictions : int
        The number of call signatures that were evicted.
    direct_launches : int
        The number of plans, in all threads, whose kernels are passed to the driver directly, at any addresses.
    direct : bool or None
        The setting of `set_direct_launches`.
    """

    size: int
    limit: int
    misses: int
    evictions: int
    direct_launches: int
    direct: bool | None


class PlanCache(OrderedDict[Hashable, Any]):
    """Cache entries by call signature.

    Call signatures that differ only in the strides of axes of size 1 have one canonical key, and share a plan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generation, self.misses, self.evictions = _generation, 0, 0
        self.by_canonical_key: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def insert_planned(self, key: Hashable, entry: Any, canonical_key: Hashable = None) -> None:
        """Insert an entry that was planned for a call signature, and for its canonical key."""
        self.misses += 1
        if canonical_key is not None:
            self.by_canonical_key[canonical_key] = entry
        self.insert(key, entry)

    def insert(self, key: Hashable, entry: Any) -> None:
        """Insert an entry, and evict the least recently used ones beyond the limit."""
        self[key] = entry
        self.move_to_end(key)
        while len(self) > _limit:
            self.popitem(last=False)
            self.evictions += 1

    @property
    def plans(self) -> int:
        """The number of plans: entries that share a launcher have one."""
        return len({id(getattr(entry, "launcher", entry)) for entry in self.values()})


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.cache = PlanCache()


_of_thread = _OfThread()

declare(__name__, "_limit", "_generation", "_of_thread")


def plan_cache() -> PlanCache:
    """Return the calling thread's cache."""
    cache = _of_thread.cache
    if cache.generation != _generation:
        cache = _of_thread.cache = PlanCache()
    return cache


def lookup(key: Hashable) -> Any:
    """Return the entry of a call signature, or None. Every call does this.

    Recency is updated only while the cache is more than half full, because the update costs as much as the lookup, and
    entries in use are looked up again before the other half fills.
    """
    cache = _of_thread.cache
    if cache.generation != _generation:
        return None
    entry = cache.get(key)
    if len(cache) * 2 > _limit and entry is not None:
        cache.move_to_end(key)
    return entry


@lru_cache(maxsize=1 << 16, typed=True)
def arguments_token(*arguments: Any) -> CacheToken:
    """Return the token that represents the arguments of a call in keys. Their types count, too, since True == 1 == 1.0.

    Raises TypeError for arguments that cannot be hashed, and for a tuple among them.
    """
    if any(isinstance(argument, tuple) for argument in arguments):
        raise TypeError(
            f"arguments must hold no tuples, whose elements' types would not be told apart; got {arguments}"
        )
    return CacheToken()


declare(__name__, "arguments_token")


def cache_info() -> CacheInfo:
    """Return the state of the calling thread's plan cache, and of the direct launches of the whole process.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.clear_cache()
    >>> cudnnpy.cache_info().size
    0
    """
    cache = plan_cache()
    return CacheInfo(cache.plans, _limit, cache.misses, cache.evictions, *launcher.direct_launches())


def clear_cache() -> None:
    """Evict every plan from the cache of every thread. Work that is queued is not affected.

    Other threads do so in their next call. A Plan that the program holds stays as it is.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.clear_cache()
    """
    global _generation
    _generation += 1
    arguments_token.cache_clear()
    plan_cache()  # makes a new one, which frees the old one of this thread at once


def set_cache_limit(entries: int | None = None) -> None:
    """Set the limit of the plan caches. None leaves it as it is.

    Parameters
    ----------
    entries : int or None
        The largest number of call signatures in the cache of each thread, 1 or more. The default is 16,384.

    Raises
    ------
    TypeError
        If the limit is not an integer.
    ValueError
        If the limit is less than 1.

    Examples
    --------
    >>> import cudnnpy
    >>> before = cudnnpy.cache_info().limit
    >>> cudnnpy.set_cache_limit(100)
    >>> cudnnpy.set_cache_limit(before)
    """
    global _limit
    if entries is not None:
        _limit = check_integer("entries", entries, 1, expected="a number of plans, 1 or more")
