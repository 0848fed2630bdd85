"""Check the arrays of operations other than convolutions, and describe them in logical order."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnpy._checks.option_values import check_layout_rank, in_array_order, is_channels_last
from cudnnpy._core.layouts import (
    TensorSpec,
    canonical_spec,
    check_distinct,
    packed_strides,
    packed_strides_like,
    to_logical,
    without_elements,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import Operand, check_overlaps
from cudnnpy.typing import ElementName, Layout

FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_no_overlaps(call: Call, operands: Sequence[Operand]) -> Sequence[Operand]:
    """Return the operands. Raises ValueError if those that were passed overlap."""
    there = [operand for operand in operands if operand.name in call.addresses]
    check_overlaps(there, [call.addresses[operand.name] for operand in there])
    return operands


def check_input(
    call: Call,
    name: str,
    ranks: range = range(1, 6),
    dtypes: Sequence[str] = FLOATS,
    *,
    empty: bool = False,
    layout: Layout | None = None,
) -> TensorSpec:
    """Return an array of a call, checked: its dtype, its rank, and that its strides are 1 or more.

    With a `layout`, which is checked, too, its axes become (N, C, spatial...). Unless `empty`, it must have elements. An empty
    array gets the strides of a packed tensor in its memory format.
    """
    spec = call.specs[name]
    if layout is not None:
        spec = in_logical_order(spec, name, layout)
    if spec.dtype not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(dtypes)}; got {spec.dtype}")
    if len(spec.shape) not in ranks:
        raise ValueError(f"{name} must have {ranks[0]} to {ranks[-1]} axes; got shape {spec.shape}")
    if 0 in spec.shape:
        if not empty:
            raise ValueError(f"{name} must have sizes of 1 or more; got shape {spec.shape}")
        return without_elements(spec)
    if len(spec.shape) == 1:
        strides = (1,) if spec.strides is None or spec.shape == (1,) else spec.strides
        if strides[0] < 1:
            raise ValueError(
                f"{name} must have strides of 1 or more; got strides {strides}. Make the array contiguous first"
            )
        return spec._replace(strides=strides)
    return canonical_spec(spec, name)


def check_like(call: Call, name: str, shape: Sequence[int], dtype: str, layout: Layout | None = None) -> TensorSpec:
    """Return an array of a call that must have a shape and a dtype. It is empty if the shape is.

    With a `layout`, its axes and those of the shape are (N, C, spatial...), and those of the error are the array's own.
    """
    spec = check_input(call, name, empty=0 in shape, layout=layout)
    if spec.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}; got {spec.dtype}")
    if spec.shape != tuple(shape):
        expected, given = (in_array_order(one, layout or "NCHW") for one in (shape, spec.shape))
        raise ValueError(f"{name} must have shape {expected}; got shape {given}")
    return spec


def resolve_output(
    call: Call,
    name: str,
    shape: Sequence[int],
    dtype: ElementName,
    order: TensorSpec | None = None,
    layout: Layout | None = None,
) -> TensorSpec:
    """Return the tensor of a result: the array passed for it, checked by check_like, or a new one in the format of another."""
    if name in call.specs:
        return check_like(call, name, shape, dtype, layout)
    strides = (
        packed_strides(shape) if order is None or len(order.shape) != len(shape) else packed_strides_like(order, shape)
    )
    return TensorSpec(tuple(shape), dtype, strides)


def packed_like(call: Call, name: str, shape: tuple[int, ...], *dtypes: str) -> TensorSpec:
    """Return a parameter of a call: packed, of a shape, which may be (), and of one of some dtypes."""
    spec = call.specs[name]
    if spec.dtype not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(dtypes)}; got {spec.dtype}")
    if tuple(spec.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}; got shape {tuple(spec.shape)}")
    packed = packed_strides(shape)
    if shape:
        spec = check_input(call, name, dtypes=dtypes, empty=0 in shape)
    if any(n > 1 and s != t for n, s, t in zip(shape, spec.strides or (), packed, strict=True)):
        raise ValueError(f"{name} must be packed, with strides {packed}; got strides {spec.strides}")
    return spec._replace(shape=tuple(shape), strides=packed)


def in_logical_order(spec: TensorSpec, name: str, layout: Layout) -> TensorSpec:
    """Return a tensor of a layout with its axes as (N, C, spatial...). Raises ValueError."""
    check_layout_rank(layout, name, len(spec.shape))
    strides = packed_strides(spec.shape) if spec.strides is None else spec.strides
    if len(strides) != len(spec.shape):
        raise ValueError(f"{name} must have a stride for each axis; got strides {strides} (shape {tuple(spec.shape)})")
    if 0 not in spec.shape:
        check_distinct(spec._replace(strides=strides), name)
    last = is_channels_last(layout)
    return spec._replace(shape=to_logical(spec.shape, last), strides=to_logical(strides, last))
