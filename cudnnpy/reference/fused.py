"""A convolution followed by a scale, a bias, a residual and an activation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays
from cudnnpy.reference._geometry import Shape
from cudnnpy.reference._options import Padding, PerAxis, one_of
from cudnnpy.reference.activation import activation as activation_named
from cudnnpy.reference.convolution import Convolution

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

DTYPES = ("float16", "bfloat16", "float32")
RANKS = (3, 4, 5)
ACTIVATIONS = ("relu", "sigmoid", "tanh", "elu", "swish")


@dataclass(frozen=True)
class FusedConvolution:
    """activation(scale * convolution(x, w) + bias + residual) in one step, on NumPy arrays.

    The options are those of `Convolution`, fewer of them. Everything is computed in float64 and rounded once.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.
    """

    padding: Padding = 0
    stride: PerAxis = 1
    dilation: PerAxis = 1
    groups: int = 1
    mode: str = "cross_correlation"
    layout: str = "NCHW"
    prefer: str = "fastest"
    workspace_limit: int | None = None
    deterministic: bool = False
    tf32: bool = True
    tune_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check every option and store it as `Convolution` does."""
        checked = self._convolution()
        for option in fields(self):
            object.__setattr__(self, option.name, getattr(checked, option.name))

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> Shape:
        """Return the shape of forward's result, in the layout's axis order, without computing it.

        Raises TypeError for sizes that are not ints and ValueError for shapes that do not fit together.
        """
        return self._convolution().output_shape(x_shape, w_shape)

    def forward(
        self,
        x: Array,
        w: Array,
        scale: Array | None = None,
        bias: Array | None = None,
        residual: Array | None = None,
        activation: str | None = "relu",
        out: Array | None = None,
        stream: object = None,
    ) -> Array:
        """Return activation(scale * convolution(x, w) + bias + residual), of x's dtype.

        x and w have one dtype: float16, bfloat16 or float32; their shapes are those of `Convolution`. scale and bias
        have one entry for each output channel, in x's dtype or float32. residual has the result's shape and x's dtype.
        activation is None, "relu", "sigmoid", "tanh", "elu" (with factor 1) or "swish". stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape or option, or an out that is read-only
        or overlaps an input.
        """
        x, w = (_arrays.check_tensor(name, a, RANKS, DTYPES, empty="any") for name, a in (("x", x), ("w", w)))
        _arrays.check_same_dtype("w", w, "x", x)
        convolution = self._convolution()
        y_shape = convolution.output_shape(x.shape, w.shape)
        channels = y_shape[-1 if convolution.channels_last else 1]
        scale, bias = (_parameter(name, given, channels, x) for name, given in (("scale", scale), ("bias", bias)))
        if residual is not None:
            residual = _arrays.check_array("residual", residual, (x.dtype.name,))
            if residual.shape != y_shape:
                raise ValueError(f"residual must have shape {y_shape}, as the result; got shape {residual.shape}")
        if activation is not None:
            one_of("activation", activation, ACTIVATIONS)
        if out is not None:
            _arrays.check_out(out, y_shape, (x.dtype.name,), x=x, w=w, scale=scale, bias=bias, residual=residual)

        def spread(parameter: Array) -> Float64:
            ones = () if convolution.channels_last else (1,) * (x.ndim - 2)
            return parameter.astype(np.float64).reshape(channels, *ones)

        values: Float64 = convolution.forward(x.astype(np.float64), w.astype(np.float64))
        with np.errstate(all="ignore"):
            if scale is not None:
                values *= spread(scale)
            if bias is not None:
                values += spread(bias)
            if residual is not None:
                values += residual.astype(np.float64)
            return _arrays.store(activation_named(activation)(values), x.dtype, out)

    def _convolution(self) -> Convolution:
        return Convolution(**{option.name: getattr(self, option.name) for option in fields(self)})


def _parameter(name: str, array: Array | None, channels: int, x: Array) -> Array | None:
    """Check a scale or bias, which may be None, and return it as a plain array."""
    if array is None:
        return None
    array = _arrays.check_array(name, array, tuple(dict.fromkeys((x.dtype.name, "float32"))))
    if array.shape != (channels,):
        raise ValueError(f"{name} must have shape ({channels},), one for each output channel; got shape {array.shape}")
    return array
