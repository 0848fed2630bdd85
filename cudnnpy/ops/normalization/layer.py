"""Layer and RMS normalization over the last axes of x, and their gradients. Elements normalized together form a row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import SupportsIndex

from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._options.arguments import check_normalized_shape, wants_bias
from cudnnpy._options.operations import RowNormalizationOptions
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program
from cudnnpy._runtime.operands import FLOATS, given, like, packed_like, result
from cudnnpy.ops.normalization.parameters import GRADIENTS, gradients, scale_and_bias, statistics_dtype
from cudnnpy.ops.normalization.row_programs import Views, backward_program, forward_program
from cudnnpy.typing import Array, ArrayT, GraphNormalization, Shape, Stream

RANKS = range(1, 6)


@dataclass(frozen=True)
class LayerNormalization(RowNormalizationOptions, Identified):
    """Layer normalization over the last axes of x, and its gradients, on device arrays of 1 to 5 axes.

    The normalized axes are those of scale and bias; without both, `normalized_shape` has their sizes.

    Parameters
    ----------
    epsilon : float
        Added to the variance; 0 or more.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x is float16, bfloat16, float32 or float64. scale and bias are packed, of x's dtype, or of float32 if x has 16 bits; a
    scale of None is 1, a bias of None 0. Statistics are float32, or float64 if x is float64. Sizes may be 0.
    For 4,096 or more rows whose length is not a multiple of 64, the last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.

    References
    ----------
    Ba, Kiros, Hinton: Layer Normalization, 2016.
    """

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Compute y = scale * (x - mean) * inverse_variance + bias, and the statistics (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale, bias : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale or a bias.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        mean, inverse_variance : array
            Of x's shape without the normalized axes; inverse_variance is 1 / sqrt(variance + epsilon). For no elements they
            are 0 and NaN.
        """
        name, names = "LayerNormalization.forward_training", ("x", "scale", "bias", "out", "mean", "inverse_variance")
        shape = check_normalized_shape(normalized_shape)
        inputs, outs = (x, scale, bias), (out, None, None)
        return dispatch.run(name, self, _forward, names, inputs, outs, stream, True, True, *shape)

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale, bias : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale or a bias.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        name, names = "LayerNormalization.forward_inference", ("x", "scale", "bias", "out")
        shape = check_normalized_shape(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale, bias), (out,), stream, False, True, *shape)

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
            forward_training's; scale may be None, then the normalized axes are those that mean lacks.
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
        computed = scale is not None, wants_bias(bias, scale)
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", *GRADIENTS[computed]
        inputs, outs = (dy, x, scale, mean, inverse_variance), (out, None, None)[: len(names) - 5]
        found = dispatch.run(
            "LayerNormalization.backward", self, _backward, names, inputs, outs, stream, True, computed[1]
        )
        made: tuple[ArrayT, ArrayT | None, ArrayT | None] = gradients(found, *computed)
        return made


