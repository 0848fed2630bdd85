"""What the checks of options take, and what they refuse: the type of the error, the argument, the value, the expectation."""

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
from cudnnpy._core.validation import (
    check_flag,
    check_integer,
    check_layout,
    check_layout_rank,
    check_number,
    check_option,
    check_padding,
    check_per_axis,
    check_shape,
    for_each_axis,
)
from cudnnpy._runtime.executables import scales

bad_scales: Any = scales  # whose types forbid what is tried here
NAN, INF = float("nan"), float("inf")
HUGE = 10**400  # an int beyond every float
EACH = "an integer of 1 or more, or one for each of 1 to 3 spatial axes"
PADS = "an integer of 0 or more, or a tuple of 1 to 3 integers or (before, after) pairs"

REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: check_option("mode", "max", ("a", "b")), ValueError, "mode must be one of 'a', 'b'; got 'max'"),
    (lambda: check_option("mode", "", ("a",)), ValueError, "mode must be one of 'a'; got ''"),
    (lambda: check_option("mode", 1, ("a", "b")), TypeError, "mode must be one of 'a', 'b'; got 1"),
    (lambda: check_option("mode", None, ("a",)), TypeError, "mode must be one of 'a'; got None"),
    (lambda: check_option("mode", ["a"], ("a",)), TypeError, "mode must be one of 'a'; got ['a']"),
    (lambda: check_flag("tf32", 1), TypeError, "tf32 must be a bool; got 1"),
    (lambda: check_flag("tf32", "yes"), TypeError, "tf32 must be a bool; got 'yes'"),
    (lambda: check_flag("tf32", None), TypeError, "tf32 must be a bool; got None"),
    (lambda: check_integer("n", 0, 1), ValueError, "n must be an integer of 1 or more; got 0"),
    (lambda: check_integer("n", 17, 1, 16), ValueError, "n must be an integer of 1 to 16; got 17"),
    (lambda: check_integer("n", 1, 0, 0), ValueError, "n must be an integer of 0 to 0; got 1"),
    (lambda: check_integer("n", 1.0, 1), TypeError, "n must be an integer of 1 or more; got 1.0"),
    (lambda: check_integer("n", True, 1), TypeError, "n must be an integer of 1 or more; got True"),
    (lambda: check_integer("n", "1", 1, 2), TypeError, "n must be an integer of 1 to 2; got '1'"),
    (lambda: check_integer("n", np.ones(2, int), 1), TypeError, "n must be an integer of 1 or more; got array([1, 1])"),
    (lambda: check_integer("n", -1, 0, expected="bytes"), ValueError, "n must be bytes; got -1"),
    (lambda: check_integer("n", None, 0, expected="bytes"), TypeError, "n must be bytes; got None"),
    (lambda: check_number("c", "1"), TypeError, "c must be a number; got '1'"),
    (lambda: check_number("c", True), TypeError, "c must be a number; got True"),
    (lambda: check_number("c", None), TypeError, "c must be a number; got None"),
    (lambda: check_number("c", 1j, 0.0, finite=True), TypeError, "c must be a finite number of 0 or more; got 1j"),
    (lambda: check_number("c", NAN), ValueError, "c must be a number; got nan"),
    (lambda: check_number("c", HUGE), ValueError, f"c must be a number; got {HUGE}"),
    (lambda: check_number("c", -0.5, 0.0), ValueError, "c must be a number of 0 or more; got -0.5"),
    (lambda: check_number("c", NAN, 0.0), ValueError, "c must be a number of 0 or more; got nan"),
    (lambda: check_number("c", 1.5, 0.0, 1.0), ValueError, "c must be a number of 0 to 1; got 1.5"),
    (lambda: check_number("c", 0, above=0.0), ValueError, "c must be a number above 0; got 0"),
    (lambda: check_number("c", 1, 0.0, below=1.0), ValueError, "c must be a number of 0 or more and below 1; got 1"),
    (lambda: check_number("c", -1, 0.0, below=1.0), ValueError, "c must be a number of 0 or more and below 1; got -1"),
    (lambda: check_number("c", -INF, finite=True), ValueError, "c must be a finite number; got -inf"),
    (lambda: check_number("c", NAN, finite=True), ValueError, "c must be a finite number; got nan"),
    (lambda: check_number("c", [], nan=True), TypeError, "c must be a number; got []"),
    (lambda: bad_scales("2", 0.0, "float32"), TypeError, "alpha must be a finite number; got '2'"),
    (lambda: scales(1.0, INF, "float32"), ValueError, "beta must be a finite number; got inf"),
    (lambda: scales(NAN, 0.0, "float32"), ValueError, "alpha must be a finite number; got nan"),
    (lambda: scales(True, 0.0, "float32"), TypeError, "alpha must be a finite number; got True"),
    (lambda: check_per_axis("stride", 0, 1), ValueError, f"stride must be {EACH}; got 0"),
    (lambda: check_per_axis("stride", (1, 0), 1), ValueError, f"stride must be {EACH}; got 0"),
    (lambda: check_per_axis("stride", "2", 1), TypeError, f"stride must be {EACH}; got '2'"),
    (lambda: check_per_axis("stride", [1, 2.0], 1), TypeError, f"stride must be {EACH}; got 2.0"),
    (lambda: check_per_axis("stride", (), 1), ValueError, f"stride must be {EACH}; got ()"),
    (lambda: check_per_axis("stride", [1] * 4, 1), ValueError, f"stride must be {EACH}; got [1, 1, 1, 1]"),
    (lambda: check_padding(-1), ValueError, f"padding must be {PADS}; got -1"),
    (lambda: check_padding(((0, -1), 0)), ValueError, f"padding must be {PADS}; got -1"),
    (lambda: check_padding(((0, 1), (0,))), ValueError, f"padding must be {PADS}; got ((0, 1), (0,))"),
    (lambda: check_padding([]), ValueError, f"padding must be {PADS}; got []"),
    (lambda: check_padding((0,) * 4), ValueError, f"padding must be {PADS}; got (0, 0, 0, 0)"),
    (lambda: check_padding("same"), TypeError, f"padding must be {PADS}; got 'same'"),
    (lambda: check_padding((0, "same")), TypeError, f"padding must be {PADS}; got 'same'"),
    (lambda: check_padding(None, ("same",)), TypeError, "padding must be an integer ... pairs, or one of 'same'; got None"),
    (lambda: check_padding("sane", ("same",)), ValueError, "padding must be one of 'same'; got 'sane'"),
    (lambda: for_each_axis("stride", (1, 1, 1), 2), ValueError, "stride must be an integer, or one ...; got (1, 1, 1)"),
    (lambda: check_per_axis("stride", 10**5000, 1), ValueError, "stride must be ...; got an integer of 16610 bits"),
    (lambda: check_padding((0, 2**63)), ValueError, f"padding must be {PADS}, and of 64 bits; got 9223372036854775808"),
    (lambda: check_number("c", 10**5000), ValueError, "c must be a number; got an integer of 16610 bits"),
    (lambda: check_shape("s", (10**5000, 2)), ValueError, "s must be a tuple of sizes...; got an integer of 16610 bits, 2"),
    (lambda: check_shape("s", np.array([[1, 2]])), TypeError, "s must be a tuple of sizes of 1 or more; got array([[1, 2]])"),
    (lambda: check_shape("x_shape", 8), TypeError, "x_shape must be a tuple of sizes of 1 or more; got 8"),
    (lambda: check_shape("x_shape", None, 4), TypeError, "x_shape must be a tuple of 4 sizes of 1 or more; got None"),
    (lambda: check_shape("s", "NCHW"), TypeError, "s must be a tuple of sizes of 1 or more; got 'NCHW'"),
    (lambda: check_shape("s", (2, 2.0)), TypeError, "s must be a tuple of sizes of 1 or more; got (2, 2.0)"),
    (lambda: check_shape("s", (2, True)), TypeError, "s must be a tuple of sizes of 1 or more; got (2, True)"),
    (lambda: check_shape("s", (2, 0)), ValueError, "s must be a tuple of sizes of 1 or more; got (2, 0)"),
    (lambda: check_shape("s", (2, 3), 3), ValueError, "s must be a tuple of 3 sizes of 1 or more; got (2, 3)"),
    (lambda: check_shape("s", (), 3), ValueError, "s must be a tuple of 3 sizes of 1 or more; got ()"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "kind", "text"), REFUSED)
