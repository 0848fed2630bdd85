"""The SQLite file of a store: its one table, how it is recognized, and how it writes."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from functools import cache
from pathlib import Path

from cudnnpy._store.faults import Damaged, Foreign, Unusable

APPLICATION = 0x63754E50  # "cuNP", by which SQLite's header names whose file it is
LAYOUT = 1  # of the table; what is in its rows has a number of its own, entry.SCHEMA
NAME = "cudnnpy_rows"
_TABLE = (
    f"CREATE TABLE {NAME} (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, schema INTEGER NOT NULL, "
    "content TEXT NOT NULL, checksum TEXT NOT NULL)"
)
# The write-ahead log needs memory that all processes share, which only file systems of one machine have.
_LOCAL = {
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "bcachefs",
    "jfs",
    "tmpfs",
    "ramfs",
    "overlay",
    "squashfs",
}


def has_table(connection: sqlite3.Connection) -> bool:
    """Return whether the file has its table; False for an empty file. Raises Damaged, Foreign or Unusable for others."""
    (application,), (layout,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    if not found and not application and not layout:
        return False
    if found.get(NAME) != _TABLE:
        if application == APPLICATION and layout > LAYOUT:
            raise Unusable("it was made by a newer release of cudnnpy")
        raise Foreign
    if (application, layout) != (APPLICATION, LAYOUT):
        raise Damaged
    return True


def create(connection: sqlite3.Connection) -> None:
    """Make the table, within a transaction."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute(_TABLE)


def prepare_writing(connection: sqlite3.Connection, path: Path) -> None:
    """Set how a connection writes, before its transaction.

    What was removed is overwritten, so that it is not found again in a damaged file. Setting the journal fails while others
    read; the journal that the file has serves as well.
    """
    connection.execute("PRAGMA secure_delete = ON")
    wanted = "wal" if is_local(path) else "delete"
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal != wanted:
        with contextlib.suppress(sqlite3.OperationalError):
            (journal,) = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
    # The log is intact after a loss of power without waiting for the disk; the other journal is not.
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'wal' else 'FULL'}")


@cache
def is_local(path: Path) -> bool:
    """Return whether a path is on a file system of this machine alone."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    place = os.path.realpath(path)
    found = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]).rstrip("/")
        if f"{place}/".startswith(f"{mount}/") and len(mount) >= len(found[0]):
            found = mount, after.split()[0]
    return found[1] in _LOCAL
