"""Read JSON of unknown origin, and records from it: whatever is not as expected raises ValueError."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr
from cudnnpy._checks.size_limits import MAX_KNOBS
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent

_MAX_INTEGER = (1 << 63) - 1
Knobs = tuple[tuple[int, int], ...]  #: the knobs of an engine, each a cudnnBackendKnobType_t with its value
Check = Callable[[str, Any], Any]  # returns a JSON value as a field of a name, or raises ValueError
LIMIT = 1 << 62  # of sizes, strides and extents in bytes, so that the sum of two fits in 64 bits


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for anything else, for NaN and infinities, and for JSON that is nested too deep."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"it has the number {constant}")


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
    spec = TensorSpec._make((sizes, dtype, steps, alignment))
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


# Records


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} must be a str without control characters; got {error_repr(value)}")
    return value


def _integer(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
        raise ValueError(f"{name} must be an int of 0 or more, in 63 bits; got {error_repr(value)}")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number of 0 or more; got {error_repr(value)}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be a bool; got {error_repr(value)}")
    return value


def _moment(name: str, value: Any) -> str:
    try:
        if datetime.fromisoformat(_text(name, value)).utcoffset() == timedelta(0):
            return str(value)
    except ValueError:
        pass
    raise ValueError(f"{name} must be a time in UTC such as '2026-01-31T12:00:00+00:00'; got {error_repr(value)}")


def _texts_by_name(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object of strings; got {error_repr(value)}")
    return {_text(name, key): _text(name, text) for key, text in value.items()}


def _knobs(name: str, value: Any) -> Knobs:
    if not isinstance(value, list) or len(value) > MAX_KNOBS:
        raise ValueError(f"{name} must be a list of {MAX_KNOBS} pairs of integers at most; got {error_repr(value)}")
    return tuple((kind, number) for kind, number in (integers(name, pair, -LIMIT, 2) for pair in value))


def _or_none(check: Check, name: str, value: Any) -> Any:
    return None if value is None else check(name, value)


def _items(check: Check, name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list; got {error_repr(value)}")
    return tuple(check(f"{name}[{index}]", item) for index, item in enumerate(value))


def _record(make: type, checks: Mapping[str, Check], name: str, value: Any) -> Any:
    omitted = getattr(make, "_json_omitted", {})
    if isinstance(value, Mapping):
        value = {**omitted, **value}
    if not isinstance(value, Mapping) or value.keys() != checks.keys():
        actual = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"{name} must be an object of {', '.join(checks)}; got {str(actual)[:200]}")
    return make(**{field: check(f"{name}.{field}", value[field]) for field, check in checks.items()})


def reader(annotation: Any) -> Check:
    """Return the function that checks a JSON value, and returns it as the annotated type: check(name, value).

    The type of a record is a NamedTuple, or has the annotations of its fields in `_json_fields`, and in `_json_omitted` the
    values of fields that are left out where they have them.
    """
    simple: dict[Any, Check] = {
        str: _text,
        int: _integer,
        float: _number,
        bool: _flag,
        dict[str, str]: _texts_by_name,
        Knobs: _knobs,
    }
    if annotation in simple:
        return simple[annotation]
    first = next(iter(get_args(annotation)), None)
    if first is not None:
        return partial(_items if get_origin(annotation) is tuple else _or_none, reader(first))
    hints = getattr(annotation, "_json_fields", None) or get_type_hints(annotation)
    checks = {field: reader(type_) for field, type_ in hints.items()}
    if "made_at" in checks:
        checks["made_at"] = _moment
    return partial(_record, annotation, checks)


def plain(value: Any) -> Any:
    """Return a record as JSON, the inverse of its reader."""
    if hasattr(value, "_json_fields"):
        omitted = getattr(value, "_json_omitted", {})
        fields = {field: getattr(value, field) for field in value._json_fields}
        return {field: plain(one) for field, one in fields.items() if field not in omitted or one != omitted[field]}
    if isinstance(value, tuple):
        items = [*map(plain, value)]
        return dict(zip(value._fields, items, strict=True)) if hasattr(value, "_fields") else items
    return value
