"""Replace a damaged or old file of a store: set a copy aside, and keep the rows that SQLite can still read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime

from cudnnpy._store import sqlite
from cudnnpy._store.contents import ENTRY, INSERT_ROW, SELECT_ROWS, Row

_SQLITE_MAGIC, _APPLICATION_ID_OFFSET = b"SQLite format 3\0", 68  # in SQLite's header
_ENTRY_START = b'entry{"candidates":'  # the kind and the content of a row, which SQLite stores side by side
_HEAD_BYTES = 1 << 20  # of a file are read to find whether it was a store
# The number and the first of the bytes that SQLite locks: all of them, and those that it locks while it reads
_ALL_LOCKS, _READERS_LOCK = (512, 0x40000000), (510, 0x40000002)


def set_aside(path: str) -> str:
    """Copy a damaged or old file, and replace its content by the readable rows. Return a text about it for people.

    Returns "" if another process repaired it first. The file stays the one that other processes have open, so that SQLite's
    locks and journal hold for all of them.
    """
    with open(path, "rb+") as stream:
        # SQLite itself locks no file with a damaged header.
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, *_ALL_LOCKS)
        with closing(sqlite.connect(path, "nolock")) as connection:
            state = "damaged"
            try:
                rows, is_intact = _readable_rows(connection)
            except sqlite.OldFileError:
                rows, is_intact, state = [], False, "old"
            if is_intact:
                return ""
            aside = f"{path}.{state}-{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
            try:
                with open(aside, "xb") as copy:
                    shutil.copyfileobj(stream, copy)
                shutil.copymode(path, aside)
                if rows:
                    with closing(sqlite.connect("")) as fresh:
                        fill(fresh, rows)
                        fresh.backup(connection)
                else:
                    stream.truncate(0)
            except (OSError, sqlite3.Error) as error:
                with contextlib.suppress(OSError):
                    os.unlink(aside)
                raise sqlite.CorruptFileError from error
    name, count = os.path.basename(aside), sum(row.kind == ENTRY for row in rows)
    if state == "old":
        return f"was made by an older release of cudnnpy. It is set aside as {name}, and a new store begins"
    return f"was damaged. It is set aside as {name}, and its {count} readable entries stay"


def rows_of_file(path: str) -> list[Row]:
    """Return the rows that can still be read of a file that cannot be used otherwise. The file is not changed.

    The unfinished change of a killed process is undone in a copy.
    """
    mode = "ro"
    with (
        contextlib.suppress(sqlite.FileUnavailableError, sqlite.LockedError),
        sqlite.translated_errors(),
        contextlib.ExitStack() as stack,
    ):
        if os.path.exists(f"{path}-journal"):
            stream = stack.enter_context(open(path, "rb"))
            fcntl.lockf(stream, fcntl.LOCK_SH | fcntl.LOCK_NB, *_READERS_LOCK)  # so that no process changes the two
            copy = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "store")
            shutil.copyfile(path, copy)
            shutil.copyfile(f"{path}-journal", f"{copy}-journal")
            path, mode = copy, "rw"
        return _readable_rows(stack.enter_context(closing(sqlite.connect(path, mode))))[0]
    return []


def fill(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Make the table with rows in an empty database."""
    sqlite.create_table(connection)
    connection.executemany(INSERT_ROW, rows)


def was_store(path: str) -> bool:
    """Return whether a file that SQLite cannot open was a store: by its header, or by a table or entry among other bytes.

    An empty file is one, since another process may have emptied it meanwhile.
    """
    with open(path, "rb") as stream:
        head = stream.read(_HEAD_BYTES)
    application = head[_APPLICATION_ID_OFFSET : _APPLICATION_ID_OFFSET + 4]
    has_header = head.startswith(_SQLITE_MAGIC) and application == sqlite.APPLICATION_ID.to_bytes(4, "big")
    if has_header or not head:
        return True
    return b"\0" in head and (sqlite.DEFINITION.encode() in head or _ENTRY_START in head)  # a text has no zeros


def _readable_rows(connection: sqlite3.Connection) -> tuple[list[Row], bool]:
    """Return the intact rows that SQLite reads, and whether the file is intact.

    SQLite ends at a damaged page, so that it reads from both ends. Raises ForeignFileError, OldFileError, or
    FileUnavailableError for a newer version.
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
