"""Override the order of cuDNN's heuristics for kinds of convolutions for which they propose a slow engine first.

The measurement table (_planning/measurement_table.py) changes the order for problems near measured ones. These rules apply to
whole kinds of problems, by conditions on their sizes. docs/dev/benchmarks.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import are_channels_last
from cudnnpy._planning.candidates import Engine
from cudnnpy.convolution.lowering import ConvolutionLowering
from cudnnpy.convolution.problem import Problem

_WINOGRAD_CHANNELS = 64  # minimum for which an engine that the heuristics omit is tried first

ENGINE_0 = Engine(0)  #: direct convolution in conventional arithmetic, for any operation
_PLAIN_AXES = 3

# Depthwise convolutions: the filters and images for which copies to channels last are faster.
_MANY_TAPS, _LARGE_IMAGES = 25, 3_000_000

# Matrix products with misaligned rows: the minimum of multiply-accumulates and channels for which they are slow, and the knob
# that only cuBLASLt's engines have.
_MANY_PRODUCTS, _MANY_CHANNELS = 2_000_000_000, 256
_ROW_BYTES = 16
_WORKSPACE_KNOB = int(raw.cudnnBackendKnobType_t.CUDNN_KNOB_TYPE_WORKSPACE)

# Gradients with respect to filters: the minimum of filters and MACs for which the engine is faster with its default knobs.
_TILED, _MANY_FILTERS, _LARGE_FILTER_PRODUCTS = 20, 112, 800_000_000

# Gradients with respect to filters of three axes: an engine, and for which sizes it is faster than another one.
_SUMMING, _COPYING, _MANY_POSITIONS, _MOST_FILTERS = 1, 67, 200_000, 128

# Gradients with respect to x: two engines, and for which sizes the second one is faster.
_WIDE, _NARROW, _FEW_FILTERS, _ENOUGH_CHANNELS, _LARGE_DATA_PRODUCTS = 25, 74, 64, 32, 500_000_000


def is_for_winograd(problem: Problem, strict: bool) -> bool:
    """Return whether the Winograd engines for strict float32, which the heuristics omit, come first, as measured.

    On an H200 with cuDNN 9.19, for 3x3 filters with stride 1 and 64 channels or more, they take 0.43 of the time of the
    first strict engine that the heuristics propose, and 1.35 at most (41 problems of networks). For a batch of 1 they take
    2.4 times as long.
    """
    g = problem.geometry
    return (
        strict
        and problem.operation != "backward_filter"
        and problem.w.shape[2:] == (3, 3)
        and g.stride == g.dilation == (1, 1)
        and problem.groups == 1
        and problem.x.shape[0] > 1
        and min(problem.w.shape[:2]) >= _WINOGRAD_CHANNELS
    )


def is_for_plain_engine(problem: Problem) -> bool:
    """Return whether engine 0 comes first: for depthwise convolutions with three spatial axes.

    The engines for depthwise convolutions have two axes at most, so that the heuristics propose engines that compute the zeros
    of a dense filter. On an H200 with cuDNN 9.19, engine 0 takes 0.10 of their time, and 0.52 at most (9 problems of X3D).
    """
    return problem.is_depthwise and problem.axes == _PLAIN_AXES


def is_for_channels_last(problem: Problem) -> bool:
    """Return whether copies to channels last are faster than engine 0: for large depthwise images in float32.

    On an H200 with cuDNN 9.19, from 3 million elements of x, the engine for depthwise convolutions and the copies take 0.69
    of the time of forward, and 0.80 at most (filters of 5x5 and 7x7 with stride 1, 8 problems). For the gradient with respect
    to x they take 0.58 of the time, and 0.69 at most (these filters, or strides above 1, 16 problems). For 0.5 million they
    take 0.92 to 1.7, and forward with a stride 1.2 to 1.9.
    """
    x, w, g = problem.x, problem.w, problem.geometry
    has_many_taps, has_stride = math.prod(w.shape[2:]) >= _MANY_TAPS, max(g.stride) > 1
    gains = {"forward": has_many_taps and not has_stride, "backward_data": has_many_taps or has_stride}
    return (
        gains.get(problem.operation, False)
        and x.dtype == "float32"
        and problem.is_depthwise
        and w.shape[0] == x.shape[1]
        and problem.axes < _PLAIN_AXES
        and set(g.dilation) == {1}
        and math.prod(x.shape) >= _LARGE_IMAGES
    )


def instead_of_plain(problem: Problem, lowerings: Sequence[ConvolutionLowering]) -> list[ConvolutionLowering]:
    """Return the lowerings that come before engine 0 wherever it is proposed, the fastest first.

    Copies to channels last run on the engines for depthwise convolutions, which are compiled at run time. A gradient as a
    forward convolution runs on engine 0 itself (lowering.py has the times).
    """
    copied = [lowering for lowering in lowerings if lowering.channels_last_copies and is_for_channels_last(problem)]
    return copied + [lowering for lowering in lowerings if lowering.flipped_forward]


def has_slow_products(problem: Problem, strict: bool) -> bool:
    """Return whether cuBLASLt's engines, which the heuristics propose first, are slow: for large products of misaligned rows.

    A convolution with filters of one element is a matrix product. Channels first, the rows of the matrices are the positions of
    an image. If their bytes are not a multiple of 16, cuBLASLt has no fast kernel. Other engines, which copy the tensors, are
    then faster for large problems: on an H200 with cuDNN 9.19 they take 0.58 of the time (10 problems, 1.02 at most).
    """
    x, w, g = problem.x, problem.w, problem.geometry
    is_product = (
        _is_dense_channels_first(problem)
        and set(w.shape[2:]) == set(g.stride) == {1}
        and not any((*g.pre_padding, *g.post_padding))
    )
    row_bytes = math.prod(x.shape[2:]) * dtype_of(x.dtype).itemsize
    return (
        is_product
        and not strict
        and row_bytes % _ROW_BYTES != 0
        and min(w.shape[:2]) >= _MANY_CHANNELS
        and _multiplications(problem) >= _MANY_PRODUCTS
    )


def has_large_filter(problem: Problem, strict: bool) -> bool:
    """Return whether engine 20 is faster with its default knobs: for large gradients with respect to 112 filters or more.

    For strict float32, the heuristics propose the engine with small tiles of the filter first. On an H200 with cuDNN 9.19, its
    default takes 0.63 of the time from 0.8e9 MACs, and 0.99 at most (26 problems); with fewer, or with 96 filters and fewer, it
    takes up to 3 times as long.
    """
    return (
        strict
        and _is_dense_channels_first(problem)
        and problem.operation == "backward_filter"
        and problem.w.shape[0] >= _MANY_FILTERS
        and _multiplications(problem) >= _LARGE_FILTER_PRODUCTS
    )


def is_of_volumes(problem: Problem, strict: bool) -> bool:
    """Return whether engine 1 is faster than engine 0, which comes first: for gradients with respect to filters of three axes.

    For strict float32, on an H200 with cuDNN 9.19, it takes 0.32 of the time, and 0.64 at most (8 problems of 4 networks).
    """
    return (
        strict
        and _is_dense_channels_first(problem)
        and problem.operation == "backward_filter"
        and problem.axes == _PLAIN_AXES
    )


def is_of_large_volumes(problem: Problem, strict: bool) -> bool:
    """Return whether engine 1 is faster than engine 67, too: for 200,000 positions of x or more, and 128 filters at most.

    On an H200 with cuDNN 9.19, it takes 0.26 of the time, and 0.59 at most (6 problems of 5 networks); for 150,000
    positions or fewer, between 0.5 and 3.5.
    """
    positions = math.prod(problem.x.shape) // problem.x.shape[1]
    return is_of_volumes(problem, strict) and positions >= _MANY_POSITIONS and problem.w.shape[0] <= _MOST_FILTERS


def has_few_filters(problem: Problem, strict: bool) -> bool:
    """Return whether engine 74 is faster than 25, which comes first: for large gradients of 64 filters or fewer.

    For strict float32 with stride 1, 32 channels or more and 0.5e9 MACs, on an H200 with cuDNN 9.19, it takes 0.48 of the time,
    and 0.69 at most (7 problems); with fewer channels, up to 15 times as long.
    """
    return (
        strict
        and _is_dense_channels_first(problem)
        and problem.operation == "backward_data"
        and set(problem.geometry.stride) == {1}
        and problem.w.shape[0] <= _FEW_FILTERS
        and problem.w.shape[1] >= _ENOUGH_CHANNELS
        and _multiplications(problem) >= _LARGE_DATA_PRODUCTS
    )


def _is_dense_channels_first(problem: Problem) -> bool:
    return problem.groups == 1 and not are_channels_last(problem.x, problem.y)


def _multiplications(problem: Problem) -> int:
    return math.prod(problem.y.shape) * math.prod(problem.w.shape[1:])


class _Proposal(Protocol):
    """The properties of a proposal that the rules use: a candidate has them, and a survey's row."""

    @property
    def engine(self) -> Engine | None: ...
    @property
    def rejection_reason(self) -> str: ...
    @property
    def uses_tf32(self) -> bool: ...


