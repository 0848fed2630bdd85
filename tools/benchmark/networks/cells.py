"""The cells that layers are measured in: a convolution, a batch, a kind of arithmetic and a direction; in an order by seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from cudnnpy.typing import ConvolutionOperation, ElementName
from tools.benchmark.networks.catalogue import Layer, Network

OPERATIONS: tuple[ConvolutionOperation, ...] = ("forward", "backward_data", "backward_filter")


class Kind(NamedTuple):
    """A data type, its memory format, whether tf32 is allowed, and the tolerance between two libraries (relative)."""

    name: str
    dtype: ElementName
    channels_last: bool
    tf32: bool
    tolerance: float


KINDS = (
    Kind("fp16 NHWC", "float16", True, True, 5e-3),
    Kind("bf16 NHWC", "bfloat16", True, True, 3e-2),
    Kind("tf32 NHWC", "float32", True, True, 5e-3),
    Kind("tf32 NCHW", "float32", False, True, 5e-3),
    Kind("fp32 strict NCHW", "float32", False, False, 1e-4),
    Kind("fp16 NCHW", "float16", False, True, 5e-3),
)


class Cell(NamedTuple):
    """The convolution of one row, and the networks that have it."""

    layer: Layer
    batch: int
    kind: Kind
    operation: ConvolutionOperation
    networks: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return f"{self.layer.text} | batch {self.batch} | {self.kind.name} | {self.operation}"

    @property
    def key(self) -> str:
        """The row's identity over all runs."""
        return f"layers | {self.name}"


def cells(networks: Iterable[Network]) -> dict[str, list[Cell]]:
    """Return every cell of each network: batch 1 and its training batch, all kinds and directions."""
    networks = list(networks)
    having: dict[tuple[Layer, int], dict[str, None]] = {}
    for network in networks:
        for layer in network.layers:
            for batch in (1, network.batch):
                having.setdefault((layer, batch), {})[network.name] = None
    return {
        network.name: [
            Cell(layer, batch, kind, operation, tuple(having[layer, batch]))
            for layer in network.layers
            for batch in dict.fromkeys((1, network.batch))
            for kind in KINDS
            for operation in OPERATIONS
        ]
        for network in networks
    }


def in_order(networks: Iterable[Network], seed: int) -> list[Cell]:
    """Return every distinct cell once, in an order drawn by the seed, in which the networks take turns."""
    draw = random.Random(seed)
    left = cells(networks)
    for of_network in left.values():
        draw.shuffle(of_network)
    found: dict[str, Cell] = {}
    while left:
        names = list(left)
        draw.shuffle(names)
        for name in names:
            of_network = left[name]
            while of_network:
                cell = of_network.pop()
                if cell.key not in found:
                    found[cell.key] = cell
                    break
            if not of_network:
                del left[name]
    return list(found.values())
