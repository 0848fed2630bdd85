"""Pooling: the maximum or the average of each window, and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._layers import pooling as device
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation

Int64: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """One spatial axis: output position p is the window of the padded input that starts at element p * stride."""

    input: int
    output: int
    window: int
    padding: int
    stride: int

    @property
    def padded(self) -> int:
        """Size of the padded input."""
        return self.input + 2 * self.padding

    @property
    def reach(self) -> int:
        """The distance from the first window's start to the end of the last one's first element."""
        return (self.output - 1) * self.stride + 1


class Pooling(NumpyOperation, device.Pooling):
    __doc__ = device.Pooling.__doc__

    def _output_shape(self, x_shape: Shape) -> Shape:
        x_shape = _geometry.shape("x_shape", x_shape, (0,))
        return self._pooled_shape(x_shape, self._axes("x_shape", x_shape))

    def _forward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, out = _arrays.check_tensor("x", arrays["x"], empty="batch"), arrays["out"]
        axes = self._axes("x", x.shape)
        y_shape = self._pooled_shape(x.shape, axes)
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, y_shape, (x.dtype.name,), x=x)
        values = _arrays.channels_first(x, self.layout).astype(np.float64)
        if self.mode.startswith("max"):
            values = _reduce(values, axes, -np.inf, np.maximum)
        else:
            values = _reduce(values, axes, 0.0, np.add) / self._counts(axes)
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _backward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, out = _arrays.check_array("dy", arrays["dy"], _arrays.FLOATS), arrays["out"]
        x = _arrays.check_tensor("x", arrays["x"], empty="batch")
        _arrays.check_same_dtype("x", x, "dy", dy)
        axes = self._axes("x", x.shape)
        y_shape = self._pooled_shape(x.shape, axes)
        if dy.shape != y_shape:
            raise ValueError(
                f"dy must have shape {y_shape}, the output's for x of shape {x.shape}; got shape {dy.shape}"
            )
        y = _arrays.check_like("y", arrays["y"], "dy", dy)
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x.shape, (x.dtype.name,), dy=dy, x=x, y=y)
        values = _arrays.channels_first(dy, self.layout).astype(np.float64)
        if self.mode.startswith("max"):
            values = _to_maxima(values, _arrays.channels_first(x, self.layout).astype(np.float64), axes)
        else:
            values = _spread_out(values / self._counts(axes), axes)
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _axes(self, name: str, x_shape: Shape) -> list[Axis]:
        """Check a shape in the layout's axis order; return its spatial axes."""
        _geometry.check_rank(name, x_shape, self.layout)
        spatial = x_shape[1:-1] if self.layout.endswith("C") else x_shape[2:]
        axes: list[Axis] = []
        for size, window, padding, stride in zip(spatial, *self._each(len(spatial)), strict=True):
            output = (size + 2 * padding - window) // stride + 1
            if output < 1:
                raise ValueError(
                    f"window must be at most {size + 2 * padding}, the padded size of x; "
                    f"got {window} (on spatial axis {len(axes)})"
                )
            axes.append(Axis(size, output, window, padding, stride))
        return axes

    def _pooled_shape(self, x_shape: Shape, axes: list[Axis]) -> Shape:
        spatial = [axis.output for axis in axes]
        if self.layout.endswith("C"):
            return (x_shape[0], *spatial, x_shape[-1])
        return (*x_shape[:2], *spatial)

    def _counts(self, axes: list[Axis]) -> Float64 | int:
        """Return the divisors of the windows' sums: the elements of each, with or without those of the padding."""
        if self.mode == "average_include_padding":
            return prod(axis.window for axis in axes)
        return _reduce(np.ones((1, 1, *(axis.input for axis in axes))), axes, 0.0, np.add)


def _padded(values: Array, axes: list[Axis], padding: float) -> Array:
    widths = [(0, 0), (0, 0), *((axis.padding, axis.padding) for axis in axes)]
    return np.pad(values, widths, constant_values=padding)


def _taps(padded: Array, axes: list[Axis]) -> Iterator[Array]:
    """View, for each position in the window in C order, this element of every window; channels first."""
    for tap in np.ndindex(*(axis.window for axis in axes)):
        yield padded[:, :, *(slice(n, n + a.reach, a.stride) for n, a in zip(tap, axes, strict=True))]


def _reduce(values: Float64, axes: list[Axis], padding: float, function: Callable[..., Float64]) -> Float64:
    """Reduce each window by a ufunc of two arguments; values are channels first."""
    first, *others = _taps(_padded(values, axes, padding), axes)
    reduced = first.copy()
    for other in others:
        function(reduced, other, out=reduced)
    return reduced


def _to_maxima(dy: Float64, x: Float64, axes: list[Axis]) -> Float64:
    """Return the gradient with respect to x of the maximum: dy, added at the positions of the maxima; channels first.

    The position is the one of the first maximum in C order, or of the first NaN.
    """
    places: Int64 = np.arange(x.size).reshape(x.shape)  # the flat index in x; -1 is padding
    taps = zip(_taps(_padded(x, axes, -np.inf), axes), _taps(_padded(places, axes, -1), axes), strict=True)
    best, where = (first.copy() for first in next(taps))
    for value, place in taps:
        better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | ((where < 0) & (place >= 0))
        np.copyto(best, value, where=better)
        np.copyto(where, place, where=better)
    dx = np.bincount(where.ravel(), weights=dy.ravel(), minlength=x.size).astype(np.float64, copy=False)
    return dx.reshape(x.shape)


def _spread_out(dy: Float64, axes: list[Axis]) -> Float64:
    """Return the gradient with respect to x of the sum: dy, added to all elements of its window; channels first."""
    padded = np.zeros((*dy.shape[:2], *(axis.padded for axis in axes)))
    for part in _taps(padded, axes):
        part += dy
    return padded[:, :, *(slice(axis.padding, axis.padding + axis.input) for axis in axes)]
