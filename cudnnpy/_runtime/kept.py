"""What launchers keep: ready launches, direct launches and CUDA graphs, few of each over the whole process.

Each launcher has tables of its own, which it looks up without a lock. A Bound counts the entries of all tables of one
kind and drops the oldest beyond its limit. An entry is worth keeping if it is used again, so a launch is admitted when
its addresses were seen a short while ago, and a CUDA graph after several launches. If there is no room for a graph, it
competes with those that are kept, and takes the place of one that is used less than half as often.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from threading import RLock
from typing import Any, Generic, TypeVar
from weakref import ref

from cudnnpy._launch.address_validation import Addresses

EntryT = TypeVar("EntryT")

REPLAY_BYTES = 144 << 10  # of a CUDA graph of one launch: about 110 KiB of device memory and 32 KiB of the host's
_SEEN = 1 << 14  # address tuples that are remembered after one use, as one number each
_RIVALS = 8  # graphs that are compared at a time
# Of all Bounds: garbage collection within a locked block may end a table of another one, which takes the lock again.
_lock = RLock()
_unusable: list[Any] = []  # in a forked child: what was made before the fork
NEVER = 1 << 60  # the use at which a launch becomes a CUDA graph, where it cannot


class Wish:
    """What is to become a CUDA graph: how often it was used, and the graphs that it competes with if there is no room.

    Parameters
    ----------
    due : int
        The uses after which a graph is made.
    contest : int
        The uses in which it competes with the same graphs.
    uses : int
        The uses so far.
    """

    __slots__ = ("contest", "due", "rivals", "uses")

    def __init__(self, due: int, contest: int, uses: int = 0) -> None:
        self.due, self.contest, self.uses = due, contest, uses
        # The keys of these graphs, and how often each had been used when the contest began.
        self.rivals: list[tuple[tuple[int, Addresses], int]] = []


class Bound(Generic[EntryT]):
    """The entries of all tables of one kind, oldest first, and the largest number of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Forget the entries. Their tables keep them."""
        self._entries: OrderedDict[tuple[int, Addresses], ref[Table[EntryT]]] = OrderedDict()

    def forked(self) -> None:
        """In a forked child, neither use nor destroy what was made before the fork."""
        for (_, pointers), reference in self._entries.items():
            table = reference()
            if table is not None:
                _unusable.append(table.pop(pointers, None))
        self.reset()

    def __len__(self) -> int:
        with _lock:  # another thread may be between adding an entry and dropping another one
            return len(self._entries)

    def keep(self, table: Table[EntryT], pointers: Addresses, entry: EntryT) -> None:
        """Put an entry into a table, and drop the oldest entries beyond the limit, of whichever table."""
        with _lock:
            dropped = [table.pop(pointers, None)]
            self._entries.pop((id(table), pointers), None)
            table[pointers] = entry
            self._entries[id(table), pointers] = table.reference
            dropped += self._drop_beyond(self.limit)
        del dropped  # without the lock: the end of an entry calls the driver

    def forget(self, table: Table[EntryT], *several: Addresses) -> None:
        """Take entries out of a table."""
        with _lock:
            for pointers in several:
                self._entries.pop((id(table), pointers), None)
        for pointers in several:
            table.pop(pointers, None)

    def set_limit(self, limit: int) -> None:
        """Set the largest number of entries, and drop the oldest beyond it."""
        with _lock:
            self.limit = limit
            dropped = self._drop_beyond(limit)
        del dropped

    def clear(self) -> None:
        """Drop every entry."""
        with _lock:
            dropped = self._drop_beyond(0)
        del dropped

    def has_room(self, wish: Wish) -> bool:
        """Return whether an entry may be added for a wish that is due. Otherwise the wish is due again later.

        Without room, the wish and the oldest entries are compared over the next uses of the wish. If one of them is used
        less than half as often, it is the next to be dropped; otherwise the entries after them are the rivals. So entries
        that are no longer used make room soon, and nothing is replaced where more are used alike than there is room for.
        """
        if len(self._entries) < self.limit:
            return True
        with _lock:
            rivals = [(self._entry(key), key, before) for key, before in wish.rivals]
            used = [(entry.uses - before, key) for entry, key, before in rivals if entry is not None]
            least, weakest = min(used, default=(wish.contest, None), key=itemgetter(0))
            if weakest is not None and 2 * least < wish.contest:
                with suppress(KeyError):  # its table ended with the reference that _entry had
                    self._entries.move_to_end(weakest, last=False)
                return self.limit > 0
            wish.due, wish.rivals = wish.uses + wish.contest, []
            for key in list(islice(self._entries, _RIVALS)):
                entry = self._entry(key)
                if entry is not None and key in self._entries:
                    self._entries.move_to_end(key)
                    wish.rivals.append((key, entry.uses))
        return False

    def _entry(self, key: tuple[int, Addresses]) -> Any:
        """Return an entry by its key, or None if it is no longer there."""
        reference = self._entries.get(key)
        table = None if reference is None else reference()
        return None if table is None else table.get(key[1])

    def _drop_beyond(self, limit: int) -> list[EntryT | None]:
        dropped: list[EntryT | None] = []
        while len(self._entries) > limit:
            try:
                (_, pointers), reference = self._entries.popitem(last=False)
            except KeyError:  # garbage collection ended the last tables since
                break
            table = reference()
            if table is not None:
                dropped.append(table.pop(pointers, None))
        return dropped


class Table(dict[Addresses, EntryT]):
    """The entries of one launcher by their addresses. They are added and dropped by the Bound."""

    __slots__ = ("__weakref__", "bound", "reference")

    def __init__(self, bound: Bound[EntryT]) -> None:
        self.bound, self.reference = bound, ref(self)

    def __del__(self) -> None:
        self.bound.forget(self, *self)


class Seen:
    """Address tuples that were used once, lately: their hashes, which are forgotten when there are too many."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def again(self, owner: object, pointers: Addresses) -> bool:
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
    """The largest numbers of entries. That of CUDA graphs follows from a number and from a number of bytes.

    `direct` says whether kernels may be passed to the driver directly. There may be as many direct launches as launches.
    """

    def __init__(self, launches: int, replays: int, replay_bytes: int, direct: bool) -> None:
        self.replays, self.replay_bytes, self.direct = replays, replay_bytes, direct
        LAUNCHES.set_limit(launches)
        DIRECT.set_limit(launches if direct else 0)
        REPLAYS.set_limit(min(replays, replay_bytes // REPLAY_BYTES))


LAUNCHES: Bound[Any] = Bound(0)
DIRECT: Bound[Any] = Bound(0)
REPLAYS: Bound[Any] = Bound(0)
SEEN = Seen()
limits = Limits(launches=8192, replays=448, replay_bytes=64 << 20, direct=True)


def set_limits(launches: int | None, replays: int | None, replay_bytes: int | None, direct: bool | None) -> None:
    """Set the limits that are not None, and drop what is beyond them."""
    global limits
    limits = Limits(
        LAUNCHES.limit if launches is None else launches,
        limits.replays if replays is None else replays,
        limits.replay_bytes if replay_bytes is None else replay_bytes,
        limits.direct if direct is None else direct,
    )


def clear() -> None:
    """Drop everything that is kept, in every thread. A launch that is running is not affected."""
    SEEN.clear()
    for bound in (REPLAYS, DIRECT, LAUNCHES):
        bound.clear()


for _bound in (LAUNCHES, DIRECT, REPLAYS):
    os.register_at_fork(after_in_child=_bound.forked)
# The tables of other threads end in the child before the functions above run, and take the lock.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
