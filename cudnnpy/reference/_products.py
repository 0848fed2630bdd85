"""The three products of a convolution in NumPy: forward and both gradients, on float64 arrays laid out channels first.

All three are one matrix product with the same columns, which are the windows of the padded input:

    forward           y       = filters @ columns
    data gradient     columns = filters.T @ dy, and each column is added to its window of dx
    filter gradient   dw      = dy @ columns.T

`columns` is a view of the padded input, which is copied one block of output positions at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from types import EllipsisType
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cudnnpy.reference._arrays import Float64
from cudnnpy.reference._geometry import Geometry

Index: TypeAlias = tuple[EllipsisType | slice, ...]

# Elements in one block of columns (8 MiB): large enough for the matrix product, small enough to stay near the cache.
BLOCK = 1 << 20


def correlate(x: Float64, w: Float64, geometry: Geometry) -> Float64:
    """Cross-correlate x (N, C, input...) with w (K, C / groups, kernel...) to (N, K, output...)."""
    padded = np.zeros((*x.shape[:2], *geometry.padded))
    padded[_inside(geometry)] = x
    columns = _columns(padded, geometry)
    filters = _filters(w, geometry)
    y = np.empty((*filters.shape[:2], x.shape[0], *geometry.output))
    for block in _blocks(columns, geometry):
        y[block] = (filters @ _matrix(columns[block], geometry)).reshape(y[block].shape)
    return y.reshape(w.shape[0], x.shape[0], *geometry.output).swapaxes(0, 1)


def correlate_data(dy: Float64, w: Float64, geometry: Geometry) -> Float64:
    """Gradient of `correlate` with respect to x, (N, C, input...), for dy (N, K, output...) and w."""
    padded = np.zeros((dy.shape[0], w.shape[1] * geometry.groups, *geometry.padded))
    columns = _columns(padded, geometry)
    filters = _filters(w, geometry).swapaxes(1, 2)
    grouped = _by_group(dy, geometry)
    for block in _blocks(columns, geometry):
        target = columns[block]
        _add(target, (filters @ _rows(grouped[block])).reshape(target.shape), geometry)
    return padded[_inside(geometry)]


def correlate_filter(dy: Float64, x: Float64, geometry: Geometry) -> Float64:
    """Gradient of `correlate` with respect to w, (K, C / groups, kernel...), for dy (N, K, output...) and x."""
    padded = np.zeros((*x.shape[:2], *geometry.padded))
    padded[_inside(geometry)] = x
    columns = _columns(padded, geometry)
    grouped = _by_group(dy, geometry)
    taps = x.shape[1] // geometry.groups * prod(geometry.kernel)
    dw = np.zeros((*grouped.shape[:2], taps))
    for block in _blocks(columns, geometry):
        dw += _rows(grouped[block]) @ _matrix(columns[block], geometry).swapaxes(1, 2)
    return dw.reshape(dy.shape[1], x.shape[1] // geometry.groups, *geometry.kernel)


def _inside(geometry: Geometry) -> tuple[slice, ...]:
    """Index of the input in the padded input."""
    spatial = zip(geometry.input, geometry.padding, strict=True)
    return (slice(None), slice(None), *(slice(before, before + size) for size, (before, _) in spatial))


def _columns(padded: Float64, geometry: Geometry) -> Float64:
    """Writable view of the padded input as (groups, C / groups, kernel..., N, output...)."""
    rank = len(geometry.kernel)
    batch, channels = padded.shape[:2]
    grouped = padded.reshape(batch, geometry.groups, channels // geometry.groups, *geometry.padded)
    spatial = tuple(range(3, 3 + rank))
    windows = sliding_window_view(grouped, geometry.reach, axis=spatial, writeable=True)
    positions = [slice(0, (n - 1) * s + 1, s) for n, s in zip(geometry.output, geometry.stride, strict=True)]
    taps = [slice(None, None, step) for step in geometry.dilation]
    kernel = tuple(range(3 + rank, 3 + 2 * rank))
    return windows[:, :, :, *positions, *taps].transpose(1, 2, *kernel, 0, *spatial)


def _blocks(columns: Float64, geometry: Geometry) -> Iterator[Index]:
    """Divide the axes (N, output...) of columns into blocks of at most BLOCK elements, but of at least one position.

    Yields indices of these axes, which are the last ones both of columns and of y.
    """
    first = 2 + len(geometry.kernel)
    positions = columns.shape[first:]
    room = max(1, BLOCK // max(1, prod(columns.shape[:first])))
    cuts = []
    for axis, size in enumerate(positions):
        step = max(1, min(size, room // prod(positions[axis + 1 :])))
        cuts.append([slice(start, start + step) for start in range(0, size, step)])
    return ((..., *box) for box in product(*cuts))


def _matrix(columns: Float64, geometry: Geometry) -> Float64:
    """Copy (groups, C / groups, kernel..., N, output...) to (groups, taps, positions)."""
    first = 2 + len(geometry.kernel)
    return columns.reshape(columns.shape[0], prod(columns.shape[1:first]), prod(columns.shape[first:]))


def _filters(w: Float64, geometry: Geometry) -> Float64:
    """Reshape (K, C / groups, kernel...) to (groups, K / groups, taps)."""
    return w.reshape(geometry.groups, w.shape[0] // geometry.groups, prod(w.shape[1:]))


def _rows(grouped: Float64) -> Float64:
    """Reshape (groups, K / groups, N, output...) to (groups, K / groups, positions)."""
    return grouped.reshape(*grouped.shape[:2], prod(grouped.shape[2:]))


def _by_group(dy: Float64, geometry: Geometry) -> Float64:
    """Reorder (N, K, output...) as (groups, K / groups, N, output...)."""
    batch, filters, *output = dy.shape
    return dy.swapaxes(0, 1).reshape(geometry.groups, filters // geometry.groups, batch, *output)


def _add(target: Float64, values: Float64, geometry: Geometry) -> None:
    """Add values to the windows in target.

    Windows overlap, so one indexed addition would lose terms. The elements of one tap are distinct, and so are the elements
    of one window: the loop is over taps or windows, whichever are fewer.
    """
    first = 2 + len(geometry.kernel)
    if prod(target.shape[2:first]) <= prod(target.shape[first:]):
        for tap in np.ndindex(*target.shape[2:first]):
            target[:, :, *tap] += values[:, :, *tap]
    else:
        for position in np.ndindex(*target.shape[first:]):
            target[..., *position] += values[..., *position]
