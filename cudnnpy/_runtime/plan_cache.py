"""The plan cache: plans by everything that they depend on. Each thread has one, which drops the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from cudnnpy._core.identity import Identity
from cudnnpy._launch import kept
from cudnnpy._options.checks import check_flag, check_integer

DEFAULT_LIMIT = 16_384

_limit = DEFAULT_LIMIT
_generation = 0


class CacheInfo(NamedTuple):
    """The state of the calling thread's plan cache, and of the launches that the whole process keeps.

    Attributes
    ----------
    size : int
        The number of plans in the cache.
    limit : int
        The largest number of signatures with a plan. Signatures that differ in the strides of axes of size 1 alone share
        one.
    misses : int
        The number of calls that had to plan.
    evictions : int
        The number of signatures that were dropped to make room.
    launches : int
        The number of launches that are kept for addresses that were used repeatedly, in all threads.
    launch_limit : int
        The largest number of launches.
    replays : int
        The number of launches that are kept as CUDA graphs, in all threads.
    replay_limit : int
        The largest number of CUDA graphs, which `replay_bytes_limit` may lower.
    replay_bytes : int
        An estimate of the memory of the CUDA graphs in bytes, of which three quarters are device memory.
    replay_bytes_limit : int
        The largest estimate.
    direct_launches : int
        The number of plans, in all threads, whose kernels are passed to the driver directly, at any addresses. Their
        largest number is `launch_limit`.
    direct : bool
        Whether kernels are passed to the driver directly.
    """

    size: int
    limit: int
    misses: int
    evictions: int
    launches: int
    launch_limit: int
    replays: int
    replay_limit: int
    replay_bytes: int
    replay_bytes_limit: int
    direct_launches: int
    direct: bool


class PlanCache(OrderedDict[Hashable, Any]):
    """Signatures with what is ready to run.

    Signatures that differ in the strides of axes of size 1 alone have the same memory, and share a plan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generation, self.misses, self.evictions = _generation, 0, 0
        self._by_memory: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def store(self, key: Hashable, entry: Any, memory: Hashable = None) -> None:
        """Remember what was planned for a signature, and for the memory of its arrays."""
        self.misses += 1
        if memory is not None:
            self._by_memory[memory] = entry
        self.add(key, entry)

    def add(self, key: Hashable, entry: Any) -> None:
        """Remember an entry, and drop the least recently used ones beyond the limit."""
        self[key] = entry
        self.move_to_end(key)
        while len(self) > _limit:
            self.popitem(last=False)
            self.evictions += 1

    def of_memory(self, memory: Hashable) -> Any:
        """Return the entry that was stored for the memory of arrays, or None."""
        return self._by_memory.get(memory)

    @property
    def plans(self) -> int:
        """The number of plans: entries that share a launcher have one."""
        return len({id(getattr(entry, "launcher", entry)) for entry in self.values()})


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.cache = PlanCache()


_of_thread = _OfThread()


def plan_cache() -> PlanCache:
    """Return the calling thread's cache."""
    cache = _of_thread.cache
    if cache.generation != _generation:
        cache = _of_thread.cache = PlanCache()
    return cache


def find(key: Hashable) -> Any:
    """Return the cache's entry for a key, or None. Every call does this.

    The entry is now the most recently used. That is noted only in a cache that is more than half full, since it costs as
    much as the look-up: whatever is in use is found again, and so noted, before the other half is full.
    """
    cache = _of_thread.cache
    if cache.generation != _generation:
        return None
    entry = cache.get(key)
    if len(cache) * 2 > _limit and entry is not None:
        cache.move_to_end(key)
    return entry


@lru_cache(maxsize=1 << 16, typed=True)
def identity_of_arguments(*arguments: Any) -> Identity:
    """Return what stands for the arguments of a call in keys. Their types count, too, since True == 1 == 1.0.

    Raises TypeError for arguments that cannot be hashed, and for a tuple among them.
    """
    if any(isinstance(argument, tuple) for argument in arguments):
        raise TypeError(
            f"arguments must hold no tuples, whose elements' types would not be told apart; got {arguments}"
        )
    return Identity()


def cache_info() -> CacheInfo:
    """Return the state of the calling thread's plan cache, and of the launches that the whole process keeps."""
    cache, limits, replays = plan_cache(), kept.limits, len(kept.REPLAYS)
    return CacheInfo(
        cache.plans,
        _limit,
        cache.misses,
        cache.evictions,
        len(kept.LAUNCHES),
        kept.LAUNCHES.limit,
        replays,
        limits.replays,
        replays * kept.REPLAY_BYTES,
        limits.replay_bytes,
        len(kept.DIRECT),
        limits.direct,
    )


def clear_cache() -> None:
    """Drop every plan, launch and CUDA graph, in every thread. Work that is queued is not affected.

    Launches and CUDA graphs are dropped at once, the plans of other threads in their next call.
    """
    global _generation
    _generation += 1
    identity_of_arguments.cache_clear()
    plan_cache()  # makes a new one, which frees the old one of this thread at once
    kept.clear()


def set_cache_limit(
    entries: int | None = None,
    *,
    launches: int | None = None,
    replays: int | None = None,
    replay_bytes: int | None = None,
    direct: bool | None = None,
) -> None:
    """Set how much is kept. None leaves a limit as it is.

    Parameters
    ----------
    entries : int or None
        The largest number of signatures in the cache of each thread, 1 or more. The default is 16,384.
    launches : int or None
        The largest number of launches that are kept for addresses that were used repeatedly, in all threads, 0 or more.
        The default is 8,192. A launch takes some KiB of host memory. This is also the largest number of direct launches.
    replays : int or None
        The largest number of CUDA graphs that launches are replayed from, in all threads, 0 or more. The default is 448.
    replay_bytes : int or None
        The largest memory of these CUDA graphs, which is estimated at 144 KiB for each. The default is 64 MiB.
    direct : bool or None
        Whether the kernels of a plan that is launched often may be passed to the driver directly, without cuDNN. This is
        done only for kernels whose parameters were confirmed, bit for bit, to depend on the addresses in a simple way. The
        default is True.

    Raises
    ------
    TypeError
        If a limit is not an integer, or `direct` is not a bool.
    ValueError
        If `entries` is less than 1, or another limit less than 0.
    """
    global _limit
    if entries is not None:
        entries = check_integer("entries", entries, 1, expected="a number of plans, 1 or more")
    launches, replays, replay_bytes = (
        None if limit is None else check_integer(name, limit, 0)
        for name, limit in (("launches", launches), ("replays", replays), ("replay_bytes", replay_bytes))
    )
    if direct is not None:
        check_flag("direct", direct)
    _limit = _limit if entries is None else entries
    kept.set_limits(launches, replays, replay_bytes, direct)
