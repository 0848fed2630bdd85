"""Runs that measure rows as long as the time allows, add them to a file, and write the page of all rows of several runs."""

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
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from tools.benchmark.report import table
from tools.benchmark.store import Rows, Writer
from tools.benchmark.timing import Budget

SECONDS = 540.0

Row: TypeAlias = Mapping[str, Any]
# part -> (its share of the time beside the others, seconds that its first row is expected to take)
Shares: TypeAlias = Mapping[str, tuple[float, float]]


class Lost(Exception):
    """The GPU takes no more work from this process."""


class Task(NamedTuple):
    """A row to measure, and what measures it."""

    part: str
    key: str
    name: str
    measure: Callable[[dict[str, Any]], None]


class Measurement(NamedTuple):
    """What a run measures, and what becomes of its rows."""

    name: str  # of the option --only, and in the names of files
    shares: Shares
    parts: Sequence[str]  # those of this run
    listed: Sequence[Path]  # the files that the list of rows comes from
    tasks: Callable[[Any], Mapping[str, Sequence[Task]]]  # every row that there is, by part; takes torch
    page: Callable[[Sequence[Row], Iterable[Row]], str]  # of the rows and the runs
    summary: Callable[[Sequence[Row]], Sequence[str]]
    # called before the first row of a part, with its tasks that are left and its seconds
    before: Mapping[str, Callable[[Sequence[Task], float], None]] = MappingProxyType({})


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all such runs have."""
    group = parser.add_argument_group("rows in files", "options of --only networks and --only operations")
    group.add_argument("--seed", type=int, help="draws the order of the rows (0)")
    group.add_argument("--rows", type=Path, metavar="FILE", help="rows are appended to it; known ones are not repeated")
    group.add_argument("--known", type=Path, nargs="+", metavar="FILE", help="rows of other runs, not repeated either")
    group.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="only the page of these files' rows; no GPU"
    )
    group.add_argument("--again", action="store_true", help="measure rows again that failed")


def given_options(given: argparse.Namespace) -> list[str]:
    """Which of them were given."""
    return given_only(given, ("seed", "rows", "known", "merge", "again"))


def given_only(given: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Which options of some names were given."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(given, name) not in (None, False)]


def why_not(given: argparse.Namespace, names: Sequence[str] = ()) -> str:
    """What is wrong with the options together, "" if nothing is."""
    others = [name for name in (*given_only(given, names), *given_options(given)) if name != "--merge"]
    return f"{', '.join(others)}: given with --merge, which measures nothing" if given.merge and others else ""


def main(
    given: argparse.Namespace, measurement: Measurement, environment: Callable[[Any, float], Mapping[str, Any]]
) -> int:
    """Runs the command; returns the exit status: 1 where a row failed."""
    if given.merge:
        rows = _read(given.merge)
    else:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("the benchmark needs a CUDA GPU that torch can use")
        file = given.rows or given.out / f"{measurement.name}.jsonl"
        known = [other for other in dict.fromkeys([*(given.known or ()), file]) if other != file or file.exists()]
        rows = _read(known)
        seconds = given.budget or SECONDS
        tasks = measurement.tasks(torch)
        run = _run(torch, given, measurement, environment(torch, seconds))
        writer = Writer(file, run)
        rows.runs[run["run"]] = run
        chosen = [task for part in measurement.parts for task in tasks[part]]
        try:
            stopped = measure(torch, chosen, rows, writer, seconds, measurement.shares, given.again, measurement.before)
        finally:
            writer.close()
        print(f"rows are in {file}; {stopped}" if stopped else f"rows are in {file}")
    every = rows.all()
    text = measurement.page(every, rows.runs.values())
    gpu = next((str(run["GPU"]) for run in rows.runs.values() if "GPU" in run), "unknown")
    given.out.mkdir(parents=True, exist_ok=True)
    target = given.out / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}-{measurement.name}.md"
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}")
    print("\n".join(measurement.summary(every)))
    lost = failures(every)
    print("\n".join(f"FAILED {line}" for line in lost))
    return 1 if lost else 0


def failures(rows: Iterable[Row]) -> list[str]:
    """One line for each row that has an error."""
    return [f"{row['part']}, {row['name']}: {row['error']}" for row in rows if row["error"]]


def runs_table(runs: Sequence[Row], rows: Sequence[Row]) -> str:
    """The runs as a table: how many of the rows each measured, what it was told, and what its numbers depend on."""
    keys = list(dict.fromkeys(key for run in runs for key in run if key != "run"))
    lines = [("rows", *(str(sum(row["run"] == run["run"] for row in rows)) for run in runs))]
    lines += [(key, *(str(run.get(key, "")) for run in runs)) for key in keys]
    return table(("run", *(run["run"] for run in runs)), lines)


def _read(files: Iterable[Path]) -> Rows:
    try:
        return Rows.read(files)
    except (OSError, ValueError) as error:
        raise SystemExit(f"rows: {error}") from error


def _run(
    torch: Any, given: argparse.Namespace, measurement: Measurement, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The line of this run: what it was told, and what its numbers depend on."""
    return {
        "run": uuid.uuid4().hex[:8],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": given.seed or 0,
        "parts": list(measurement.parts),
        "list": _digest(measurement.listed),
        "code": _digest(sorted((Path(__file__).parents[2] / "cudnnpy").rglob("*.py"))),
        "GPU capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        **{key: value for key, value in environment.items() if key != "date"},
    }


def _digest(files: Iterable[Path]) -> str:
    """What tells one state of files from another."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def measure(
    torch: Any,
    tasks: Sequence[Task],
    rows: Rows,
    writer: Writer,
    seconds: float,
    shares: Shares,
    again: bool = False,
    before_part: Mapping[str, Callable[[Sequence[Task], float], None]] = MappingProxyType({}),
) -> str:
    """Measures tasks as long as their part has time, each into the file before the next; returns why it ended early.

    A row is begun only where the longest of its part so far would still end in time. `before_part` is that of a Measurement.
    """
    budget = Budget(seconds)
    todo: dict[str, list[Task]] = {}
    for task in tasks:
        if not rows.is_done(task.key, again):
            todo.setdefault(task.part, []).append(task)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        whole = sum(shares[part][0] for part in todo)
        for part, of_part in todo.items():
            share, longest = shares[part]
            mine = budget.part(min(share / whole, 1.0))
            whole -= share
            if part in before_part:
                before_part[part](of_part, mine.left)
            count, ended = 0, ""
            for task in of_part:
                if mine.left < longest:
                    ended = f"; {mine.left:.0f} s are left, the next may take {longest:.0f} s: raise --budget, or go on later"
                    break
                left = mine.left
                _one(torch, task, rows, writer)
                longest = left - mine.left if not count else max(longest, left - mine.left)
                count += 1
            print(f"{part}: measured {count} of {len(of_part):,} rows{ended}", flush=True)
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
    if row["error"] or task.part not in ("layers", "operations"):  # tracebacks and modules hold tensors in circles
        gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        raise Lost(f"after {task.name}: {type(error).__name__}: {error}") from error
