"""Pooling in ceil mode, where the last window on an axis may extend beyond the padding. The C functions do not support it.

The result is divided into parts: on each axis, the windows that fit, and the last window if it does not. The last window
is truncated at the end of the padded tensor. So each part is a pooling of a part of x.

In the gradient, windows of several parts share elements, and a sum over parts would be rounded for each of them. Therefore
the gradient is computed of a tensor in scratch memory that is long enough for all windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, packed_strides, to_packed
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import (
    FunctionCall,
    OffsetExecutable,
    OperandAddress,
    Step,
    copy,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.descriptors import PoolingDescriptor
from cudnnpy.names import enumerator


class Axis(NamedTuple):
    """A spatial axis: output position p is the window of the padded input that starts at element p * stride."""

    size: int
    output: int
    window: int
    padding: int
    stride: int

    @property
    def overhang(self) -> int:
        """The number of elements of the last window that lie beyond the padding."""
        return max(0, (self.output - 1) * self.stride + self.window - 2 * self.padding - self.size)

    def counts(self, include_padding: bool) -> list[int]:
        """The number of elements that each window averages: elements of the input, with or without the padding."""
        first, end = (-self.padding, self.size + self.padding) if include_padding else (0, self.size)
        starts = (at * self.stride - self.padding for at in range(self.output))
        return [min(start + self.window, end) - max(start, first) for start in starts]


class Part(NamedTuple):
    """A pooling of a part of an axis: `size` elements from `start` on give `output` results from `first` on.

    `share` converts an average over the window to one over the number of elements that Axis.counts counts.
    """

    start: int
    size: int
    window: int
    padding: int
    stride: int
    first: int
    output: int
    share: float = 1.0


def output_size(size: int, window: int, padding: int, stride: int, ceil_mode: bool) -> int:
    """The number of windows; in ceil mode including a last one that starts in the input or in the padding before it."""
    room = size + 2 * padding - window
    if not ceil_mode:
        return room // stride + 1
    output = -(-room // stride) + 1
    return output - ((output - 1) * stride >= size + padding)


def descriptor(mode: str, axes: Sequence[Axis | Part]) -> PoolingDescriptor:
    """The pooling descriptor of these axes. A single axis becomes the width of an image of height 1."""
    window, padding, stride = ([getattr(axis, name) for axis in axes] for name in ("window", "padding", "stride"))
    if len(axes) == 1:
        window, padding, stride = [1, *window], [0, *padding], [1, *stride]
    kind = enumerator(raw.cudnnPoolingMode_t, mode, "mode")
    return PoolingDescriptor(kind, window, padding=padding, stride=stride, propagate_nan=True)


def forward_steps(
    mode: str, axes: Sequence[Axis], x: TensorSpec, y: TensorSpec, alpha: float, beta: float
) -> list[Step]:
    """The steps on x and y, one for each part of the result."""
    steps = []
    for parts in product(*(_parts(axis, mode == "average_include_padding") for axis in axes)):
        a, b = scaling_arguments(alpha * math.prod(part.share for part in parts), beta, x.dtype)
        of_x, at_x = _box(x, [(part.start, part.size) for part in parts])
        of_y, at_y = _box(y, [(part.first, part.output) for part in parts])
        how, one, two = descriptor(mode, parts), tensor_descriptor(of_x), tensor_descriptor(of_y)
        function = FunctionCall("cudnnPoolingForward", how, a, one, OperandAddress(0), b, two, OperandAddress(1))
        steps.append(Step(OffsetExecutable(function, (at_x, at_y)), (0, 1)))
    return steps


def _parts(axis: Axis, include_padding: bool) -> list[Part]:
    """The windows that fit, and the last window if it does not fit."""
    size, output, window, padding, stride = axis
    if not axis.overhang:
        return [Part(0, size, window, padding, stride, 0, output)]
    start = max((output - 1) * stride - padding, 0)
    length = size - start  # elements of the last window
    share = length / axis.counts(True)[-1] if include_padding else 1.0
    last = Part(start, length, length, 0, 1, output - 1, 1, share)
    return [Part(0, size, window, padding, stride, 0, output - 1), last] if output > 1 else [last]


def _box(spec: TensorSpec, spatial: Sequence[tuple[int, int]]) -> tuple[TensorSpec, int]:
    """A part of a tensor, given as (start, size) on each spatial axis, and its offset from the tensor in bytes."""
    assert spec.strides is not None
    offset = sum(start * stride for (start, _), stride in zip(spatial, spec.strides[2:], strict=True))
    shape = (*spec.shape[:2], *(size for _, size in spatial))
    return spec._replace(shape=shape), offset * dtype_of(spec.dtype).itemsize


def gradient(
    mode: str, axes: Sequence[Axis], device: int, operands: Sequence[Operand], alpha: float, beta: float
) -> Program:
    """The program whose operands are dy, x, y and dx."""
    dy, x, _, _ = (operand.spec for operand in operands)
    is_average = mode.startswith("average")
    # Averages are computed in float32, since dy is scaled first; cudnnPoolingBackward rounds each sum of its elements once.
    dtype = "float32" if is_average and x.dtype != "float64" else x.dtype
    shape = (*x.shape[:2], *(axis.size + axis.overhang for axis in axes))
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    given_dy, given_x, given_y, result = builder.operands.values()
    longer, packed_dy = TensorSpec(shape, dtype, packed_strides(shape)), to_packed(dy, dtype)
    part = longer._replace(shape=x.shape)  # x's elements of `longer`
    long_x, long_dx = builder.scratch(longer), builder.scratch(longer)
    new_dy, new_y = builder.scratch(packed_dy), builder.scratch(packed_dy)
    if is_average:  # its gradient does not depend on x and y
        builder.clear(long_x)
        builder.clear(new_y)
        for launch in _weighted(dy, packed_dy, mode, axes):
            builder.add(launch, given_dy, new_dy)
        mode = "average_include_padding"
    else:
        builder.fill(long_x, -math.inf)
        builder.copy(given_x, long_x._replace(spec=part))
        builder.copy(given_dy, new_dy)
        builder.copy(given_y, new_y)
    one, zero = scaling_arguments(1.0, 0.0, dtype)
    small, large = tensor_descriptor(packed_dy), tensor_descriptor(longer)
    tensors = small, OperandAddress(0), small, OperandAddress(1), large, OperandAddress(2)
    function = FunctionCall(
        "cudnnPoolingBackward", descriptor(mode, axes), one, *tensors, zero, large, OperandAddress(3)
    )
    builder.add(function, new_y, new_dy, long_x, long_dx)
    builder.copy(long_dx._replace(spec=part), result, alpha, beta)
    return builder.program("pooling gradient", device, operands)


def _weighted(dy: TensorSpec, to: TensorSpec, mode: str, axes: Sequence[Axis]) -> Iterator[OffsetExecutable]:
    """Copies of dy, each element scaled by the window's size over the number of elements that the window averages."""
    runs = [_runs(axis, mode == "average_include_padding") for axis in axes]
    for chosen in product(*runs):
        factor = math.prod(weight for _, _, weight in chosen)
        source, start = _box(dy, [(first, length) for first, length, _ in chosen])
        target, place = _box(to, [(first, length) for first, length, _ in chosen])
        yield OffsetExecutable(copy(source, target, factor), (start, place))


def _runs(axis: Axis, include_padding: bool) -> list[tuple[int, int, float]]:
    """(first, length, weight) for each run of consecutive windows that average the same number of elements."""
    found, first = [], 0
    for count, same in groupby(axis.counts(include_padding)):
        length = len(list(same))
        found.append((first, length, axis.window / count))
        first += length
    return found
