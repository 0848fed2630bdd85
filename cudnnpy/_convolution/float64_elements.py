"""Compute single elements of a convolution's result in float64 on the host, to verify candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._planning.problem import Read, StridedSlice


class _Taps(NamedTuple):
    """The positions in x, w and y of the products that an element sums, on one spatial axis."""

    x: range
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
    g = problem.geometry
    pad, stride, dilation = g.pre_padding[axis], g.stride[axis], g.dilation[axis]
    x, w, y = (spec.shape[2 + axis] for spec in (problem.x, problem.w, problem.y))
    flip = problem.mode == "convolution"

    def tap(r: int) -> int:
        return w - 1 - r if flip else r

    if problem.operation == "forward":
        inside = [r for r in range(w) if 0 <= at * stride - pad + r * dilation < x]
        first = at * stride - pad + inside[0] * dilation if inside else 0
        return _Taps(range(first, first + len(inside) * dilation, dilation), [tap(r) for r in inside], [at])
    if problem.operation == "backward_data":
        pairs = [divmod(at + pad - r * dilation, stride) for r in range(w)]
        inside = [r for r, (o, rest) in enumerate(pairs) if rest == 0 and 0 <= o < y]
        return _Taps(range(at, at + 1), [tap(r) for r in inside], [pairs[r][0] for r in inside])
    offset = tap(at) * dilation - pad
    low = max(0, -(offset // stride))
    outputs = range(low, max(low, min(y, (x - 1 - offset) // stride + 1)))
    return _Taps(range(low * stride + offset, low * stride + offset + len(outputs) * stride, stride), outputs, outputs)


def _boxed(
    read: Read, operand: int, start: tuple[int, int], shape: tuple[int, int], spatial: Sequence[Sequence[int]]
) -> Any:
    """Return the elements of an operand at every combination of positions of the spatial axes."""
    import numpy as np

    low, high = [min(places) for places in spatial], [max(places) for places in spatial]
    step = [places.step if isinstance(places, range) else 1 for places in spatial]
    counts = [(b - a) // s + 1 for a, b, s in zip(low, high, step, strict=True)]
    found = read(operand, StridedSlice((*start, *low), (*shape, *counts), (1, 1, *step)))
    picked = [[(at - a) // s for at in places] for places, a, s in zip(spatial, low, step, strict=True)]
    return found[np.ix_(range(shape[0]), range(shape[1]), *picked)]
