"""Repair a damaged file of a store: set a copy aside, and keep the rows that SQLite can still read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from cudnnpy._store import sqlite
from cudnnpy._store.contents import ENTRY, INSERT_ROW, SELECT_ROWS, Row

_SQLITE_MAGIC, _APPLICATION_ID_OFFSET = b"SQLite format 3\0", 68  # in SQLite's header
_ENTRY_START = b'entry{"candidates":'  # the kind and the content of a row, which SQLite stores side by side


def set_aside(path: str, *, read_only: bool = False) -> tuple[str, int] | None:
    """Copy a damaged file, and replace its content by the readable rows. Return the copy's path and the number of entries.

    Returns None if another process repaired it first. The file stays the one that other processes have open, so that SQLite's
    locks and journal hold for all of them. Raises ForeignFileError if it was no store, and CorruptFileError if it is read only.
    """
    if not was_store(Path(path).read_bytes()):
        raise sqlite.ForeignFileError
    if read_only:
        raise sqlite.CorruptFileError
    with open(path, "rb+") as stream:  # closed after the connection, since this ends SQLite's locks
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # SQLite does not lock a file with a damaged header
        with closing(sqlite.connect(path)) as connection:
            is_locked = _lock_exclusively(connection)
            rows, is_intact = _readable_rows(connection) if is_locked else ([], False)
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
                raise sqlite.CorruptFileError from error
    return aside, sum(row.kind == ENTRY for row in rows)


def rows_of_file(path: str) -> list[Row]:
    """Return the rows that can still be read of a file that cannot be used otherwise."""
    with (
        contextlib.suppress(sqlite.FileUnavailableError, sqlite.LockedError),
        sqlite.translated_errors(),
        closing(sqlite.connect(path)) as connection,
    ):
        return _readable_rows(connection)[0]
    return []


def fill(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Make the table with rows in an empty database."""
    sqlite.create_table(connection)
    connection.executemany(INSERT_ROW, rows)


def was_store(content: bytes) -> bool:
    """Return whether a file that SQLite cannot open was a store: by its header, its table, or an entry.

    A file of zeros counts as one, too. A loss of power may leave it, and it has no content to protect.
    """
    application = content[_APPLICATION_ID_OFFSET : _APPLICATION_ID_OFFSET + 4]
    has_header = content.startswith(_SQLITE_MAGIC) and application == sqlite.APPLICATION_ID.to_bytes(4, "big")
    return has_header or sqlite.DEFINITION.encode() in content or _ENTRY_START in content or not any(content)


def _readable_rows(connection: sqlite3.Connection) -> tuple[list[Row], bool]:
    """Return the intact rows that SQLite reads, and whether the file is intact.

    SQLite ends at a damaged page, so that it reads from both ends. Raises ForeignFileError, or FileUnavailableError for a newer
    version.
    """
    rows: dict[int, Row] = {}
    is_intact = False
    with contextlib.suppress(sqlite3.DatabaseError, sqlite.CorruptFileError):
        if not sqlite.has_table(connection):
            return [], True
        is_intact = connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    for order in ("ASC", "DESC"):
        try:
            for row in map(Row._make, connection.execute(f"{SELECT_ROWS} ORDER BY number {order}")):
                if row.is_intact:
                    rows[row.number] = row
                else:
                    is_intact = False
        except sqlite3.DatabaseError:
            is_intact = False
    return [*rows.values()], is_intact


def _lock_exclusively(connection: sqlite3.Connection) -> bool:
    """Lock a file until the connection is closed. Return False if its header is damaged: SQLite does not lock it then."""
    try:
        with sqlite.translated_errors():
            for statement in ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "ROLLBACK"):
                connection.execute(statement)
    except sqlite.CorruptFileError:
        return False
    return True


def _replace_content(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Replace the content of a file by rows, in one transaction."""
    with closing(sqlite.connect("")) as fresh:
        fill(fresh, rows)
        fresh.backup(connection)
