"""The reference's pooling against the textbook's with autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import pool as textbook_pool
from oracles import value_and_pullback
from reference_checks import (
    INF,
    MEMORY,
    NAN,
    assert_close,
    assert_refused,
    assert_same,
    check_scales,
    dtypes,
    in_memory_order,
    normal_numbers,
    scales,
    seeds,
)

from cudnnpy.reference import Pooling

MODES = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")
LAYOUTS = {1: ("NCW", "NWC", "NCHW", "NHWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC", "NCHW", "NHWC")}


@dataclass(frozen=True)
class Problem:
    """One pooling; x_shape is channels first."""

    mode: str
    x_shape: tuple[int, ...]
    window: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    layout: str
    memory: str
    seed: int

    def operation(self) -> Pooling:
        names = "padding", "stride", "layout"
        return Pooling(self.mode, self.window, **{name: getattr(self, name) for name in names})

    def x(self, dtype: Any = np.float64, whole: bool = False) -> np.ndarray:
        """In the problem's layout; with whole numbers, many of a window are equal."""
        values = normal_numbers(self.seed, self.x_shape)
        return in_memory_order(self.in_layout((np.rint(values) if whole else values).astype(dtype)), self.memory)

    def dy(self, dtype: Any = np.float64) -> np.ndarray:
        shape = self.operation().output_shape(self.in_layout(np.empty(self.x_shape)).shape)
        return normal_numbers(self.seed + 1, shape, dtype, self.memory)

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 1, -1) if self.layout.endswith("C") else array

    def first(self, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, -1, 1) if self.layout.endswith("C") else array

    def textbook(self, x: Any) -> Any:
        padding = [(pad, pad) for pad in self.padding]
        return textbook_pool(x, self.mode, self.window, padding, self.stride)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    window = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    padding = tuple(draw(st.integers(0, span - 1)) for span in window)
    spatial = [max(1, span - 2 * pad) + draw(st.integers(0, 5)) for span, pad in zip(window, padding, strict=True)]
    channels = draw(st.sampled_from([1, 2, 3, 3, 5, 1025])) if rank < 3 else draw(st.integers(1, 3))
    if channels == 1025:
        spatial = [max(1, span - 2 * pad) for span, pad in zip(window, padding, strict=True)]
    return Problem(
        mode=draw(st.sampled_from(MODES)),
        x_shape=(draw(st.sampled_from([1, 2, 3, 0])), channels, *spatial),
        window=window,
        padding=padding,
        stride=tuple(draw(st.integers(1, 5)) for _ in range(rank)),
        layout=draw(st.sampled_from(LAYOUTS[rank])),
        memory=draw(st.sampled_from(MEMORY)),
        seed=draw(seeds),
    )


@settings(deadline=None, max_examples=500)
@given(problems(), st.booleans())
def test_forward_and_gradient_match_the_textbook(problem: Problem, whole: bool) -> None:
    """Also among equal maxima, of which the first is taken."""
    pool, x, dy = problem.operation(), problem.x(whole=whole), problem.dy()
    expected, gradients = value_and_pullback(problem.textbook, problem.first(x))
    y = pool.forward(x)
    assert y.shape == pool.output_shape(x.shape)
    assert_close(problem.first(y), expected)
    (dx,) = gradients(problem.first(dy))
    assert_close(problem.first(pool.backward(dy, x, y)), dx)


@settings(deadline=None, max_examples=200)
@given(problems(), dtypes, scales, scales)
def test_scales_dtypes_and_out(problem: Problem, dtype: Any, alpha: float, beta: float) -> None:
    pool, x, dy = problem.operation(), problem.x(dtype), problem.dy(dtype)
    y = problem.dy(dtype) * 2
    check_scales(pool.forward, [x], alpha, beta, problem.memory)
    check_scales(pool.backward, [dy, x, y], alpha, beta, problem.memory)


