"""Infer the shapes of the results of graph operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudnnpy import raw
from cudnnpy._convolution.sizes import Geometry, output_sizes


def convolved(
    x: tuple[int, ...],
    w: tuple[int, ...],
    before: Sequence[int],
    after: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Return the spatial sizes of a convolution's result. Raises ValueError for shapes of x and w that do not fit."""
    if x[1] % w[1] or w[0] % (x[1] // w[1]):
        raise ValueError(
            f"w must have shape (K, C / groups, ...), where groups divides C and K; got shape {w} for {x[1]} channels"
        )
    spatial = output_sizes(x[2:], w[2:], Geometry(*map(tuple, (before, after, strides, dilations))))
    if min(spatial) < 1:
        raise ValueError(f"w must fit into x with padding, {x}; got shape {w}")
    return spatial


def broadcast(*sizes: int) -> int:
    """Return the broadcast size of an axis."""
    return next((size for size in sizes if size != 1), 1)


def statistics(kind: raw.cudnnBackendNormMode_t, x: tuple[int, ...], scale: tuple[int, ...]) -> list[int]:
    """Return the shape of the mean and of the inverse variance."""
    if kind == raw.CUDNN_BATCH_NORM:
        return list(scale)
    if kind == raw.CUDNN_INSTANCE_NORM:
        return [*x[:2], *(1,) * (len(x) - 2)]
    normalized = [1 if n == s else n for n, s in zip(x, scale, strict=True)]
    return [x[0], *normalized[1:]] if kind == raw.CUDNN_ADA_LAYER_NORM else normalized


def share(whole: Sequence[int], part: Sequence[int]) -> int:
    """Return the number of elements of `whole` for each element of `part`."""
    return math.prod(whole) // max(math.prod(part), 1)
