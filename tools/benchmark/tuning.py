"""`python -m tools.benchmark.tuning -o FILE`: tunes convolutions that cudnnpy was not developed on, and runs each choice.

networks/left_out.txt has the convolutions, in all kinds of arithmetic and directions, in an order drawn by the seed.
Each is tuned with an empty store; the chosen plan runs 100 times at varied addresses, its results are compared, and it is
timed beside torch and the choice of "fastest". Rows are lines of FILE: the same command continues an earlier run. A problem
whose process ends or hangs is a failed row, and another process continues.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmark import placed, runs
from tools.benchmark.__main__ import environment, usable_torch
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, Cell, in_order
from tools.benchmark.networks.measure_layers import facts, plan_facts, timed_plan
from tools.benchmark.networks.tensors import (
    Operands,
    difference,
    exact,
    operands,
    plan_arguments,
    plan_call,
    torch_call,
)
from tools.benchmark.runs import ENDS, Part, Rows, Task
from tools.benchmark.summary import Row, ratio, slowest, spread
from tools.benchmark.timing import Budget, summary, times_in_turns

LIST = catalogue.FILE.with_name("left_out.txt")
PARTS = {"layers": Part(1.0, 5.0)}
TUNINGS = 1500
RUNS = 100  # of each chosen plan
RUNS_SECONDS = 5.0
HANG_SECONDS = 60.0  # in one problem
TUNE_SECONDS = 2.0  # the default of cudnnpy.Convolution
TIMING_SECONDS, MOST, LEAST = 0.2, 15, 3
FLOAT64, TORCH = "float64", "torch"
FLOAT64_FLOP = 1e10  # up to here a problem is computed in float64
CHOICES = ("fastest", "autotune")
SLOWER = 1.05  # than torch: listed
WRONG = {"wrong": "gave a wrong result", "changed": "changed bytes that are not their result"}
SYMPTOMS = ("context lost", "limit exceeded", "access outside", "wrong result", "process ended")


def limit(tune_seconds: float) -> float:
    """Return the time limit of a call that tunes, in seconds."""
    return 2 * tune_seconds + 3


def measure(torch: Any, cell: Cell, row: dict[str, Any], tune_seconds: float, timing_seconds: float) -> None:
    """Fill the row of a cell. A failure is raised, or is the row's `error`."""
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cell.kind.tf32, False
    row.update(facts(cell))
    sets = operands(torch, cell)
    guess, seconds = timed_plan(torch, cell, sets[0], prefer="fastest")  # before there is a stored choice
    plan = tune(torch, cell, sets[0], row, tune_seconds)
    row["plan_s"]["fastest"], row["plans"]["fastest"] = seconds, plan_facts(guess)
    expected, row["reference"] = reference(torch, cell, sets[0])
    size = max(plan.workspace_size, guess.workspace_size, 1)
    workspace = torch.empty(size, device=sets[0].out.device, dtype=torch.uint8)
    calls, guesses = ([plan_call(torch, cell, o, one, workspace) for o in sets] for one in (plan, guess))
    off = difference(torch, calls[0](), expected)
    if row["reference"] == TORCH and not off.within(cell.kind):
        expected, row["reference"] = exact(torch, cell, sets[0]), FLOAT64
    expected = expected.float()
    given = plan_arguments(cell, sets[0])
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
        torch.backends.cudnn.benchmark = True
        theirs = [torch_call(torch, cell, o) for o in sets]
        times = times_in_turns(
            torch, {"torch": theirs, "autotune": calls, "fastest": guesses}, MOST, LEAST, Budget(timing_seconds)
        )
        row["ms"] = {name: summary(measured) for name, measured in times.items()}


def reference(torch: Any, cell: Cell, o: Operands) -> tuple[Any, str]:
    """Return the result that others are compared with, and its origin: float64, or torch in the cell's own arithmetic."""
    if cell.layer.operations(cell.batch) <= FLOAT64_FLOP:
        try:
            return exact(torch, cell, o), FLOAT64
        except RuntimeError:  # torch has no kernel for it, or no memory
            pass
    return torch_call(torch, cell, o)().clone(), TORCH


def tune(torch: Any, cell: Cell, o: Operands, row: dict[str, Any], tune_seconds: float) -> Any:
    """Tune a cell and return its plan; the row gets its candidates and faults."""
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
    """Return the faults in the default store."""
    from cudnnpy import store

    return [str(fault)[:400] for fault in store.default().faults()]


def is_fault(reason: str) -> bool:
    """Return whether a rejection reason is a fault's."""
    return any(symptom in reason for symptom in SYMPTOMS)


def reason_kind(reason: str) -> str:
    """Return a rejection reason without its numbers and details."""
    return re.sub(r"\d[\d.,]*", "N", reason.split(":", maxsplit=1)[0])[:60]


def wrong(runs: Mapping[str, Any]) -> str:
    """Return the failures among the runs of a plan, or ""."""
    parts = [f"{runs[name]} of {runs['count']} runs {what}" for name, what in WRONG.items() if runs[name]]
    return "; ".join(parts) + (f" (largest difference {runs['largest']:.2g})" if runs["wrong"] else "")


