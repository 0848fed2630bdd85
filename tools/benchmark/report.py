"""Results as Markdown and as a plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from tools.benchmark.figures import (
    HOST_DTYPE,
    OPERATION_TIMES,
    by_kind,
    failures,
    figures,
    fraction_of_floor,
    fraction_of_peak,
    growth,
    name,
    operation_ratio,
    operation_ratios,
    ratio,
    set_up_ratio,
    tuples_text,
)
from tools.benchmark.layers import KINDS, LAYERS, OPERATIONS, TINY

WORST = 5  # of the slowest rows, that are told by name


def as_json(results: Mapping[str, Any]) -> str:
    """The results as JSON with one row of a table on each line, so that two runs can be compared by a diff."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
        else:
            text = json.dumps(value, indent=1)
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def markdown(results: Mapping[str, Any], plot: str | None = None) -> str:
    """The whole page; `plot` is the file name of the picture beside it."""
    parts = [f"# Benchmark on {results['environment']['GPU']}\n", _environment(results)]
    parts += ["## Figures to reach\n", "Ratios of medians; below 1, cudnnpy is faster.\n", _figures(results)]
    lost = failures(results)
    if lost:
        parts += ["## Rows that failed\n", "\n".join(f"- {line}" for line in lost) + "\n"]
    if plot:
        parts.append(f"![Ratios to torch, by layer and kind]({plot})\n")
    if results.get("device"):
        parts += _device(results)
    if results.get("host"):
        parts += _host(results["host"])
    if results.get("addresses"):
        parts += _addresses(results["addresses"])
    if results.get("cache"):
        parts += _cache(results["cache"])
    if results.get("operations"):
        parts += _operations(results["operations"])
    if results.get("stored"):
        parts += _stored(results["stored"])
    return "\n".join(parts)


def _environment(results: Mapping[str, Any]) -> str:
    return table(("environment", ""), [(key, str(value)) for key, value in results["environment"].items()])


def _figures(results: Mapping[str, Any]) -> str:
    rows = []
    for figure in figures(results):
        reached = "" if figure.reached is None else f"{figure.reached:.3f}"
        rows.append((figure.name, f"<= {figure.reach:.2f}", reached, figure.verdict))
    return table(("figure", "to reach", "reached", "verdict"), rows)


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _device(results: Mapping[str, Any]) -> list[str]:
    cells = results["device"]
    parts = ["## GPU time over torch's (benchmark=True)\n"]
    rows = []
    tuned, first, noise = (by_kind(cells, who) for who in ("autotune", "fastest", "torch, again"))
    for group in tuned:
        values = [value for pair in (tuned[group], first[group], noise[group]) for value in pair or (None, None)]
        rows.append((group, *(_number(value, ".3f") for value in values)))
    head = ("kind", "autotune, mean", "autotune, worst", "fastest, mean", "fastest, worst")
    parts.append(table((*head, "torch again, mean", "torch again, worst"), rows))
    parts.append(
        'Means are geometric. "Torch again" is the same torch call, timed once more: smaller differences are noise.\n'
    )
    if results.get("peaks"):
        parts += _peaks(results, cells)
    parts += _planning(cells)
    for kind in KINDS:
        of_kind = [cell for cell in cells if cell["kind"] == kind.name]
        if of_kind:
            parts += [f"### {kind.name}\n", _cells(of_kind)]
    return parts


