"""A picture cut into tiles that a 3x3 convolution can take one at a time, so that memory does not grow with it."""

from __future__ import annotations

from dataclasses import dataclass

HALO = 1  # neighbours that a result needs on each side
LONGEST = 1 << 14  # pixels in a row of a tile; wider pictures are cut into columns too


@dataclass(frozen=True)
class Span:
    """A part of one axis: what is read, and the part of it for which the convolution of `read` alone is right.

    Where a span ends inside the axis, the results at its end lack neighbours and belong to the next span.
    """

    read: slice
    result: slice

    @property
    def inner(self) -> slice:
        """`result`, counted from the start of `read`."""
        return slice(self.result.start - self.read.start, self.result.stop - self.read.start)


@dataclass(frozen=True)
class Tile:
    """A part of a picture."""

    rows: Span
    columns: Span


def spans(size: int, longest: int) -> list[Span]:
    """Cut an axis into spans whose results follow each other; all read the same number of elements, at most `longest`.

    `longest` is raised to 3 if it is less: a shorter span has no result.
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
    """Cut a picture into tiles of one shape, from left to right and top to bottom, each of about `area` pixels at most.

    A picture of `area` pixels or fewer (and no longer than LONGEST) is one tile.
    """
    columns = spans(width, LONGEST)
    rows = spans(height, area // min(width, LONGEST))
    return [Tile(down, across) for down in rows for across in columns]
