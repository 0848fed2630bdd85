"""TensorSpec, and functions of shapes and strides: packed strides, memory formats, strides of axes of size 1.

Strides count elements. If axes have names, shapes are logical, (N, C, spatial...), whatever the memory format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple, Self

from cudnnpy._checks.option_values import MAX_INT64, bounded, check_integer, check_shape, error_repr
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._checks.suggestions import explained
from cudnnpy._core.dtypes import dtype_of
from cudnnpy.typing import ElementName

# layout names by rank; NCHW and NHWC are valid for every rank
CHANNELS_FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}

MEMORY_LAYOUTS = ("C", "channels_last")  # memory formats, whatever the order of the axes

# Maximum for one tensor descriptor: cuDNN's older functions count elements, with padding, in 32 bits.
MAX_TENSOR_ELEMENTS = 1 << 30


class _TensorFields(NamedTuple):
    shape: tuple[int, ...]
    dtype: ElementName = "float32"
    strides: tuple[int, ...] | None = None
    alignment: int = 16


class TensorSpec(PublicDir, _TensorFields):
    """Shape, data type, strides and alignment of a tensor: all that planning needs, without memory.

    Attributes
    ----------
    shape : tuple of ints
        The sizes of the axes.
    dtype : str
        The name of the data type. Also given as an alias ("half", "bf16"), a NumPy dtype or scalar type, a framework's dtype or
        a cudnnDataType_t. Python's type float is float64, as in NumPy; the word "float" is refused, since C means float32.
    strides : tuple of ints or None
        The strides in elements. None is packed in C order.
    alignment : int
        The address is a multiple of this number of bytes, a power of two.

    Raises
    ------
    TypeError
        The shape is not a sequence of integers, or the data type is unknown, or the strides or the alignment are no integers.
    ValueError
        A size or a stride is negative, the strides are not one for each axis, or the alignment does not fit. Strides that make
        elements overlap are refused where a tensor is used that may not have them: inputs of a Graph may, such as a stride of
        0 on an axis along which values repeat.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.TensorSpec((8, 64, 56, 56), "float16")
    TensorSpec(shape=(8, 64, 56, 56), dtype='float16', strides=None, alignment=16)
    """

    __slots__ = ()

    @explained
    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: ElementName = "float32",
        strides: tuple[int, ...] | None = None,
        alignment: int = 16,
    ) -> Self:
        """Check the fields, and bring them to canonical form."""
        return super().__new__(cls, *_checked_fields("", shape, dtype, strides, alignment))


def check_spec(name: str, spec: TensorSpec) -> TensorSpec:
    """Check the fields of a TensorSpec once more, which `_replace` does not, with the tensor's name in errors."""
    return TensorSpec._make(_checked_fields(f"{name}.", *spec))


def _checked_fields(
    owner: str, shape: Any, dtype: Any, strides: Any, alignment: Any
) -> tuple[tuple[int, ...], ElementName, tuple[int, ...] | None, int]:
    """Return the fields in canonical form: integer shape, canonical dtype name, integer strides, power-of-two alignment."""
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise TypeError(f"{owner}shape must be a tuple of sizes, such as (8, 64, 56, 56); got {error_repr(shape)}")
    shape, element = check_shape(f"{owner}shape", shape, low=0), dtype_of(dtype, f"{owner}dtype")
    if strides is not None:
        given, expected = strides, f"None, or a tuple of {len(shape)} integers of 0 or more"
        try:
            strides = tuple(index(stride) for stride in bounded(given))
        except TypeError:
            raise TypeError(f"{owner}strides must be {expected}; got {error_repr(given)}") from None
        if len(strides) != len(shape) or not all(0 <= stride <= MAX_INT64 for stride in strides):
            raise ValueError(f"{owner}strides must be {expected}; got {error_repr(strides)} (shape {shape})")
    expected = f"a power of two, {element.itemsize} or more for {element.name}"
    alignment = check_integer(f"{owner}alignment", alignment, element.itemsize, expected=expected)
    if alignment & (alignment - 1):
        raise ValueError(f"{owner}alignment must be {expected}; got {alignment}")
    return shape, element.name, strides, alignment


