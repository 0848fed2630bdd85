"""A table of measurements, as cudnnpy/_planning/measured.py reads it, of a survey's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cudnnpy._planning.measured import FORMAT, Configuration, Kind, digest
from tools.measured.rows import Row

MOST = 6  # configurations of a problem
NEAR = 0.25  # by how much more time than the fastest they take at most


def table(rows: Iterable[Row], capability: str, release: str, **facts: Any) -> str:
    """Return the text of the table for an architecture and a release of cuDNN. `facts` are added to its first line."""
    numbers: dict[Configuration, int] = {}
    kinds: dict[Kind, list[Any]] = {}
    for row in sorted(rows, key=lambda row: (str(row.features.kind), row.features.sizes)):
        problem = [list(row.features.sizes), _fastest(row, numbers), _thousandths(row.times[row.first], row.best)]
        kinds.setdefault(row.features.kind, []).append(problem)
    lines: list[Any] = [{"configurations": list(numbers)}]
    lines += [{"kind": kind, "problems": problems} for kind, problems in kinds.items()]
    rest = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    count = sum(map(len, kinds.values()))
    header = {"format": FORMAT, "capability": capability, "cudnn": release, "problems": count, **facts}
    return json.dumps({**header, "sha256": digest(rest)}) + "\n" + rest


def _fastest(row: Row, numbers: dict[Configuration, int]) -> list[int]:
    """Return the fastest configurations, as pairs of their number and their loss in thousandths."""
    ranked = sorted((time, place, c) for place, (c, time) in enumerate(row.times.items()))
    found: list[int] = []
    for time, _, configuration in ranked[:MOST]:
        if time <= row.best * (1 + NEAR):
            found += [numbers.setdefault(configuration, len(numbers)), _thousandths(time, row.best)]
    return found


def _thousandths(time: float, best: float) -> int:
    return round(1000 * (time / best - 1))
