"""GPU time of one cell: torch with its search and without, cudnnpy with prefer="fastest" and prefer="autotune"."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import cudnnpy
from tools.benchmark.networks import tensors
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.tensors import Operands, compared, operands, plan_arguments, plan_call, torch_call
from tools.benchmark.timing import Budget, summary, times_in_turns

MOST, LEAST = 15, 3  # repetitions
TIMING_SECONDS = 0.6  # for the repetitions of one cell, of which there are at least LEAST
PREFERENCES = ("fastest", "autotune")
WITHOUT_SEARCH = "torch, no search"


def measure(torch: Any, cell: Cell, row: dict[str, Any], tune_seconds: float | None = None) -> None:
    """Fill a row. A failure is raised, or is the row's `error`."""
    torch.backends.cudnn.allow_tf32 = cell.kind.tf32
    torch.backends.cudnn.benchmark = True
    row.update(facts(cell))
    with torch.no_grad(), _thread_without_search(torch) as without_search:
        sets = operands(torch, cell)
        searched = [torch_call(torch, cell, o) for o in sets]
        row["torch_search_s"] = _seconds(torch, searched[0])
        calls: dict[str, list[Callable[[], Any]]] = {
            "torch": searched,
            WITHOUT_SEARCH: [torch_call(torch, cell, o) for o in sets],
        }
        row["plan_s"], row["plans"] = {}, {}
        for prefer in PREFERENCES:
            extra = {"tune_seconds": tune_seconds} if prefer == "autotune" and tune_seconds is not None else {}
            plan, row["plan_s"][prefer] = timed_plan(torch, cell, sets[0], prefer=prefer, **extra)
            row["plans"][prefer] = plan_facts(plan)
            workspace = torch.empty(max(plan.workspace_size, 1), device=tensors.DEVICE, dtype=torch.uint8)
            calls[prefer] = [plan_call(torch, cell, o, plan, workspace) for o in sets]
        ours = {prefer: calls[prefer][0] for prefer in PREFERENCES}
        row["difference"], wrong = compared(torch, cell, sets[0], searched[0], ours)
        times = times_in_turns(
            torch, calls, MOST, LEAST, Budget(TIMING_SECONDS), elsewhere={WITHOUT_SEARCH: without_search}
        )
        row["ms"] = {name: summary(measured) for name, measured in times.items()}
        row["error"] = wrong or None


def facts(cell: Cell) -> dict[str, Any]:
    """Return the description of a cell, as text and as a problem, of which a table can be made."""
    layer, batch, kind = cell.layer, cell.batch, cell.kind
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4}[kind.dtype]
    with_bias = layer.bias and cell.operation == "forward"
    problem = {
        "x": layer.x_shape(batch),
        "w": layer.w_shape,
        "y": layer.y_shape(batch),
        **layer._asdict(),
        "dtype": kind.dtype,
        "channels_last": kind.channels_last,
        "tf32": kind.tf32,
        "with_bias": with_bias,
    }
    return {
        "layer": layer.text,
        "networks": list(cell.networks),
        "batch": batch,
        "kind": kind.name,
        "operation": cell.operation,
        "depthwise": layer.depthwise,
        "problem": problem,
        "flop": layer.operations(batch),
        "bytes": layer.moved_bytes(batch, itemsize),
    }


def plan_facts(plan: Any) -> dict[str, Any]:
    """Return the description of a plan, with its engine and knobs."""
    engine = plan.engine
    if dataclasses.is_dataclass(engine) and not isinstance(engine, type):
        engine = dataclasses.asdict(engine)
    return {
        "name": plan.name,
        "source": plan.source,
        "operation": plan.operation,
        "engine": engine,
        "workspace": plan.workspace_size,
        "notes": [str(getattr(note, "name", note)) for note in plan.notes],
        "deterministic": plan.deterministic,
        "ms": plan.milliseconds,
    }


def options(cell: Cell) -> Mapping[str, Any]:
    """Return the options of a Convolution for a cell, without its preference."""
    layer = cell.layer
    return {
        "padding": layer.padding,
        "stride": layer.stride,
        "dilation": layer.dilation,
        "groups": layer.groups,
        "tf32": cell.kind.tf32,
    }


def timed_plan(torch: Any, cell: Cell, o: Operands, **chosen: Any) -> tuple[Any, float]:
    """Return a plan, and the seconds that planning took."""
    convolution = cudnnpy.Convolution(**options(cell), **chosen)
    given = plan_arguments(cell, o)
    torch.cuda.empty_cache()  # torch's cached memory is not available to a workspace
    torch.cuda.synchronize()
    begin = time.perf_counter()
    plan = convolution.plan(given.operation, given.first, given.second, given.shape, bias=given.bias, out=o.out)
    torch.cuda.synchronize()
    return plan, time.perf_counter() - begin


def _seconds(torch: Any, call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


@contextmanager
def _thread_without_search(torch: Any) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A thread that runs calls with benchmark=False. torch caches its choices for each thread, whatever the flag was."""

    def without(call: Callable[[], Any]) -> Any:
        torch.backends.cudnn.benchmark = False
        try:
            with torch.no_grad():
                return call()
        finally:
            torch.backends.cudnn.benchmark = True

    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(without, call).result()
