"""Print a command's text: messages, and tables of choices, which fill the width of the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import printable
from cudnnpy._checks.size_limits import MAX_PRINTED_CHARACTERS
from cudnnpy._planning.choice import Choice
from cudnnpy._process.cuda_state import without_python_advice

_MIN_WIDTH = 60  # columns
_GAP = "  "
_MIN_COLUMN = 4  # characters, on average


def width() -> int | None:
    """Return the number of columns to fill: $COLUMNS, or the terminal's; None elsewhere, where a line has any length."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return max(_MIN_WIDTH, columns) if columns else None


def printed(text: str) -> str:
    """Return a text with control characters as escapes and long lines shortened, as the command prints it."""
    text = without_python_advice(text)
    lines = (line[:MAX_PRINTED_CHARACTERS] + "..." * (len(line) > MAX_PRINTED_CHARACTERS) for line in text.split("\n"))
    return printable("\n".join(lines))


def show(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    for line in lines:
        print(printable(line))


def say(command: str, message: str | Exception, status: int = 0) -> int:
    """Print a message of a command on standard error, an exception in one line, in place of a progress; return the status."""
    text = message if isinstance(message, str) else " ".join(str(message).split()) or "out of memory"
    show_progress("")
    print(printed(f"{command}: {text}"), file=sys.stderr, flush=True)
    return status


def show_progress(text: str) -> None:
    """Replace the last line of standard error by a text, if it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def wrapped(text: str, columns: int | None) -> list[str]:
    """Return a text as lines of at most so many columns; as one line if it is None."""
    return [text] if columns is None else textwrap.wrap(text, columns, break_on_hyphens=False) or [""]


def labelled(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield labels and their texts, which are wrapped to the width of the terminal."""
    columns, indent = width(), max(len(label) for label, _ in rows) + len(_GAP)
    for label, text in rows:
        for number, part in enumerate(wrapped(text, columns and columns - indent)):
            yield f"{'' if number else label:{indent}}{part}".rstrip()


def choice_cells(choice: Choice | None) -> dict[str, str]:
    """Return the cells of a choice in a table by the titles of their columns. None is a problem without a choice."""
    if choice is None:
        return {"choice": "none", "workspace": "-", "ms": "-", "error": "-"}
    return {
        "choice": choice.name,
        "workspace": "?" if choice.workspace_size is None else bytes_text(choice.workspace_size),
        "ms": "-" if choice.milliseconds is None else f"{choice.milliseconds:#.4g}",
        "error": "-" if choice.error is None else f"{choice.error:.2g}",
    }


def table(rows: Sequence[Mapping[str, str]], *, shortens: bool = False) -> Iterator[str]:
    """Yield the lines of a table of at least one row, without empty columns. The keys of the rows are the titles.

    Cells are wrapped if the table is wider than the terminal, or with `shortens` shortened, so that each row is one line.
    """
    titles = [title for title in rows[0] if any(row[title] not in ("", "-") for row in rows)]
    cells = [titles, *([row[title] for title in titles] for row in rows)]
    widths = _widths(cells, (width() or sys.maxsize) - len(_GAP) * (len(titles) - 1))
    for row in cells:
        if shortens:
            row = [
                text if len(text) <= size else f"{text[: size - 3]}..." for text, size in zip(row, widths, strict=True)
            ]
        parts = [wrapped(text, size) for text, size in zip(row, widths, strict=True)]
        for index in range(max(map(len, parts))):
            texts = [part[index] if index < len(part) else "" for part in parts]
            yield _GAP.join(text.ljust(size) for text, size in zip(texts, widths, strict=True)).rstrip()


def _widths(cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of the columns of a table: the widths of the longest cells, reduced where the room is too small.

    The widest columns are reduced first; the first one, which names the row, stays twice as wide as the others.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) > max(room, _MIN_COLUMN * len(widths)):
        widths[max(range(len(widths)), key=lambda index: widths[index] / (1 if index else 2))] -= 1
    return widths
