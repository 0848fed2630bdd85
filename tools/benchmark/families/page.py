"""The page of the rows of the families: ratios to torch, and to the time that memory alone would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean

from tools.benchmark.families.problems import operation
from tools.benchmark.figures import Figure, operation_ratio
from tools.benchmark.report import table
from tools.benchmark.resumable import Row, failures, runs_table

WORST = 40
LIMIT = 1.05  # a row above it is one of the share
REACH = {"geometric mean": 0.80, f"share above {LIMIT:.2f}": 0.12, "worst": 1.50}
LONG_MS = 0.020  # torch's time of the long rows
_NAME = "operations over the families, GPU time over torch"


def ratios(rows: Iterable[Row]) -> list[tuple[float, Row]]:
    """The ratio to torch of every row that has one, with the row, the slowest first."""
    found = [(value, row) for row in rows if not row["error"] and (value := operation_ratio(row, "cudnnpy"))]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def over_memory(row: Row) -> float:
    """cudnnpy's time over the time that a copy of as many bytes takes."""
    return float(row["ms"]["cudnnpy"]["median"] / row["memory_ms"])


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The figures to reach: of all rows."""
    values = [value for value, _ in ratios(rows)]
    if not values:
        why = "no row ran" if rows else "no row"
        return [Figure(f"{_NAME}, {what}", reach, None, why) for what, reach in REACH.items()]
    reached = (geometric_mean(values), sum(value > LIMIT for value in values) / len(values), max(values))
    return [
        Figure(f"{_NAME}, {what} ({len(values)} rows)", reach, value, is_share=what.startswith("share"))
        for (what, reach), value in zip(REACH.items(), reached, strict=True)
    ]


def markdown(rows: Sequence[Row], runs: Iterable[Row], problems: int) -> str:
    """The whole page; `problems` is how many the families have."""
    runs = list(runs)
    gpus = ", ".join(dict.fromkeys(str(run.get("GPU", "?")) for run in runs))
    parts = [f"# Operations over families of shapes on {gpus}\n", "## Figures to reach\n"]
    lines = [(f.name, f"<= {f.reach:.2f}", _number(f.reached), f.verdict) for f in figures(rows)]
    parts.append(table(("figure", "to reach", "reached", "verdict"), lines))
    lost = failures(rows)
    if lost:
        parts += ["## Rows that failed\n", "\n".join(f"- {line}" for line in lost) + "\n"]
    found = ratios(rows)
    if found:
        text = (
            f"{len(rows):,} of {problems:,} rows. Times over torch's; means are geometric. Long rows are those in which "
            f'torch takes {1000 * LONG_MS:.0f} us or more. "Over memory" is the time over that of a copy that moves as '
            "many bytes as the operands have.\n"
        )
        parts += ["## Ratios\n", text, _spreads("operation", _by_operation(found)), _spreads("kind", _by_kind(found))]
        parts += ["## Slowest against torch\n", _worst(found[:WORST])]
    parts += ["## Runs\n", runs_table(runs, rows)]
    return "\n".join(parts)


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """The figures and the slowest rows, for a terminal."""
    lines = [f"{f.name}: {_number(f.reached)} (<= {f.reach:.2f}) {f.verdict}" for f in figures(rows)]
    return lines + [f"slowest against torch: {value:.3f} {row['name']}" for value, row in ratios(rows)[:10]]


def _by_operation(found: Iterable[tuple[float, Row]]) -> dict[str, list[tuple[float, Row]]]:
    groups: dict[str, list[tuple[float, Row]]] = {}
    for value, row in found:
        groups.setdefault(operation(row["operation"], row["shape"]), []).append((value, row))
    return dict(sorted(groups.items()))


def _by_kind(found: Sequence[tuple[float, Row]]) -> dict[str, Sequence[tuple[float, Row]]]:
    groups: dict[str, Sequence[tuple[float, Row]]] = {"all": found}
    for kind in dict.fromkeys(row["kind"] for _, row in found):
        groups[kind] = [pair for pair in found if pair[1]["kind"] == kind]
    return groups


def _spreads(name: str, groups: Mapping[str, Sequence[tuple[float, Row]]]) -> str:
    lines = []
    for group, found in groups.items():
        values = [value for value, _ in found]
        long = [value for value, row in found if row["ms"]["torch"]["median"] >= LONG_MS]
        share = f"{100 * sum(value > LIMIT for value in values) / len(values):.0f} %"
        memory = [over_memory(row) for _, row in found if row["ms"]["torch"]["median"] >= LONG_MS]
        mean = geometric_mean(long) if long else None
        line = [group, str(len(values)), _number(geometric_mean(values)), share, _number(max(values)), str(len(long))]
        lines.append([*line, _number(mean), _number(geometric_mean(memory) if memory else None)])
    head = ("rows", "mean", f"above {LIMIT:.2f}", "worst", "long rows", "mean of these", "over memory, mean of these")
    return table((name, *head), lines)


def _worst(found: Iterable[tuple[float, Row]]) -> str:
    lines = []
    for value, row in found:
        ms = [f"{row['ms'][who]['median']:.4f}" for who in ("torch", "cudnnpy")]
        lines.append((row["name"].replace(" | ", ", "), _number(value), *ms, _number(over_memory(row))))
    return table(("row", "cudnnpy / torch", "torch, ms", "cudnnpy, ms", "over memory"), lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
