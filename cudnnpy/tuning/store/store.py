"""The class Store: entries by their keys, and faults of candidates, in a file or in memory."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cudnnpy._checks.option_values import check_flag, error_repr
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._core.atomic_file import replace_file
from cudnnpy.errors import ClosedError
from cudnnpy.tuning.store.entry import Entry, Fault, Key, canonical_json, without_options
from cudnnpy.tuning.store.line_file import ID_CHARACTERS, ForeignFileError, LineFile

_ENTRY, _FAULT = "entry", "fault"  # kinds of records, with which their ids begin
_PROBLEM_CHARACTERS = len(_FAULT) + 33  # of the id of a fault, which are the same for all faults of a problem
_T = TypeVar("_T")


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
        The number of entries.
    faults : int
        The number of faults of candidates.

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
    faults: int


class Store(PublicDir):
    """Tuned choices that outlast a process: entries by their keys, in a file of JSON lines or in memory.

    Any number of processes and threads can use a file at once. A file that cannot be written, because its folder is read
    only, the disk is full, or it stays locked, gives one RuntimeWarning, and its entries continue in memory, with the new ones.
    Damaged lines of a file are left out, with one RuntimeWarning.

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
    OSError
        `read_only` is True, and there is no file, or it cannot be read.

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
        if self.path and self.read_only and not os.path.exists(self.path):
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            kind = "folder" if os.path.isdir(self.path) else "device"
            raise ValueError(
                f"path must be a file; got {self.path}, a {kind}. Name a file in it, such as choices.jsonl"
            )
        self._closed = False
        try:
            self._file = LineFile(self.path, read_only=self.read_only)
        except ForeignFileError as error:
            expected = "a store or an export" if self.read_only else "a store, or a file that does not exist yet"
            raise ValueError(f"path must be {expected}; got {self.path}, {error}") from None
        self.read_only = self.read_only or self._file.announced is not None

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'}{', read only' if self.read_only else ''}>"

    @property
    def _lines(self) -> LineFile:
        if self._closed:
            raise ClosedError(f"{self!r} is used after close()")
        return self._file

    @property
    def _writable_lines(self) -> LineFile:
        if self.read_only:
            raise ValueError(f"store must be open for writing to be changed; got {self!r}")
        return self._lines

    # Entries

    def get(self, key: Key, *, without_candidates: bool = False) -> Entry | None:
        """Return the entry of a key; None if there is none.

        With `without_candidates` its candidates are not read, which takes a fourth of the time.
        """
        record = self._lines.get(_id(_ENTRY, key))
        if without_candidates and isinstance(record, dict):
            record["candidates"] = []
        return next((entry for entry in _valid(Entry.of, [record]) if entry.key == key), None)

    def put(self, entry: Entry, *, replace: bool = False) -> Entry:
        """Store an entry, and return the current entry of its key.

        The first measured entry stays, so that all processes of a program make the same choice. It replaces an entry that was
        only planned.

        Parameters
        ----------
        entry : Entry
            The entry.
        replace : bool
            Whether it replaces any other.

        Returns
        -------
        Entry
            The current entry of the key.

        Raises
        ------
        ValueError
            A field is not valid, or the store is open for reading alone.
        """
        if not isinstance(entry, Entry):
            raise TypeError(f"entry must be an Entry; got {error_repr(entry)}")
        entry = Entry.of(entry.plain())
        is_measured = entry.choice.milliseconds is not None

        def put(records: dict[str, Any]) -> Entry:
            current = self.get(entry.key)
            if current is None or replace or (is_measured and current.choice.milliseconds is None):
                records[_id(_ENTRY, entry.key)] = entry.plain()
                return entry
            return current

        return self._writable_lines.change(put)

    def forget(self, key: Key) -> None:
        """Remove the entry of a key, so that the problem is tuned again."""
        identifier = _id(_ENTRY, key)
        self._writable_lines.change(lambda records: records.update({identifier: None}))

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries, in the order of their keys."""
        return iter(sorted(_valid(Entry.of, self._lines.records(_ENTRY)), key=lambda entry: entry.key))

    def __len__(self) -> int:
        return self._lines.count(_ENTRY)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and self.get(key) is not None

    # Faults of candidates

    def faults(self) -> list[Fault]:
        """Return the faults of all problems."""
        return sorted(_valid(Fault.of, self._lines.records(_FAULT)))

    def faults_of(self, key: Key) -> list[Fault]:
        """Return the faults of the problem of a key, whatever its options."""
        problem = _id(_FAULT, without_options(key))[:_PROBLEM_CHARACTERS]
        return sorted(_valid(Fault.of, self._lines.records(problem)))

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
        lines, by_id = self._writable_lines, dict[str, Any]()
        for fault in faults:
            if not isinstance(fault, Fault):
                raise TypeError(f"faults must be Faults; got {error_repr(fault)}")
            fault = Fault.of(fault.plain())
            by_id.setdefault(_fault_id(fault), None if removes else fault.plain())

        def update(records: dict[str, Any]) -> int:
            records |= {one: record for one, record in by_id.items() if (lines.get(one) is None) != removes}
            return len(records)

        return lines.change(update) if by_id else 0

    # Whole stores

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write the entries and faults as a store that is read only. The file is written whole or not at all.

        Equal entries and faults give equal bytes.

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
        content = self._lines.export()
        replace_file(file, content)
        return len(self)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Add the entries and faults of a file, an export or a store: see `merge`."""
        return self.merge(path)

    def merge(self, other: Store | str | os.PathLike[str]) -> int:
        """Add the entries and faults of another store.

        A measured entry replaces one that was only planned, and a complete one another. A damaged line is left out, with
        one RuntimeWarning for all.

        Parameters
        ----------
        other : Store or path
            The store, or the file of one or of an export, which is opened for reading alone.

        Returns
        -------
        int
            The number of entries that were added or replaced others.

        Raises
        ------
        ValueError
            The file is not a store, or it has another format; nothing is added.
        OSError
            The file cannot be read.
        """
        source = other if isinstance(other, Store) else Store(other, read_only=True)
        self.add_faults(source.faults())
        entries = [*source]

        def merge(records: dict[str, Any]) -> int:
            for entry in entries:
                current = self.get(entry.key, without_candidates=True)
                if current is None or _extent(entry) > _extent(current):
                    records[_id(_ENTRY, entry.key)] = entry.plain()
            return len(records)

        return self._writable_lines.change(merge)

    def info(self) -> StoreInfo:
        """Return the state of the store."""
        entries, faults = map(self._lines.count, (_ENTRY, _FAULT))
        return StoreInfo(self.path, self.read_only, self._file.memory_reason, entries, faults)

    def close(self) -> None:
        """End the use of the store. Nothing remains to be written: each change is on the disk when its call returns."""
        self._closed, self._file = True, LineFile()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def why_not_written(store: Store) -> str:
    """Return why changes stay in the memory of this process; "" if they are written. It makes the file if there is none."""
    store._writable_lines.change(lambda records: None)
    return store._file.memory_reason


def _id(kind: str, key: Key) -> str:
    if not isinstance(key, Key):
        raise TypeError(f"key must be a Key; got {error_repr(key)}")
    return f"{kind} {key.digest}"


def _fault_id(fault: Fault) -> str:
    """Return an id, whose first characters are those of the problem. Two faults with the same one are the same."""
    identity = canonical_json((fault.candidate, fault.symptom, fault.driver))
    problem = _id(_FAULT, without_options(fault.key))[:_PROBLEM_CHARACTERS]
    return f"{problem}{hashlib.sha256(identity.encode()).hexdigest()}"[:ID_CHARACTERS]


def _valid(read: Callable[[Any], _T], records: Iterable[Any]) -> Iterator[_T]:
    """Yield what a function reads from records, without those for which it raises ValueError."""
    for record in records:
        with suppress(ValueError):
            yield read(record)


def _extent(entry: Entry) -> tuple[bool, bool]:
    """Return how much an entry says: measured before planned, then complete."""
    return entry.choice.milliseconds is not None, entry.complete
