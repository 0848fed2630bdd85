"""Convolution and its gradients."""

from __future__ import annotations

from cudnnpy._layers import convolution as device
from cudnnpy.reference import _geometry, _products
from cudnnpy.reference._arrays import Float64, Shape
from cudnnpy.reference._geometry import Geometry
from cudnnpy.reference._numpy_convolution import NumpyConvolution
from cudnnpy.reference._numpy_operation import NotInReference


class Convolution(NumpyConvolution, device.Convolution):  # type: ignore[misc]
    __doc__ = device.Convolution.__doc__
    plan = candidates = NotInReference()
    _channels_may_be_empty = True

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        return _geometry.convolution(self, x_shape, w_shape)

    def _y_shape(self, x_shape: Shape, w_shape: Shape, geometry: Geometry) -> Shape:
        return (x_shape[0], w_shape[0], *geometry.output)

    def _product(self, x: Float64, w: Float64, geometry: Geometry) -> Float64:
        return _products.correlate(x, w, geometry)

    def _product_data(self, dy: Float64, w: Float64, geometry: Geometry) -> Float64:
        return _products.correlate_data(dy, w, geometry)

    def _product_filter(self, dy: Float64, x: Float64, geometry: Geometry) -> Float64:
        return _products.correlate_filter(dy, x, geometry)
