"""The geometry of a convolution: padding amounts, strides and output sizes for each spatial axis, from options and shapes.

Shapes here are written channels first, (N, C, spatial...) and (K, C / groups, spatial...), whatever the layout is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudnnpy._checks.option_values import expand_per_axis
from cudnnpy._convolution.options import ConvolutionOptions as Options
from cudnnpy.reference._arrays import Shape

if TYPE_CHECKING:
    from cudnnpy.typing import PerAxis


@dataclass(frozen=True)
class Geometry:
    """Input, kernel and output sizes, padding, strides and dilations of a convolution, one entry per spatial axis.

    Tap t of the filter, for output position p, multiplies position p * stride + t * dilation of the padded input. A
    transposed convolution reads `output` and writes `input`.
    """

    input: Shape
    kernel: Shape
    output: Shape
    padding: tuple[tuple[int, int], ...]
    stride: Shape
    dilation: Shape
    groups: int

    @property
    def padded(self) -> Shape:
        """Sizes of the input with its padding."""
        return tuple(before + size + after for size, (before, after) in zip(self.input, self.padding, strict=True))

    @property
    def reach(self) -> Shape:
        """Sizes of the dilated kernel."""
        return _reach(self.kernel, self.dilation)


def convolution(options: Options, x_shape: Shape, w_shape: Shape) -> Geometry:
    """Geometry of the convolution of x (N, C, spatial...) with w (K, C / groups, spatial...)."""
    sizes, kernel = x_shape[2:], w_shape[2:]
    stride, dilation = _each(options, "stride", len(kernel)), _each(options, "dilation", len(kernel))
    reach = _reach(kernel, dilation)
    # As in TensorFlow: the smallest padding for which the output size is ceil(input / stride).
    same = [
        max((-(-size // step) - 1) * step + span - size, 0)
        for size, step, span in zip(sizes, stride, reach, strict=True)
    ]
    padding = _pads(options, reach, same)
    axes = zip(sizes, padding, reach, stride, strict=True)
    output = tuple((before + size + after - span) // step + 1 for size, (before, after), span, step in axes)
    return Geometry(sizes, kernel, output, padding, stride, dilation, options.groups)


def transpose(options: Options, output_padding: PerAxis, x_shape: Shape, w_shape: Shape) -> Geometry:
    """Geometry of the convolution whose transpose takes x (N, C_in, ...) and w (C_in, C_out / groups, ...)."""
    sizes, kernel = x_shape[2:], w_shape[2:]
    stride, dilation = _each(options, "stride", len(kernel)), _each(options, "dilation", len(kernel))
    reach, extra = _reach(kernel, dilation), expand_per_axis("output_padding", output_padding, len(kernel))
    padding = _pads(options, reach, [max(span - step, 0) for span, step in zip(reach, stride, strict=True)])
    axes = zip(sizes, stride, reach, extra, padding, strict=True)
    written = tuple((size - 1) * step + span + more - sum(pads) for size, step, span, more, pads in axes)
    return Geometry(written, kernel, sizes, padding, stride, dilation, options.groups)


def _each(options: Options, name: str, rank: int) -> Shape:
    return expand_per_axis(name, getattr(options, name), rank)


def _reach(kernel: Shape, dilation: Shape) -> Shape:
    return tuple((taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True))


def _pads(options: Options, reach: Shape, same: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each spatial axis. `same` has the total padding of each axis for padding="same"."""
    padding = options.padding
    if padding == "valid":
        return ((0, 0),) * len(reach)
    if padding == "same":
        return tuple((total // 2, total - total // 2) for total in same)
    if padding == "half":
        return tuple((span // 2, span // 2) for span in reach)
    if padding == "full":
        return tuple((span - 1, span - 1) for span in reach)
    sides = expand_per_axis("padding", padding, len(reach))
    return tuple(side if isinstance(side, tuple) else (side, side) for side in sides)
