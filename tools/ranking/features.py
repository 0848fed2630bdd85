"""The features of candidates, from which a model predicts their times. They know nothing of the names of networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import are_channels_last
from cudnnpy._planning import problem_notation
from cudnnpy._planning.problem import is_strict
from cudnnpy.convolution.problem import OPERATIONS
from cudnnpy.convolution.problem import Problem as Convolution
from tools.ranking.rows import Candidate, Problem

ENGINE = 0  # the index of the feature that is a category
_KNOBS = (
    *("split_k", "tile_size", "use_tex", "kblock", "wino_tile", "multiply", "split_k_buf", "tilek", "stages"),
    *("reduction_mode", "split_k_slc", "idx_mode", "specfilt", "kernel_cfg", "workspace", "tile_cga_m", "tile_cga_n"),
    *("split_rs", "swizzle", "cta_split_k_mode", "ldga", "ldgb", "ldgc", "edge", "chunk_k"),
)
_LOWERINGS = ("blocks", "copies", "channels last", "epilogue", "forward")
_TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
_LAST = 99.0  # the position of candidates that the heuristics do not propose
_MULTIPROCESSORS = 132


def features(problem: Problem) -> list[list[float]]:
    """Return the features of each candidate of a problem."""
    parsed, options = problem_notation.parse(problem.text)
    convolution = cast("Convolution", parsed)
    common = [*_sizes(convolution, is_strict(parsed, options)), *_tiles(convolution)]
    first: dict[tuple[str, int], int] = {}  # the first position of each engine in its lowering
    for one in sorted((one for one in problem.candidates if one.position >= 0), key=lambda one: one.position):
        first.setdefault((one.lowering, one.engine), one.position)
    proposed = [one for one in problem.candidates if one.position == 0]
    return [[*_of_candidate(one, first, proposed), *common] for one in problem.candidates]


def _of_candidate(one: Candidate, first: dict[tuple[str, int], int], proposed: list[Candidate]) -> Iterator[float]:
    knobs, lowering = one.knobs, one.lowering.split(" + ")
    default = next((other for other in proposed if other.lowering == one.lowering), None)
    yield one.engine
    yield one.position if one.position >= 0 else _LAST
    yield first.get((one.lowering, one.engine), _LAST)
    yield len(first)
    yield -1 if default is None else default.engine
    yield default is not None and default.engine == one.engine
    yield 0 if default is None else sum(default.knobs.get(name) == knobs.get(name) for name in _KNOBS)
    yield from (name in lowering for name in _LOWERINGS)
    yield from (knobs.get(name, -1) for name in _KNOBS)


def _sizes(problem: Convolution, strict: bool) -> Iterator[float]:
    x, w, y, g = problem.x, problem.w, problem.y, problem.geometry
    itemsize, taps = dtype_of(x.dtype).itemsize, math.prod(w.shape[2:])
    size = itemsize * sum(math.prod(spec.shape) for spec in (x, w, y))
    macs = math.prod(y.shape) * x.shape[1] // problem.groups * taps
    yield from (OPERATIONS.index(problem.operation), itemsize, strict, are_channels_last(x, y), problem.axes)
    yield from map(math.log2, (x.shape[0], x.shape[1], y.shape[1], problem.groups, taps, size, macs, macs / size))
    yield from map(math.log2, (math.prod(x.shape[2:]), math.prod(y.shape[2:])))
    yield from (max(g.stride), max(g.dilation), any((*g.pre_padding, *g.post_padding)), problem.bias is not None)
    yield from (max(w.shape[2:]), min(w.shape[2:]), problem.is_depthwise)
    rows = itemsize * math.prod(x.shape[2:])
    yield from (_twos(number) for number in (x.shape[1] // problem.groups, y.shape[1] // problem.groups, rows))


def _tiles(problem: Convolution) -> Iterator[float]:
    """Yield the sizes of the matrix product that computes the convolution, and how well tiles and waves of tiles fit it."""
    x, y, taps = problem.x, problem.y, math.prod(problem.w.shape[2:])
    channels, filters = x.shape[1] // problem.groups, y.shape[1] // problem.groups
    positions = {"x": math.prod(x.shape) // x.shape[1], "y": math.prod(y.shape) // y.shape[1]}
    m, n, k = {
        "forward": (positions["y"], filters, channels * taps),
        "backward_data": (positions["x"], channels, filters * taps),
        "backward_filter": (channels * taps, filters, positions["y"]),
    }[problem.operation]
    yield from map(math.log2, (m, n, k))
    yield from (size / (math.ceil(size / tile) * tile) for size in (m, n) for tile in (32, 64, 128, 256))
    yield from (k / (math.ceil(k / tile) * tile) for tile in (32, 64))
    for rows, columns in _TILES:
        waves = math.ceil(m / rows) * math.ceil(n / columns) * problem.groups / _MULTIPROCESSORS
        yield from (math.log2(waves), waves / math.ceil(waves))


def _twos(number: int, most: int = 7) -> int:
    """Return how often a number can be halved, up to a maximum."""
    return min((number & -number).bit_length() - 1, most)
