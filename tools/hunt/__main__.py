"""`python -m tools.hunt`: runs the engines of cuDNN on drawn problems, and reports their faults (docs/dev/hunt.md)."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

from cudnnpy._measuring.gpu_worker import symptom_of
from cudnnpy._measuring.process import Ended, Message, StartError, WorkerProcess
from tools.hunt import report
from tools.hunt.drawing import KINDS, Drawn, draw
from tools.rows import FileError, Writer
from tools.threads import run_side_by_side

COMMAND = (sys.executable, "-P", "-m", "tools.hunt.child")
Start = Callable[[], WorkerProcess]
_MAX_ENDS = 40  # of processes for one problem
_ENOUGH = 4  # faults of one symptom of an engine in an operation, after which it is not run there
_PROBLEM_SECONDS, _LATE_SECONDS = 300.0, 20.0  # the most for one problem, and for the last ones after the time is up


class Hunt:
    """The problems that are left, the faults so far, and the file. Threads share it."""

    def __init__(self, file: Path, header: report.Row, only: str | None, most: int | None) -> None:
        findings = report.read(file)
        if findings is not None and findings.header != header:
            raise FileError(f"{file} must be of a hunt with {header}; got {findings.header}: name a new one with -o")
        done = findings.done if findings else {}
        self._numbers = islice((number for number in count() if number not in done), most)
        self._seed, self._only = header["seed"], only
        self._lock, self._writer, self._faults = threading.Lock(), Writer(file), Counter[tuple[str, str, str]]()
        if findings is None:
            self.add(header)
        for fault in findings.faults if findings else []:
            self._faults[fault["operation"], fault["engine"], fault["symptom"]] += 1

    def next(self) -> Drawn | None:
        """Return a problem that no other thread has; None after the last one."""
        with self._lock:
            number = next(self._numbers, None)
        return None if number is None else draw(self._seed, number, self._only)

    def add(self, row: report.Row) -> None:
        """Append a line to the file."""
        with self._lock:
            self._writer.add(row)
            if fault := row.get("fault"):
                self._faults[fault["operation"], fault["engine"], fault["symptom"]] += 1

    def known(self, operation: str) -> list[str]:
        """Return the engines that had enough faults in an operation."""
        with self._lock:
            return sorted({engine for (of, engine, _), n in self._faults.items() if of == operation and n >= _ENOUGH})


class Runner:
    """Runs problems one after the other in a child process, which is replaced when it ends."""

    def __init__(self, hunt: Hunt, start: Start, end: float) -> None:
        self._hunt, self._start, self._end, self._child = hunt, start, end, start()

    def run(self) -> None:
        """Run problems until the end, a time of time.monotonic()."""
        try:
            while time.monotonic() < self._end and (problem := self._hunt.next()):
                self._problem(problem)
        finally:
            self._child.end()

    def _ask(self, do: str, problem: Drawn, rows: dict[str, Message], **request: Any) -> Ended | str:
        """Send a request. Return how the process ended, or an error; add the rows of the candidates that ran."""

        def note(message: Message) -> None:
            rows[message["ran"]["name"]] = message["ran"]

        message = {"do": do, "text": problem.text, "seed": problem.number, **request}
        deadline = min(time.monotonic() + _PROBLEM_SECONDS, self._end + _LATE_SECONDS)
        answer = self._child.ask(message, deadline, note)
        if not isinstance(answer, Ended):
            return str(answer.get("error", ""))
        self._restart()
        return answer if answer.begun and answer.cause != "deadline" else answer.how

    def _restart(self) -> None:
        self._child.end()
        self._child = self._start()

    def _problem(self, problem: Drawn) -> None:
        """Run the candidates of a problem. If the child ends at one, the next child goes on without it."""
        begin, operation = time.monotonic(), problem.text.split(" ", 1)[0]
        rows: dict[str, Message] = {}
        ends: dict[str, Message] = {}
        known, error = self._hunt.known(operation), f"{_MAX_ENDS} candidates ended their process"
        for _ in range(_MAX_ENDS):
            ended = self._ask("run", problem, rows, known=known, left_out=[*rows, *ends])
            if isinstance(ended, str):
                error = ended
                break
            ends[ended.begun] = {**ended.step, "name": ended.begun}
        suspects = [*ends.values(), *(row for row in rows.values() if row["symptom"])]
        times = [row["ms"] for row in rows.values() if not row["symptom"] and row["ms"]]
        unrepeated = [row["name"] for row in suspects if not self._repeats(problem, operation, row)]
        done = {
            "problem": problem.number,
            "kind": problem.kind,
            "text": problem.text,
            "operation": operation,
            "engines": sorted({row["engine"] for row in (*rows.values(), *ends.values())}),
            "runs": len({*rows, *ends}),
            "ms": min(times, default=None),
            "unrepeated": unrepeated,
            "error": error,
            "seconds": round(time.monotonic() - begin, 2),
        }
        if time.monotonic() < self._end + _LATE_SECONDS:  # else it was interrupted, and runs again
            self._hunt.add(done)

    def _repeats(self, problem: Drawn, operation: str, row: Message) -> bool:
        """Return whether a fault repeats alone in a fresh process; if it does, write it."""
        again = self._alone(problem, row["name"], slack=0)
        if not again["symptom"]:
            return False
        facts = {"problem": problem.number, "operation": operation, "engine": row["engine"], "candidate": row["name"]}
        fault = {**facts, "text": problem.text, **again, "slack": False, "ms": None}
        if again["symptom"] == report.OUTSIDE:
            inside = self._alone(problem, row["name"], slack=report.SLACK_BYTES)
            fault.update(slack=not inside["symptom"], ms=inside.get("ms"))
        self._hunt.add({"fault": fault})
        return True

    def _alone(self, problem: Drawn, name: str, slack: int) -> Message:
        """Run one candidate in a fresh process; return its symptom, with the detail, and its time."""
        self._restart()
        rows: dict[str, Message] = {}
        ended = self._ask("alone", problem, rows, name=name, slack=slack)
        if isinstance(ended, Ended):
            return {"symptom": symptom_of(ended), "detail": ended.how}
        row = rows.get(name, {"symptom": "", "detail": f"it did not run: {ended}", "ms": None})
        return {key: row[key] for key in ("symptom", "detail", "ms")}


def _start() -> WorkerProcess:
    from cudnnpy._measuring.gpus import uuid_of

    return WorkerProcess({"gpu": uuid_of(0)}, command=COMMAND)


def _facts() -> dict[str, str]:
    """Return the release of cuDNN, the GPU and the driver, which one file has in common."""
    from cuda.core import Device

    from cudnnpy import raw
    from cudnnpy._planning.stored_choice import driver

    return {"cudnn": raw.version_text(raw.version()), "gpu": str(Device(0).name), "driver": driver()}


def main(arguments: list[str] | None = None, start: Start = _start, facts: Callable[[], report.Row] = _facts) -> int:
    """Runs the command; returns the exit status. Tests start other children."""
    parser = argparse.ArgumentParser(prog="python -m tools.hunt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no problem is begun (600)")
    parser.add_argument("--seed", type=int, default=1, help="draws the problems and knobs (1)")
    parser.add_argument("--processes", type=int, default=4, help="children, which run problems side by side (4)")
    parser.add_argument("--problems", type=int, metavar="COUNT", help="the most problems that this run begins")
    parser.add_argument("--only", choices=list(KINDS), help="one kind of problems")
    parser.add_argument("--summary", action="store_true", help="print the summary of the file, and run nothing")
    parser.add_argument("-o", "--output", type=Path, default=Path("faults.jsonl"), help="the file (faults.jsonl)")
    given = parser.parse_args(arguments)
    if given.processes < 1:
        parser.error(f"--processes must be 1 or more; got {given.processes}")
    try:
        if not given.summary:
            header = {"hunt": report.FORMAT, "seed": given.seed, "only": given.only, **facts()}
            _run(Hunt(given.output, header, given.only, given.problems), given, start)
        findings = report.read(given.output)
    except (OSError, FileError, StartError) as error:
        print(f"tools.hunt: {error}", file=sys.stderr)
        return 1
    print(report.summary(findings) if findings else f"{given.output}: no hunt", end="")
    return 0


def _run(hunt: Hunt, given: argparse.Namespace, start: Start) -> None:
    """Run problems in several threads, each with a child of its own. The first error of a thread is raised at the end."""
    end = time.monotonic() + given.seconds
    run_side_by_side([lambda: Runner(hunt, start, end).run()] * given.processes)


if __name__ == "__main__":
    sys.exit(main())
