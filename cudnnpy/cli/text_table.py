"""Print a command's text: messages, and tables wrapped to the width of the terminal, in colours where rich is installed."""

from __future__ import annotations

import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cudnnpy._checks.option_values import printable
from cudnnpy._checks.size_limits import MAX_PRINTED_CHARACTERS
from cudnnpy._process.cuda_state import without_python_advice
from cudnnpy._process.installation import with_extra

_MIN_WIDTH, _MAX_WIDTH = 60, 200  # columns
_PIPE_WIDTH = 80  # columns
_GAP = "  "
_MIN_COLUMN = 10  # characters


class Line(NamedTuple):
    """A line, and the style in which rich shows it."""

    text: str
    style: str = ""


def width() -> int:
    """Return the number of columns to fill: the terminal's, $COLUMNS, or 80 in a pipe."""
    return max(_MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns))


def terminal_width() -> int | None:
    """Return the number of columns to fill on a terminal; None elsewhere, where a row is one line of any length."""
    return width() if sys.stdout is not None and sys.stdout.isatty() else None


def show(lines: Iterable[Line]) -> None:
    """Print lines on standard output, in colours on a terminal if rich is installed."""
    if sys.stdout is not None and sys.stdout.isatty() and has_rich():
        _print_by_rich(lines)
        return
    for line in lines:
        print(printable(line.text))


def html(lines: Iterable[Line]) -> str:
    """Return lines as a page of HTML, which rich writes."""
    page: str = _print_by_rich(lines, record=True, file=io.StringIO()).export_html(inline_styles=True)
    return page


def has_rich() -> bool:
    """Return whether rich is installed."""
    try:
        import rich.console  # noqa: F401
    except ImportError:
        return False
    return True


def check_rich(option: str) -> None:
    """Raise ImportError, which says how to install it, without rich."""
    if not has_rich():
        raise ImportError(f"{option} needs rich: pip install {with_extra('cli')}")


def _print_by_rich(lines: Iterable[Line], **options: Any) -> Any:
    """Print lines on a console with these options, and return it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True, **options)
    for line in lines:
        console.print(Text(printable(line.text), line.style))
    return console


def printed(text: str) -> str:
    """Return a text with control characters as escapes and long lines shortened, as the command prints it."""
    text = without_python_advice(text)
    lines = (line[:MAX_PRINTED_CHARACTERS] + "..." * (len(line) > MAX_PRINTED_CHARACTERS) for line in text.split("\n"))
    return printable("\n".join(lines))


def say(command: str, message: str | Exception, status: int = 0) -> int:
    """Print a message of a command on standard error, an exception in one line, and return the exit status."""
    text = message if isinstance(message, str) else " ".join(str(message).split()) or "out of memory"
    print(printed(f"{command}: {text}"), file=sys.stderr, flush=True)
    return status


def show_progress(text: str) -> None:
    """Replace the last line of standard error by a text, if it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def wrapped(text: str, columns: int) -> list[str]:
    """Return a text as lines of at most so many columns."""
    return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]


def _shortened(text: str, columns: int) -> list[str]:
    """Return a text as one line of at most so many columns."""
    return [text if len(text) <= columns else f"{text[: columns - 3]}..."]


def labelled(rows: Sequence[tuple[str, str]], columns: int | None = None) -> Iterator[Line]:
    """Yield labels and their texts, which are wrapped to some number of columns if it is given."""
    indent = max(len(label) for label, _ in rows) + len(_GAP)
    for label, text in rows:
        for number, part in enumerate([text] if columns is None else wrapped(text, columns - indent)):
            yield Line(f"{'' if number else label:{indent}}{part}".rstrip())


def table(
    cells: Sequence[Sequence[str]],
    columns: int | None = None,
    *,
    marked: int | None = None,
    indent: str = "  ",
    numeric: int = 0,
    wraps: bool = True,
) -> Iterator[Line]:
    """Yield the lines of a table whose first row is the header.

    Cells are wrapped if the table is wider than `columns`, or without `wraps` shortened, so that each row is one line.
    The last `numeric` columns are aligned to the right.
    The row with the index `marked`, the first below the header being 0, begins with an asterisk.
    """
    room = None if columns is None else columns - len(indent) - len(_GAP) * (len(cells[0]) - 1)
    widths = _widths(cells, room)
    for number, row in enumerate(cells, -1):
        fit = wrapped if wraps else _shortened
        parts = [fit(text, size) for text, size in zip(row, widths, strict=True)]
        for index in range(max(map(len, parts))):
            texts = [part[index] if index < len(part) else "" for part in parts]
            line = _GAP.join(
                text.rjust(size) if place >= len(widths) - numeric else text.ljust(size)
                for place, (text, size) in enumerate(zip(texts, widths, strict=True))
            )
            mark = "*".ljust(len(indent)) if number == marked and not index else indent
            yield Line(f"{mark}{line}".rstrip(), "green" if number == marked else "")


def _widths(cells: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Return the widths of the columns of a table: the widths of the longest cells, reduced where the room is too small.

    The widest columns are reduced first; the first one, which names the row, stays twice as wide as the others.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while room is not None and sum(widths) > room:
        reducible = [index for index, size in enumerate(widths) if size > _MIN_COLUMN]
        if not reducible:
            break
        widths[max(reducible, key=lambda index: widths[index] / (1 if index else 2))] -= 1
    return [max(size, 1) for size in widths]
