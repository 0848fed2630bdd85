"""`python -m tools.benchmark.tuning -o FILE`: tunes convolutions that cudnnpy was not developed on, and runs each choice.

The convolutions are those of networks/left_out.txt in all kinds of arithmetic and directions, in an order drawn by the seed.
Each is tuned with an empty store; the chosen plan runs 100 times at varied addresses, its results are compared, and its
time is taken beside torch's. Rows are lines of FILE: the same command goes on where an earlier one ended. A process that
ends or does not return costs its problem, which is named, and is followed by another one.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmark import placed, resumable
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, Cell, in_order
from tools.benchmark.networks.figures import ratio, spread, worst
from tools.benchmark.networks.measure_layers import facts, plan_facts, timed_plan
from tools.benchmark.networks.tensors import Operands, asked, difference, exact, operands, plan_call, torch_call
from tools.benchmark.resumable import Row, Task
from tools.benchmark.store import Rows, Writer
from tools.benchmark.timing import Budget, summary, times_in_turns

LIST = catalogue.FILE.with_name("left_out.txt")
PART = "layers"
TUNINGS = 1500
RUNS = 100  # of each chosen plan
RUNS_SECONDS = 5.0
STUCK_SECONDS = 60.0  # in one problem
START_SECONDS = 15.0  # less than this is not worth another process
TUNE_SECONDS = 2.0  # the default of cudnnpy.Convolution
TIMING_SECONDS, MOST, LEAST = 0.2, 15, 3
FLOAT64, TORCH = "float64", "torch"
FLOAT64_FLOP = 1e10  # up to here a problem is computed in float64
LOST, STUCK = 3, 4  # exit statuses of a process
SLOWER = 1.05  # than torch: listed
ENDS = ("context_lost", "process_ended", "stuck")  # flags of rows whose process could not go on
WRONG = {"wrong": "gave a wrong result", "changed": "changed bytes that are not their result"}
SYMPTOMS = ("context lost", "limit exceeded", "access outside", "wrong result", "process ended")


def limit(tune_seconds: float) -> float:
    """The most seconds that a call may take that tunes."""
    return 2 * tune_seconds + 3


def measure(torch: Any, cell: Cell, row: dict[str, Any], tune_seconds: float, timing_seconds: float) -> None:
    """Fill the row of a cell, whose `stage` says how far it came. Whatever is wrong is raised, or is the row's `error`."""
    try:
        with torch.no_grad():
            _measure(torch, cell, row, tune_seconds, timing_seconds)
        row["stage"] = "waiting for the GPU"
        torch.cuda.synchronize()
    except Exception:
        row["context_lost"] = is_lost(torch)
        raise
    row["stage"] = "done"


def is_lost(torch: Any) -> bool:
    """Whether the CUDA context takes no more work."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _measure(torch: Any, cell: Cell, row: dict[str, Any], tune_seconds: float, timing_seconds: float) -> None:
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cell.kind.tf32, False
    row.update(facts(cell), stage="inputs")
    sets = operands(torch, cell)
    row["stage"] = "tuning"
    plan = tune(torch, cell, sets[0], row, tune_seconds)
    row["stage"] = "the reference"
    expected, row["reference"] = reference(torch, cell, sets[0])
    row["stage"] = "the first run"
    workspace = torch.empty(max(plan.workspace_size, 1), device=sets[0].out.device, dtype=torch.uint8)
    calls = [plan_call(torch, cell, o, plan, workspace) for o in sets]
    off = difference(torch, calls[0](), expected)
    if row["reference"] == TORCH and not off.within(cell.kind):
        expected, row["reference"] = exact(torch, cell, sets[0]), FLOAT64
    expected = expected.float()
    row["stage"] = "runs at varied addresses"
    given = asked(cell, sets[0])
    row["runs"] = placed.run(
        torch,
        plan,
        [array for array in (given.first, given.second, given.bias) if array is not None],
        sets[0].out,
        lambda result: difference(torch, result, expected),
        cell.kind,
        random.Random(cell.key),
        RUNS,
        Budget(RUNS_SECONDS),
    )
    row["error"] = wrong(row["runs"]) or None
    if timing_seconds:
        row["stage"] = "timing, torch's search included"
        torch.backends.cudnn.benchmark = True
        theirs = [torch_call(torch, cell, o) for o in sets]
        times = times_in_turns(torch, {"torch": theirs, "autotune": calls}, MOST, LEAST, Budget(timing_seconds))
        row["ms"] = {name: summary(measured) for name, measured in times.items()}


def reference(torch: Any, cell: Cell, o: Operands) -> tuple[Any, str]:
    """The result that others are compared with, and what computed it: float64, or torch in the cell's own arithmetic."""
    if cell.layer.operations(cell.batch) <= FLOAT64_FLOP:
        try:
            return exact(torch, cell, o), FLOAT64
        except RuntimeError:  # torch has no kernel for it, or no memory
            pass
    return torch_call(torch, cell, o)().clone(), TORCH


