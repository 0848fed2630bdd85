"""Layer and RMS normalization over the last axes of x, and their gradients. Elements normalized together form a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from cudnnpy._core.frozen import Frozen
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._core.validation import check_number, elements
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program
from cudnnpy._runtime.operands import FLOATS, given, like, packed_like, result
from cudnnpy.ops.normalization_executables import Views, backward_program, forward_program
from cudnnpy.ops.parameters import GRADIENTS, gradients, scale_and_bias, statistics_dtype, wants_bias

Shape = tuple[int, ...]
RANKS = range(1, 6)


@dataclass(frozen=True)
class LayerNormalization(Frozen):
    """Normalization over the last axes of x, and its gradient, on device arrays of 1 to 5 axes.

    The axes are those of scale and bias; without both, `normalized_shape` says which. They may be all of x's. epsilon:
    added to variances; 0 or more.

    x is float16, bfloat16, float32 or float64. scale and bias are packed, of x's type, or float32 beside 16 bits; None
    is 1 and 0. The statistics are float32 (float64 for float64). Sizes may be 0. Raises TypeError and ValueError for
    options and arrays that do not fit, NotSupportedError for what cuDNN lacks. Ba, Kiros, Hinton: Layer Normalization,
    2016.
    """

    epsilon: float = 1e-5

    def _checked(self) -> dict[str, Any]:
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(
        self,
        x: Any,
        scale: Any = None,
        bias: Any = None,
        out: Any = None,
        stream: Any = None,
        normalized_shape: int | Sequence[int] | None = None,
    ) -> Any:
        """(y, mean, inverse_variance): y = scale * (x - mean) * inverse_variance + bias.

        mean and inverse_variance = 1 / sqrt(variance + epsilon) have x's shape without the normalized axes; of no
        elements they are 0 and NaN.
        """
        name, names = "LayerNormalization.forward_training", ("x", "scale", "bias", "out", "mean", "inverse_variance")
        shape = _sizes(normalized_shape)
        inputs, outs = (x, scale, bias), (out, None, None)
        return dispatch.run(name, self, _forward, names, inputs, outs, stream, True, True, *shape)

    def forward_inference(
        self,
        x: Any,
        scale: Any = None,
        bias: Any = None,
        out: Any = None,
        stream: Any = None,
        normalized_shape: int | Sequence[int] | None = None,
    ) -> Any:
        """The same y alone."""
        name, names = "LayerNormalization.forward_inference", ("x", "scale", "bias", "out")
        shape = _sizes(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale, bias), (out,), stream, False, True, *shape)

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

        dscale and dbias have scale's dtype; dscale is None without a scale, when the axes are those that mean has not.
        bias: whether there is a dbias; None: if there is a scale. Without a scale dbias has x's dtype.
        """
        there = scale is not None, wants_bias(bias, scale)
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", *GRADIENTS[there]
        inputs, outs = (dy, x, scale, mean, inverse_variance), (out, None, None)[: len(names) - 5]
        found = dispatch.run(
            "LayerNormalization.backward", self, _backward, names, inputs, outs, stream, True, there[1]
        )
        return gradients(found, *there)


@dataclass(frozen=True)
class RMSNormalization(Frozen):
    """x / sqrt(mean(x * x) + epsilon) * scale over the last axes of x, and its gradient; the rest is as LayerNormalization.

    Zhang, Sennrich: Root Mean Square Layer Normalization, 2019.
    """

    epsilon: float = 1e-5

    def _checked(self) -> dict[str, Any]:
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(
        self,
        x: Any,
        scale: Any = None,
        out: Any = None,
        stream: Any = None,
        normalized_shape: int | Sequence[int] | None = None,
    ) -> Any:
        """(y, inverse_rms): y = scale * x * inverse_rms, inverse_rms = 1 / sqrt(mean(x * x) + epsilon).

        inverse_rms has x's shape without the normalized axes; of no elements it is NaN.
        """
        name, names = "RMSNormalization.forward_training", ("x", "scale", "out", "inverse_rms")
        shape = _sizes(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale), (out, None), stream, True, False, *shape)

    def forward_inference(
        self,
        x: Any,
        scale: Any = None,
        out: Any = None,
        stream: Any = None,
        normalized_shape: int | Sequence[int] | None = None,
    ) -> Any:
        """The same y alone."""
        name, names = "RMSNormalization.forward_inference", ("x", "scale", "out")
        shape = _sizes(normalized_shape)
        return dispatch.run(name, self, _forward, names, (x, scale), (out,), stream, False, False, *shape)

    def backward(self, dy: Any, x: Any, scale: Any, inverse_rms: Any, out: Any = None, stream: Any = None) -> Any:
        """(dx, dscale) for forward_training's x and inverse_rms, and the gradient dy in y.

        dscale has scale's dtype, and is None without a scale, when the axes are those that inverse_rms has not.
        """
        names = "dy", "x", "scale", "inverse_rms", "out", *GRADIENTS[scale is not None, False]
        inputs, outs = (dy, x, scale, inverse_rms), (out, None)[: len(names) - 4]
        found = dispatch.run("RMSNormalization.backward", self, _backward, names, inputs, outs, stream, False, False)
        return gradients(found, scale is not None)


def _sizes(normalized_shape: Any) -> Shape:
    """normalized_shape as a tuple of ints, () for None. Raises TypeError and ValueError."""
    if normalized_shape is None:
        return ()
    sizes = elements(normalized_shape)
    sizes = (normalized_shape,) if sizes is None else sizes
    kinds_fit = all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes)
    if not kinds_fit or not sizes or any(size < 0 for size in sizes):
        kind = ValueError if kinds_fit else TypeError
        expected = "None, an integer of 0 or more, or a tuple of one or more of them"
        raise kind(f"normalized_shape must be {expected}; got {normalized_shape!r}")
    return tuple(map(index, sizes))


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
    mode = "layer_norm" if layer else "rms_norm"
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


def _kept(x: TensorSpec, shape: Shape, name: str) -> int:
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
