"""The problems of a survey: convolutions of the benchmark's networks, others around them, ones of no network, or a list's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import make_problem, planning_options
from cudnnpy._core.layouts import TensorSpec, byte_extent, channels_last_strides, packed_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_notation import text_of
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.catalogue import Layer, Network
from tools.benchmark.networks.cells import KINDS, OPERATIONS, Cell, in_order
from tools.benchmark.networks.plans import options

LEFT_OUT = catalogue.FILE.with_name("left_out.txt")
AROUND = 0.4  # the share of problems around networks' layers
OF_NO_NETWORK = "drawn"  #: in place of a network's name
_FACTORS = (0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 2.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KERNELS = (1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7, 9, 11, 15, 21, 31, 41)
_GROUPS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
_MOST_GROUPS, _MOST_IN_GROUP, _MOST_CHANNELS = (
    128,
    128,
    4096,
)  # of grouped convolutions: groups, channels of one, of all
_GROUPED_KERNELS = {(1, 1): 35, (3, 3): 40, (5, 5): 9, (7, 7): 6, (2, 2): 2, (4, 4): 1, (6, 6): 1, (1, 3): 3, (5, 1): 3}
_GROUPED_SIZES = (5, 7, 7, 8, 10, 12, 14, 14, 16, 20, 24, 28, 28, 32, 40, 48, 56, 56, 64, 75, 96, 112, 128, 160)
_GROUPED_BATCHES = (1, 1, 2, 4, 8, 16, 32, 64)
_MAX_BYTES, _MAX_MACS = 2 << 30, 1 << 39  # larger problems take seconds each


class Drawn(NamedTuple):
    """A problem: its number, its text in the notation with the options, and the network that it is of or drawn around."""

    number: int
    text: str
    network: str


@cache
def _networks() -> list[Network]:
    return [*catalogue.read(), *catalogue.read(LEFT_OUT)]


def draw(seed: int, number: int, around: float = AROUND, free: float = 0.0, grouped: float = 0.0) -> Drawn:
    """Return the problem of a number, the same one for the same seed and shares.

    `around` is the share of problems around layers, of those of networks; `free` is the share of problems of no network, and
    `grouped` the share of grouped convolutions of no network.
    """
    random = Random(f"{seed} {number}")
    networks = _networks()
    is_grouped = grouped > 0 and random.random() < grouped
    is_free = not is_grouped and free > 0 and random.random() < free
    while True:
        network = random.choice(networks)
        name = OF_NO_NETWORK if is_free or is_grouped else network.name
        layer, batch = random.choice(network.layers), random.choice((1, network.batch, network.batch))
        try:
            if is_grouped:
                layer, batch = _grouped(random), random.choice(_GROUPED_BATCHES)
            elif is_free:
                layer, batch = _free(random), random.choice(_BATCHES)
            elif random.random() < around:
                layer, batch = _around(random, layer), random.choice(_BATCHES)
            cell = Cell(layer, batch, random.choice(KINDS), random.choice(OPERATIONS), (name,))
            problem, planning = problem_of(cell)
        except ValueError:  # an empty result
            continue
        macs = math.prod(problem.specs[-1].shape) * problem.reduction_length
        if sum(map(byte_extent, problem.specs)) <= _MAX_BYTES and macs <= _MAX_MACS:
            return Drawn(number, text_of(problem, planning), name)


def problem_of(cell: Cell) -> tuple[ConvolutionProblem, PlanningOptions]:
    """Return the problem of a cell and its options. A transposed convolution's forward is a convolution's backward_data."""
    layer, batch, kind = cell.layer, cell.batch, cell.kind

    def spec(shape: tuple[int, ...]) -> TensorSpec:
        strides = channels_last_strides(shape) if kind.channels_last else packed_strides(shape)
        return TensorSpec(shape, kind.dtype, strides)

    x, y = spec(layer.x_shape(batch)), spec(layer.y_shape(batch))
    operation = cell.operation
    if layer.transposed:
        x, y = y, x
        operation = {"forward": "backward_data", "backward_data": "forward"}.get(operation, operation)  # type: ignore[assignment]
    with_bias = layer.bias and cell.operation == "forward"
    bias = TensorSpec((layer.filters,), kind.dtype) if with_bias else None
    given = ConvolutionOptions(**options(cell))
    problem = ConvolutionProblem(*make_problem(given, operation, x, spec(layer.w_shape), y, bias=bias))
    return problem, planning_options(given)


def listed(file: Path, seed: int, only: str = "") -> list[Cell]:
    """Return the cells of a list of networks in the seed's order: those whose names have a match of the expression `only`."""
    return [cell for cell in in_order(catalogue.read(file), seed) if re.search(only, cell.name)]


def of_cell(number: int, cell: Cell) -> Drawn:
    """Return the problem of a cell of a list."""
    return Drawn(number, text_of(*problem_of(cell)), cell.networks[0])


