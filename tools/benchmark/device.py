"""GPU time of ResNet-50's convolutions, with the cost of planning and tuning them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import cudnnpy
from tools.benchmark.layers import KINDS, LAYERS, OPERATIONS, Kind, Layer
from tools.benchmark.timing import Budget, device_timer, interleaved, rotation, summary, times_in_turns

MOST, LEAST = 25, 3  # repetitions
TUNE_SECONDS = 5.0  # Convolution's default, where the budget allows
PEAK_SIZE = 8192


class Operands(NamedTuple):
    """One set of tensors of one layer: x, w, dy, and room for every result."""

    x: Any
    w: Any
    dy: Any
    y: Any
    dx: Any
    dw: Any


def measure_peaks(torch: Any) -> dict[str, Any]:
    """TFLOP/s of a large matrix product in each kind of arithmetic, and GB/s of a large copy (read plus written)."""
    peaks: dict[str, Any] = {}
    budget = Budget(2.0)
    for kind in KINDS:
        torch.backends.cuda.matmul.allow_tf32 = kind.tf32
        a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, device="cuda").to(getattr(torch, kind.dtype)) for _ in range(2))
        out = torch.empty_like(a)
        milliseconds = _time_one(torch, partial(torch.matmul, a, b, out=out), budget)
        peaks[kind.name] = 2 * PEAK_SIZE**3 / milliseconds / 1e9
    peaks["copy"] = copy_rate(torch)
    return peaks


def copy_rate(torch: Any) -> float:
    """GB/s of a large copy (read plus written)."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    milliseconds = _time_one(torch, partial(target.copy_, source), Budget(0.5))
    return float(2 * source.nbytes / milliseconds / 1e6)


def _time_one(torch: Any, call: Callable[[], object], budget: Budget) -> float:
    call()
    timer = device_timer(torch, [call], 3)
    timer()
    return summary(interleaved({"": timer}, 9, 3, budget)[""])["median"]


def measure(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """One cell for each kind, layer and operation; a cell that fails has its error, and what was measured before it."""
    torch.backends.cudnn.benchmark = True
    problems = [(kind, layer, operation) for kind in KINDS for layer in LAYERS for operation in OPERATIONS]
    with torch.no_grad():
        for index, (kind, layer, operation) in enumerate(problems):
            cell: dict[str, Any] = {"kind": kind.name, "layer": layer.name, "operation": operation, "error": None}
            try:
                _measure(torch, kind, layer, operation, budget.part(1 / (len(problems) - index)), cell)
            except Exception as error:
                cell["error"] = f"{type(error).__name__}: {error}"
            yield cell


def _measure(torch: Any, kind: Kind, layer: Layer, operation: str, budget: Budget, cell: dict[str, Any]) -> None:
    torch.backends.cudnn.allow_tf32 = kind.tf32
    itemsize = getattr(torch, kind.dtype).itemsize
    cell["flop"], cell["bytes"] = layer.operations, layer.moved_bytes(itemsize)
    sets = _operands(torch, kind, layer)
    options: dict[str, Any] = {"padding": layer.padding, "stride": layer.stride, "tf32": kind.tf32}
    tune_seconds = min(TUNE_SECONDS, max(0.6 * budget.left, 0.1))
    fastest = cudnnpy.Convolution(**options, prefer="fastest")
    tuned = cudnnpy.Convolution(**options, prefer="autotune", tune_seconds=tune_seconds)

    cudnnpy.clear_cache()
    cold, _ = _plan(fastest, operation, layer, sets[0])
    cudnnpy.clear_cache()
    warm, plan = _plan(fastest, operation, layer, sets[0])
    cell["setup_ms"] = {"cold": cold * 1e3, "warm": warm * 1e3}
    torch.cuda.synchronize()
    tuning, tuned_plan = _plan(tuned, operation, layer, sets[0])
    cell["tuning_s"], cell["tuning_limit_s"] = tuning, tune_seconds
    cell["plans"] = {"fastest": _facts(plan), "autotune": _facts(tuned_plan)}

    contenders = {
        "torch": [_torch_call(torch, operation, layer, operands, []) for operands in sets],
        "fastest": [_call(fastest, operation, layer, operands) for operands in sets],
        "autotune": [_call(tuned, operation, layer, operands) for operands in sets],
    }
    cell["difference"] = _differences(torch, operation, layer, sets[0], contenders)
    times = times_in_turns(torch, contenders, MOST, LEAST, budget)
    cell["ms"] = {name: summary(measured) for name, measured in times.items()}
    wrong = {name: off for name, off in cell["difference"].items() if not off <= kind.tolerance}
    if wrong:
        cell["error"] = f"differs from torch by more than {kind.tolerance:g}: {wrong}"


def _operands(torch: Any, kind: Kind, layer: Layer) -> list[Operands]:
    """Sets of random tensors that are four times the L2 cache together, so that no call finds its inputs there."""
    dtype = getattr(torch, kind.dtype)
    memory_format = torch.channels_last if kind.channels_last else torch.contiguous_format
    count = rotation(torch, layer.moved_bytes(dtype.itemsize))

    def random(shape: tuple[int, ...]) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=memory_format)

    sets = []
    for _ in range(count):
        inputs = random(layer.x_shape), random(layer.w_shape), random(layer.y_shape)
        x, w, dy = inputs
        sets.append(Operands(*inputs, *(torch.full_like(tensor, math.nan) for tensor in (dy, x, w))))
    return sets