def packed_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return packed strides. `order` lists the axes from the slowest to the fastest, by default in C order.

    An axis of size 0 counts as one of size 1, so that no stride is 0.
    """
    strides, step = [0] * len(shape), 1
    for axis in reversed(order if order is not None else range(len(shape))):
        strides[axis] = step
        step *= shape[axis] or 1
    return tuple(strides)


def strides_of(spec: TensorSpec) -> tuple[int, ...]:
    """Return the strides of a tensor, packed in C order by default."""
    return packed_strides(spec.shape) if spec.strides is None else spec.strides


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides with the channel axis fastest: NHWC in memory, for any number of spatial axes."""
    return packed_strides(shape, [0, *range(2, len(shape)), 1])


def is_packed(spec: TensorSpec) -> bool:
    """Return whether a tensor is packed channels first or channels last, the memory formats that cuDNN has names for."""
    return spec.strides in (packed_strides(spec.shape), channels_last_strides(spec.shape))


def is_only_channels_last(spec: TensorSpec) -> bool:
    """Return whether a tensor is packed channels last, and this is not channels first as well."""
    return spec.strides == channels_last_strides(spec.shape) != packed_strides(spec.shape)


def result_strides(shape: Sequence[int], *like: TensorSpec, last: bool = False) -> tuple[int, ...]:
    """Return packed strides for a result, in the memory format of the first of `like` whose format is not ambiguous.

    If there is none, the result is channels last if the suggested format of one of them is, or if `last`, and channels
    first otherwise.
    """
    for spec in like:
        order = _orders(spec)
        if len(order) < 2:  # neither format: the channels may still be the fastest axis
            last = True in order or (not order and _has_channels_inside(spec))
            break
    else:
        last = last or suggests_channels_last(*like)
    return channels_last_strides(shape) if last else packed_strides(shape)


def stride_order(strides: Sequence[int]) -> list[int]:
    """Return the axes from the slowest to the fastest."""
    return sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis))


