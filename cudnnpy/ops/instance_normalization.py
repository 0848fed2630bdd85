"""Instance normalization, of each channel of each n over its spatial axes, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnnpy._core.frozen import Frozen
from cudnnpy._core.layouts import TensorSpec, at_least_4d, in_layout, packed, packed_strides, per_channel
from cudnnpy._core.validation import check_layout, check_number
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program
from cudnnpy._runtime.operands import FLOATS, logical, logical_like, logical_result, packed_like
from cudnnpy.ops.normalization_executables import Views, backward_program, forward_program
from cudnnpy.ops.parameters import (
    GRADIENTS,
    check_channels,
    gradients,
    scale_and_bias,
    statistics_dtype,
    wants_bias,
)

_RANKS = range(3, 6)


@dataclass(frozen=True)
class InstanceNormalization(Frozen):
    """Normalization of each channel of each n over its spatial axes, and its gradient, on device arrays of 3 to 5 axes.

    scale and bias are (C,), the statistics (N, C). layout: "NCHW", or "NHWC" for arrays whose axis order is (N,
    spatial..., C). The rest is as LayerNormalization. Ulyanov, Vedaldi, Lempitsky: Instance Normalization, 2016.
    """

    epsilon: float = 1e-5
    layout: str = "NCHW"

    def _checked(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(self, x: Any, scale: Any = None, bias: Any = None, out: Any = None, stream: Any = None) -> Any:
        """(y, mean, inverse_variance): y = scale * (x - mean) * inverse_variance + bias."""
        name, prepare = "InstanceNormalization.forward_training", InstanceNormalization._forward
        names = "x", "scale", "bias", "out", "mean", "inverse_variance"
        return dispatch.run(name, self, prepare, names, (x, scale, bias), (out, None, None), stream, True)

    def forward_inference(
        self, x: Any, scale: Any = None, bias: Any = None, out: Any = None, stream: Any = None
    ) -> Any:
        """The same y alone."""
        name, prepare = "InstanceNormalization.forward_inference", InstanceNormalization._forward
        names = "x", "scale", "bias", "out"
        return dispatch.run(name, self, prepare, names, (x, scale, bias), (out,), stream, False)

    def backward(
        self,
        dy: Any,
        x: Any,
        scale: Any,
        mean: Any,
        inverse_variance: Any,
        out: Any = None,
        stream: Any = None,
        bias: bool | None = None,
    ) -> Any:
        """(dx, dscale, dbias) for forward_training's x and statistics, and the gradient dy in y.

        dscale and dbias have scale's dtype; dscale is None without a scale. bias: whether there is a dbias; None: if
        there is a scale. Without a scale dbias has x's dtype.
        """
        name, prepare = "InstanceNormalization.backward", InstanceNormalization._backward
        there = scale is not None, wants_bias(bias, scale)
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", *GRADIENTS[there]
        inputs, outs = (dy, x, scale, mean, inverse_variance), (out, None, None)[: len(names) - 5]
        return gradients(dispatch.run(name, self, prepare, names, inputs, outs, stream, there[1]), *there)

    def _forward(self, call: Call, training: bool) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, FLOATS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout)
        parameters = scale_and_bias(call, x, x.shape[1:2], ("scale", "bias"))
        check_channels(call, x.shape[1])
        statistics = ("mean", "inverse_variance") if training else ()
        mean = TensorSpec(x.shape[:2], statistics_dtype(x), packed_strides(x.shape[:2]))
        operands = [Operand("x", x), *(Operand(name, spec) for name, spec in parameters.items())]
        operands += [Operand("out", y, True), *(Operand(name, mean, True) for name in statistics)]
        program = forward_program(call, "instance_norm", self.epsilon, operands, _views(x))
        return program, [in_layout(y, self.layout.endswith("C")), *(mean for _ in statistics)]

    def _backward(self, call: Call, with_bias: bool) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, FLOATS, empty=True)
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        dx = logical_result(call, "out", x.shape, dy, self.layout)
        scale = scale_and_bias(call, x, x.shape[1:2], ("scale",))
        made = GRADIENTS[bool(scale), with_bias]
        check_channels(call, x.shape[1])
        names = "mean", "inverse_variance"
        means = [packed_like(call, name, x.shape[:2], statistics_dtype(x)) for name in names]
        gradient = TensorSpec(x.shape[1:2], scale["scale"].dtype if scale else x.dtype, (1,))
        operands = [Operand("dy", dy), Operand("x", x), *(Operand(name, spec) for name, spec in scale.items())]
        operands += [Operand(name, spec) for name, spec in zip(names, means, strict=True)]
        operands += [Operand("out", dx, True), *(Operand(name, gradient, True) for name in made)]
        program = backward_program(call, "instance_norm", operands, _views(x))
        return program, [in_layout(dx, self.layout.endswith("C")), *(gradient for _ in made)]


def _views(x: TensorSpec) -> Views:
    """x packed, its parameters (a value for each channel) and its statistics (one for each channel of each n)."""
    wide = at_least_4d(packed(x))
    n, c, *spatial = wide.shape
    mean = TensorSpec((n, c, *(1 for _ in spatial)), "float32", (c, 1, *(c for _ in spatial)))
    return Views(wide, per_channel(wide), mean)
