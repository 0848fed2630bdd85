"""Runs that measure rows in a child process until the time is over, and continue after rows that end the process.

The lines of a file of rows are of three forms:

    {"run": id, ...}                the versions, the GPU and the options of a run, before its rows
    {"begin": key, "run": id}       a row is being measured
    {"key": key, "run": id, ...}    the row; its "error" is null or the reason for which it failed

The child appends them. A child that crashes, hangs or loses the GPU costs the row that it measured: the parent records that
row as failed and starts another child.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools import rows
from tools.benchmark.timing import Budget

START_SECONDS = 15.0  # less than this is not worth another child
IMPORT_SECONDS = 60.0  # that a child may take to its first line besides
ENDS = ("context_lost", "process_ended")  # keys of rows whose process could not continue
LOST = 3  # exit status of a child whose GPU accepts no more work


class Task(NamedTuple):
    """A row to measure, and the function that fills it within a budget."""

    part: str
    name: str
    measure: Callable[[dict[str, Any], Budget], None]

    @property
    def key(self) -> str:
        """The row's identity over all runs."""
        return f"{self.part} | {self.name}"


class Part(NamedTuple):
    """A part of a run: its share of the time relative to the others, and the seconds that its first row may take.

    Without `first_seconds` all rows of the part are measured, and the time limits their repetitions.
    """

    share: float
    first_seconds: float = 0.0


class Rows:
    """The contents of files of rows: runs by id, and rows by key, the last one where there are several."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        for file in files:
            for line in rows.read(file):
                if "key" in line:
                    if not {"run", "part", "name", "error"} <= line.keys():
                        raise rows.FileError(
                            f"{file}: a row must have run, part, name and error; got {line['key']!r} without"
                        )
                    self.rows[line["key"]] = line
                elif "run" in line and "begin" not in line:
                    self.runs[line["run"]] = line

    def is_done(self, key: str, again: bool = False) -> bool:
        """Return whether a row needs no measuring; with `again`, failed rows do, unless they ended their process."""
        row = self.rows.get(key)
        return row is not None and not (again and row["error"] and not any(name in row for name in ENDS))


def measure(
    torch: Any,
    tasks: Sequence[Task],
    parts: Mapping[str, Part],
    known: Rows,
    file: Path,
    run: Mapping[str, Any],
    again: bool,
) -> int:
    """Measure tasks within `run["seconds"]` in this process; return its exit status.

    A row begins only if the longest row of its part so far would still end in time.
    """
    budget, writer = Budget(run["seconds"]), rows.Writer(file)
    writer.add(run)
    todo: dict[str, list[Task]] = {}
    for task in tasks:
        if not known.is_done(task.key, again):
            todo.setdefault(task.part, []).append(task)
    whole = sum(parts[part].share for part in todo)
    for part, of_part in todo.items():
        share, longest = parts[part]
        samples, mine = longest > 0, budget.part(min(share / whole, 1.0))
        whole -= share
        ended = ""
        for number, task in enumerate(of_part):
            left = mine.left
            if samples and left < longest:
                ended = (
                    f", {left:.0f} s are left and the next may take {longest:.0f} s: raise --budget, or continue later"
                )
                break
            is_lost = _measure_one(torch, task, mine.part(1 / (len(of_part) - number)), writer, run["run"])
            longest = left - mine.left if not number else max(longest, left - mine.left)
            if is_lost:
                return LOST
        else:
            number = len(of_part)
        print(f"{part}: measured {number} of {len(of_part):,} rows{ended}", flush=True)
    writer.close()
    return 0


def _measure_one(torch: Any, task: Task, budget: Budget, writer: rows.Writer, run: str) -> bool:
    """Measure a row and write it; return whether the GPU is lost."""
    row: dict[str, Any] = {"key": task.key, "run": run, "part": task.part, "name": task.name, "error": None}
    writer.add({"begin": task.key, "run": run})
    begin = time.perf_counter()
    try:
        task.measure(row, budget)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
        gc.collect()  # tracebacks hold tensors
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception as error:
        row |= {"context_lost": True, "error": row["error"] or f"{type(error).__name__}: {error}"}
    row["seconds"] = round(time.perf_counter() - begin, 3)
    writer.add(row)
    return "context_lost" in row


def supervise(file: Path, seconds: float, limit: float, command: Sequence[str]) -> str:
    """Run children until one succeeds or the time is over; return the reason for an early end, or "".

    `command` is completed by `--budget SECONDS`. A child that adds nothing to the file for `limit` seconds is ended, after it
    has printed where it hangs.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > min(START_SECONDS, seconds / 2):
        before = _size(file)
        process = subprocess.Popen([sys.executable, "-X", "faulthandler", *command, "--budget", f"{left:.1f}"])
        try:
            how = _wait(process, file, limit)
        except KeyboardInterrupt:
            process.kill()
            return "stopped; the same command continues"
        finally:
            process.wait()
        if not how:
            return ""
        if _size(file) == before:
            return how
        print(f"the process ended: {how}", flush=True)
        _record_failure(file, how)
    return ""


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _wait(process: subprocess.Popen[Any], file: Path, limit: float) -> str:
    """Wait for a child; return how it ended, "" if it succeeded."""
    size, since = _size(file), time.monotonic() + IMPORT_SECONDS
    while (status := process.poll()) is None:
        time.sleep(0.2)
        if (now := _size(file)) != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > limit:
            process.send_signal(signal.SIGABRT)  # prints the traceback of each thread
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
            return f"no return within {limit:.0f} s"
    return f"exit status {status}" if status else ""


def _record_failure(file: Path, how: str) -> None:
    """Write a failed row for the one that an ended child had begun."""
    writer, lines = rows.Writer(file), rows.read(file)
    if lines and "begin" in lines[-1]:
        part, _, name = lines[-1]["begin"].partition(" | ")
        failure = {"part": part, "name": name, "error": f"the process ended while this was measured: {how}"}
        writer.add({"key": lines[-1]["begin"], "run": lines[-1]["run"], **failure, "process_ended": how})
    writer.close()


def leave(status: int) -> None:
    """End a child at once: a lost context makes the interpreter's own end wait or fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
