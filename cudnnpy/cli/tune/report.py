"""The report of `cudnnpy tune`: a row for each entry of the store, as a table, as CSV, and as plots.

The plots need matplotlib, which the extra `plots` installs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnnpy import raw
from cudnnpy._installation import with_extra
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._store.entry import Entry, Measured
from cudnnpy.cli import text_table
from cudnnpy.cli.text_table import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("problem", "choice", "ms", "over heuristics", "workspace")
_CSV = (
    "problem",
    "gpu",
    "capability",
    "multiprocessors",
    "cudnn",
    "choice",
    "milliseconds",
    "over_heuristics",
    "over_first_guess",
    "workspace_bytes",
    "spread",
    "error",
    "measured",
    "complete",
    "tune_seconds",
    "made_at",
)
# The colour and the legend of each source of candidates. Other sources are the measurement table.
_SOURCES = {
    "measured": ("tab:green", "measured for a near problem"),
    "heuristics": ("tab:blue", "heuristics"),
    "engines": ("tab:gray", "every engine"),
    "knobs": ("tab:purple", "other knobs"),
    "legacy": ("tab:orange", "v7 functions"),
}


class ReportRow(NamedTuple):
    """One entry, and its candidates with a role; None for an unknown candidate."""

    entry: Entry
    choice: Measured | None  #: the chosen candidate
    default: Measured | None  #: the first verified candidate of the ranking, which prefer="fastest" takes
    heuristics: Measured | None  #: the first verified proposal of cuDNN's heuristics

    @property
    def text(self) -> str:
        """The problem with the options that its choice depends on."""
        return self.entry.text

    @property
    def name(self) -> str:
        """The name of the choice."""
        return _plan_name(self.entry) if self.choice is None else self.choice.name

    @property
    def over_heuristics(self) -> float | None:
        """The time of the choice, relative to the time of the heuristics' first choice."""
        return _ratio(self.entry.milliseconds, self.heuristics)

    @property
    def over_default(self) -> float | None:
        """The time of the choice, relative to the time of the default choice."""
        return _ratio(self.entry.milliseconds, self.default)

    @property
    def measured(self) -> list[Measured]:
        """The candidates that were measured."""
        return [candidate for candidate in self.entry.candidates if candidate.milliseconds is not None]

    def roles(self, candidate: Measured) -> str:
        """The roles of a candidate: "choice", "first guess", "heuristics' choice", or several of them."""
        named = {"choice": self.choice, "first guess": self.default, "heuristics' choice": self.heuristics}
        return ", ".join(role for role, other in named.items() if other is candidate)


def row_of(entry: Entry) -> ReportRow:
    """Return the row of an entry."""
    verified = [one for one in entry.candidates if one.milliseconds is not None and not one.refused]
    heuristics = next((candidate for candidate in verified if candidate.source == "heuristics"), None)
    return ReportRow(entry, _choice(entry), next(iter(verified), None), heuristics)


def _choice(entry: Entry) -> Measured | None:
    """Return the candidate that an entry chooses. The name in a plan lacks the suffix of the lowering."""
    name = _plan_name(entry)
    matches = [
        candidate
        for candidate in entry.candidates
        if not candidate.refused
        and f"{candidate.name} ".startswith(f"{name} ")
        and (candidate.milliseconds, candidate.workspace_size) == (entry.milliseconds, entry.workspace_size)
    ]
    return min(matches, key=lambda candidate: len(candidate.name), default=None)


