"""The first call of a problem whose choice is in the store, beside that of prefer="fastest": the time to set up a call."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cudnnpy
from tools.benchmark.layers import KINDS, LAYERS, OPERATIONS, Kind, Layer
from tools.benchmark.timing import Budget, interleaved, quiet, summary

MOST, LEAST = 30, 5  # first calls of each
TUNE_SECONDS = 1.0


def measure(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """One row for each kind and operation: milliseconds of the host for a first call, with an empty plan cache."""
    cells = [(kind, LAYERS[at % len(LAYERS)], operation) for at, kind in enumerate(KINDS) for operation in OPERATIONS]
    with tempfile.TemporaryDirectory() as folder:
        cudnnpy.store.use(str(Path(folder, "store.sqlite")))
        try:
            for at, (kind, layer, operation) in enumerate(cells):
                row: dict[str, Any] = {"kind": kind.name, "layer": layer.name, "operation": operation}
                row |= {"ms": None, "error": None}
                try:
                    row["ms"] = _measured(torch, kind, layer, operation, budget.part(1 / (len(cells) - at)))
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"
                yield row
        finally:
            cudnnpy.store.use(None)


def _measured(torch: Any, kind: Kind, layer: Layer, operation: str, budget: Budget) -> dict[str, dict[str, float]]:
    roads = {
        "fastest": _first_call(torch, kind, layer, operation, prefer="fastest"),
        "stored": _first_call(torch, kind, layer, operation, prefer="autotune", tune_seconds=TUNE_SECONDS),
    }
    for road in (*roads.values(), *roads.values()):  # the first time, it is tuned, and cuDNN loads its code
        road()
    with cudnnpy.freeze() as frozen, quiet():
        times = interleaved(roads, MOST, LEAST, budget)
    if frozen.unknown:
        raise RuntimeError(f"the store must have the choice; got none for {frozen.unknown[0]}")
    return {name: summary(measured) for name, measured in times.items()}


def _first_call(torch: Any, kind: Kind, layer: Layer, operation: str, **options: Any) -> Callable[[], float]:
    """Return what empties the plan cache, and returns the milliseconds of the host for a call."""
    conv = cudnnpy.Convolution(padding=layer.padding, stride=layer.stride, tf32=kind.tf32, **options)

    def random(shape: tuple[int, ...]) -> Any:
        memory = torch.channels_last if kind.channels_last else torch.contiguous_format
        return torch.randn(shape, device="cuda", dtype=getattr(torch, kind.dtype)).to(memory_format=memory)

    x, w, y = (random(shape) for shape in (layer.x_shape, layer.w_shape, layer.y_shape))
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: conv.forward(x, w, out=y),
        "backward_data": lambda: conv.backward_data(y, w, layer.x_shape, out=x),
        "backward_filter": lambda: conv.backward_filter(y, x, layer.w_shape, out=w),
    }

    def first() -> float:
        cudnnpy.clear_cache()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        calls[operation]()
        taken = (time.perf_counter() - begin) * 1e3
        torch.cuda.synchronize()
        return taken

    return first
