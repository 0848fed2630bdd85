"""The layers in which a process looks for an entry: the user's store, then the files of applications.

The measurements that the package itself has (cudnnpy/_planning/measurement_table.py) come after these: they answer for near
problems, not for keys.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from cudnnpy._options.checks import printable
from cudnnpy._store.database import Store
from cudnnpy._store.entry import Entry, Fault, Key, without_options
from cudnnpy._store.fault_rows import faults_from_row, number_of_faults
from cudnnpy._store.faults import Locked
from cudnnpy._store.records import row_number
from cudnnpy._store.rows import ENTRY

VARIABLE, LAYERS_VARIABLE = "CUDNNPY_STORE", "CUDNNPY_STORE_LAYERS"
PREFERENCES_VARIABLE = "CUDNNPY_STORED_CHOICES"
USER = "user"

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_chosen: str | Store | None = None  # what `use` was given
_added: list[Store] = []
_current: tuple[tuple[str | None, ...], Layers] | None = None


class Found(NamedTuple):
    """An entry, and where it was found: `layer` is "user", or "application" and the path of its file."""

    entry: Entry
    layer: str
    store: Store


class LookUp(NamedTuple):
    """What planning reads of a store: the entry of a key without its candidates, and the faults of its problem."""

    found: Found | None
    faults: tuple[Fault, ...]


class Layers:
    """The stores that a process reads, from the first to the last. Changes go to the user's."""

    def __init__(self, user: Store, applications: Iterable[Store] = ()) -> None:
        self.user = user
        # An export, or a file that is open for reading alone, is the user's all the same; changes are kept in memory.
        self._changed = Store("") if user.read_only else user
        own = [user] if user is self._changed else [self._changed, user]
        self._all = [(USER, store) for store in own]
        self._all += [(f"application {store.path}", store) for store in applications]

    def get(self, key: Key, *, brief: bool = False) -> Found | None:
        """Return the entry of a key in the first layer that has one whose plan did not fail here: see Store.get."""
        for layer, store in self._all:
            entry = store.get(key, brief=brief)
            if entry is not None and (store is self._changed or not self._is_forgotten(key, entry)):
                return Found(entry, layer, store)
        return None

    @property
    def is_blank(self) -> bool:
        """Whether no layer has anything, as far as is known without reading."""
        return all(store._rows.is_blank for _, store in self._all)

    def look_up(self, key: Key) -> LookUp:
        """Return the entry that `get` returns, and the faults in all layers. Nothing more is read once a file is locked."""
        found, faults = None, list[Fault]()
        with contextlib.suppress(Locked):
            for layer, store in self._all:
                numbers = row_number(ENTRY, key), number_of_faults(key)
                entry_row, faults_row = map(store._rows.read_several(*numbers).get, numbers)
                entry = store._valid(key, entry_row, brief=True)
                faults += faults_from_row(faults_row)
                is_failed = entry is not None and store is not self._changed and self._is_forgotten(key, entry)
                if found is None and entry is not None and not is_failed:
                    found = Found(entry, layer, store)
        return LookUp(found, tuple(faults))

    def _is_forgotten(self, key: Key, entry: Entry) -> bool:
        return self._changed.is_forgotten(key, entry.plan)

    def add_faults(self, key: Key, text: str, found: Iterable[tuple[str, str, str, str]]) -> int:
        """Keep faults of a problem, each a candidate, symptom, detail and driver, as found now: see Store.add_faults."""
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        return self._changed.add_faults(
            Fault(without_options(key), text, candidate, symptom, printable(" ".join(detail.split())), driver, made_at)
            for candidate, symptom, detail, driver in found
        )

    def put(self, entry: Entry, *, replace: bool = False) -> Entry:
        """Keep an entry, and return the one that stands: see Store.put."""
        return self._changed.put(entry, replace=replace)

    def forget(self, key: Key, reason: str) -> None:
        """Never find the plan again that is found for a key now."""
        found = self.get(key)
        if found is not None:
            self._changed.forget(key, reason, plan=found.entry.plan)

    def is_checked(self, key: Key, environment: str) -> bool:
        """Return whether the plan that is found for a key was marked as checked in an environment."""
        found = self.get(key)
        return found is not None and self._changed.is_checked(key, environment, plan=found.entry.plan)

    def mark_checked(self, key: Key, environment: str) -> None:
        """Remember that the plan that is found for a key ran and was right in an environment."""
        found = self.get(key)
        if found is not None:
            self._changed.mark_checked(key, environment, plan=found.entry.plan)


def current() -> Layers:
    """Return the layers of this process, as the environment and cudnnpy.store set them.

    Raises ValueError if a path is not that of a store.
    """
    global _current
    with _lock:
        given = os.environ.get(VARIABLE), os.environ.get(LAYERS_VARIABLE)
        if _current is None or _current[0] != given:
            user = (
                _chosen
                if isinstance(_chosen, Store)
                else _opened(VARIABLE, default_path() if _chosen is None else _chosen)
            )
            named = [path for path in (given[1] or "").split(os.pathsep) if path]
            layers = [_opened(LAYERS_VARIABLE, path, read_only=True) for path in named]
            _current = given, Layers(user, [*_added, *layers])
        return _current[1]


def use(store: str | Store | None) -> None:
    """Set the user's store; None for that of the environment."""
    global _chosen, _current
    with _lock:
        _chosen, _current = store, None


def add(store: Store) -> None:
    """Add a store after those that were added before."""
    global _current
    with _lock:
        _added[:] = [*(one for one in _added if one.path != store.path), store]
        _current = None


def serves_all_preferences() -> bool:
    """Return whether stored choices are used with every preference, and not with prefer="autotune" alone.

    Raises ValueError if the environment variable has another value than "all" and "autotune".
    """
    given = os.environ.get(PREFERENCES_VARIABLE) or "all"
    if given not in ("all", "autotune"):
        raise ValueError(f"{PREFERENCES_VARIABLE} must be 'all' or 'autotune'; got {given!r}")
    return given == "all"


def default_path() -> str:
    """Return the path of the user's store; "" where CUDNNPY_STORE turns it off."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return given
    from platformdirs import user_cache_path

    return str(user_cache_path("cudnnpy", appauthor=False) / "store.sqlite")


def _opened(variable: str, path: str, *, read_only: bool = False) -> Store:
    """Return the store of a path; an error names the variable that it may come from."""
    try:
        return Store(path, read_only=read_only)
    except (ValueError, OSError) as error:
        if path not in os.environ.get(variable, "").split(os.pathsep):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{variable} must name a store; got {path!r}: {why}") from error
