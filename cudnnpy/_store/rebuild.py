"""Copy a damaged file, and replace its content by the rows that SQLite still reads.

The file itself stays the one that other processes have open, so that SQLite's locks and journal hold for all of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cudnnpy._store.faults import Damaged, Foreign
from cudnnpy._store.rows import ENTRY, Row, row_from
from cudnnpy._store.schema import COLUMNS, NAME, connect, create, has_table, is_of_a_store

DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Rebuilt(NamedTuple):
    """What was done with a damaged file."""

    aside: str  # the path of its copy
    kept: int  # entries


def rebuild(path: str, *, read_only: bool) -> Rebuilt | None:
    """Replace the content of a damaged file; None if it is not damaged any more.

    Raises BlockingIOError or an sqlite3.Error while others use the file, Foreign if it is not of this package, and Damaged
    or another OSError if it cannot be replaced.
    """
    if not is_of_a_store(Path(path).read_bytes()):
        raise Foreign
    if read_only:
        raise Damaged
    with open(path, "rb+") as stream:  # closed last, since that ends SQLite's locks of this process
        # SQLite locks no file whose header is damaged. Of the processes that find one, a single one replaces it.
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with closing(connect(path)) as connection:
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # until the connection is closed
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.DatabaseError as error:
                if code_of(error) not in DAMAGE:
                    raise
                return _replace(path, stream, [], None)  # nobody can begin a transaction in it
            rows, is_whole = readable(connection)
            return None if is_whole else _replace(path, stream, rows, connection)


def readable(connection: sqlite3.Connection) -> tuple[list[Row], bool]:
    """Return the rows that SQLite reads and that are whole, and whether nothing is damaged.

    Rows are read from the first to a damaged page, and from the last. Raises Foreign or Unusable if the file is not of this
    package, or of a newer release.
    """
    found: dict[int, Row] = {}
    is_whole = False
    with contextlib.suppress(sqlite3.DatabaseError, Damaged):
        if not has_table(connection):
            return [], True
        is_whole = connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    for order in ("ASC", "DESC"):
        try:
            for row in map(row_from, connection.execute(f"SELECT {COLUMNS} FROM {NAME} ORDER BY number {order}")):
                if row.is_whole:
                    found[row.number] = row
                else:
                    is_whole = False
        except sqlite3.DatabaseError:
            is_whole = False
    return [*found.values()], is_whole


def code_of(error: Exception) -> int:
    """Return SQLite's primary code of an error; 0 for an error of Python's module."""
    return sqlite3.SQLITE_CORRUPT if isinstance(error, Damaged) else int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _replace(path: str, stream: BinaryIO, rows: list[Row], connection: sqlite3.Connection | None) -> Rebuilt:
    """Copy a file, and put these rows in the place of all that it has; without a connection, cut it off."""
    aside = f"{path}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
    try:
        with open(aside, "xb") as copy:
            shutil.copyfileobj(stream, copy)
        shutil.copymode(path, aside)
        if connection is None:
            stream.truncate(0)
        else:
            with closing(connect("")) as fresh:
                create(fresh)
                fresh.executemany(f"INSERT INTO {NAME} VALUES (?, ?, ?, ?, ?)", rows)
                fresh.backup(connection)  # in one transaction
    except (OSError, sqlite3.Error) as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise Damaged from error
    return Rebuilt(aside, sum(row.kind == ENTRY for row in rows))
