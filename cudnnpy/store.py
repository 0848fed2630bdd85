"""Tuned choices that outlast a process: the choices of `prefer="autotune"`, stored, exported and merged.

The store is a file of JSON lines: the one that the environment variable `CUDNNPY_STORE` names, or ``store.jsonl`` in the cache
folder of the platform. With ``CUDNNPY_STORE=""`` choices stay in memory. An application may bring choices of its own
(`add_layer`, or the paths in `CUDNNPY_STORE_LAYERS`), which are used where the user's store has none.

A file that cannot be written gives one RuntimeWarning, and its choices continue in memory, with the new ones. Damaged lines
are left out, with one RuntimeWarning.
"""

from __future__ import annotations

import os

from cudnnpy._checks.public_dir import complete_module
from cudnnpy._planning.choice import Choice
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry, Fault, Key
from cudnnpy.tuning.store.store import Store, StoreInfo

__all__ = [
    "Choice",
    "Entry",
    "Fault",
    "Key",
    "Store",
    "StoreInfo",
    "add_layer",
    "default",
    "open",
    "use",
]


def open(path: str | os.PathLike[str] | None = None, *, read_only: bool = False) -> Store:
    """Open a store, by default the user's. The parameters and the errors are those of `Store`.

    Examples
    --------
    >>> from cudnnpy import store
    >>> with store.open("") as choices:  # in memory
    ...     choices.info().entries
    0
    """
    return Store(levels.default_path() if path is None else path, read_only=read_only)


def default() -> Store:
    """Return the store for the choices of this process: the store that `use` set, or the user's.

    Raises
    ------
    ValueError
        `CUDNNPY_STORE` or `CUDNNPY_STORE_LAYERS` names a file that is not a store.

    Examples
    --------
    >>> from cudnnpy import store
    >>> store.use("")
    >>> store.default().info().path
    ''
    >>> store.use(None)
    """
    return levels.current().user


def use(store: str | os.PathLike[str] | Store | None) -> None:
    """Set the store for the choices of this process.

    Parameters
    ----------
    store : str, path-like, Store or None
        A store or its file; "" for one in memory; None for the user's. If the store is open for reading alone, new choices
        stay in memory. Plans that the process already has do not change: see `clear_cache`.

    Raises
    ------
    TypeError, ValueError
        The path names a folder, or a file that is not a store.

    Examples
    --------
    >>> from cudnnpy import store
    >>> store.use("")  # in memory, for this process
    >>> store.use(None)  # the default file again
    """
    levels.use(store)


def add_layer(path: str | os.PathLike[str]) -> Store:
    """Add a file of choices, which is read where the user's store has none and is never changed.

    Parameters
    ----------
    path : str or path-like
        A store or an export. Files that were added earlier come first.

    Returns
    -------
    Store
        The store, open for reading alone.

    Raises
    ------
    TypeError, ValueError
        The path names a folder, or a file that is not a store.
    OSError
        There is no such file, or it cannot be read.

    Examples
    --------
    >>> from cudnnpy import store
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "choices.jsonl")
    ...     with store.Store("") as choices:
    ...         choices.export(file)
    ...     layer = store.add_layer(file)
    0
    """
    store = Store(path, read_only=True)
    levels.add(store)
    return store


complete_module(globals())
