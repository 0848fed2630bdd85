"""The reference's softmax against the textbook's with autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import value_and_pullback
from reference_checks import (
    INF,
    MEMORY,
    NAN,
    assert_close,
    check_scales,
    dtypes,
    normal_numbers,
    scales,
    seeds,
    shapes,
)

from cudnnpy.reference import Softmax

ALGORITHMS, MODES = ("fast", "accurate", "log"), ("channel", "instance")
LAYOUTS = {"NCHW": (2, 3, 4, 5), "NHWC": (2, 3, 4, 5), "NCW": (3,), "NWC": (3,), "NCDHW": (5,), "NDHWC": (5,)}
memories = st.sampled_from(MEMORY)
softmaxes = st.builds(
    Softmax, st.sampled_from(ALGORITHMS), st.sampled_from(MODES), layout=st.sampled_from(list(LAYOUTS))
)


def shape_for(draw: st.DataObject, softmax: Softmax) -> tuple[int, ...]:
    return draw.draw(shapes(LAYOUTS[softmax.layout], softmax.layout, empty=True))


def axes_of(softmax: Softmax, rank: int) -> tuple[int, ...]:
    """What is summed over."""
    if softmax.mode == "instance":
        return tuple(range(1, rank))
    return (rank - 1 if softmax.layout.endswith("C") else 1,)


@settings(deadline=None, max_examples=300)
@given(softmaxes, st.data(), seeds, memories, st.sampled_from([0.1, 1, 30]))
def test_forward_and_gradient_match_the_textbook(
    softmax: Softmax, data: Any, seed: int, memory: str, size: float
) -> None:
    shape = shape_for(data, softmax)
    x, dy = size * normal_numbers(seed, shape, memory=memory), normal_numbers(seed + 1, shape, memory=memory)
    axes, log = axes_of(softmax, len(shape)), softmax.algorithm == "log"
    expected, gradients = value_and_pullback(lambda x: oracles.softmax(x, axes, log), x)
    y = softmax.forward(x)
    assert_close(y, expected)
    if x.size:
        assert_close(y, (scipy.special.log_softmax if log else scipy.special.softmax)(x, axes))
    (dx,) = gradients(dy)
    np.testing.assert_allclose(softmax.backward(dy, y), dx, rtol=1e-11, atol=1e-10)


@settings(deadline=None, max_examples=200)
@given(softmaxes, st.data(), seeds, dtypes, memories, scales, scales)
def test_scales_dtypes_and_out(
    softmax: Softmax, data: Any, seed: int, dtype: Any, memory: str, alpha: float, beta: float
) -> None:
    shape = shape_for(data, softmax)
    x, dy, y = (normal_numbers(seed + i, shape, dtype, memory) for i in range(3))
    check_scales(softmax.forward, [x], alpha, beta, memory, in_place=0)
    check_scales(softmax.backward, [dy, y], alpha, beta, memory, in_place=0)


def test_fast_is_accurate_until_it_overflows() -> None:
    x = np.array([[-700.0, 0.0, 700.0], [0.0, 1.0, 710.0]])
    np.testing.assert_array_equal(Softmax("fast").forward(x), [[0, np.exp(-700), 1], [0, 0, NAN]])
    np.testing.assert_allclose(Softmax().forward(x), [[0, np.exp(-700), 1], [0, 0, 1]], rtol=1e-12, atol=1e-300)
    x = np.array([[1e4, 1e4 - 1]])
    assert_close(Softmax().forward(x), Softmax("fast").forward(x - 1e4))
    assert_close(Softmax("log").forward(np.array([[0.0, -1e4]])), np.array([[0.0, -1e4]]))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("fast", [[NAN] * 3, [0, NAN, 0], [0, 0.5, 0.5], [NAN] * 3]),
        ("accurate", [[NAN] * 3, [NAN] * 3, [0, 0.5, 0.5], [NAN] * 3]),
        ("log", [[NAN] * 3, [NAN] * 3, [-INF, np.log(0.5), np.log(0.5)], [NAN] * 3]),
    ],
)
def test_no_numbers_and_infinities(algorithm: str, expected: list[list[float]]) -> None:
    x = np.array([[1.0, NAN, 2.0], [1.0, INF, 2.0], [-INF, 1.0, 1.0], [-INF, -INF, -INF]])
    y = Softmax(algorithm).forward(x)
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    dx = Softmax(algorithm).backward(np.array([[1.0, 2.0, 3.0]]), y[2:3])
    np.testing.assert_allclose(dx, [[1, -1, 0]] if algorithm == "log" else [[0, -0.25, 0.25]])
