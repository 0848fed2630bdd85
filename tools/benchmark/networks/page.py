"""The page of the rows of networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from tools.benchmark.figures import Figure
from tools.benchmark.networks.figures import (
    LIMIT,
    WHO,
    Row,
    Spread,
    by_network,
    figures,
    groups,
    of_part,
    ratio,
    spread,
    tuning,
    worst,
)
from tools.benchmark.report import table
from tools.benchmark.resumable import failures, runs_table

WORST = 20
_NOISE = "torch, again"
_WITHOUT = "torch, no search"


def markdown(rows: Sequence[Row], runs: Iterable[Mapping[str, Any]], cells: int) -> str:
    """The whole page; `cells` is how many cells the list has."""
    runs = list(runs)
    gpus = ", ".join(dict.fromkeys(str(run.get("GPU", "?")) for run in runs))
    parts = [f"# Networks on {gpus}\n", "## Figures to reach\n", _figures(figures(rows))]
    lost = failures(rows)
    if lost:
        parts += ["## Rows that failed\n", "\n".join(f"- {line}" for line in lost) + "\n"]
    layers = of_part(rows, "layers")
    if layers:
        parts += _layers(layers, cells)
    for part, title in (("inference", "Inference"), ("training", "Training steps")):
        of_this = of_part(rows, part)
        if of_this:
            parts += [f"## {title}\n", _programs(of_this)]
    parts += ["## Runs\n", runs_table(runs, rows)]
    return "\n".join(parts)


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """The figures and the slowest cells, for a terminal."""
    lines = []
    for figure in figures(rows):
        reached = "" if figure.reached is None else f"{figure.reached:.3f} "
        lines.append(f"{figure.name}: {reached}(<= {figure.reach:.2f}) {figure.verdict}")
    for who in WHO:
        slowest = worst(of_part(rows, "layers"), who, 5)
        lines += [f"slowest of {who} against torch: {value:.3f} {row['name']}" for value, row in slowest]
    return lines


def _figures(found: Iterable[Figure]) -> str:
    rows = [(f.name, f"<= {f.reach:.2f}", "" if f.reached is None else f"{f.reached:.3f}", f.verdict) for f in found]
    return table(("figure", "to reach", "reached", "verdict"), rows)


def _layers(rows: Sequence[Row], cells: int) -> list[str]:
    text = (
        f"{len(rows):,} of {cells:,} cells. Times over torch's with benchmark=True; means are geometric. Shares are of the "
        f"cells in which torch takes 20 us or more: those above {LIMIT['autotune']:.2f} (autotune) and "
        f'{LIMIT["fastest"]:.2f} (fastest). "Torch again" is the same call timed once more.\n'
    )
    parts = ["## Layers\n", text, _spreads("group", groups(rows))]
    seconds = tuning(rows)
    if seconds:
        search = [row["torch_search_s"] for row in rows if "torch_search_s" in row]
        parts.append(
            f"Seconds to tune one problem: median {median(seconds):.2f}, longest {max(seconds):.2f}; torch's own search: "
            f"median {median(search):.2f}, longest {max(search):.2f}.\n"
        )
    parts += ["### Each network\n", _spreads("network", by_network(rows))]
    for who in WHO:
        parts += [f"### Slowest of {who} against torch\n", _worst(rows, who)]
    return parts


def _spreads(name: str, of: Mapping[str, Sequence[Row]]) -> str:
    lines = []
    for group, rows in of.items():
        line = [group, str(len(rows))]
        for who in WHO:
            line += _spread_text(spread(rows, who))
        searchless, over = spread(rows, _WITHOUT), spread(rows, "fastest", _WITHOUT)
        noise = spread(rows, _NOISE)
        line += [_number(found and found.mean) for found in (searchless, over, noise)]
        lines.append(line)
    head = [f"{who}{what}" for who in WHO for what in (", mean", ", share", ", worst", ", worst of 20 us")]
    return table((name, "rows", *head, "torch without search, mean", "fastest over that", "torch again"), lines)


def _spread_text(found: Spread | None) -> list[str]:
    if found is None:
        return [""] * 4
    share = "" if found.share is None else f"{100 * found.share:.1f} %"
    return [_number(found.mean), share, _number(found.worst), _number(found.worst_long)]


def _worst(rows: Sequence[Row], who: str) -> str:
    lines = []
    for value, row in worst(rows, who, WORST):
        plan = row["plans"][who]
        other = ratio(row, WHO[1 - WHO.index(who)])
        ms = [f"{row['ms'][name]['median']:.4f}" for name in ("torch", who)]
        networks = ", ".join(row["networks"][:3]) + (", ..." if len(row["networks"]) > 3 else "")
        lines.append((row["name"], _number(value), _number(other), *ms, plan["name"], networks))
    head = (
        "cell",
        f"{who} / torch",
        f"{WHO[1 - WHO.index(who)]} / torch",
        "torch, ms",
        f"{who}, ms",
        "plan",
        "networks",
    )
    return table(head, lines)


def _programs(rows: Sequence[Row]) -> str:
    roads = list(dict.fromkeys(name for row in rows for name in (*row.get("ms", {}), *row.get("absent", {}))))
    lines = []
    for row in rows:
        line = [row["name"]]
        for road in roads:
            value = ratio(row, road)
            if value is None:
                line += ["", row.get("absent", {}).get(road, "failed" if row["error"] else "")]
            else:
                line += [_number(value), f"{row['ms'][road]['median']:.3f}"]
        lines.append(line)
    return table(("network", *(column for road in roads for column in (f"{road} / torch", "ms"))), lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
