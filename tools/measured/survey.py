"""`python -m tools.measured.survey`: measures every candidate of convolutions drawn from the benchmark's networks.

Each process has one kind of arithmetic, since loading kernels takes longer than timing them. The processes plan candidates
and run each of them once, which loads its kernels, side by side; only to time them do they take turns on the GPU. Every row
that is done is a line in a file of its process (tools/measured/rows.py describes it), so a run may end at any time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from cudnnpy._core.layouts import extent
from cudnnpy._planning.candidate_filter import rejection, try_plan
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, Cell, in_order
from tools.benchmark.networks.measure_layers import facts
from tools.measured.problems import problem_of

GIB = 1 << 30
TENSORS, WORKSPACE = 2.0, 1.5  # GiB in each process: of inputs, of results; of workspace
SHARE = (0, 1, 2, 3, 0, 1, 2, 4, 3, 5)  # of KINDS: those that more networks run in more often
MOST = 1 << 23  # elements of a result that are compared
COLD = 150 << 20  # bytes that sets of tensors have together, so that none is in the L2 cache
FILL = 64 << 20  # bytes; filling them takes the GPU FILL_MS
FILL_MS = 0.022
LAUNCH_MS = 0.04  # the most that the host takes for a launch: so long is the GPU kept busy before those that are timed
HOPELESS = 3.0  # times as long as the best: not timed again, and left out where an engine was so slow three times
CLOSE = 1.4  # times as long as the best: timed again, in turns
LONG_MS = 500.0  # far more than loading kernels takes: a candidate whose first run takes longer does not run again
SMALL_MS = 0.004  # of the memory bandwidth and the tensor cores: most problems below are left out
COMPILED = 6  # of the heuristics' proposals: engines compiled at run time beyond them are not planned


class Gpu:
    """The memory, the timing and the results of one process."""

    def __init__(self, dtype: str, lock: TextIO) -> None:
        import torch

        self.torch, self.dtype, self._lock = torch, getattr(torch, dtype), lock
        size = int(TENSORS * GIB)
        self.inputs = torch.empty(size // self.dtype.itemsize, device="cuda", dtype=self.dtype)
        for part in self.inputs.split(1 << 28):
            part.normal_()
        self.results = torch.zeros(size, device="cuda", dtype=torch.uint8)
        self.workspace = torch.zeros(int(WORKSPACE * GIB), device="cuda", dtype=torch.uint8)
        self._filler = torch.zeros(FILL, device="cuda", dtype=torch.uint8)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize()
        self.handle = Handle.default(0)
        self.handle.set_stream(0)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn on the GPU: no other process times its candidates meanwhile."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
            self.torch.cuda.synchronize()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def addresses(self, problem: ConvolutionProblem) -> list[tuple[int, ...]]:
        """Sets of tensors for a problem, [] where they have no room."""
        *inputs, result = (-(-extent(spec) // 1024) * 1024 for spec in problem.specs)
        room, size = self.results.numel(), sum(inputs)
        if size > room or result > room:
            return []
        count = max(1, min(8, room // size, room // result, -(-COLD // (size + result))))
        found = []
        for number in range(count):
            at, places = self.inputs.data_ptr() + number * size, []
            for extent_ in inputs:
                places.append(at)
                at += extent_
            found.append((*places, self.results.data_ptr() + number * result))
        return found

    def once(self, launch: Callable[[], int]) -> float:
        """The milliseconds of a launch on the host's clock."""
        begin = time.perf_counter()
        _checked(launch())
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def timed(self, launches: Sequence[Callable[[], int]], count: int) -> float:
        """The milliseconds of one of some launches in a row, while the GPU is never idle."""
        for _ in range(math.ceil((1 + count) * LAUNCH_MS / FILL_MS)):
            self._filler.fill_(0)
        self._events[0].record()
        for number in range(count):
            _checked(launches[number % len(launches)]())
        self._events[1].record()
        self.torch.cuda.synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / count

    def result(self, launch: Callable[[], int], size: int) -> Any:
        """What a launch on the first set of tensors writes over NaN, the first of it."""
        out = self.results[:size].view(self.dtype)
        out.fill_(math.nan)
        _checked(launch())
        return out[:MOST].float()