def tune(torch: Any, cell: Cell, o: Operands, row: dict[str, Any], tune_seconds: float) -> Any:
    """Tune a cell and return its plan; the row gets what was measured and rejected."""
    before = set(stored_faults())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan, seconds = timed_plan(torch, cell, o, prefer="autotune", tune_seconds=tune_seconds)
    rejected = [
        (candidate.name, candidate.rejection_reason) for candidate in plan.candidates if candidate.rejection_reason
    ]
    row.update(
        plan_s={"autotune": seconds},
        in_time=seconds <= limit(tune_seconds),
        plans={"autotune": plan_facts(plan)},
        candidates=len(plan.candidates),
        timed=sum(candidate.milliseconds is not None for candidate in plan.candidates),
        rejected=dict(Counter(reason_kind(reason) for _, reason in rejected)),
        faults=[[name, reason[:200]] for name, reason in rejected if is_fault(reason)],
        stored_faults=[fault for fault in stored_faults() if fault not in before],
        warnings=[str(warning.message)[:300] for warning in caught],
    )
    return plan


def stored_faults() -> list[str]:
    """The faults that the default store has; [] in a release without them."""
    from cudnnpy import store

    faults = getattr(store.default(), "faults", list)
    return [str(fault)[:400] for fault in faults()]


def is_fault(reason: str) -> bool:
    """Whether a rejection reason is that of a fault."""
    return any(symptom in reason for symptom in SYMPTOMS)


def reason_kind(reason: str) -> str:
    """A rejection reason without its numbers and details."""
    return re.sub(r"\d[\d.,]*", "N", reason.split(":", maxsplit=1)[0])[:60]


def wrong(runs: Mapping[str, Any]) -> str:
    """What is wrong with the runs of a plan, "" if nothing is."""
    parts = [f"{runs[name]} of {runs['count']} runs {what}" for name, what in WRONG.items() if runs[name]]
    return "; ".join(parts) + (f" (largest difference {runs['largest']:.2g})" if runs["wrong"] else "")


