"""The output sizes of convolutions and transposed convolutions, valid output_padding, and the amounts of padding by name.

Shapes are logical, (N, C, spatial...) and (K, C / groups, spatial...), except where the layout's axis order is mentioned. The
reference has a derivation of its own (cudnnpy.reference._geometry), which a test compares with this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from cudnnpy._checks.option_values import (
    check_channels,
    check_layout_rank,
    check_shape,
    expand_per_axis,
    in_array_order,
    is_channels_last,
)
from cudnnpy._convolution.options import GeometryOptions, TransposeOptions
from cudnnpy._core.layouts import CHANNELS_FIRST, from_logical, to_logical

Sizes: TypeAlias = tuple[int, ...]


class Geometry(NamedTuple):
    """The padding, stride and dilation of one problem, with one element for each spatial axis."""

    pre_padding: Sizes
    post_padding: Sizes
    stride: Sizes
    dilation: Sizes


def geometry(options: GeometryOptions, x_spatial: Sequence[int], w_spatial: Sequence[int]) -> Geometry:
    """Return the padding, stride and dilation for each spatial axis of the given sizes."""
    rank, given = len(x_spatial), options.padding
    stride, dilation = (expand_per_axis(name, getattr(options, name), rank) for name in ("stride", "dilation"))
    reach = [(taps - 1) * step + 1 for taps, step in zip(w_spatial, dilation, strict=True)]
    if not isinstance(given, str):
        sides = expand_per_axis("padding", given, rank)
        pairs = [side if isinstance(side, tuple) else (side, side) for side in sides]
    elif given == "same":  # as in TensorFlow: the smallest padding for which the output has size ceil(x / stride)
        sizes = zip(x_spatial, reach, stride, strict=True)
        total = [max((-(-size // step) - 1) * step + span - size, 0) for size, span, step in sizes]
        pairs = [(both // 2, both - both // 2) for both in total]
    else:
        pairs = [{"valid": (0, 0), "half": (span // 2,) * 2, "full": (span - 1,) * 2}[given] for span in reach]
    return Geometry(tuple(before for before, _ in pairs), tuple(after for _, after in pairs), stride, dilation)


def _room(kernel: Sequence[int], spatial: Geometry) -> list[int]:
    """Return for each axis the padding less the size of the dilated filter."""
    axes = zip(kernel, spatial.pre_padding, spatial.post_padding, spatial.dilation, strict=True)
    return [before + after - (taps - 1) * step - 1 for taps, before, after, step in axes]


def output_sizes(x_spatial: Sequence[int], w_spatial: Sequence[int], spatial: Geometry) -> list[int]:
    """Return the spatial sizes of y. One is less than 1 where the filter does not fit into x with its padding."""
    axes = zip(x_spatial, _room(w_spatial, spatial), spatial.stride, strict=True)
    return [(size + room) // step + 1 for size, room, step in axes]


def output_shape(options: GeometryOptions, x_shape: Sequence[int], w_shape: Sequence[int]) -> Sizes:
    """Return the logical shape of y for the logical shapes of x and w. Raises ValueError for shapes that do not fit.

    Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. The batch size
    and the number of channels may be 0.
    """
    x_shape, w_shape = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
    rank = _check_rank(options, x_shape)
    if len(w_shape) != rank:
        x, w = (in_array_order(shape, options.layout) for shape in (x_shape, w_shape))
        raise ValueError(f"w must have {rank} axes, as x; got shape {w} (x has shape {x})")
    check_channels(x_shape, w_shape, options.groups, options.layout)
    for name, shape, empty in (("x", x_shape, "N or C"), ("w", w_shape, "C / groups")):
        if 0 in (shape[2:] if name == "x" else (shape[0], *shape[2:])):
            shape = in_array_order(shape, options.layout)
            raise ValueError(f"{name} must have sizes of 1 or more, except for {empty}; got shape {shape}")
    spatial = geometry(options, x_shape[2:], w_shape[2:])
    sizes = output_sizes(x_shape[2:], w_shape[2:], spatial)
    for at, found in enumerate(sizes):
        if found < 1:
            raise ValueError(
                f"w must fit into x with padding; got a filter of size {w_shape[2 + at]} with dilation "
                f"{spatial.dilation[at]} on an axis of size {x_shape[2 + at]} with padding "
                f"({spatial.pre_padding[at]}, {spatial.post_padding[at]}), for which the output would be empty"
            )
    return (x_shape[0], w_shape[0], *sizes)


def output_shape_in_layout(options: GeometryOptions, x_shape: Any, w_shape: Any) -> Sizes:
    """Return the shape of y for the shapes of x and w, all in the layout's axis order."""
    last = is_channels_last(options.layout)
    x, w = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
    return from_logical(output_shape(options, to_logical(x, last), to_logical(w, last)), last)


