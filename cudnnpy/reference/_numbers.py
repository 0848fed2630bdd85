"""Numbers given by the caller: checked, and made plain ints and floats."""

from __future__ import annotations

import math
import operator
from numbers import Real

import numpy as np


def integer(name: str, value: object, minimum: int) -> int:
    """Return value as an int of at least minimum; a bool or a float is a TypeError, a smaller one a ValueError."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int; got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:  # an array of several elements, say
        raise TypeError(f"{name} must be an int; got {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be an integer of {minimum} or more; got {number}")
    return number


def real(name: str, value: object) -> float:
    """Return value as a float; a bool or anything that is not a real number is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a real number; got {value!r}")
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        raise ValueError(f"{name} must be a number that fits a float; got {value!r}") from None


def finite(name: str, value: object) -> float:
    """Return value as a float that is neither infinite nor NaN."""
    number = real(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number; got {value!r}")
    return number


def scales(alpha: object, beta: object, *, prefix: str = "", **results: object) -> tuple[float, float]:
    """Return alpha and beta as finite floats; a beta other than 0 needs the results, by name, that it is a factor of."""
    numbers = finite(f"{prefix}alpha", alpha), finite(f"{prefix}beta", beta)
    for name, result in results.items():
        if numbers[1] and result is None:
            raise ValueError(
                f"{prefix}beta must be 0 where {name} is None; got {beta!r}. Pass {name}, which it multiplies"
            )
    return numbers
