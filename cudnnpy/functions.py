"""What the operations that are no convolution share: checks of arrays and options, and when a graph is worth compiling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cudnnpy.calling import Call, Specs
from cudnnpy.dtypes import dtype_of
from cudnnpy.layouts import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    TensorSpec,
    canonical,
    is_dense,
    packed_as,
    packed_strides,
    same_memory,
    to_logical,
)
from cudnnpy.programs import Operand, check_overlaps

FLOATS = ("float16", "bfloat16", "float32", "float64")
LAYOUTS = (*CHANNELS_FIRST.values(), *CHANNELS_LAST.values())

# Bytes below which a slow function is over before a graph is worth compiling (0.1 to 0.6 s, once for each signature).
LARGE = 1 << 20

_ROWS = (64, 128, 32, 256, 512, 1024, 16)  # row lengths for elementwise graphs, the fastest first (docs/benchmarks)


# Arrays


def no_overlaps(call: Call, operands: Sequence[Operand]) -> Sequence[Operand]:
    """The operands, once those that were given are known not to overlap. Raises ValueError."""
    there = [operand for operand in operands if operand.name in call.addresses]
    check_overlaps(there, [call.addresses[operand.name] for operand in there])
    return operands


def given(call: Call, name: str, ranks: range = range(1, 6), dtypes: Sequence[str] = FLOATS) -> TensorSpec:
    """An array of a call, checked: its dtype, its rank, that it is not empty and that no stride is 0 or less."""
    spec = call.specs[name]
    if spec.dtype not in dtypes:
        raise TypeError(f"{name}: {spec.dtype} given; expected {' or '.join(dtypes)}")
    if len(spec.shape) not in ranks:
        raise ValueError(f"{name}: shape {spec.shape} given; expected {ranks[0]} to {ranks[-1]} axes")
    if any(size < 1 for size in spec.shape):
        raise ValueError(f"{name}: shape {spec.shape} is empty; expected sizes of 1 or more")
    if len(spec.shape) == 1:
        strides = (1,) if spec.strides is None or spec.shape == (1,) else spec.strides
        if strides[0] < 1:
            raise ValueError(f"{name}: strides {strides} are not all above 0; make the array contiguous first")
        return spec._replace(strides=strides)
    return canonical(spec, name)


def like(call: Call, name: str, shape: Sequence[int], dtype: str) -> TensorSpec:
    """An array of a call that has to have a shape and dtype."""
    spec = given(call, name, dtypes=FLOATS)
    if spec.dtype != dtype:
        raise TypeError(f"{name}: {spec.dtype} given; expected {dtype}")
    if spec.shape != tuple(shape):
        raise ValueError(f"{name}: shape {spec.shape} given; expected {tuple(shape)}")
    return spec


def result(
    call: Call, name: str, shape: Sequence[int], dtype: str, order: TensorSpec | None = None, beta: float = 0.0
) -> TensorSpec:
    """A result: the array given for it, checked, or a new one in the memory order of another tensor."""
    if name in call.specs:
        return like(call, name, shape, dtype)
    if beta:
        raise ValueError(f"beta: {beta} given without {name}; beta * {name} needs the array that it reads")
    strides = packed_strides(shape) if order is None or len(order.shape) != len(shape) else packed_as(order, shape)
    return TensorSpec(tuple(shape), dtype, strides)


def logical(
    call: Call, name: str, layout: str, ranks: range = range(3, 6), dtypes: Sequence[str] = FLOATS
) -> TensorSpec:
    """An array of a call with its axes as (N, C, spatial...), checked as `given` does; its layout's name, too."""
    spec = call.specs[name]
    rank, last = len(spec.shape), layout.endswith("C")
    if layout not in ("NCHW", "NHWC") and len(layout) != rank:
        raise ValueError(f"layout: {layout!r} has {len(layout)} axes; {name} has {rank}")
    strides = packed_strides(spec.shape) if spec.strides is None else spec.strides
    turned = spec._replace(shape=to_logical(spec.shape, last), strides=to_logical(strides, last))
    return given(call._replace(specs=Specs({name: turned})), name, ranks, dtypes)


def logical_like(call: Call, name: str, layout: str, shape: Sequence[int], dtype: str) -> TensorSpec:
    """An array of a call with its axes as (N, C, spatial...), which has to have a shape and dtype."""
    spec = logical(call, name, layout, range(1, 6))
    return like(call._replace(specs=Specs({name: spec})), name, shape, dtype)


def logical_result(
    call: Call, name: str, shape: Sequence[int], order: TensorSpec, layout: str, beta: float = 0.0
) -> TensorSpec:
    """A result with its axes as (N, C, spatial...): the array given for it, checked, or a new one like `order`."""
    if name not in call.specs:
        return result(call, name, shape, order.dtype, order, beta)
    return logical_like(call, name, layout, shape, order.dtype)


def is_large(spec: TensorSpec) -> bool:
    """Whether a tensor is large enough for a compiled graph."""
    return math.prod(spec.shape) * dtype_of(spec.dtype).itemsize >= LARGE


def rows(spec: TensorSpec, *others: TensorSpec) -> tuple[int, int] | None:
    """(rows, length) in which an elementwise graph sees dense tensors that lie alike; None where it cannot or should not.

    No engine takes an elementwise graph whose dimension 1 is not the one of stride 1: the axes' names mean nothing to
    such an operation, so it sees the memory as rows.
    """
    count = math.prod(spec.shape)
    if not (spec.dtype != "float64" and is_large(spec) and is_dense(spec)):
        return None
    if any(tensor.alignment < 16 for tensor in (spec, *others)):  # compiled engines misread other addresses
        return None
    if not all(other.dtype != "float64" and same_memory(spec, other) for other in others):
        return None
    return next(((count // length, length) for length in _ROWS if count % length == 0), None)


def in_rows(spec: TensorSpec, shape: tuple[int, int]) -> TensorSpec:
    """A dense tensor as rows."""
    return TensorSpec((*shape, 1, 1), spec.dtype, (shape[1], 1, shape[1], shape[1]), spec.alignment)


def check_layout(layout: object) -> str:
    """ValueError for an unknown layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: {layout!r} given; expected one of {', '.join(LAYOUTS)}")
    return str(layout)


def check_option(name: str, value: object, allowed: Sequence[str]) -> str:
    """ValueError for an option that is none of those allowed, TypeError for what is no name."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: {value!r} given; expected one of {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} given; expected one of {', '.join(allowed)}")
    return value


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An option as an int, within bounds that belong to it."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r} given; expected an integer")
    number = int(value.__index__())
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}: {value!r} given; expected {low} or more" + (f", at most {high}" if high else ""))
    return number


def check_number(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """An option as a float, within bounds that belong to it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: {value!r} given; expected a number")
    if math.isnan(value) and (low, high) == (-math.inf, math.inf):
        raise ValueError(f"{name}: nan given; expected a number")
    if not low <= value <= high:
        raise ValueError(
            f"{name}: {value!r} given; expected {low:g} or more" + (f", at most {high:g}" if high < math.inf else "")
        )
    return float(value)


_numbers: dict[Any, int] = {}


def number_of(options: Any) -> int:
    """A small number that stands for an operation's options in keys: what is hashed on every call stays small."""
    return _numbers.setdefault((type(options), options), len(_numbers))
