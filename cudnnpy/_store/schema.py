"""The SQLite database of a store: connections to it, its one table, and how it is recognized."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote

from cudnnpy._store.faults import Damaged, Foreign, Unusable

APPLICATION = 0x63754E50  # "cuNP", by which SQLite's header names whose file it is
LAYOUT = 1  # of the table; what is in its rows has a number of its own, entry.SCHEMA
NAME = "cudnnpy_rows"
COLUMNS = "number, kind, schema, content, checksum"
_TABLE = (
    f"CREATE TABLE {NAME} (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, schema INTEGER NOT NULL, "
    "content TEXT NOT NULL, checksum TEXT NOT NULL)"
)
_FIRST_BYTES, _APPLICATION_AT = b"SQLite format 3\0", 68  # in SQLite's header
_ENTRY = b'entry{"candidates":'  # the kind and the content of a row, which SQLite stores side by side
_WAIT_SECONDS = 0.05  # for a lock


def connect(path: str, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection to a file, which is opened for reading if it cannot be written. "" is a database in memory."""
    uri = f"file://{quote(os.fsencode(path))}?mode={mode}" if path else ":memory:"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def has_table(connection: sqlite3.Connection) -> bool:
    """Return whether the file has its table; False for an empty file. Raises Damaged, Foreign or Unusable for others.

    A file with anything beside the table, such as a trigger, is not of this package.
    """
    (application,), (layout,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if application == APPLICATION and layout > LAYOUT:
        raise Unusable("it was made by a newer release of cudnnpy")
    found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if found not in ([], [("table", NAME, _TABLE)]) or (not found and application not in (0, APPLICATION)):
        raise Foreign
    if (application, layout) != ((APPLICATION, LAYOUT) if found else (0, 0)):
        raise Damaged
    return bool(found)


def create(connection: sqlite3.Connection) -> None:
    """Make the table, within a transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute(_TABLE)


def is_of_a_store(content: bytes) -> bool:
    """Return whether a damaged file was a store: by its header, its table or an entry, or because it has zeros alone.

    A loss of power may leave a file of zeros, which has nothing of anybody.
    """
    number = content[_APPLICATION_AT : _APPLICATION_AT + 4]
    is_named = content.startswith(_FIRST_BYTES) and number == APPLICATION.to_bytes(4, "big")
    return is_named or _TABLE.encode() in content or _ENTRY in content or not any(content)
