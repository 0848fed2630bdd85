"""`python -m tools.benchmark.tuning -o FILE`: tunes convolutions that cudnnpy was not developed on, and runs each choice.

networks/left_out.txt (or --list) has the convolutions, in all kinds of arithmetic and directions, in the order of a seed.
Each is tuned with an empty store; the chosen plan runs 100 times at varied addresses, its results are compared, and it is
timed beside torch and the choice of "fastest". Rows are lines of FILE: the same command continues an earlier run. A problem
whose process ends or hangs is a failed row, and another process continues.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmark import command, placed, runs
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, Cell, in_order
from tools.benchmark.networks.plans import facts, plan_facts, timed_plan
from tools.benchmark.networks.tensors import (
    Operands,
    difference,
    exact,
    operands,
    plan_arguments,
    plan_call,
    torch_call,
)
from tools.benchmark.runs import Row, Task, ratios
from tools.benchmark.timing import Budget, summary, times_in_turns

LIST = catalogue.FILE.with_name("left_out.txt")
TUNINGS = 1500
RUNS = 100  # of each chosen plan
RUNS_SECONDS = 5.0
HANG_SECONDS = 60.0  # in one problem
TUNE_SECONDS = 2.0  # the default of cudnnpy.Convolution
TIMING_SECONDS, MOST, LEAST = 0.2, 15, 3
FLOAT64, TORCH = "float64", "torch"
FLOAT64_FLOP = 1e10  # up to here a problem is computed in float64
WRONG = {"wrong": "gave a wrong result", "changed": "changed bytes that are not their result"}
SYMPTOMS = ("context lost", "limit exceeded", "access outside", "wrong result", "process ended")


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
    if row["reference"] == TORCH and not off.within(cell.kind.tolerance):
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
    """Tune a cell and return its plan; the row gets its seconds, its faults and its warnings."""
    from cudnnpy import store

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan, seconds = timed_plan(torch, cell, o, prefer="autotune", tune_seconds=tune_seconds)
    row.update(
        plan_s={"autotune": seconds},
        in_time=seconds <= 2 * tune_seconds + 3,
        plans={"autotune": plan_facts(plan)},
        faults=[
            f"{candidate.name}: {reason[:200]}"
            for candidate in plan.candidates
            if (reason := candidate.rejection_reason) and any(symptom in reason for symptom in SYMPTOMS)
        ],
        stored_faults=len(store.default().faults()),
        warnings=[str(warning.message)[:300] for warning in caught],
    )
    return plan


def wrong(runs: Mapping[str, Any]) -> str:
    """Return the failures among the runs of a plan, or ""."""
    parts = [f"{runs[name]} of {runs['count']} runs {what}" for name, what in WRONG.items() if runs[name]]
    return "; ".join(parts) + (f" (largest difference {runs['largest']:.2g})" if runs["wrong"] else "")


def tasks(torch: Any, given: argparse.Namespace) -> Iterator[Task]:
    """Yield the problems in the seed's order."""
    cells = [cell for cell in in_order(catalogue.read(given.list), given.seed) if re.search(given.only, cell.name)]
    limits = {"tune_seconds": given.tune_seconds, "timing_seconds": given.timing_seconds}
    for cell in cells[: given.count]:
        yield Task(cell.key, torch.no_grad()(partial(measure, torch, cell, **limits)))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the summary of rows."""
    tuned = [row for row in rows if "plan_s" in row]
    yield f"{len(tuned):,} problems tuned of {len(rows):,} begun"
    yield from _listed("contexts lost", [runs.line(row) for row in rows if "context_lost" in row])
    yield from _listed(
        "processes that ended or did not return", [runs.line(row) for row in rows if "process_ended" in row]
    )
    others = [row for row in rows if row["error"] and not {"context_lost", "process_ended"} & row.keys()]
    yield from _listed("wrong results, bytes changed, other errors", map(runs.line, others))
    late = [f"{row['key']}: {row['plan_s']['autotune']:.1f} s" for row in tuned if not row["in_time"]]
    yield from _listed("tuned later than 2 * tune_seconds + 3 s", late)
    yield from _listed(
        "without a measured choice", [row["key"] for row in tuned if row["plans"]["autotune"]["ms"] is None]
    )
    for name, members in by_groups(tuned).items():
        times = [row["plan_s"]["autotune"] for row in members]
        yield f"seconds to tune, {name}: {len(times)} problems, median {median(times):.2f}, most {max(times):.2f}"
    for who in ("autotune", "fastest"):
        for kind in KINDS:
            of_kind = [row for row in tuned if row["kind"] == kind.name]
            for name, members in {"all": of_kind, **by_groups(of_kind)}.items():
                if over := [found[who] for row in members if who in (found := ratios(row))]:
                    yield f"{who} over torch, {kind.name}, {name}: {runs.spread(over, 1.05)}"
    slow = sorted(tuned, key=lambda row: ratios(row).get("autotune", 0.0))[:-11:-1]
    yield from _listed("the slowest choices", map(runs.line, slow))
    for name in ("faults", "warnings"):
        yield from _listed(name, [f"{n}: {text}" for text, n in Counter(t for r in tuned for t in r[name]).items()])


def by_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of depthwise, of other grouped and of all other convolutions."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = "depthwise" if row["depthwise"] else "grouped" if row["problem"]["groups"] > 1 else "others"
        found.setdefault(name, []).append(row)
    return found


def _listed(title: str, texts: Iterable[str]) -> list[str]:
    texts = list(texts)
    return [f"{title}: {len(texts)}", *(f"    {text[:240]}" for text in texts[:40])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a row failed."""
    parser = command.parser("tools.benchmark.tuning", __doc__, 540)
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the problems (1)")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help=f"a list of networks ({LIST.name})")
    only = "problems whose names match: a layer, batch, kind and operation"
    parser.add_argument("--only", default="", metavar="EXPRESSION", help=only)
    parser.add_argument("--count", type=int, default=TUNINGS, help=f"the first so many of the order ({TUNINGS})")
    parser.add_argument("--tune-seconds", type=float, default=TUNE_SECONDS, help="autotune's limit (its default, 2)")
    timing = "of timing beside torch for each problem; 0 leaves it out (0.2)"
    parser.add_argument("--timing-seconds", type=float, default=TIMING_SECONDS, help=timing)
    return command.main(parser, tasks, lines, HANG_SECONDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
