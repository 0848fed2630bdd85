"""Convolution, transposed convolution and their gradients; a convolution with a scale, a bias, a residual and an activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import ClassVar, TypeAlias

import numpy as np

from cudnnpy._checks.call_arguments import check_activation, check_scales, gradient_shape
from cudnnpy._convolution.options import ConvolutionOptions, FusedOptions, compute_dtype_for
from cudnnpy._core.layouts import from_logical, to_logical
from cudnnpy._layers import convolution as device
from cudnnpy._layers import fused as device_fused
from cudnnpy._layers import transpose as device_transpose
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Arrays, Float64, NotInReference, NumpyOperation, Shape
from cudnnpy.reference._geometry import Geometry
from cudnnpy.reference._products import correlate, correlate_data, correlate_filter
from cudnnpy.reference.activation import ACTIVATIONS
from cudnnpy.typing import ConvolutionActivation, FusedActivation
from cudnnpy.typing import Shape as ShapeArgument

_Product: TypeAlias = Callable[[Float64, Float64, Geometry], Float64]


class _NumpyConvolution(ConvolutionOptions, NumpyOperation):
    """The four operations: argument checks, bias, activation, alpha, beta and rounding. A subclass defines the products."""

    _products: ClassVar[tuple[_Product, _Product, _Product]]  # of x and w, of dy and w, of dy and x

    # Whether x may have 0 channels, over which the sums are 0. It may always have a batch of 0.
    _channels_may_be_empty = False

    @property
    def channels_last(self) -> bool:
        """Whether the arrays' last axis holds the channels."""
        return self.layout.endswith("C")

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        """Check that the shapes, both channels first, fit together; return the geometry."""
        raise NotImplementedError

    def _y_shape(self, x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
        """Return the shape of forward's result, channels first."""
        raise NotImplementedError

    def _output_shape(self, x_shape: ShapeArgument, w_shape: ShapeArgument) -> Shape:
        return self._shapes(x_shape, w_shape)[1]

    def _forward(
        self, arrays: Arrays, activation: ConvolutionActivation | None, alpha: float, beta: float
    ) -> list[Array]:
        dtypes = (*_arrays.FLOATS, *_arrays.FLOAT8, *_arrays.INT8)
        x, w = (_arrays.check_array(name, arrays[name], dtypes) for name in ("x", "w"))
        bias, out = arrays["bias"], arrays["out"]
        _arrays.check_same_dtype("w", w, "x", x)
        compute_dtype_for(self.compute_dtype, x.dtype.name)
        geometry, y_shape = self._shapes(x.shape, w.shape, "x.shape", "w.shape")
        alpha, beta = check_scales(alpha, beta, out=out)
        act = ACTIVATIONS[check_activation(activation, tuple(ACTIVATIONS)) or "identity"]
        dtype = np.dtype(np.int32) if x.dtype.name in _arrays.INT8 else x.dtype
        _arrays.check_out(out, y_shape, _result_dtypes(x.dtype.name), x=x, w=w, bias=bias)
        of_y = dtype if out is None else out.dtype
        channels = y_shape[-1 if self.channels_last else 1]
        bias = _per_channel("bias", bias, channels, of_y.name if of_y.itemsize > 1 else "float32")
        values = self._scaled(self._products[0](self._float64(x), self._filter64(w), geometry), out, alpha, beta)
        if bias is not None:
            values += bias.astype(np.float64).reshape(-1, *[1] * len(geometry.kernel))
        return [_arrays.store(_arrays.in_layout(act(values), self.layout), dtype, out)]

    def _backward_data(self, arrays: Arrays, alpha: float, beta: float, *x_shape: int) -> list[Array]:
        dy, w = self._check_pair(arrays, "w")
        out = arrays["out"]
        x_shape = self._x_shape(dy, w, x_shape, out)
        geometry = self._geometry_of_dy(dy, x_shape, w.shape, "x_shape", "w.shape")
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x_shape, (dy.dtype.name,), dy=dy, w=w)
        gradient = self._products[1](self._float64(dy), self._filter64(w), geometry)
        return [_arrays.store(_arrays.in_layout(self._scaled(gradient, out, alpha, beta), self.layout), dy.dtype, out)]

    def _backward_filter(self, arrays: Arrays, alpha: float, beta: float, *w_shape: int) -> list[Array]:
        dy, x = self._check_pair(arrays, "x")
        out = arrays["out"]
        w_shape = self._gradient_shape("w_shape", w_shape, out, self._may_be_empty[1])
        geometry = self._geometry_of_dy(dy, x.shape, w_shape, "x.shape", "w_shape")
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, w_shape, (dy.dtype.name,), dy=dy, x=x)
        gradient = self._flip(self._products[2](self._float64(dy), self._float64(x), geometry))
        return [_arrays.store(_arrays.in_layout(self._scaled(gradient, out, alpha, beta), self.layout), dy.dtype, out)]

    def _backward_bias(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, out = _arrays.check_array("dy", arrays["dy"], _arrays.FLOATS), arrays["out"]
        _geometry.check_rank("dy", _geometry.shape("dy.shape", dy.shape, (0,)), self.layout)
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, (dy.shape[-1 if self.channels_last else 1],), (dy.dtype.name,), dy=dy)
        values = self._float64(dy).sum(axis=(0, *range(2, dy.ndim)))
        return [_arrays.store_scaled(values, dy.dtype, out, alpha, beta)]

    def _shapes(
        self, x_shape: ShapeArgument, w_shape: ShapeArgument, x_name: str = "x_shape", w_name: str = "w_shape"
    ) -> tuple[Geometry, Shape]:
        """Return the geometry, and the shape of forward's result in the layout's axis order."""
        of_x, of_w = self._may_be_empty
        x_first = to_logical(_geometry.shape(x_name, x_shape, of_x), self.channels_last)
        w_first = to_logical(_geometry.shape(w_name, w_shape, of_w), self.channels_last)
        geometry = self._geometry(x_first, w_first)
        return geometry, from_logical(self._y_shape(x_first, w_first, geometry), self.channels_last)

    def _check_pair(self, arrays: Arrays, name: str) -> tuple[Array, Array]:
        """Check dy and the other input of a gradient, and return both."""
        dy, array = (_arrays.check_array(each, arrays[each], _arrays.FLOATS) for each in ("dy", name))
        _arrays.check_same_dtype(name, array, "dy", dy)
        compute_dtype_for(self.compute_dtype, dy.dtype.name)
        return dy, array

    def _x_shape(self, dy: Array, w: Array, x_shape: Shape, out: Array | None) -> Shape:
        """Return the shape of the gradient with respect to x: x_shape, or out's."""
        return self._gradient_shape("x_shape", x_shape, out, self._may_be_empty[0])

    def _gradient_shape(self, name: str, shape: Shape, out: Array | None, empty: Shape) -> Shape:
        of_out = None if out is None else _arrays.check_array("out", out, _arrays.FLOATS).shape
        return _geometry.shape(name, gradient_shape(name, shape or None, of_out), empty)

    @property
    def _may_be_empty(self) -> tuple[Shape, Shape]:
        """The axes of x, and the axes of w, that may have size 0."""
        channels = (-1 if self.channels_last else 1,) if self._channels_may_be_empty else ()
        return (0, *channels), channels

    def _geometry_of_dy(self, dy: Array, x_shape: Shape, w_shape: Shape, x_name: str, w_name: str) -> Geometry:
        geometry, y_shape = self._shapes(x_shape, w_shape, x_name, w_name)
        if dy.shape != y_shape:
            raise ValueError(
                f"dy must have shape {y_shape}, the output's for x of shape {tuple(x_shape)} and w of shape "
                f"{tuple(w_shape)}; got shape {dy.shape}"
            )
        return geometry

    def _float64(self, array: Array) -> Float64:
        """Return an array channels first, in float64, which represents every accepted dtype exactly."""
        return _arrays.channels_first(array, self.layout).astype(np.float64, copy=False)

    def _filter64(self, w: Array) -> Float64:
        return self._flip(self._float64(w))

    def _flip(self, w: Float64) -> Float64:
        """Reverse a channels-first filter along its spatial axes in mode "convolution"; the products cross-correlate."""
        return np.flip(w, tuple(range(2, w.ndim))) if self.mode == "convolution" else w

    def _scaled(self, values: Float64, out: Array | None, alpha: float, beta: float) -> Float64:
        """Compute alpha * values + beta * out in place; values are channels first."""
        values *= alpha
        if out is not None and beta:
            values += beta * self._float64(np.asarray(out))
        return values


