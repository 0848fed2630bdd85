"""Rows: what a store consists of, each with a checksum; and the rows of a store that is in memory alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from cudnnpy._store.entry import SCHEMA, digest_of

ENTRY, FORGOTTEN, CHECKED = "entry", "forgotten", "checked"  # kinds of rows


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
    """A row that is to be added, and whether it replaces the one that stands."""

    row: Row
    beats: Callable[[Row], bool]


class Rows(Protocol):
    """Where rows are kept. Every method is one transaction, and may be called by any thread."""

    def read(self, number: int) -> Row | None:
        """Return the row of a number; None if there is none."""

    def all(self, kind: str | None = None) -> list[Row]:
        """Return the rows of a kind, by default of all kinds, in the order of their numbers."""

    def change(self, changes: Iterable[Change], removed: Iterable[Row] = ()) -> list[Row]:
        """Remove rows as they are given, then add others. Return the row that stands for each change."""

    def close(self) -> None:
        """Close what is open; it is opened again where it is needed."""


class Memory:
    """Rows in the memory of this process."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {row.number: row for row in rows}
        self._lock, self._process = threading.Lock(), os.getpid()

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> Row | None:
        """Return the row of a number; None if there is none."""
        return self._rows.get(number)

    def all(self, kind: str | None = None) -> list[Row]:
        """Return the rows of a kind, by default of all kinds, in the order of their numbers."""
        with self._alone():
            return sorted(row for row in self._rows.values() if kind in (None, row.kind))

    def change(self, changes: Iterable[Change], removed: Iterable[Row] = ()) -> list[Row]:
        """Remove rows as they are given, then add others. Return the row that stands for each change."""
        with self._alone():
            for row in removed:
                if self._rows.get(row.number) == row:
                    del self._rows[row.number]
            return [self._standing(*change) for change in changes]

    def close(self) -> None:
        """Nothing is open."""

    def _standing(self, row: Row, beats: Callable[[Row], bool]) -> Row:
        standing = self._rows.get(row.number)
        if standing is None or beats(standing):
            self._rows[row.number] = standing = row
        return standing

    def _alone(self) -> threading.Lock:
        if self._process != os.getpid():  # forked, perhaps while another thread had the lock
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock
