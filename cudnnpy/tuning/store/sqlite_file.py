"""The SQLite file of a store: transactions, damaged files, and the in-memory fallback where there is no file or it fails.

SQLite locks the file, and undoes the changes of killed processes. Its errors have these consequences:

| error of SQLite | consequence |
|---|---|
| database is locked | the transaction waits; memory takes the file's place once no process has changed it for 30 s |
| database disk image is malformed; a checksum that does not hold | the file is set aside, and a new one begins |
| file is not a database | the same if it was a store, else ForeignFileError |
| attempt to write a readonly database, database or disk is full, disk I/O error, unable to open | memory takes its place |

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
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from cudnnpy._core.atomic_file import make_private_folder, replace_file
from cudnnpy._core.caller_warning import warn
from cudnnpy._process.module_state import fork_safe_lock
from cudnnpy.tuning.store import sqlite
from cudnnpy.tuning.store.contents import Contents, Row

if TYPE_CHECKING:
    import sqlite3

# How long a transaction tries again while the file stays as it is. Measured on one core: a new entry locks the file for 1 ms,
# and the pruning of 5,000 entries and 5,000 faults (41 MB) for 0.8 s. The last of 96 writers waited for 35 s of changes.
PATIENCE_SECONDS = 30.0
_MAX_PAUSE_SECONDS = 0.5  # between two attempts, so that many that wait leave the processor to the one that writes

_ALL_LOCKS = 512, 0x40000000  # the number and the first of the bytes that SQLite locks

_T = TypeVar("_T")

# Held during each transaction and each fork of this process. SQLite has locks within a process, too: a child that was forked
# while another thread held one would wait for it without end.
_sqlite_lock = fork_safe_lock()


class SqliteFile:
    """A store's file, which the first change makes; a database in memory without a path, or once the file fails.

    A file that fails is left as it is, with one warning, and its rows continue in memory unless it is damaged. A damaged or old
    file is set aside, with a warning, unless it is open for reading alone. Raises ForeignFileError if the file is not a store
    at first.
    """

    memory_reason: str  # why changes stay in memory; "" if they do not

    def __init__(self, path: str = "", *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self.memory_reason = "" if path else "it has no file"
        self._memory: sqlite3.Connection | None = None  # made by the first change
        try:
            self._run_on_file(lambda contents: None)
        except sqlite.ForeignFileError:
            raise
        except sqlite.FileUnavailableError as error:
            self._use_memory(error)

    @property
    def is_blank(self) -> bool:
        """Whether there are no rows, as far as is known without reading any."""
        return self._memory is None and not (self._path and os.path.exists(self._path))

    def run(self, work: Callable[[Contents], _T], *, writes: bool = False) -> _T:
        """Return the result of reading or changing rows in a transaction, which may be repeated."""
        try:
            return self._run_on_file(work, writes)
        except sqlite.FileUnavailableError as error:
            self._use_memory(error)
            return self._run_once(work, writes)

    def _run_on_file(self, work: Callable[[Contents], _T], writes: bool = False) -> _T:
        """Return the result of a transaction, for which it waits and sets a damaged file aside. Raises FileUnavailableError."""
        deadline, changed_at, pause, is_set_aside = time.monotonic() + PATIENCE_SECONDS, 0, 0.001, False
        while True:
            try:
                try:
                    return self._run_once(work, writes)
                except sqlite.DamagedFileError as damage:
                    if is_set_aside:
                        raise
                    self._set_aside(damage)
                    is_set_aside = True
            except sqlite.LockedError as error:
                before = changed_at
                with contextlib.suppress(OSError):
                    changed_at = os.stat(self._path).st_mtime_ns
                if changed_at != before:  # the lock passes from process to process
                    deadline = time.monotonic() + PATIENCE_SECONDS
                elif time.monotonic() >= deadline:
                    raise sqlite.FileUnavailableError("it stays locked") from error
                time.sleep(random.uniform(0.0, pause))
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _run_once(self, work: Callable[[Contents], _T], writes: bool) -> _T:
        if self.is_blank and not writes:
            return work(Contents())
        with _sqlite_lock, sqlite.translated_errors(), self._connection(writes) as connection, connection:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            if not sqlite.has_table(connection):
                if not writes:
                    return work(Contents())
                sqlite.create_table(connection)
            return work(Contents(connection))

    @contextlib.contextmanager
    def _connection(self, writes: bool) -> Iterator[sqlite3.Connection]:
        if self.memory_reason:
            if self._memory is None:
                self._memory = sqlite.connect("")
                weakref.finalize(self, self._memory.close)
            yield self._memory
            return
        if writes:
            try:
                make_private_folder(os.path.dirname(self._path))
            except OSError as error:
                raise sqlite.FileUnavailableError(str(error)) from error
        mode = "ro" if self._read_only else "rwc" if writes else "rw"
        with contextlib.closing(sqlite.connect(self._path, mode)) as connection:
            if writes:
                # Removed rows are overwritten, so that no damage brings one back. A change is on the disk when it returns.
                for setting in ("journal_mode = DELETE", "secure_delete = ON", "synchronous = EXTRA"):
                    connection.execute(f"PRAGMA {setting}")
            yield connection

    def _use_memory(self, error: sqlite.FileUnavailableError) -> None:
        """Copy the rows of a file that can be read to memory, and use that from now on."""
        with _sqlite_lock:
            if self.memory_reason:  # another thread did so
                return
            rows = _rows_of_file(self._path)
            self.memory_reason = str(error)
            self._run_once(lambda contents: contents.put_rows(rows), True)
        warn(f"{self._path} cannot be used: {error}. New choices stay in memory until this process ends")

    def _set_aside(self, damage: sqlite.DamagedFileError) -> None:
        """Copy a damaged or old file and empty it, unless another process did so meanwhile.

        The file stays the one that other processes have open, so that SQLite's locks and journal hold for all of them. Raises
        ForeignFileError if the file is no store, and the given error for a file that is open for reading alone.
        """
        with _sqlite_lock, sqlite.translated_errors():
            if not sqlite.was_store(self._path):
                raise sqlite.ForeignFileError
            if self._read_only:
                raise damage
            with open(self._path, "rb+") as stream:
                # SQLite itself locks no file with a damaged header. The lock ends with the connection.
                fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, *_ALL_LOCKS)
                with contextlib.closing(sqlite.connect(self._path, "nolock")) as connection:
                    with contextlib.suppress(sqlite.DamagedFileError):
                        _intact_rows(connection)
                        return
                    aside = f"{self._path}.aside-{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
                    replace_file(aside, stream.read())
                    shutil.copymode(self._path, aside)
                    stream.truncate(0)
        name = os.path.basename(aside)
        warn(f"{self._path} cannot be used: {damage.reason}. It is set aside as {name}, and a new store begins")


def _intact_rows(connection: sqlite3.Connection) -> list[Row]:
    """Return all rows of a file. Raises DamagedFileError if any part of it is damaged."""
    with sqlite.translated_errors():
        if not sqlite.has_table(connection):
            return []
        if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise sqlite.DamagedFileError
        return Contents(connection).every_row()


def _rows_of_file(path: str) -> list[Row]:
    """Return the rows of a file that can be read; none of a damaged one, or after an unfinished change of a killed process."""
    with (
        contextlib.suppress(sqlite.FileUnavailableError, sqlite.LockedError),
        sqlite.translated_errors(),
        contextlib.closing(sqlite.connect(path, "ro")) as connection,
    ):
        return _intact_rows(connection)
    return []
