"""Check the values of options and arguments: flags, numbers, shapes, paddings, layouts. Errors say what must be given.

A value of another type raises TypeError; one of the right type that is out of range, or an unknown name, raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import Any, TypeVar, cast, get_args

from cudnnpy._checks.size_limits import MAX_AXES, MAX_SHOWN_CHARACTERS
from cudnnpy._checks.suggestions import suggest_value
from cudnnpy.typing import Layout

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
NameT = TypeVar("NameT", bound=str)
MAX_INT64 = 2**63 - 1  # no size, stride or number of anything is larger


def error_repr(value: object) -> str:
    """A value as an error shows it, in MAX_SHOWN_CHARACTERS at most: an array by its shape, and an integer of thousands of
    digits, which Python refuses to write, by its length.
    """
    if isinstance(value, int) and value.bit_length() > 2048:
        return f"an integer of {value.bit_length()} bits"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and not isinstance(value, tuple):
        return f"an array ({type(value).__module__}.{type(value).__qualname__} of shape {tuple(shape)})"
    is_long = isinstance(value, str | bytes | list | tuple) and len(value) > MAX_SHOWN_CHARACTERS
    text = repr(value[:MAX_SHOWN_CHARACTERS] if is_long else value)  # type: ignore[index]
    text = " ".join(text.split()) if "\n" in text else text  # of a list of arrays
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


def is_integer(value: Any) -> bool:
    """Whether a value is one integer. An array of several numbers has __index__, too."""
    try:
        index(value)
    except TypeError:
        return False
    return True


def printable(text: str) -> str:
    """A text for a terminal: control characters and lone surrogates are escapes, line breaks stay."""
    escaped = (mark if mark.isprintable() or mark == "\n" else mark.encode("unicode_escape").decode() for mark in text)
    return text if text.isprintable() else "".join(escaped)


# One value


def check_option(name: str, value: object, allowed: Sequence[NameT]) -> NameT:
    """Return the given name, if it is one of the allowed names."""
    if isinstance(value, str) and value in allowed:
        return cast(NameT, value)
    names, advice = ", ".join(map(repr, allowed)), suggest_value(value, allowed) if isinstance(value, str) else ""
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"{name} must be one of {names}; got {error_repr(value)}{advice}")


def check_flag(name: str, value: object) -> bool:
    """A bool; integers are rejected."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool; got {error_repr(value)}")
    return value


def check_integer(name: str, value: Any, low: int, high: int | None = None, *, expected: str = "") -> int:
    """An int from `low` to `high`, both included; `expected` replaces the error's description of these bounds."""
    expected = expected or ("an integer of " + (f"{low} or more" if high is None else f"{low} to {high}"))
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be {expected}; got {error_repr(value)}")
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be {expected}; got {error_repr(value)}")
    if high is None and number > MAX_INT64:
        raise ValueError(f"{name} must be {expected}, and of 64 bits; got {error_repr(value)}")
    return number


def check_number(
    name: str,
    value: object,
    low: float = -inf,
    *,
    above: float = -inf,
    finite: bool = False,
) -> float:
    """A number as a float, of `low` or more, and above `above`. `finite` excludes infinities."""
    bounds = []
    if low > -inf:
        bounds.append(f"of {low:g} or more")
    if above > -inf:
        bounds.append(f"above {above:g}")
    expected = f"a {'finite ' if finite else ''}number {' and '.join(bounds)}".rstrip()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {expected}; got {error_repr(value)}")
    try:
        number = float(value)
    except OverflowError:  # an int beyond every float
        raise ValueError(f"{name} must be {expected}; got {error_repr(value)}") from None
    inside = low <= number and (above == -inf or number > above)
    if not inside or (finite and not isfinite(number)):
        raise ValueError(f"{name} must be {expected}; got {error_repr(value)}")
    return number


# One value, or one for each spatial axis


def check_per_axis(name: str, value: Any, low: int) -> int | tuple[int, ...]:
    """Return an int, which is for every axis, or a tuple of one int for each spatial axis."""
    if value.__class__ is int and low <= value <= MAX_INT64:
        return value
    expected = f"an integer of {low} or more, or one for each of 1 to 3 spatial axes"
    entries = as_elements(value)
    if entries is None:
        return check_integer(name, value, low, expected=expected)
    if not 1 <= len(entries) <= 3:
        raise ValueError(f"{name} must be {expected}; got {error_repr(value)}")
    return tuple(check_integer(name, number, low, expected=expected) for number in entries)


