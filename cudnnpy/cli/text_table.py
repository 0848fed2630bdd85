"""Text for people: messages, and lines wrapped to the width of the terminal, in colours where rich is installed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cudnnpy._options.checks import printable
from cudnnpy._options.limits import MAX_PRINTED_CHARACTERS

_NARROWEST, _WIDEST = 60, 200
_IN_A_PIPE = 100  # columns
_GAP = "  "
_LEAST = 10  # the narrowest that a column becomes


class Line(NamedTuple):
    """A line, and the style in which rich shows it."""

    text: str
    style: str = ""


def width() -> int:
    """Return the number of columns to fill: the terminal's, $COLUMNS, or 100 in a pipe."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_IN_A_PIPE, 24)).columns))


def show(lines: Iterable[Line]) -> None:
    """Print lines on standard output, in colours on a terminal if rich is installed."""
    if sys.stdout is not None and sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            console = Console(highlight=False, markup=False, soft_wrap=True)
            for line in lines:
                console.print(Text(printable(line.text), line.style))
            return
    for line in lines:
        print(printable(line.text))


def printed(text: str) -> str:
    """Return a text as the command prints it: control characters as escapes, and of a long line its beginning."""
    lines = (line[:MAX_PRINTED_CHARACTERS] + "..." * (len(line) > MAX_PRINTED_CHARACTERS) for line in text.split("\n"))
    return printable("\n".join(lines))


def say(command: str, said: str | Exception, status: int = 0) -> int:
    """Print a message or an error, this in one line, of a command on standard error, and return the exit status."""
    text = said if isinstance(said, str) else " ".join(str(said).split()) or "out of memory"
    print(printed(f"{command}: {text}"), file=sys.stderr, flush=True)
    return status


def wrapped(text: str, columns: int) -> list[str]:
    """Return a text as lines of at most so many columns."""
    return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]


def table(cells: Sequence[Sequence[str]], columns: int, marked: int | None = None) -> Iterator[Line]:
    """Yield the lines of a table whose first row is the header. Cells are wrapped where the columns are too many.

    The row with the number `marked`, the first below the header being 0, begins with an asterisk.
    """
    widths = _widths(cells, columns - len(_GAP) * len(cells[0]))
    for number, cell in enumerate(cells, -1):
        parts = [wrapped(text, size) for text, size in zip(cell, widths, strict=True)]
        for at in range(max(map(len, parts))):
            texts = [part[at] if at < len(part) else "" for part in parts]
            line = _GAP.join(text.ljust(size) for text, size in zip(texts, widths, strict=True))
            mark = "* " if number == marked and not at else "  "
            yield Line(f"{mark}{line}".rstrip(), "green" if number == marked else "")


def _widths(cells: Sequence[Sequence[str]], columns: int) -> list[int]:
    """Return the widths of the columns of a table: the longest cells', or less for the widest ones if they do not fit.

    The first column, which names the row, is left twice as wide as the others.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) > columns and (wide := [at for at, size in enumerate(widths) if size > _LEAST]):
        widths[max(wide, key=lambda at: widths[at] / (1 if at else 2))] -= 1
    return [max(size, 1) for size in widths]
