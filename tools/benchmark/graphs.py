"""`python -m tools.benchmark.graphs -o FILE`: graphs beside the same programs under torch.compile, on a GPU.

Drawn matrix products, gated products, norms and elementwise chains are planned with `cudnnpy.Graph`, by "fastest" and by
"autotune", and take turns with torch.compile and with eager torch, by the GPU's clock. Results are compared with float64: a
wrong one fails its row. The row of a graph without an engine has torch's times. Rows are lines of FILE: the same command
continues an earlier run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from cudnnpy import store
from cudnnpy._core.layouts import byte_extent
from cudnnpy.errors import NoAlgorithmError
from tools.benchmark import command, runs
from tools.benchmark.attention import launch
from tools.benchmark.attention_cells import empty
from tools.benchmark.graph_cases import EACH, FAMILIES, SEED, Case, drawn, graph_of, inputs, program
from tools.benchmark.networks.tensors import difference, keeping
from tools.benchmark.runs import Row, Task, ratios
from tools.benchmark.timing import Budget, quiet, rotation, summary, times_in_turns

COMPILED, EAGER = "torch.compile", "torch"
OURS = ("fastest", "autotune")
TOLERANCES = {"float16": 5e-3, "bfloat16": 3e-2, "float32": 5e-3}  # of `Difference`; float32 is computed as tf32
BOUNDS = (1.05, 1.2)
TUNE_SECONDS = 2.0  # the default of cudnnpy.Graph
HANG_SECONDS = 120.0
MOST, LEAST, TIMING_SECONDS = 15, 5, 0.5
HOST_US = 200  # that the host may need to queue a call: 9 operations of eager torch

Calls = list[Callable[[], Any]]


def measure(torch: Any, case: Case, tune_seconds: float, row: dict[str, Any]) -> None:
    """Fill the row of a case. Wrong results are its error."""
    torch.backends.cuda.matmul.allow_tf32 = True
    store.use("")  # "fastest", which is planned first, takes no choice of autotune's
    row |= {"family": case.family, "ms": {}, "errors": {}, "plans": {}, "absent": {}, "plan_s": {}}
    graph, run = graph_of(case), program(torch, case)
    moved = sum(byte_extent(node.spec) for node in (*graph.inputs, *graph.outputs))
    sets = [inputs(torch, case, seed) for seed in range(rotation(torch, moved))]
    exact = run(*(one.double() if one.is_floating_point() else one for one in sets[0].values()))
    torch._dynamo.reset()  # the function of another case is not compiled for dynamic shapes
    compiled = torch.compile(run, dynamic=False)
    begin = time.perf_counter()
    compiled(*sets[0].values())
    row["compile_s"] = time.perf_counter() - begin
    contenders: dict[str, Calls] = {
        name: [keeping(function, *one.values()) for one in sets]
        for name, function in ((COMPILED, compiled), (EAGER, run))
    }
    for prefer in OURS:
        begin = time.perf_counter()
        try:
            plan = graph_of(case, prefer=prefer, tune_seconds=tune_seconds).plan(torch.cuda.current_device())
        except NoAlgorithmError as error:
            row["absent"][prefer] = str(error).split("\n")[0]
            continue
        row["plan_s"][prefer], row["plans"][prefer] = time.perf_counter() - begin, plan.name
        results = [{node.name: empty(torch, node.spec).fill_(math.nan) for node in graph.outputs} for _ in sets]
        contenders[prefer] = [launch(torch, plan, *one) for one in zip(sets, results, strict=True)]
    wrong = []
    for name, calls in contenders.items():
        made = calls[0]()
        pairs = zip(made.values() if isinstance(made, dict) else made, exact, strict=True)
        found = [difference(torch, result.reshape(right.shape), right) for result, right in pairs]
        row["errors"][name] = max(one.relative for one in found)
        if not all(one.within(TOLERANCES[case.dtype]) for one in found):
            wrong.append(f"{name} is wrong by {', '.join(f'{one.relative:.2g} ({one.largest:.2g})' for one in found)}")
    row["error"] = "; ".join(wrong) or None
    if not wrong:
        with quiet():
            times = times_in_turns(torch, contenders, MOST, LEAST, Budget(TIMING_SECONDS), HOST_US)
        row["ms"] = {name: summary(measured) for name, measured in times.items()}


def tasks(torch: Any, given: argparse.Namespace) -> Iterator[Task]:
    """Yield the rows of the cases."""
    for case in drawn(given.seed)[: given.cases]:
        yield Task(case.text, torch.no_grad()(partial(measure, torch, case, given.tune_seconds)))


# The summary


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each case; for each family the ratios; the cases without an engine, and those that failed."""
    yield f"milliseconds of {COMPILED}; {' and '.join(OURS)} over it; the same over eager torch; eager torch over {COMPILED}:"
    measured = [row for row in rows if "family" in row]
    yield from map(_entry, sorted(measured, key=lambda row: list(FAMILIES).index(row["family"])))
    for family in ("", *FAMILIES):
        of_family = [row for row in measured if family in ("", row["family"])]
        for base in (COMPILED, EAGER):
            for who in OURS:
                if over := {row["key"]: found[who] for row in of_family if who in (found := ratios(row, base))}:
                    worst = max(over, key=lambda key: over[key])
                    yield f"{family or 'all'}, {who} over {base}: {runs.spread(over.values(), *BOUNDS)}: {worst}"
    if times := [row["compile_s"] for row in measured if "compile_s" in row]:
        yield f"seconds to compile: median {median(times):.2f}, most {max(times):.2f}"
    for who in OURS:
        if times := [row["plan_s"][who] for row in measured if who in row["plan_s"]]:
            yield f"seconds to plan by {who}: median {median(times):.2f}, most {max(times):.2f}"
    none = [row for row in measured if row["absent"]]
    yield f"without an engine: {len(none)}"
    yield from (f"    {row['key']}: {'; '.join(dict.fromkeys(row['absent'].values()))[:200]}" for row in none)
    failed = [runs.line(row)[:300] for row in rows if row["error"]]
    yield f"failed: {len(failed)}"
    yield from (f"    {text}" for text in failed)


def _entry(row: Row) -> str:
    if not (over := ratios(row, COMPILED)):
        return f"FAILED {row['key']}"
    texts = [
        " ".join(f"{found[who]:5.2f}" if who in found else "    -" for who in OURS)
        for found in (over, ratios(row, EAGER))
    ]
    return f"{row['ms'][COMPILED]['median']:.4f} | {texts[0]} | {texts[1]} | {over[EAGER]:5.2f} | {row['key']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a row failed."""
    parser = command.parser("tools.benchmark.graphs", __doc__, 540)
    parser.add_argument("--seed", type=int, default=SEED, help=f"draws the cases ({SEED})")
    count = EACH * len(FAMILIES)
    parser.add_argument("--cases", type=int, default=count, help=f"the first so many, of families in turn ({count})")
    parser.add_argument("--tune-seconds", type=float, default=TUNE_SECONDS, help="autotune's limit (its default, 2)")
    return command.main(parser, tasks, lines, HANG_SECONDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
