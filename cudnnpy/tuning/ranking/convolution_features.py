"""The features of a convolution from which the ranking model predicts the times of its candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cudnnpy._convolution.specification import OPERATIONS, ConvolutionSpec
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, are_channels_last, channels_last_strides, packed_strides

_DTYPES = ("float16", "bfloat16", "float32")
_AXES = 3  # the sizes of missing spatial axes are 1
_LENGTHS, _DEPTHS = (16, 32, 64, 128, 256), (32, 64)  # of tiles
_TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
_MULTIPROCESSORS = 132  # of the GPUs that were measured
_MAX_TWOS = 7
_CHANNELS, _PACKED = (8, 16, 32, 64), (32, 64)  # of tiles: for one group, and for several groups side by side


def features(problem: ConvolutionSpec, strict: bool) -> list[float] | None:
    """Return the features of a problem; None for a kind of problem that the model does not know.

    It knows packed and aligned tensors of one data type and one memory format, without scales. An activation counts as a bias.
    `strict`: float32 is multiplied as float32, not as tf32.
    """
    x, w, y, g = problem.x, problem.w, problem.y, problem.geometry
    orders = _orders(x) & _orders(w) & _orders(y)
    is_known = (
        orders
        and {x.dtype, w.dtype, y.dtype} == {x.dtype} <= set(_DTYPES)
        and (problem.alpha, problem.beta) == (1.0, 0.0)
        and problem.mode == "cross_correlation"
        and problem.compute_dtype == "float32"
        and g.pre_padding == g.post_padding
        and all(spec.alignment >= 16 for spec in problem.specs)
        and not problem.is_empty
    )
    if not is_known:
        return None
    return [*_kind(problem, strict), *_sizes(problem), *_windows(problem), *_tiles(problem), *_groups(problem)]


def _orders(spec: TensorSpec) -> set[str]:
    """Return the memory formats of a packed tensor, by the strides that cuDNN gets."""
    strides = {"channels first": packed_strides(spec.shape), "channels last": channels_last_strides(spec.shape)}
    return {order for order in strides if strides[order] == spec.strides}


def _kind(problem: ConvolutionSpec, strict: bool) -> Iterator[float]:
    yield from (problem.operation == operation for operation in OPERATIONS)
    yield from (problem.x.dtype == dtype for dtype in _DTYPES)
    yield from (strict, are_channels_last(problem.x, problem.y))
    yield from (problem.axes == axes for axes in (1, 2, 3))
    is_fused = (problem.bias, problem.activation) != (None, None)
    yield from (is_fused, problem.is_depthwise, problem.groups > 1)


def _sizes(problem: ConvolutionSpec) -> Iterator[float]:
    x, w, y, groups = problem.x.shape, problem.w.shape, problem.y.shape, problem.groups
    itemsize = dtype_of(problem.x.dtype).itemsize
    taps, positions = math.prod(w[2:]), (math.prod(x[2:]), math.prod(y[2:]))
    macs = math.prod(y) * (x[1] // groups) * taps
    sizes = [itemsize * math.prod(shape) for shape in (x, w, y)]
    counts = (x[0], x[1], y[1], x[1] // groups, y[1] // groups, groups, *positions, taps, macs, *sizes, sum(sizes))
    yield from map(math.log2, (*counts, *_padded(x[2:]), *_padded(w[2:]), macs / sum(sizes)))
    rows = (itemsize * length for length in positions)
    yield from map(_twos, (x[1] // groups, y[1] // groups, *rows, x[0]))


def _windows(problem: ConvolutionSpec) -> Iterator[float]:
    g, window = problem.geometry, problem.w.shape[2:]
    is_single = math.prod(window) == 1
    yield from map(math.log2, (max(g.stride), min(g.stride), max(g.dilation)))
    yield from (any(g.pre_padding), tuple(g.stride) == tuple(window), max(window) == min(window))
    yield from (is_single, is_single and max(g.stride) == 1)


def _tiles(problem: ConvolutionSpec) -> Iterator[float]:
    """Yield the sizes of the matrix product that computes the convolution, and how well tiles and waves of tiles fit it."""
    x, y, groups, taps = problem.x.shape, problem.y.shape, problem.groups, math.prod(problem.w.shape[2:])
    channels, filters = x[1] // groups, y[1] // groups
    m, n, k = {
        "forward": (math.prod(y) // y[1], filters, channels * taps),
        "backward_data": (math.prod(x) // x[1], channels, filters * taps),
        "backward_filter": (channels * taps, filters, math.prod(y) // y[1]),
    }[problem.operation]
    yield from map(math.log2, (m, n, k))
    yield from (_filled(size, tile) for size in (m, n) for tile in _LENGTHS)
    yield from (_filled(k, tile) for tile in _DEPTHS)
    for rows, columns in _TILES:
        waves = math.ceil(m / rows) * math.ceil(n / columns) * groups / _MULTIPROCESSORS
        yield from (math.log2(waves), waves / math.ceil(waves))


def _groups(problem: ConvolutionSpec) -> Iterator[float]:
    """Yield how well the channels and filters of a group fit tiles, and groups that are side by side in one tile."""
    channels, filters, groups = problem.x.shape[1], problem.y.shape[1], problem.groups
    each = channels // groups, filters // groups
    yield from map(_twos, (groups, channels, filters))
    yield from (channels == filters, math.log2(filters / channels))
    yield from (_filled(count, tile) for count in each for tile in _CHANNELS)
    for tile in _PACKED:
        packed = max(1, min(groups, tile // max(each)))
        yield from (math.log2(packed), _filled(groups, packed), _filled(packed * max(each), tile))


def _filled(size: int, tile: int) -> float:
    """Return the share of tiles that a size fills."""
    return size / (math.ceil(size / tile) * tile)


def _padded(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (_AXES - len(sizes)) + tuple(sizes)


def _twos(number: int) -> int:
    """Return how often a number can be halved, up to a maximum."""
    return min((number & -number).bit_length() - 1, _MAX_TWOS)


def kind_number(problem: ConvolutionSpec, strict: bool) -> int:
    """Return the number of a kind of problem: the operation, and half precision, tf32 or strict float32."""
    precision = 0 if dtype_of(problem.x.dtype).itemsize == 2 else 2 if strict else 1
    return 3 * OPERATIONS.index(problem.operation) + precision
