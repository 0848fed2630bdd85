"""Rows: what a store consists of, each with a checksum; and the lock of all that use SQLite."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cudnnpy._store.entry import SCHEMA, digest_of

ENTRY, FORGOTTEN, CHECKED, FAULT = "entry", "forgotten", "checked", "fault"  # kinds of rows

# Held while SQLite works, and during a fork: SQLite has locks of its own for all of a process, which a child that was forked
# while another thread held one would wait for without end.
turn = threading.RLock()
os.register_at_fork(before=turn.acquire, after_in_parent=turn.release, after_in_child=turn.release)


class Row(NamedTuple):
    """A text with what it is, and a checksum over these."""

    number: int  # 63 bits of the digest of what identifies it
    kind: str
    schema: int
    content: str
    checksum: str

    @property
    def is_whole(self) -> bool:
        """Whether the checksum is that of the content."""
        return self.checksum == _checksum(self.number, self.kind, self.schema, self.content)


def number_of(kind: str, *identity: str) -> int:
    """Return the number of the row of this kind and identity."""
    return int(digest_of("\n".join((kind, *identity)))[:16], 16) >> 1


def row_of(number: int, kind: str, content: str) -> Row:
    """Return a row of the present schema."""
    return Row(number, kind, SCHEMA, content, _checksum(number, kind, SCHEMA, content))


def row_from(values: Iterable[Any]) -> Row:
    """Return the row of five values of a file, which may be damaged; then it is not whole."""
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


class Change(NamedTuple):
    """A row that is to be added, whether it replaces the one that stands, and the number of a row that forbids it."""

    row: Row
    beats: Callable[[Row], bool] = lambda standing: True
    unless: int = -1
