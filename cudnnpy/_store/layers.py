"""The layers in which a process looks for an entry: the user's store, then the files of applications.

The measurements that the package itself has (cudnnpy/_planning/measured.py) come after these: they answer for near problems,
not for keys.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

from cudnnpy._store.database import Store
from cudnnpy._store.entry import Entry, Key

VARIABLE, LAYERS_VARIABLE = "CUDNNPY_STORE", "CUDNNPY_STORE_LAYERS"
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
            if entry is not None and (store is self._changed or not self._changed.is_forgotten(key, entry.plan)):
                return Found(entry, layer, store)
        return None

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
