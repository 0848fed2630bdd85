"""Write and read exports: the entries and faults of a store as lines of JSON, with equal bytes for equal content.

    {"entries": 2, "faults": 1, "format": 3, "kind": "cudnnpy store"}
    {"checksum": "6f...", "entry": {...}}
    {"checksum": "a0...", "entry": {...}}
    {"checksum": "3c...", "fault": {...}}

The checksum is the SHA-256 of the JSON text of the entry or fault in the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cudnnpy._checks.size_limits import MAX_EXPORT_HEADER_CHARACTERS, MAX_EXPORT_LINE_CHARACTERS
from cudnnpy._core.atomic_file import replace_file
from cudnnpy._core.caller_warning import warn
from cudnnpy.tuning.store.entry import Entry, Fault, canonical_json, digest_of

FORMAT = 3
KIND = "cudnnpy store"
_NAMES: dict[type, str] = {Entry: "entry", Fault: "fault"}  # names of the contents of a line


class Export(NamedTuple):
    """The entries and faults of an export."""

    entries: list[Entry]
    faults: list[Fault]


def write(path: Path, entries: Iterable[Entry], faults: Iterable[Fault] = ()) -> int:
    """Write an export atomically. Return the number of entries. Raises OSError."""
    contents: list[Entry | Fault] = [*sorted(entries, key=lambda entry: entry.key), *sorted(faults)]
    count = sum(isinstance(content, Entry) for content in contents)
    header = {"kind": KIND, "format": FORMAT, "entries": count, "faults": len(contents) - count}
    lines = [canonical_json(header)]
    for content in contents:
        text = canonical_json(content.plain())
        lines.append(f'{{"checksum":"{digest_of(text)}","{_NAMES[type(content)]}":{text}}}')
    replace_file(path, "".join(f"{line}\n" for line in lines).encode("ascii"))
    return count


def read(path: Path) -> Export:
    """Return the content of an export; of two entries for one key, the last. Lines that are damaged give one warning.

    Raises ValueError for a file that is not an export, or one of another format. Raises OSError. A line that is too long counts
    as damaged.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        count = _count(stream.readline(MAX_EXPORT_HEADER_CHARACTERS), path)
        lines = [_content(line) for line in iter(partial(stream.readline, MAX_EXPORT_LINE_CHARACTERS), "")]
    entries = [content for content in lines if isinstance(content, Entry)]
    faults = [content for content in lines if isinstance(content, Fault)]
    damaged = max(len(lines), count) - len(entries) - len(faults)
    if damaged:
        warn(f"{path} has {damaged} damaged or missing lines, which are left out; its other lines are used")
    return Export([*{entry.key: entry for entry in entries}.values()], faults)


def is_export(path: Path) -> bool:
    """Return whether a file begins with the first line of an export, of any format."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return _header(stream.readline(MAX_EXPORT_HEADER_CHARACTERS)) is not None
    except OSError:
        return False


def _header(line: str) -> dict[str, Any] | None:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("kind") == KIND else None


def _count(line: str, path: Path) -> int:
    """Return the number of entries and faults that a header announces."""
    header = _header(line)
    if header is None:
        raise ValueError(f"path must be an export of a store, as --save writes it; got {path}, another file")
    if header.get("format") != FORMAT:
        raise ValueError(
            f"path must be an export of format {FORMAT}; got format {header.get('format')!r} in {path}. Tune again and export "
            "the choices, or import it with the release of cudnnpy that wrote it"
        )
    counts = header.get("entries"), header.get("faults")
    return sum(count for count in counts if type(count) is int)


def _content(line: str) -> Entry | Fault | None:
    """Return the entry or fault of a line; None if the line is damaged."""
    try:
        parts = json.loads(line)
        content_type: type[Entry | Fault] = Fault if "fault" in parts else Entry
        plain = parts[_NAMES[content_type]]
        return content_type.of(plain) if digest_of(canonical_json(plain)) == parts["checksum"] else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