def _checked(status: int) -> None:
    if status:
        raise CudnnError(f"a launch returned {status}")


def measured(cell: Cell, gpu: Gpu, history: dict[Any, list[float]]) -> dict[str, Any] | None:
    """The row of a cell; None where its tensors have no room.

    `history` has, for each kind of problem and each engine, its times over those of the best; this row's are added.
    """
    problem, options = problem_of(cell)
    sets = gpu.addresses(problem)
    if not sets:
        return None
    entries, usable = _planned(cell, problem, options, Target(gpu.handle), history)
    launches = {
        number: [candidate.executable.bind(gpu.handle, places, gpu.workspace.data_ptr()) for places in sets]
        for number, candidate in usable.items()
        if candidate.executable is not None
    }
    _measure(gpu, entries, launches, extent(problem.specs[-1]))
    timed = [entry for entry in entries if "ms" in entry]
    for entry in timed:
        history.setdefault(_kind(cell, entry), []).append(entry["ms"] / min(other["ms"] for other in timed))
    row: dict[str, Any] = {"key": cell.key, **facts(cell), "candidates": entries}
    del row["problem"]
    return row


def _planned(
    cell: Cell,
    problem: ConvolutionProblem,
    options: PlanningOptions,
    target: Target,
    history: dict[Any, list[float]],
) -> tuple[list[dict[str, Any]], dict[int, Candidate]]:
    """Every candidate once, in the order of the first guess; and those that can run, planned, by their number."""
    entries: list[dict[str, Any]] = []
    usable: dict[int, Candidate] = {}
    known = set()
    for likely, found in ((True, problem.proposed_candidates(options, target)), (False, problem.engines(target))):
        for place, candidate in enumerate(found):
            engine = candidate.engine
            if candidate.name in known or engine is None:
                continue
            known.add(candidate.name)
            entry = {
                "name": candidate.name,
                "source": candidate.source,
                "likely": likely,
                "engine": engine.index,
                "knobs": engine.knobs,
                "notes": candidate.notes,
                "compiled": candidate.compiled_at_run_time,
            }
            number = len(entries)
            entries.append(entry)
            past = history.get(_kind(cell, entry), [])
            if reason := rejection(candidate, problem, options):
                entry["refused"] = reason[:60]
            elif likely and candidate.compiled_at_run_time and place >= COMPILED:
                entry["skipped"] = "compiled at run time"
            elif usable and len(past) >= 3 and min(past) > HOPELESS:
                entry["skipped"] = f"{min(past):.1f} times as long as the best"
            elif try_plan(candidate, problem, options, int(WORKSPACE * GIB)):
                entry["workspace"] = candidate.workspace_size
                usable[number] = candidate
            else:
                entry["refused"] = candidate.rejection_reason[:60]
    return entries, usable


def _kind(cell: Cell, entry: dict[str, Any]) -> tuple[Any, ...]:
    group = cell.layer.depthwise if cell.layer.groups > 1 else None
    return cell.operation, group, len(cell.layer.size), cell.batch > 1, entry["engine"], entry["compiled"]


def _measure(gpu: Gpu, entries: list[dict[str, Any]], launches: dict[int, Any], size: int) -> None:
    """Writes the times into the entries: of all, of the fastest again and in turns, with a check of their results."""
    loaded = {}
    for number, calls in launches.items():
        try:
            loaded[number] = gpu.once(calls[0])
        except CudnnError as error:
            entries[number]["refused"] = str(error)[:60]
    with gpu.turn():
        _time(gpu, entries, {number: launches[number] for number in loaded}, loaded, size)


