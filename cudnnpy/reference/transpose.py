"""Transposed convolution and its gradients: the three products of a convolution in exchanged roles."""

from __future__ import annotations

from dataclasses import dataclass

from cudnnpy._options.convolution import TransposeOptions
from cudnnpy.reference import _geometry, _products
from cudnnpy.reference._geometry import Geometry, Shape
from cudnnpy.reference._operation import Array, Float64, Operation
from cudnnpy.typing import Shape as ShapeArgument


@dataclass(frozen=True, kw_only=True)
class ConvolutionTranspose(TransposeOptions, Operation):
    """The transpose of a `Convolution` with the same options, whose filter it takes; on NumPy arrays.

    forward scatters what the convolution gathers. x is (N, C_in, spatial...), w (C_in, C_out / groups, spatial...) and
    the result (N, C_out, spatial...), or channels last for all three. On every spatial axis the output size is
    (input - 1) * stride + dilated kernel - padding before - padding after + output_padding.

    backward_data does not need x_shape, which follows from dy. A batch of 0 gives empty results, and gradients with
    respect to w and bias of 0; all other sizes are 1 or more.

    Parameters
    ----------
    padding : int, tuple or str
        As for `Convolution`, cropped from the output; "same" crops the dilated filter less the stride, so that the output
        size is input * stride unless the filter is smaller than that.
    output_padding : int or tuple of ints
        Elements added after the output, less than the stride (so that the convolution maps the output's size to the
        input's) or than the dilation.
    stride, dilation, groups, mode, layout
        As for `Convolution`.
    """

    def _geometry(self, x_shape: Shape, w_shape: Shape) -> Geometry:
        return _geometry.transpose(self, self.output_padding, x_shape, w_shape)

    def _x_shape(self, dy: Array, w: Array, x_shape: ShapeArgument | None, out: Array | None) -> Shape:
        if x_shape is not None or out is not None:
            return super()._x_shape(dy, w, x_shape, out)
        dy_shape = self._first(_geometry.shape("dy.shape", dy.shape, (0,)))
        w_shape = self._first(_geometry.shape("w.shape", w.shape))
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
