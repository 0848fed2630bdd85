"""The figures to reach, worked out from what was measured: ratios first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from tools.benchmark.layers import KINDS

HOST_DTYPE = "float16"  # the element type of the host figures; the others are in the table


class Figure(NamedTuple):
    """A ratio, and what it is to be at most; None for a ratio that was not measured, with the reason."""

    name: str
    reach: float
    reached: float | None
    why: str = ""
    is_share: bool = False

    @property
    def verdict(self) -> str:
        """ "met", "missed by 4 %" (of the reach; for a share, in points), or "not measured: why"."""
        if self.reached is None:
            return f"not measured: {self.why}"
        if self.reached <= self.reach:
            return "met"
        if self.is_share:
            return f"missed by {100 * (self.reached - self.reach):.1f} points"
        return f"missed by {100 * (self.reached / self.reach - 1):.1f} %"


# name, reach, the host row above the line, the host rows below it, of which the fastest counts
_HOST = (
    (
        "plan.execute(pointers) over bare ctypes cudnnBackendExecute",
        1.20,
        "plan.execute(pointers)",
        ("ctypes cudnnBackendExecute, pack ready",),
    ),
    ("conv.forward(x, w, out=y) over torch F.conv2d", 0.55, "conv.forward(x, w, out=y)", ("torch F.conv2d",)),
    ("conv.forward(x, w) over torch F.conv2d", 0.70, "conv.forward(x, w)", ("torch F.conv2d",)),
    (
        "conv.forward(x, w, out=y) over cudnn-frontend graph.execute with handle=",
        0.90,
        "conv.forward(x, w, out=y)",
        ("cudnn-frontend graph.execute, handle=", "cudnn-frontend graph.execute, handle=, tensor_uids="),
    ),
    (
        "backward_data + backward_filter over torch convolution_backward",
        0.50,
        "conv.backward_data + backward_filter, out=",
        ("torch convolution_backward (dx, dw)",),
    ),
)
# the same at addresses that vary: reach, the row above the line and its tuples, the row below it and its tuples
_ADDRESSES: tuple[tuple[float, str, int | str, str, int | str], ...] = (
    (0.55, "conv.forward(x, w, out=y)", 1, "torch F.conv2d", 1),
    (0.85, "conv.forward(x, w, out=y)", 1000, "torch F.conv2d", 1000),
    (1.00, "conv.forward(x, w, out=y)", "new", "torch F.conv2d", "new"),
    *((1.10, "F.conv2d, cudnnpy.torch enabled", tuples, "torch F.conv2d", tuples) for tuples in (1, 1000, "new")),
    (1.20, "plan.execute(pointers)", 1, "ctypes cudnnBackendExecute, pack ready", 1),
    (2.00, "plan.execute(pointers)", "new", "ctypes cudnnBackendExecute, pack ready", 1000),
)
_CACHE = "host cost with the most cached signatures over one"
_CACHE_REACH = 1.10  # what "flat" means here
_STORED = 'set-up: first call of a stored problem over prefer="fastest", geometric mean'
_STORED_REACH = 1.20
# unit of a row of an operation -> its name, who is measured against torch, and what each ratio is to be at most
OPERATION_TIMES = {
    "ms": ("GPU time", ("cudnnpy",), 1.05),
    "us": ("host cost", ("cudnnpy, out=", "cudnnpy, new"), 0.75),
}


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """Every figure to reach, in the order of the table; those of a section that did not run are not measured."""
    found = []
    host = {row["row"]: row for row in results.get("host", ()) if row["dtype"] == HOST_DTYPE}
    for name, reach, above, below in _HOST:
        missing = [row for row in (above, *below) if host.get(row, {}).get("us") is None]
        if missing:
            found.append(Figure(f"host, fixed addresses: {name}", reach, None, _reason(host.get(missing[0]))))
        else:
            least = min(host[row]["us"]["median"] for row in below)
            found.append(Figure(f"host, fixed addresses: {name}", reach, host[above]["us"]["median"] / least))
    found += _of_addresses(results.get("addresses", ()))
    for who, what, reach in (
        ("autotune", "geometric mean", 0.90),
        ("autotune", "worst cell", 1.02),
        ("fastest", "geometric mean", 1.00),
    ):
        cells = results.get("device", ())
        ratios = [value for cell in cells if (value := ratio(cell, who)) is not None]
        value = None if not ratios else max(ratios) if what == "worst cell" else geometric_mean(ratios)
        lost = f" ({len(cells) - len(ratios)} of {len(cells)} cells missing)" if len(ratios) < len(cells) else ""
        found.append(
            Figure(f"GPU: {who} over torch, {what}{lost}", reach, value, "no cell ran" if cells else "section not run")
        )
    rows = [row for row in results.get("cache", ()) if row["us"] is not None]
    if len(rows) > 1:
        label = f"{_CACHE} ({rows[-1]['signatures']:,})"
        found.append(Figure(label, _CACHE_REACH, growth(rows[-1], rows[0])))
    else:
        why = next((row["error"] for row in results.get("cache", ()) if row["error"]), "section not run")
        found.append(Figure(_CACHE, _CACHE_REACH, None, why))
    stored = [value for row in results.get("stored", ()) if (value := set_up_ratio(row)) is not None]
    if results.get("stored"):
        mean = geometric_mean(stored) if stored else None
        found.append(Figure(_STORED, _STORED_REACH, mean, "no row ran"))
    rows = results.get("operations", ())
    return found + [figure for unit in OPERATION_TIMES for figure in _of_operations(rows, unit)]


def tuples_text(tuples: int | str) -> str:
    """How many tuples of addresses take turns, in words."""
    if isinstance(tuples, str):
        return "always new"
    return f"{tuples:,} in turn" if tuples > 1 else "1"


def _of_addresses(rows: Iterable[Mapping[str, Any]]) -> list[Figure]:
    by_row = {(row["row"], row["tuples"]): row for row in rows}
    found = []
    for reach, above, tuples, below, others in _ADDRESSES:
        ready = f" ({tuples_text(others)})" if others != tuples else ""
        name = f"host, addresses {tuples_text(tuples)}: {above} over {below}{ready}"
        missing = [key for key in ((above, tuples), (below, others)) if by_row.get(key, {}).get("us") is None]
        if missing:
            found.append(Figure(name, reach, None, _reason(by_row.get(missing[0]))))
        else:
            times = (by_row[key]["us"]["median"] for key in ((above, tuples), (below, others)))
            found.append(Figure(name, reach, next(times) / next(times)))
    return found


def _of_operations(rows: Sequence[Mapping[str, Any]], unit: str) -> list[Figure]:
    title, _, reach = OPERATION_TIMES[unit]
    values = [value for value, _ in operation_ratios(rows, unit)]
    name = f"operations, {title} over torch"
    if not values:
        return [Figure(name, reach, None, "no row ran" if rows else "section not run")]
    lost = sum(bool(row["error"]) for row in rows if row["unit"] == unit)
    count = f"{sum(value <= reach for value in values)} of {len(values)} meet it"
    count += f", {lost} rows failed" if lost else ""
    return [
        Figure(f"{name}, geometric mean", reach, geometric_mean(values)),
        Figure(f"{name}, worst ({count})", reach, max(values)),
    ]


def operation_ratio(row: Mapping[str, Any], who: str) -> float | None:
    """Time of `who` over torch's in one row of an operation; None where it has none."""
    times = row.get(row["unit"], {})
    return float(times[who]["median"] / times["torch"]["median"]) if who in times else None


