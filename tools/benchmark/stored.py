"""The first call of a problem whose choice is in the store, compared with the first call of prefer="fastest"."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnnpy
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.measure_layers import options
from tools.benchmark.networks.tensors import operands, plan_arguments
from tools.benchmark.timing import Budget, interleaved, quiet, summary

MOST, LEAST = 30, 5  # first calls of each
TUNE_SECONDS = 1.0


def measure(torch: Any, cell: Cell, row: dict[str, Any], budget: Budget) -> None:
    """Time first calls of a cell on the host, each with an empty plan cache."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        cudnnpy.store.use(str(Path(folder, "store.sqlite")))
        try:
            calls = {
                "fastest": _first_call(torch, cell, prefer="fastest"),
                "stored": _first_call(torch, cell, prefer="autotune", tune_seconds=TUNE_SECONDS),
            }
            for call in (*calls.values(), *calls.values()):  # tunes, and loads cuDNN's code
                call()
            with cudnnpy.freeze() as frozen, quiet():
                times = interleaved(calls, MOST, LEAST, budget)
        finally:
            cudnnpy.store.use(None)
    if frozen.unknown:
        raise RuntimeError(f"the store must have the choice; got none for {frozen.unknown[0]}")
    row["ms"] = {name: summary(measured) for name, measured in times.items()}


def _first_call(torch: Any, cell: Cell, **preference: Any) -> Callable[[], float]:
    """Return a function that empties the plan cache and returns the milliseconds of the host for a call."""
    conv, o = cudnnpy.Convolution(**options(cell), **preference), operands(torch, cell)[0]
    problem = plan_arguments(cell, o)
    arguments = [problem.first, problem.second] + ([] if problem.shape is None else [problem.shape])
    method = getattr(conv, problem.operation)

    def first() -> float:
        cudnnpy.clear_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        method(*arguments, out=o.out)
        taken = (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize()
        return taken

    return first
