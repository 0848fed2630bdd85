"""Instance normalization, of each channel of each n over its spatial axes, and its gradients."""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, at_least_4d, in_layout, packed_strides, per_channel, to_packed
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import FLOATS, logical, logical_like, logical_result, packed_like
from cudnnpy._launch.program import Operand, Program
from cudnnpy._options.instance_normalization import InstanceNormalizationBase
from cudnnpy._options.normalization import GRADIENTS, check_channels, statistics_dtype
from cudnnpy.ops.normalization.parameters import scale_and_bias
from cudnnpy.ops.normalization.row_programs import Views, backward_program, forward_program

_RANKS = range(3, 6)


class InstanceNormalization(InstanceNormalizationBase, DeviceOperation):
    def _forward(self, call: Call, training: bool) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, FLOATS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout)
        parameters = scale_and_bias(call, x, x.shape[1:2], ("scale", "bias"))
        check_channels(call.specs, x.shape[1])
        statistics = ("mean", "inverse_variance") if training else ()
        mean = TensorSpec(x.shape[:2], statistics_dtype(x.dtype), packed_strides(x.shape[:2]))
        operands = [Operand("x", x), *(Operand(name, spec) for name, spec in parameters.items())]
        operands += [Operand("out", y, True), *(Operand(name, mean, True) for name in statistics)]
        program = forward_program(call, "instance_norm", self.epsilon, operands, _views(x))
        return program, [in_layout(y, self.layout.endswith("C")), *(mean for _ in statistics)]

    def _backward(self, call: Call, with_bias: bool) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, FLOATS, empty=True)
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        dx = logical_result(call, "out", x.shape, dy, self.layout)
        scale = scale_and_bias(call, x, x.shape[1:2], ("scale",))
        check_channels(call.specs, x.shape[1])
        statistics = ("mean", "inverse_variance")
        means = {name: packed_like(call, name, x.shape[:2], statistics_dtype(x.dtype)) for name in statistics}
        names = GRADIENTS[bool(scale), with_bias]
        gradient = TensorSpec(x.shape[1:2], scale["scale"].dtype if scale else x.dtype, (1,))
        operands = [Operand("dy", dy), Operand("x", x)]
        operands += [Operand(name, spec) for name, spec in (scale | means).items()]
        operands += [Operand("out", dx, True), *(Operand(name, gradient, True) for name in names)]
        program = backward_program(call, "instance_norm", operands, _views(x))
        return program, [in_layout(dx, self.layout.endswith("C")), *(gradient for _ in names)]


def _views(x: TensorSpec) -> Views:
    """x packed, its parameters (a value for each channel) and its statistics (one for each channel of each n)."""
    wide = at_least_4d(to_packed(x))
    n, c, *spatial = wide.shape
    mean = TensorSpec((n, c, *(1 for _ in spatial)), "float32", (c, 1, *(c for _ in spatial)))
    return Views(wide, per_channel(wide), mean)