def _grouped(random: Random) -> Layer:
    """Return a grouped convolution of no network. Raises ValueError if it would be depthwise, empty or very wide."""
    groups = _logarithmic(random, _MOST_GROUPS, 2)
    channels = filters = _logarithmic(random, _MOST_IN_GROUP)
    if random.random() < 0.5:
        filters = _logarithmic(random, _MOST_IN_GROUP)
    kernel = random.choices([*_GROUPED_KERNELS], [*_GROUPED_KERNELS.values()])[0]
    stride = random.choices((1, 2, 4), (0.7, 0.27, 0.03))[0]
    dilation = random.choices((1, 2), (0.95, 0.05))[0]
    most = 2048 // math.isqrt(groups * max(channels, filters))  # networks have more channels in smaller images
    sizes = [size for size in _GROUPED_SIZES if size <= most]
    size = (random.choice(sizes),) * 2
    if random.random() < 0.15:
        size = random.choice(sizes), _count(random, 100)
    padding = tuple(dilation * (length - 1) // 2 for length in kernel)
    if random.random() < 0.1:
        padding = (0, 0)
    layer = Layer(
        groups * channels,
        size,
        groups * filters,
        kernel,
        (stride,) * 2,
        padding,
        (dilation,) * 2,
        (0, 0),
        groups,
        False,
        random.random() < 0.15,
    )
    if min(layer.y_shape(1)) < 1 or max(layer.channels, layer.filters) > _MOST_CHANNELS or channels == filters == 1:
        raise ValueError("the result is empty, or the convolution is depthwise or too wide")
    return layer


def _logarithmic(random: Random, most: int, least: int = 1) -> int:
    """Return a number from `least` to `most`, evenly drawn on a logarithmic scale, and in two of three cases a power of two."""
    count = math.exp(random.uniform(math.log(least), math.log(most)))
    return 2 ** round(math.log2(count)) if random.random() < 2 / 3 else round(count)


def _free(random: Random) -> Layer:
    """Return a convolution of no network. Raises ValueError if its result would be empty."""
    axes = random.choices((1, 2, 3), (0.15, 0.7, 0.15))[0]
    channels, filters, groups = _count(random, 2048), _count(random, 2048), 1
    sort = random.random()
    if sort < 0.2:  # depthwise
        groups = filters = channels
    elif sort < 0.55:
        groups = random.choice((*_GROUPS, channels))
        channels, filters = (groups * max(1, count // groups) for count in (channels, filters))
    elif sort < 0.65:  # an image
        channels = random.choice((1, 2, 3, 3, 4))

    def each(draw: Callable[[], int], same: float) -> tuple[int, ...]:
        return (draw(),) * axes if random.random() < same else tuple(draw() for _ in range(axes))

    size = each(lambda: _count(random, (4096, 256, 64)[axes - 1]), 0.8)
    kernel = each(lambda: random.choice(_KERNELS if axes < 3 else _KERNELS[:9]), 0.85)
    stride = each(lambda: random.choices((1, 2, 3, 4), (0.65, 0.25, 0.05, 0.05))[0], 0.9)
    if random.random() < 0.03:
        stride = kernel
    dilation = (random.choices((1, 2, 3, 6), (0.88, 0.06, 0.03, 0.03))[0],) * axes
    padding = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    if random.random() < 0.25:
        padding = (random.choice((0, 0, 1, 2)),) * axes
    layer = Layer(
        channels, size, filters, kernel, stride, padding, dilation, (0,) * axes, groups, False, random.random() < 0.3
    )
    if min(layer.y_shape(1)) < 1:
        raise ValueError("the result is empty")
    return layer


def _count(random: Random, most: int) -> int:
    """Return a number up to a limit, evenly drawn on a logarithmic scale, and mostly a multiple of 8."""
    count = max(1, round(math.exp(math.log(most) * random.uniform(0.2, 1.0))))
    return 8 * math.ceil(count / 8) if count > 8 and random.random() < 0.7 else count


def _around(random: Random, layer: Layer) -> Layer:
    """Return a convolution with other channels, filters and sizes, of the same kind."""
    groups = layer.groups
    if layer.depthwise:
        channels = _scaled(random, layer.channels)
        return layer._replace(channels=channels, groups=channels, filters=channels, size=_size(random, layer.size))
    channels, filters = (groups * _scaled(random, count // groups) for count in (layer.channels, layer.filters))
    if layer.channels <= 4:  # an image
        channels = layer.channels
    return layer._replace(channels=channels, filters=filters, size=_size(random, layer.size))


def _scaled(random: Random, count: int) -> int:
    """Return another number of channels, mostly a multiple of 8."""
    scaled = max(1, round(count * random.choice(_FACTORS)))
    return 8 * math.ceil(scaled / 8) if scaled > 8 and random.random() < 0.8 else scaled


def _size(random: Random, size: tuple[int, ...]) -> tuple[int, ...]:
    factor, more = random.choice(_FACTORS), random.choice((0, 0, 0, 1, -1, 3))
    return tuple(max(1, round(length * factor) + more) if length > 1 else 1 for length in size)
