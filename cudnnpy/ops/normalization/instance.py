"""Instance normalization, of each channel of each n over its spatial axes, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import TensorSpec, at_least_4d, in_layout, packed, packed_strides, per_channel
from cudnnpy._options.arguments import wants_bias
from cudnnpy._options.operations import InstanceNormalizationOptions
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program
from cudnnpy._runtime.operands import FLOATS, logical, logical_like, logical_result, packed_like
from cudnnpy.ops.normalization.parameters import (
    GRADIENTS,
    check_channels,
    gradients,
    scale_and_bias,
    statistics_dtype,
)
from cudnnpy.ops.normalization.row_programs import Views, backward_program, forward_program
from cudnnpy.typing import Array, ArrayT, Stream

_RANKS = range(3, 6)


@dataclass(frozen=True)
class InstanceNormalization(InstanceNormalizationOptions, Identified):
    """Instance normalization, of each channel of each n over its spatial axes, and its gradients, on device arrays.

    Parameters
    ----------
    epsilon : float
        Added to the variance; 0 or more.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. The order in memory is free.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x has 3 to 5 axes; scale and bias are (C,), the statistics (N, C).
    x is float16, bfloat16, float32 or float64. scale and bias are packed, of x's dtype, or of float32 if x has 16 bits; a
    scale of None is 1, a bias of None 0. Statistics are float32, or float64 if x is float64. Sizes may be 0.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.

    References
    ----------
    Ulyanov, Vedaldi, Lempitsky: Instance Normalization, 2016.
    """

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Compute y = scale * (x - mean) * inverse_variance + bias, and the statistics (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        scale, bias : array, optional
            (C,).
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        mean, inverse_variance : array
            (N, C); inverse_variance is 1 / sqrt(variance + epsilon). For no positions they are 0 and NaN.
        """
        name, prepare = "InstanceNormalization.forward_training", InstanceNormalization._forward
        names = "x", "scale", "bias", "out", "mean", "inverse_variance"
        return dispatch.run(name, self, prepare, names, (x, scale, bias), (out, None, None), stream, True)

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        scale, bias : array, optional
            (C,).
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        name, prepare = "InstanceNormalization.forward_inference", InstanceNormalization._forward
        names = "x", "scale", "bias", "out"
        return dispatch.run(name, self, prepare, names, (x, scale, bias), (out,), stream, False)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        scale: Array | None,
        mean: Array,
        inverse_variance: Array,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        bias: bool | None = None,
    ) -> tuple[ArrayT, ArrayT | None, ArrayT | None]:
        """Compute the gradients with respect to x, scale and bias (cudnnBackendExecute).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, scale : array
            forward_training's; scale may be None.
        mean, inverse_variance : array
            What `forward_training` returned with y.
        out : array, optional
            dx, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        bias : bool, optional
            Whether dbias is computed; by default if there is a scale.

        Returns
        -------
        dx : array
            `out`, or a new array of dy's library, shape, dtype and memory order.
        dscale : array or None
            Of scale's shape and dtype; None without a scale.
        dbias : array or None
            Of scale's dtype, or x's without a scale; None if it is not computed.
        """
        name, prepare = "InstanceNormalization.backward", InstanceNormalization._backward
        computed = scale is not None, wants_bias(bias, scale)
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", *GRADIENTS[computed]
        inputs, outs = (dy, x, scale, mean, inverse_variance), (out, None, None)[: len(names) - 5]
        made: tuple[ArrayT, ArrayT | None, ArrayT | None] = gradients(
            dispatch.run(name, self, prepare, names, inputs, outs, stream, computed[1]), *computed
        )
        return made

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
