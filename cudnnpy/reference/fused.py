"""A convolution followed by a scale, a bias, a residual and an activation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_activation
from cudnnpy._options.convolution import FusedOptions
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import ScalarT
from cudnnpy.reference._geometry import Shape
from cudnnpy.reference.activation import ACTIVATIONS as FUNCTIONS
from cudnnpy.reference.convolution import Convolution
from cudnnpy.typing import FusedActivation
from cudnnpy.typing import Shape as ShapeArgument

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

DTYPES = ("float16", "bfloat16", "float32")
RANKS = (3, 4, 5)
ACTIVATIONS = ("relu", "sigmoid", "tanh", "elu", "swish")


@dataclass(frozen=True, kw_only=True)
class FusedConvolution(FusedOptions):
    """activation(scale * convolution(x, w) + bias + residual) in one step, on NumPy arrays.

    Everything is computed in float64 and rounded once. An instance is immutable and may be shared by threads.

    Parameters
    ----------
    padding, stride, dilation, groups, mode, layout
        As for `Convolution`.
    prefer, workspace_limit, deterministic, tf32, tune_seconds
        Validated as on a GPU, and without effect here.
    """

    def output_shape(self, x_shape: ShapeArgument, w_shape: ShapeArgument) -> Shape:
        """Return the shape of forward's result for the shapes of x and w, all in the layout's axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        return self._convolution().output_shape(x_shape, w_shape)

    def forward(
        self,
        x: NDArray[ScalarT],
        w: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        residual: Array | None = None,
        activation: FusedActivation | None = "relu",
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return activation(scale * convolution(x, w) + bias + residual).

        Parameters
        ----------
        x, w : numpy.ndarray
            Of one dtype: float16, bfloat16 or float32.
        scale, bias : numpy.ndarray, optional
            One entry for each output channel, of x's dtype or float32.
        residual : numpy.ndarray, optional
            Of the result's shape and x's dtype.
        activation : {"relu", "sigmoid", "tanh", "elu", "swish"} or None
            elu with the factor 1.
        out : numpy.ndarray, optional
            The result, of x's dtype.
        stream : object
            Ignored.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
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
        check_activation(activation, ACTIVATIONS)
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
            return _arrays.store(FUNCTIONS[activation or "identity"](values), x.dtype, out)

    def _convolution(self) -> Convolution:
        return Convolution(**{option.name: getattr(self, option.name) for option in fields(FusedOptions)})


def _parameter(name: str, array: Array | None, channels: int, x: Array) -> Array | None:
    """Check a scale or bias, which may be None, and return it as a plain array."""
    if array is None:
        return None
    array = _arrays.check_array(name, array, tuple(dict.fromkeys((x.dtype.name, "float32"))))
    if array.shape != (channels,):
        raise ValueError(f"{name} must have shape ({channels},), one for each output channel; got shape {array.shape}")
    return array
