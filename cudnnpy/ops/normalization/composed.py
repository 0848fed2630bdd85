"""Normalizations composed of cuDNN's functions, for tensors that no graph engine supports: float64, and very large sizes.

y = (x - mean) / sqrt(variance + epsilon) * scale + bias is computed step by step: means by cudnnReduceTensor, products and
sums by cudnnOpTensor, and 1 / sqrt(variance + epsilon) by cudnnBatchNormalizationForwardInference, applied to ones. Each
step reads and writes all of x, which is correct for every size but not fast.

Tensors have one of three shapes, of four or five axes: the shape of x, of its statistics, or of its parameters. Each axis of
the last two has x's size or 1. All tensors are packed and have one dtype, float32 or float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._launch.program import Operand
from cudnnpy._launch.step_builder import StepBuilder, Tensor
from cudnnpy._launch.steps import (
    FunctionCall,
    OperandAddress,
    StepSequence,
    op_tensor,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.graph.reductions_old import reduction
from cudnnpy.typing import ElementName, TensorOperation

Shape = tuple[int, ...]


class Shapes(NamedTuple):
    """The shapes of x, of its statistics and of its parameters."""

    x: Shape
    mean: Shape
    row: Shape

    def of(self, names: Sequence[str]) -> list[tuple[str, Shape]]:
        """Return each name of an array of a call with the shape of the array."""
        shapes = dict.fromkeys(("x", "dy", "out"), self.x)
        shapes |= dict.fromkeys(("scale", "bias", "dscale", "dbias"), self.row)
        return [(name, shapes.get(name, self.mean)) for name in names]


class _Composition(StepBuilder):
    """Steps on packed operands of one dtype, and on scratch memory."""

    def __init__(self, device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str]) -> None:
        super().__init__({name: TensorSpec(shape, dtype, packed_strides(shape)) for name, shape in shapes.of(names)})
        self.device, self.dtype, self.shapes = device, dtype, shapes

    def new(self, shape: Shape) -> Tensor:
        """Return a new tensor in scratch memory."""
        return self.scratch(TensorSpec(shape, self.dtype, packed_strides(shape)))

    def filled(self, shape: Shape, value: float) -> Tensor:
        """Return a new tensor that is filled with a value."""
        tensor = self.new(shape)
        self.fill(tensor, value)
        return tensor

    def combine(self, op: TensorOperation, a: Tensor, b: Tensor, result: Tensor, factor: float = 1.0) -> Tensor:
        """Add a step: result = a op factor * b, with b broadcast. result may be a, but not b."""
        assert result.address_index != b.address_index
        tensors = (a.spec, 0), (b.spec, 1), (result.spec, 2)
        self.add(op_tensor(op, self.dtype, *tensors, factors=(1.0, factor, 0.0)), a, b, result)
        return result

    def reduce(self, op: str, x: Tensor, result: Tensor) -> Tensor:
        """Add a step: result = the sum or the mean of x over the axes on which result has size 1."""
        operands = Operand("x", x.spec), Operand("y", result.spec, True)
        self.add(reduction("", self.device, operands, op, 1.0, 0.0, True).executable, x, result)
        return result

    def mean(self, x: Tensor) -> Tensor:
        return self.reduce("avg", x, self.new(self.shapes.mean))

    def inverse_root(self, variance: Tensor, epsilon: float, result: Tensor) -> Tensor:
        """Add a step: result = 1 / sqrt(variance + epsilon)."""
        flat = (1, math.prod(variance.spec.shape), 1, 1)
        ones, zeros = self.filled(flat, 1.0), self.filled(flat, 0.0)
        one, zero = scaling_arguments(1.0, 0.0, self.dtype)
        values = tensor_descriptor(ones.spec)
        function = FunctionCall(
            "cudnnBatchNormalizationForwardInference", raw.CUDNN_BATCHNORM_PER_ACTIVATION, one, zero,
            values, OperandAddress(0), values, OperandAddress(3), TensorDescriptor(flat, self.dtype),
            OperandAddress(0), OperandAddress(1), OperandAddress(1), OperandAddress(2), epsilon,
        )  # fmt: skip
        self.add(function, ones, zeros, variance, result)
        return result


def composed_forward(
    device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str], epsilon: float, *, centred: bool = True
) -> StepSequence:
    """The forward operation on packed operands of one dtype, float32 or float64, which are named as the calls' arrays.

    The results are out and, if they are named, mean and inverse_variance or inverse_rms. If not `centred`, the mean is
    not subtracted.
    """
    builder = _Composition(device, dtype, shapes, names)
    operand = builder.operands.get
    x, y = builder.operands["x"], builder.operands["out"]
    if centred:
        mean = builder.reduce("avg", x, operand("mean") or builder.new(shapes.mean))
        x = builder.combine("add", x, mean, builder.new(shapes.x), -1.0)
    variance = builder.mean(builder.combine("mul", x, x, builder.new(shapes.x)))
    result = operand("inverse_variance") or operand("inverse_rms") or builder.new(shapes.mean)
    inverse = builder.inverse_root(variance, epsilon, result)
    builder.combine("mul", x, inverse, y)
    if scale := operand("scale"):
        builder.combine("mul", y, scale, y)
    if bias := operand("bias"):
        builder.combine("add", y, bias, y)
    return builder.sequence()


def composed_backward(
    device: int, dtype: ElementName, shapes: Shapes, names: Sequence[str], *, centred: bool = True
) -> StepSequence:
    """The gradients out (dx) and, if they are named, dscale and dbias, on operands as in `composed_forward`.

    With n = (x - mean) * inverse and g = dy * scale, dx = (g - mean(g) - n * mean(g * n)) * inverse, dscale is the sum of
    dy * n and dbias the sum of dy.
    """
    builder = _Composition(device, dtype, shapes, names)
    operand = builder.operands.get
    dy, x, dx = (builder.operands[name] for name in ("dy", "x", "out"))
    inverse = operand("inverse_variance") or builder.operands["inverse_rms"]
    if mean := operand("mean"):
        x = builder.combine("add", x, mean, builder.new(shapes.x), -1.0)
    n = builder.combine("mul", x, inverse, builder.new(shapes.x))
    product = builder.new(shapes.x)
    if dscale := operand("dscale"):
        builder.reduce("add", builder.combine("mul", dy, n, product), dscale)
    if dbias := operand("dbias"):
        builder.reduce("add", dy, dbias)
    scale = operand("scale")
    g = dy if scale is None else builder.combine("mul", dy, scale, builder.new(shapes.x))
    share = builder.mean(builder.combine("mul", g, n, product))
    builder.combine("add", g, builder.combine("mul", n, share, n), dx, -1.0)
    if centred:
        builder.combine("add", dx, builder.mean(g), dx, -1.0)
    builder.combine("mul", dx, inverse, dx)
    return builder.sequence()
