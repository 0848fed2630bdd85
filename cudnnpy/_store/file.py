"""The rows of a store in an SQLite database: in a file with a rollback journal, or in SQLite's memory.

Every operation on a file is one transaction on a connection of its own, which outlasts no fork. The journal of a change is
gone before the change is acknowledged: nothing beside the file is needed to know that a row was removed.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cudnnpy._store.faults import Damaged, Locked, Unusable, warn
from cudnnpy._store.rebuild import DAMAGE, code_of, readable, rebuild
from cudnnpy._store.rows import Change, Row, row_from, turn
from cudnnpy._store.schema import COLUMNS, NAME, connect, create, has_table

PATIENCE = 30.0  # seconds until a file that stays locked is given up; a look-up tries once
_MOST_REBUILT = 3  # times in one operation
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA}

_T = TypeVar("_T")
_Work = Callable[[sqlite3.Connection], _T]


class File:
    """The rows in a file, which the first change makes; without a path, rows in memory.

    A damaged file is replaced, with a warning. Methods raise Unusable if the file cannot be used as requested, Damaged if it
    cannot be replaced, and Foreign if it is not a file of this package.
    """

    def __init__(self, path: str = "", *, read_only: bool = False, rows: Iterable[Row] = ()) -> None:
        self.path, self.read_only = path, read_only
        self._memory = None if path else connect("")
        if self._memory is not None:
            weakref.finalize(self, self._memory.close)
            self.change(map(Change, rows))

    def read(self, number: int, *, waits: bool = False) -> Row | None:
        """Return the row of a number; None if there is none. Raises Locked, unless it waits for the file."""
        return self.read_several(number, waits=waits).get(number)

    def read_several(self, *numbers: int, waits: bool = False) -> dict[int, Row]:
        """Return those rows of some numbers that there are, by their numbers, in one transaction. Raises as `read` does."""
        marks = ", ".join("?" * len(numbers))
        return {row.number: row for row in self._rows(f"WHERE number IN ({marks})", *numbers, waits=waits)}

    def all(self, kind: str) -> list[Row]:
        """Return the rows of a kind, in the order of their numbers."""
        return self._rows("WHERE kind = ? ORDER BY number", kind)

    def change(self, changes: Iterable[Change], removed: Iterable[Row] = ()) -> list[Row | None]:
        """Remove rows as they are given, then add others. Return the row that stands for each change; None for none."""
        changes, gone = [*changes], [(row.number, row.checksum) for row in removed]

        def work(connection: sqlite3.Connection) -> list[Row | None]:
            if not has_table(connection):
                create(connection)
            connection.executemany(f"DELETE FROM {NAME} WHERE number = ? AND checksum = ?", gone)
            return [_standing(connection, *change) for change in changes]

        if self.path:
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
            except OSError as error:
                raise Unusable(str(error)) from error
        return self._run(work, writes=True)

    def check(self) -> None:
        """Raise what reading would raise, except for damage that is found only when a row is read."""
        self._rows("LIMIT 0", waits=False)

    def readable(self) -> list[Row]:
        """Return what can be read of a file that cannot be used otherwise."""
        with contextlib.suppress(sqlite3.Error, Unusable), self._connected("rw") as connection:
            return readable(connection)[0]
        return []

    def _rows(self, where: str, *values: str | int, waits: bool = True) -> list[Row]:
        if self.path and not os.path.exists(self.path):
            return []
        return self._run(
            lambda connection: _selected(connection, where, *values) if has_table(connection) else [], waits=waits
        )

    def _run(self, work: _Work[_T], *, writes: bool = False, waits: bool = True) -> _T:
        """Return the result of work in a transaction: again while the file is locked, and after a damaged one was replaced."""
        end, rebuilt = time.monotonic() + PATIENCE, 0
        while True:
            try:
                try:
                    return self._once(work, writes)
                except (sqlite3.Error, Damaged) as error:
                    if code_of(error) not in DAMAGE:
                        raise
                    if rebuilt == _MOST_REBUILT:
                        raise Damaged from error
                rebuilt += 1
                self._rebuild()
            except (sqlite3.Error, BlockingIOError) as error:
                if not isinstance(error, BlockingIOError) and code_of(error) not in _BUSY:
                    raise Unusable(str(error)) from error
                if not waits:
                    raise Locked from error
                if time.monotonic() >= end:
                    raise Unusable("it stays locked") from error
                time.sleep(random.uniform(0.001, 0.05))

    def _once(self, work: _Work[_T], writes: bool) -> _T:
        """Return the result of work in a transaction."""
        with self._connected("rwc" if writes else "rw") as connection:
            if writes:
                # What is removed is overwritten, so that no damage brings it back. A change is on the disk when it returns.
                for setting in ("journal_mode = DELETE", "secure_delete = ON", "synchronous = EXTRA"):
                    connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            result = work(connection)
            connection.execute("COMMIT")
            return result

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        with turn:
            connection = self._memory or connect(self.path, mode)
            try:
                yield connection
            finally:
                if connection is not self._memory:
                    connection.close()
                elif connection.in_transaction:
                    connection.rollback()

    def _rebuild(self) -> None:
        """Replace what the damaged file has by what can be read of it, unless another process does so meanwhile."""
        try:
            with turn:
                done = rebuild(self.path, read_only=self.read_only)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Damaged from error
        if done is not None:
            aside = os.path.basename(done.aside)
            warn(f"{self.path} was damaged. It is kept as {aside}, and its {done.kept} readable entries go on")


def _selected(connection: sqlite3.Connection, where: str, *values: str | int) -> list[Row]:
    """Return rows. Raises Damaged if any of them is not whole."""
    rows = [*map(row_from, connection.execute(f"SELECT {COLUMNS} FROM {NAME} {where}", values))]
    if not all(row.is_whole for row in rows):
        raise Damaged
    return rows


def _standing(connection: sqlite3.Connection, row: Row, beats: Callable[[Row], bool], unless: int) -> Row | None:
    """Add a row within a transaction, unless one stands that it does not beat. Return the one that stands.

    If there is a row with the number `unless`, nothing is added, and None returned.
    """
    if _selected(connection, "WHERE number = ?", unless):
        return None
    found = _selected(connection, "WHERE number = ?", row.number)
    if found and not beats(found[0]):
        return found[0]
    connection.execute(f"INSERT OR REPLACE INTO {NAME} VALUES (?, ?, ?, ?, ?)", row)
    return row
