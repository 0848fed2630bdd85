"""`python -m tools.benchmark --only networks`: the layers of many networks, and whole networks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.benchmark import resumable
from tools.benchmark.networks import catalogue, measure_layers, measure_programs, page
from tools.benchmark.networks.cells import Cell, in_order
from tools.benchmark.networks.compile_ahead import compile_ahead
from tools.benchmark.networks.measure_programs import INFERENCE, TRAINING, Program
from tools.benchmark.resumable import Measurement, Shares, Task

PARTS: Shares = {"inference": (0.25, 20.0), "training": (0.15, 40.0), "layers": (0.60, 5.0)}
OPTIONS = ("part", "tune_seconds")

# torch.compile takes this long for one network, or for all of them side by side
COMPILE_SECONDS = 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that only networks have."""
    group = parser.add_argument_group("networks", "options of --only networks")
    group.add_argument("--part", action="append", choices=list(PARTS), help="of networks; may be given again")
    group.add_argument("--tune-seconds", type=float, metavar="SECONDS", help="autotune's limit for each problem")


def why_not(given: argparse.Namespace, sample: str | None) -> str:
    """What is wrong with the options together, "" if nothing is; `sample` is the measurement that was asked for."""
    if sample != "networks" and resumable.given_only(given, OPTIONS):
        return f"{', '.join(resumable.given_only(given, OPTIONS))}: given without --only networks"
    if given.tune_seconds is not None and given.tune_seconds <= 0:
        return f"--tune-seconds must be above 0; got {given.tune_seconds}"
    return resumable.why_not(given, OPTIONS)


def main(given: argparse.Namespace, environment: Callable[[Any, float], Mapping[str, Any]]) -> int:
    """Runs the command; returns the exit status: 1 where a row failed."""
    order = in_order(catalogue.read(), given.seed or 0)
    measurement = Measurement(
        "networks",
        PARTS,
        [part for part in PARTS if part in (given.part or PARTS)],
        [catalogue.FILE],
        lambda torch: _tasks(torch, order, given.tune_seconds),
        lambda rows, runs: page.markdown(rows, runs, len(order)),
        page.summary_lines,
        {"inference": _compile_ahead},
    )
    return resumable.main(given, measurement, environment)


def _compile_ahead(tasks: Sequence[Task], seconds: float) -> None:
    """Before the inference rows, as many as are likely to be measured."""
    keys = {task.key for task in tasks}
    programs = [program for program in INFERENCE if program.key in keys]
    if len(programs) > 1:
        done = compile_ahead(programs, min(COMPILE_SECONDS, seconds / 2))
        print(f"torch.compile: {done} of {len(programs)} networks compiled ahead", flush=True)


def _tasks(torch: Any, order: Sequence[Cell], tune_seconds: float | None) -> dict[str, list[Task]]:
    """Every row that there is, by part."""

    def of_cell(cell: Cell) -> Task:
        def measure(row: dict[str, Any]) -> None:
            measure_layers.measure(torch, cell, row, tune_seconds)

        return Task("layers", cell.key, cell.name, measure)

    def of_program(program: Program) -> Task:
        def measure(row: dict[str, Any]) -> None:
            measure_programs.measure(torch, program, row, tune_seconds)

        return Task(program.part, program.key, program.name, measure)

    return {
        "inference": [of_program(program) for program in INFERENCE],
        "training": [of_program(program) for program in TRAINING],
        "layers": [of_cell(cell) for cell in order],
    }