def check_padding(value: Any, names: Sequence[str] = ()) -> str | int | tuple[int | tuple[int, int], ...]:
    """One of the names, an int, or a tuple of one int or (before, after) pair for each spatial axis.

    A pair of equal numbers becomes an int.
    """
    if value.__class__ is int and 0 <= value <= MAX_INT64:
        return value
    if names and isinstance(value, str):
        return check_option("padding", value, names)
    expected = f"an integer of 0 or more,{'' if names else ' or'} a tuple of 1 to 3 integers or (before, after) pairs"
    expected += f", or one of {', '.join(map(repr, names))}" if names else ""
    entries = as_elements(value)
    if entries is None:
        return check_integer("padding", value, 0, expected=expected)
    pairs = [as_elements(axis) for axis in entries]
    if not 1 <= len(entries) <= 3 or any(pair is not None and len(pair) != 2 for pair in pairs):
        raise ValueError(f"padding must be {expected}; got {error_repr(value)}")
    found: list[int | tuple[int, int]] = []
    for axis, pair in zip(entries, pairs, strict=True):
        before, after = (check_integer("padding", side, 0, expected=expected) for side in pair or (axis, axis))
        found.append(before if before == after else (before, after))
    return tuple(found)


def as_elements(value: Any, most: int = MAX_AXES) -> tuple[Any, ...] | None:
    """Return at most `most` + 1 elements of a sequence or a NumPy array; None for anything else."""
    several = isinstance(value, Sequence) or (hasattr(value, "tolist") and getattr(value, "shape", None))
    return bounded(value, most) if several and not isinstance(value, str | bytes) else None


def bounded(values: Iterable[Any], most: int = MAX_AXES) -> tuple[Any, ...]:
    """Return at most `most` + 1 values of any iterable."""
    return tuple(islice(values, most + 1))


def expand_per_axis(name: str, value: Any, rank: int) -> tuple[Any, ...]:
    """Return one element for each of `rank` spatial axes, from the result of `check_per_axis` or `check_padding`."""
    each = value if isinstance(value, tuple) else (value,) * rank
    if len(each) != rank:
        raise ValueError(f"{name} must be an integer, or one for each of {rank} spatial axes; got {value}")
    return each


# Shapes and layouts


def check_shape(name: str, value: Any, rank: int | None = None, low: int = 1) -> tuple[int, ...]:
    """A shape as a tuple of ints of `low` or more; of `rank` sizes, where that is known."""
    expected = f"a tuple of {'' if rank is None else f'{rank} '}sizes of {low} or more"
    try:
        sizes = bounded(value)
        numbers = tuple(index(size) for size in sizes if not isinstance(size, bool))
    except TypeError:
        raise TypeError(f"{name} must be {expected}; got {error_repr(value)}") from None
    if len(numbers) != len(sizes):
        raise TypeError(f"{name} must be {expected}; got {error_repr(sizes)}")
    if len(sizes) > MAX_AXES:
        raise ValueError(f"{name} must be {expected}, {MAX_AXES} at most; got more")
    if any(abs(size) > MAX_INT64 for size in numbers):
        raise ValueError(f"{name} must be {expected}, and of 64 bits; got {', '.join(map(error_repr, numbers))}")
    if len(sizes) != (len(sizes) if rank is None else rank) or any(size < low for size in numbers):
        raise ValueError(f"{name} must be {expected}; got {numbers}")
    return numbers


def in_array_order(logical: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Return a logical shape, or strides, in the axis order of the arrays of a layout, as errors show it."""
    last = is_channels_last(layout) and len(logical) > 2
    return (logical[0], *logical[2:], logical[1]) if last else tuple(logical)


def check_channels(x_shape: Sequence[int], w_shape: Sequence[int], groups: int, layout: Layout = "NCHW") -> None:
    """ValueError for a filter of another number of channels than x has, or for groups that do not divide it.

    The shapes are logical; the error has those of the arrays.
    """
    if x_shape[1] != w_shape[1] * groups:
        raise ValueError(
            f"x must have {w_shape[1] * groups} channels, {w_shape[1]} in each of {groups} group(s) of w; "
            f"got {x_shape[1]} (x has shape {in_array_order(x_shape, layout)}, w {in_array_order(w_shape, layout)})"
        )
    if w_shape[0] % groups:
        raise ValueError(f"groups must divide the {w_shape[0]} output channels of w; got {groups}")


def check_layout(layout: object) -> Layout:
    """A layout's name."""
    return check_option("layout", layout, LAYOUTS)


def is_channels_last(layout: Layout) -> bool:
    """Whether the axes of arrays with this layout are (N, spatial..., C)."""
    return layout.endswith("C")


def check_layout_rank(layout: str, name: str, rank: int) -> None:
    """ValueError for a layout of another number of axes than an array has. "NCHW" and "NHWC" stand for every rank."""
    if layout not in ("NCHW", "NHWC") and len(layout) != rank:
        raise ValueError(f"layout must have {rank} axes, as {name}; got {error_repr(layout)}")