def _plan_name(entry: Entry) -> str:
    try:
        return str(json.loads(entry.plan)["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def _ratio(milliseconds: float | None, other: Measured | None) -> float | None:
    if milliseconds is None or other is None or not other.milliseconds:
        return None
    return milliseconds / other.milliseconds


def gpus(rows: Iterable[ReportRow]) -> list[str]:
    """Return the kinds of GPU with the release of cuDNN that rows are for, each once."""
    return list(dict.fromkeys(gpu_text(row.entry) for row in rows))


def gpu_text(entry: Entry) -> str:
    """Return the GPU and the release of cuDNN that an entry is for: "NVIDIA H200, cuDNN 9.19.0"."""
    return f"{entry.key.gpu}, cuDNN {raw.version_text(entry.key.cudnn)}"


# The table


def table(rows: Sequence[ReportRow], columns: int | None = None) -> Iterator[Line]:
    """Return the lines of the table, wrapped to some number of columns if it is given. Several GPUs have a column."""
    with_gpu = len(gpus(rows)) > 1
    titles = (*_COLUMNS[:1], "gpu", *_COLUMNS[1:]) if with_gpu else _COLUMNS
    return text_table.table([titles, *(_cells(row, with_gpu) for row in rows)], columns, indent="", numeric=3)


def _cells(row: ReportRow, with_gpu: bool) -> tuple[str, ...]:
    entry = row.entry
    gpu = (gpu_text(entry),) if with_gpu else ()
    milliseconds = "" if entry.milliseconds is None else f"{entry.milliseconds:.4f}"
    ratio = "" if row.over_heuristics is None else f"{row.over_heuristics:.3f}"
    return row.text, *gpu, row.name, milliseconds, ratio, bytes_text(entry.workspace_size)


def summary(rows: Sequence[ReportRow]) -> str:
    """Return one line with the number of problems and the gain over the heuristics' first choices."""
    ratios = [row.over_heuristics for row in rows if row.over_heuristics]
    count = f"{len(rows)} problem{'s' * (len(rows) != 1)}"
    if not ratios:
        return count
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    times = [
        (row.entry.milliseconds or 0.0, row.heuristics.milliseconds or 0.0)
        for row in rows
        if row.heuristics is not None
    ]
    chosen, first = (sum(column) for column in zip(*times, strict=True))
    return (
        f"{count}; over the heuristics' first choice: {mean:.3f} in the geometric mean, "
        f"{chosen:.4g} ms of {first:.4g} ms in all"
    )


def comma_separated(rows: Sequence[ReportRow]) -> str:
    """Return the rows as CSV with a line of titles; an absent value is empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for row in rows:
        entry, key = row.entry, row.entry.key
        writer.writerow(
            (
                row.text,
                key.gpu,
                key.capability,
                key.multiprocessors,
                raw.version_text(key.cudnn),
                row.name,
                entry.milliseconds,
                row.over_heuristics,
                row.over_default,
                entry.workspace_size,
                entry.spread,
                entry.error,
                len(row.measured),
                entry.complete,
                entry.tune_seconds,
                entry.made_at,
            )
        )
    return text.getvalue()


# The plots


def check_matplotlib() -> None:
    """Raise ImportError, which says how to install it, without matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError(f"the plots of -o need matplotlib: pip install {with_extra('plots')}") from None


def plots(rows: Iterable[ReportRow]) -> bytes:
    """Return a PDF with a page for each row that has measured candidates."""
    from matplotlib.backends.backend_pdf import PdfPages

    file = io.BytesIO()
    with PdfPages(file, metadata={"Title": "cudnnpy tune", "CreationDate": None}) as pages:
        for row in rows:
            if row.measured:
                pages.savefig(plot(row))
    return file.getvalue()


def plot(row: ReportRow) -> Figure:
    """Return the plot of a row: time against workspace, with a dot for each candidate that was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    figure.subplots_adjust(
        left=0.09, right=0.97, top=0.9, bottom=0.16
    )  # a layout engine takes longer than all the rest
    for source, (colour, label) in _SOURCES.items():
        some = [one for one in row.measured if source_of(one) == source and not one.refused]
        if some:
            axes.scatter(*_places(some), s=30, color=colour, alpha=0.75, label=label)
    wrong = [one for one in row.measured if one.refused]
    if wrong:
        axes.scatter(*_places(wrong), s=30, color="tab:red", marker="x", label="rejected after it was measured")
    _mark(axes, row)
    _set_scales(axes, row.measured)
    axes.set(xlabel="workspace", ylabel="time (ms)")
    axes.set_title(f"{_shortened(row.text)}\n{gpu_text(row.entry)}", fontsize=9, parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def source_of(candidate: Measured) -> str:
    """Return the source of a candidate: "heuristics", "engines", "knobs", "legacy" or "measured"."""
    return candidate.source if candidate.source in _SOURCES else "measured"


def _places(candidates: Sequence[Measured]) -> tuple[list[int], list[float]]:
    return [one.workspace_size or 0 for one in candidates], [one.milliseconds or 0.0 for one in candidates]


def _mark(axes: Any, row: ReportRow) -> None:
    """Draw a ring around each candidate that has a role, with the role beside it: slower ones higher, so that none overlap."""
    marked = sorted((one for one in row.measured if row.roles(one)), key=lambda one: one.milliseconds or 0.0)
    for number, candidate in enumerate(marked):
        place = (candidate.workspace_size or 0, candidate.milliseconds)
        axes.scatter(*place, s=150, facecolors="none", edgecolors="black", linewidths=1.5)
        offset = (10, 14 * number - 10)
        axes.annotate(row.roles(candidate), place, xytext=offset, textcoords="offset points", fontsize=9)


def _set_scales(axes: Any, candidates: Sequence[Measured]) -> None:
    """Make both axes logarithmic; a workspace of 0 has a place at the left."""
    sizes = [one.workspace_size for one in candidates if one.workspace_size]
    axes.set_xscale("symlog", base=2, linthresh=max(1, min(sizes, default=1)), linscale=1)
    axes.xaxis.set_major_formatter(lambda size, _place: bytes_text(int(size)) if size >= 0 else "")
    axes.set_xlim(left=-0.1 * min(sizes, default=1), right=2 * max(sizes, default=1))
    axes.xaxis.set_major_locator(_size_ticks(sizes))
    axes.tick_params(axis="x", labelrotation=30, labelsize=8)
    if all(one.milliseconds for one in candidates):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:.4g}")
        axes.yaxis.set_minor_formatter("{x:.3g}")
        axes.tick_params(axis="y", which="both", labelsize=8)


def _size_ticks(sizes: Sequence[int]) -> Any:
    """Return a locator with 0 and at most eight powers of 2 that cover some sizes."""
    from matplotlib.ticker import FixedLocator

    if not sizes:
        return FixedLocator([0])
    low, high = int(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
    return FixedLocator([0, *(2.0**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 8))))])


def _shortened(text: str, max_length: int = 110) -> str:
    """Return a text within a length. The text of a graph ends with long JSON."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."
