"""Convert Python values to C arguments. Errors name the argument; ctypes itself would truncate numbers that do not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from ctypes import Structure, c_double, c_float, c_int, c_int64, c_size_t, c_uint, c_ulonglong, c_void_p
from enum import IntEnum
from functools import cache
from itertools import islice
from operator import index
from typing import Any

from cudnnpy import raw
from cudnnpy._checks.option_values import error_repr, is_integer
from cudnnpy._core.owned import Owned
from cudnnpy._process.module_state import process_cache
from cudnnpy.names import data_type, enumerator
from cudnnpy.raw import _api
from cudnnpy.raw._library_files import version_number

MAX_ELEMENTS = 1 << 20  # of an array: more than cuDNN needs, and little memory
INTEGERS = (c_int, c_uint, c_int64, c_size_t, c_ulonglong)


def integer(value: Any, argument: str, kind: Any = c_int) -> int:
    """Return a Python integer that a C integer type can hold."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:  # an array of several numbers has __index__, too
        number = None
    if number is None:
        raise TypeError(f"{argument} must be an integer; got {error_repr(value)} ({type(value).__name__})")
    if kind(number).value != number:
        raise ValueError(f"{argument} must be an integer that fits {kind.__name__}; got {error_repr(number)}")
    return number


def integers(values: Any, argument: str, length: int | None = None, most: int = MAX_ELEMENTS) -> tuple[int, ...]:
    """Return a tuple of at most `most` C ints, or of exactly `length`, where one integer is repeated."""
    if length is not None and is_integer(values):
        values = (values,) * length
    entries = _sequence(values, argument)
    if len(entries) > most:
        raise ValueError(f"{argument} must have {most} elements at most; got {len(entries)}, {error_repr(values)}")
    result = tuple(integer(value, f"{argument}[{at}]") for at, value in enumerate(entries))
    if length is not None and len(result) != length:
        raise ValueError(f"{argument} must be {length} integers; got {error_repr(result)}")
    return result


def nan_propagation(propagate: bool) -> raw.cudnnNanPropagation_t:
    """Return the enumerator of `propagate_nan`."""
    if not isinstance(propagate, bool):
        raise TypeError(f"propagate_nan must be a bool; got {error_repr(propagate)} ({type(propagate).__name__})")
    return raw.CUDNN_PROPAGATE_NAN if propagate else raw.CUDNN_NOT_PROPAGATE_NAN


def to_c(kind: str, value: Any, argument: str) -> Any:
    """Return a Python value as an argument of a C type. Raises TypeError or ValueError, naming the argument.

    None is NULL, also for a handle. The caller checks where C does not accept it.
    """
    wanted = raw.ctype(kind)
    if kind.endswith("[]"):
        if value is None:
            return None
        base = kind.removesuffix("[]")
        values = [to_c(base, one, f"{argument}[{at}]") for at, one in enumerate(_sequence(value, argument))]
        return (wanted._type_ * len(values))(*values)
    if wanted is c_void_p:
        return integer(value, argument, c_size_t) if is_integer(value) else value
    if kind.endswith("*"):
        return value
    enum = enum_of(kind)
    if enum is not None:
        return data_type(value, argument) if enum is raw.cudnnDataType_t else enumerator(enum, value, argument)
    if wanted in (c_float, c_double):
        return _number(value, argument, wanted)
    if wanted in INTEGERS:
        return integer(value, argument, wanted)
    return _handle(value, argument, kind) if is_handle(kind) else value


def is_handle(kind: str) -> bool:
    """Return whether a C type is a handle or a descriptor."""
    wanted = raw.ctype(kind)
    return hasattr(wanted, "contents") and issubclass(wanted._type_, Structure) and not kind.endswith(("*", "[]"))


@cache
def enum_of(kind: str) -> type[IntEnum] | None:
    """Return the enum of a C type, or of the elements of an array."""
    found = getattr(raw, kind.removeprefix("const ").rstrip("*[] "), None)
    return found if isinstance(found, type) and issubclass(found, IntEnum) else None


def _handle(value: Any, argument: str, kind: str) -> Any:
    wanted = raw.ctype(kind)
    given = value.pointer if isinstance(value, Owned) else value  # raises ClosedError
    if not (given is None or isinstance(given, wanted)):
        name = kind.removeprefix("const ").strip()
        raise TypeError(f"{argument} must be a {name} object; got {error_repr(value)} ({type(value).__name__})")
    return value


def _number(value: Any, argument: str, kind: Any) -> float:
    try:
        number = None if isinstance(value, bool | str | bytes) else float(value)
    except OverflowError:  # an int larger than every float
        number = math.inf
    except (TypeError, ValueError):  # an array of several numbers has __float__, too
        number = None
    if number is None:
        raise TypeError(f"{argument} must be a number; got {error_repr(value)} ({type(value).__name__})")
    if math.isinf(kind(number).value) and not (math.isinf(number) and isinstance(value, float)):
        raise ValueError(f"{argument} must be a number that fits {kind.__name__}; got {error_repr(value)}")
    return number


def _sequence(values: Any, argument: str) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping | Set) or not hasattr(values, "__iter__"):
        advice = (
            f". Write ({values}, {values}) for two dimensions" if type(values) is int and 0 <= values < 1 << 31 else ""
        )
        raise TypeError(f"{argument} must be a sequence; got {error_repr(values)} ({type(values).__name__}){advice}")
    try:
        result = tuple(islice(values, MAX_ELEMENTS + 1))
    except TypeError as error:  # an array without dimensions
        raise TypeError(f"{argument} must be a sequence; got {error_repr(values)} ({type(values).__name__})") from error
    if len(result) > MAX_ELEMENTS:
        raise ValueError(f"{argument} must have {MAX_ELEMENTS} elements at most; got more")
    return result


def check_attribute(name: str, attribute: int, values: list[Any]) -> None:
    """Raise ValueError for a number that would end the process as a backend attribute: cuDNN does not check it."""
    if attribute in _api.ATTRIBUTE_RANGES:
        least, largest = _api.ATTRIBUTE_RANGES[attribute]
        expected, wrong = f"{least} to {largest}", [value for value in values if not least <= value <= largest]
    elif attribute == raw.CUDNN_ATTR_TENSOR_DATA_TYPE:
        expected = f"a cudnnDataType_t that cuDNN {raw.version_text(raw.version())} has"
        wrong = [value for value in values if value not in _data_types()]
    else:
        return
    if wrong:
        raise ValueError(f"{name} must be {expected}; got {error_repr(wrong[0])}")
    if attribute == raw.CUDNN_ATTR_TENSOR_DIMENSIONS and math.prod(values) >> 63:
        raise ValueError(f"{name} must be sizes whose product fits 64 bits; got {values}")


@process_cache
def _data_types() -> frozenset[int]:
    """Return the data types of the loaded release."""
    release = raw.version()
    return frozenset(
        int(dtype) for dtype in raw.cudnnDataType_t if version_number(raw.since(dtype.name) or "") <= release
    )
