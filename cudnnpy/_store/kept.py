"""Rows in a file as long as the file can be used, and in memory from then on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cudnnpy._store.faults import Foreign, Locked, Unusable, warn
from cudnnpy._store.rows import Change, Row, turn

if TYPE_CHECKING:
    from cudnnpy._store.file import File

_T = TypeVar("_T")


class Kept:
    """The rows of a file; or given rows, without a file.

    A file that fails is left as it is: one warning tells of it, and what can be read of it goes on in memory. Raises Foreign
    if the file is not of this package at first.
    """

    reason: str  # why changes are kept in memory; "" if they are not

    def __init__(self, path: str = "", *, read_only: bool = False, rows: Iterable[Row] = ()) -> None:
        self.reason = "" if path else "it has no file"
        self._path, self._rows = path, rows
        self._file: File | None = None  # made where it is needed, since SQLite takes a while to import
        self._read_only = read_only
        if path and os.path.exists(path):
            self._file = file = _file(path, read_only=read_only)
            try:
                file.check()
            except Foreign:
                raise
            except Unusable as error:
                self._use_memory(file, error)
            except Locked:  # it may be of another kind, which the first use finds
                pass

    @property
    def is_blank(self) -> bool:
        """Whether there are no rows, as far as is known without reading any."""
        if self._file is None:
            return self._rows == () and not (self._path and os.path.exists(self._path))
        return bool(self._file.path) and not os.path.exists(self._file.path)

    def read(self, number: int, *, waits: bool = False) -> Row | None:
        """Return the row of a number; None if there is none. Raises Locked, unless it waits for the file."""
        return self.read_several(number, waits=waits).get(number)

    def read_several(self, *numbers: int, waits: bool = False) -> dict[int, Row]:
        """Return those rows of some numbers that there are, by their numbers. Raises as `read` does."""
        return {} if self.is_blank else self._run(lambda file: file.read_several(*numbers, waits=waits))

    def all(self, kind: str) -> list[Row]:
        """Return the rows of a kind, in the order of their numbers."""
        return [] if self.is_blank else self._run(lambda file: file.all(kind))

    def change(self, changes: Sequence[Change], removed: Sequence[Row] = ()) -> list[Row | None]:
        """Remove rows, then add others. Return the row that stands for each change; None for one that is forbidden."""
        return self._run(lambda file: file.change(changes, removed))

    def _run(self, work: Callable[[File], _T]) -> _T:
        with turn:
            if self._file is None:
                self._file = _file(self._path, read_only=self._read_only, rows=self._rows)
            file = self._file
        try:
            return work(file)
        except Unusable as error:
            return work(self._use_memory(file, error))

    def _use_memory(self, file: File, error: Unusable) -> File:
        """Put what can be read of a file into memory, and use that in its place."""
        with turn:
            if self._file is not file and self._file is not None:  # another thread was faster
                return self._file
            self._file, self.reason = _file(rows=file.readable()), str(error)
            memory = self._file
        warn(f"{self._path} cannot keep choices: {error}. New ones are kept in the memory of this process alone")
        return memory


def _file(path: str = "", *, read_only: bool = False, rows: Iterable[Row] = ()) -> File:
    from cudnnpy._store.file import File

    return File(path, read_only=read_only, rows=rows)
