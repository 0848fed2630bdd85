"""The file of a store: a header, then a record a line. Lines are appended under a lock, and the last one of an id counts.

    {"format":4,"kind":"cudnnpy store"}
    {"checksum":"6f...","id":"entry 1c...","record":{...}}
    {"checksum":"a0...","id":"fault 9e...","record":{...}}

The checksum is the SHA-256 of the line behind it. The record null removes an earlier one. The header of an export has the
number of its records. The intact lines of the file are in memory, and are parsed when they are asked for.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, BinaryIO, TypeAlias, TypeVar

from cudnnpy._checks.size_limits import MAX_STORE_HEADER_BYTES, MAX_STORE_LINE_BYTES
from cudnnpy._core.atomic_file import make_private_folder, replace_file
from cudnnpy._core.caller_warning import warn
from cudnnpy._core.untrusted_json import parse_json
from cudnnpy._process.module_state import fork_safe_lock
from cudnnpy.tuning.store.entry import canonical_json

FORMAT = 4
KIND = "cudnnpy store"
PATIENCE_SECONDS = 30.0  # how long a change waits for the lock
_MAX_PAUSE_SECONDS = 0.01  # between two attempts to lock
_BUFFER_BYTES = 1 << 20
_SPARE_LINES = 100  # a file is rewritten when its other lines are more than the current ones, and more than these

# The parts of a line
ID_CHARACTERS = 70
_GROUP_CHARACTERS = 5  # with which the ids of records of one kind begin: "entry", "fault"
_CONTENT, _ID, _GROUP = slice(79, -1), slice(85, 85 + ID_CHARACTERS), slice(85, 85 + _GROUP_CHARACTERS)
_REMOVAL = b'"record":null}\n'

_T = TypeVar("_T")
_Groups: TypeAlias = defaultdict[bytes, dict[bytes, bytes]]  # lines by the kinds of their records, and by their ids
_lock = fork_safe_lock()  # held while a file is read or changed: no child is forked with a file that is locked


class ForeignFileError(ValueError):
    """A file is not a store that this release reads. The text says what it is, and what to do."""


class LineFile:
    """The records of a file, which the first change makes; those of memory without a path, or once the file fails.

    A file that fails is left as it is, with one warning, and its records continue in memory. Raises ForeignFileError if the
    file is not a store at first, and OSError if it is to be read alone and cannot be.
    """

    memory_reason: str  # why changes stay in memory; "" if they do not
    announced: int | None  # the number of records that the header of an export has

    def __init__(self, path: str = "", *, read_only: bool = False) -> None:
        self._path, self.memory_reason = path, "" if path else "it has no file"
        self._has_warned = False  # of damaged lines
        self._clear()
        try:
            self._updated()
        except OSError as error:
            if read_only:
                raise
            self._use_memory(str(error))

    def _clear(self) -> None:
        self._lines: _Groups = defaultdict(dict)  # the current lines
        self._count = self._damaged = 0  # all lines, and the damaged ones
        self._end, self._last = 0, b""  # where the last whole line ends, and this line
        self._seen: tuple[int, ...] = ()  # the state of the file up to there
        self.announced = None

    # Reading

    def get(self, identifier: str) -> Any:
        """Return the record of an id as JSON; None if there is none."""
        name = identifier.encode()
        return _record(self._current()[name[:_GROUP_CHARACTERS]].get(name))

    def records(self, start: str) -> list[Any]:
        """Return the records whose ids begin with some characters."""
        first = start.encode()
        lines = self._current()[first[:_GROUP_CHARACTERS]]
        return [_record(line) for identifier, line in list(lines.items()) if identifier.startswith(first)]

    def export(self) -> bytes:
        """Return the content of an export: the same bytes for the same records."""
        lines = sorted(_every_line(self._current()), key=lambda line: line[_ID])
        return b"".join([_header(records=len(lines)), *lines])

    def count(self, kind: str) -> int:
        """Return how many records of a kind there are."""
        return len(self._current()[kind.encode()])

    def _current(self) -> _Groups:
        try:
            return self._updated()
        except (OSError, ForeignFileError) as error:
            self._use_memory(str(error))
        return self._lines

    def _updated(self) -> _Groups:
        """Read the lines that the file has got since the last reading, and return the current lines."""
        with _lock:
            try:
                if not self.memory_reason and _state(os.stat(self._path)) != self._seen:
                    with open(self._path, "rb", buffering=_BUFFER_BYTES) as stream:
                        self._read(stream)
            except FileNotFoundError:
                self._clear()
            return self._lines

    def _read(self, stream: BinaryIO) -> None:
        """Read the lines that were added, or all of them if the file is another one."""
        state = _state(os.fstat(stream.fileno()))
        stream.seek(self._end - len(self._last))
        if state[:2] != self._seen[:2] or stream.read(len(self._last)) != self._last:
            self._clear()
            stream.seek(0)
        if not self._end:
            header = stream.readline(MAX_STORE_HEADER_BYTES)
            self.announced = _announced(header) if header else None
            self._end, self._last = len(header), header
        for line in stream:
            if not line.endswith(b"\n"):
                break  # it is being written, or a killed process left it: the next change cuts it off
            self._add(line)
        self._seen = state
        damaged = self._damaged + max((self.announced or 0) - self._count, 0)
        if damaged and not self._has_warned:
            self._has_warned = True
            warn(f"{self._path} has {damaged} damaged or missing lines, which are left out; its other lines are used")

    def _add(self, line: bytes) -> None:
        """Note a line, which is behind the last one."""
        if len(line) > MAX_STORE_LINE_BYTES or not line.startswith(_start(memoryview(line)[_CONTENT])):
            self._damaged += 1
        elif line.endswith(_REMOVAL):
            self._lines[line[_GROUP]].pop(line[_ID], None)
        else:
            self._lines[line[_GROUP]][line[_ID]] = line
        self._count, self._end, self._last = self._count + 1, self._end + len(line), line

    # Changing

    def change(self, work: Callable[[dict[str, Any]], _T]) -> _T:
        """Return the result of a function, which reads, and notes new records by their ids, while no other process writes.

        The records are on the disk when this returns. The function may be called again.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with _lock, nullcontext() if self.memory_reason else _opened(self._path) as stream:
                    if stream is not None:
                        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if not _is_at(self._path, stream):  # another process has removed or rewritten it
                            continue
                        self._read(stream)
                    records: dict[str, Any] = {}
                    result = work(records)
                    self._append(stream, [_line(*item) for item in records.items()])
                    return result
            except BlockingIOError:
                if time.monotonic() >= until:
                    self._use_memory("it stays locked")
                time.sleep(random.uniform(0.0, _MAX_PAUSE_SECONDS))
            except (OSError, ForeignFileError) as error:
                self._use_memory(str(error))

    def _append(self, stream: BinaryIO | None, lines: list[bytes]) -> None:
        """Append lines to the locked file, or to memory. Raises OSError, after which the file has none of them."""
        if stream is None:
            for line in lines:
                self._add(line)
            return
        if lines:
            self._write(stream.fileno(), b"".join([b"" if self._end else _header(), *lines]))
            self._updated()
        if self._count > 2 * sum(map(len, self._lines.values())) + _SPARE_LINES:
            with suppress(OSError):  # such as in a folder that is read only
                replace_file(self._path, b"".join([_header(), *_every_line(self._lines)]))

    def _write(self, file: int, data: bytes) -> None:
        try:
            os.ftruncate(file, self._end)
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self._end)
            raise

    def _use_memory(self, reason: str) -> None:
        """Keep the records in memory from now on."""
        with _lock:
            if self.memory_reason:  # another thread did so
                return
            self.memory_reason = reason
        warn(f"{self._path} cannot be used: {reason}. New choices stay in memory until this process ends")


