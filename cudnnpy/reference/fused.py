"""A convolution followed by a scale, a bias, a residual and an activation."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from cudnnpy._checks.call_arguments import check_activation
from cudnnpy._convolution.options import FusedOptions
from cudnnpy._layers import fused as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._numpy_operation import Arrays, NotInReference, NumpyOperation
from cudnnpy.reference.activation import ACTIVATIONS
from cudnnpy.reference.convolution import Convolution
from cudnnpy.typing import FusedActivation
from cudnnpy.typing import Shape as ShapeArgument

RANKS = (3, 4, 5)


class FusedConvolution(NumpyOperation, device.FusedConvolution):
    __doc__ = device.FusedConvolution.__doc__
    plan = NotInReference()

    def _output_shape(self, x_shape: ShapeArgument, w_shape: ShapeArgument) -> Shape:
        return self._convolution().output_shape(x_shape, w_shape)

    def _forward(self, arrays: Arrays, activation: FusedActivation | None) -> list[Array]:
        x, w = (_arrays.check_tensor(name, arrays[name], RANKS, device.DTYPES, empty="any") for name in ("x", "w"))
        _arrays.check_same_dtype("w", w, "x", x)
        convolution = self._convolution()
        y_shape = convolution.output_shape(x.shape, w.shape)
        channels = y_shape[-1 if convolution.channels_last else 1]
        scale, bias = (_parameter(name, arrays[name], channels, x) for name in ("scale", "bias"))
        residual, out = arrays["residual"], arrays["out"]
        if residual is not None:
            residual = _arrays.check_array("residual", residual, (x.dtype.name,))
            if residual.shape != y_shape:
                raise ValueError(f"residual must have shape {y_shape}, as the result; got shape {residual.shape}")
        check_activation(activation, device.ACTIVATIONS)
        _arrays.check_out(out, y_shape, (x.dtype.name,), x=x, w=w, scale=scale, bias=bias, residual=residual)

        def spread(parameter: Array) -> Float64:
            ones = () if convolution.channels_last else (1,) * (x.ndim - 2)
            return parameter.astype(np.float64).reshape(channels, *ones)

        values: Float64 = convolution.forward(x.astype(np.float64), w.astype(np.float64))
        if scale is not None:
            values *= spread(scale)
        if bias is not None:
            values += spread(bias)
        if residual is not None:
            values += residual.astype(np.float64)
        return [_arrays.store(ACTIVATIONS[activation or "identity"](values), x.dtype, out)]

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
