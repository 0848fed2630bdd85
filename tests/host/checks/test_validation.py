"""The checks of options: accepted values, and the type, argument, value and expectation of each error."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import c_double, c_float
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import says

from cudnnpy import Pooling, Softmax
from cudnnpy._checks.option_values import (
    check_flag,
    check_integer,
    check_layout,
    check_layout_rank,
    check_number,
    check_option,
    check_padding,
    check_per_axis,
    check_shape,
    expand_per_axis,
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


class Index:
    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("check", "form"),
    [
        (lambda: check_option("mode", "a", ("a", "b")), "a"),
        (lambda: check_flag("tf32", False), False),
        (lambda: check_integer("n", Index(), 1, 3), 3),
        (lambda: check_integer("n", np.int64(1), 1, 3), 1),
        (lambda: check_integer("n", 2**64 - 1, 0, 2**64 - 1), 2**64 - 1),
        (lambda: check_number("c", 2), 2.0),
        (lambda: check_number("c", -INF), -INF),
        (lambda: check_number("c", 0.0, 0.0), 0.0),
        (lambda: check_number("c", 1, 0.0), 1.0),
        (lambda: check_number("c", INF, above=0.0), INF),
        (lambda: check_number("c", 5e-324, above=0.0), 5e-324),
        (lambda: check_number("c", -1e308, finite=True), -1e308),
        (lambda: check_per_axis("stride", 2, 1), 2),
        (lambda: check_per_axis("stride", [Index(), 1], 1), (3, 1)),
        (lambda: check_padding("same", ("valid", "same")), "same"),
        (lambda: check_padding(Index()), 3),
        (lambda: check_padding([0, [1, Index()]]), (0, (1, 3))),
        (lambda: expand_per_axis("stride", 2, 3), (2, 2, 2)),
        (lambda: expand_per_axis("padding", (1, (2, 3)), 2), (1, (2, 3))),
        (lambda: check_shape("x_shape", [2, Index()]), (2, 3)),
        (lambda: check_shape("x_shape", (size for size in (1, 2)), 2), (1, 2)),
        (lambda: check_shape("x_shape", ()), ()),
        (lambda: check_layout("NDHWC"), "NDHWC"),
    ],
)
def test_good_options_come_back_in_one_form(check: Callable[[], Any], form: Any) -> None:
    found = check()
    assert (found, type(found)) == (form, type(form))
    if isinstance(found, tuple):
        assert [type(element) for element in found] == [type(element) for element in form]


# Layouts


@pytest.mark.parametrize("layout", ["nchw", "CHWN", "", None, 4, ["NCHW"]])
def test_other_layouts_are_refused(layout: Any) -> None:
    kind = ValueError if isinstance(layout, str) else TypeError
    names, guess = "'NCW', 'NCHW', 'NCDHW', 'NWC', 'NHWC', 'NDHWC'", ". Did you mean 'NCHW'?" * (layout == "nchw")
    for make in (check_layout, lambda layout: Softmax(layout=layout), lambda layout: Pooling(layout=layout)):
        with pytest.raises(kind, match="^" + re.escape(f"layout must be one of {names}; got {layout!r}{guess}") + "$"):
            make(layout)


@pytest.mark.parametrize(("layout", "ranks"), [("NCW", {3}), ("NDHWC", {5}), ("NCHW", {2, 3, 4, 5}), ("NHWC", {3, 5})])
def test_a_layout_that_is_spelled_out_has_a_rank(layout: str, ranks: set[int]) -> None:
    for rank in ranks:
        check_layout_rank(layout, "x", rank)
    if len(ranks) == 1:
        with pytest.raises(ValueError, match=f"^layout must have 4 axes, as dy; got '{layout}'$"):
            check_layout_rank(layout, "dy", 4)


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
