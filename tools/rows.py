"""Rows in a file: one JSON object a line, appended as they are measured, so that a run may be killed and continued."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any


class FileError(ValueError):
    """The file is not one of the tool that reads it."""


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none if it does not exist. An incomplete last line is ignored. Raises FileError."""
    found = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1] if file.exists() else [], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise FileError(
                f"{file}, line {number}: a row must be a JSON object; got {line[:60].decode(errors='replace')!r}"
            )
        found.append(row)
    return found


class Writer:
    """Appends rows to a file; each is on disk when `add` returns. Threads may share a writer."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._lock = file.open("a+b"), Lock()
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)  # an incomplete last line

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        with self._lock:
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