_P = TypeVar("_P", bound=_Proposal)


def apply_overrides(problem: Problem, strict: bool, proposals: Iterable[_P]) -> Iterator[_P]:
    """Return the heuristics' proposals for a lowering's part of a problem, with a faster one before a slow first one."""
    if has_slow_products(problem, strict):
        proposals = _products_second(proposals)
    if has_large_filter(problem, strict):
        proposals = _moved(proposals, _TILED, lambda one: _index(one) == _TILED and not _knobs(one))
    if is_of_volumes(problem, strict):
        proposals = _moved(proposals, ENGINE_0.index, lambda one: _index(one) == _SUMMING)
    if is_of_large_volumes(problem, strict):
        proposals = _moved(proposals, _COPYING, lambda one: _index(one) == _SUMMING)
    if has_few_filters(problem, strict):
        proposals = _moved(proposals, _WIDE, lambda one: _index(one) == _NARROW)
    return iter(proposals)


def _products_second(proposals: Iterable[_P]) -> Iterator[_P]:
    """Yield proposals in their order, but move leading proposals of cuBLASLt's engines behind the first usable other one."""
    left, later = iter(proposals), list[_P]()
    for proposal in left:
        if _knobs(proposal) == {_WORKSPACE_KNOB}:
            later.append(proposal)
            continue
        yield proposal
        if not proposal.rejection_reason:
            break
    yield from later
    yield from left


def _moved(proposals: Iterable[_P], engine: int, is_better: Callable[[_Proposal], bool]) -> Iterator[_P]:
    """Yield proposals in their order, but a better one first if the first usable one without tf32 is of `engine`."""
    found = list(proposals)
    usable = [one for one in found if not one.rejection_reason and not one.uses_tf32]
    better = next(filter(is_better, usable), None) if usable and _index(usable[0]) == engine else None
    if better is not None:
        yield better
    yield from (one for one in found if one is not better)


def _index(proposal: _Proposal) -> int | None:
    return None if proposal.engine is None else proposal.engine.index


def _knobs(proposal: _Proposal) -> set[int]:
    return set() if proposal.engine is None or not proposal.engine.knobs else set(dict(proposal.engine.knobs))