def _check_rank(options: GeometryOptions, x_shape: Sizes) -> int:
    rank = len(x_shape)
    if rank not in CHANNELS_FIRST:
        raise ValueError(f"x must have 3, 4 or 5 axes (N, C and 1 to 3 spatial axes); got shape {x_shape}")
    check_layout_rank(options.layout, "x", rank)
    return rank


# Transposed convolutions


def transposed_geometry(options: TransposeOptions, kernel: Sizes) -> tuple[Geometry, Sizes]:
    """Return the geometry of the convolution that is transposed, and output_padding, for each spatial axis of a filter."""
    stride, dilation, extra = (
        expand_per_axis(name, getattr(options, name), len(kernel)) for name in ("stride", "dilation", "output_padding")
    )
    for more, step, spread in zip(extra, stride, dilation, strict=True):
        if more >= max(step, spread):
            raise ValueError(
                f"output_padding must be less than the stride, {step}, or the dilation, {spread}; got {more}"
            )
    # The size of the convolution's x is a multiple of the stride, and "same" is then the padding of every such size.
    return geometry(options, stride, kernel), extra


def transposed_output_shape(options: TransposeOptions, x_shape: Any, w_shape: Any) -> Sizes:
    """Return the shape of forward's result, all shapes in the layout's axis order. Raises for shapes that do not fit."""
    last = is_channels_last(options.layout)
    x_shape = check_shape("x_shape", x_shape, low=0)
    rank = _check_rank(options, x_shape)
    w_shape = check_shape("w_shape", w_shape, rank)
    x, w = to_logical(x_shape, last), to_logical(w_shape, last)
    if 0 in x[1:]:
        raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x_shape}")
    if x[1] != w[0]:
        raise ValueError(f"x must have {w[0]} channels, as w; got {x[1]} (x has shape {x_shape}, w {w_shape})")
    if w[0] % options.groups:
        raise ValueError(f"groups must divide the {w[0]} input channels; got {options.groups}")
    spatial, extra = transposed_geometry(options, w[2:])
    axes = zip(x[2:], _room(w[2:], spatial), spatial.stride, extra, strict=True)
    sizes = [(size - 1) * step - room + more for size, room, step, more in axes]
    for at, found in enumerate(sizes):
        if found < 1:
            raise ValueError(
                f"padding must be smaller; got ({spatial.pre_padding[at]}, {spatial.post_padding[at]}) for a filter of size "
                f"{w[2 + at]} with dilation {spatial.dilation[at]} and stride {spatial.stride[at]} on an axis of size "
                f"{x[2 + at]}, for which the output would be empty"
            )
    return from_logical((x[0], w[1] * options.groups, *sizes), last)


def transposed_input_shape(options: TransposeOptions, dy_shape: Sizes, w_shape: Sizes) -> Sizes:
    """Return the shape of the x whose result has dy's shape, if there is one; all in the layout's axis order."""
    last, rank = is_channels_last(options.layout), len(w_shape)
    if len(dy_shape) != rank or rank not in CHANNELS_FIRST:
        raise ValueError(f"dy and w must both have 3, 4 or 5 axes; got shapes {dy_shape} and {w_shape}")
    dy, w = to_logical(dy_shape, last), to_logical(w_shape, last)
    spatial, extra = transposed_geometry(options, w[2:])
    least = [more - room for room, more in zip(_room(w[2:], spatial), extra, strict=True)]
    for size, smallest, taps in zip(dy[2:], least, w[2:], strict=True):
        if size < smallest:
            raise ValueError(
                f"dy must have size {smallest} or more where it has {size}, which is what an x of size 1 gives with "
                f"a filter of size {taps}; got shape {dy_shape}"
            )
    sizes = [(size - smallest) // step + 1 for size, smallest, step in zip(dy[2:], least, spatial.stride, strict=True)]
    return from_logical((dy[0], w[0], *sizes), last)