def child(given: argparse.Namespace) -> int:
    """Measure in this process; return its exit status."""
    torch = usable_torch()
    run = {
        **environment(torch, given.budget),
        "command": "python -m tools.benchmark.tuning",
        "seed": given.seed,
        "tune_seconds": given.tune_seconds,
    }

    def task(cell: Cell) -> Task:
        def measured(row: dict[str, Any], _: Budget) -> None:
            with torch.no_grad():
                measure(torch, cell, row, given.tune_seconds, given.timing_seconds)

        return Task("layers", cell.name, measured)

    tasks = [task(cell) for cell in in_order(catalogue.read(LIST), given.seed)[: given.count]]
    return runs.measure(torch, tasks, PARTS, Rows([given.rows]), given.rows, run, again=False)


def lines(rows: Rows) -> list[str]:
    """Return the summary of the rows of a file."""
    every = list(rows.rows.values())
    tuned = [row for row in every if "plan_s" in row]
    unmeasured = [row["name"] for row in tuned if row["plans"]["autotune"]["ms"] is None]
    failed = {name: [f"{row['name']}: {row['error']}" for row in every if row.get(name)] for name in ENDS}
    others = [row for row in every if row["error"] and not any(row.get(name) for name in ENDS)]
    found = [f"{len(tuned):,} problems tuned of {len(every):,} begun, {len(rows.runs)} processes"]
    for title, names in (
        ("contexts lost", failed["context_lost"]),
        ("processes that ended or did not return", failed["process_ended"]),
        (
            "tuned later than 2 * tune_seconds + 3 s",
            [f"{row['name']}: {row['plan_s']['autotune']:.1f} s" for row in tuned if not row["in_time"]],
        ),
        ("wrong results, bytes changed, other errors", [f"{row['name']}: {row['error']}" for row in others]),
        (f"without a measured choice ({len(unmeasured) / max(len(tuned), 1):.2%})", unmeasured),
    ):
        found += [f"{title}: {len(names)}", *(f"    {name[:240]}" for name in names[:40])]
    counts = [row["runs"]["count"] for row in every if "runs" in row]
    found.append(
        f"plans run at varied addresses: {len(counts):,}, {sum(counts):,} runs, fewest {min(counts, default=0)}"
    )
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
    """Return the rows of depthwise, of other grouped and of all other convolutions."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = "depthwise" if row["depthwise"] else "grouped" if row["problem"]["groups"] > 1 else "others"
        found.setdefault(name, []).append(row)
    return found


def _ratios(rows: Sequence[Row]) -> list[str]:
    """Return the choices' times over torch's by kind and group, and the cells in which autotune is slow."""
    found = ["over torch; shares are of cells of 20 us or more"]
    for who in CHOICES:
        timed = [row for row in rows if "kind" in row and ratio(row, who) is not None]
        for kind in KINDS:
            of_kind = [row for row in timed if row["kind"] == kind.name]
            for name, members in {"all": of_kind, **by_groups(of_kind)}.items():
                if over := spread(members, who):
                    found.append(f"    {who}, {kind.name}, {name}: {over}")
    timed = [row for row in rows if ratio(row, "autotune") is not None]
    slow = [pair for pair in slowest(timed, "autotune", len(timed)) if pair[0] > SLOWER]
    found.append(f"autotune above {SLOWER}: {len(slow)}")
    return found + [f"    {value:.2f}: {row['name']}: {row['plans']['autotune']['name']}" for value, row in slow[:40]]


def _counts(title: str, counter: Counter[str]) -> list[str]:
    return [f"{title}: {sum(counter.values()):,}", *(f"    {n}: {text}" for text, n in counter.most_common(20))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a row failed."""
    os.environ["CUDNNPY_STORE"] = ""  # in memory, empty in each process
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.tuning", description=__doc__.split("\n\n")[0])
    parser.add_argument("-o", "--rows", type=Path, required=True, metavar="FILE", help="rows are appended to it")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no problem begins (540)")
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the problems (1)")
    parser.add_argument("--count", type=int, default=TUNINGS, help=f"the first so many of the order ({TUNINGS})")
    parser.add_argument("--tune-seconds", type=float, default=TUNE_SECONDS, help="autotune's limit (its default, 2)")
    timing = "of timing beside torch for each problem; 0 leaves it out (0.2)"
    parser.add_argument("--timing-seconds", type=float, default=TIMING_SECONDS, help=timing)
    parser.add_argument("--summary", action="store_true", help="only print the summary of FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        runs.leave(child(given))
    ended = ""
    if not given.summary:
        command = ["-m", "tools.benchmark.tuning", *(sys.argv[1:] if arguments is None else arguments), "--child"]
        ended = runs.supervise(given.rows, given.seconds, HANG_SECONDS, command)
    rows = Rows([given.rows])
    print("\n".join([*lines(rows), *([f"ended early: {ended}"] if ended else [])]))
    return int(bool(ended) or not rows.rows or any(row["error"] for row in rows.rows.values()))


if __name__ == "__main__":
    sys.exit(main())
