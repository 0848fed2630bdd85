"""Reduce float64 to a maximum, minimum or norm along one long axis. cuDNN's graphs do not reduce float64.

cudnnReduceTensor takes 0.06 to 0.1 us for each element of the run on an H200, whatever else there is to do: up to 190 times
as long as PyTorch. Only a reduction to one number is fast. A maximum is that of the two halves of the run, element by element
(cudnnOpTensor), then of the halves of the result, and so on; the halves overlap if the length is odd. A norm is the sum of
absolute values or squares. These steps take 1.7 to 6 times as long as PyTorch (docs/benchmarks).
"""

from __future__ import annotations

from typing import Any

from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._runtime.executables import At, Executable, Function, Shifted, Step, described, elsewhere, scales
from cudnnpy.descriptors import OpTensorDescriptor
from cudnnpy.graph.pooling_reduction import average_by_pooling

SHORTEST = 512  # elements of a run for which the launches of the halves take less time than cudnnReduceTensor
_ITEM = 8  # bytes

Steps = tuple[list[Step], list[int]]


def reduce_float64(device: int, sizes: tuple[int, int, int], op: str) -> Steps | None:
    """Return the steps that reduce x, packed (outer, size, inner), over size, and the sizes of their scratch memory.

    None if the operation is another one, or if cudnnReduceTensor is faster.
    """
    outer, size, inner = sizes
    if size < SHORTEST or outer * inner == 1:
        return None
    if op in ("max", "min", "amax"):
        return _extrema(sizes, op)
    return _norm(device, sizes, op) if op in ("norm1", "norm2") else None


def _extrema(sizes: tuple[int, int, int], op: str) -> Steps:
    outer, size, inner = sizes
    steps: list[Step] = []
    scratch: list[int] = []
    place = 0
    if op == "amax":
        steps, scratch, place = [Step(_each("max", sizes, -1.0), (0, 2))], [_bytes(sizes)], 2
    first = len(scratch)
    while size > 1:
        half = -(-size // 2)
        if half > 1 and len(scratch) < first + 2:  # two parts take turns
            scratch.append(_bytes((outer, half, inner)))
        used = len(steps) - bool(first)
        target = 1 if half == 1 else 2 + first + used % 2
        here = TensorSpec((outer, half, inner, 1), "float64", (size * inner, inner, 1, 1))
        there = here._replace(strides=packed_strides(here.shape))
        larger = _binary("min" if op == "min" else "max", here, there)
        steps.append(Step(Shifted(larger, (0, (size - half) * inner * _ITEM, 0)), (place, place, target)))
        place, size = target, half
    return steps, scratch


def _norm(device: int, sizes: tuple[int, int, int], op: str) -> Steps | None:
    outer, size, inner = sizes
    summed = average_by_pooling(device, sizes, "float64", float(size), 0.0, by_graph=False)
    if summed is None:
        return None
    before = _each("mul", sizes, 1.0) if op == "norm2" else _each("max", sizes, -1.0)
    steps, scratch, places = elsewhere(summed[0], 2, summed[1], {0: _bytes(sizes)})
    steps = [Step(before, (0, places[0])), *steps]
    if op == "norm2":
        steps.append(Step(_root(outer, inner), (1, 1)))
    return steps, list(scratch)


def _bytes(sizes: tuple[int, int, int]) -> int:
    outer, size, inner = sizes
    return outer * size * inner * _ITEM


def _each(op: str, sizes: tuple[int, int, int], factor: float) -> Function:
    """Return op(x, factor * x) of each element."""
    (one, zero), (scale, _) = scales(1.0, 0.0, "float64"), scales(factor, 0.0, "float64")
    d = described(TensorSpec((*sizes, 1), "float64", packed_strides((*sizes, 1))))
    return Function("cudnnOpTensor", _how(op), one, d, At(0), scale, d, At(0), zero, d, At(1))


def _binary(op: str, x: TensorSpec, y: TensorSpec) -> Executable:
    """Return y = op(one, other) for two tensors with the strides of x."""
    one, zero = scales(1.0, 0.0, "float64")
    d = described(x)
    return Function("cudnnOpTensor", _how(op), one, d, At(0), one, d, At(1), zero, described(y), At(2))


def _root(outer: int, inner: int) -> Function:
    """Return the square root of each element, in place."""
    one, zero = scales(1.0, 0.0, "float64")
    d = described(TensorSpec((outer, inner, 1, 1), "float64", (inner, 1, 1, 1)))
    return Function("cudnnOpTensor", _how("sqrt"), one, d, At(0), zero, d, At(0), zero, d, At(1))


def _how(op: Any) -> OpTensorDescriptor:
    return OpTensorDescriptor(op, compute_dtype="float64", propagate_nan=True)
