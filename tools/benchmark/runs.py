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
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple, TypeAlias

from tools import rows

Row: TypeAlias = Mapping[str, Any]
START_SECONDS = 15.0  # less than this is not worth another child
IMPORT_SECONDS = 60.0  # that a child may take to its first line besides
LOST = 3  # exit status of a child whose GPU accepts no more work


class Task(NamedTuple):
    """A row to measure, by its key over all runs, and the function that fills it."""

    key: str
    measure: Callable[[dict[str, Any]], None]


def measured(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by key, the last one where there are several."""
    return {line["key"]: line for line in rows.read(file) if "key" in line}


def measure(torch: Any, tasks: Iterable[Task], file: Path, run: Mapping[str, Any]) -> int:
    """Measure the tasks that the file lacks within `run["seconds"]` in this process; return its exit status."""
    end, known = time.monotonic() + run["seconds"], measured(file)
    writer = rows.Writer(file)
    writer.add(run)
    for task in tasks:
        if task.key in known:
            continue
        if time.monotonic() > end:
            break
        if _measure_one(torch, task, writer, run["run"]):
            return LOST
    writer.close()
    return 0


def _measure_one(torch: Any, task: Task, writer: rows.Writer, run: str) -> bool:
    """Measure a row and write it; return whether the GPU is lost."""
    row: dict[str, Any] = {"key": task.key, "run": run, "error": None}
    writer.add({"begin": task.key, "run": run})
    begin = time.perf_counter()
    try:
        task.measure(row)
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
    print(line(row), flush=True)
    return "context_lost" in row


def supervise(file: Path, seconds: float, limit: float, module: str, arguments: Iterable[str]) -> str:
    """Run `python -m module ... --child SECONDS` until one succeeds or the time is over; return the reason for an early end.

    A child that adds nothing to the file for `limit` seconds is ended, after it has printed where it hangs.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-X", "faulthandler", "-m", module, *arguments]
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > min(START_SECONDS, seconds / 2):
        before = _size(file)
        process = subprocess.Popen([*command, "--child", f"{left:.1f}"])
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
    last, writer = rows.read(file)[-1], rows.Writer(file)
    if "begin" in last:
        error = f"the process ended while this was measured: {how}"
        writer.add({"key": last["begin"], "run": last["run"], "error": error, "process_ended": how})
    writer.close()


def leave(status: int) -> None:
    """End a child at once: a lost context makes the interpreter's own end wait or fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ratios(row: Row, base: str = "") -> dict[str, float]:
    """Return the median of each contender over that of a base, by default the first one. A failed row has none."""
    medians = {name: time["median"] for name, time in (row.get("ms") or row.get("us") or {}).items()}
    if row["error"] or not medians or base not in ("", *medians):
        return {}
    of_base = medians[base or next(iter(medians))]
    return {name: value / of_base for name, value in medians.items()}


def line(row: Row) -> str:
    """Return a row as text: its ratios, or the reason for which it failed."""
    if row["error"]:
        return f"FAILED {row['key']}: {row['error']}"
    return f"{row['key']}: {', '.join(f'{name} {value:.3f}' for name, value in ratios(row).items())}"


def spread(values: Collection[float], *bounds: float) -> str:
    """Return the number of ratios, their geometric mean, the worst, and how many are above each bound."""
    counts = [sum(value > bound for value in values) for bound in bounds]
    above = [f"{count} ({count / len(values):.0%}) above {bound}" for count, bound in zip(counts, bounds, strict=True)]
    return ", ".join([f"{len(values)} rows", f"mean {geometric_mean(values):.3f}", f"worst {max(values):.2f}", *above])
