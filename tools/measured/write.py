"""A table of measurements, as cudnnpy/_planning/measurement_table.py reads it, of a survey's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from cudnnpy._planning.measurement_table import FORMAT, Configuration, Kind, digest
from tools.measured.rows import Row

MOST = 6  # configurations of a problem
NEAR = 0.25  # by how much more time than the fastest they take at most


class Problem(NamedTuple):
    """A problem of the table: its fastest configurations, each with its loss in thousandths, and the default choice's loss."""

    kind: Kind
    sizes: tuple[int, ...]
    fastest: list[tuple[Configuration, int]]
    first: int


def table(rows: Iterable[Row], capability: str, release: str, kept: Iterable[Problem] = (), **facts: Any) -> str:
    """Return the text of the table for an architecture and a release of cuDNN. `facts` are added to its first line.

    `kept` are problems of an earlier table, of which those stay that the rows do not have.
    """
    rows = list(rows)
    problems = [_problem(row) for row in rows]
    known = {(one.kind, one.sizes) for one in problems}
    problems += [one for one in kept if (one.kind, one.sizes) not in known]
    numbers: dict[Configuration, int] = {}
    kinds: dict[Kind, list[Any]] = {}
    for one in sorted(problems, key=lambda one: (str(one.kind), one.sizes)):
        pairs = [number for c, loss in one.fastest for number in (numbers.setdefault(c, len(numbers)), loss)]
        kinds.setdefault(one.kind, []).append([list(one.sizes), pairs, one.first])
    lines: list[Any] = [{"configurations": list(numbers)}]
    lines += [{"kind": kind, "problems": problems} for kind, problems in kinds.items()]
    rest = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    count = sum(map(len, kinds.values()))
    header = {"format": FORMAT, "capability": capability, "cudnn": release, "problems": count, **facts}
    return json.dumps({**header, "sha256": digest(rest)}) + "\n" + rest


def read(text: str) -> list[Problem]:
    """Return the problems of the text of a table."""
    _, listed, *kinds = map(json.loads, text.splitlines())
    configurations = [
        Configuration(lowering, engine, None if knobs is None else tuple(map(tuple, knobs)))
        for lowering, engine, knobs in listed["configurations"]
    ]
    return [
        Problem(
            tuple(tuple(part) if isinstance(part, list) else part for part in line["kind"]),
            tuple(sizes),
            [(configurations[number], loss) for number, loss in zip(pairs[::2], pairs[1::2], strict=True)],
            first,
        )
        for line in kinds
        for sizes, pairs, first in line["problems"]
    ]


def _problem(row: Row) -> Problem:
    ranked = sorted((time, place, c) for place, (c, time) in enumerate(row.times.items()))
    fastest = [(c, _thousandths(time, row.best)) for time, _, c in ranked[:MOST] if time <= row.best * (1 + NEAR)]
    return Problem(row.features.kind, row.features.sizes, fastest, _thousandths(row.times[row.first], row.best))


def _thousandths(time: float, best: float) -> int:
    return round(1000 * (time / best - 1))
