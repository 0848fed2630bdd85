"""Parse JSON of unknown origin: whatever is not as expected raises ValueError."""

from __future__ import annotations

import json
import math
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent

LIMIT = 1 << 62  # of sizes, strides and extents in bytes, so that the sum of two fits in 64 bits


def invalid_json(reason: str) -> ValueError:
    """Return the error for JSON that is not as expected. Its message is a part of the caller's."""
    return ValueError(reason)


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for anything else, for NaN and infinities, and for JSON that is nested too deep."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise invalid_json("it is nested too deep") from error


def _reject_constant(constant: str) -> Any:
    raise invalid_json(f"it has the number {constant}")


def spec_of(name: str, given: Any) -> TensorSpec:
    """Return a TensorSpec from a list of its shape, dtype, strides and alignment."""
    if not isinstance(given, list) or len(given) != 4:
        raise ValueError(f"{name} must be a shape, dtype, strides and alignment; got something else")
    shape, dtype, strides, alignment = given
    sizes = integers(f"{name}.shape", shape, 1)
    steps = integers(f"{name}.strides", strides, 0, len(sizes))
    try:
        size = dtype_of(dtype, name).itemsize if isinstance(dtype, str) else 0
    except TypeError as error:
        raise ValueError(str(error)) from error
    (alignment,) = integers(f"{name}.alignment", [alignment], size)
    spec = TensorSpec(sizes, dtype, steps, alignment)
    if not size or dtype_of(dtype).name != dtype or alignment & (alignment - 1):
        raise ValueError(f"{name} must have a known dtype, and its alignment; got {str(dtype)[:60]!r}, {alignment}")
    if byte_extent(spec) >= LIMIT or math.prod(sizes) >= LIMIT:
        raise ValueError(f"{name} must fit into memory; got shape {sizes}, strides {steps}")
    return spec


def integers(name: str, given: Any, low: int, count: int | None = None) -> tuple[int, ...]:
    """Return a list of integers as a tuple. It must have `count` elements, or at most as many as a tensor has axes."""
    is_list = isinstance(given, list) and 1 <= len(given) <= raw.CUDNN_DIM_MAX and count in (None, len(given))
    if not is_list or not all(type(number) is int and low <= number < LIMIT for number in given):
        raise ValueError(
            f"{name} must be {'' if count is None else f'{count} '}integers of {low} or more; got other values"
        )
    return tuple(given)
