"""The report of `cudnnpy tune`: a table with a row for each entry of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._planning.choice import Choice
from cudnnpy.cli import text_table
from cudnnpy.cli.text_table import Line
from cudnnpy.tuning.store.entry import Entry


class ReportRow(NamedTuple):
    """One entry, and its candidates with a role; None for an unknown candidate."""

    entry: Entry
    default: Choice | None  #: the first verified candidate of the ranking, which prefer="fastest" takes

    @property
    def text(self) -> str:
        """The problem with the options that its choice depends on."""
        return self.entry.text

    @property
    def name(self) -> str:
        """The name of the choice."""
        return self.entry.choice.name

    @property
    def over_default(self) -> float | None:
        """The time of the choice, relative to the time of the default choice."""
        return _ratio(self.entry.choice.milliseconds, self.default)

    @property
    def measured(self) -> list[Choice]:
        """The candidates that were measured."""
        return [candidate for candidate in self.entry.candidates if candidate.milliseconds is not None]


def row_of(entry: Entry) -> ReportRow:
    """Return the row of an entry."""
    verified = [one for one in entry.candidates if one.milliseconds is not None and not one.rejection_reason]
    return ReportRow(entry, next(iter(verified), None))


def _ratio(milliseconds: float | None, other: Choice | None) -> float | None:
    if milliseconds is None or other is None or not other.milliseconds:
        return None
    return milliseconds / other.milliseconds


def _gpu_text(entry: Entry) -> str:
    """Return the GPU and the release of cuDNN that an entry is for: "NVIDIA H200, cuDNN 9.19.0"."""
    return f"{entry.key.gpu}, cuDNN {raw.version_text(entry.key.cudnn)}"


# The table


def table(rows: Sequence[ReportRow], columns: int | None = None) -> Iterator[Line]:
    """Return the lines of the table, wrapped to some number of columns if it is given. Several GPUs have a column."""
    with_gpu = len({_gpu_text(row.entry) for row in rows}) > 1
    with_ratio = any(row.over_default is not None for row in rows)
    titles = ["problem", *["gpu"] * with_gpu, "choice", "ms", *["over default"] * with_ratio, "workspace"]
    cells = [titles, *(_cells(row, with_gpu, with_ratio) for row in rows)]
    return text_table.table(cells, columns, indent="", numeric=2 + with_ratio)


def _cells(row: ReportRow, with_gpu: bool, with_ratio: bool) -> list[str]:
    entry = row.entry
    milliseconds = "planned" if entry.choice.milliseconds is None else f"{entry.choice.milliseconds:.4f}"
    ratio = "" if row.over_default is None else f"{row.over_default:.3f}"
    gpu = [_gpu_text(entry)] * with_gpu
    return [row.text, *gpu, row.name, milliseconds, *[ratio] * with_ratio, bytes_text(entry.choice.workspace_size or 0)]


def legend(rows: Sequence[ReportRow]) -> list[str]:
    """Return the lines that explain the columns of the table."""
    lines = []
    if any(row.over_default is not None for row in rows):
        lines.append(
            "over default: the time of the choice over the time of the default choice, which needs no measuring"
        )
    if any(row.entry.choice.milliseconds is None for row in rows):
        lines.append("planned: chosen without measuring")
    return lines


def summary(rows: Sequence[ReportRow]) -> str:
    """Return one line with the number of problems and the gain over the default choices."""
    ratios = [row.over_default for row in rows if row.over_default]
    count = f"{len(rows)} problem{'s' * (len(rows) != 1)}"
    planned = sum(row.entry.choice.milliseconds is None for row in rows)
    count += f", {planned} planned without measuring" if planned else ""
    if not ratios:
        return count
    mean = geometric_mean(ratios)
    times = [
        (row.entry.choice.milliseconds or 0.0, row.default.milliseconds or 0.0)
        for row in rows
        if row.default is not None
    ]
    chosen, first = (sum(column) for column in zip(*times, strict=True))
    return (
        f"{count}; over the default choice: {mean:.3f} in the geometric mean, {chosen:.4g} ms of {first:.4g} ms in all"
    )
