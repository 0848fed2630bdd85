"""Tiles of a picture for a 3x3 convolution of one tile at a time, in memory that does not grow with the picture."""

from __future__ import annotations

from dataclasses import dataclass

HALO = 1  # neighbours on each side that a result depends on
LONGEST = 1 << 14  # largest number of pixels in a row of a tile; wider pictures are divided into columns too


@dataclass(frozen=True)
class Span:
    """A part of one axis: the elements that are read, and those whose results the convolution of `read` gives.

    Where a span ends inside the axis, the results at its end lack neighbours and belong to the next span.
    """

    read: slice
    result: slice

    @property
    def inner(self) -> slice:
        """`result` relative to the start of `read`."""
        return slice(self.result.start - self.read.start, self.result.stop - self.read.start)


@dataclass(frozen=True)
class Tile:
    """A part of a picture."""

    rows: Span
    columns: Span


def spans(size: int, longest: int) -> list[Span]:
    """Divide an axis into spans with consecutive results, which all read the same number of elements, at most `longest`.

    A `longest` below 3 is raised to 3, the length of the shortest span that has a result.
    """
    length = min(size, max(longest, 2 * HALO + 1))
    found = []
    done = 0
    while done < size:
        start = min(max(done - HALO, 0), size - length)
        end = start + length
        until = size if end == size else end - HALO
        found.append(Span(slice(start, end), slice(done, until)))
        done = until
    return found


def tiles(height: int, width: int, area: int) -> list[Tile]:
    """Divide a picture into tiles of one shape, each of at most about `area` pixels, left to right and top to bottom.

    A picture of at most `area` pixels whose rows have at most LONGEST pixels is one tile.
    """
    columns = spans(width, LONGEST)
    rows = spans(height, area // min(width, LONGEST))
    return [Tile(down, across) for down in rows for across in columns]
