"""Set a damaged file aside, and put one in its place that has the rows that can still be read."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cudnnpy._store import salvage
from cudnnpy._store.faults import Damaged, Foreign
from cudnnpy._store.rows import ENTRY, Row, row_from
from cudnnpy._store.schema import APPLICATION, LAYOUT, NAME, create, has_table

DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
BESIDE = ("-wal", "-shm", "-journal")  # the files that SQLite keeps beside one


class Rebuilt(NamedTuple):
    """What was done with a damaged file."""

    aside: Path  # its new name
    kept: int  # entries


def rebuild(path: Path) -> Rebuilt | None:
    """Replace a damaged file; None if it is not damaged. Nobody else may use it meanwhile.

    Raises Foreign if it is not a file of this package, and OSError or sqlite3.Error if it cannot be done.
    """
    fresh = path.with_name(f"{path.name}.new")
    # Before SQLite opens the file and cuts a damaged log off. A file that a killed process made has the rows of that log.
    rows = _united(salvage.rows_of(fresh) if fresh.exists() else [], readable(path))
    aside = _free(path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}"))
    try:
        for ending in ("", *BESIDE):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(f"{path}{ending}", f"{aside}{ending}")
        if not is_damaged(path):
            _remove(aside)
            return None
        _remove(fresh)
        _write(fresh, rows)
    except BaseException:
        _remove(aside)
        _remove(fresh)
        raise
    for ending in BESIDE:  # SQLite would apply an old log to the new file
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{ending}")
    os.replace(fresh, path)
    return Rebuilt(aside, sum(row.kind == ENTRY for row in rows))


def is_damaged(path: Path) -> bool:
    """Return whether anything in a file is damaged. Raises Foreign for a file that is not of this package."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            if not has_table(connection):
                return False
            if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                return True
            connection.execute("BEGIN")
            connection.execute(f"PRAGMA user_version = {LAYOUT}")  # fails if the header closes the file to changes
            connection.execute("ROLLBACK")
            rows = connection.execute(f"SELECT number, kind, schema, content, checksum FROM {NAME}")
            return not all(row_from(values).is_whole for values in rows)
    except Damaged:
        return True
    except sqlite3.DatabaseError as error:
        if code_of(error) in DAMAGE or is_closed_by_its_header(error, path):
            return True
        raise


def is_closed_by_its_header(error: sqlite3.Error | Damaged, path: Path) -> bool:
    """Return whether an error says that a file must not be written, though this process may write it."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK)


def code_of(error: sqlite3.Error | Damaged) -> int:
    """Return SQLite's primary code of an error; 0 for an error of Python's module.

    A damaged number of the format in the header has the code of errors in a statement, and is told by its message.
    """
    if isinstance(error, Damaged) or "unsupported file format" in str(error):
        return sqlite3.SQLITE_CORRUPT
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def readable(path: Path) -> list[Row]:
    """Return the rows of a damaged file that are whole. Raises Foreign if nothing in it is of this package."""
    rows = salvage.rows_of(path)
    if not rows and not salvage.is_named(path, NAME.encode(), APPLICATION) and any(path.read_bytes()):
        raise Foreign  # a file of zeros, which a loss of power may leave, holds nothing of anybody
    return rows


def _united(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return all rows; of two with the same number, the other."""
    return [*({row.number: row for row in rows} | {row.number: row for row in others}).values()]


def _write(path: Path, rows: list[Row]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        create(connection)
        connection.executemany(f"INSERT INTO {NAME} VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")


def _free(path: Path) -> Path:
    """Return a name that no file has."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _remove(path: Path) -> None:
    for ending in ("", *BESIDE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}{ending}")
