"""The geometry of a convolution: padding amounts, strides and output sizes for each spatial axis, from options and shapes.

Shapes here are written channels first, (N, C, spatial...) and (K, C / groups, spatial...), whatever the layout is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudnnpy._checks.option_values import (
    check_channels,
    check_layout_rank,
    check_shape,
    expand_per_axis,
    in_array_order,
)
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
    rank = _spatial_rank(options, x_shape, w_shape)
    check_channels(x_shape, w_shape, options.groups, options.layout)
    stride, dilation = _each(options, "stride", rank), _each(options, "dilation", rank)
    sizes, kernel = x_shape[2:], w_shape[2:]
    reach = _reach(kernel, dilation)
    # As in TensorFlow: the smallest padding for which the output size is ceil(input / stride).
    same = [
        max((-(-size // step) - 1) * step + span - size, 0)
        for size, step, span in zip(sizes, stride, reach, strict=True)
    ]
    padding = _pads(options, rank, reach, same)
    output = []
    for axis, (size, (before, after), span) in enumerate(zip(sizes, padding, reach, strict=True)):
        room = before + size + after - span
        if room < 0:
            raise ValueError(
                f"w must fit into x with padding; got the dilated size {span} on spatial axis {axis}, where x has "
                f"{before} + {size} + {after}, and the output would be empty"
            )
        output.append(room // stride[axis] + 1)
    return Geometry(sizes, kernel, tuple(output), padding, stride, dilation, options.groups)


def transpose(options: Options, output_padding: PerAxis, x_shape: Shape, w_shape: Shape) -> Geometry:
    """Geometry of the convolution whose transpose takes x (N, C_in, ...) and w (C_in, C_out / groups, ...)."""
    rank = _spatial_rank(options, x_shape, w_shape)
    if x_shape[1] != w_shape[0]:
        raise ValueError(f"x must have {w_shape[0]} channels, as w; got {x_shape[1]}")
    if x_shape[1] % options.groups:
        raise ValueError(f"groups must divide the {x_shape[1]} input channels; got {options.groups}")
    sizes, kernel = x_shape[2:], w_shape[2:]
    stride, dilation, extra, reach, padding = _cropped(options, output_padding, kernel)
    written = []
    for axis in range(rank):
        size = (sizes[axis] - 1) * stride[axis] + reach[axis] + extra[axis] - sum(padding[axis])
        if size < 1:
            raise ValueError(
                f"padding must be smaller; got {padding[axis]} on spatial axis {axis}, where it crops all of the "
                f"{size + sum(padding[axis])} positions, and the output would be empty"
            )
        written.append(size)
    return Geometry(tuple(written), kernel, sizes, padding, stride, dilation, options.groups)


def transposed(options: Options, output_padding: PerAxis, dy_shape: Shape, w_shape: Shape) -> Shape:
    """Shape of the largest x whose transposed convolution with w (C_in, C_out / groups, ...) does not exceed dy's shape."""
    _spatial_rank(options, dy_shape, w_shape, "dy")
    stride, _, extra, reach, padding = _cropped(options, output_padding, w_shape[2:])
    found = []
    for axis, size in enumerate(dy_shape[2:]):
        room = size + sum(padding[axis]) - reach[axis] - extra[axis]
        if room < 0:
            raise ValueError(
                f"dy must have size {size - room} or more on spatial axis {axis}, the output's for x of size 1; "
                f"got {size}"
            )
        found.append(room // stride[axis] + 1)
    return (dy_shape[0], w_shape[0], *found)


def _cropped(
    options: Options, output_padding: PerAxis, kernel: Shape
) -> tuple[Shape, Shape, Shape, Shape, tuple[tuple[int, int], ...]]:
    """Stride, dilation, output_padding, dilated kernel and padding of each spatial axis of a transposed convolution."""
    rank = len(kernel)
    stride, dilation = _each(options, "stride", rank), _each(options, "dilation", rank)
    extra = expand_per_axis("output_padding", output_padding, rank)
    for axis in range(rank):
        if extra[axis] >= max(stride[axis], dilation[axis]):
            raise ValueError(
                f"output_padding must be less than the stride, {stride[axis]}, or the dilation, {dilation[axis]}; got "
                f"{extra[axis]} (on spatial axis {axis})"
            )
    reach = _reach(kernel, dilation)
    padding = _pads(options, rank, reach, [max(span - step, 0) for span, step in zip(reach, stride, strict=True)])
    return stride, dilation, extra, reach, padding


def shape(name: str, value: Any, empty: Sequence[int] = ()) -> Shape:
    """Return a shape as a tuple of ints, each at least 1, or at least 0 for the axes in empty (-1 is the last)."""
    sizes = check_shape(name, value, low=0)
    rank = len(sizes)
    for axis, size in enumerate(sizes):
        if not size and axis not in empty and axis - rank not in empty:
            raise ValueError(f"{name}[{axis}] must be 1 or more; got shape {sizes}")
    return sizes


def check_rank(name: str, array_shape: Shape, layout: str, ranks: Sequence[int] = (3, 4, 5)) -> None:
    """Raise ValueError for a number of axes that the operation, or the layout, does not support."""
    if len(array_shape) not in ranks:
        *most, last = map(str, ranks)
        raise ValueError(f"{name} must have {', '.join(most)} or {last} axes; got shape {tuple(array_shape)}")
    check_layout_rank(layout, name, len(array_shape))


def _spatial_rank(options: Options, x_shape: Shape, w_shape: Shape, name: str = "x") -> int:
    """Return the number of spatial axes, if x (or another array), w and the layout agree on it; otherwise raise."""
    check_rank(name, x_shape, options.layout)
    if len(w_shape) != len(x_shape):
        raise ValueError(
            f"w must have {len(x_shape)} axes, as {name}; got shape {in_array_order(w_shape, options.layout)}"
        )
    return len(x_shape) - 2


def _each(options: Options, name: str, rank: int) -> Shape:
    return expand_per_axis(name, getattr(options, name), rank)


def _reach(kernel: Shape, dilation: Shape) -> Shape:
    return tuple((taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True))


def _pads(options: Options, rank: int, reach: Shape, same: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each spatial axis. `same` has the total padding of each axis for padding="same"."""
    padding = options.padding
    if padding == "valid":
        return ((0, 0),) * rank
    if padding == "same":
        return tuple((total // 2, total - total // 2) for total in same)
    if padding == "half":
        return tuple((span // 2, span // 2) for span in reach)
    if padding == "full":
        return tuple((span - 1, span - 1) for span in reach)
    sides = expand_per_axis("padding", padding, rank)
    return tuple(side if isinstance(side, tuple) else (side, side) for side in sides)
