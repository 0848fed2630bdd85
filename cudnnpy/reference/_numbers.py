"""Numbers given by the caller: checked, and made plain ints and floats."""

from __future__ import annotations

import operator
from numbers import Real

import numpy as np


def integer(name: str, value: object, minimum: int) -> int:
    """Return value as an int of at least minimum; a bool or a float is a TypeError, a smaller one a ValueError."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}: expected an int")
    try:
        number = operator.index(value)
    except TypeError:  # an array of several elements, say
        raise TypeError(f"{name}={value!r}: expected an int") from None
    if number < minimum:
        raise ValueError(f"{name}={number}: expected at least {minimum}")
    return number


def real(name: str, value: object) -> float:
    """Return value as a float; a bool or anything that is not a real number is a TypeError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r}: expected a real number")
    return float(value)
