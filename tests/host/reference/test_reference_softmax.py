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
    BAD_ARRAYS,
    INF,
    MEMORY,
    NAN,
    assert_close,
    assert_refused,
    bad_outs,
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


X = np.ones((2, 3, 5, 5), np.float32)


@pytest.mark.parametrize(("array", "error", "message"), [bad[1:] for bad in BAD_ARRAYS], ids=[b[0] for b in BAD_ARRAYS])
def test_bad_array(array: Any, error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Softmax().forward(array, out=out), error, "x" + message)
    assert_refused(lambda: Softmax().backward(array, X, out=out), error, "dy" + message)
    assert_refused(lambda: Softmax().backward(X, array, out=out), (TypeError, ValueError), "y")
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("softmax", "shape", "message"),
    [
        (Softmax(), (3,), "x must have 2, 3, 4 or 5 axes; got shape (3,)"),
        (Softmax(layout="NCW"), (3, 4), "layout must have 2 axes, as x; got 'NCW'"),
        (Softmax(layout="NDHWC"), (3, 4, 5, 6), "layout must have 4 axes, as x; got 'NDHWC'"),
    ],
)
def test_bad_rank(softmax: Softmax, shape: tuple[int, ...], message: str) -> None:
    x = np.ones(shape)
    assert_refused(lambda: softmax.forward(x), ValueError, message)
    assert_refused(
        lambda: softmax.backward(x, x), ValueError, message.replace("x must", "dy must").replace("as x", "as dy")
    )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"y": X.astype(np.float64)}, TypeError, "y must be float32, as dy...; got float64"),
        ({"y": X[:1]}, ValueError, "y must have shape (2, 3, 5, 5), as dy...; got shape (1, 3, 5, 5)"),
        ({"alpha": "1"}, TypeError, "alpha must be a finite number; got '1'"),
        ({"beta": None}, TypeError, "beta must be a finite number; got None"),
    ],
)
def test_bad_argument(given: dict[str, Any], error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Softmax().backward(**{"dy": X, "y": X, "out": out} | given), error, message)
    if "y" not in given:
        assert_refused(lambda: Softmax().forward(X, out=out, **given), error, message)
    assert (out == 7).all()


@pytest.mark.parametrize(("out", "error", "message"), [bad[1:] for bad in bad_outs(X.shape)])
def test_bad_out(out: Any, error: type[Exception], message: str) -> None:
    assert_refused(lambda: Softmax().forward(X, out=out), error, message)
    assert_refused(lambda: Softmax().backward(X, X, out=out), error, message)
