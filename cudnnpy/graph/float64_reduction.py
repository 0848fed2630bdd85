"""Reduce float64 to a maximum, minimum or norm along one long axis. cuDNN's graphs do not reduce float64.

cudnnReduceTensor takes 0.06 to 0.1 us for each element of the axis on an H200, however few results there are: up to 190 times
as long as PyTorch. It is fast only for a single result. The steps here take 1.7 to 6 times as long (docs/benchmarks):

- A maximum or minimum is a tree: the elementwise maximum of the axis's two halves (cudnnOpTensor), then of the result's halves,
  and so on. The halves overlap if the length is odd.
- A norm is the sum of absolute values or squares.
"""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._launch.step_builder import StepBuilder, Tensor
from cudnnpy._launch.steps import FunctionCall, OffsetExecutable, StepSequence, op_tensor
from cudnnpy.graph.pooling_reduction import average_by_pooling
from cudnnpy.typing import TensorOperation

SHORTEST = 512  # elements of an axis from which the launches of the halves take less time than cudnnReduceTensor
_ITEM = 8  # bytes


def reduce_float64(device: int, sizes: tuple[int, int, int], op: str) -> StepSequence | None:
    """Return the steps that reduce x, packed (outer, size, inner), over size.

    None for other operations, or if cudnnReduceTensor is faster.
    """
    outer, size, inner = sizes
    if size < SHORTEST or outer * inner == 1:
        return None
    if op in ("max", "min", "amax"):
        return _extrema(sizes, op)
    return _norm(device, sizes, op) if op in ("norm1", "norm2") else None


def _extrema(sizes: tuple[int, int, int], op: str) -> StepSequence:
    outer, size, inner = sizes
    builder = StepBuilder({"x": _packed(outer, size, inner), "y": _packed(outer, 1, inner)})
    source, y = builder.operands["x"], builder.operands["y"]
    if op == "amax":
        absolute = builder.scratch(source.spec)
        builder.add(_each("max", sizes, -1.0), source, absolute)
        source = absolute
    buffers: list[Tensor] = []  # two take turns, the last one is in use
    while size > 1:
        half = -(-size // 2)
        if half == 1:
            target = y
        elif len(buffers) < 2:
            target = builder.scratch(_packed(outer, half, inner))
            buffers.append(target)
        else:
            buffers.reverse()
            target = buffers[-1]
        there = _packed(outer, half, inner)
        here = there._replace(strides=(size * inner, inner, 1, 1))
        larger = op_tensor("min" if op == "min" else "max", "float64", (here, 0), (here, 1), (there, 2))
        builder.add(OffsetExecutable(larger, (0, (size - half) * inner * _ITEM, 0)), source, source, target)
        source, size = target, half
    return builder.sequence()


def _norm(device: int, sizes: tuple[int, int, int], op: str) -> StepSequence | None:
    outer, size, inner = sizes
    sums = average_by_pooling(device, sizes, "float64", float(size), 0.0, by_graph=False)
    if sums is None:
        return None
    builder = StepBuilder({"x": _packed(outer, size, inner), "y": _packed(outer, 1, inner)})
    x, y = builder.operands["x"], builder.operands["y"]
    powers = builder.scratch(x.spec)
    builder.add(_each("mul", sizes, 1.0) if op == "norm2" else _each("max", sizes, -1.0), x, powers)
    builder.add(sums, powers, y)
    if op == "norm2":
        builder.add(_root(outer, inner), y, y)
    return builder.sequence()


def _packed(*sizes: int) -> TensorSpec:
    return TensorSpec((*sizes, 1), "float64", packed_strides((*sizes, 1)))


def _each(op: TensorOperation, sizes: tuple[int, int, int], factor: float) -> FunctionCall:
    """Return the call that computes op(x, factor * x) of each element."""
    x = _packed(*sizes)
    return op_tensor(op, "float64", (x, 0), (x, 0), (x, 1), factors=(1.0, factor, 0.0))


def _root(outer: int, inner: int) -> FunctionCall:
    """Return the call that computes the square root of each element, in place."""
    x = TensorSpec((outer, inner, 1, 1), "float64", (inner, 1, 1, 1))
    return op_tensor("sqrt", "float64", (x, 0), (x, 0), (x, 1), factors=(1.0, 0.0, 0.0))
