"""Sum over the middle axis of (outer, size, inner) by average poolings, in several steps if the axis is long.

The tensor is pooled as channels-last images of one column. One thread adds up each result, so that a long axis takes 6 times as
long as PyTorch in one step, and 1.05 to 1.3 times in two steps (docs/benchmarks). Averages of parts that are stored in 16 bits
would be rounded twice, so these are computed in one step.
"""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import Executable, FunctionCall, OperandAddress, StepSequence, scaling_arguments
from cudnnpy.descriptors import PoolingDescriptor, TensorDescriptor
from cudnnpy.graph.graph import Graph
from cudnnpy.typing import ElementName

FULL = ("float32", "float64")
SHORT = 64  # elements of an axis up to which one step suffices
MEDIUM = 256  # the same, if there are enough results to occupy the GPU
BUSY = 32_768  # results that occupy the GPU
LONGEST = 4096  # maximum of elements of a window
_BATCH = 65_535  # maximum of images of one pooling


def average_by_pooling(
    device: int, sizes: tuple[int, int, int], dtype: ElementName, factor: float, beta: float, by_graph: bool
) -> StepSequence | None:
    """Return the steps of result = factor * average of x over size + beta * result, for x packed (outer, size, inner).

    With `by_graph`, graphs may be used: addresses are multiples of 16. Averages of 16 bits are rounded once, after the
    factor. None if a window would be too long.
    """
    outer, size, inner = sizes
    parts = _parts(size, outer * inner, dtype)
    if parts is None:
        return None
    builder = StepBuilder({"x": _flat(outer * size * inner, dtype), "y": _flat(outer * inner, dtype)})
    source, y = builder.operands["x"], builder.operands["y"]
    for at, length in enumerate(parts):
        last = at == len(parts) - 1
        size //= length
        scaled = last and (factor, beta) != (1.0, 0.0)
        # The graph stores averages unscaled. With 16 bits the sum would lose precision: the function scales before it rounds.
        can_resample = by_graph and not (scaled and dtype not in FULL)
        planned = _resampled(device, outer * size, length, inner, dtype) if can_resample else None
        direct = last and (planned is None or not scaled)
        target = y if direct else builder.scratch(_flat(outer * size * inner, dtype))
        if planned is None:
            planned = _pooled(outer * size, length, inner, dtype, *((factor, beta) if last else (1.0, 0.0)))
        if planned is None:
            return None
        builder.add(planned, source, target)
        source = target
        if last and not direct:
            builder.copy(source, y, factor, beta)
    return builder.sequence()


def _flat(count: int, dtype: ElementName) -> TensorSpec:
    return TensorSpec((count,), dtype, (1,))


def _parts(size: int, results: int, dtype: ElementName) -> list[int] | None:
    """Return the sizes of the windows of the steps, the innermost first. Their product is the size of the axis."""
    if size > SHORT and not (size <= MEDIUM and results >= BUSY) and dtype in FULL:
        root = int(size**0.5)
        part = next((n for n in range(root, 7, -1) if size % n == 0), 1)
        if part > 1 and size // part <= LONGEST:
            return [size // part, part]
    return [size] if size <= LONGEST else None


def _pooled(outer: int, size: int, inner: int, dtype: ElementName, factor: float, beta: float) -> Executable | None:
    """Return cudnnPoolingForward's average over (outer, size, inner); None if it does not support the size."""
    a, b = scaling_arguments(factor, beta, dtype)
    if inner > 1:
        if outer > _BATCH:
            return None
        window = PoolingDescriptor("average_include_padding", (size, 1), propagate_nan=True)
        whole, means = (TensorDescriptor((outer, inner, n, 1), dtype, format="nhwc") for n in (size, 1))
    else:  # rows: the channels of images of one line
        channels = next(n for n in range(min(outer, LONGEST), 0, -1) if outer % n == 0)
        if outer // channels > _BATCH:
            return None
        window = PoolingDescriptor("average_include_padding", (1, size), propagate_nan=True)
        whole, means = (TensorDescriptor((outer // channels, channels, 1, n), dtype) for n in (size, 1))
    return FunctionCall("cudnnPoolingForward", window, a, whole, OperandAddress(0), b, means, OperandAddress(1))


def _resampled(device: int, outer: int, size: int, inner: int, dtype: ElementName) -> Executable | None:
    """Return the average by the resample node of a graph, which is faster; None if it does not support the size.

    It is not used for bfloat16: resample-bfloat16 in docs/known-issues.md.
    """
    if dtype not in ("float16", "float32") or inner % 8 or size > MEDIUM:
        return None
    x, y = (TensorSpec((outer, inner, n, 1), dtype, channels_last_strides((outer, inner, n, 1))) for n in (size, 1))
    graph = Graph()
    graph.output("y", graph.resample("avgpool_include_padding", graph.tensor("x", x), (size, 1)), strides=y.strides)
    return graph.executable(device)