def _arguments(operation: str, layer: Layer, o: Operands) -> tuple[tuple[Any, ...], Any]:
    """What a Convolution's method takes, and the tensor for its result."""
    if operation == "forward":
        return (o.x, o.w), o.y
    if operation == "backward_data":
        return (o.dy, o.w, layer.x_shape), o.dx
    return (o.dy, o.x, layer.w_shape), o.dw


def _plan(conv: Any, operation: str, layer: Layer, operands: Operands) -> tuple[float, Any]:
    """Seconds that the plan takes, and the plan."""
    arguments, _ = _arguments(operation, layer, operands)
    begin = time.perf_counter()
    plan = conv.plan(operation, *arguments)
    return time.perf_counter() - begin, plan


def _facts(plan: Any) -> dict[str, Any]:
    return {
        "name": plan.name,
        "workspace": plan.workspace_size,
        "notes": [str(getattr(note, "name", note)) for note in plan.notes],
        "deterministic": plan.deterministic,
    }


def _call(conv: Any, operation: str, layer: Layer, operands: Operands) -> Callable[[], Any]:
    arguments, out = _arguments(operation, layer, operands)
    method = getattr(conv, operation)
    return lambda: method(*arguments, out=out)


def _torch_call(torch: Any, operation: str, layer: Layer, o: Operands, last: list[Any]) -> Callable[[], Any]:
    """torch's own call. Its newest result lives on in `last`, so that the allocator rotates buffers as `out` does."""
    stride, padding = [layer.stride] * 2, [layer.padding] * 2
    if operation == "forward":
        conv2d = torch.nn.functional.conv2d

        def forward() -> Any:
            last[:] = [conv2d(o.x, o.w, stride=stride, padding=padding)]
            return last[0]

        return forward
    mask = [operation == "backward_data", operation == "backward_filter", False]
    backward, wanted = torch.ops.aten.convolution_backward, mask.index(True)

    def call() -> Any:
        last[:] = [backward(o.dy, o.x, o.w, None, stride, padding, [1, 1], False, [0, 0], 1, mask)[wanted]]
        return last[0]

    return call


def _differences(
    torch: Any, operation: str, layer: Layer, operands: Operands, contenders: dict[str, list[Callable[[], Any]]]
) -> dict[str, float]:
    """|ours - torch's| / |torch's| for both preferences, on results that were full of NaN before."""
    expected = contenders["torch"][0]().float()
    scale = torch.linalg.vector_norm(expected)
    found = {}
    for name in ("fastest", "autotune"):
        _arguments(operation, layer, operands)[1].fill_(math.nan)
        result = contenders[name][0]().float()
        found[name] = float(torch.linalg.vector_norm(result.sub_(expected)) / scale)
    return found