def _every_line(groups: _Groups) -> list[bytes]:
    return [line for lines in list(groups.values()) for line in list(lines.values())]


def _opened(path: str) -> BinaryIO:
    """Open a file to read and append, which is made if there is none. Raises OSError."""
    make_private_folder(os.path.dirname(path))
    return open(path, "ab+", buffering=_BUFFER_BYTES, opener=partial(os.open, mode=0o644))


def _is_at(path: str, stream: BinaryIO) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(stream.fileno()))
    return False


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _line(identifier: str, record: Any) -> bytes:
    content = f'"id":"{identifier}","record":{canonical_json(record)}}}'.encode("ascii")
    return _start(content) + content + b"\n"


def _start(content: bytes | memoryview) -> bytes:
    return b'{"checksum":"%s",' % hashlib.sha256(content).hexdigest().encode()


def _record(line: bytes | None) -> Any:
    """Return the record of a line; None without one, or if another program wrote something else."""
    try:
        return None if line is None else parse_json(f"{{{line[_CONTENT].decode()}").get("record")
    except ValueError:
        return None


def _header(**fields: int) -> bytes:
    return canonical_json({"kind": KIND, "format": FORMAT, **fields}).encode() + b"\n"


def _announced(header: bytes) -> int | None:
    """Return the number of records that the header of an export has; None of another store. Raises ForeignFileError."""
    if header.startswith(b"SQLite format 3\0"):
        raise ForeignFileError(
            "an SQLite file, as earlier releases of cudnnpy have it. Name another file, and tune again or export the choices "
            "with that release"
        )
    try:
        fields = parse_json(header.decode()) if header.endswith(b"\n") else None
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.get("kind") != KIND:
        raise ForeignFileError("a file of another kind. Name another file")
    if fields.get("format") != FORMAT:
        raise ForeignFileError(
            f"a store of format {fields.get('format')!r}, not {FORMAT}. Name another file, and tune again, or use it with the "
            "release of cudnnpy that wrote it"
        )
    records = fields.get("records")
    return records if type(records) is int else None
