"""Exports: the entries of a store as lines of JSON, the same bytes for the same entries.

    {"entries": 2, "format": 1, "kind": "cudnnpy store"}
    {"checksum": "6f...", "entry": {...}}
    {"checksum": "a0...", "entry": {...}}

The checksum is the SHA-256 of the entry's JSON as it stands in the line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cudnnpy._core.whole_file import replacing
from cudnnpy._options.limits import MAX_EXPORT_HEADER_CHARACTERS, MAX_EXPORT_LINE_CHARACTERS
from cudnnpy._store.entry import Entry, canonical, digest_of

FORMAT = 1
KIND = "cudnnpy store"


class Export(NamedTuple):
    """The entries of an export, and how many of its lines are damaged or missing."""

    entries: list[Entry]
    damaged: int


def write(path: Path, entries: Iterable[Entry]) -> int:
    """Write an export, whole or not at all. Return the number of entries. Raises OSError."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    with replacing(path) as partial, partial.open("x", encoding="ascii", newline="\n") as stream:
        for line in _lines(ordered):
            stream.write(f"{line}\n")
        stream.flush()
        os.fsync(stream.fileno())
    return len(ordered)


def read(path: Path, name: str = "path") -> Export:
    """Return the entries of an export; of two entries for one key, the last. A line that is too long is damaged.

    Raises ValueError for a file that is not an export, or one of another format. Raises OSError.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        count = _count(stream.readline(MAX_EXPORT_HEADER_CHARACTERS), path, name)
        lines, entries = 0, list[Entry]()
        for line in iter(partial(stream.readline, MAX_EXPORT_LINE_CHARACTERS), ""):
            lines += 1
            entries += filter(None, [_entry(line)])
    return Export([*{entry.key: entry for entry in entries}.values()], max(lines, count) - len(entries))


def is_export(path: Path) -> bool:
    """Return whether the first line of a file is that of an export of any format."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return _header(stream.readline(MAX_EXPORT_HEADER_CHARACTERS)) is not None
    except OSError:
        return False


def _lines(entries: list[Entry]) -> Iterator[str]:
    yield canonical({"kind": KIND, "format": FORMAT, "entries": len(entries)})
    for entry in entries:
        content = canonical(entry.plain())
        yield f'{{"checksum":"{digest_of(content)}","entry":{content}}}'


def _header(line: str) -> dict[str, Any] | None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("kind") == KIND else None


def _count(line: str, path: Path, name: str) -> int:
    """Return the number of entries that a header announces."""
    header = _header(line)
    if header is None:
        raise ValueError(f"{name} must be an export of a store, whose first line names it; got {path}, another file")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{name} must be an export of format {FORMAT}; got format {header.get('format')!r} in {path}. Export it again "
            "with this release of cudnnpy, or import it with the release that wrote it"
        )
    count = header.get("entries")
    return count if type(count) is int else 0


def _entry(line: str) -> Entry | None:
    """Return the entry of a line; None if the line is damaged."""
    try:
        parts = json.loads(line)
        content = canonical(parts["entry"])
        return Entry.of(parts["entry"]) if digest_of(content) == parts["checksum"] else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
