"""Rows in a file as long as the file can be used, and in memory from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from cudnnpy._store.faults import Damaged, Foreign, Unusable, warn
from cudnnpy._store.rows import ENTRY, Change, Memory, Row, Rows

_T = TypeVar("_T")


class Kept:
    """The rows of a file, with those that could not be written to it; or given rows, without a file.

    Raises Foreign if the file is not of this package. Of everything else that is wrong with it, one warning tells.
    """

    memory: Memory  # the rows that could not be written to the file
    reason: str  # why changes are kept in memory; "" if they are not

    def __init__(self, path: Path | None = None, *, read_only: bool = False, rows: Iterable[Row] = ()) -> None:
        self.reason = "" if path is not None else "it has no file"
        self._path = path
        self._file: Rows | None = None
        self.memory = Memory(rows)
        if path is not None:
            self._open(path, read_only)

    def _open(self, path: Path, read_only: bool) -> None:
        from cudnnpy._store.file import File

        self._file = file = File(path, read_only=read_only)
        try:
            file.check()
        except Unusable as error:
            self._stop_reading(error)
        except Damaged:
            self._use_readable()

    def read(self, number: int) -> Row | None:
        """Return the row of a number; None if there is none."""
        row = self.memory.read(number)
        return row if row is not None else self._reading(lambda rows: rows.read(number), None)

    def all(self, kind: str) -> list[Row]:
        """Return the rows of a kind, in the order of their numbers."""
        nothing: list[Row] = []
        found = {row.number: row for row in self._reading(lambda rows: rows.all(kind), nothing)}
        found.update((row.number, row) for row in self.memory.all(kind))
        return [row for _, row in sorted(found.items())]

    def change(self, changes: Sequence[Change], removed: Sequence[Row] = ()) -> list[Row]:
        """Remove rows, then add others. Return the row that stands for each change."""
        if self._file is not None and not self.reason:
            try:
                return self._file.change(changes, removed)
            except Damaged:
                self._use_readable()
            except (Unusable, Foreign) as error:
                self._stop_writing(error)
        self.memory.change([], removed)
        return [self._changed_in_memory(change) for change in changes]

    def close(self) -> None:
        """Close what is open of the file."""
        if self._file is not None:
            self._file.close()

    def _changed_in_memory(self, change: Change) -> Row:
        found = self.read(change.row.number)
        return found if found is not None and not change.beats(found) else self.memory.change([change])[0]

    def _reading(self, work: Callable[[Rows], _T], otherwise: _T) -> _T:
        if self._file is None:
            return otherwise
        try:
            return work(self._file)
        except Damaged:
            return work(self._use_readable())
        except (Unusable, Foreign) as error:
            self._stop_reading(error)
            return otherwise

    def _stop_reading(self, error: Exception) -> None:
        self._file = None
        self._stop_writing(error)

    def _stop_writing(self, error: Exception) -> None:
        if not self.reason:
            self.reason = str(error) or "it is now a file of another kind"
            warn(
                f"{self._path} cannot keep choices: {self.reason}. New ones are kept in the memory of this process alone"
            )

    def _use_readable(self) -> Rows:
        """Use what can be read of a damaged file that cannot be replaced. Raises Foreign if it is of another kind."""
        from cudnnpy._store.rebuild import readable

        assert self._path is not None
        self.reason, rows = "it is damaged", list[Row]()
        with contextlib.suppress(OSError):
            rows = readable(self._path)
        self._file = Memory(rows)
        count = sum(row.kind == ENTRY for row in rows)
        warn(
            f"{self._path} is damaged and cannot be replaced. Its {count} readable entries are used; none is added to it"
        )
        return self._file
