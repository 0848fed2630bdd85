"""The list of networks and their distinct convolutions (catalogue.txt), which were written by torchvision and by hand.

A network is a line `[name] batch N, where it is from`; below it, each distinct convolution is a line like

    64x56x56 -> 128, 3x3, stride 2, padding 1, dilation 2, groups 32, transposed, output padding 1, bias

with the size of one x (channels, then the spatial axes), the number of filters, and the filter's size. Options that are 1, 0 or
no are left out. A number that is the same on every axis is written once, others as 1x7.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple, TypeAlias

FILE = Path(__file__).with_name("catalogue.txt")
Sizes: TypeAlias = tuple[int, ...]

_NETWORK = re.compile(r"\[([^\]]+)\] batch (\d+), (.+)")
_OPTIONS = {"stride": 1, "padding": 0, "dilation": 1, "output padding": 0}


class Layer(NamedTuple):
    """A convolution without its batch: x's channels and spatial size, and the rest in torch's terms."""

    channels: int
    size: Sizes
    filters: int
    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    output_padding: Sizes
    groups: int = 1
    transposed: bool = False
    bias: bool = False

    @property
    def depthwise(self) -> bool:
        """Whether the convolution is depthwise."""
        return self.groups == self.channels > 1

    def x_shape(self, batch: int) -> Sizes:
        """(N, C, spatial...)."""
        return (batch, self.channels, *self.size)

    @property
    def w_shape(self) -> Sizes:
        """(K, C / groups, spatial...); (C, K / groups, spatial...) of a transposed convolution."""
        first, second = (self.channels, self.filters) if self.transposed else (self.filters, self.channels)
        return (first, second // self.groups, *self.kernel)

    def y_shape(self, batch: int) -> Sizes:
        """(N, K, spatial...)."""
        axes = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            sizes = [(x - 1) * s - 2 * p + d * (k - 1) + 1 + more for x, k, s, p, d, more in axes]
        else:
            sizes = [(x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in axes]
        return (batch, self.filters, *sizes)

    def operations(self, batch: int) -> int:
        """Floating-point operations of one direction by the definition: two for each product of the sum."""
        positions = self.x_shape(batch) if self.transposed else self.y_shape(batch)
        return 2 * math.prod(positions) * math.prod(self.w_shape[1:])

    def moved_bytes(self, batch: int, itemsize: int) -> int:
        """The fewest bytes that any direction moves: each of the three tensors once."""
        return itemsize * sum(math.prod(s) for s in (self.x_shape(batch), self.w_shape, self.y_shape(batch)))

    @property
    def text(self) -> str:
        """The line of the list."""
        parts = [f"{_by((self.channels, *self.size))} -> {self.filters}", _by(self.kernel)]
        given = (self.stride, self.padding, self.dilation, self.output_padding)
        options = dict(zip(_OPTIONS, given, strict=True))
        extra = options.pop("output padding")
        parts += [f"{name} {_short(value)}" for name, value in options.items() if set(value) != {_OPTIONS[name]}]
        if self.groups > 1:
            parts.append(f"groups {self.groups}")
        if self.transposed:
            parts.append("transposed")
        if any(extra):
            parts.append(f"output padding {_short(extra)}")
        if self.bias:
            parts.append("bias")
        return ", ".join(parts)


class Network(NamedTuple):
    """A network's name, its training batch, the source of its layers, and its distinct convolutions."""

    name: str
    batch: int
    source: str
    layers: tuple[Layer, ...]


def layer(text: str) -> Layer:
    """Parse a line of the list. Raises ValueError for any other text."""
    try:
        tensors, kernel, *options = text.split(", ")
        x, filters = tensors.split(" -> ")
        channels, *size = _numbers(x)
        found = {name: (value,) * len(size) for name, value in _OPTIONS.items()}
        groups = 1
        for option in options:
            name, _, value = option.rpartition(" ")
            if name == "groups":
                groups = int(value)
            elif name:
                numbers = _numbers(value)
                found[name] = numbers * len(size) if len(numbers) == 1 else numbers
        stride, padding, dilation, extra = found.values()
        ends = "transposed" in options, "bias" in options
        made = Layer(
            channels, tuple(size), int(filters), _numbers(kernel), stride, padding, dilation, extra, groups, *ends
        )
        made.y_shape(1)
    except ValueError as error:
        raise ValueError(
            f"a layer must be a line such as '64x56x56 -> 128, 3x3, stride 2, padding 1'; got {text!r} ({error})"
        ) from None
    return made


def read(file: Path = FILE) -> list[Network]:
    """Return the networks of a list."""
    found: list[Network] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := _NETWORK.fullmatch(line):
            found.append(Network(match[1], int(match[2]), match[3], ()))
        elif line and not line.startswith("#"):
            found[-1] = found[-1]._replace(layers=(*found[-1].layers, layer(line)))
    return found


def _by(numbers: Sizes) -> str:
    return "x".join(map(str, numbers))


def _short(numbers: Sizes) -> str:
    return _by(numbers[:1] if len(set(numbers)) == 1 else numbers)


def _numbers(text: str) -> Sizes:
    return tuple(map(int, text.split("x")))
