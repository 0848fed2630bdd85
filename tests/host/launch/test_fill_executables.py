"""The bits that memory is filled with: a value rounded to the nearest of a dtype, ties to even."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cudnnpy._launch.fill_executables import _bits

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
dtypes = st.sampled_from(list(TYPES))
TINY = 2.0**-133  # bfloat16's smallest


def from_bits(bits: int, dtype: str) -> float:
    kind = TYPES[dtype]
    return float(np.array(bits, f"u{np.dtype(kind).itemsize}").view(kind))


def bits_of(number: float, dtype: str) -> int:
    kind = TYPES[dtype]
    with np.errstate(all="ignore"):
        return int(np.float64(number).astype(kind).view(f"u{np.dtype(kind).itemsize}"))


def landmarks(dtype: str) -> tuple[int, int]:
    """The sign bit of a dtype, and the bits of infinity."""
    return (1 << 31 if dtype == "float32" else 1 << 15), bits_of(math.inf, dtype)


@given(dtypes, st.floats(allow_nan=False))
@example("bfloat16", 1 + 2.0**-8 + 2.0**-40)  # to float32 first it would be a tie, and go down
@example("bfloat16", 1 + 3 * 2.0**-8 - 2.0**-40)  # and up here
@example("bfloat16", -(1 + 2.0**-8 + 2.0**-40))
@example("bfloat16", TINY / 2)
@example("bfloat16", math.nextafter(TINY / 2, 1))
@example("bfloat16", 2.0**-150)
@example("bfloat16", 3.3961775292304957e38)  # halfway between the largest and infinity
@example("bfloat16", math.nextafter(3.3961775292304957e38, 0))
@example("float16", 65520.0)
@example("float16", math.nextafter(65520.0, 0))
@example("float16", 2.0**-25)
@example("float32", 16777217.0)
@example("float32", -0.0)
def test_values_are_rounded_to_the_nearest_ties_to_even(dtype: str, value: float) -> None:
    bits = _bits(value, dtype)
    sign, infinity = landmarks(dtype)
    assert bool(bits & sign) == (math.copysign(1, value) < 0)
    size = bits & ~sign
    assert size <= infinity
    if math.isinf(value):
        assert size == infinity
        return

    def exact(size: int) -> Fraction:
        """What bits stand for; infinity stands where the next number would."""
        if size < infinity:
            return Fraction(from_bits(size, dtype))
        return 2 * Fraction(from_bits(infinity - 1, dtype)) - Fraction(from_bits(infinity - 2, dtype))

    error = abs(exact(size) - abs(Fraction(value)))
    if size == infinity:
        error = max(exact(size) - abs(Fraction(value)), Fraction(0))  # beyond it everything is infinite
    for neighbour in (size - 1, size + 1):
        if 0 <= neighbour <= infinity:
            other = abs(exact(neighbour) - abs(Fraction(value)))
            assert error < other or (error == other and size % 2 == 0)


@given(dtypes, st.floats(width=32))
def test_values_of_float32_are_rounded_as_numpy_and_ml_dtypes_do(dtype: str, value: float) -> None:
    """From float64 ml_dtypes rounds to bfloat16 by way of float32, twice."""
    if math.isnan(value):
        assert math.isnan(from_bits(_bits(value, dtype), dtype))
    else:
        assert _bits(value, dtype) == bits_of(value, dtype)


@given(st.sampled_from(["float16", "float32"]), st.floats(allow_nan=False))
def test_values_of_float64_are_rounded_as_numpy_does(dtype: str, value: float) -> None:
    assert _bits(value, dtype) == bits_of(value, dtype)


@given(dtypes, st.integers(0, 2**32 - 1))
def test_what_a_dtype_has_stays_as_it_is(dtype: str, bits: int) -> None:
    bits &= 0xFFFFFFFF if dtype == "float32" else 0xFFFF
    value = from_bits(bits, dtype)
    if not math.isnan(value):
        assert _bits(value, dtype) == bits


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [0, 1, -3, 1 << 40])
def test_integers_are_values_too(dtype: str, value: int) -> None:
    assert _bits(value, dtype) == bits_of(float(value), dtype)
