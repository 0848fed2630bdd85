"""The sizes of convolutions: padding by name, output sizes, and the sizes of transposed convolutions, for layers and graphs.

Shapes are logical, (N, C, spatial...) and (K, C / groups, spatial...), except where the layout's axis order is mentioned. The
reference has a derivation of its own (cudnnpy.reference._geometry), which a test compares with this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from cudnnpy._core.layouts import CHANNELS_FIRST, from_logical, to_logical
from cudnnpy._options.checks import (
    check_channels,
    check_layout_rank,
    check_shape,
    expand_per_axis,
    is_channels_last,
)
from cudnnpy._options.convolution import GeometryOptions, TransposeOptions

Sizes: TypeAlias = tuple[int, ...]


class Geometry(NamedTuple):
    """The padding, stride and dilation of one problem, with one element for each spatial axis."""

    pre_padding: Sizes
    post_padding: Sizes
    stride: Sizes
    dilation: Sizes


def geometry(options: GeometryOptions, x_spatial: Sequence[int], w_spatial: Sequence[int]) -> Geometry:
    """Return the padding, stride and dilation for each spatial axis of the given sizes."""
    rank = len(x_spatial)
    stride, dilation = (expand_per_axis(name, getattr(options, name), rank) for name in ("stride", "dilation"))
    same = [  # as in TensorFlow: the smallest padding for which the output has size ceil(x / stride)
        (-(-size // step) - 1) * step + reach - size
        for size, step, reach in zip(x_spatial, stride, _reach(w_spatial, dilation), strict=True)
    ]
    return _geometry(options, w_spatial, stride, dilation, same)


def _geometry(
    options: GeometryOptions, kernel: Sequence[int], stride: Sizes, dilation: Sizes, same: Sequence[int]
) -> Geometry:
    """Return the geometry for `same`, the total padding of each axis for padding="same"; a negative one counts as 0."""
    reach, given = _reach(kernel, dilation), options.padding
    if not isinstance(given, str):
        sides = expand_per_axis("padding", given, len(reach))
        pairs = [side if isinstance(side, tuple) else (side, side) for side in sides]
    elif given == "same":
        pairs = [(total // 2, total - total // 2) for total in (max(one, 0) for one in same)]
    else:
        pairs = [{"valid": (0, 0), "half": (size // 2,) * 2, "full": (size - 1,) * 2}[given] for size in reach]
    return Geometry(tuple(before for before, _ in pairs), tuple(after for _, after in pairs), stride, dilation)


def _reach(kernel: Sequence[int], dilation: Sizes) -> Sizes:
    """Return the sizes of the dilated filter."""
    return tuple((taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True))


def output_sizes(x_spatial: Sequence[int], w_spatial: Sequence[int], spatial: Geometry) -> list[int]:
    """Return the spatial sizes of y. One is less than 1 where the filter does not fit into x with its padding."""
    return [
        (size + before + after - reach) // step + 1
        for size, reach, before, after, step, _ in zip(
            x_spatial, _reach(w_spatial, spatial.dilation), *spatial, strict=True
        )
    ]


def output_shape(options: GeometryOptions, x_shape: Sequence[int], w_shape: Sequence[int]) -> Sizes:
    """Return the logical shape of y for the logical shapes of x and w. Raises ValueError for shapes that do not fit.

    Each spatial size is floor((x + padding before + padding after - dilation * (w - 1) - 1) / stride) + 1. The batch size
    and the number of channels may be 0.
    """
    x_shape, w_shape = check_shape("x_shape", x_shape, low=0), check_shape("w_shape", w_shape, low=0)
    rank = _check_rank(options, x_shape)
    if len(w_shape) != rank:
        raise ValueError(f"w must have {rank} axes, as x; got shape {w_shape} (x has shape {x_shape})")
    check_channels(x_shape, w_shape, options.groups)
    for name, shape, empty in (("x", x_shape, "N or C"), ("w", w_shape, "C / groups")):
        if 0 in (shape[2:] if name == "x" else (shape[0], *shape[2:])):
            raise ValueError(
                f"{name} must have sizes of 1 or more, except for {empty}; got shape {shape} (logical order)"
            )
    spatial = geometry(options, x_shape[2:], w_shape[2:])
    sizes = output_sizes(x_shape[2:], w_shape[2:], spatial)
    for axis, found in enumerate(sizes):
        if found < 1:
            raise ValueError(
                f"w must fit into x with padding; got a filter of size {w_shape[2 + axis]} with dilation "
                f"{spatial.dilation[axis]} on an axis of size {x_shape[2 + axis]} with padding "
                f"({spatial.pre_padding[axis]}, {spatial.post_padding[axis]}), for which the output would be empty"
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
    same = [reach - step for reach, step in zip(_reach(kernel, dilation), stride, strict=True)]
    return _geometry(options, kernel, stride, dilation, same), extra


def transposed_output_shape(options: TransposeOptions, x_shape: Any, w_shape: Any) -> Sizes:
    """Return the shape of forward's result, all shapes in the layout's axis order. Raises for shapes that do not fit."""
    last = is_channels_last(options.layout)
    x_shape = check_shape("x_shape", x_shape, low=0)
    rank = _check_rank(options, x_shape)
    x, w = to_logical(x_shape, last), to_logical(check_shape("w_shape", w_shape, rank), last)
    if 0 in x[1:]:
        raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {x} (logical order)")
    if x[1] != w[0]:
        raise ValueError(f"x must have {w[0]} channels, as w; got {x[1]} (x has shape {x}, w {w}, logical order)")
    if w[0] % options.groups:
        raise ValueError(f"groups must divide the {w[0]} input channels; got {options.groups}")
    spatial, extra = transposed_geometry(options, w[2:])
    sizes = []
    for size, taps, before, after, step, spread, more in zip(x[2:], w[2:], *spatial, extra, strict=True):
        length = (size - 1) * step - before - after + spread * (taps - 1) + 1 + more
        if length < 1:
            raise ValueError(
                f"padding must be smaller; got ({before}, {after}) for a filter of size {taps} with dilation {spread} "
                f"and stride {step} on an axis of size {size}, for which the output would be empty"
            )
        sizes.append(length)
    return from_logical((x[0], w[1] * options.groups, *sizes), last)


def transposed_input_shape(options: TransposeOptions, dy_shape: Sizes, w_shape: Sizes) -> Sizes:
    """Return the shape of the x whose result has dy's shape, if there is one; all in the layout's axis order."""
    last, rank = is_channels_last(options.layout), len(w_shape)
    if len(dy_shape) != rank or rank not in CHANNELS_FIRST:
        raise ValueError(f"dy and w must both have 3, 4 or 5 axes; got shapes {dy_shape} and {w_shape}")
    dy, w = to_logical(dy_shape, last), to_logical(w_shape, last)
    spatial, extra = transposed_geometry(options, w[2:])
    sizes = []
    for size, taps, before, after, step, spread, more in zip(dy[2:], w[2:], *spatial, extra, strict=True):
        room = size + before + after - spread * (taps - 1) - 1 - more
        if room < 0:
            raise ValueError(
                f"dy must have size {size - room} or more where it has {size}, which is what an x of size 1 gives with "
                f"a filter of size {taps}; got shape {dy_shape}"
            )
        sizes.append(room // step + 1)
    return from_logical((dy[0], w[0], *sizes), last)