class Convolution(_NumpyConvolution, device.Convolution):  # type: ignore[misc]
    __doc__ = device.Convolution.__doc__
    plan = candidates = NotInReference()
    _channels_may_be_empty = True
    _products = correlate, correlate_data, correlate_filter

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        return _geometry.convolution(self, x_shape, w_shape)

    def _y_shape(self, x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
        return (x_shape[0], w_shape[0], *geometry.output)


class ConvolutionTranspose(_NumpyConvolution, device_transpose.ConvolutionTranspose):  # type: ignore[misc]
    __doc__ = device_transpose.ConvolutionTranspose.__doc__
    # those of a convolution, with forward and backward_data exchanged
    _products = correlate_data, correlate, lambda dy, x, geometry: correlate_filter(x, dy, geometry)

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        return _geometry.transpose(self, self.output_padding, x_shape, w_shape)

    def _x_shape(self, dy: Array, w: Array, x_shape: Shape, out: Array | None) -> Shape:
        if x_shape or out is not None:
            return super()._x_shape(dy, w, x_shape, out)
        dy_shape = to_logical(_geometry.shape("dy.shape", dy.shape, (0,)), self.channels_last)
        w_shape = to_logical(_geometry.shape("w.shape", w.shape), self.channels_last)
        return from_logical(_geometry.transposed(self, self.output_padding, dy_shape, w_shape), self.channels_last)

    def _y_shape(self, x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
        return (x_shape[0], w_shape[1] * self.groups, *geometry.input)


def _result_dtypes(dtype: str) -> tuple[str, ...]:
    """Return the dtypes that out may have for inputs of a dtype."""
    if dtype in _arrays.INT8:
        return _arrays.INT8_RESULTS
    if dtype in _arrays.FLOAT8:
        return (*_arrays.FLOAT8_RESULTS, dtype)
    return (dtype,)


class FusedConvolution(NumpyOperation, device_fused.FusedConvolution):
    __doc__ = device_fused.FusedConvolution.__doc__
    plan = NotInReference()

    def _output_shape(self, x_shape: ShapeArgument, w_shape: ShapeArgument) -> Shape:
        return self._convolution().output_shape(x_shape, w_shape)

    def _forward(self, arrays: Arrays, activation: FusedActivation | None) -> list[Array]:
        ranks, dtypes = (3, 4, 5), device_fused.DTYPES
        x, w = (_arrays.check_tensor(name, arrays[name], ranks, dtypes, empty="any") for name in ("x", "w"))
        _arrays.check_same_dtype("w", w, "x", x)
        convolution = self._convolution()
        y_shape = convolution.output_shape(x.shape, w.shape)
        channels = y_shape[-1 if convolution.channels_last else 1]
        of_parameters = dict.fromkeys((x.dtype.name, "float32"))
        scale, bias = (_per_channel(name, arrays[name], channels, *of_parameters) for name in ("scale", "bias"))
        residual, out = arrays["residual"], arrays["out"]
        if residual is not None:
            residual = _arrays.check_array("residual", residual, (x.dtype.name,))
            if residual.shape != y_shape:
                raise ValueError(f"residual must have shape {y_shape}, as the result; got shape {residual.shape}")
        check_activation(activation, device_fused.ACTIVATIONS)
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


def _per_channel(name: str, array: Array | None, channels: int, *dtypes: str) -> Array | None:
    """Check a scale or bias, which may be None, and return it as a plain array."""
    if array is None:
        return None
    array = _arrays.check_array(name, array, dtypes)
    if array.shape != (channels,):
        raise ValueError(f"{name} must have shape ({channels},), one for each output channel; got shape {array.shape}")
    return array
