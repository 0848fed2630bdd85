"""The convolution and its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from cudnnpy.reference import _geometry, _products
from cudnnpy.reference._geometry import Geometry, Shape
from cudnnpy.reference._operation import Float64, Operation


@dataclass(frozen=True, kw_only=True)
class Convolution(Operation):
    """A convolution over 1, 2 or 3 spatial dimensions, on NumPy arrays.

    padding          an int; one int, or one pair (before, after), for each spatial axis; or "valid" (none), "same" (the
                     output size is ceil(input / stride), an odd element goes after), "half" (half the dilated kernel,
                     rounded down) or "full" (the dilated kernel less one)
    stride, dilation an int, or one for each spatial axis
    groups           how many parts the channels fall into, each with filters of its own
    mode             "cross_correlation", or "convolution", which reverses the filter along every spatial axis
    layout           "NCHW": x (N, C, spatial...), w (K, C / groups, spatial...); or "NHWC": x (N, spatial..., C),
                     w (K, spatial..., C / groups); for any number of spatial dimensions. NCW, NWC, NCDHW and NDHWC
                     name one number of them, which is checked

    The rest is the GPU's, checked for form and without effect here: compute_dtype, prefer, workspace_limit (bytes),
    deterministic, tf32, algorithm, policy, tune_seconds. Floating-point inputs are summed in float64, int8 exactly,
    and the result is rounded once.

    A batch of 0 gives empty results, and gradients in w and bias of 0. With 0 channels in x and w, over which the sums
    are 0, the result is activation(beta * out + bias). All other sizes are 1 or more.

    An instance cannot change and may be shared by threads. A wrong option is a ValueError or TypeError that names it.
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
