"""What `cudnnpy tune` reports: a row for each entry of the store, as a table, as CSV, and as plots.

The plots need matplotlib, which the extra `plots` installs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cudnnpy import raw
from cudnnpy._installation import with_extra
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._store.entry import Entry, StoredCandidate

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
# Where a candidate comes from, how it is drawn, and its name in the legend. Other sources are the table of measurements.
_KINDS = {
    "measured": ("tab:green", "measured for a near problem"),
    "heuristics": ("tab:blue", "heuristics"),
    "engines": ("tab:gray", "every engine"),
    "knobs": ("tab:purple", "other knobs"),
    "legacy": ("tab:orange", "v7 functions"),
}


class Row(NamedTuple):
    """One entry, and the candidates of it that have a role; None where no such candidate is known."""

    entry: Entry
    choice: StoredCandidate | None  #: what is chosen
    guess: StoredCandidate | None  #: the first that was measured and is right, which prefer="fastest" takes
    heuristics: StoredCandidate | None  #: the first such proposal of cuDNN's heuristics

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
        """The time of the choice, relative to that of the heuristics' first choice."""
        return _ratio(self.entry.milliseconds, self.heuristics)

    @property
    def over_guess(self) -> float | None:
        """The time of the choice, relative to that of the first guess."""
        return _ratio(self.entry.milliseconds, self.guess)

    @property
    def measured(self) -> list[StoredCandidate]:
        """The candidates that were measured."""
        return [one for one in self.entry.candidates if one.milliseconds is not None]

    def roles(self, candidate: StoredCandidate) -> str:
        """The roles of a candidate: "choice", "first guess", "heuristics' choice", or several of them."""
        named = {"choice": self.choice, "first guess": self.guess, "heuristics' choice": self.heuristics}
        return ", ".join(role for role, one in named.items() if one is candidate)


def row_of(entry: Entry) -> Row:
    """Return the row of an entry."""
    ran = [one for one in entry.candidates if one.milliseconds is not None and not one.refused]
    return Row(
        entry,
        _choice(entry),
        next(iter(ran), None),
        next((one for one in ran if one.source == "heuristics"), None),
    )


def _choice(entry: Entry) -> StoredCandidate | None:
    """Return the candidate that an entry chooses. The name in a plan lacks what is done around its graph."""
    name = _plan_name(entry)
    fitting = [
        one
        for one in entry.candidates
        if not one.refused
        and f"{one.name} ".startswith(f"{name} ")
        and (one.milliseconds, one.workspace_size) == (entry.milliseconds, entry.workspace_size)
    ]
    return min(fitting, key=lambda one: len(one.name), default=None)


def _plan_name(entry: Entry) -> str:
    try:
        return str(json.loads(entry.plan)["name"])
    except (ValueError, KeyError, TypeError):
        return ""


def _ratio(milliseconds: float | None, other: StoredCandidate | None) -> float | None:
    if milliseconds is None or other is None or not other.milliseconds:
        return None
    return milliseconds / other.milliseconds


def gpus(rows: Iterable[Row]) -> list[str]:
    """Return the kinds of GPU with the release of cuDNN that rows are for, each once."""
    return list(dict.fromkeys(gpu_text(row.entry) for row in rows))


def gpu_text(entry: Entry) -> str:
    """Return the GPU and the release of cuDNN that an entry is for: "NVIDIA H200, cuDNN 9.19.0"."""
    return f"{entry.key.gpu}, cuDNN {raw.version_text(entry.key.cudnn)}"


# The table


def cells(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the titles of the table and the texts of its rows. The GPU is a column if there are several."""
    several = len(gpus(rows)) > 1
    titles = (*_COLUMNS[:1], "gpu", *_COLUMNS[1:]) if several else _COLUMNS
    return titles, [_texts(row, several) for row in rows]


def _texts(row: Row, with_gpu: bool) -> tuple[str, ...]:
    entry = row.entry
    gpu = (gpu_text(entry),) if with_gpu else ()
    milliseconds = "" if entry.milliseconds is None else f"{entry.milliseconds:.4f}"
    over = "" if row.over_heuristics is None else f"{row.over_heuristics:.3f}"
    return row.text, *gpu, row.name, milliseconds, over, bytes_text(entry.workspace_size)


def table(rows: Sequence[Row]) -> str:
    """Return the table as text, a line for each row, which ends with a newline."""
    titles, lines = cells(rows)
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    right = len(titles) - 3  # the columns of numbers
    return "".join(
        "  ".join(
            text.rjust(width) if at >= right else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in (titles, *lines)
    )


def summary(rows: Sequence[Row]) -> str:
    """Return what the rows say together, in one line: what was gained over the heuristics' first choices."""
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


def comma_separated(rows: Sequence[Row]) -> str:
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
                row.over_guess,
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


def plots(rows: Iterable[Row]) -> bytes:
    """Return a PDF with a page for each row that has measured candidates."""
    from matplotlib.backends.backend_pdf import PdfPages

    file = io.BytesIO()
    with PdfPages(file, metadata={"Title": "cudnnpy tune", "CreationDate": None}) as pages:
        for row in rows:
            if row.measured:
                pages.savefig(plot(row))
    return file.getvalue()


def plot(row: Row) -> Figure:
    """Return the plot of a row: time against workspace, with a dot for each candidate that was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    figure.subplots_adjust(
        left=0.09, right=0.97, top=0.9, bottom=0.16
    )  # a layout engine takes longer than all the rest
    for kind, (colour, label) in _KINDS.items():
        some = [one for one in row.measured if kind_of(one) == kind and not one.refused]
        if some:
            axes.scatter(*_places(some), s=30, color=colour, alpha=0.75, label=label)
    wrong = [one for one in row.measured if one.refused]
    if wrong:
        axes.scatter(*_places(wrong), s=30, color="tab:red", marker="x", label="left out after it was measured")
    _mark(axes, row)
    _set_scales(axes, row.measured)
    axes.set(xlabel="workspace", ylabel="time (ms)")
    axes.set_title(f"{_shortened(row.text)}\n{gpu_text(row.entry)}", fontsize=9, parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def kind_of(candidate: StoredCandidate) -> str:
    """Return the kind of source of a candidate: "heuristics", "engines", "knobs", "legacy" or "measured"."""
    return candidate.source if candidate.source in _KINDS else "measured"


def _places(candidates: Sequence[StoredCandidate]) -> tuple[list[int], list[float]]:
    return [one.workspace_size or 0 for one in candidates], [one.milliseconds or 0.0 for one in candidates]


def _mark(axes: Any, row: Row) -> None:
    """Draw a ring around each candidate that has a role, with the role beside it: slower ones higher, so that none overlap."""
    marked = sorted((one for one in row.measured if row.roles(one)), key=lambda one: one.milliseconds or 0.0)
    for number, candidate in enumerate(marked):
        place = (candidate.workspace_size or 0, candidate.milliseconds)
        axes.scatter(*place, s=150, facecolors="none", edgecolors="black", linewidths=1.5)
        offset = (10, 14 * number - 10)
        axes.annotate(row.roles(candidate), place, xytext=offset, textcoords="offset points", fontsize=9)


def _set_scales(axes: Any, candidates: Sequence[StoredCandidate]) -> None:
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


def _shortened(text: str, most: int = 110) -> str:
    """Return a text within a length, without its end: that of a graph has its JSON."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
