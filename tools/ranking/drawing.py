"""The problems of a survey: convolutions of the benchmark's networks, and others drawn around them."""

from __future__ import annotations

import math
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
AROUND = 0.4  # the share of problems that no network has
_FACTORS = (0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 2.0)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MAX_BYTES, _MAX_MACS = 2 << 30, 1 << 39  # larger problems take seconds each


class Drawn(NamedTuple):
    """A problem: its number, its text in the notation with the options, and the network that it is of or drawn around."""

    number: int
    text: str
    network: str


@cache
def _networks() -> list[Network]:
    return [*catalogue.read(), *catalogue.read(LEFT_OUT)]


def draw(seed: int, number: int, around: float = AROUND) -> Drawn:
    """Return the problem of a number, the same one for the same seed and share of problems around networks' layers."""
    random = Random(f"{seed} {number}")
    networks = _networks()
    while True:
        network = random.choice(networks)
        layer, batch = random.choice(network.layers), random.choice((1, network.batch, network.batch))
        try:
            if random.random() < around:
                layer, batch = _around(random, layer), random.choice(_BATCHES)
            cell = Cell(layer, batch, random.choice(KINDS), random.choice(OPERATIONS), (network.name,))
            problem, options = problem_of(cell)
        except ValueError:  # an empty result
            continue
        macs = math.prod(problem.specs[-1].shape) * problem.reduction_length
        if sum(map(byte_extent, problem.specs)) <= _MAX_BYTES and macs <= _MAX_MACS:
            return Drawn(number, text_of(problem, options), network.name)


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