def packed_strides_like(order: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """Return packed strides for a shape, in the memory format of another tensor of the same rank.

    If that tensor has this shape and is packed, its strides are returned.
    """
    if tuple(shape) == order.shape and is_dense(order):
        return strides_of(order)
    if _orders(order):
        return result_strides(shape, order)
    return packed_strides(shape, stride_order(strides_of(order)))


def to_packed(spec: TensorSpec, dtype: ElementName | None = None) -> TensorSpec:
    """Return the tensor packed in C order, at an aligned address."""
    return spec._replace(strides=packed_strides(spec.shape), dtype=dtype or spec.dtype, alignment=16)


def with_strides_of(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    """Return `spec` with the strides of `other`, which has the same shape.

    Some cuDNN functions require two tensors to have equal strides.
    """
    alike = has_same_layout(spec, other)
    return spec._replace(strides=other.strides, alignment=spec.alignment if alike else 16)


def canonical_spec(spec: TensorSpec, name: str) -> TensorSpec:
    """Return the spec with explicit strides.

    The strides of axes of size 1 have no meaning: they are replaced by the strides of the memory format. The strides of an
    empty tensor only give the order of the axes.

    Raises ValueError for strides that are less than 1, or that make elements overlap.
    """
    shape = tuple(int(size) for size in spec.shape)
    if 0 in shape:
        return without_elements(spec._replace(shape=shape))
    first, last = packed_strides(shape), channels_last_strides(shape)
    if spec.strides is None or tuple(spec.strides) == first:
        return spec._replace(shape=shape, strides=first)
    strides = tuple(int(stride) for stride in spec.strides)
    if strides == last:
        return spec._replace(shape=shape, strides=last)
    check_distinct(spec, name)
    return normalize_unit_strides(spec._replace(shape=shape, strides=strides))[0]


def check_distinct(spec: TensorSpec, name: str) -> None:
    """Raise ValueError for strides that are less than 1 or make elements overlap, on axes of more than one element."""
    strides = spec.strides
    if strides is None:
        return
    real = [(stride, size) for stride, size in zip(strides, spec.shape, strict=True) if size > 1]
    if any(stride <= 0 for stride, _ in real):
        raise ValueError(
            f"{name} must have strides of 1 or more; got strides {strides}. Make the array contiguous first"
        )
    reach = 0
    for stride, size in sorted(real):
        if stride <= reach:
            raise ValueError(f"{name} must not overlap itself in memory; got shape {spec.shape}, strides {strides}")
        reach += stride * (size - 1)


def without_elements(spec: TensorSpec) -> TensorSpec:
    """Return an empty tensor with packed strides in its memory format."""
    order = None if spec.strides is None else stride_order(spec.strides)
    return spec._replace(strides=packed_strides(spec.shape, order))


def _has_channels_inside(spec: TensorSpec) -> bool:
    """Return whether the stride of the channels is less than all spatial strides."""
    shape, strides = spec.shape, strides_of(spec)
    spatial = [strides[axis] for axis in range(2, len(shape)) if shape[axis] > 1]
    return bool(spatial) and shape[1] > 1 and strides[1] < min(spatial)


def byte_extent(spec: TensorSpec) -> int:
    """Return the bytes from the first element to the end of the last; 0 for an empty tensor."""
    if 0 in spec.shape:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(spec.shape, strides_of(spec), strict=True))
    return (reach + 1) * dtype_of(spec.dtype).itemsize


def is_too_large(spec: TensorSpec) -> bool:
    """Return whether a tensor exceeds one descriptor of cuDNN's older functions."""
    return byte_extent(spec) > MAX_TENSOR_ELEMENTS * dtype_of(spec.dtype).itemsize


def is_dense(spec: TensorSpec) -> bool:
    """Return whether the elements fill their memory without gaps, in any stride order."""
    return byte_extent(spec) == math.prod(spec.shape) * dtype_of(spec.dtype).itemsize


def has_same_layout(a: TensorSpec, b: TensorSpec) -> bool:
    """Return whether two tensors of one shape have their elements, if any, in the same places."""
    return a.shape == b.shape and all(
        size == 1 or s == t or 0 in a.shape for size, s, t in zip(a.shape, strides_of(a), strides_of(b), strict=True)
    )


def are_channels_last(*specs: TensorSpec) -> bool:
    """Return whether all tensors are channels last in memory, by the axes of more than one element.

    An image of one position is channels last and channels first.
    """
    return all(has_same_layout(spec, spec._replace(strides=channels_last_strides(spec.shape))) for spec in specs)


def with_channels_last_strides(*specs: TensorSpec) -> tuple[TensorSpec, ...]:
    """Give size-1 axes channels-last strides if all tensors of the convolution are channels last.

    Engines that fuse read these strides: for images of one position whose strides are all 1, some return the result of
    one image for another.
    """
    if not are_channels_last(*specs):
        return specs
    return tuple(spec._replace(strides=channels_last_strides(spec.shape)) for spec in specs)


def normalize_unit_strides(*specs: TensorSpec, last: bool = False) -> tuple[TensorSpec, ...]:
    """Rewrite the strides of size-1 axes so that all tensors of an operation have one memory format.

    cuDNN selects engines by these strides although they do not affect addressing: a depthwise filter (C, 1, R, S) is
    channels first and channels last in memory, and gets the engines for depthwise convolutions if its strides have the
    format of its images. Tensors of an ambiguous format, such as batches of 1, single channels and images of one position,
    get the format of the first tensor that is not ambiguous. If there is none, all are channels last if `last` is true,
    and channels first otherwise. The specs have strides.

    The result depends only on the positions of the elements in memory, not on the given strides of size-1 axes.
    """
    orders = [_orders(spec) for spec in specs]
    decisive = next((order for order in orders if len(order) == 1), {last})
    return tuple(
        spec._replace(strides=_explicit_strides(spec, True in (order if len(order) == 1 else decisive)))
        if order
        else spec._replace(strides=_explicit_strides(spec, _has_channels_inside(spec)))
        for spec, order in zip(specs, orders, strict=True)
    )


def is_format_ambiguous(*specs: TensorSpec) -> bool:
    """Return whether each tensor is both channels first and channels last, by the axes of more than one element."""
    return all(len(_orders(spec)) == 2 for spec in specs)


def suggests_channels_last(*specs: TensorSpec) -> bool:
    """Return whether the memory format of one of the tensors is ambiguous, and its size-1 strides are channels last.

    PyTorch derives the memory format of results from these strides.
    """
    return any(
        strides_of(spec) == _explicit_strides(spec, True) != _explicit_strides(spec, False)
        for spec in specs
        if is_format_ambiguous(spec)
    )


def _orders(spec: TensorSpec) -> set[bool]:
    """Return the memory formats of a tensor by its axes of more than one element: True is channels last."""
    real, strides = [axis for axis in range(len(spec.shape)) if spec.shape[axis] > 1], strides_of(spec)
    there = sorted(real, key=lambda axis: -strides[axis])
    return {last for last in (False, True) if there == [axis for axis in _axes(len(spec.shape), last) if axis in real]}


def _axes(rank: int, last: bool) -> list[int]:
    """Return the axes of a memory format from the slowest to the fastest."""
    return [0, *range(2, rank), 1] if last and rank > 2 else list(range(rank))


def _explicit_strides(spec: TensorSpec, last: bool) -> tuple[int, ...]:
    """Return the strides of a tensor, with the strides of size-1 axes that a memory format implies.

    Such an axis gets the stride that it would have as the slowest of the axes inside it.
    """
    strides, step = list(strides_of(spec)), 1
    for axis in reversed(_axes(len(spec.shape), last)):
        if spec.shape[axis] == 1:
            strides[axis] = step
        else:
            step = max(step, strides[axis] * spec.shape[axis])
    return tuple(strides)


def have_same_memory_format(x: TensorSpec, w: TensorSpec, y: TensorSpec) -> bool:
    """Return whether a convolution's tensors are all channels last, or none of them may be channels last.

    An x or y of one position may be: its channels are adjacent in both formats. A filter of one position is read correctly
    in both formats.
    """
    if are_channels_last(x, w, y):
        return True
    return strides_of(x)[1] != 1 and strides_of(y)[1] != 1 and not is_only_channels_last(w)


# The order of an array's axes


def to_logical(shape: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """Return (N, spatial..., C) as (N, C, spatial...) if the axes are channels last. A shorter shape stays as it is."""
    return (shape[0], shape[-1], *shape[1:-1]) if channels_last and len(shape) > 2 else tuple(shape)


def from_logical(shape: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """Return the inverse of to_logical."""
    return (shape[0], *shape[2:], shape[1]) if channels_last else tuple(shape)


def in_layout(spec: TensorSpec, channels_last: bool) -> TensorSpec:
    """Return a spec in logical order with its axes in the order of the arrays."""
    strides = None if spec.strides is None else from_logical(spec.strides, channels_last)
    return spec._replace(shape=from_logical(spec.shape, channels_last), strides=strides)


# Tensors as C functions take them: with four axes or more


def with_two_spatial_axes(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape, strides) with at least two spatial axes, as cuDNN needs: a single one becomes the width, at height 1."""
    shape, strides = spec.shape, strides_of(spec)
    if len(shape) != 3:
        return shape, strides
    return (*shape[:2], 1, shape[2]), (*strides[:2], strides[2] * shape[2], strides[2])


def at_least_4d(spec: TensorSpec) -> TensorSpec:
    """Return a tensor with four axes or five: (n) as (1, 1, 1, n), (N, C) as (N, C, 1, 1), (N, C, W) as (N, C, 1, W)."""
    shape, strides = spec.shape, strides_of(spec)
    if len(shape) == 1:
        far = strides[0] * shape[0]
        return spec._replace(shape=(1, 1, 1, *shape), strides=(far, far, far, *strides))
    if len(shape) == 2:
        return spec._replace(shape=(*shape, 1, 1), strides=(*strides, 1, 1))
    shape, strides = with_two_spatial_axes(spec)
    return spec._replace(shape=shape, strides=strides)


def per_channel(x: TensorSpec, dtype: ElementName = "float32") -> TensorSpec:
    """Return the tensor of a graph with one value for each channel of x."""
    c = x.shape[1]
    rest = len(x.shape) - 2
    return TensorSpec((1, c, *(1,) * rest), dtype, (c, 1, *(c,) * rest))
