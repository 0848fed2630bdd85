"""Layer and RMS normalization over the last axes of x, and their gradients. Elements normalized together form a row."""

from __future__ import annotations

import math
from typing import ClassVar

from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import FLOATS, check_input, check_like, packed_like, resolve_output
from cudnnpy._launch.program import Operand, Program
from cudnnpy._options.layer_normalization import LayerNormalizationBase, RMSNormalizationBase
from cudnnpy._options.normalization import GRADIENTS, statistics_dtype
from cudnnpy.ops.normalization.parameters import scale_and_bias
from cudnnpy.ops.normalization.row_programs import Views, backward_program, forward_program
from cudnnpy.typing import GraphNormalization

RANKS = range(1, 6)


class _RowNormalization(DeviceOperation):
    """Base class of layer and RMS normalization. A subclass names its parameters and statistics."""

    epsilon: float
    _mode: ClassVar[GraphNormalization]
    _parameters: ClassVar[tuple[str, ...]]
    _statistics: ClassVar[tuple[str, ...]]

    def _forward(self, call: Call, training: bool, *normalized_shape: int) -> tuple[Program, list[TensorSpec]]:
        x = check_input(call, "x", RANKS, FLOATS, empty=True)
        source = next((name for name in self._parameters if name in call.specs), None)
        if normalized_shape:
            count = _leading_axis_count(x, normalized_shape, "normalized_shape")
        elif source is not None:
            count = _leading_axis_count(x, tuple(call.specs[source].shape), source)
        else:
            missing = " or ".join(self._parameters)
            raise TypeError(
                f"normalized_shape must be the sizes of x's last axes where there is no {missing}; got None"
            )
        y = resolve_output(call, "out", x.shape, x.dtype, x)
        parameters = scale_and_bias(call, x, x.shape[count:], self._parameters)
        statistics = self._statistics if training else ()
        mean = TensorSpec(x.shape[:count], statistics_dtype(x.dtype), packed_strides(x.shape[:count]))
        operands = [Operand("x", x), *(Operand(name, _flat(spec)) for name, spec in parameters.items())]
        operands += [Operand("out", y, True), *(Operand(name, _flat(mean), True) for name in statistics)]
        program = forward_program(call, self._mode, self.epsilon, operands, _row_views(x, count))
        return program, [y, *(mean for _ in statistics)]

    def _backward(self, call: Call, with_bias: bool = False) -> tuple[Program, list[TensorSpec]]:
        dy = check_input(call, "dy", RANKS, FLOATS, empty=True)
        x = check_like(call, "x", dy.shape, dy.dtype)
        if "scale" in call.specs:
            count = _leading_axis_count(x, tuple(call.specs["scale"].shape), "scale")
        else:
            name = self._statistics[0]
            shape = tuple(call.specs[name].shape)
            count = len(shape)
            if count >= len(x.shape) or x.shape[:count] != shape:
                raise ValueError(f"{name} must have the shape of the first axes of x, {x.shape}; got shape {shape}")
        row_shape = x.shape[count:]
        scale = scale_and_bias(call, x, row_shape, ("scale",))
        names = GRADIENTS[bool(scale), with_bias]
        means = {name: packed_like(call, name, x.shape[:count], statistics_dtype(x.dtype)) for name in self._statistics}
        dx = resolve_output(call, "out", x.shape, x.dtype, dy)
        gradient = TensorSpec(row_shape, scale["scale"].dtype if scale else x.dtype, packed_strides(row_shape))
        operands = [Operand("dy", dy), Operand("x", x)]
        operands += [Operand(name, _flat(spec)) for name, spec in (scale | means).items()]
        operands += [Operand("out", dx, True), *(Operand(name, _flat(gradient), True) for name in names)]
        program = backward_program(call, self._mode, operands, _row_views(x, count))
        return program, [dx, *(gradient for _ in names)]


class LayerNormalization(LayerNormalizationBase, _RowNormalization):
    _mode = "layer_norm"
    _parameters = ("scale", "bias")
    _statistics = ("mean", "inverse_variance")


class RMSNormalization(RMSNormalizationBase, _RowNormalization):
    _mode = "rms_norm"
    _parameters = ("scale",)
    _statistics = ("inverse_rms",)


def _leading_axis_count(x: TensorSpec, shape: tuple[int, ...], name: str) -> int:
    """The number of x's axes before the last ones. Raises ValueError if the last ones do not have this shape."""
    count = len(x.shape) - len(shape)
    if not shape or count < 0 or x.shape[count:] != shape:
        if name == "normalized_shape":
            raise ValueError(f"normalized_shape must be the sizes of the last axes of x, {x.shape}; got {shape}")
        raise ValueError(f"{name} must have the shape of the last axes of x, {x.shape}; got shape {shape}")
    return count


def _flat(spec: TensorSpec) -> TensorSpec:
    """A packed tensor as one row."""
    return spec._replace(shape=(math.prod(spec.shape),), strides=(1,))


def _row_views(x: TensorSpec, leading: int) -> Views:
    """x, its parameters and its statistics as a graph takes them: packed, with the axes (rows, length, 1, 1)."""
    count, length = math.prod(x.shape[:leading]), math.prod(x.shape[leading:])
    strides = length, 1, length, length
    return Views(
        TensorSpec((count, length, 1, 1), x.dtype, strides),
        TensorSpec((1, length, 1, 1), "float32", strides),
        TensorSpec((count, 1, 1, 1), "float32", (1, 1, 1, 1)),
    )