def _time(
    gpu: Gpu, entries: list[dict[str, Any]], launches: dict[int, Any], loaded: dict[int, float], size: int
) -> None:
    """Times candidates that ran once, in a turn on the GPU. `loaded` has the milliseconds of their first runs."""
    best, times = math.inf, dict[int, float]()
    for number, calls in launches.items():
        took = loaded[number]
        if took <= LONG_MS or not times:
            took = gpu.timed(calls, 1)
            if took <= HOPELESS * best:  # other processes load kernels: the least of two
                took = min(took, gpu.timed(calls, 2))
        times[number] = took
        best = min(best, took)
    ranked = sorted(times, key=lambda number: times[number])
    close = [number for number in ranked if times[number] <= CLOSE * best + 0.002][:7]
    close += [number for number in times if entries[number]["likely"]][:1]  # the first guess
    close = list(dict.fromkeys(close))
    again: dict[int, list[float]] = {number: [] for number in close}
    for _ in range(3):
        for number in close:
            count = max(2, min(6, round(0.3 / times[number])))
            again[number].append(gpu.timed(launches[number], count))
    for number, time_ in times.items():
        entries[number]["ms"] = round(min(again.get(number, [time_])), 5)
    expected = None
    for number in sorted(close):
        result = gpu.result(launches[number][0], size)
        expected = result if expected is None else expected
        off = gpu.torch.linalg.vector_norm(result - expected) / gpu.torch.linalg.vector_norm(expected)
        entries[number]["difference"] = float(f"{float(off):.2g}")


def run(index: int, processes: int, seconds: float, seed: int, folder: Path) -> None:
    """One of the processes: the cells of its kind in the order of the seed, as long as there is time."""
    end = time.monotonic() + seconds
    kind = KINDS[SHARE[index % len(SHARE)]]
    alike = [other for other in range(processes) if KINDS[SHARE[other % len(SHARE)]] == kind]
    cells = [cell for cell in in_order(catalogue.read(), seed) if cell.kind == kind]
    history: dict[Any, list[float]] = {}
    with Path(folder, "lock").open("w") as lock, Path(folder, f"{seed}-{index}.jsonl").open("a") as file:
        gpu = Gpu(kind.dtype, lock)
        for cell in _drawn(cells[alike.index(index) :: len(alike)], seed):
            if time.monotonic() > end:
                break
            try:
                row = measured(cell, gpu, history)
            except Exception as error:
                row = _failed(cell, error)
            if row is None:
                continue
            file.write(json.dumps(row) + "\n")
            file.flush()
            if "CUDA" in row.get("error", ""):
                break


def _failed(cell: Cell, error: Exception) -> dict[str, Any]:
    return {"key": cell.key, "error": f"{type(error).__name__}: {error}"[:300]}


def _drawn(cells: Sequence[Cell], seed: int) -> Iterator[Cell]:
    """The cells without most of the small ones."""
    draw = random.Random(seed)
    for cell in cells:
        itemsize = 4 if cell.kind.dtype == "float32" else 2
        least = max(cell.layer.operations(cell.batch) / 3e11, cell.layer.moved_bytes(cell.batch, itemsize) / 4e9)
        if least >= SMALL_MS or draw.random() > 0.7:
            yield cell


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.measured.survey", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the files of rows")
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no row is begun (120)")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of the cells (0)")
    memory = f"each takes {2 * TENSORS + WORKSPACE} GiB of the GPU's memory ({len(SHARE)}; fewer leave kinds of arithmetic out)"
    parser.add_argument("--processes", type=int, default=len(SHARE), help=memory)
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)  # of one process
    given = parser.parse_args()
    if given.processes < 1:
        parser.error(f"--processes must be 1 or more; got {given.processes}")
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.index is not None:
        run(given.index, given.processes, given.seconds, given.seed, given.folder)
        return 0
    command = [sys.executable, "-m", "tools.measured.survey", *sys.argv[1:]]
    environment = {**os.environ, "CUDNNPY_TABLES": ""}  # the first guess is that without a table
    started = [subprocess.Popen([*command, "--index", str(index)], env=environment) for index in range(given.processes)]
    return max(process.wait() for process in started)


if __name__ == "__main__":
    sys.exit(main())
