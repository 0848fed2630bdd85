"""A store: entries by their keys, in a file or in memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from types import TracebackType

from cudnnpy._options.checks import check_flag, printable
from cudnnpy._store import exports
from cudnnpy._store.entry import SCHEMA, Entry, Fault, Key, canonical, digest_of
from cudnnpy._store.fault_rows import FaultRows, rows_from_faults
from cudnnpy._store.faults import Foreign, Locked
from cudnnpy._store.kept import Kept
from cudnnpy._store.machine import this_machine
from cudnnpy._store.records import (
    Forgotten,
    StoreInfo,
    addition,
    addition_if_it_says_more,
    entry_from_row,
    forgotten_from_row,
    number_of_failure,
    rank,
    row_from_entry,
    row_number,
)
from cudnnpy._store.rows import CHECKED, ENTRY, FORGOTTEN, Change, Row, row_of
from cudnnpy.errors import ClosedError

_AT_ONCE = 100  # entries in one transaction


class Store(FaultRows):
    """Tuned choices that last: entries by their keys, in an SQLite file, an export, or memory.

    Any number of processes and threads can use a file at once. A file that cannot be written, because its folder is read
    only, the disk is full, or it stays locked, gives one RuntimeWarning, and its entries go on in memory, with the new ones. A
    damaged file is copied aside with a RuntimeWarning, and the entries that SQLite still reads in it stay.

    Parameters
    ----------
    path : str or path-like
        The file. If there is none, the first entry makes it, and the folders above it. An export is opened for reading alone.
        "" keeps entries in memory.
    read_only : bool
        Whether the file must exist and is never changed.

    Raises
    ------
    TypeError, ValueError
        `path` is a folder, or a file that is not a store; it is left as it is.
    FileNotFoundError
        `read_only` is True, and there is no file.
    """

    path: str  #: the file; "" for a store in memory
    read_only: bool  #: whether it is open for reading alone

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        given = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(given, str) or "\0" in given:
            raise TypeError(f"path must be a str or a path; got {path!r}")
        self.path = os.path.abspath(os.path.expanduser(given)) if given else ""
        self.read_only = check_flag("read_only", read_only)
        try:
            os.fsencode(self.path)
        except UnicodeEncodeError:
            raise ValueError(f"path must be a name in the encoding of the file system; got {path!r}") from None
        self._closed = False
        self._kept = Kept()
        # SQLite's journal lies beside the file that a link names.
        self._file = os.path.realpath(self.path) if self.path else ""
        if self._file:
            self._open(self._file)

    def _open(self, path: str) -> None:
        if self.read_only and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such store", self.path)
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "folder" if os.path.isdir(path) else "device"
            raise ValueError(f"path must be a file; got {self.path}, a {kind}. Name a file in it, such as store.sqlite")
        try:
            self._kept = Kept(path, read_only=self.read_only)
        except Foreign:
            if not exports.is_export(Path(path)):
                raise ValueError(
                    f"path must be a store, or a file that does not exist yet; got {self.path}, a file of another kind. "
                    "Name another file"
                ) from None
            content = exports.read_with_warning(Path(path))
            rows = chain(map(row_from_entry, content.entries), rows_from_faults(content.faults))
            self._kept, self.read_only = Kept(rows=rows), True

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'}{', read only' if self.read_only else ''}>"

    @property
    def _rows(self) -> Kept:
        if self._closed:
            raise ClosedError(f"{self!r} is used after close()")
        return self._kept

    def _change(self, changes: list[Change], removed: Sequence[Row] = ()) -> list[Row | None]:
        self._check_writable()
        return self._rows.change(changes, removed)

    def _check_writable(self) -> None:
        if self.read_only:
            raise ValueError(f"store must be open for writing to be changed; got {self!r}")

    # Entries

    def get(self, key: Key, *, brief: bool = False) -> Entry | None:
        """Return the entry of a key; None if there is none, or if another process locks the file for more than 50 ms.

        With `brief` its candidates are not read, which takes half the time.
        """
        with contextlib.suppress(Locked):
            return self._valid(key, self._rows.read(row_number(ENTRY, key)), brief=brief)
        return None

    def _valid(self, key: Key, row: Row | None, *, brief: bool) -> Entry | None:
        """Return the entry of a row if it is the one of the key, and its plan did not fail. Raises Locked."""
        entry = None if row is None else entry_from_row(row, brief=brief)
        if entry is None or entry.key != key or self._rows.read(number_of_failure(entry)) is not None:
            return None
        return entry

    def put(self, entry: Entry, *, replace: bool = False) -> Entry:
        """Keep an entry, and return the one that stands for its key.

        The first that was measured stands, so that all processes of a program make the same choice. It replaces one that
        was only planned.

        Parameters
        ----------
        entry : Entry
            The entry. One whose plan was forgotten is returned and not kept.
        replace : bool
            Whether it replaces any other.

        Returns
        -------
        Entry
            The entry that stands for the key: this one, or an earlier one.

        Raises
        ------
        ValueError
            A field is not valid, or the store is open for reading alone.
        """
        if not isinstance(entry, Entry):
            raise TypeError(f"entry must be an Entry; got {entry!r}")
        self._check_writable()
        entry = Entry.of(entry.plain())
        measured = entry.milliseconds is not None
        change = addition(entry, lambda other: replace or (measured and not rank(other)[0]))
        standing = None
        with contextlib.suppress(Locked):
            standing = self._rows.read(change.row.number)
            failed = None if standing is None else entry_from_row(standing)
            if standing is not None and failed is not None and self._rows.read(number_of_failure(failed)) is not None:
                self._change([], [standing])  # damage brought it back
                standing = None
        if standing is None or change.beats(standing):  # which costs others no lock
            (standing,) = self._change([change])
        found = None if standing is None else entry_from_row(standing)
        return entry if found is None or found.key != entry.key else found

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries of the present schema, in the order of their keys."""
        failed = {row.number for row in self._rows.all(FORGOTTEN)}
        entries = map(entry_from_row, self._rows.all(ENTRY))
        found = (entry for entry in entries if entry is not None and number_of_failure(entry) not in failed)
        return iter(sorted(found, key=lambda entry: entry.key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Key) and self.get(key) is not None

    # Plans that were tried

    def forget(self, key: Key, reason: str, *, plan: str | None = None) -> None:
        """Remove the entry of a key, whose plan failed. The same plan is not kept for this key again.

        Parameters
        ----------
        key : Key
            The key.
        reason : str
            Why the plan failed, for people.
        plan : str, optional
            The serialized plan, by default that of the entry. An entry with another plan stays.
        """
        row = self._rows.read(row_number(ENTRY, key), waits=True)
        entry = None if row is None else entry_from_row(row)
        plan = entry.plan if plan is None and entry is not None else plan
        if plan is None:
            return
        made_at, text = datetime.now(UTC).isoformat(timespec="seconds"), "" if entry is None else entry.text
        failed = Forgotten(key, text, digest_of(plan), printable(str(reason)), made_at)
        content = canonical({**failed._asdict(), "key": key._asdict()})
        added = Change(row_of(row_number(FORGOTTEN, key, plan), FORGOTTEN, content))
        while row is not None and entry is not None and entry.plan == plan:  # again if it was replaced meanwhile
            self._change([added], [row])
            row = self._rows.read(row.number, waits=True)
            entry = None if row is None else entry_from_row(row)
        self._change([added])

    def forgotten(self) -> list[Forgotten]:
        """Return the plans that failed, each with its reason."""
        return sorted(forgotten_from_row(row) for row in self._rows.all(FORGOTTEN) if row.schema == SCHEMA)

    def is_forgotten(self, key: Key, plan: str) -> bool:
        """Return whether a serialized plan failed for a key. It counts as failed while another process locks the file."""
        try:
            return self._rows.read(row_number(FORGOTTEN, key, plan)) is not None
        except Locked:
            return True

    def is_checked(self, key: Key, environment: str, *, plan: str | None = None) -> bool:
        """Return whether the plan of a key was marked as checked in an environment.

        Parameters
        ----------
        key : Key
            The key.
        environment : str
            What the check depends on, such as the versions of the driver and of cuDNN.
        plan : str, optional
            The serialized plan, by default that of the entry.
        """
        with contextlib.suppress(Locked):
            number = self._mark(key, environment, plan)
            return number is not None and self._rows.read(number) is not None
        return False

    def mark_checked(self, key: Key, environment: str, *, plan: str | None = None) -> None:
        """Remember that the plan of a key ran and was right in an environment. The parameters are those of is_checked."""
        number = self._mark(key, environment, plan)
        if number is not None:
            content = canonical({"key": key.digest, "environment": environment})
            self._change([Change(row_of(number, CHECKED, content), lambda standing: False)])

    def _mark(self, key: Key, environment: str, plan: str | None) -> int | None:
        if plan is None:
            entry = self.get(key)
            plan = None if entry is None else entry.plan
        return None if plan is None else row_number(CHECKED, key, plan, environment)

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
        content = exports.read_with_warning(Path(path).expanduser())
        return self._adopt(content.entries, content.faults)

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
        changes = [addition_if_it_says_more(entry) for entry in entries]
        before, count = {row.number: row for row in self._rows.all(ENTRY)}, 0
        for start in range(0, len(changes), _AT_ONCE):
            part = changes[start : start + _AT_ONCE]
            standing = self._change(part)
            pairs = zip((change.row for change in part), standing, strict=True)
            count += sum(row == stands != before.get(row.number) for row, stands in pairs)
        return count

    def prune(self, *, older_than: timedelta | None = None, stale: bool = True, forgotten: bool = False) -> int:
        """Remove entries and faults, and return their number.

        Parameters
        ----------
        older_than : timedelta, optional
            Removes what was made longer ago.
        stale : bool
            Whether those are removed that this process cannot use: see StoreInfo. In a folder that several machines share,
            these may be the entries of another machine.
        forgotten : bool
            Whether failed plans are removed, which may then be tried again.

        Raises
        ------
        TypeError
            `older_than` is not a timedelta.
        ValueError
            The store is open for reading alone.
        """
        if older_than is not None and not isinstance(older_than, timedelta):
            raise TypeError(f"older_than must be a timedelta; got {older_than!r}")
        machine, now = this_machine(), datetime.now(UTC)

        def is_gone(key: Key, made_at: str) -> bool:
            is_old = older_than is not None and now - datetime.fromisoformat(made_at) > older_than
            return is_old or (stale and not machine.serves(key))

        gone, staying = [], set()
        for row in self._rows.all(ENTRY):
            entry = entry_from_row(row)
            if stale if entry is None else is_gone(entry.key, entry.made_at):
                gone.append(row)
            elif entry is not None:
                staying.add(entry.key.digest)
        failed = [row for row in self._rows.all(FORGOTTEN) if forgotten]
        marks = [row for row in self._rows.all(CHECKED) if json.loads(row.content).get("key") not in staying]
        self._change([], [*gone, *failed, *marks])
        left = {*self._rows.all(ENTRY), *self._rows.all(FORGOTTEN)}
        faults = self.remove_faults(fault for fault in self.faults() if is_gone(fault.key, fault.made_at))
        return sum(row not in left for row in (*gone, *failed)) + faults

    def info(self) -> StoreInfo:
        """Return the state of the store."""
        machine = this_machine()
        rows = self._rows.all(ENTRY)
        usable = sum(entry is not None and machine.serves(entry.key) for entry in map(entry_from_row, rows))
        folder, name = os.path.split(self._file)
        found: list[str] = []
        with contextlib.suppress(OSError):  # a folder that may not be listed
            found = sorted(os.listdir(folder))
        return StoreInfo(
            self.path,
            self.read_only,
            self._kept.reason,
            usable,
            len(rows) - usable,
            len(self._rows.all(FORGOTTEN)),
            len(self.faults()),
            sum(map(_size, (self._file, f"{self._file}-journal"))),
            tuple(os.path.join(folder, file) for file in found if name and file.startswith(f"{name}.damaged-")),
        )

    def close(self) -> None:
        """End the use of the store. Nothing is left to be written: each entry is kept when it is put."""
        self._closed, self._kept = True, Kept()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def why_in_memory(store: Store) -> str:
    """Return why new choices are kept in the memory of this process alone; "" if they are not. It reads no entries."""
    return store._kept.reason


def _size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it is not seen."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
