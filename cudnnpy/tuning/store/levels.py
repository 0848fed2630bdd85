"""The store levels in which a process looks for an entry: the user's store, then the files of applications."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cudnnpy._checks.option_values import printable
from cudnnpy._core.caller_warning import warn
from cudnnpy._process.module_state import declare, fork_safe_lock
from cudnnpy.tuning.store.entry import Entry, Fault, Key, without_options
from cudnnpy.tuning.store.store import Store

VARIABLE, LAYERS_VARIABLE = "CUDNNPY_STORE", "CUDNNPY_STORE_LAYERS"
USER = "user"

_lock = fork_safe_lock()
_chosen: Store | None = None  # by `use`
_added: list[Store] = []
_current: tuple[tuple[str | None, ...], Layers] | None = None  # the variables and their layers

declare(__name__, "_chosen", "_added", "_current")


class LayerEntry(NamedTuple):
    """An entry and its layer: "user", or "application" and the path of the file."""

    entry: Entry
    layer: str


class Layers:
    """The stores that a process reads, in their order. Changes go to `writable`: the user's store."""

    def __init__(self, user: Store, applications: Iterable[Store] = (), errors: Sequence[str] = ()) -> None:
        self.user, self.errors = user, errors  # the paths that name no store
        # In front of a user's store that is open for reading alone, a store in memory has the changes.
        self.writable = Store("") if user.read_only else user
        self._all = [(USER, store) for store in dict.fromkeys((self.writable, user))]
        self._all += [(f"application {store.path}", store) for store in applications]

    def entries(self, key: Key, *, without_candidates: bool = False) -> Iterator[LayerEntry]:
        """Iterate over the entries that the layers have for a key: see Store.get."""
        for layer, store in self._all:
            entry = store.get(key, without_candidates=without_candidates)
            if entry is not None:
                yield LayerEntry(entry, layer)

    def get(self, key: Key) -> LayerEntry | None:
        """Return the entry of a key in the first layer that has one."""
        return next(self.entries(key), None)

    @property
    def is_blank(self) -> bool:
        """Whether no layer has anything."""
        return not any(len(store) or store.info().faults for _, store in self._all)

    def faults_of(self, key: Key) -> list[Fault]:
        """Return the faults of the problem of a key in all layers."""
        return [fault for _, store in self._all for fault in store.faults_of(key)]

    def add_faults(self, key: Key, text: str, faults: Iterable[tuple[str, str, str, str]]) -> int:
        """Store faults of a problem, each a candidate, symptom, detail and driver, as found now: see Store.add_faults."""
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        return self.writable.add_faults(
            Fault(without_options(key), text, candidate, symptom, printable(" ".join(detail.split())), driver, made_at)
            for candidate, symptom, detail, driver in faults
        )


def current(*, strict: bool = True) -> Layers:
    """Return the layers of this process, as the environment and cudnnpy.store set them.

    A path that does not name a store raises ValueError. If not `strict`, it costs one warning and its choices.
    """
    global _current
    variables = os.environ.get(VARIABLE), os.environ.get(LAYERS_VARIABLE)
    with _lock:
        is_new = _current is None or _current[0] != variables
        if _current is None or is_new:
            _current = variables, _opened(variables[1])
        layers = _current[1]
        if strict and layers.errors:
            _current = None
            raise ValueError(layers.errors[0])
    for error in layers.errors if is_new else ():
        warn(f"{error}. Its choices are not used")
    return layers


def _opened(paths: str | None) -> Layers:
    """Return the user's store, the added layers, and the layers of the paths in LAYERS_VARIABLE, as one object."""
    errors = list[str]()
    user = _open(VARIABLE, default_path(), errors) if _chosen is None else _chosen
    layers = [_open(LAYERS_VARIABLE, path, errors, read_only=True) for path in (paths or "").split(os.pathsep) if path]
    return Layers(user, [*_added, *layers], errors)


def use(store: str | os.PathLike[str] | Store | None) -> None:
    """Set the user's store. None selects the store of the environment variable."""
    global _chosen, _current
    chosen = store if store is None or isinstance(store, Store) else Store(store)
    with _lock:
        _chosen, _current = chosen, None


def add(store: Store) -> None:
    """Add a store behind the earlier ones."""
    global _current
    with _lock:
        _added[:] = [*(earlier for earlier in _added if earlier.path != store.path), store]
        _current = None


def default_path() -> str:
    """Return the path of the user's store; "" where CUDNNPY_STORE turns it off."""
    value = os.environ.get(VARIABLE)
    if value is not None:
        return value
    from platformdirs import user_cache_path

    return str(user_cache_path("cudnnpy", appauthor=False) / "store.jsonl")


def _open(variable: str, path: str, errors: list[str], *, read_only: bool = False) -> Store:
    """Return the store of a path, or one in memory and an error, which names the variable that the path comes from."""
    try:
        return Store(path, read_only=read_only)
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        errors.append(f"{variable} must name a store; got {path!r}: {why}" if variable in os.environ else why)
        return Store("")
