"""`python -m tools.benchmark --only operations`: a sample of the families, as many rows as the time allows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.benchmark import operations, resumable
from tools.benchmark.device import copy_rate
from tools.benchmark.families import page, problems
from tools.benchmark.families.problems import Problem
from tools.benchmark.resumable import Measurement, Shares, Task
from tools.benchmark.timing import Budget

PARTS: Shares = {"operations": (1.0, 4.0)}
TIMING_SECONDS = 0.3  # for the repetitions of one row, of which there are at least operations.LEAST


def main(given: argparse.Namespace, environment: Callable[[Any, float], Mapping[str, Any]]) -> int:
    """Runs the command; returns the exit status: 1 where a row failed."""
    order = problems.in_order(given.seed or 0)
    measurement = Measurement(
        "operations",
        PARTS,
        list(PARTS),
        [Path(problems.__file__)],
        lambda torch: {"operations": tasks(torch, order)},
        lambda rows, runs: page.markdown(rows, runs, len(order)),
        page.summary_lines,
    )
    return resumable.main(given, measurement, environment)


def tasks(torch: Any, order: list[Problem]) -> list[Task]:
    """A task for each problem. The rate of a copy is measured before the first."""
    rates: list[float] = []

    def measure(problem: Problem, row: dict[str, Any]) -> None:
        if not rates:
            rates.append(copy_rate(torch))
        row.update(operation=problem.case.name, shape=problem.shape, kind=problem.kind.name, unit="ms")
        with torch.no_grad():
            row["bytes"] = operations.measure_device(
                torch, problem.case, problem.kind, Budget(TIMING_SECONDS), row, problem.shape
            )
        row["memory_ms"] = row["bytes"] / rates[0] / 1e6

    return [Task("operations", one.key, one.name, partial(measure, one)) for one in order]
