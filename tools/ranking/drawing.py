"""The problems of a survey: convolutions of the benchmark's networks, others around them, and ones of no network."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from random import Random
from typing import NamedTuple

from cudnnpy._core.layouts import byte_extent
from cudnnpy._planning.problem_notation import text_of
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.catalogue import Layer, Network
from tools.benchmark.networks.cells import KINDS, OPERATIONS, Cell
from tools.ranking.problems import problem_of

LEFT_OUT = catalogue.FILE.with_name("left_out.txt")
AROUND = 0.4  # the share of problems around networks' layers
OF_NO_NETWORK = "drawn"  #: in place of a network's name
_FACTORS = (0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 2.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KERNELS = (1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7, 9, 11, 15, 21, 31, 41)
_GROUPS = (2, 3, 4, 6, 8, 12, 16, 32, 64)
_MAX_BYTES, _MAX_MACS = 2 << 30, 1 << 39  # larger problems take seconds each


class Drawn(NamedTuple):
    """A problem: its number, its text in the notation with the options, and the network that it is of or drawn around."""

    number: int
    text: str
    network: str


@cache
def _networks() -> list[Network]:
    return [*catalogue.read(), *catalogue.read(LEFT_OUT)]


def draw(seed: int, number: int, around: float = AROUND, free: float = 0.0) -> Drawn:
    """Return the problem of a number, the same one for the same seed and shares.

    `around` is the share of problems around layers, of those of networks; `free` is the share of problems of no network.
    """
    random = Random(f"{seed} {number}")
    networks = _networks()
    is_free = free > 0 and random.random() < free
    while True:
        network = random.choice(networks)
        name = OF_NO_NETWORK if is_free else network.name
        layer, batch = random.choice(network.layers), random.choice((1, network.batch, network.batch))
        try:
            if is_free:
                layer, batch = _free(random), random.choice(_BATCHES)
            elif random.random() < around:
                layer, batch = _around(random, layer), random.choice(_BATCHES)
            cell = Cell(layer, batch, random.choice(KINDS), random.choice(OPERATIONS), (name,))
            problem, options = problem_of(cell)
        except ValueError:  # an empty result
            continue
        macs = math.prod(problem.specs[-1].shape) * problem.reduction_length
        if sum(map(byte_extent, problem.specs)) <= _MAX_BYTES and macs <= _MAX_MACS:
            return Drawn(number, text_of(problem, options), name)


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
