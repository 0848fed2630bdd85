"""Parse untrusted JSON: a text that is malformed, too long or nested too deep raises ValueError."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, extent
from cudnnpy._options.limits import MAX_PLAN_CHARACTERS

LIMIT = 1 << 62  # of sizes, strides and extents in bytes, so that the sum of two fits in 64 bits
_MOST_AXES = 8  # the most axes of a tensor (CUDNN_DIM_MAX)
_DEEPEST = 16
_TOKENS = 50_000  # strings, brackets and colons
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}:]', re.DOTALL)


def invalid_text(why: str) -> ValueError:
    """Return the error for a text that is not a serialized plan."""
    return ValueError(
        f"text must be a serialized cudnnpy plan; got invalid text: {why if len(why) <= 500 else why[:500] + '...'}"
    )


def parsed(text: str) -> Any:
    """Return the parsed JSON of a text.

    Raises ValueError for a text that is too long or nested too deep, and for infinities, integers beyond 64 bits and
    duplicate keys.
    """
    if len(text) > MAX_PLAN_CHARACTERS:
        raise invalid_text(f"it must have {MAX_PLAN_CHARACTERS} characters at most; got {len(text)}")
    depth = 0
    for number, token in enumerate(_TOKEN.finditer(text)):
        mark = text[token.start()]
        depth += (mark in "[{") - (mark in "]}")
        if depth > _DEEPEST or number > _TOKENS:
            raise invalid_text("it is nested too deep" if depth > _DEEPEST else "it has too many parts")
    try:
        return json.loads(
            text,
            parse_constant=_reject_constant,
            parse_int=_as_int,
            parse_float=_as_float,
            object_pairs_hook=_as_object,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid_text(f"it is not JSON ({error})") from error


def parsed_at_once(text: str) -> Any:
    """Return the parsed JSON of a text whose parts are compared with what is known, not built upon: in a fifth of the time.

    Raises ValueError for a text that is too long, nested too deep or not JSON.
    """
    if not isinstance(text, str) or len(text) > MAX_PLAN_CHARACTERS:
        raise invalid_text(f"it must have {MAX_PLAN_CHARACTERS} characters at most")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid_text(f"it is not JSON ({str(error)[:200]})") from error


def _reject_constant(constant: str) -> Any:
    raise invalid_text(f"it has the number {constant}")


def _as_int(digits: str) -> int:
    if len(digits) > 20:
        raise invalid_text("it has an integer beyond 64 bits")
    return int(digits)


def _as_float(digits: str) -> float:
    number = float(digits) if len(digits) < 400 else math.inf
    if not math.isfinite(number):
        raise invalid_text("it has a number beyond float64")
    return number


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise invalid_text("it has a duplicate key")
    return found


def spec_of(name: str, given: Any) -> TensorSpec:
    """Return a TensorSpec from a list of its shape, dtype, strides and alignment."""
    if not isinstance(given, list) or len(given) != 4:
        raise invalid_text(f"{name} must be a shape, dtype, strides and alignment; got something else")
    shape, dtype, strides, alignment = given
    sizes = integers(f"{name}.shape", shape, 1)
    steps = integers(f"{name}.strides", strides, 0, len(sizes))
    try:
        size = dtype_of(dtype, name).itemsize if isinstance(dtype, str) else 0
    except TypeError as error:
        raise invalid_text(str(error)) from error
    (alignment,) = integers(f"{name}.alignment", [alignment], size)
    spec = TensorSpec(sizes, dtype, steps, alignment)
    if not size or dtype_of(dtype).name != dtype or alignment & (alignment - 1):
        raise invalid_text(f"{name} must have a known dtype, and its alignment; got {str(dtype)[:60]!r}, {alignment}")
    if extent(spec) >= LIMIT or math.prod(sizes) >= LIMIT:
        raise invalid_text(f"{name} must fit into memory; got shape {sizes}, strides {steps}")
    return spec


def integers(name: str, given: Any, low: int, count: int | None = None) -> tuple[int, ...]:
    """Return a list of integers as a tuple. It must have `count` elements, or at most as many as a tensor has axes."""
    good = isinstance(given, list) and 1 <= len(given) <= _MOST_AXES and count in (None, len(given))
    if not good or not all(type(number) is int and low <= number < LIMIT for number in given):
        raise invalid_text(
            f"{name} must be {'' if count is None else f'{count} '}integers of {low} or more; got other values"
        )
    return tuple(given)


def names(given: Mapping[str, Any]) -> str:
    """Return the keys of an object, for an error message."""
    return ", ".join(sorted(given))[:200] or "nothing"
