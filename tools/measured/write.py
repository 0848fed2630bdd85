"""A table of measurements, as cudnnpy/_planning/measured.py reads it, of a survey's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from cudnnpy._planning.measured import FORMAT, Configuration, Kind, digest
from tools.measured.rows import Row

MOST = 6  # configurations of a problem
NEAR = 0.25  # by how much more time than the fastest they take at most
# For a replacement: how many problems of a class, of how many networks; the share of the first proposal's time that it takes
# at most in the geometric mean; or, for any two problems, in each.
LEAST_ROWS, LEAST_NETWORKS, GAIN = 5, 3, 0.85
FEW, FAR_FASTER = 2, 0.1


class Problem(NamedTuple):
    """A problem of the table: its fastest configurations, each with its loss in thousandths, and that of the first guess."""

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
    lines: list[Any] = [{"configurations": list(numbers), "replacements": replacements(rows)}]
    lines += [{"kind": kind, "problems": problems} for kind, problems in kinds.items()]
    rest = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    count = sum(map(len, kinds.values()))
    header = {"format": FORMAT, "capability": capability, "cudnn": release, "problems": count, **facts}
    return json.dumps({**header, "sha256": digest(rest)}) + "\n" + rest


def replacements(rows: Iterable[Row]) -> list[Any]:
    """Return the classes of problems in which one engine is never slower than the first guess, with both engines.

    An engine takes the time of its first configuration in the order of the first guess, and must have run for every problem.
    """
    classes: dict[tuple[Kind, int], list[Row]] = {}
    for row in rows:
        if not row.first.lowering:
            classes.setdefault((row.features.problem_class, row.first.engine), []).append(row)
    found = []
    for (problem_class, first), members in sorted(classes.items(), key=str):
        ratios = [{engine: time / row.times[row.first] for engine, time in _engines(row)} for row in members]
        always = set.intersection(*map(set, ratios)) - {first}
        means = {engine: geometric_mean(one[engine] for one in ratios) for engine in always}
        best = min(means, key=means.__getitem__, default=first)
        if best != first and _is_certain(members, [one[best] for one in ratios]):
            found.append([problem_class, first, best])
    return found


def _is_certain(members: Sequence[Row], ratios: Sequence[float]) -> bool:
    """Return whether problems of a class are evidence enough for an engine with these times over those of the first guess."""
    if len(members) >= FEW and max(ratios) <= FAR_FASTER:
        return True
    networks = frozenset[str]().union(*(row.networks for row in members))
    many = len(members) >= LEAST_ROWS and len(networks) >= LEAST_NETWORKS
    return many and geometric_mean(ratios) <= GAIN and max(ratios) <= 1


def _engines(row: Row) -> list[tuple[int, float]]:
    """Return each engine that ran without other steps, with the time of its first configuration."""
    times: dict[int, float] = {}
    for configuration, time in row.times.items():
        if not configuration.lowering:
            times.setdefault(configuration.engine, time)
    return list(times.items())


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
