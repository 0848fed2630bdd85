"""Normalizations composed of cuDNN's functions, for what no graph engine supports: float64, and very large sizes.

y = (x - mean) / sqrt(variance + epsilon) * scale + bias is computed step by step: means by cudnnReduceTensor, products and
sums by cudnnOpTensor, and 1 / sqrt(variance + epsilon) by cudnnBatchNormalizationForwardInference, applied to ones. Each
step reads and writes all of x, which is correct for every size but not fast.

Tensors have one of three shapes, of four or five axes: that of x, of its statistics, and of its parameters. Each axis of
the last two has x's size or 1. All tensors are packed and have one dtype, float32 or float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, extent, packed_strides
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.program import Operand
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, StepSequence, scaling_arguments, tensor_descriptor
from cudnnpy.descriptors import OpTensorDescriptor, TensorDescriptor
from cudnnpy.graph.reductions import reduction
from cudnnpy.typing import ElementName, TensorOperation

Shape = tuple[int, ...]


class Value(NamedTuple):
    """A tensor of the composition: the index of its address, and its spec."""

    place: int
    spec: TensorSpec


class Shapes(NamedTuple):
    """The shapes of x, of its statistics and of its parameters."""

    x: Shape
    mean: Shape
    row: Shape


class _Composition:
    """Steps on operands, which are named in the order of their addresses, and on scratch memory."""

    def __init__(self, device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str]) -> None:
        self.device, self.dtype, self.shapes = device, dtype, shapes
        self.steps: list[Step] = []
        self.scratch: list[int] = []
        self._names = list(names)

    def operand(self, name: str, shape: Shape) -> Value | None:
        """The operand of a name, as a tensor of a shape; None if there is none."""
        return Value(self._names.index(name), self._spec(shape)) if name in self._names else None

    def _spec(self, shape: Shape) -> TensorSpec:
        return TensorSpec(shape, self.dtype, packed_strides(shape))

    def new(self, shape: Shape) -> Value:
        """A new tensor in scratch memory."""
        spec = self._spec(shape)
        self.scratch.append(extent(spec))
        return Value(len(self._names) + len(self.scratch) - 1, spec)

    def full(self, shape: Shape, number: float) -> Value:
        """A new tensor that is filled with a number."""
        made = self.new(shape)
        self.steps.append(Step(fill(made.spec, number), (made.place,)))
        return made

    def combine(self, op: TensorOperation, a: Value, b: Value, result: Value, factor: float = 1.0) -> Value:
        """Add a step: result = a op factor * b, with b broadcast. result may be a, but not b."""
        assert result.place != b.place
        how = OpTensorDescriptor(op, compute_dtype=self.dtype, propagate_nan=True)
        one, zero = scaling_arguments(1.0, 0.0, self.dtype)
        other = scaling_arguments(factor, 0.0, self.dtype)[0]
        tensors = (
            one,
            tensor_descriptor(a.spec),
            OperandAddress(0),
            other,
            tensor_descriptor(b.spec),
            OperandAddress(1),
            zero,
            tensor_descriptor(result.spec),
            OperandAddress(2),
        )
        self.steps.append(Step(FunctionCall("cudnnOpTensor", how, *tensors), (a.place, b.place, result.place)))
        return result

    def reduce(self, op: str, x: Value, result: Value) -> Value:
        """Add a step: result = the sum or the mean of x over the axes on which result has size 1."""
        operands = Operand("x", x.spec), Operand("y", result.spec, True)
        program = reduction("", self.device, operands, op, 1.0, 0.0, True)
        self.steps.append(Step(StepSequence(program.steps, program.scratch), (x.place, result.place)))
        return result

    def mean(self, x: Value) -> Value:
        return self.reduce("avg", x, self.new(self.shapes.mean))

    def inverse_root(self, variance: Value, epsilon: float, result: Value) -> Value:
        """Add a step: result = 1 / sqrt(variance + epsilon)."""
        flat = (1, math.prod(variance.spec.shape), 1, 1)
        ones, zeros = self.full(flat, 1.0), self.full(flat, 0.0)
        one, zero = scaling_arguments(1.0, 0.0, self.dtype)
        values = tensor_descriptor(ones.spec)
        function = FunctionCall(
            "cudnnBatchNormalizationForwardInference", raw.CUDNN_BATCHNORM_PER_ACTIVATION, one, zero, values, OperandAddress(0),
            values, OperandAddress(3), TensorDescriptor(flat, self.dtype), OperandAddress(0), OperandAddress(1),
            OperandAddress(1), OperandAddress(2), epsilon,
        )  # fmt: skip
        self.steps.append(Step(function, (ones.place, zeros.place, variance.place, result.place)))
        return result

    def done(self) -> StepSequence:
        return StepSequence(self.steps, self.scratch)


def composed_forward(
    device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str], epsilon: float, *, centred: bool = True
) -> StepSequence:
    """The forward operation on packed operands of one dtype, float32 or float64, which are named as the calls' arrays.

    The results are out and, if they are named, mean and inverse_variance or inverse_rms. If not `centred`, the mean is
    not subtracted.
    """
    made = _Composition(device, dtype, shapes, names)
    x, y = made.operand("x", shapes.x), made.operand("out", shapes.x)
    assert x is not None
    assert y is not None
    if centred:
        mean = made.reduce("avg", x, made.operand("mean", shapes.mean) or made.new(shapes.mean))
        x = made.combine("add", x, mean, made.new(shapes.x), -1.0)
    variance = made.mean(made.combine("mul", x, x, made.new(shapes.x)))
    result = made.operand("inverse_variance", shapes.mean) or made.operand("inverse_rms", shapes.mean)
    inverse = made.inverse_root(variance, epsilon, result or made.new(shapes.mean))
    made.combine("mul", x, inverse, y)
    if scale := made.operand("scale", shapes.row):
        made.combine("mul", y, scale, y)
    if bias := made.operand("bias", shapes.row):
        made.combine("add", y, bias, y)
    return made.done()


def composed_backward(
    device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str], *, centred: bool = True
) -> StepSequence:
    """The gradients out (dx) and, if they are named, dscale and dbias, on operands as in `composed_forward`.

    With n = (x - mean) * inverse and g = dy * scale, dx = (g - mean(g) - n * mean(g * n)) * inverse, dscale is the sum of
    dy * n and dbias the sum of dy.
    """
    made = _Composition(device, dtype, shapes, names)
    dy, x, dx = (made.operand(name, shapes.x) for name in ("dy", "x", "out"))
    inverse = made.operand("inverse_variance", shapes.mean) or made.operand("inverse_rms", shapes.mean)
    assert dy is not None
    assert x is not None
    assert dx is not None
    assert inverse is not None
    if mean := made.operand("mean", shapes.mean):
        x = made.combine("add", x, mean, made.new(shapes.x), -1.0)
    n = made.combine("mul", x, inverse, made.new(shapes.x))
    product = made.new(shapes.x)
    if dscale := made.operand("dscale", shapes.row):
        made.reduce("add", made.combine("mul", dy, n, product), dscale)
    if dbias := made.operand("dbias", shapes.row):
        made.reduce("add", dy, dbias)
    scale = made.operand("scale", shapes.row)
    g = dy if scale is None else made.combine("mul", dy, scale, made.new(shapes.x))
    share = made.mean(made.combine("mul", g, n, product))
    made.combine("add", g, made.combine("mul", n, share, n), dx, -1.0)
    if centred:
        made.combine("add", dx, made.mean(g), dx, -1.0)
    made.combine("mul", dx, inverse, dx)
    return made.done()
