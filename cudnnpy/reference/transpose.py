"""Transposed convolution and its gradients: the products of a convolution, with forward and backward_data exchanged."""

from __future__ import annotations

from cudnnpy._layers import transpose as device
from cudnnpy.reference import _geometry, _products
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._geometry import Geometry
from cudnnpy.reference._numpy_convolution import NumpyConvolution


class ConvolutionTranspose(NumpyConvolution, device.ConvolutionTranspose):  # type: ignore[misc]
    __doc__ = device.ConvolutionTranspose.__doc__

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        return _geometry.transpose(self, self.output_padding, x_shape, w_shape)

    def _x_shape(self, dy: Array, w: Array, x_shape: Shape, out: Array | None) -> Shape:
        if x_shape or out is not None:
            return super()._x_shape(dy, w, x_shape, out)
        dy_shape = self._channels_first(_geometry.shape("dy.shape", dy.shape, (0,)))
        w_shape = self._channels_first(_geometry.shape("w.shape", w.shape))
        batch, channels, *spatial = _geometry.transposed(self, self.output_padding, dy_shape, w_shape)
        return (batch, *spatial, channels) if self.channels_last else (batch, channels, *spatial)

    def _y_shape(self, x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
        return (x_shape[0], w_shape[1] * self.groups, *geometry.input)

    def _product(self, x: Float64, w: Float64, geometry: Geometry) -> Float64:
        return _products.correlate_data(x, w, geometry)

    def _product_data(self, dy: Float64, w: Float64, geometry: Geometry) -> Float64:
        return _products.correlate(dy, w, geometry)

    def _product_filter(self, dy: Float64, x: Float64, geometry: Geometry) -> Float64:
        return _products.correlate_filter(x, dy, geometry)
