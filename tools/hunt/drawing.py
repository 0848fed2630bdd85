"""The problems of a hunt: convolutions of networks, odd and large ones, fused chains and reductions, drawn by a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, TypeAlias

from cudnnpy import Graph
from cudnnpy._core.convolution_sizes import output_shape
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent, channels_last_strides, packed_strides
from cudnnpy._layers.activations import activated
from cudnnpy._layers.fused import ACTIVATIONS as FUSED
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.problem import (
    ACTIVATIONS,
    OPERATIONS,
    bias_dtype,
    make_problem,
)
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import Cell, cells
from tools.ranking.problems import problem_of

Shape: TypeAlias = tuple[int, ...]
Planned: TypeAlias = tuple[Problem, PlanningOptions]
_MOST_BYTES = {"large": 10 << 30}  # of the tensors of a problem, by its kind; others 1 GiB
_MOST_PRODUCTS = 1 << 36  # of one problem, which the slowest engines compute in about two seconds
_CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 24, 30, 31, 32, 33, 48, 63, 64, 72, 96, 100, 128, 130, 192, 256)
_HALVES = ("float16", "bfloat16")
_TYPES = (*_HALVES, *_HALVES, "float32", "float32", "float32", "float64")
_ONE_BYTE = {  # the types of their results; only forward takes them
    "int8": ("int32", "float32", "int8"),
    "float8_e4m3fn": ("float32", "float16", "bfloat16", "float8_e4m3fn"),
    "float8_e5m2": ("float32", "float16", "bfloat16", "float8_e5m2"),
}
_LARGEST_SIZE = {1: 3000, 2: 160, 3: 40}  # of a spatial axis, by the number of axes
_LARGE = (1 << 31, 1 << 32)  # bytes from which on numbers of 32 bits overflow
_ORDERS = (packed_strides, channels_last_strides)
_REDUCTIONS: tuple[Any, ...] = ("add", "avg", "max", "min", "amax", "norm1", "norm2")


class Drawn(NamedTuple):
    """A problem: its number, its kind, and its text in the notation, with the options."""

    number: int
    kind: str
    text: str


def draw(seed: int, number: int, only: str | None = None) -> Drawn:
    """Return the problem of a number, the same one for the same seed. `only` is one of KINDS."""
    given = Random(f"{seed} {number}")
    kind = only or given.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    while True:
        try:
            problem, options = KINDS[kind][1](given)
        except (ValueError, TypeError):  # the shapes or the types do not fit together
            continue
        products = math.prod(problem.specs[-1].shape) * problem.reduction_length
        size = sum(map(byte_extent, problem.specs))
        if size <= _MOST_BYTES.get(kind, 1 << 30) and products <= _MOST_PRODUCTS:
            return Drawn(number, kind, text_of(problem, options))


@lru_cache
def _cells() -> list[Cell]:
    return [cell for of_network in cells(catalogue.read()).values() for cell in of_network]


def _network(given: Random) -> Planned:
    return problem_of(given.choice(_cells()))


def _odd(given: Random) -> Planned:
    """A convolution of any kind that `make_problem` accepts."""
    operation = given.choice(OPERATIONS)
    dtype = given.choice((*_TYPES, *_ONE_BYTE) if operation == "forward" else _TYPES)
    axes, channels, filters = given.choice((1, 2, 2, 2, 3)), given.choice(_CHANNELS), given.choice(_CHANNELS)
    groups = given.choice((1, 1, 1, 2, 3, 4, 8, 32, channels, channels))
    each = 1 if groups == channels else channels  # channels of a group; depthwise, mostly with one filter for each
    filters = groups * (given.choice((1, 1, 1, 2)) if groups == channels else filters)
    kernel = _along(given, axes, (1, 1, 2, 3, 3, 3, 4, 5, 7, 11))
    beyond = tuple(given.choice((1, 3 * size + 1)) for size in kernel)
    sides = [(given.randint(0, size), given.randint(0, size)) for size in kernel]
    options = ConvolutionOptions(
        padding=given.choice((0, 0, "half", "half", "same", "full", tuple(one for one, _ in sides), tuple(sides))),
        stride=given.choice((1, 1, 1, 2, _along(given, axes, (1, 2, 3)), beyond)),
        dilation=given.choice((1, 1, 1, 2, _along(given, axes, (1, 2, 3)))),
        groups=groups,
        mode=given.choice((*("cross_correlation",) * 9, "convolution")),
        compute_dtype="float16" if dtype == "float16" and given.random() < 0.05 else None,
    )
    size = int(_LARGEST_SIZE[axes] ** given.uniform(0.2, 1.0))
    image = tuple(max(1, size + given.randint(-2, 2)) for _ in range(axes))
    x = (given.choice((1, 1, 1, 2, 3, 5, 8, 16, 32, 64)), groups * each, *image)
    return _convolution(given, operation, options, dtype, x, (filters, each, *kernel))


def _large(given: Random) -> Planned:
    """A convolution with an x a little below or above 2^31 or 2^32 bytes."""
    operation, dtype, axes = given.choice(OPERATIONS), given.choice((*_HALVES, "float32")), given.choice((1, 2, 2, 3))
    channels, filters, size = given.choice((1, 2, 3, 8, 16)), given.choice((1, 2, 4, 8)), given.choice((1, 3))
    batch, others = given.choice((1, 1, 2, 65_537)), [given.choice((32, 100, 127, 722)) for _ in range(axes - 1)]
    length = given.choice(_LARGE) // dtype_of(dtype).itemsize // (batch * channels * math.prod(others))
    x = (batch, channels, length + given.randint(-2, 2), *others)
    return _convolution(
        given, operation, ConvolutionOptions(padding=size // 2), dtype, x, (filters, channels, *(size,) * axes)
    )


def _along(given: Random, axes: int, values: Shape) -> Shape:
    """Return a value for each axis, mostly the same."""
    first = given.choice(values)
    return tuple(first if given.random() < 0.7 else given.choice(values) for _ in range(axes))


def _convolution(given: Random, operation: str, options: ConvolutionOptions, dtype: Any, x: Shape, w: Shape) -> Planned:
    """Return a convolution whose memory orders, gaps, alignment, bias, activation, alpha, beta and tf32 are drawn."""
    y, result = output_shape(options, x, w), given.choice(_ONE_BYTE.get(dtype, (dtype,)))
    orders = _ORDERS if given.random() < 0.08 else (given.choice(_ORDERS),)
    has_gaps, alignment = given.random() < 0.04, given.choice((*(16,) * 9, dtype_of(dtype).itemsize))

    def spec(shape: Shape, kind: Any) -> TensorSpec:
        strides = given.choice(orders)(shape)
        if has_gaps and given.random() < 0.5:
            strides = tuple(stride if stride == 1 else 2 * stride for stride in strides)
        return TensorSpec(shape, kind, strides, max(alignment, dtype_of(kind).itemsize))

    how: dict[str, Any] = {"alpha": given.choice((*(1.0,) * 9, 0.5)), "beta": given.choice((*(0.0,) * 9, -1.0))}
    if operation != "backward_filter" and given.random() < 0.2:
        bias = TensorSpec(((y if operation == "forward" else x)[1],), bias_dtype(result))
        how.update(activation=given.choice((None, *ACTIVATIONS)), bias=given.choice((None, bias)))
    made = make_problem(options, operation, spec(x, dtype), spec(w, dtype), spec(y, result), **how)
    return ConvolutionProblem(*made), PlanningOptions(tf32=given.random() < 0.5)


def _chain(given: Random) -> Planned:
    """The graph of a FusedConvolution: a convolution, and a scale, a bias, a residual and an activation after it."""
    dtype: Any = given.choice((*_HALVES, "float32"))
    axes, groups, size = given.choice((2, 2, 2, 3)), given.choice((1, 1, 1, 2, 4)), given.choice((1, 4, 7, 14, 17, 28))
    each, filters = (given.choice((16, 32, 64, 64, 128, *_CHANNELS[6:])) for _ in range(2))
    kernel, stride, dilation = given.choice((1, 3, 5)), given.choice((1, 1, 2)), given.choice((1, 1, 1, 2))
    graph = Graph(tf32=given.random() < 0.5)

    def tensor(name: str, shape: Shape, kind: Any = dtype) -> Any:
        return graph.tensor(name, TensorSpec(shape, kind, channels_last_strides(shape)))

    x = tensor("x", (given.choice((1, 2, 8, 32)), groups * each, *(size,) * axes))
    w = tensor("w", (groups * filters, each, *(kernel,) * axes))
    top = graph.convolution(x, w, padding=dilation * (kernel // 2), stride=stride, dilation=dilation)
    whole, one = top.shape, (1, groups * filters, *(1,) * axes)
    modes: tuple[Any, ...] = (("scale", "mul", one), ("bias", "add", one), ("residual", "add", whole))
    for name, mode, shape in modes:
        if given.random() < 0.5:
            kind = dtype if name == "residual" else given.choice((dtype, "float32"))
            top = graph.pointwise(mode, top, tensor(name, shape, kind))
    activation = given.choice((None, *FUSED))
    top = top if activation is None else activated(graph, top, activation)
    top = top if graph.operations[1:] else graph.pointwise("identity", top)
    graph.output("y", top, dtype, channels_last_strides(whole))
    return graph.problem(), graph.options


def _reduction(given: Random) -> Planned:
    """A reduction over rows, columns or the positions of images, channels last."""
    rows, columns = (int(4096 ** given.uniform(0.1, 1.0)) for _ in range(2))
    table, images = (rows, columns, 1, 1), (8, columns, 14, 17)
    shape, axes = given.choice(((table, (0,)), (table, (1,)), (images, (2, 3))))
    dtype: Any = given.choice((*_HALVES, "float32"))
    graph = Graph()
    x = graph.tensor("x", TensorSpec(shape, dtype, channels_last_strides(shape)))
    graph.output("y", graph.reduction(given.choice(_REDUCTIONS), x, axes), given.choice((dtype, "float32")))
    return graph.problem(), graph.options


#: By name: the share of each kind, and the function that draws a problem, which may raise ValueError and TypeError.
KINDS: dict[str, tuple[int, Callable[[Random], Planned]]] = {
    "network": (30, _network),
    "odd": (50, _odd),
    "large": (3, _large),
    "chain": (7, _chain),
    "reduction": (3, _reduction),
}
