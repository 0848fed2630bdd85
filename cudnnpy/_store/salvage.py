"""Find the rows of a damaged SQLite file, page by page.

SQLite reads a table from its root, so that one damaged page hides all that lies below it. Here every page is looked at by
itself, whatever refers to it, and a row counts if its checksum is that of its content. The format is public:
the pages of a table's rows ("leaves"), with rows that are longer than a page continued on overflow pages, and the log of
pages that were not yet written back ("-wal").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cudnnpy._store.rows import Row, row_from

_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE = 4096  # of the files that this package makes, for a header that is damaged
_LEAF = 0x0D  # the first byte of a page with the rows of a table
_LONGEST = 64 << 20  # bytes of a row
_WAL_HEADER, _FRAME_HEADER = 32, 24
_SIZES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}  # bytes of a value, by its type

Pages = Mapping[int, bytes]  # by their number, from 1


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a file, and of the log beside it, that are whole. Of equal ones, the log's stands."""
    content = path.read_bytes()
    log = path.with_name(f"{path.name}-wal")
    found: dict[int, Row] = {}
    for pages in _views(content, log.read_bytes() if log.is_file() else b""):
        for row in _whole(pages):
            found[row.number] = _later(row, found.get(row.number, row))
    return sorted(found.values())


def is_named(path: Path, name: bytes, application: int) -> bool:
    """Return whether the header of a file has the number of an application, or the file or the log beside it a name."""
    beside = (path, path.with_name(f"{path.name}-wal"))
    contents = [file.read_bytes() for file in beside if file.is_file()]
    return any(
        name in content or (content.startswith(_MAGIC) and content[68:72] == application.to_bytes(4, "big"))
        for content in contents
    )


def _later(row: Row, other: Row) -> Row:
    """Return the row of the higher schema; of equal ones, the first."""
    return other if other.schema > row.schema else row


def _views(content: bytes, log: bytes) -> Iterator[Pages]:
    """Yield the pages of the file, then those with the log's put over them."""
    size = _page_size(content)
    pages = {number + 1: content[start : start + size] for number, start in enumerate(range(0, len(content), size))}
    yield pages
    frames = [*_frames(log, size)]
    for salts in dict.fromkeys((None, log[16:24])):  # those of an earlier log first
        changed = {number: page for number, page, salt in frames if salts in (None, salt)}
        if changed:
            yield {**pages, **changed}


def _page_size(content: bytes) -> int:
    size = int.from_bytes(content[16:18], "big")
    size = 65536 if size == 1 else size
    good = content.startswith(_MAGIC) and size >= 512 and not size & (size - 1)
    return size if good else _PAGE_SIZE


def _frames(log: bytes, size: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the content and the salts of each page in a log."""
    for start in range(_WAL_HEADER, len(log) - _FRAME_HEADER, _FRAME_HEADER + size):
        body = start + _FRAME_HEADER
        yield int.from_bytes(log[start : start + 4], "big"), log[body : body + size], log[start + 8 : start + 16]


def _whole(pages: Pages) -> Iterator[Row]:
    for number, page in pages.items():
        for start in _cells(page, 100 if number == 1 else 0):
            try:
                row = _row(pages, page, start)
            except (IndexError, ValueError):
                continue
            if row.is_whole:
                yield row


def _cells(page: bytes, header: int) -> Iterable[int]:
    """Return where the rows of a leaf start; nothing for another page."""
    if len(page) < header + 8 or page[header] != _LEAF:
        return []
    count = int.from_bytes(page[header + 3 : header + 5], "big")
    pointers = page[header + 8 : header + 8 + 2 * count]
    return [int.from_bytes(pointers[at : at + 2], "big") for at in range(0, len(pointers) - 1, 2)]


def _row(pages: Pages, page: bytes, start: int) -> Row:
    """Return the row that starts on a page. Raises IndexError or ValueError if there is none."""
    length, start = _varint(page, start)
    number, start = _varint(page, start)
    if not 0 < length <= _LONGEST:
        raise ValueError(f"length must be that of a row; got {length}")
    here = _local(length, len(page))
    payload = bytearray(page[start : start + here])
    following, seen = int.from_bytes(page[start + here : start + here + 4], "big"), set[int]()
    while len(payload) < length:
        if following not in pages or following in seen:
            raise ValueError(f"following must be another page; got {following}")
        seen.add(following)
        more = pages[following]
        payload += more[4 : 4 + length - len(payload)]
        following = int.from_bytes(more[:4], "big")
    _, *values = _values(bytes(payload))
    return row_from([number, *values])


def _local(length: int, usable: int) -> int:
    """Return how many bytes of a row of `length` are on the page of the row itself."""
    if length <= usable - 35:
        return length
    least = (usable - 12) * 32 // 255 - 23
    most = least + (length - least) % (usable - 4)
    return most if most <= usable - 35 else least


def _values(payload: bytes) -> list[object]:
    """Return the values of a row; None for a number with a fraction and for bytes."""
    header, at = _varint(payload, 0)
    body, values = header, list[object]()
    while at < header:
        kind, at = _varint(payload, at)
        size = _SIZES[kind] if kind in _SIZES else (kind - 12) // 2
        part = payload[body : body + size]
        body += size
        if kind in (8, 9):
            values.append(kind - 8)
        elif 1 <= kind <= 6:
            values.append(int.from_bytes(part, "big", signed=True))
        else:
            values.append(part.decode() if kind >= 13 and kind % 2 else None)
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 1 to 9 bytes, and where the next part starts."""
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9
