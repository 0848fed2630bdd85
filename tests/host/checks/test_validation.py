"""The checks of options: accepted values, and the type, argument, value and expectation of each error."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_double, c_float
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import says

from cudnnpy._checks.option_values import (
    check_integer,
    check_number,
    check_padding,
    check_per_axis,
    check_shape,
)
from cudnnpy._launch.steps import scaling_arguments

bad_scales: Any = scaling_arguments  # whose types forbid what is tried here
NAN, INF = float("nan"), float("inf")
HUGE = 10**400  # an int beyond every float
# (call, exception, the argument that is named, what was given as the message shows it)
REFUSED: list[tuple[Callable[[], Any], type[Exception], str, str]] = [
    (lambda: check_integer("n", 0, 1), ValueError, "n", "0"),
    (lambda: check_integer("n", 17, 1, 16), ValueError, "n", "17"),
    (lambda: check_integer("n", 1, 0, 0), ValueError, "n", "1"),
    (lambda: check_integer("n", 1.0, 1), TypeError, "n", "1.0"),
    (lambda: check_integer("n", True, 1), TypeError, "n", "True"),
    (lambda: check_integer("n", "1", 1, 2), TypeError, "n", "'1'"),
    (lambda: check_integer("n", np.ones(2, int), 1), TypeError, "n", "an array (numpy.ndarray of shape (2,))"),
    (lambda: check_integer("n", -1, 0, expected="bytes"), ValueError, "n", "-1"),
    (lambda: check_integer("n", None, 0, expected="bytes"), TypeError, "n", "None"),
    (lambda: check_number("c", "1"), TypeError, "c", "'1'"),
    (lambda: check_number("c", True), TypeError, "c", "True"),
    (lambda: check_number("c", None), TypeError, "c", "None"),
    (lambda: check_number("c", 1j, 0.0, finite=True), TypeError, "c", "1j"),
    (lambda: check_number("c", NAN), ValueError, "c", "nan"),
    (lambda: check_number("c", HUGE), ValueError, "c", str(HUGE)),
    (lambda: check_number("c", -0.5, 0.0), ValueError, "c", "-0.5"),
    (lambda: check_number("c", NAN, 0.0), ValueError, "c", "nan"),
    (lambda: check_number("c", 0, above=0.0), ValueError, "c", "0"),
    (lambda: check_number("c", -INF, finite=True), ValueError, "c", "-inf"),
    (lambda: check_number("c", NAN, finite=True), ValueError, "c", "nan"),
    (lambda: bad_scales("2", 0.0, "float32"), TypeError, "alpha", "'2'"),
    (lambda: scaling_arguments(1.0, INF, "float32"), ValueError, "beta", "inf"),
    (lambda: scaling_arguments(NAN, 0.0, "float32"), ValueError, "alpha", "nan"),
    (lambda: scaling_arguments(True, 0.0, "float32"), TypeError, "alpha", "True"),
    (lambda: check_per_axis("stride", 10**5000, 1), ValueError, "stride", "an integer of 16610 bits"),
    (lambda: check_padding((0, 2**63)), ValueError, "padding", "9223372036854775808"),
    (lambda: check_number("c", 10**5000), ValueError, "c", "an integer of 16610 bits"),
    (lambda: check_shape("s", (10**5000, 2)), ValueError, "s", "an integer of 16610 bits, 2"),
    (lambda: check_shape("s", np.zeros((1, 2))), TypeError, "s", "an array (numpy.ndarray of shape (1, 2))"),
    (lambda: check_shape("x_shape", 8), TypeError, "x_shape", "8"),
    (lambda: check_shape("x_shape", None, 4), TypeError, "x_shape", "None"),
    (lambda: check_shape("s", "NCHW"), TypeError, "s", "'NCHW'"),
    (lambda: check_shape("s", (2, 2.0)), TypeError, "s", "(2, 2.0)"),
    (lambda: check_shape("s", (2, True)), TypeError, "s", "(2, True)"),
    (lambda: check_shape("s", (2, 0)), ValueError, "s", "(2, 0)"),
    (lambda: check_shape("s", (2, 3), 3), ValueError, "s", "(2, 3)"),
    (lambda: check_shape("s", (), 3), ValueError, "s", "()"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "kind", "name", "given"), REFUSED)
def test_bad_options_are_refused_by_name(
    check: Callable[[], Any], kind: type[Exception], name: str, given: str
) -> None:
    with pytest.raises(
        kind, match="^" + says(f"{name} must be ...; got {given}") + r"(\. Did you mean '\w+'\?)?$"
    ) as caught:
        check()
    assert type(caught.value) is kind


# Layouts


# alpha and beta


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_scales_are_doubles_for_float64_alone(alpha: float, beta: float) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        one, two = scaling_arguments(alpha, beta, dtype)
        assert (type(one), type(two), one.value, two.value) == (
            c_float,
            c_float,
            c_float(alpha).value,
            c_float(beta).value,
        )
    one, two = scaling_arguments(alpha, beta, "float64")
    assert (type(one), type(two), one.value, two.value) == (c_double, c_double, alpha, beta)
