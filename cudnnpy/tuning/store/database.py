"""The class Store: entries by their keys, failed plans and faults, in a file or in memory."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cudnnpy._checks.option_values import check_flag, error_repr, printable
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy.errors import ClosedError
from cudnnpy.tuning.store import exports
from cudnnpy.tuning.store.contents import ENTRY, FAULT, FORGOTTEN, Contents, entries_from_rows, faults_from_rows
from cudnnpy.tuning.store.entry import Entry, Fault, Forgotten, Key
from cudnnpy.tuning.store.sqlite import ForeignFileError
from cudnnpy.tuning.store.sqlite_file import SqliteFile

_ENTRIES_PER_TRANSACTION = 100


class StoreInfo(NamedTuple):
    """The state of a store.

    Attributes
    ----------
    path : str
        The file; "" for a store in memory.
    read_only : bool
        Whether it is open for reading alone.
    memory_reason : str
        Why new choices stay in the memory of this process; "" if they are written to the file.
    entries : int
        The number of entries of the present schema.
    forgotten : int
        The number of plans that failed.
    faults : int
        The number of faults of candidates.
    size : int
        The size of the file and its journal in bytes.
    set_aside : tuple of str
        The copies of damaged and old files that are still there, as far as the folder can be listed.

    Examples
    --------
    >>> from cudnnpy import store
    >>> with store.Store("") as choices:
    ...     choices.info().read_only
    False
    """

    path: str
    read_only: bool
    memory_reason: str
    entries: int
    forgotten: int
    faults: int
    size: int
    set_aside: tuple[str, ...]


class Store(PublicDir):
    """Tuned choices that outlast a process: entries by their keys, in an SQLite file, an export, or memory.

    Any number of processes and threads can use a file at once. A file that cannot be written, because its folder is read
    only, the disk is full, or it stays locked, gives one RuntimeWarning, and its entries continue in memory, with the new ones.
    A damaged file, or one of an older release, is set aside with a RuntimeWarning, and a new store begins.

    Parameters
    ----------
    path : str or path-like
        The file. If there is none, the first entry makes it, and the folders above it. An export is opened for reading alone.
        "" is a store in memory.
    read_only : bool
        Whether the file must exist and is never changed.

    Raises
    ------
    TypeError, ValueError
        `path` is a folder, or a file that is not a store; it is left as it is.
    FileNotFoundError
        `read_only` is True, and there is no file.

    Examples
    --------
    >>> from cudnnpy import store
    >>> with store.Store("") as choices:  # in memory
    ...     len(choices)
    0
    """

    path: str  #: the file; "" for a store in memory
    read_only: bool  #: whether it is open for reading alone

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str) or "\0" in text:
            raise TypeError(f"path must be a str or a path; got {error_repr(path)}")
        self.path = os.path.abspath(os.path.expanduser(text)) if text else ""
        self.read_only = check_flag("read_only", read_only)
        try:
            os.fsencode(self.path)
        except UnicodeEncodeError:
            raise ValueError(f"path must be a name in the encoding of the file system; got {path!r}") from None
        self._closed = False
        # SQLite's journal is beside the file that a link names.
        self._real_path = os.path.realpath(self.path) if self.path else ""
        self._open(self._real_path)

    def _open(self, path: str) -> None:
        if path and self.read_only and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "folder" if os.path.isdir(path) else "device"
            raise ValueError(f"path must be a file; got {self.path}, a {kind}. Name a file in it, such as store.sqlite")
        try:
            self._file = SqliteFile(path, read_only=self.read_only)
        except ForeignFileError:
            if not exports.is_export(Path(path)):
                raise ValueError(
                    f"path must be a store, or a file that does not exist yet; got {self.path}, a file of another kind. "
                    "Name another file"
                ) from None
            export = exports.read(Path(path))
            self.read_only, self._file = False, SqliteFile()
            self._adopt(*export)
            self.read_only = True

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'}{', read only' if self.read_only else ''}>"

    @property
    def _rows(self) -> SqliteFile:
        if self._closed:
            raise ClosedError(f"{self!r} is used after close()")
        return self._file

    @property
    def _writable_rows(self) -> SqliteFile:
        if self.read_only:
            raise ValueError(f"store must be open for writing to be changed; got {self!r}")
        return self._rows

    # Entries

    def get(self, key: Key, *, without_candidates: bool = False) -> Entry | None:
        """Return the entry of a key; None if there is none.

        With `without_candidates` its candidates are not read, which takes half the time.
        """
        return self._rows.run(lambda contents: contents.entry(key, without_candidates=without_candidates))

    def put(self, entry: Entry, *, replace: bool = False) -> Entry:
        """Store an entry, and return the current entry of its key.

        The first measured entry stays, so that all processes of a program make the same choice. It replaces an entry that was
        only planned.

        Parameters
        ----------
        entry : Entry
            The entry. It is not stored if its plan is marked as failed.
        replace : bool
            Whether it replaces any other.

        Returns
        -------
        Entry
            The current entry of the key, or this one if its plan is marked as failed.

        Raises
        ------
        ValueError
            A field is not valid, or the store is open for reading alone.
        """
        if not isinstance(entry, Entry):
            raise TypeError(f"entry must be an Entry; got {error_repr(entry)}")
        rows = self._writable_rows
        entry = Entry.of(entry.plain())
        is_measured = entry.choice.milliseconds is not None

        def replaces(current: Entry) -> bool:
            return replace or (is_measured and current.choice.milliseconds is None)

        return rows.run(lambda contents: contents.put_entry(entry, replaces), writes=True) or entry

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries of the present schema, in the order of their keys."""
        rows = self._rows.run(lambda contents: contents.all(ENTRY))
        return iter(entries_from_rows(rows))  # parsed while the file is not locked

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and self.get(key) is not None

    # Plans that were tried

    def forget(self, key: Key, reason: str, *, plan: str | None = None) -> None:
        """Remove the entry of a key, whose plan failed. The same plan is not stored for this key again.

        Parameters
        ----------
        key : Key
            The key.
        reason : str
            Why the plan failed, for people.
        plan : str, optional
            The serialized plan, by default the one of the entry. An entry with another plan stays.
        """
        text, made_at = printable(str(reason)), datetime.now(UTC).isoformat(timespec="seconds")
        self._writable_rows.run(lambda contents: contents.forget(key, text, made_at, plan), writes=True)

    def forgotten(self) -> list[Forgotten]:
        """Return the plans that failed, each with its reason."""
        return self._rows.run(lambda contents: contents.forgotten())

    def is_forgotten(self, key: Key, plan: str) -> bool:
        """Return whether a serialized plan failed for a key."""
        return self._rows.run(lambda contents: contents.is_forgotten(key, plan))

    def is_checked(self, key: Key, environment: str, *, plan: str | None = None) -> bool:
        """Return whether the plan of a key was marked as checked in an environment.

        Parameters
        ----------
        key : Key
            The key.
        environment : str
            The environment of the check, such as the versions of the driver and of cuDNN.
        plan : str, optional
            The serialized plan, by default the one of the entry.
        """
        return self._rows.run(lambda contents: contents.is_checked(key, environment, plan))

    def mark_checked(self, key: Key, environment: str, *, plan: str | None = None) -> None:
        """Mark the plan of a key as right in an environment, where it ran. The parameters are the same as for is_checked."""
        self._writable_rows.run(lambda contents: contents.mark_checked(key, environment, plan), writes=True)

    # Faults of candidates

    def faults(self) -> list[Fault]:
        """Return the faults of all problems."""
        rows = self._rows.run(lambda contents: contents.all(FAULT))
        return faults_from_rows(rows)  # parsed while the file is not locked

    def faults_of(self, key: Key) -> list[Fault]:
        """Return the faults of the problem of a key, whatever its options."""
        return self._rows.run(lambda contents: contents.faults_of(key))

    def add_faults(self, faults: Iterable[Fault]) -> int:
        """Store faults. One with the candidate, symptom and driver of an earlier one is left out.

        Parameters
        ----------
        faults : iterable of Fault
            The faults.

        Returns
        -------
        int
            The number of faults that were added.

        Raises
        ------
        ValueError
            A field is not valid, or the store is open for reading alone.
        """
        return self._update_faults(faults, removes=False)

    def remove_faults(self, faults: Iterable[Fault]) -> int:
        """Remove faults, so that their candidates may be chosen again.

        Parameters
        ----------
        faults : iterable of Fault
            The faults, as `faults` returns them.

        Returns
        -------
        int
            The number of faults that were removed.

        Raises
        ------
        ValueError
            The store is open for reading alone.
        """
        return self._update_faults(faults, removes=True)

    def _update_faults(self, faults: Iterable[Fault], *, removes: bool) -> int:
        rows, checked = self._writable_rows, list[Fault]()
        for fault in faults:
            if not isinstance(fault, Fault):
                raise TypeError(f"faults must be Faults; got {error_repr(fault)}")
            checked.append(Fault.of(fault.plain()))
        if not checked:
            return 0
        return rows.run(lambda contents: contents.update_faults(checked, removes=removes), writes=True)

    # Whole stores

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write the entries and faults as lines of JSON, which `load` reads. The file is written whole or not at all.

        Returns
        -------
        int
            The number of entries.

        Raises
        ------
        ValueError
            `path` is the store's own file.
        OSError
            The file cannot be written.
        """
        file = Path(path).expanduser()
        if self.path and os.path.realpath(file) == os.path.realpath(self.path):
            raise ValueError(f"path must be another file than the store's; got {str(path)!r}")
        return exports.write(file, self, self.faults())

    def load(self, path: str | os.PathLike[str]) -> int:
        """Add the entries and faults of an export.

        A measured entry replaces one that was only planned, and a complete one another. A damaged line is left out, with
        one RuntimeWarning for all.

        Returns
        -------
        int
            The number of entries that were added or replaced others.

        Raises
        ------
        ValueError
            The file is not an export, or it has another format; nothing is added.
        OSError
            The file cannot be read.
        """
        return self._adopt(*exports.read(Path(path).expanduser()))

    def merge(self, other: Store | str | os.PathLike[str]) -> int:
        """Add the entries and faults of another store, as `load` does for an export.

        Parameters
        ----------
        other : Store or path
            The store, or the file of one or of an export, which is opened for reading alone.

        Returns
        -------
        int
            The number of entries that were added or replaced others.
        """
        source = other if isinstance(other, Store) else Store(other, read_only=True)
        return self._adopt(source, source.faults())

    def _adopt(self, entries: Iterable[Entry], faults: Iterable[Fault]) -> int:
        self.add_faults(faults)
        entries, count = [*entries], 0
        for start in range(0, len(entries), _ENTRIES_PER_TRANSACTION):
            part = entries[start : start + _ENTRIES_PER_TRANSACTION]
            count += self._writable_rows.run(partial(_put_all, entries=part), writes=True)
        return count

    def info(self) -> StoreInfo:
        """Return the state of the store."""
        entry_rows, forgotten, fault_rows = self._rows.run(
            lambda contents: (contents.all(ENTRY), len(contents.all(FORGOTTEN)), contents.all(FAULT))
        )
        path = glob.escape(self._real_path)
        copies = glob.glob(f"{path}.aside-*") if path else []
        return StoreInfo(
            self.path,
            self.read_only,
            self._file.memory_reason,
            len(entries_from_rows(entry_rows)),
            forgotten,
            len(faults_from_rows(fault_rows)),
            sum(map(_size, (self._real_path, f"{self._real_path}-journal"))),
            tuple(sorted(copies)),
        )

    def close(self) -> None:
        """End the use of the store. Nothing remains to be written: each change is on the disk when its call returns."""
        self._closed, self._file = True, SqliteFile()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def why_in_memory(store: Store) -> str:
    """Return why new choices stay in the memory of this process; "" if they are written. It reads no entries."""
    return store._file.memory_reason


def is_blank(store: Store) -> bool:
    """Return whether a store has nothing, as far as is known without reading."""
    return store._rows.is_blank


def look_up(store: Store, key: Key) -> tuple[Entry | None, list[Fault]]:
    """Return the entry of a key without its candidates, and the faults of its problem."""
    return store._rows.run(lambda contents: (contents.entry(key, without_candidates=True), contents.faults_of(key)))


def _put_all(contents: Contents, entries: Iterable[Entry]) -> int:
    """Add those entries that have more than the current ones: measured before planned, then complete. Return how many."""
    return sum(contents.put_entry(entry, partial(_has_more, entry)) is entry for entry in entries)


def _has_more(entry: Entry, current: Entry) -> bool:
    def rank(one: Entry) -> tuple[bool, bool]:
        return one.choice.milliseconds is not None, one.complete

    return rank(entry) > rank(current)


def _size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it cannot be seen."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
