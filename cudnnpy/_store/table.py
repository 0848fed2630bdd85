"""The one table of a store: rows with checksums, their access within a transaction, and the definition in SQLite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnnpy._process_state import fork_safe_lock
from cudnnpy._store.entry import SCHEMA, digest_of
from cudnnpy._store.file_errors import CorruptFileError, FileUnavailableError, ForeignFileError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x63754E50  # "cuNP", which SQLite's header has for the application that owns the file
TABLE_VERSION = 1  # SQLite's user_version. The content of rows has a version of its own, entry.SCHEMA
TABLE_NAME = "cudnnpy_rows"
_COLUMNS = "number, kind, schema, content, checksum"
_DEFINITION = (
    f"CREATE TABLE {TABLE_NAME} (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, schema INTEGER NOT NULL, "
    "content TEXT NOT NULL, checksum TEXT NOT NULL)"
)
_SQLITE_MAGIC, _APPLICATION_ID_OFFSET = b"SQLite format 3\0", 68  # in SQLite's header
_ENTRY_START = b'entry{"candidates":'  # the kind and the content of a row, which SQLite stores side by side

# Held during each transaction and each fork of this process. SQLite has locks within a process, too: a child that was forked
# while another thread held one would wait for it without end.
sqlite_lock = fork_safe_lock()


class Row(NamedTuple):
    """A row: its number, kind and content, with the version of the content and a checksum."""

    number: int  # 63 bits of a digest that identifies the row
    kind: str
    schema: int
    content: str
    checksum: str

    @property
    def is_intact(self) -> bool:
        """Whether the checksum holds."""
        return self.checksum == _checksum(self.number, self.kind, self.schema, self.content)


def make_row(number: int, kind: str, content: str) -> Row:
    """Return a row of the present schema."""
    return Row(number, kind, SCHEMA, content, _checksum(number, kind, SCHEMA, content))


def row_from_columns(values: Iterable[Any]) -> Row:
    """Return the row of five values of a file. Values of the wrong type give a row that is not intact."""
    number, kind, schema, content, checksum = values
    return Row(
        number if isinstance(number, int) else -1,
        str(kind),
        schema if isinstance(schema, int) else -1,
        str(content),
        str(checksum),
    )


def _checksum(number: int, kind: str, schema: int, content: str) -> str:
    return digest_of(f"{number}\n{kind}\n{schema}\n{content}")


class Table:
    """The rows of a store within one transaction. Without a connection there are none.

    Methods raise CorruptFileError for a row whose checksum does not hold.
    """

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        self._connection = connection

    def get(self, number: int) -> Row | None:
        """Return the row of a number; None if there is none."""
        rows = self._select("WHERE number = ?", number)
        return rows[0] if rows else None

    def all(self, kind: str) -> list[Row]:
        """Return the rows of a kind, in the order of their numbers."""
        return self._select("WHERE kind = ? ORDER BY number", kind)

    def put(self, row: Row) -> None:
        """Add a row. It replaces the row of the same number."""
        assert self._connection is not None
        self._connection.execute(f"INSERT OR REPLACE INTO {TABLE_NAME} VALUES (?, ?, ?, ?, ?)", row)

    def remove(self, number: int) -> None:
        """Remove the row of a number, if there is one."""
        assert self._connection is not None
        self._connection.execute(f"DELETE FROM {TABLE_NAME} WHERE number = ?", [number])

    def _select(self, where: str, value: int | str) -> list[Row]:
        if self._connection is None:
            return []
        cursor = self._connection.execute(f"SELECT {_COLUMNS} FROM {TABLE_NAME} {where}", [value])
        rows = [*map(row_from_columns, cursor)]
        if not all(row.is_intact for row in rows):
            raise CorruptFileError
        return rows


def has_table(connection: sqlite3.Connection) -> bool:
    """Return whether a database has the table; False for an empty one.

    Raises CorruptFileError, FileUnavailableError for a newer version, or ForeignFileError. A database with anything beside
    the table, such as a trigger, is not a store.
    """
    (application,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if application == APPLICATION_ID and version > TABLE_VERSION:
        raise FileUnavailableError("it was made by a newer release of cudnnpy")
    objects = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if objects == [("table", TABLE_NAME, _DEFINITION)]:
        return True
    if objects or application not in (0, APPLICATION_ID):
        raise ForeignFileError
    if application == APPLICATION_ID:
        raise CorruptFileError  # the definition of its table is lost
    return False


def create_table(connection: sqlite3.Connection) -> None:
    """Make the table, within a transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {TABLE_VERSION}")
    connection.execute(_DEFINITION)


def select_all(connection: sqlite3.Connection, order: str) -> sqlite3.Cursor:
    """Return a cursor over the columns of all rows, in the order of their numbers: "ASC" or "DESC"."""
    return connection.execute(f"SELECT {_COLUMNS} FROM {TABLE_NAME} ORDER BY number {order}")


def was_store(content: bytes) -> bool:
    """Return whether a file that SQLite cannot open was a store: by its header, its table, or an entry.

    A file of zeros counts as one, too. A loss of power may leave it, and it has no content to protect.
    """
    application = content[_APPLICATION_ID_OFFSET : _APPLICATION_ID_OFFSET + 4]
    has_header = content.startswith(_SQLITE_MAGIC) and application == APPLICATION_ID.to_bytes(4, "big")
    return has_header or _DEFINITION.encode() in content or _ENTRY_START in content or not any(content)
