"""Compute single elements of a convolution's result in float64 on the host, to verify candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._planning.problem import Read, StridedSlice


class _Taps(NamedTuple):
    """The positions in x, w and y of the products that an element sums, on one spatial axis."""

    x: Sequence[int]
    w: Sequence[int]
    y: Sequence[int]


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda z: max(z, 0.0),
    "sigmoid": lambda z: 1.0 / (1.0 + math.exp(-max(z, -700.0))),
    "tanh": math.tanh,
    "elu": lambda z: z if z > 0.0 else math.expm1(z),
    "swish": lambda z: z / (1.0 + math.exp(-max(z, -700.0))),
}


def float64_elements(
    problem: ConvolutionSpec, positions: Sequence[tuple[int, ...]], read: Read
) -> tuple[list[float], list[float]]:
    """Return elements of the result, and the magnitude that scales the tolerance of each.

    The magnitude is the root of the sum of the squares of the products, about the size of a sum of products with random signs,
    or the element before the activation, if it is larger.
    """
    values, sizes = [], []
    for position in positions:
        total, squares = _sums(problem, position, read)
        terms = [problem.alpha * total]
        if problem.beta:
            terms.append(problem.beta * _one(read, len(problem.operands) - 1, position))
        if problem.bias is not None:
            terms.append(_one(read, problem.operands.index("bias"), position[1:2]))
        z = math.fsum(terms)
        values.append(_ACTIVATIONS[problem.activation](z) if problem.activation else z)
        sizes.append(max(abs(problem.alpha) * math.sqrt(squares), *map(abs, terms), abs(z)))
    return values, sizes


def _one(read: Read, operand: int, position: tuple[int, ...]) -> float:
    ones = (1,) * len(position)
    return float(read(operand, StridedSlice(position, ones, ones)).item())


def _sums(problem: ConvolutionSpec, position: tuple[int, ...], read: Read) -> tuple[float, float]:
    """Return the sum of the products of one element, and the sum of their squares."""
    import numpy as np

    first, second, *axes = position
    taps = [_taps(problem, axis, at) for axis, at in enumerate(axes)]
    if not all(len(tap.w) for tap in taps):
        return 0.0, 0.0
    in_group, filters = problem.w.shape[1], problem.w.shape[0] // problem.groups  # channels of x and of y in a group
    if problem.operation == "backward_data":
        group, channel = divmod(second, in_group)
        y = _boxed(read, 0, (first, group * filters), (1, filters), [tap.y for tap in taps])
        w = _boxed(read, 1, (group * filters, channel), (filters, 1), [tap.w for tap in taps])
        products = y[0] * w[:, 0]
    elif problem.operation == "forward":
        group = second // filters
        x = _boxed(read, 0, (first, group * in_group), (1, in_group), [tap.x for tap in taps])
        w = _boxed(read, 1, (second, 0), (1, in_group), [tap.w for tap in taps])
        products = x * w
    else:
        group, batch = first // filters, problem.x.shape[0]
        y = _boxed(read, 0, (0, first), (batch, 1), [tap.y for tap in taps])
        x = _boxed(read, 1, (0, group * in_group + second), (batch, 1), [tap.x for tap in taps])
        products = y * x
    return float(products.sum()), float(np.square(products).sum())


def _taps(problem: ConvolutionSpec, axis: int, at: int) -> _Taps:
    """Return the products of the element at a position of a spatial axis, by their positions in x, w and y."""
    g, operation = problem.geometry, problem.operation
    pad, stride, dilation = g.pre_padding[axis], g.stride[axis], g.dilation[axis]
    x, w, y = (spec.shape[2 + axis] for spec in (problem.x, problem.w, problem.y))
    if operation == "forward":  # pairs of a position in y, and one in the filter that is not flipped
        pairs = [(at, r) for r in range(w)]
    elif operation == "backward_data":
        pairs = [(o, r) for r in range(w) for o, rest in [divmod(at + pad - r * dilation, stride)] if not rest]
    else:
        pairs = [(o, w - 1 - at if problem.mode == "convolution" else at) for o in range(y)]
    taps = [(o * stride - pad + r * dilation, w - 1 - r if problem.mode == "convolution" else r, o) for o, r in pairs]
    inside = [tap for tap in taps if 0 <= tap[0] < x and 0 <= tap[2] < y]
    return _Taps(*([tap[role] for tap in inside] for role in range(3)))


def _boxed(
    read: Read, operand: int, start: tuple[int, int], shape: tuple[int, int], spatial: Sequence[Sequence[int]]
) -> Any:
    """Return the elements of an operand at every combination of positions of the spatial axes."""
    import numpy as np

    low, high = [min(places) for places in spatial], [max(places) for places in spatial]
    gaps = [{abs(b - a) for a, b in pairwise(places)} for places in spatial]
    step = [min(gap) if len(gap) == 1 else 1 for gap in gaps]  # to read no more than there is between
    counts = [(b - a) // s + 1 for a, b, s in zip(low, high, step, strict=True)]
    found = read(operand, StridedSlice((*start, *low), (*shape, *counts), (1, 1, *step)))
    picked = [[(at - a) // s for at in places] for places, a, s in zip(spatial, low, step, strict=True)]
    return found[np.ix_(range(shape[0]), range(shape[1]), *picked)]
