"""Connect to the database of a store: the definition of its table, and SQLite's errors as errors of this package.

SQLite is imported with the first connection, since this takes a while.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    import sqlite3

TABLE_NAME = "cudnnpy_rows"
APPLICATION_ID = 0x63754E50  # "cuNP", which SQLite's header has for the application that owns the file
_MAGIC, _APPLICATION_ID_OFFSET = b"SQLite format 3\0", 68  # in SQLite's header
TABLE_VERSION = 2  # SQLite's user_version. A file with an earlier one is set aside
DEFINITION = (
    f"CREATE TABLE {TABLE_NAME} (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, schema INTEGER NOT NULL, "
    "content TEXT NOT NULL, checksum TEXT NOT NULL)"
)
_BUSY_SECONDS = 0.05  # how long SQLite waits for a lock, while this process cannot fork


class FileUnavailableError(Exception):
    """A file cannot be used. The text is the reason."""


class DamagedFileError(FileUnavailableError):
    """A file has to be set aside: it is damaged, or has an earlier format of its table."""

    def __init__(self, reason: str = "it is damaged") -> None:
        super().__init__(f"{reason} and cannot be replaced")
        self.reason = reason


class ForeignFileError(FileUnavailableError):
    """A file is not a store."""

    def __init__(self) -> None:
        super().__init__("it is now a file of another kind")


class LockedError(Exception):
    """Another process locks a file."""


def connect(path: str, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection to a file in a mode of SQLite's. "" is a database in memory.

    "ro" changes nothing. "rw" undoes the change of a killed process, and reads a file that cannot be written. "nolock" takes no
    locks.
    """
    import sqlite3

    option = "nolock=1" if mode == "nolock" else f"mode={mode}"
    uri = f"file://{quote(os.fsencode(path))}?{option}" if path else ":memory:"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of SQLite, and of the file system when a file is set aside, as the errors of this package."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        extended = getattr(error, "sqlite_errorcode", 0)  # 0 for an error of Python's module
        code = extended & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise LockedError from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DamagedFileError from error
        is_unfinished = extended == sqlite3.SQLITE_READONLY_ROLLBACK
        reason = "a killed process left a change in it, which only a writer can undo" if is_unfinished else str(error)
        raise FileUnavailableError(reason) from error
    except BlockingIOError as error:
        raise LockedError from error
    except OSError as error:
        raise DamagedFileError from error


def was_store(path: str) -> bool:
    """Return whether the header of a file that SQLite cannot use names a store.

    An empty file is a store, since another process may have emptied it meanwhile.
    """
    with open(path, "rb") as stream:
        header = stream.read(_APPLICATION_ID_OFFSET + 4)
    application = header[_APPLICATION_ID_OFFSET:]
    return not header or (header.startswith(_MAGIC) and application == APPLICATION_ID.to_bytes(4, "big"))


def has_table(connection: sqlite3.Connection) -> bool:
    """Return whether a database has the table; False for an empty one.

    Raises DamagedFileError, FileUnavailableError for a newer version, or ForeignFileError. A database with a
    trigger is not a store, since a trigger would run in this process. Other tables, indexes and views do no harm.
    """
    (application,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if application == APPLICATION_ID and version > TABLE_VERSION:
        raise FileUnavailableError("it was made by a newer release of cudnnpy")
    objects = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if any(kind == "trigger" for kind, *_ in objects):
        raise ForeignFileError
    if objects and application == APPLICATION_ID and version < TABLE_VERSION:
        raise DamagedFileError("it was made by an older release of cudnnpy")
    if ("table", TABLE_NAME, DEFINITION) in objects:
        return True
    if objects or application not in (0, APPLICATION_ID):
        raise ForeignFileError
    if application == APPLICATION_ID:
        raise DamagedFileError  # the definition of its table is lost
    return False


def create_table(connection: sqlite3.Connection) -> None:
    """Make the table, within a transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {TABLE_VERSION}")
    connection.execute(DEFINITION)