def _peaks(results: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    peaks = results["peaks"]
    rows = []
    for kind in KINDS:
        timed = [cell for cell in cells if cell["kind"] == kind.name and ratio(cell, "autotune") is not None]
        row = [kind.name, f"{peaks[kind.name]:.0f}"]
        row += [
            _number(geometric_mean(fraction(cell, who, peaks) for cell in timed) if timed else None)
            for fraction in (fraction_of_peak, fraction_of_floor)
            for who in ("autotune", "torch")
        ]
        rows.append(row)
    head = ("kind", "matrix product, TFLOP/s", "of it: autotune", "torch", "of the floor: autotune", "torch")
    text = (
        "Geometric means over the cells. The rate counts the definition's arithmetic, so Winograd and FFT can pass 1. "
        "The floor is the longer of two times: the arithmetic at the matrix product's rate, and each tensor moved once "
        f"at the copy's ({peaks['copy']:.0f} GB/s, read plus written).\n"
    )
    return ["### Of the measured peaks\n", table(head, rows), text]


def _planning(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for kind in KINDS:
        of_kind = [cell for cell in cells if cell["kind"] == kind.name]
        row = [kind.name]
        for read in _PLANNING.values():
            values = [read(cell) for cell in of_kind if "setup_ms" in cell and "tuning_s" in cell]
            row += [_number(median(values) if values else None), _number(max(values, default=None))]
        rows.append(row)
    head = [column for title in _PLANNING for column in (f"{title}: median", "most")]
    limits = [cell["tuning_limit_s"] for cell in cells if "tuning_limit_s" in cell]
    limit = (
        f"To tune, a problem was given {min(limits):.1f} to {max(limits):.1f} s (5 s by default).\n" if limits else ""
    )
    return ["### Cost of planning\n", table(("kind", *head), rows), limit]


_PLANNING: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "plan, cold, ms": lambda cell: float(cell["setup_ms"]["cold"]),
    "plan again after clear_cache, ms": lambda cell: float(cell["setup_ms"]["warm"]),
    "autotune, s": lambda cell: float(cell["tuning_s"]),
}


def _cells(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for cell in cells:
        ms = cell.get("ms", {})
        times = [_number(ms[who]["median"] if who in ms else None, ".4f") for who in ("torch", "fastest", "autotune")]
        ratios = [_number(ratio(cell, who), ".3f") for who in ("autotune", "fastest")]
        plan = cell.get("plans", {}).get("autotune", {}).get("name", "")
        rows.append((f"{cell['layer']}, {cell['operation']}", *ratios, *times, plan if not cell["error"] else "failed"))
    head = ("layer, operation", "autotune / torch", "fastest / torch", "torch, ms", "fastest, ms", "autotune, ms")
    return table((*head, "autotune's plan"), rows)


def _host(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    cells = {(row["row"], row["dtype"]): row for row in rows}
    lines = []
    for road in dict.fromkeys(row["row"] for row in rows):
        line = [road]
        for dtype in dtypes:
            row, torch = cells[road, dtype], cells.get(("torch F.conv2d", dtype), {})
            if row["us"] is None:
                line += ["", row["absent"] or "failed"]
            else:
                base = torch.get("us")
                line.append(_number(row["us"]["median"] / base["median"] if base else None))
                line.append(f"{row['us']['median']:.2f}")
        lines.append(line)
    head = [column for dtype in dtypes for column in (f"{dtype}: over F.conv2d", "us")]
    text = f"The convolution is {TINY.name}, channels last. The figures above are {HOST_DTYPE}'s.\n"
    return ["## Host cost of one call\n", text, table(("road", *head), lines)]


def _addresses(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(row["tuples"] for row in rows))
    cells = {(row["row"], row["tuples"]): row for row in rows}
    lines = []
    for road in dict.fromkeys(row["row"] for row in rows):
        line = [road]
        for tuples in columns:
            row, base = cells.get((road, tuples)), cells.get(("torch F.conv2d", tuples), {}).get("us")
            if row is None or row["us"] is None:
                line += ["", "failed" if row and row["error"] else "none"]
            else:
                line.append(_number(row["us"]["median"] / base["median"] if base else None))
                line.append(f"{row['us']['median']:.2f}")
        lines.append(line)
    head = [column for tuples in columns for column in (f"{tuples_text(tuples)}: over F.conv2d", "us")]
    text = (
        f"The same convolution in {rows[0]['dtype']}, by how many tuples of addresses (x, w, y) take turns. Always new: a "
        "tuple that this road never had; a pack cannot be ready for it.\n"
    )
    return ["### By addresses\n", text, table(("road", *head), lines)]


def _cache(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    first = next((row for row in rows if row["us"]), None)
    lines = []
    for row in rows:
        if row["us"] is None:
            lines.append((f"{row['wanted']:,}", "", "failed", "", ""))
            continue
        label = f"{row['signatures']:,}"
        if row["signatures"] < row["wanted"]:
            label += f" (of {row['wanted']:,}: the time was up)"
        us, torch, turn = (row[name]["median"] for name in ("us", "torch_us", "in_turn_us"))
        lines.append(
            (label, _number(growth(row, first) if first else None), f"{us:.2f}", f"{torch:.2f}", f"{turn:.2f}")
        )
    head = ("cached signatures", "over one", "one signature again and again, us", "torch, us", "64 of them in turn, us")
    return ["## Host cost as the cache grows\n", table(head, lines)]


def _stored(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        times = row["ms"]
        medians = (
            ["failed", ""] if times is None else [f"{times[name]['median']:.2f}" for name in ("stored", "fastest")]
        )
        lines.append((f"{row['kind']}, {row['layer']}, {row['operation']}", _number(set_up_ratio(row)), *medians))
    head = ("first call with an empty plan cache", "stored over fastest", "stored choice, ms", "fastest, ms")
    return ["## Set-up of stored choices\n", table(head, lines)]


def _operations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = ["## Operations beside the convolutions\n"]
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    lines, again = [], "torch, again"
    for kind, of_kind in kinds.items():
        _, who, reach = OPERATION_TIMES[of_kind[0]["unit"]]
        noise = [value for row in of_kind if (value := operation_ratio(row, again)) is not None]
        for each in who:
            values = [value for row in of_kind if (value := operation_ratio(row, each)) is not None]
            line = [kind + each.removeprefix("cudnnpy"), f"{reach:.2f}", f"{len(values)}"]
            line.append(f"{sum(value <= reach for value in values)}")
            of_noise = geometric_mean(noise) if noise else None
            most = max(values, default=None)
            mean = geometric_mean(values) if values else None
            lines.append([*line, *(_number(value, ".3f") for value in (mean, most, of_noise))])
    head = ("kind", "to reach", "rows timed", "of them met", "over torch, mean", "worst", "torch again, mean")
    parts += [table(head, lines), "Means are geometric; each row is to reach the figure.\n"]
    for unit, (title, _, _) in OPERATION_TIMES.items():
        worst = [(what, f"{value:.3f}") for value, what in operation_ratios(rows, unit)[:WORST]]
        if worst:
            parts.append(table((f"slowest against torch, {title}", "over torch"), worst))
    apart = [row for row in rows if "separate" in row.get("ms", {})]
    if apart:
        parts += ["### What fusing gains\n", _fusion(apart)]
    for kind, of_kind in kinds.items():
        parts += [f"### {kind}: {OPERATION_TIMES[of_kind[0]['unit']][0]}\n", _operation_rows(of_kind)]
    return parts


def _fusion(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        ms = {who: row["ms"][who]["median"] if who in row["ms"] else None for who in ("cudnnpy", "separate")}
        gain = ms["cudnnpy"] / ms["separate"] if ms["cudnnpy"] else None
        over = (operation_ratio(row, "separate"), operation_ratio(row, "cudnnpy"))
        cells = (
            _number(gain, ".3f"),
            *(_number(value, ".3f") for value in over),
            *(_number(ms[who], ".4f") for who in ms),
        )
        lines.append((f"{row['kind']}, {row['operation']}", *cells))
    head = ("operation", "fused / separate", "separate / torch", "fused / torch", "fused, ms", "separate, ms")
    return table(head, lines) + "\n`separate`: cudnnpy's own calls, one for each step.\n"


def _operation_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    unit = rows[0]["unit"]
    _, who, _ = OPERATION_TIMES[unit]
    form = {"ms": ".4f", "us": ".2f"}[unit]
    lines = []
    for row in rows:
        times = row.get(unit, {})
        ratios = [_number(operation_ratio(row, each), ".3f") for each in (*who, "torch, again")]
        cells = [_number(times[each]["median"] if each in times else None, form) for each in ("torch", *who)]
        lines.append((row["operation"], *ratios, *cells, "failed" if row["error"] else ""))
    head = [*(f"{each} / torch" for each in who), "torch again", *(f"{each}, {unit}" for each in ("torch", *who)), ""]
    return table(("operation", *head), lines)


def draw(results: Mapping[str, Any], file: Path) -> bool:
    """A chart of every cell's ratio to torch; False, and no file, without matplotlib or without a cell."""
    cells = [cell for cell in results.get("device", ()) if ratio(cell, "autotune") is not None]
    if not cells:
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "cudnnpy"  # the same results, the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(KINDS), 1, figsize=(11, 2.6 * len(KINDS)), sharex=True, layout="constrained")
    problems = [(layer.name, operation) for layer in LAYERS for operation in OPERATIONS]
    for kind, axis in zip(KINDS, axes, strict=True):
        found = {(c["layer"], c["operation"]): c for c in cells if c["kind"] == kind.name}
        for who, offset, colour in (("fastest", -0.2, "#9db8d2"), ("autotune", 0.2, "#1f5a96")):
            places = [(at, ratio(found[problem], who)) for at, problem in enumerate(problems) if problem in found]
            axis.bar([at + offset for at, _ in places], [value for _, value in places], 0.4, label=who, color=colour)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_title(kind.name, fontsize=10, loc="left")
        axis.set_ylabel("time / torch's", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, ncols=2, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1))
    labels = [f"{layer} {operation}" for layer, operation in problems]
    axes[-1].set_xticks(range(len(problems)), labels, rotation=60, ha="right", fontsize=7)
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
    return True


def summary_lines(results: Mapping[str, Any]) -> list[str]:
    """The figures and the worst cells for a terminal."""
    lines = [f"{f.name}: {_number(f.reached, '.3f')} (<= {f.reach:.2f}) {f.verdict}" for f in figures(results)]
    timed = [(value, cell) for cell in results.get("device", ()) if (value := ratio(cell, "autotune")) is not None]
    worst = sorted(timed, key=lambda pair: pair[0], reverse=True)[:WORST]
    lines += [f"slowest of autotune against torch: {value:.3f} {name(cell)}" for value, cell in worst]
    for unit, (title, _, _) in OPERATION_TIMES.items():
        slowest = operation_ratios(results.get("operations", ()), unit)[:WORST]
        lines += [f"slowest of the operations against torch, {title}: {value:.3f} {what}" for value, what in slowest]
    return lines
