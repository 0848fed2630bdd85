"""The reference's local response normalization against the textbook's with autograd."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import local_response, value_and_pullback
from reference_checks import (
    BAD_ARRAYS,
    FLOATS,
    INF,
    MEMORY,
    NAN,
    assert_close,
    assert_refused,
    assert_same,
    bad_outs,
    check_scales,
    dtypes,
    normal_numbers,
    scales,
    seeds,
    shapes,
)

from cudnnpy.reference import LocalResponseNormalization as Normalization

LAYOUTS = {"NCHW": (3, 4, 5), "NHWC": (3, 4, 5), "NCW": (3,), "NWC": (3,), "NCDHW": (5,), "NDHWC": (5,)}
memories = st.sampled_from(MEMORY)
normalizations = st.builds(
    Normalization,
    st.integers(1, 16),
    alpha=st.floats(1e-4, 3),
    beta=st.floats(0.01, 3),
    k=st.floats(0.1, 3),
    layout=st.sampled_from(list(LAYOUTS)),
)


def shape_for(draw: st.DataObject, normalization: Normalization) -> tuple[int, ...]:
    return draw.draw(shapes(LAYOUTS[normalization.layout], normalization.layout, 4))


def textbook(norm: Normalization, x: Any) -> Any:
    channel = x.ndim - 1 if norm.layout.endswith("C") else 1
    y = local_response(anp.moveaxis(x, channel, 1), norm.size, norm.alpha, norm.beta, norm.k)
    return anp.moveaxis(y, 1, channel)


@settings(deadline=None, max_examples=300)
@given(normalizations, st.data(), seeds, memories)
def test_forward_and_gradient_match_the_textbook(norm: Normalization, data: Any, seed: int, memory: str) -> None:
    shape = shape_for(data, norm)
    x, dy = normal_numbers(seed, shape, memory=memory), normal_numbers(seed + 1, shape, memory=memory)
    expected, gradients = value_and_pullback(lambda x: textbook(norm, x), x)
    y = norm.forward(x)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-11)
    (dx,) = gradients(dy)
    np.testing.assert_allclose(norm.backward(dy, x, y), dx, rtol=1e-9, atol=1e-9 * np.abs(dy).max())


@settings(deadline=None, max_examples=150)
@given(normalizations, st.data(), seeds, dtypes, memories, scales, scales)
def test_scales_dtypes_and_out(
    norm: Normalization, data: Any, seed: int, dtype: Any, memory: str, alpha: float, beta: float
) -> None:
    shape = shape_for(data, norm)
    x, dy, y = (normal_numbers(seed + i, shape, dtype, memory) for i in range(3))
    check_scales(norm.forward, [x], alpha, beta, memory)
    check_scales(norm.backward, [dy, x, y], alpha, beta, memory)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 16), st.floats(-1, 1), st.floats(0.01, 3), seeds)
def test_gradient_is_a_difference(size: int, alpha: float, beta: float, seed: int) -> None:
    norm = Normalization(size, alpha=alpha, beta=beta, k=10.0)
    x, dy, h = normal_numbers(seed, (1, 7, 1, 1)), normal_numbers(seed + 1, (1, 7, 1, 1)), 1e-5
    dx = norm.backward(dy, x, np.full_like(x, NAN))  # y is not read
    for channel in range(7):
        step = np.zeros_like(x)
        step[0, channel] = h
        difference = np.vdot(norm.forward(x + step) - norm.forward(x - step), dy) / (2 * h)
        assert dx[0, channel, 0, 0] == pytest.approx(difference, abs=1e-8)


@pytest.mark.parametrize("size", range(1, 17))
@pytest.mark.parametrize("channels", [1, 2, 5, 40])
def test_the_window_channel_by_channel(size: int, channels: int) -> None:
    x = normal_numbers(0, (1, channels, 1, 1))
    y = Normalization(size, alpha=2.0, beta=0.5, k=1.0).forward(x)[0, :, 0, 0]
    squares = x[0, :, 0, 0] ** 2
    for c in range(channels):
        near = squares[max(0, c - (size - 1) // 2) : c + size // 2 + 1]
        assert y[c] == pytest.approx(x[0, c, 0, 0] / np.sqrt(1 + 2 / size * near.sum()), rel=1e-13)


def test_layouts_agree() -> None:
    x = normal_numbers(0, (2, 7, 3, 4))
    y = Normalization(layout="NHWC").forward(np.moveaxis(x, 1, -1))
    assert_close(np.moveaxis(y, -1, 1), Normalization().forward(x))


def test_no_numbers_and_infinities() -> None:
    x = np.ones((1, 8, 1, 2))
    x[0, 2, 0, 0], x[0, 2, 0, 1] = NAN, INF
    y = Normalization(3).forward(x)
    plain = Normalization(3).forward(np.ones((1, 8, 1, 1)))[0, :, 0, 0]
    np.testing.assert_array_equal(y[0, :, 0, 0], [plain[0], NAN, NAN, NAN, *plain[4:]])
    np.testing.assert_array_equal(y[0, :, 0, 1], [plain[0], 0, NAN, 0, *plain[4:]])
    assert np.isnan(Normalization(1, alpha=-3.0, beta=0.5, k=2.0).forward(np.ones((1, 1, 1, 1)))).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (2, 0, 4, 5, 6)])
def test_no_elements(shape: tuple[int, ...], dtype: Any) -> None:
    """As torch has it: the results have none either."""
    x = np.ones(shape, dtype)
    for layout in ("NCHW", "NHWC"):
        norm = Normalization(layout=layout)
        for out in (None, np.empty(shape, dtype)):
            beta = 0.0 if out is None else 1.0
            for result in (norm.forward(x, out, 2.0, beta), norm.backward(x, x, x, out, 2.0, beta)):
                assert_same(result, x)
                assert result is out or out is None


def test_one_element() -> None:
    for rank in (3, 4, 5):
        x = np.full((1,) * rank, 2.0)
        assert_same(Normalization(4, alpha=1.0, beta=1.0, k=1.0).forward(x), np.ones_like(x))
        assert (
            Normalization(4, alpha=1.0, beta=1.0, k=1.0).backward(x, x, x).item() == 0
        )  # y = x / (1 + x * x / 4) peaks at 2


def test_options() -> None:
    assert Normalization() == Normalization(5, alpha=1e-4, beta=0.75, k=2.0, layout="NCHW")
    assert hash(Normalization(k=1)) == hash(Normalization(k=1.0)) != hash(Normalization())
    with pytest.raises(AttributeError):
        Normalization().size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be an integer of 1 to 16; got 0"),
        ({"size": 17}, ValueError, "size must be an integer of 1 to 16; got 17"),
        ({"size": 5.0}, TypeError, "size must be an int...; got 5.0"),
        ({"alpha": "1"}, TypeError, "alpha must be a finite number...; got '1'"),
        ({"alpha": NAN}, ValueError, "alpha must be a finite number...; got nan"),
        ({"beta": 0.009}, ValueError, "beta must be a finite number of 0.01 or more; got 0.009"),
        ({"beta": INF}, ValueError, "beta must be a finite number...; got inf"),
        ({"beta": None}, TypeError, "beta must be a finite number...; got None"),
        ({"k": 0}, ValueError, "k must be a finite number of 1e-05 or more; got 0"),
        ({"k": NAN}, ValueError, "k must be a finite number...; got nan"),
        ({"k": True}, TypeError, "k must be a finite number...; got True"),
        ({"layout": "CHW"}, ValueError, "layout must be one of 'NCW', 'NCHW', 'NCDHW', 'NWC', 'NHWC'...; got 'CHW'"),
        ({"alpha": -INF}, ValueError, "alpha must be a finite number...; got -inf"),
        ({"k": INF}, ValueError, "k must be a finite number...; got inf"),
        ({"layout": None}, TypeError, "layout must be one of 'NCW', 'NCHW', 'NCDHW', 'NWC', 'NHWC', 'NDHWC'; got None"),
    ],
)
def test_bad_option(options: dict[str, Any], error: type[Exception], message: str) -> None:
    assert_refused(lambda: Normalization(**options), error, message)


def test_smallest_options() -> None:
    norm = Normalization(16, alpha=-1.0, beta=0.01, k=1e-5)
    assert (norm.size, norm.alpha, norm.beta, norm.k) == (16, -1.0, 0.01, 1e-5)


X = np.ones((2, 3, 5, 5), np.float32)


WRONG = [bad for bad in BAD_ARRAYS if bad[0] != "empty"]


@pytest.mark.parametrize(("array", "error", "message"), [bad[1:] for bad in WRONG], ids=[bad[0] for bad in WRONG])
def test_bad_array(array: Any, error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Normalization().forward(array, out=out), error, "x" + message)
    assert_refused(lambda: Normalization().backward(array, X, X, out=out), error, "dy" + message)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"x": None}, TypeError, "x must be a numpy.ndarray; got a builtins.NoneType"),
        ({"y": None}, TypeError, "y must be a numpy.ndarray; got a builtins.NoneType"),
        ({"x": X.astype(np.float16)}, TypeError, "x must be float32, as dy...; got float16"),
        ({"y": X.astype(np.float64)}, TypeError, "y must be float32, as dy...; got float64"),
        ({"x": X[:1]}, ValueError, "x must have shape (2, 3, 5, 5), as dy...; got shape (1, 3, 5, 5)"),
        ({"y": X[0]}, ValueError, "y must have shape (2, 3, 5, 5), as dy...; got shape (3, 5, 5)"),
        ({"dy": X[0, 0]}, ValueError, "dy must have 3, 4 or 5 axes; got shape (5, 5)"),
        ({"alpha": "1"}, TypeError, "alpha must be a finite number...; got '1'"),
        ({"beta": None}, TypeError, "beta must be a finite number...; got None"),
    ],
)
def test_bad_argument(given: dict[str, Any], error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Normalization().backward(**{"dy": X, "x": X, "y": X, "out": out} | given), error, message)
    if "alpha" in given or "beta" in given:
        assert_refused(lambda: Normalization().forward(X, out=out, **given), error, message)
    assert (out == 7).all()


@pytest.mark.parametrize(("out", "error", "message"), [bad[1:] for bad in bad_outs(X.shape)])
def test_bad_out(out: Any, error: type[Exception], message: str) -> None:
    assert_refused(lambda: Normalization().forward(X, out=out), error, message)
    assert_refused(lambda: Normalization().backward(X, X, X, out=out), error, message)
    assert_refused(
        lambda: Normalization(layout="NDHWC").forward(X, out=out),
        ValueError,
        "layout must have 4 axes, as x; got 'NDHWC'",
    )
