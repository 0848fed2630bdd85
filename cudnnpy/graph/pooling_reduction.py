"""Sums over one run of a tensor as averages over the windows of poolings, in parts if the run is long.

The run lies between an outer and an inner one: images of one column, channels last. Each result is added up by one thread, so
a long run takes 6 times as long as PyTorch at once, and 1.05 to 1.3 times in two parts (docs/benchmarks). Averages of parts
that are stored in 16 bits would be rounded twice, so these are added up at once.
"""

from __future__ import annotations

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._runtime.executables import At, Executable, Function, Step, copy, scales
from cudnnpy.descriptors import PoolingDescriptor, TensorDescriptor
from cudnnpy.graph.graph import Graph
from cudnnpy.typing import ElementName

FULL = ("float32", "float64")
SHORT = 64  # elements of a run up to which it is averaged at once
MEDIUM = 256  # the same, if there are as many results as occupy the GPU
BUSY = 32_768  # results
LONGEST = 4096  # the most elements of a window
_BATCH = 65_535  # the most images of one pooling


def average_by_pooling(
    device: int, sizes: tuple[int, int, int], dtype: ElementName, factor: float, beta: float, by_graph: bool
) -> tuple[list[Step], list[int]] | None:
    """Return the steps that take x, packed (outer, size, inner), to factor * its averages over size + beta * result.

    With `by_graph`, graphs may be used: addresses are multiples of 16. Averages of 16 bits are rounded once, after the
    factor. None if a window would be too long.
    """
    outer, size, inner = sizes
    parts = _parts(size, outer * inner, dtype)
    if parts is None:
        return None
    steps: list[Step] = []
    scratch: list[int] = []
    place = 0
    for at, length in enumerate(parts):
        last = at == len(parts) - 1
        size //= length
        results = outer * size * inner
        scaled = last and (factor, beta) != (1.0, 0.0)
        # The graph stores averages unscaled. Those of 16 bits would lose what the sum has: they are scaled by the function.
        can_resample = by_graph and not (scaled and dtype not in FULL)
        planned = _resampled(device, outer * size, length, inner, dtype) if can_resample else None
        direct = last and (planned is None or not scaled)
        if not direct:
            scratch.append(results * dtype_of(dtype).itemsize)
        target = 1 if direct else 1 + len(scratch)
        if planned is None:
            planned = _pooled(outer * size, length, inner, dtype, *((factor, beta) if last else (1.0, 0.0)))
        if planned is None:
            return None
        steps.append(Step(planned, (place, target)))
        place = target
        if last and not direct:
            flat = TensorSpec((results,), dtype, (1,))
            steps.append(Step(copy(flat, flat, factor, beta), (place, 1)))
    return steps, scratch


def _parts(size: int, results: int, dtype: ElementName) -> list[int] | None:
    """Return the sizes of the windows, the innermost first, whose product is the size of the run."""
    if size > SHORT and not (size <= MEDIUM and results >= BUSY) and dtype in FULL:
        root = int(size**0.5)
        part = next((n for n in range(root, 7, -1) if size % n == 0), 1)
        if part > 1 and size // part <= LONGEST:
            return [size // part, part]
    return [size] if size <= LONGEST else None


def _pooled(outer: int, size: int, inner: int, dtype: ElementName, factor: float, beta: float) -> Executable | None:
    """Return cudnnPoolingForward's averages of (outer, size, inner); None if it does not support the size."""
    a, b = scales(factor, beta, dtype)
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
    return Function("cudnnPoolingForward", window, a, whole, At(0), b, means, At(1))


def _resampled(device: int, outer: int, size: int, inner: int, dtype: ElementName) -> Executable | None:
    """Return the averages by the resample node of a graph, which is faster; None if it does not support them.

    It is not used for bfloat16: resample-bfloat16 in docs/known-issues.md.
    """
    if dtype not in ("float16", "float32") or inner % 8 or size > MEDIUM:
        return None
    x, y = (TensorSpec((outer, inner, n, 1), dtype, channels_last_strides((outer, inner, n, 1))) for n in (size, 1))
    graph = Graph()
    graph.output("y", graph.resample("avgpool_include_padding", graph.tensor("x", x), (size, 1)), strides=y.strides)
    return graph.executable(device)