class Watch:
    """A thread that ends the process where one problem takes too long, after a row that names the problem and its stage."""

    def __init__(
        self, writer: Writer, end: Callable[[int], object] = os._exit, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer, self._end, self._clock = writer, end, clock
        self._current: tuple[float, str, dict[str, Any]] | None = None

    def start(self) -> None:
        """Look every second from now on."""
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(1)
            self.check()

    @contextmanager
    def over(self, key: str, row: dict[str, Any]) -> Iterator[None]:
        """Watch the measuring of a row."""
        self._current = (self._clock(), key, row)
        try:
            yield
        finally:
            self._current = None

    def check(self) -> None:
        """End the process if the present row takes too long."""
        current = self._current
        if current and self._clock() - current[0] > STUCK_SECONDS:
            row = {**current[2], "error": f"no return within {STUCK_SECONDS:.0f} s: {current[2].get('stage')}"}
            print(f"STUCK {current[1]}: {row['error']}", flush=True)
            self._writer.row(current[1], {**row, "stuck": True})
            self._end(STUCK)


def record_ended(rows: Rows, writer: Writer) -> None:
    """Write a row for each problem whose process ended while it was measured."""
    for key in rows.unfinished():
        part, _, name = key.partition(" | ")
        row = {"part": part, "name": name, "error": "the process ended while this was measured", "process_ended": True}
        rows.rows[key] = writer.row(key, row)


def child(given: argparse.Namespace) -> int:
    """Measure in this process as long as it lasts; return its exit status."""
    import torch

    from tools.benchmark.__main__ import environment

    if not torch.cuda.is_available():
        raise SystemExit("the benchmark needs a CUDA GPU that torch can use")
    rows = Rows.read([given.rows] if given.rows.exists() else [])
    run = {
        **environment(torch, given.seconds, ()),
        "run": uuid.uuid4().hex[:8],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m tools.benchmark.tuning",
        "seed": given.seed,
        "tune_seconds": given.tune_seconds,
    }
    writer = Writer(given.rows, run)
    record_ended(rows, writer)
    watch = Watch(writer)
    watch.start()

    def task(cell: Cell) -> Task:
        def measured(row: dict[str, Any]) -> None:
            with watch.over(cell.key, row):
                measure(torch, cell, row, given.tune_seconds, given.timing_seconds)

        return Task(PART, cell.key, cell.name, measured)

    tasks = [task(cell) for cell in in_order(catalogue.read(LIST), given.seed)[: given.count]]
    ended = resumable.measure(torch, tasks, rows, writer, given.seconds, {PART: (1.0, 5.0)})
    if ended:
        print(ended, flush=True)
    return LOST if ended.startswith("ended early") else 0


def supervise(file: Path, seconds: float, command: Sequence[str]) -> None:
    """Run processes one after another, as long as there is time and each adds to the file."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > START_SECONDS:
        size = file.stat().st_size if file.exists() else 0
        process = subprocess.Popen([*command, "--child", "--seconds", f"{left:.0f}"])
        try:
            status = process.wait(left + STUCK_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            print("stopped" if isinstance(why, KeyboardInterrupt) else "the process did not end in time", flush=True)
            return
        if status == 0 or not file.exists() or file.stat().st_size == size:
            return
        print(f"the process ended with status {status}", flush=True)


def lines(rows: Rows) -> list[str]:
    """The summary of the rows of a file."""
    every = list(rows.rows.values())
    tuned = [row for row in every if "plan_s" in row]
    ended = [*rows.unfinished(), *(row["name"] for row in every if row.get("process_ended"))]
    lost = [f"{row['name']}: {row['stage']}: {row['error']}" for row in every if row.get("context_lost")]
    stuck = [f"{row['name']}: {row['error']}" for row in every if row.get("stuck")]
    late = [f"{row['name']}: {row['plan_s']['autotune']:.1f} s" for row in tuned if not row["in_time"]]
    unmeasured = [row["name"] for row in tuned if row["plans"]["autotune"]["ms"] is None]
    others = [row for row in every if row["error"] and not any(row.get(name) for name in ENDS)]
    found = [f"{len(tuned):,} problems tuned of {len(every):,} begun, {len(rows.runs)} processes"]
    for title, names in (
        ("contexts lost", lost),
        ("processes ended", ended),
        (f"no return within {STUCK_SECONDS:.0f} s", stuck),
        ("tuned later than 2 * tune_seconds + 3 s", late),
        ("wrong results, bytes changed, other errors", [f"{row['name']}: {row['error']}" for row in others]),
        (f"without a measured choice ({len(unmeasured) / max(len(tuned), 1):.2%})", unmeasured),
    ):
        found += [f"{title}: {len(names)}", *(f"    {name[:240]}" for name in names[:40])]
    runs = [row["runs"]["count"] for row in every if "runs" in row]
    found.append(f"plans run at varied addresses: {len(runs):,}, {sum(runs):,} runs, fewest {min(runs, default=0)}")
    for name, members in by_groups(tuned).items():
        times = [row["plan_s"]["autotune"] for row in members]
        found.append(
            f"seconds to tune, {name}: {len(times)} problems, median {median(times):.2f}, most {max(times):.2f}"
        )
    found += _ratios(every)
    found += _counts("rejected", sum((Counter(row["rejected"]) for row in tuned), Counter()))
    found += _counts(
        "faults", Counter(f"{name}: {reason_kind(reason)}" for row in tuned for name, reason in row["faults"])
    )
    found += _counts("faults stored", Counter(fault for row in tuned for fault in row["stored_faults"]))
    return found + _counts("warnings", Counter(reason_kind(text) for row in tuned for text in row["warnings"]))


def by_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of depthwise, of other grouped and of all other convolutions."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = "depthwise" if row["depthwise"] else "grouped" if row["problem"]["groups"] > 1 else "others"
        found.setdefault(name, []).append(row)
    return found


def _ratios(rows: Sequence[Row]) -> list[str]:
    """autotune over torch by kind and group, and the slow cells."""
    timed = [row for row in rows if ratio(row, "autotune") is not None]
    found = ["autotune over torch: cells, geometric mean, worst, share above 1.05 of cells of 20 us or more"]
    for kind in KINDS:
        of_kind = [row for row in timed if row["kind"] == kind.name]
        for name, members in {"all": of_kind, **by_groups(of_kind)}.items():
            if over := spread(members, "autotune"):
                share = math.nan if over.share is None else over.share
                found.append(f"    {kind.name}, {name}: {over.cells}, {over.mean:.3f}, {over.worst:.2f}, {share:.1%}")
    slow = [pair for pair in worst(timed, "autotune", len(timed)) if pair[0] > SLOWER]
    found.append(f"above {SLOWER}: {len(slow)}")
    return found + [f"    {value:.2f}: {row['name']}: {row['plans']['autotune']['name']}" for value, row in slow[:40]]


def _counts(title: str, counter: Counter[str]) -> list[str]:
    return [f"{title}: {sum(counter.values()):,}", *(f"    {n}: {text}" for text, n in counter.most_common(20))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 where a row failed."""
    os.environ["CUDNNPY_STORE"] = ""  # in memory, empty in each process
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.tuning", description=__doc__.split("\n\n")[0])
    parser.add_argument("-o", "--rows", type=Path, required=True, metavar="FILE", help="rows are appended to it")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no problem is begun (540)")
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the problems (1)")
    parser.add_argument("--count", type=int, default=TUNINGS, help=f"the first so many of the order ({TUNINGS})")
    parser.add_argument("--tune-seconds", type=float, default=TUNE_SECONDS, help="autotune's limit (its default, 2)")
    timing = "of timing beside torch for each problem; 0 leaves it out (0.2)"
    parser.add_argument("--timing-seconds", type=float, default=TIMING_SECONDS, help=timing)
    parser.add_argument("--summary", action="store_true", help="only print the summary of FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        status = child(given)
        sys.stdout.flush()
        os._exit(status)  # a lost context makes the end of the interpreter wait or fail
    if not given.summary:
        command = [sys.executable, "-m", "tools.benchmark.tuning", *(sys.argv[1:] if arguments is None else arguments)]
        supervise(given.rows, given.seconds, command)
    rows = Rows.read([given.rows] if given.rows.exists() else [])
    print("\n".join(lines(rows)))
    return 1 if not rows.rows or rows.unfinished() or any(row["error"] for row in rows.rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
