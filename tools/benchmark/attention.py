"""`python -m tools.benchmark.attention -o FILE`: attention beside torch's scaled_dot_product_attention on a GPU.

Each drawn problem has a row for forward, with statistics, and one for backward alone. A plan and torch's roads take turns, by
the GPU's clock. Results are compared with float64: the row of a wrong one fails, and a wrong road of torch's is absent. Rows
are lines of FILE: the same command continues an earlier run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from statistics import median
from typing import Any

import cudnnpy
from tools.benchmark import command, runs
from tools.benchmark.attention_cells import COUNT, KINDS, SEED, Cell, drawn, errors, operands
from tools.benchmark.runs import Row, Task
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary, times_in_turns, within

OPERATIONS = ("forward", "backward")
ROADS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION")
OURS = "cudnnpy"
WRONG = {"float16": 5e-3, "bfloat16": 4e-2}  # a right result is off by a tenth of it
SLOW = 1.08
TOGETHER, THREADS = 10, 8  # problems that are planned at once, before they are measured, and by so many threads
HANG_SECONDS = 60.0
MOST, LEAST, TIMING_SECONDS = 8, 4, 0.25
HOST_US = 200  # that the host may need to queue a call: torch's backward with autograd
SMALL = (1, 4, 64, 64)  # whose GPU time is hidden, for the host's time of a call


def plan(job: tuple[Cell, str], device: Any = 0) -> tuple[Any, float]:
    """Return a plan, or the exception instead, and the seconds of planning."""
    cell, operation = job
    begin = time.perf_counter()
    try:
        made: Any = cudnnpy.Attention(**cell.options).plan(operation, **cell.specs(), device=device)  # type: ignore[arg-type]
    except Exception as error:
        made = error
    return made, time.perf_counter() - begin


def plan_all(cells: Sequence[Cell]) -> dict[tuple[Cell, str], tuple[Any, float]]:
    """Plan forward and backward of problems in threads."""
    jobs = [(cell, operation) for cell in cells for operation in OPERATIONS]
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(jobs, pool.map(plan, jobs), strict=True))


def measure(torch: Any, cell: Cell, operation: str, planned: Callable[[], Any], row: dict[str, Any]) -> None:
    """Fill a row. A wrong result is its error."""
    row |= {"cell": cell.text, "kind": cell.kind, "operation": operation, "ms": {}, "errors": {}, "absent": {}}
    made, row["plan_s"] = planned()[cell, operation]
    if isinstance(made, Exception):
        raise made
    row |= {"plan": made.name, "workspace": made.workspace_size}
    given, right = operands(torch, cell)
    results = {name: torch.empty_like(given[_LIKE.get(name, name)]).fill_(math.nan) for name in _RESULTS[operation]}
    calls: dict[str, Callable[[], object]] = {OURS: launch(torch, made, given, results)}
    calls |= admitted_roads(torch, cell, operation, row)
    with quiet():
        alone = {name: [call] for name, call in calls.items()}
        times = times_in_turns(torch, alone, MOST, LEAST, Budget(TIMING_SECONDS), HOST_US)
    row["ms"] = {name: summary(found) for name, found in times.items()}
    row["errors"][OURS] = errors(results, right)
    row["error"] = wrong(row["errors"][OURS], cell.dtype) or None


def launch(
    torch: Any, plan: Any, given: Mapping[str, Any], results: Mapping[str, Any]
) -> Callable[[], Mapping[str, Any]]:
    """Return a call of a plan on tensors by name, which returns the results. It has a workspace of its own, NaN at first."""
    tensors, size = {**given, **results}, plan.workspace_size
    workspace = torch.empty(size or 1, device=tensors[plan.operands[0]].device, dtype=torch.uint8).fill_(255)
    addresses = [tensors[name].data_ptr() for name in plan.operands]
    addresses += [workspace.data_ptr() if size else 0, torch.cuda.current_stream().cuda_stream]

    def call(_alive: object = (tensors, workspace)) -> Mapping[str, Any]:
        plan.execute(*addresses)
        return results

    return call


_RESULTS = {"forward": ("out", "statistics"), "backward": ("dq", "dk", "dv")}
_LIKE = {"dq": "q", "dk": "k", "dv": "v"}


def admitted_roads(torch: Any, cell: Cell, operation: str, row: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Return the calls of torch's roads that run and are right. The row gets their errors, and why others are absent."""
    given, right = operands(torch, cell)
    found: dict[str, Callable[[], object]] = {}
    for road in ROADS if cell.has_torch else ():
        try:
            call = _road(torch, cell, operation, road, given)
            row["errors"][road] = off = errors(dict(zip(_RESULTS[operation], call(), strict=False)), right)
        except Exception as error:  # torch says in warnings why there is no kernel
            row["absent"][road] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        if why := wrong(off, cell.dtype):
            row["absent"][road] = why
        else:
            found[road] = call
    return found


def _road(torch: Any, cell: Cell, operation: str, road: str, given: dict[str, Any]) -> Callable[[], Any]:
    """Return the call of a road: forward for training, or its gradients."""
    q, k, v = (given[name].detach().requires_grad_() for name in "qkv")
    options = {
        "attn_mask": given.get("bias"),
        "is_causal": cell.causal is True,
        "enable_gqa": cell.heads != cell.kv_heads,
    }

    def forward() -> Any:
        with on_road(road), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (torch.nn.functional.scaled_dot_product_attention(q, k, v, **options),)

    if operation == "forward":
        return forward
    (out,) = forward()
    return partial(torch.autograd.grad, out, (q, k, v), given["dout"], retain_graph=True)


