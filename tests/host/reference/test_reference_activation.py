"""The reference's activations against the textbook's with autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ACTIVATIONS as TEXTBOOK
from oracles import value_and_pullback
from reference_checks import (
    INF,
    MEMORY,
    NAN,
    assert_close,
    assert_same,
    check_scales,
    dtypes,
    normal_numbers,
    scales,
    seeds,
    shapes,
)

from cudnnpy.reference import Activation, sigmoid
from cudnnpy.reference.activation import ACTIVATIONS

modes = st.sampled_from(list(TEXTBOOK))
coefficients = st.floats(0.1, 3)
memories = st.sampled_from(MEMORY)
ranks = (1, 2, 3, 4, 5)


@settings(deadline=None, max_examples=300)
@given(modes, coefficients, shapes(ranks, empty=True), seeds, memories)
def test_forward_and_gradient_match_the_textbook(mode: str, c: float, shape: Any, seed: int, memory: str) -> None:
    act = Activation(mode, c)
    x, dy = 3 * normal_numbers(seed, shape, memory=memory), normal_numbers(seed + 1, shape, memory=memory)
    expected, gradients = value_and_pullback(lambda x: TEXTBOOK[mode](x, c), x)
    y = act.forward(x)
    assert_close(y, expected)
    (dx,) = gradients(dy)
    assert_close(act.backward(dy, x, y), dx)


@settings(deadline=None, max_examples=200)
@given(modes, coefficients, shapes(ranks, empty=True), seeds, dtypes, memories, scales, scales)
def test_scales_dtypes_and_out(
    mode: str, c: float, shape: Any, seed: int, dtype: Any, memory: str, alpha: float, beta: float
) -> None:
    act = Activation(mode, c)
    x, dy, y = (normal_numbers(seed + i, shape, dtype, memory) for i in range(3))
    check_scales(act.forward, [x], alpha, beta, memory, in_place=0)
    check_scales(act.backward, [dy, x, y], alpha, beta, memory, in_place=0)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["sigmoid", "tanh", "relu", "clipped_relu"]), coefficients, shapes(ranks, empty=True), seeds, dtypes
)
def test_the_gradient_after_a_forward_in_place(mode: str, c: float, shape: Any, seed: int, dtype: Any) -> None:
    act = Activation(mode, float(np.asarray(c, dtype)))  # so that y is the ceiling, or below it
    x, dy = normal_numbers(seed, shape, dtype), normal_numbers(seed + 1, shape, dtype)
    expected = act.backward(dy, x, act.forward(x))
    y = act.forward(x, out=x)
    assert_same(act.backward(dy, y, y, out=dy), expected)


@pytest.mark.parametrize(
    ("mode", "y", "dx"),
    [
        ("sigmoid", [NAN, 1, 0], [NAN, 0, 0]),
        ("relu", [NAN, INF, 0], [0, 1, 0]),
        ("tanh", [NAN, 1, -1], [NAN, 0, 0]),
        ("clipped_relu", [NAN, 3, 0], [0, 0, 0]),
        ("elu", [NAN, INF, -3], [NAN, 1, 0]),
        ("identity", [NAN, INF, -INF], [1, 1, 1]),
        ("swish", [NAN, INF, NAN], [NAN, NAN, NAN]),
    ],
)
def test_no_numbers_and_infinities(mode: str, y: list[float], dx: list[float]) -> None:
    act, x = Activation(mode, 3), np.array([NAN, INF, -INF])
    np.testing.assert_array_equal(act.forward(x), y)
    np.testing.assert_array_equal(act.backward(np.ones(3), x, act.forward(x)), dx)


def test_else_0_is_0_whatever_dy_is() -> None:
    dy, x = np.array([NAN, INF, -INF, NAN]), np.array([-1.0, -1.0, -1.0, 1.0])
    np.testing.assert_array_equal(Activation("relu").backward(dy, x, x), [0, 0, 0, NAN])
    np.testing.assert_array_equal(Activation("clipped_relu").backward(dy, x, x), [0, 0, 0, 0])


@pytest.mark.parametrize("at", [800.0, 1e4, 1e300])
def test_large_values_overflow_nothing(at: float) -> None:
    x, one = np.array([-at, at]), np.ones(2)
    np.testing.assert_array_equal(Activation("sigmoid").forward(x), [0, 1])
    np.testing.assert_array_equal(Activation("elu", 2).forward(x), [-2, at])
    np.testing.assert_array_equal(Activation("swish").forward(x), [0, at])
    np.testing.assert_array_equal(Activation("swish").backward(one, x, x), [0, 1])
    np.testing.assert_array_equal(Activation("elu").backward(one, x, x), [0, 1])


def test_agrees_with_the_sigmoid_and_a_convolutions_activations() -> None:
    x = normal_numbers(0, (100,))
    assert_same(Activation("sigmoid").forward(x), sigmoid(x))
    for name in ACTIVATIONS:
        assert_same(Activation(name).forward(x), ACTIVATIONS[name](x))
