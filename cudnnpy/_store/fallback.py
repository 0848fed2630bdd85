"""Rows in an SQLite file, or in SQLite's memory once the file fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from cudnnpy._store.contents import Contents
from cudnnpy._store.file_errors import FileUnavailableError, ForeignFileError, LockedError, warn
from cudnnpy._store.table import Row, sqlite_lock

if TYPE_CHECKING:
    from cudnnpy._store.sqlite_file import SqliteRows

_T = TypeVar("_T")


class FallbackRows:
    """The rows of a file with an in-memory fallback; in memory from the start without a path.

    If the file fails, it is left as it is, with one warning, and the rows that can be read continue in memory. Raises
    ForeignFileError if the file is not a store at first.
    """

    memory_reason: str  # why changes stay in memory; "" if they do not

    def __init__(self, path: str = "", *, read_only: bool = False) -> None:
        self.memory_reason = "" if path else "it has no file"
        self._path, self._read_only = path, read_only
        self._backend: SqliteRows | None = None  # made at the first use, since importing SQLite takes a while
        if path and os.path.exists(path):
            try:
                self._open().run(lambda contents: None, waits=False)
            except ForeignFileError:
                raise
            except FileUnavailableError as error:
                self._use_memory(self._open(), error)
            except LockedError:  # the first use finds out whether it is a store
                pass

    @property
    def is_blank(self) -> bool:
        """Whether there are no rows, as far as is known without reading any."""
        if self._backend is None:
            return not (self._path and os.path.exists(self._path))
        return bool(self._backend.path) and not os.path.exists(self._backend.path)

    def read(self, work: Callable[[Contents], _T], *, waits: bool = True) -> _T:
        """Return the result of reading in a transaction. Raises LockedError after 50 ms, unless it waits for a lock."""
        return work(Contents()) if self.is_blank else self._run(work, waits=waits)

    def change(self, work: Callable[[Contents], _T]) -> _T:
        """Return the result of changing rows in a transaction."""
        return self._run(work, writes=True)

    def _run(self, work: Callable[[Contents], _T], *, writes: bool = False, waits: bool = True) -> _T:
        backend = self._open()
        try:
            return backend.run(work, writes=writes, waits=waits)
        except FileUnavailableError as error:
            return self._use_memory(backend, error).run(work, writes=writes)

    def _open(self) -> SqliteRows:
        with sqlite_lock:
            if self._backend is None:
                self._backend = _backend(self._path, read_only=self._read_only)
            return self._backend

    def _use_memory(self, failed: SqliteRows, error: FileUnavailableError) -> SqliteRows:
        """Copy the rows of a file that can be read to memory, and use that from now on."""
        with sqlite_lock:
            if self._backend is not None and self._backend is not failed:  # another thread did so
                return self._backend
            self._backend, self.memory_reason = _backend(rows=failed.read_intact_rows()), str(error)
            memory = self._backend
        warn(f"{self._path} cannot be used: {error}. New choices stay in memory until this process ends")
        return memory


def _backend(path: str = "", *, read_only: bool = False, rows: Iterable[Row] = ()) -> SqliteRows:
    from cudnnpy._store.sqlite_file import SqliteRows

    return SqliteRows(path, read_only=read_only, rows=rows)