def on_road(road: str) -> AbstractContextManager[Any]:
    """Return the context manager in which torch takes a road."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen: AbstractContextManager[Any] = sdpa_kernel(getattr(SDPBackend, road))
    return chosen


def wrong(off: dict[str, float], dtype: str) -> str:
    """Return which results are wrong, or ""."""
    parts = [
        f"{name} is wrong by {value:.2g} (allowed: {WRONG[dtype]})"
        for name, value in off.items()
        if not value <= WRONG[dtype]
    ]
    return "; ".join(parts)


def measure_host(torch: Any, row: dict[str, Any]) -> None:
    """Fill a row with the host's microseconds of known calls of forward on small tensors, torch's first."""
    q = torch.randn(SMALL, device="cuda", dtype=torch.float16)
    out, attention = torch.empty_like(q), cudnnpy.Attention()
    statistics = torch.empty((*SMALL[:3], 1), device="cuda")
    made = attention.plan("forward", q, q, q)
    workspace = torch.empty(made.workspace_size or 1, device="cuda", dtype=torch.uint8)
    addresses = [tensor.data_ptr() for tensor in (q, q, q, out, statistics, workspace)]
    theirs = partial(torch.nn.functional.scaled_dot_product_attention, q, q, q)
    contenders: dict[str, tuple[Callable[[], object], Callable[[], AbstractContextManager[Any]]]] = {
        "torch": (theirs, nullcontext),
        **{road: (theirs, partial(on_road, road)) for road in ROADS},
        "forward(q, k, v)": (partial(attention.forward, q, q, q), nullcontext),
        "forward(q, k, v, statistics=True)": (partial(attention.forward, q, q, q, statistics=True), nullcontext),
        "forward(q, k, v, out=, statistics=)": (
            partial(attention.forward, q, q, q, out=out, statistics=statistics),
            nullcontext,
        ),
        "plan.execute(pointers)": (
            partial(made.execute, *addresses, torch.cuda.current_stream().cuda_stream),
            nullcontext,
        ),
    }
    with torch.no_grad(), quiet():
        timers = {
            name: partial(within, around, host_timer(call, torch.cuda.synchronize))
            for name, (call, around) in contenders.items()
        }
        for timer in timers.values():
            timer()
        row["us"] = {name: summary(found) for name, found in interleaved(timers, 30, 10, Budget(2.0)).items()}


def tasks(torch: Any, given: argparse.Namespace) -> Iterator[Task]:
    """Yield the rows: the host's, and those of each problem."""
    yield Task("host", partial(measure_host, torch))
    cells = drawn(given.seed, given.shapes)
    for first in range(0, len(cells), TOGETHER):
        some = cells[first : first + TOGETHER]
        planned = cache(partial(plan_all, some))
        for cell in some:
            for operation in OPERATIONS:
                yield Task(f"{operation} | {cell.text}", partial(measure, torch, cell, operation, planned))


# The summary


def over(row: Row, who: str) -> float | None:
    """Return our time over that of a road, or of the best one (""); None where there is none, or the row failed."""
    medians = {} if row["error"] else {name: time["median"] for name, time in row["ms"].items()}
    theirs = [medians[name] for name in (ROADS if not who else (who,)) if name in medians]
    return medians[OURS] / min(theirs) if theirs else None


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each problem, the geometric means and the slow cells."""
    cells = [row for row in rows if "cell" in row]
    yield f"milliseconds of {OURS}, its time over {', '.join(ROADS)}, and its largest relative error:"
    by_text: dict[str, dict[str, Row]] = {}
    for row in cells:
        by_text.setdefault(row["cell"], {})[row["operation"]] = row
    for text, both in by_text.items():
        yield f"{text} | {' | '.join(_entry(both[operation]) if operation in both else '' for operation in OPERATIONS)}"
    for operation in OPERATIONS:
        of_one = [row for row in cells if row["operation"] == operation]
        if planned := [row["plan_s"] for row in of_one if "plan_s" in row]:
            seconds = f"median {median(planned):.2f}, most {max(planned):.2f}"
            yield f"{operation}, seconds to plan ({THREADS} at once): {seconds}"
        for who in ("CUDNN_ATTENTION", ""):
            for kind in ("", *KINDS):
                found = {
                    row["cell"]: value
                    for row in of_one
                    if (not kind or row["kind"] == kind) and (value := over(row, who))
                }
                if found:
                    yield f"{operation} over {who or 'the best road'}, {kind or 'all'}: {runs.spread(found.values(), SLOW)}"
                if found and not kind:
                    slow = sorted(((value, text) for text, value in found.items() if value > SLOW), reverse=True)
                    yield from (f"    {value:.2f} {text}" for value, text in slow)
    failed = [runs.line(row) for row in rows if row["error"]]
    yield f"failed: {len(failed)}"
    yield from (f"    {text[:300]}" for text in failed)
    yield from (runs.line(row) + f" of torch's {row['us']['torch']['median']:.1f} us" for row in rows if "us" in row)


def _entry(row: Row) -> str:
    if row["error"]:
        return "FAILED"
    ratios = [over(row, road) for road in ROADS]
    texts = ["   -" if ratio is None else f"{ratio:4.2f}" for ratio in ratios]
    off = max(row["errors"][OURS].values())
    return f"{row['ms'][OURS]['median']:.4f} {' '.join(texts)} {off:.0e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a row failed."""
    parser = command.parser("tools.benchmark.attention", __doc__, 150)
    parser.add_argument("--seed", type=int, default=SEED, help=f"draws the problems ({SEED})")
    parser.add_argument("--shapes", type=int, default=COUNT, help=f"how many problems ({COUNT})")
    return command.main(parser, tasks, lines, HANG_SECONDS, arguments)


if __name__ == "__main__":
    sys.exit(main())
