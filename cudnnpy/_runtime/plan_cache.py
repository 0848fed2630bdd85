"""What was planned before, by everything that a plan depends on: one least-recently-used cache for each thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnpy._core.frozen import Identity
from cudnnpy._core.validation import check_integer

_DEFAULT_LIMIT = 16_384

_limit = _DEFAULT_LIMIT
_generation = 0


class CacheInfo(NamedTuple):
    """The calling thread's cache: entries now and at most, calls that had to plan, entries dropped for room."""

    size: int
    limit: int
    misses: int
    evictions: int


class PlanCache(OrderedDict[Hashable, Any]):
    """Signature -> what is ready to run."""

    def __init__(self) -> None:
        super().__init__()
        self.generation, self.misses, self.evictions = _generation, 0, 0
        self.latest: Any = None  # the most recently used: to find it again moves nothing

    def store(self, key: Hashable, entry: Any) -> None:
        """Remembers an entry, and forgets the least recently used ones beyond the limit."""
        self.misses += 1
        self[key] = self.latest = entry
        self.move_to_end(key)
        while len(self) > _limit:
            self.popitem(last=False)
            self.evictions += 1


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.cache = PlanCache()


_of_thread = _OfThread()


def plan_cache() -> PlanCache:
    """The calling thread's cache."""
    cache = _of_thread.cache
    if cache.generation != _generation:
        cache = _of_thread.cache = PlanCache()
    return cache


def find(key: Hashable) -> Any:
    """What the calling thread's cache has for a key, now the most recently used; None if nothing. Every call asks this."""
    cache = _of_thread.cache
    if cache.generation != _generation:
        return None
    entry = cache.get(key)
    if entry is not cache.latest and entry is not None:
        cache.move_to_end(key)
        cache.latest = entry
    return entry


@lru_cache(maxsize=1 << 16, typed=True)
def identity_of_arguments(*arguments: Any) -> Identity:
    """What stands for a call's arguments in keys. They are told apart by their types, too, since True == 1 == 1.0.

    Raises TypeError for arguments that cannot be hashed, and for a tuple among them.
    """
    if any(isinstance(argument, tuple) for argument in arguments):
        raise TypeError(
            f"arguments must hold no tuples, whose elements' types would not be told apart; got {arguments}"
        )
    return Identity()


def cache_info() -> CacheInfo:
    """How the calling thread's plan cache stands."""
    cache = plan_cache()
    return CacheInfo(len(cache), _limit, cache.misses, cache.evictions)


def clear_cache() -> None:
    """Forgets every plan, in every thread (in others when they next call). Work in flight is not disturbed."""
    global _generation
    _generation += 1
    identity_of_arguments.cache_clear()
    plan_cache()  # a new one; the calling thread's old one goes at once


def set_cache_limit(entries: int) -> None:
    """How many plans each thread's cache holds at most (16,384 at first). Raises ValueError below 1."""
    global _limit
    _limit = check_integer("entries", entries, 1, expected="a number of plans, 1 or more")