def test_bad_options_are_refused_by_name(check: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match="^" + says(text)) as caught:
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
        (lambda: check_number("c", 0.0, 0.0, 1.0), 0.0),
        (lambda: check_number("c", 1, 0.0, 1.0), 1.0),
        (lambda: check_number("c", INF, above=0.0), INF),
        (lambda: check_number("c", 5e-324, above=0.0), 5e-324),
        (lambda: check_number("c", 0, 0.0, below=1.0), 0.0),
        (lambda: check_number("c", -1e308, finite=True), -1e308),
        (lambda: check_per_axis("stride", 2, 1), 2),
        (lambda: check_per_axis("stride", [Index(), 1], 1), (3, 1)),
        (lambda: check_padding("same", ("valid", "same")), "same"),
        (lambda: check_padding(Index()), 3),
        (lambda: check_padding([0, [1, Index()]]), (0, (1, 3))),
        (lambda: for_each_axis("stride", 2, 3), (2, 2, 2)),
        (lambda: for_each_axis("padding", (1, (2, 3)), 2), (1, (2, 3))),
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


def test_nan_is_a_number_where_that_is_said() -> None:
    assert np.isnan(check_number("value", NAN, nan=True))
    assert check_number("value", INF, nan=True) == INF


# Layouts


@pytest.mark.parametrize("layout", ["nchw", "CHWN", "", None, 4, ["NCHW"]])
def test_other_layouts_are_refused(layout: Any) -> None:
    kind = ValueError if isinstance(layout, str) else TypeError
    names = "'NCW', 'NCHW', 'NCDHW', 'NWC', 'NHWC', 'NDHWC'"
    for make in (check_layout, lambda layout: Softmax(layout=layout), lambda layout: Pooling(layout=layout)):
        with pytest.raises(kind, match="^" + re.escape(f"layout must be one of {names}; got {layout!r}") + "$"):
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
        one, two = scales(alpha, beta, dtype)
        assert (type(one), type(two), one.value, two.value) == (
            c_float,
            c_float,
            c_float(alpha).value,
            c_float(beta).value,
        )
    one, two = scales(alpha, beta, "float64")
    assert (type(one), type(two), one.value, two.value) == (c_double, c_double, alpha, beta)
