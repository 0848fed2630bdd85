"""The rows of a store in an SQLite file: connections, locks, and what SQLite's errors mean.

Each change opens a connection and closes it, and so does a read while others change the file. A read of one row from a file
that nobody changes needs no lock; the connection for it is kept while the file stays as it is. It holds no lock and is not
used in a fork, and the path may come to be another file.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from cudnnpy._store import lock, rebuild
from cudnnpy._store.faults import Damaged, Foreign, Unusable, warn
from cudnnpy._store.rows import Change, Row, row_from
from cudnnpy._store.schema import NAME, create, has_table, prepare_writing

PATIENCE = 30.0  # seconds until a file that stays locked is given up
_BUSY_SECONDS = 5.0  # in which SQLite itself tries again
_TURN = 0.2  # seconds in which the lock is waited for, before it is looked whether another process replaced the file
_MOST_REBUILT = 3  # times in one operation
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA}
# Errors of a connection that may write, after which one that only reads may succeed: in a read-only folder, on a full disk.
_UNWRITABLE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_COARSE = 2_000_000_000  # nanoseconds, the most by which the clock of a file system is behind
_COLUMNS = "number, kind, schema, content, checksum"
_OF_NUMBER = "WHERE number = ?"

_T = TypeVar("_T")
_Work = Callable[[sqlite3.Connection], _T]


# Held while SQLite works, and during a fork: SQLite has locks of its own for all of a process, which a child that was forked
# while another thread held one would wait for without end.
_turn = threading.RLock()
os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)


class _State(NamedTuple):
    """What differs in another process, for another file, and after a change."""

    process: int
    device: int
    inode: int
    size: int
    changed: int  # when, in nanoseconds

    def is_told_from_later(self) -> bool:
        """Return whether the time of a later change differs, though clocks of file systems are coarse."""
        return time.time_ns() - self.changed > _COARSE


class File:
    """The rows in a file, which the first change makes. A damaged file is replaced, with a warning.

    Methods raise Unusable if the file cannot be used as requested, Damaged if it cannot be repaired either, and Foreign if it
    is not a file of this package.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._kept: tuple[_State, sqlite3.Connection] | None = None  # the last connection that needs no lock
        self._drop: Callable[[], object] = int

    def read(self, number: int) -> Row | None:
        """Return the row of a number; None if there is none."""
        rows = self._read_at_rest(number) or self._rows(_OF_NUMBER, number)
        return rows[0] if rows else None

    def all(self, kind: str | None = None) -> list[Row]:
        """Return the rows of a kind, by default of all kinds, in the order of their numbers."""
        return self._rows("ORDER BY number") if kind is None else self._rows("WHERE kind = ? ORDER BY number", kind)

    def change(self, changes: Iterable[Change], removed: Iterable[Row] = ()) -> list[Row]:
        """Remove rows as they are given, then add others. Return the row that stands for each change."""
        changes, gone = [*changes], [(row.number, row.checksum) for row in removed]

        def work(connection: sqlite3.Connection) -> list[Row]:
            prepare_writing(connection, self.path)
            connection.execute("BEGIN IMMEDIATE")
            if not has_table(connection):
                create(connection)
            connection.executemany(f"DELETE FROM {NAME} WHERE number = ? AND checksum = ?", gone)
            standing = [_standing(connection, *change) for change in changes]
            connection.execute("COMMIT")
            return standing

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(str(error)) from error
        return self._run(work, writes=True)

    def close(self) -> None:
        """Close the connection that is kept; a later read opens another one."""
        with _turn:
            self._kept = None
            self._drop()

    def check(self) -> None:
        """Raise what reading would raise, except for damage that is found only when a row is read."""
        if os.path.exists(self.path):
            self._run(has_table)

    def _rows(self, where: str, *values: str | int) -> list[Row]:
        def work(connection: sqlite3.Connection) -> list[Row]:
            return _selected(connection, where, *values) if has_table(connection) else []

        return self._run(work) if os.path.exists(self.path) else []

    def _read_at_rest(self, number: int) -> list[Row]:
        """Return the row of a number from a file that nobody changes; nothing if it cannot be found so.

        A file without a log and a journal has every change that was made, so that SQLite need not lock it, which takes most
        of the time of a read. Where a change begins meanwhile, the row that was read does not count.
        """
        try:
            with lock.held(self.path, 0.0, make=False):
                if self._is_in_change():
                    return []
                state = self._state()
                with _turn, self._at_rest(state) as connection:
                    rows = _selected(connection, _OF_NUMBER, number)
                return [] if self._is_in_change() or self._state() != state else rows
        except (sqlite3.Error, Damaged, Foreign, Unusable):  # which the other way to read tells apart
            return []

    @contextlib.contextmanager
    def _at_rest(self, state: _State) -> Iterator[sqlite3.Connection]:
        """Give a connection that needs no lock: the one that is kept, if the file is in the state that it was opened in."""
        is_kept = False
        try:
            if self._kept is None or self._kept[0] != state:
                self._drop()
                connection = self._connected_at_rest()
                self._drop = weakref.finalize(self, connection.close)
                self._kept = state, connection
            yield self._kept[1]
            is_kept = state.is_told_from_later()
        finally:
            if not is_kept:
                self._kept = None
                self._drop()

    def _connected_at_rest(self) -> sqlite3.Connection:
        connection = self._connection("ro&immutable=1")
        try:
            if has_table(connection):
                return connection
            raise Unusable("it is empty")
        except BaseException:
            connection.close()
            raise

    def _state(self) -> _State:
        """Return the state of the file. Raises Unusable if it is gone."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise Unusable(str(error)) from error
        return _State(os.getpid(), found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)

    def _run(self, work: _Work[_T], *, writes: bool = False) -> _T:
        """Return the result of work on a connection: again while the file is locked, and after a damaged one was replaced."""
        end, rebuilt = time.monotonic() + PATIENCE, 0
        while True:
            identity = self._identity()
            try:
                with lock.held(self.path, PATIENCE, make=writes):
                    return self._once(work, writes)
            except (sqlite3.Error, Damaged) as error:
                code = rebuild.code_of(error)
                damaged = code in rebuild.DAMAGE or rebuild.is_closed_by_its_header(error, self.path)
                if damaged and rebuilt < _MOST_REBUILT:
                    rebuilt += 1
                    self._rebuild(identity)
                elif code in _BUSY and time.monotonic() < end:
                    time.sleep(random.uniform(0.001, 0.05))
                elif code in _BUSY:
                    raise Unusable("it stays locked") from error
                else:
                    raise Unusable(f"{error}") from error

    def _once(self, work: _Work[_T], writes: bool) -> _T:
        """Return the result of work on a connection that may write, or on one that reads if that suffices."""
        modes = ["rwc"] if writes else ["ro", "ro&immutable=1"] if self.read_only else ["rw", "ro", "ro&immutable=1"]
        while True:
            mode = modes.pop(0)
            try:
                with _turn, closing(self._connection(mode)) as connection:
                    return work(connection)
            except sqlite3.Error as error:
                if rebuild.code_of(error) not in _UNWRITABLE or not modes:
                    raise
                if "immutable" in modes[0] and self._has(
                    "-wal"
                ):  # without its log, a file may be in the middle of a change
                    raise

    def _connection(self, mode: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.fspath(self.path))}?mode={mode}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=min(_BUSY_SECONDS, PATIENCE), isolation_level=None, check_same_thread=False
        )
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _is_in_change(self) -> bool:
        return self._has("-wal") or self._has("-journal")

    def _has(self, ending: str) -> bool:
        """Return whether SQLite keeps a part of the file beside it."""
        try:
            return os.stat(f"{self.path}{ending}").st_size > 0
        except OSError:
            return False

    def _identity(self) -> tuple[int, int] | None:
        """Return what tells the file from another one at the same path."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _rebuild(self, identity: tuple[int, int] | None) -> None:
        """Put a file that can be read in the place of a damaged one, unless another process does so meanwhile."""
        if self.read_only:
            raise Damaged
        end = time.monotonic() + PATIENCE
        while self._identity() == identity:
            try:
                with lock.held(self.path, min(_TURN, PATIENCE), alone=True) as locked:
                    if not locked:
                        raise Damaged
                    if self._identity() == identity:
                        self._replace()
                return
            except Unusable:
                if time.monotonic() >= end:
                    raise

    def _replace(self) -> None:
        try:
            done = rebuild.rebuild(self.path)
        except Foreign:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_of(self.path))
            raise
        except (OSError, sqlite3.Error) as error:
            raise Damaged from error
        if done is not None:
            warn(
                f"{self.path} was damaged. It is kept as {done.aside.name}, and its {done.kept} readable entries go on"
            )


def _selected(connection: sqlite3.Connection, where: str, *values: str | int) -> list[Row]:
    return _whole(connection.execute(f"SELECT {_COLUMNS} FROM {NAME} {where}", values))


def _whole(found: Iterable[tuple[object, ...]]) -> list[Row]:
    """Return the rows of values of a file. Raises Damaged if any of them is not whole."""
    rows = [*map(row_from, found)]
    if not all(row.is_whole for row in rows):
        raise Damaged
    return rows


def _standing(connection: sqlite3.Connection, row: Row, beats: Callable[[Row], bool]) -> Row:
    """Add a row within a transaction, unless one stands that it does not beat. Return the one that stands."""
    found = _selected(connection, _OF_NUMBER, row.number)
    if found and not beats(found[0]):
        return found[0]
    connection.execute(f"INSERT OR REPLACE INTO {NAME} VALUES (?, ?, ?, ?, ?)", row)
    return row
