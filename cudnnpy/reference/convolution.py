"""Convolution and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from cudnnpy.reference import _geometry, _products
from cudnnpy.reference._geometry import Geometry, Shape
from cudnnpy.reference._operation import Float64, Operation


@dataclass(frozen=True, kw_only=True)
class Convolution(Operation):
    """A convolution over 1, 2 or 3 spatial dimensions, on NumPy arrays.

    Floating-point inputs are accumulated in float64, int8 exactly, and the result is rounded once. A batch of 0 gives
    empty results, and gradients with respect to w and bias of 0. With 0 channels in x and w, over which the sums are 0,
    the result is activation(beta * out + bias). All other sizes are 1 or more.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    padding : int, tuple or str
        An int; one int, or one pair (before, after), for each spatial axis; or "valid" (none), "same" (the output size
        is ceil(input / stride), an odd element goes after), "half" (half the dilated filter, rounded down) or "full"
        (the dilated filter less one).
    stride, dilation : int or tuple of ints
        An int, or one for each spatial axis.
    groups : int
        The number of groups of channels, each with filters of its own.
    mode : str
        "cross_correlation", or "convolution", which reverses the filter along every spatial axis.
    layout : str
        "NCHW": x is (N, C, spatial...), w (K, C / groups, spatial...); "NHWC": x is (N, spatial..., C),
        w (K, spatial..., C / groups); for any number of spatial dimensions. NCW, NWC, NCDHW and NDHWC require one number
        of them.
    compute_dtype, prefer, workspace_limit, deterministic, tf32, algorithm, policy, tune_seconds
        Validated as on a GPU, and without effect here.
    """

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
