"""Open the SQLite file of a store, or SQLite's database in memory; map its errors; repair a damaged file.

SQLite locks the file, and undoes the changes of killed processes. Its errors have these consequences:

| error of SQLite | consequence |
|---|---|
| database is locked | the transaction waits, a look-up for 50 ms and any other for 30 s; then LockedError |
| database disk image is malformed; a checksum that does not hold | the file is set aside, and the readable rows are copied |
| file is not a database | the same if it was a store, else ForeignFileError |
| attempt to write a readonly database, database or disk is full, disk I/O error, unable to open | FileUnavailableError |

Every transaction on a file has a connection of its own. No connection outlasts a fork, and a file that replaces another is
seen at once. The file has a rollback journal, since a write-ahead log does not work on network file systems, leaves files
beside a database that is only read, and may be lost without the database: a row that was removed would come back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from cudnnpy._store.contents import ENTRY, Contents
from cudnnpy._store.file_errors import CorruptFileError, FileUnavailableError, ForeignFileError, LockedError, warn
from cudnnpy._store.table import Row, create_table, has_table, row_from_columns, select_all, sqlite_lock, was_store

_BUSY_SECONDS = 0.05  # how long SQLite waits for a lock; a look-up does not try again
PATIENCE_SECONDS = 30.0  # how long any other transaction tries again
_MAX_REPAIRS = 3  # in one transaction
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_T = TypeVar("_T")


class SqliteRows:
    """The rows in a file, which the first change makes; in memory without a path.

    A damaged file is repaired, with a warning, unless it is open for reading alone.
    """

    def __init__(self, path: str = "", *, read_only: bool = False, rows: Iterable[Row] = ()) -> None:
        self.path, self._read_only = path, read_only
        self._memory = None if path else connect("")
        if self._memory is not None:
            weakref.finalize(self, self._memory.close)
            create_table(self._memory)
            for row in rows:
                Contents(self._memory).put(row)

    def run(self, work: Callable[[Contents], _T], *, writes: bool = False, waits: bool = True) -> _T:
        """Return the result of `work` in a transaction, which may be repeated.

        Raises FileUnavailableError if the file cannot be used, and, without `waits`, LockedError if it is locked for 50 ms.
        """
        deadline, is_damaged, repairs = time.monotonic() + PATIENCE_SECONDS, False, 0
        while True:
            try:
                if is_damaged:
                    self._repair()
                    is_damaged = False
                return self._run_once(work, writes)
            except LockedError as error:
                if not waits:
                    raise
                if time.monotonic() >= deadline:
                    raise FileUnavailableError("it stays locked") from error
                time.sleep(random.uniform(0.001, 0.05))
            except CorruptFileError:
                if is_damaged or repairs == _MAX_REPAIRS:
                    raise
                is_damaged, repairs = True, repairs + 1

    def read_intact_rows(self) -> list[Row]:
        """Return the rows that can still be read of a file that cannot be used otherwise."""
        with contextlib.suppress(FileUnavailableError, LockedError), self._connection("rw") as connection:
            return _readable_rows(connection)[0]
        return []

    def _run_once(self, work: Callable[[Contents], _T], writes: bool) -> _T:
        if self.path and writes:
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
            except OSError as error:
                raise FileUnavailableError(str(error)) from error
        elif self.path and not os.path.exists(self.path):
            return work(Contents())
        with self._connection("rwc" if writes else "rw") as connection:
            if writes:
                # Removed rows are overwritten, so that no damage brings one back. A change is on the disk when it returns.
                for setting in ("journal_mode = DELETE", "secure_delete = ON", "synchronous = EXTRA"):
                    connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            if not has_table(connection):
                if not writes:
                    return work(Contents())
                create_table(connection)
            result = work(Contents(connection))
            connection.execute("COMMIT")
            return result

    @contextlib.contextmanager
    def _connection(self, mode: str) -> Iterator[sqlite3.Connection]:
        with sqlite_lock, _translated_errors():
            connection = self._memory or connect(self.path, mode)
            try:
                yield connection
            finally:
                if connection is not self._memory:
                    connection.close()
                elif connection.in_transaction:
                    connection.rollback()

    def _repair(self) -> None:
        """Set a damaged file aside, unless another process did so meanwhile."""
        with sqlite_lock, _translated_errors():
            if not was_store(Path(self.path).read_bytes()):
                raise ForeignFileError
            if self._read_only:
                raise CorruptFileError
            repaired = _set_aside(self.path)
        if repaired is not None:
            aside, count = repaired
            warn(
                f"{self.path} was damaged. It is set aside as {os.path.basename(aside)}, and its {count} readable entries stay"
            )


def connect(path: str, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection to a file, which is opened for reading if it cannot be written. "" is a database in memory."""
    uri = f"file://{quote(os.fsencode(path))}?mode={mode}" if path else ":memory:"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise SQLite's errors, and errors of the file system in a repair, as the errors of this package."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_BUSY:
            raise LockedError from error
        raise (CorruptFileError() if _code(error) in _DAMAGE else FileUnavailableError(str(error))) from error
    except BlockingIOError as error:
        raise LockedError from error
    except OSError as error:
        raise CorruptFileError from error


def _readable_rows(connection: sqlite3.Connection) -> tuple[list[Row], bool]:
    """Return the intact rows that SQLite reads, and whether the file is intact.

    SQLite ends at a damaged page, so that it reads from both ends. Raises ForeignFileError, or FileUnavailableError for a newer
    version.
    """
    rows: dict[int, Row] = {}
    is_intact = False
    with contextlib.suppress(sqlite3.DatabaseError, CorruptFileError):
        if not has_table(connection):
            return [], True
        is_intact = connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    for order in ("ASC", "DESC"):
        try:
            for row in map(row_from_columns, select_all(connection, order)):
                if row.is_intact:
                    rows[row.number] = row
                else:
                    is_intact = False
        except sqlite3.DatabaseError:
            is_intact = False
    return [*rows.values()], is_intact


def _set_aside(path: str) -> tuple[str, int] | None:
    """Copy a damaged file, and replace its content by the readable rows. Return the copy's path and the number of entries.

    Returns None if another process repaired it first. The file stays the one that other processes have open, so that SQLite's
    locks and journal hold for all of them.
    """
    with open(path, "rb+") as stream, closing(connect(path)) as connection:  # closing the stream ends SQLite's locks
        rows: list[Row] = []
        is_locked = _lock_exclusively(connection)
        if is_locked:
            rows, is_intact = _readable_rows(connection)
        else:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_intact = _lock_exclusively(connection)
        if is_intact:
            return None
        aside = f"{path}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
        try:
            with open(aside, "xb") as copy:
                shutil.copyfileobj(stream, copy)
            shutil.copymode(path, aside)
            if is_locked:
                _replace_content(connection, rows)
            else:
                stream.truncate(0)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise CorruptFileError from error
    return aside, sum(row.kind == ENTRY for row in rows)


def _lock_exclusively(connection: sqlite3.Connection) -> bool:
    """Lock a file until the connection is closed. Return False if its header is damaged: SQLite does not lock it then."""
    try:
        for statement in ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "ROLLBACK"):
            connection.execute(statement)
    except sqlite3.DatabaseError as error:
        if _code(error) not in _DAMAGE:
            raise
        return False
    return True


def _replace_content(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Replace the content of a file by rows, in one transaction."""
    with closing(connect("")) as fresh:
        create_table(fresh)
        for row in rows:
            Contents(fresh).put(row)
        fresh.backup(connection)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