@dataclass(frozen=True)
class RMSNormalization(RowNormalizationOptions, Identified):
    """Normalization by the root mean square over the last axes of x, scale * x / sqrt(mean(x * x) + epsilon).

    The normalized axes are those of scale; without one, `normalized_shape` has their sizes. The gradients are computed, too.

    Parameters
    ----------
    epsilon : float
        Added to the mean square; 0 or more.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x is a device array of 1 to 5 axes, float16, bfloat16, float32 or float64. scale is packed, of x's dtype, or of float32 if
    x has 16 bits; None is 1. inverse_rms is float32, or float64 if x is float64. Sizes may be 0.
    For 4,096 or more rows whose length is not a multiple of 64, the last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.

    References
    ----------
    Zhang, Sennrich: Root Mean Square Layer Normalization, 2019.
    """

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Compute y = scale * x * inverse_rms, and inverse_rms (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        inverse_rms : array
            1 / sqrt(mean(x * x) + epsilon), of x's shape without the normalized axes; NaN for no elements.
        """
        name, names = "RMSNormalization.forward_training", ("x", "scale", "out", "inverse_rms")
        shape = check_normalized_shape(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale), (out, None), stream, True, False, *shape)

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without inverse_rms.

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        name, names = "RMSNormalization.forward_inference", ("x", "scale", "out")
        shape = check_normalized_shape(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale), (out,), stream, False, False, *shape)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        scale: Array | None,
        inverse_rms: Array,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> tuple[ArrayT, ArrayT | None]:
        """Compute the gradients with respect to x and scale (cudnnBackendExecute).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, scale : array
            forward_training's; scale may be None, then the normalized axes are those that inverse_rms lacks.
        inverse_rms : array
            What `forward_training` returned with y.
        out : array, optional
            dx, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        dx : array
            `out`, or a new array of dy's library, shape, dtype and memory order.
        dscale : array or None
            Of scale's shape and dtype; None without a scale.
        """
        names = "dy", "x", "scale", "inverse_rms", "out", *GRADIENTS[scale is not None, False]
        inputs, outs = (dy, x, scale, inverse_rms), (out, None)[: len(names) - 4]
        found = dispatch.run("RMSNormalization.backward", self, _backward, names, inputs, outs, stream, False, False)
        made: tuple[ArrayT, ArrayT | None] = gradients(found, scale is not None)
        return made


def _forward(
    norm: LayerNormalization | RMSNormalization, call: Call, training: bool, layer: bool, *normalized: int
) -> tuple[Program, list[TensorSpec]]:
    x = given(call, "x", RANKS, FLOATS, empty=True)
    names = ("scale", "bias") if layer else ("scale",)
    source = next((name for name in names if name in call.specs), None)
    if normalized:
        kept = _kept(x, normalized, "normalized_shape")
    elif source is not None:
        shape = tuple(call.specs[source].shape)
        kept = _kept(x, shape, source)
    else:
        missing = " or ".join(names)
        raise TypeError(f"normalized_shape must be the sizes of x's last axes where there is no {missing}; got None")
    y = result(call, "out", x.shape, x.dtype, x)
    parameters = scale_and_bias(call, x, x.shape[kept:], names)
    statistics = (("mean", "inverse_variance") if layer else ("inverse_rms",)) if training else ()
    mean = TensorSpec(x.shape[:kept], statistics_dtype(x), packed_strides(x.shape[:kept]))
    operands = [Operand("x", x), *(Operand(name, _flat(spec)) for name, spec in parameters.items())]
    operands += [Operand("out", y, True), *(Operand(name, _flat(mean), True) for name in statistics)]
    mode: GraphNormalization = "layer_norm" if layer else "rms_norm"
    program = forward_program(call, mode, norm.epsilon, operands, _row_views(x, kept))
    return program, [y, *(mean for _ in statistics)]


def _backward(
    norm: LayerNormalization | RMSNormalization, call: Call, layer: bool, with_bias: bool
) -> tuple[Program, list[TensorSpec]]:
    dy = given(call, "dy", RANKS, FLOATS, empty=True)
    x = like(call, "x", dy.shape, dy.dtype)
    names = ("mean", "inverse_variance") if layer else ("inverse_rms",)
    if "scale" in call.specs:
        shape = tuple(call.specs["scale"].shape)
        kept = _kept(x, shape, "scale")
    else:
        shape = tuple(call.specs[names[0]].shape)
        kept = len(shape)
        if kept >= len(x.shape) or x.shape[:kept] != shape:
            raise ValueError(f"{names[0]} must have the shape of the first axes of x, {x.shape}; got shape {shape}")
    scale = scale_and_bias(call, x, x.shape[kept:], ("scale",))
    made = GRADIENTS[bool(scale), with_bias]
    means = [packed_like(call, name, x.shape[:kept], statistics_dtype(x)) for name in names]
    dx = result(call, "out", x.shape, x.dtype, dy)
    gradient = TensorSpec(x.shape[kept:], scale["scale"].dtype if scale else x.dtype, packed_strides(x.shape[kept:]))
    operands = [Operand("dy", dy), Operand("x", x), *(Operand(name, _flat(spec)) for name, spec in scale.items())]
    operands += [Operand(name, _flat(spec)) for name, spec in zip(names, means, strict=True)]
    operands += [Operand("out", dx, True), *(Operand(name, _flat(gradient), True) for name in made)]
    program = backward_program(call, "layer_norm" if layer else "rms_norm", operands, _row_views(x, kept))
    return program, [dx, *(gradient for _ in made)]


def _kept(x: TensorSpec, shape: tuple[int, ...], name: str) -> int:
    """The number of x's axes before the last ones. Raises ValueError if the last ones do not have this shape."""
    kept = len(x.shape) - len(shape)
    if not shape or kept < 0 or x.shape[kept:] != shape:
        if name == "normalized_shape":
            raise ValueError(f"normalized_shape must be the sizes of the last axes of x, {x.shape}; got {shape}")
        raise ValueError(f"{name} must have the shape of the last axes of x, {x.shape}; got shape {shape}")
    return kept


def _flat(spec: TensorSpec) -> TensorSpec:
    """A packed tensor as one row."""
    return spec._replace(shape=(math.prod(spec.shape),), strides=(1,))


def _row_views(x: TensorSpec, kept: int) -> Views:
    """x, its parameters and its statistics as a graph takes them: packed, with the axes (rows, length, 1, 1)."""
    count, length = math.prod(x.shape[:kept]), math.prod(x.shape[kept:])
    strides = length, 1, length, length
    return Views(
        TensorSpec((count, length, 1, 1), x.dtype, strides),
        TensorSpec((1, length, 1, 1), "float32", strides),
        TensorSpec((count, 1, 1, 1), "float32", (1, 1, 1, 1)),
    )
