"""`python -m tools.benchmark --only networks`: measures rows as long as the time allows, and writes the page of all rows."""

from __future__ import annotations

import argparse
import gc
import hashlib
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tools.benchmark.networks import catalogue, measure_layers, measure_programs, page
from tools.benchmark.networks.cells import Cell, in_order
from tools.benchmark.networks.figures import failures
from tools.benchmark.networks.measure_programs import INFERENCE, TRAINING, Program
from tools.benchmark.networks.store import Rows, Writer
from tools.benchmark.timing import Budget

SECONDS = 540.0

# part -> (its share of the time beside the others, seconds that its first row is expected to take)
PARTS = {"inference": (0.25, 60.0), "training": (0.15, 40.0), "layers": (0.60, 5.0)}


class Lost(Exception):
    """The GPU takes no more work from this process."""


class Task(NamedTuple):
    """A row to measure, and what measures it."""

    part: str
    key: str
    name: str
    measure: Callable[[dict[str, Any]], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that only networks have."""
    group = parser.add_argument_group("networks", "options of --only networks")
    group.add_argument("--part", action="append", choices=list(PARTS), help="of networks; may be given again")
    group.add_argument("--seed", type=int, help="draws the order of the layers' cells (0)")
    group.add_argument("--rows", type=Path, metavar="FILE", help="rows are appended to it; known ones are not repeated")
    group.add_argument("--known", type=Path, nargs="+", metavar="FILE", help="rows of other runs, not repeated either")
    group.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="only the page of these files' rows; no GPU"
    )
    group.add_argument("--again", action="store_true", help="measure rows again that failed")
    group.add_argument("--tune-seconds", type=float, metavar="SECONDS", help="autotune's limit for each of the layers")


def given_options(given: argparse.Namespace) -> list[str]:
    """Which of them were given."""
    names = ("part", "seed", "rows", "known", "merge", "again", "tune_seconds")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(given, name) not in (None, False)]


def why_not(given: argparse.Namespace) -> str:
    """What is wrong with the options together, "" if nothing is."""
    others = [name for name in given_options(given) if name != "--merge"]
    if given.merge and others:
        return f"{', '.join(others)}: given with --merge, which measures nothing"
    if given.tune_seconds is not None and given.tune_seconds <= 0:
        return f"--tune-seconds must be above 0; got {given.tune_seconds}"
    return ""


def main(given: argparse.Namespace, environment: Callable[[Any, float], Mapping[str, Any]]) -> int:
    """Runs the command; returns the exit status: 1 where a row failed."""
    networks = catalogue.read()
    order = in_order(networks, given.seed or 0)
    if given.merge:
        rows = _read(given.merge)
    else:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("the benchmark needs a CUDA GPU that torch can use")
        file = given.rows or given.out / "networks.jsonl"
        known = [other for other in dict.fromkeys([*(given.known or ()), file]) if other != file or file.exists()]
        rows = _read(known)
        seconds = given.budget or SECONDS
        tasks = _tasks(torch, order, given.tune_seconds)
        parts = [part for part in PARTS if part in (given.part or PARTS)]
        run = _run(torch, given, parts, environment(torch, seconds))
        writer = Writer(file, run)
        rows.runs[run["run"]] = run
        try:
            stopped = measure(
                torch, [task for part in parts for task in tasks[part]], rows, writer, seconds, given.again
            )
        finally:
            writer.close()
        print(f"rows are in {file}; {stopped}" if stopped else f"rows are in {file}")
    every = rows.all()
    text = page.markdown(every, rows.runs.values(), len(order))
    gpu = next((str(run["GPU"]) for run in rows.runs.values() if "GPU" in run), "unknown")
    given.out.mkdir(parents=True, exist_ok=True)
    target = given.out / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}-networks.md"
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}")
    print("\n".join(page.summary_lines(every)))
    lost = failures(every)
    print("\n".join(f"FAILED {line}" for line in lost))
    return 1 if lost else 0


def _read(files: Iterable[Path]) -> Rows:
    try:
        return Rows.read(files)
    except (OSError, ValueError) as error:
        raise SystemExit(f"rows: {error}") from error


def _run(torch: Any, given: argparse.Namespace, parts: Sequence[str], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The line of this run: what it was told, and what its numbers depend on."""
    return {
        "run": uuid.uuid4().hex[:8],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": given.seed or 0,
        "parts": list(parts),
        "list": _digest([catalogue.FILE]),
        "code": _digest(sorted((Path(__file__).parents[3] / "cudnnpy").rglob("*.py"))),
        "GPU capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        **{key: value for key, value in environment.items() if key != "date"},
    }


def _digest(files: Iterable[Path]) -> str:
    """What tells one state of files from another."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _tasks(torch: Any, order: Sequence[Cell], tune_seconds: float | None) -> dict[str, list[Task]]:
    """Every row that there is, by part."""

    def of_cell(cell: Cell) -> Task:
        def measure(row: dict[str, Any]) -> None:
            measure_layers.measure(torch, cell, row, tune_seconds)

        return Task("layers", cell.key, cell.name, measure)

    def of_program(program: Program) -> Task:
        def measure(row: dict[str, Any]) -> None:
            measure_programs.measure(torch, program, row)

        return Task(program.part, program.key, program.name, measure)

    return {
        "inference": [of_program(program) for program in INFERENCE],
        "training": [of_program(program) for program in TRAINING],
        "layers": [of_cell(cell) for cell in order],
    }


def measure(torch: Any, tasks: Sequence[Task], rows: Rows, writer: Writer, seconds: float, again: bool = False) -> str:
    """Measures tasks as long as their part has time, each into the file before the next; returns why it ended early.

    A row is begun only where the longest of its part so far would still end in time.
    """
    budget = Budget(seconds)
    todo: dict[str, list[Task]] = {}
    for task in tasks:
        if not rows.is_done(task.key, again):
            todo.setdefault(task.part, []).append(task)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        whole = sum(PARTS[part][0] for part in todo)
        for part, of_part in todo.items():
            share, longest = PARTS[part]
            mine = budget.part(min(share / whole, 1.0))
            whole -= share
            count = 0
            for task in of_part:
                if mine.left < longest:
                    break
                left = mine.left
                _one(torch, task, rows, writer)
                longest = left - mine.left if not count else max(longest, left - mine.left)
                count += 1
            print(f"{part}: {count} rows of {len(of_part):,} that were left", flush=True)
    except KeyboardInterrupt:
        return "stopped; the same command goes on"
    except Lost as error:
        return f"ended early: {error}; the same command goes on"
    finally:
        signal.signal(signal.SIGTERM, before)
    return ""


def _one(torch: Any, task: Task, rows: Rows, writer: Writer) -> None:
    row: dict[str, Any] = {"part": task.part, "name": task.name, "error": None}
    start = time.perf_counter()
    writer.begin(task.key)
    try:
        task.measure(row)
    except KeyboardInterrupt:
        writer.stop(task.key)
        raise
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["seconds"] = round(time.perf_counter() - start, 3)
    rows.rows[task.key] = writer.row(task.key, row)
    if row["error"] or task.part != "layers":  # tracebacks and modules hold tensors in circles
        gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        raise Lost(f"after {task.name}: {type(error).__name__}: {error}") from error
