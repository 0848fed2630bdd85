"""The list of networks and their distinct convolutions (catalogue.txt): reading and writing its lines.

A network is a line `[name] batch N, where it is from`; below it, each distinct convolution is a line like

    64x56x56 -> 128, 3x3, stride 2, padding 1, dilation 2, groups 32, transposed, output padding 1, bias

with the size of one x (channels, then the spatial axes), the number of filters, and the filter's size. Options that are 1, 0 or
no are left out. A number that is the same on every axis is written once, others as 1x7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
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
    def axes(self) -> int:
        """Spatial axes: 1, 2 or 3."""
        return len(self.size)

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
    tensors, *options = text.split(", ")
    match = re.fullmatch(r"(\d+(?:x\d+){1,3}) -> (\d+)", tensors)
    if not match or not options:
        raise ValueError(f"a layer must be a line such as '64x56x56 -> 128, 3x3, stride 2, padding 1'; got {text!r}")
    channels, *size = _numbers(match[1])
    kernel = _numbers(options.pop(0))
    found: dict[str, Sizes] = {name: (value,) * len(size) for name, value in _OPTIONS.items()}
    groups, transposed, bias = 1, False, False
    for option in options:
        name, _, value = option.rpartition(" ")
        if option == "transposed":
            transposed = True
        elif option == "bias":
            bias = True
        elif name == "groups":
            (groups,) = _numbers(value)
        elif name in found:
            numbers = _numbers(value)
            found[name] = numbers * len(size) if len(numbers) == 1 else numbers
        else:
            raise ValueError(
                f"an option must be one of {', '.join(_OPTIONS)}, groups, transposed, bias; got {option!r} ({text!r})"
            )
    stride, padding, dilation, extra = (found[name] for name in _OPTIONS)
    made = Layer(
        channels, tuple(size), int(match[2]), kernel, stride, padding, dilation, extra, groups, transposed, bias
    )
    if {len(kernel), *(len(value) for value in found.values())} != {len(size)}:
        raise ValueError(f"an option must be one number, or {len(size)}; got {text!r}")
    if channels % groups or made.filters % groups or min(made.y_shape(1)) < 1:
        raise ValueError(
            f"groups must divide the channels and the filters, and the result must not be empty; got {text!r}"
        )
    return made


def read(file: Path = FILE) -> list[Network]:
    """Return the networks of a list. Raises ValueError, with the line, for other text."""
    found: dict[str, tuple[int, str, list[Layer]]] = {}
    name = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                match = _NETWORK.fullmatch(line)
                if not match or match[1] in found:
                    raise ValueError(f"a network must be a line '[name] batch N, source', each name once; got {line!r}")
                name = match[1]
                found[name] = (int(match[2]), match[3], [])
            elif name is None:
                raise ValueError(f"layers must follow a network's line, '[name] batch N, source'; got {line!r}")
            else:
                found[name][2].append(layer(line))
        except ValueError as error:
            raise ValueError(f"{file.name}, line {number}: {error}") from None
    return [Network(name, batch, source, tuple(layers)) for name, (batch, source, layers) in found.items()]


def write(networks: Iterable[Network]) -> str:
    """Return the list as text."""
    networks = list(networks)
    distinct = {layer for network in networks for layer in network.layers}
    lines = [
        f"# {len(networks)} networks, {len(distinct)} distinct convolutions. The form: catalogue.py.",
        "# `python -m tools.benchmark.networks.collect` writes torchvision's networks again and keeps the others.",
    ]
    for network in networks:
        lines += ["", f"[{network.name}] batch {network.batch}, {network.source}"]
        lines += [layer.text for layer in network.layers]
    return "\n".join(lines) + "\n"


def _by(numbers: Sizes) -> str:
    return "x".join(map(str, numbers))


def _short(numbers: Sizes) -> str:
    return _by(numbers[:1] if len(set(numbers)) == 1 else numbers)


def _numbers(text: str) -> Sizes:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise ValueError(f"a size must be integers, such as 3 or 1x7; got {text!r}")
    return tuple(map(int, text.split("x")))
