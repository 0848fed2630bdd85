"""Pooling: the maximum or the average of each window, and its gradient.

A window of several axes is reduced one axis after the other, from the last to the first: its rows, then the results of the
rows, and so on. Each reduction keeps the first of equal maxima, so that the result is the first maximum in C order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._layers import pooling as device
from cudnnpy._options.arguments import check_scales
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
    def inside(self) -> slice:
        """The input's part of the padded input."""
        return slice(self.padding, self.padding + self.input)

    def taps(self) -> Iterator[slice]:
        """Yield, for each position in the window, the slice of the padded input with this element of every window."""
        for tap in range(self.window):
            yield slice(tap, tap + (self.output - 1) * self.stride + 1, self.stride)

    def counts(self, include_padding: bool) -> Float64:
        """Return the number of elements that each window averages, with or without the elements of the padding."""
        if include_padding:
            return np.full(self.output, self.window, np.float64)
        start, end = np.arange(self.output) * self.stride, self.padding + self.input
        return (np.minimum(start + self.window, end) - np.maximum(start, self.padding)).astype(np.float64)


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
        _geometry.check_rank(name, x_shape, self)
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

    def _counts(self, axes: list[Axis]) -> Float64:
        """Return the divisors of the windows' sums, shaped to broadcast against the output."""
        counts = np.ones(())
        for axis in axes:
            counts = counts[..., np.newaxis] * axis.counts(self.mode == "average_include_padding")
        return counts


def _reduce(values: Float64, axes: list[Axis], padding: float, function: Callable[..., Float64]) -> Float64:
    """Reduce each window by a ufunc of two arguments; values are channels first."""
    for at, axis in reversed(list(enumerate(axes, 2))):
        padded = _padded(values, at, axis, padding)
        first, *others = axis.taps()
        values = _along(padded, at, first).copy()
        for tap in others:
            function(values, _along(padded, at, tap), out=values)
    return values


def _to_maxima(dy: Float64, x: Float64, axes: list[Axis]) -> Float64:
    """Return the gradient with respect to x of the maximum: dy, added at the positions of the maxima; channels first."""
    # `where` holds the flat index in x of each value in `best`; -1 is padding.
    where: Int64 = np.arange(x.size).reshape(x.shape)
    best = x
    for at, axis in reversed(list(enumerate(axes, 2))):
        padded, padded_where = _padded(best, at, axis, -np.inf), _padded(where, at, axis, -1)
        first, *others = axis.taps()
        best, where = _along(padded, at, first).copy(), _along(padded_where, at, first).copy()
        for tap in others:
            value, place = _along(padded, at, tap), _along(padded_where, at, tap)
            better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | ((where < 0) & (place >= 0))
            np.copyto(best, value, where=better)
            np.copyto(where, place, where=better)
    dx = np.bincount(where.ravel(), weights=dy.ravel(), minlength=x.size).astype(np.float64, copy=False)
    return dx.reshape(x.shape)


def _spread_out(dy: Float64, axes: list[Axis]) -> Float64:
    """Return the gradient with respect to x of the sum: dy, added to all elements of its window; channels first."""
    for at, axis in enumerate(axes, 2):
        padded = np.zeros((*dy.shape[:at], axis.padded, *dy.shape[at + 1 :]))
        for tap in axis.taps():
            _along(padded, at, tap)[...] += dy
        dy = _along(padded, at, axis.inside)
    return dy


def _padded(values: Array, at: int, axis: Axis, padding: float) -> Array:
    widths = [(axis.padding, axis.padding) if i == at else (0, 0) for i in range(values.ndim)]
    return np.pad(values, widths, constant_values=padding)


def _along(values: Array, at: int, part: slice) -> Array:
    """View a part of axis `at`."""
    return values[(slice(None),) * at + (part,)]
