"""What launchers keep: ready launches and CUDA graphs, few of each over the whole process.

Each launcher has tables of its own, which it looks up without a lock. A Bound counts the entries of all tables of one
kind and drops the oldest beyond its limit. An entry is worth keeping if it is used again, so a launch is admitted when
its addresses were seen a short while ago, and a CUDA graph after several launches.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import ref

from cudnnpy._runtime.addresses import Pointers

EntryT = TypeVar("EntryT")

REPLAY_BYTES = 144 << 10  # of a CUDA graph of one launch: about 110 KiB of device memory and 32 KiB of the host's
_SEEN = 1 << 14  # address tuples that are remembered after one use, as one number each
_PATIENCE = 512  # launches that would be a CUDA graph if there were room, for each graph that gives way to another one


class Bound(Generic[EntryT]):
    """The entries of all tables of one kind, oldest first, and the largest number of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waited = 0
        self.reset()

    def reset(self) -> None:
        """Forget the entries, whose tables keep them. In a forked child another thread may have held the lock."""
        # Garbage collection within a locked block may end a table, which takes the lock again.
        self._lock = RLock()
        self._entries: OrderedDict[tuple[int, Pointers], ref[Table[EntryT]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, table: Table[EntryT], pointers: Pointers, entry: EntryT) -> None:
        """Put an entry into a table, and drop the oldest entries beyond the limit, of whichever table."""
        with self._lock:
            table[pointers] = entry
            self._entries[id(table), pointers] = table.reference
            dropped = self._drop_beyond(self.limit)
        del dropped  # without the lock: the end of an entry calls the driver

    def forget(self, table: Table[EntryT], *several: Pointers) -> None:
        """Take entries out of a table."""
        with self._lock:
            for pointers in several:
                self._entries.pop((id(table), pointers), None)
        for pointers in several:
            table.pop(pointers, None)

    def set_limit(self, limit: int) -> None:
        """Set the largest number of entries, and drop the oldest beyond it."""
        with self._lock:
            self.limit = limit
            dropped = self._drop_beyond(limit)
        del dropped

    def clear(self) -> None:
        """Drop every entry."""
        with self._lock:
            self._waited = 0
            dropped = self._drop_beyond(0)
        del dropped

    def has_room(self) -> bool:
        """Return whether an entry may be added. Without room, one request in many may.

        Adding an entry then drops the oldest one. One that is still used is admitted again later, so that entries that
        are no longer used make room, and making them costs little even if more are used than there is room for.
        """
        if len(self._entries) < self.limit:
            return True
        self._waited += 1
        if self._waited < _PATIENCE:
            return False
        self._waited = 0
        return self.limit > 0

    def _drop_beyond(self, limit: int) -> list[EntryT | None]:
        dropped: list[EntryT | None] = []
        while len(self._entries) > limit:
            (_, pointers), reference = self._entries.popitem(last=False)
            table = reference()
            if table is not None:
                dropped.append(table.pop(pointers, None))
        return dropped


class Table(dict[Pointers, EntryT]):
    """The entries of one launcher by their addresses. They are added and dropped by the Bound."""

    __slots__ = ("__weakref__", "bound", "reference")

    def __init__(self, bound: Bound[EntryT]) -> None:
        self.bound = bound
        self.reference = ref(self)

    def __del__(self) -> None:
        self.bound.forget(self, *self)


class Seen:
    """Address tuples that were used once, lately: their hashes, which are forgotten when there are too many."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def again(self, owner: object, pointers: Pointers) -> bool:
        """Return whether a tuple was used by its owner before, and remember it."""
        number = hash((id(owner), pointers))
        if number in self._hashes:
            return True
        if len(self._hashes) >= _SEEN:
            self._hashes.clear()
        self._hashes.add(number)
        return False

    def clear(self) -> None:
        """Forget every tuple."""
        self._hashes.clear()


class Limits:
    """The largest numbers of entries. That of CUDA graphs follows from a number and from a number of bytes."""

    def __init__(self, launches: int, replays: int, replay_bytes: int) -> None:
        self.replays, self.replay_bytes = replays, replay_bytes
        LAUNCHES.set_limit(launches)
        REPLAYS.set_limit(min(replays, replay_bytes // REPLAY_BYTES))


LAUNCHES: Bound[Any] = Bound(0)
REPLAYS: Bound[Any] = Bound(0)
SEEN = Seen()
limits = Limits(launches=8192, replays=256, replay_bytes=64 << 20)


def set_limits(launches: int | None, replays: int | None, replay_bytes: int | None) -> None:
    """Set the limits that are not None, and drop what is beyond them."""
    global limits
    limits = Limits(
        LAUNCHES.limit if launches is None else launches,
        limits.replays if replays is None else replays,
        limits.replay_bytes if replay_bytes is None else replay_bytes,
    )


def clear() -> None:
    """Drop every launch and every CUDA graph, in every thread. A launch that is running is not affected."""
    SEEN.clear()
    for bound in (REPLAYS, LAUNCHES):
        bound.clear()


for _bound in (LAUNCHES, REPLAYS):
    os.register_at_fork(after_in_child=_bound.reset)