def operation_ratios(rows: Iterable[Mapping[str, Any]], unit: str) -> list[tuple[float, str]]:
    """Every ratio to torch in that unit, with the row in words, the slowest first."""
    found = [
        (value, f"{row['kind']}, {row['operation']}" + who.removeprefix("cudnnpy"))
        for row in rows
        if row["unit"] == unit
        for who in OPERATION_TIMES[unit][1]
        if (value := operation_ratio(row, who)) is not None
    ]
    return sorted(found, reverse=True)


def set_up_ratio(row: Mapping[str, Any]) -> float | None:
    """The first call of a stored problem over that of prefer="fastest"; None where they were not measured."""
    times = row["ms"]
    return None if times is None else float(times["stored"]["median"] / times["fastest"]["median"])


def growth(row: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """Host cost of a cache row over the first one's, each over torch's beside it."""
    cost, before = (r["us"]["median"] / r["torch_us"]["median"] for r in (row, first))
    return float(cost / before)


def _reason(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "section not run"
    return f"{row['row']}: {row['absent'] or row['error']}"


def ratio(cell: Mapping[str, Any], who: str) -> float | None:
    """GPU time of `who` over torch's in one cell; None where one of them has none, or the results differ."""
    times = cell.get("ms")
    if not times or cell["error"]:
        return None
    return float(times[who]["median"] / times["torch"]["median"])


def by_kind(cells: Iterable[Mapping[str, Any]], who: str) -> dict[str, tuple[float, float] | None]:
    """Geometric mean and worst of the ratios for each kind, and for "all"; None where no cell has one."""
    cells = list(cells)
    found = {}
    for kind in [*(kind.name for kind in KINDS), "all"]:
        of_kind = (ratio(cell, who) for cell in cells if kind in (cell["kind"], "all"))
        ratios = [value for value in of_kind if value is not None]
        found[kind] = (geometric_mean(ratios), max(ratios)) if ratios else None
    return found


def fraction_of_peak(cell: Mapping[str, Any], who: str, peaks: Mapping[str, float]) -> float:
    """The rate of the definition's arithmetic over the measured matrix product's; above 1 for Winograd and FFT."""
    return float(cell["flop"] / cell["ms"][who]["median"] / 1e9 / peaks[cell["kind"]])


def fraction_of_floor(cell: Mapping[str, Any], who: str, peaks: Mapping[str, float]) -> float:
    """The least time that arithmetic and memory allow at the measured peaks, over the time taken."""
    floor = max(cell["flop"] / peaks[cell["kind"]] / 1e9, cell["bytes"] / peaks["copy"] / 1e6)
    return float(floor / cell["ms"][who]["median"])


def failures(results: Mapping[str, Any]) -> list[str]:
    """One line for each row that has an error. A library that is not installed is not one."""
    lines = [f"host, {row['dtype']}, {row['row']}: {row['error']}" for row in results.get("host", ()) if row["error"]]
    lines += [
        f"addresses {tuples_text(row['tuples'])}, {row['row']}: {row['error']}"
        for row in results.get("addresses", ())
        if row["error"]
    ]
    lines += [f"GPU, {name(cell)}: {cell['error']}" for cell in results.get("device", ()) if cell["error"]]
    lines += [f"cache, {row['wanted']:,}: {row['error']}" for row in results.get("cache", ()) if row["error"]]
    lines += [
        f"operations, {row['kind']}, {row['operation']}: {row['error']}"
        for row in results.get("operations", ())
        if row["error"]
    ]
    lines += [
        f"stored, {row['kind']}, {row['operation']}: {row['error']}"
        for row in results.get("stored", ())
        if row["error"]
    ]
    return lines + [f"{section}: {error}" for section, error in results.get("errors", {}).items()]


def name(cell: Mapping[str, Any]) -> str:
    """A cell in words."""
    return f"{cell['kind']}, {cell['layer']}, {cell['operation']}"