def test_the_first_of_equal_maxima_in_c_order_of_the_window() -> None:
    x = np.zeros((1, 1, 3, 3))
    x[0, 0, 0, 2] = x[0, 0, 1, 0] = 1  # the first row that has one, though its column is later
    pool, dy = Pooling(window=3), np.ones((1, 1, 1, 1))
    expected = np.zeros_like(x)
    expected[0, 0, 0, 2] = 1
    np.testing.assert_array_equal(pool.backward(dy, x, dy), expected)
    expected = np.zeros((1, 1, 3, 3))
    expected[0, 0, 0, 0] = 1
    np.testing.assert_array_equal(pool.backward(dy, np.zeros_like(x), dy), expected)


def test_padding_and_counts_by_hand() -> None:
    x = np.array([[[-2.0, -4.0, -6.0]]])
    given_padding: dict[str, Any] = {"window": 2, "padding": 1}
    np.testing.assert_array_equal(Pooling("max", **given_padding).forward(x), [[[-2, -4]]])
    np.testing.assert_array_equal(Pooling("average_include_padding", **given_padding).forward(x), [[[-1, -5]]])
    np.testing.assert_array_equal(Pooling("average_exclude_padding", **given_padding).forward(x), [[[-2, -5]]])
    dy = np.array([[[1.0, 10.0]]])
    np.testing.assert_array_equal(Pooling("max", **given_padding).backward(dy, x, dy), [[[1, 10, 0]]])
    np.testing.assert_array_equal(Pooling("average_inc_pad", **given_padding).backward(dy, x, dy), [[[0.5, 5, 5]]])
    np.testing.assert_array_equal(Pooling("average_exc_pad", **given_padding).backward(dy, x, dy), [[[1, 5, 5]]])


@pytest.mark.parametrize("mode", MODES)
def test_no_numbers_and_infinities(mode: str) -> None:
    x = np.array([[[1.0, NAN, 2.0, INF, 3.0, 4.0, -INF, 5.0, -INF, INF]]])
    highest = mode.startswith("max")
    expected = [NAN, INF, 4, 5, INF] if highest else [NAN, INF, 3.5, -INF, NAN]
    pool = Pooling(mode)
    y = pool.forward(x)
    np.testing.assert_array_equal(y, [[expected]])
    dx = [0, 1, 0, 2, 0, 3, 0, 4, 0, 5] if highest else [0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2, 2.5, 2.5]
    np.testing.assert_array_equal(pool.backward(np.array([[[1.0, 2, 3, 4, 5]]]), x, y), [[dx]])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("mode", MODES)
def test_a_gradient_that_is_no_number_reaches_its_window_alone(mode: str, value: float) -> None:
    x = np.array([[[1.0, 1.0, 1.0, 1.0]]])
    dx = Pooling(mode).backward(np.array([[[value, 1.0]]]), x, x[..., :2])
    np.testing.assert_array_equal(dx[0, 0, 0], value)
    assert np.isfinite(dx[0, 0, 2:]).all()


def test_there_is_no_rounding_up() -> None:
    message = (
        "an argument of Pooling must be one of ...; got 'ceil_mode'. Sizes are rounded down. To round up, pad x ..."
    )
    assert_refused(lambda: Pooling(ceil_mode=True), TypeError, message)  # type: ignore[call-arg]
    message = "window must be at most 5, the padded size of x; got 7"
    assert_refused(lambda: Pooling(window=7, stride=2).output_shape((1, 1, 5, 5)), ValueError, message)


def test_a_batch_of_0() -> None:
    for mode in MODES:
        x, y = np.ones((0, 3, 5, 5), np.float16), np.ones((0, 3, 2, 2), np.float16)
        assert Pooling(mode).output_shape(x.shape) == y.shape
        assert_same(Pooling(mode).forward(x), y)
        assert_same(Pooling(mode).backward(y, x, y), x)
    assert_refused(lambda: Pooling().forward(x[:, :0]), ValueError, "x must have sizes of 1...; got shape (0, 0, 5, 5)")
