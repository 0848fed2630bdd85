"""The plots of `cudnnpy tune -o`: time against workspace. They need matplotlib, which the extra `plots` installs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cudnnpy._installation import with_extra
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._store.entry import StoredCandidate
from cudnnpy.cli.tune.report import ReportRow, gpu_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour and the legend of each source of candidates.
_SOURCES = {
    "ranking": ("tab:green", "ranking"),
    "heuristics": ("tab:blue", "heuristics"),
    "engines": ("tab:gray", "every engine"),
    "knobs": ("tab:purple", "other knobs"),
    "legacy": ("tab:orange", "v7 functions"),
}


def check_matplotlib() -> None:
    """Raise ImportError, which says how to install it, without matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError(f"the plots of -o need matplotlib: pip install {with_extra('plots')}") from None


def pages(rows: Iterable[ReportRow]) -> bytes:
    """Return a PDF with a page for each row that has measured candidates."""
    from matplotlib.backends.backend_pdf import PdfPages

    file = io.BytesIO()
    with PdfPages(file, metadata={"Title": "cudnnpy tune", "CreationDate": None}) as pdf:
        for row in rows:
            if row.measured:
                pdf.savefig(plot(row))
    return file.getvalue()


def plot(row: ReportRow) -> Figure:
    """Return the plot of a row: time against workspace, with a dot for each candidate that was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    # a layout engine would take longer than all the rest
    figure.subplots_adjust(left=0.09, right=0.97, top=0.9, bottom=0.16)
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


def source_of(candidate: StoredCandidate) -> str:
    """Return the source of a candidate; "ranking" for one that another version of cudnnpy stored."""
    return candidate.source if candidate.source in _SOURCES else "ranking"


def _places(candidates: Sequence[StoredCandidate]) -> tuple[list[int], list[float]]:
    return [one.workspace_size or 0 for one in candidates], [one.milliseconds or 0.0 for one in candidates]


def _mark(axes: Any, row: ReportRow) -> None:
    """Draw a ring around each candidate that has a role, and the role beside it. The texts of slower ones are higher."""
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


def _shortened(text: str, max_length: int = 110) -> str:
    """Return a text within a length. The text of a graph ends with long JSON."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."
