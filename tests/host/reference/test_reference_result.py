"""The last steps of the reference: alpha, beta, bias, activation, dtypes, one rounding."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ACTIVATIONS as TEXTBOOK

from cudnnpy.reference import Convolution, ConvolutionTranspose, sigmoid
from cudnnpy.reference._arrays import rounded

BFLOAT16, E4M3, E5M2 = (np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
NARROW = [np.dtype(np.float16), BFLOAT16, E4M3, E5M2]
FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]

ACTIVATIONS: tuple[str | None, ...] = (None, "identity", "relu", "sigmoid", "tanh", "elu", "swish")


@functools.cache
def finite_values(dtype: np.dtype[Any]) -> np.ndarray:
    """Every finite value of an 8 or 16 bit dtype, ascending, as float64; one zero."""
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        values = bits.view(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)] + 0.0)


def nearest(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The nearest values of a dtype by search among all of them; of two as near, that with an even last bit."""
    table = finite_values(dtype)
    above = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    even = low.astype(dtype).view(f"u{dtype.itemsize}") % 2 == 0
    to_low, to_high = values - low, high - values  # exact: the values drawn below are near the table's
    return np.where((to_low < to_high) | ((to_low == to_high) & even), low, high)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_rounding_is_to_nearest_even(dtype: np.dtype[Any], data: st.DataObject) -> None:
    """On ties, beside ties by a hair that float32 cannot hold, and on the dtype's own values."""
    table = finite_values(dtype)
    at = data.draw(st.integers(0, len(table) - 2))
    middle = (table[at] + table[at + 1]) / 2
    gap = table[at + 1] - table[at]
    hair = data.draw(st.sampled_from([0.0, 2.0**-30, 2.0**-40, 0.125, 0.4999])) * gap
    values = np.array([middle - hair, middle + hair, table[at], middle])
    result = rounded(values, dtype)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.astype(np.float64), nearest(values, dtype))
    np.testing.assert_array_equal(np.signbit(result.astype(np.float64)), np.signbit(values))


def test_rounding_of_the_largest_and_of_no_numbers() -> None:
    special = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, -1e-300, 0.0, -0.0])
    with np.errstate(all="ignore"):
        for dtype, most in ((np.dtype(np.float16), np.inf), (BFLOAT16, np.inf), (E5M2, 57344), (E4M3, 448)):
            result = rounded(special, dtype).astype(np.float64)
            np.testing.assert_array_equal(result, [most, -most, np.nan, most, -most, 0, 0, 0, 0])
            np.testing.assert_array_equal(np.signbit(result[[5, 6, 7, 8]]), [False, True, False, True])
    largest = float(ml_dtypes.finfo(BFLOAT16).max)
    assert rounded(np.array([largest * (1 + 2.0**-10)]), BFLOAT16).astype(float) == largest
    assert rounded(np.array([3e38]), BFLOAT16).astype(float) == pytest.approx(3e38, rel=2**-8)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("kind", [Convolution, ConvolutionTranspose])
def test_narrow_floats_are_summed_exactly_and_rounded_once(dtype: np.dtype[Any], kind: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (2, 4, 7, 6)).astype(dtype)
    w = rng.uniform(-0.5, 0.5, (4, 4, 3, 3)).astype(dtype)
    op = kind(padding=1)
    if kind is ConvolutionTranspose and dtype.itemsize == 1:  # as on a device, whose gradients take no float8
        with pytest.raises(TypeError, match=f"must be float16.*; got {dtype.name}, which only forward supports"):
            op.forward(x, w)
        return
    exact = op.forward(x.astype(np.float64), w.astype(np.float64))
    y = op.forward(x, w)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float64), nearest(exact, dtype))
    if dtype.itemsize == 1:
        return
    y64, x64, w64 = y.astype(np.float64), x.astype(np.float64), w.astype(np.float64)
    dx, dw = op.backward_data(y, w, x.shape), op.backward_filter(y, x, w.shape)
    db = op.backward_bias(y)
    assert dx.dtype == dw.dtype == db.dtype == dtype
    np.testing.assert_array_equal(dx.astype(np.float64), nearest(op.backward_data(y64, w64, x.shape), dtype))
    np.testing.assert_array_equal(dw.astype(np.float64), nearest(op.backward_filter(y64, x64, w.shape), dtype))
    np.testing.assert_array_equal(db.astype(np.float64), nearest(op.backward_bias(y64), dtype))


def test_a_sum_that_float16_and_float32_would_lose() -> None:
    x = np.array([2048.0, 1.0, 1.0, -2048.0], np.float16).reshape(1, 1, 4)
    assert Convolution().forward(x, np.ones((1, 1, 4), np.float16)) == 2
    x = np.array([2.0**24, 1.0, 1.0, -(2.0**24)], np.float32).reshape(1, 1, 4)
    assert Convolution().forward(x, np.ones((1, 1, 4), np.float32)) == 2


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(["int32", "float32", "int8"]))
def test_int8_is_exact_and_saturates(seed: int, channels: int, result: str) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (2, channels, 9), np.int8)
    w = rng.integers(-128, 128, (3, channels, 4), np.int8)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), 4, axis=2)
    exact = np.einsum("ncpt,kct->nkp", windows, w.astype(np.int64))
    conv = Convolution()
    default = conv.forward(x, w)
    assert default.dtype == np.int32
    np.testing.assert_array_equal(default, exact)
    out = np.zeros(exact.shape, result)
    assert conv.forward(x, w, out=out) is out
    np.testing.assert_array_equal(out, np.clip(exact, -128, 127) if result == "int8" else exact)
    bias = np.full(3, 1, np.int32) if result == "int32" else np.full(3, 0.25, np.float32)
    conv.forward(x, w, bias=bias, activation="relu", out=out, alpha=2.0**-9)
    halves = np.maximum(exact * 2.0**-9 + float(bias[0]), 0)
    expected = halves if result == "float32" else np.rint(halves)
    np.testing.assert_array_equal(out, np.clip(expected, -128, 127) if result == "int8" else expected)


def test_int8_sum_beyond_int32_saturates() -> None:
    x = np.full((1, 1, 1 << 18), -128, np.int8)
    assert Convolution().forward(x, x) == 2**31 - 1


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from([Convolution, ConvolutionTranspose]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    alpha=st.floats(-3, 3),
    beta=st.one_of(st.just(0.0), st.floats(-3, 3)),
    with_bias=st.booleans(),
    activation=st.sampled_from(list(ACTIVATIONS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_forward_composes_as_written(
    kind: Any, layout: str, alpha: float, beta: float, with_bias: bool, activation: str | None, seed: int
) -> None:
    """out = activation(alpha * product + beta * out + bias), with the textbook's activations."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((2, 6, 5, 6)), rng.standard_normal((6, 3, 2, 6))
    if layout == "NHWC":
        w = rng.standard_normal((6, 3, 2, 3))
    op = kind(padding=1, groups=2, layout=layout)
    product = op.forward(x, w)
    bias = rng.standard_normal(product.shape[1 if layout == "NCHW" else -1]) if with_bias else None
    before = rng.standard_normal(product.shape)
    out = before.copy() if beta else np.full(product.shape, np.nan)  # with beta 0, out must not be read
    expected = alpha * product + (beta * before if beta else 0)
    if bias is not None:
        expected = expected + (bias[:, None, None] if layout == "NCHW" else bias)
    expected = TEXTBOOK[activation or "identity"](expected, 1.0)
    assert op.forward(x, w, bias, activation, out, alpha, beta, stream=object()) is out
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=100)
@given(
    kind=st.sampled_from([Convolution, ConvolutionTranspose]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    alpha=st.floats(-3, 3),
    beta=st.one_of(st.just(0.0), st.floats(-3, 3)),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_accumulate(kind: Any, layout: str, alpha: float, beta: float, dtype: Any, seed: int) -> None:
    """alpha * gradient + beta * out in float64, rounded once."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((2, 4, 5, 4)).astype(dtype), rng.standard_normal((4, 4, 2, 4)).astype(dtype)
    op = kind(padding=1, layout=layout)
    dy = rng.standard_normal(op.output_shape(x.shape, w.shape)).astype(dtype)
    x64, w64, dy64 = x.astype(np.float64), w.astype(np.float64), dy.astype(np.float64)
    for gradient, call in [
        (op.backward_data(dy64, w64, x.shape), lambda **out: op.backward_data(dy, w, x.shape, **out)),
        (op.backward_filter(dy64, x64, w.shape), lambda **out: op.backward_filter(dy, x, w.shape, **out)),
        (op.backward_bias(dy64), lambda **out: op.backward_bias(dy, **out)),
    ]:
        before = rng.standard_normal(gradient.shape).astype(dtype)
        out = before.copy() if beta else np.full(gradient.shape, np.nan, dtype)
        expected = alpha * gradient + (beta * before.astype(np.float64) if beta else 0)
        assert call(out=out, alpha=alpha, beta=beta) is out
        np.testing.assert_array_equal(out.astype(np.float64), rounded(expected, dtype).astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_out_may_be_a_strided_part(dtype: np.dtype[Any]) -> None:
    """Channels beside those that are read, as in a concatenation; nothing around out changes."""
    whole = np.arange(2 * 5 * 12, dtype=np.float64).astype(dtype).reshape(2, 5, 12)
    kept = whole.copy()
    x, out = whole[:, :3], whole[:, 3:, ::2]
    w = np.ones((2, 3, 2), dtype)
    conv = Convolution(stride=2)
    expected = conv.forward(x.copy(), w)
    conv.forward(x, w, out=out)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(whole[:, :3], kept[:, :3])
    np.testing.assert_array_equal(whole[:, 3:, 1::2], kept[:, 3:, 1::2])


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(-3, 3), st.floats(-3, 3))
def test_sigmoid(values: list[float], alpha: float, beta: float) -> None:
    x = np.array(values)
    plain = sigmoid(x)
    np.testing.assert_allclose(plain, scipy.special.expit(x), rtol=1e-14, atol=0)
    assert ((plain >= 0) & (plain <= 1)).all()
    out = np.arange(len(values), dtype=np.float64)
    assert sigmoid(x, out, alpha, beta) is out
    np.testing.assert_allclose(out, alpha * plain + beta * np.arange(len(values)), rtol=1e-12, atol=1e-12)
    in_place = x.copy()
    assert sigmoid(in_place, in_place) is in_place
    np.testing.assert_array_equal(in_place, plain)


def test_sigmoid_keeps_small_values_and_dtypes() -> None:
    assert sigmoid(np.array([-700.0])) == pytest.approx(np.exp(-700.0), rel=1e-12)
    for dtype in FLOATS:
        y = sigmoid(np.array([[-1.0, 0.0, 4.0]], dtype))
        assert y.dtype == dtype
        assert y.shape == (1, 3)
        exact = 1 / (1 + np.exp(-np.array([[-1.0, 0.0, 4.0]])))
        np.testing.assert_array_equal(y, rounded(exact, dtype))
    np.testing.assert_array_equal(sigmoid(np.array([np.nan, np.inf, -np.inf], np.float32)), [np.nan, 1, 0])


def test_needs_numpy_alone() -> None:
    """With ml_dtypes and every GPU package out of reach, float32 runs; libcudnn is not loaded."""
    program = """
import sys
for name in ("ml_dtypes", "torch", "scipy", "cuda", "cupy"):
    sys.modules[name] = None
import numpy as np
from cudnnpy.reference import Convolution, ConvolutionTranspose, sigmoid
x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((2, 2, 3, 3), np.float32)
y = Convolution(padding=1).forward(x, w, activation="swish")
print(float(ConvolutionTranspose().forward(sigmoid(y), w).sum()) > 0)
print("libcudnn" not in open("/proc/self/maps").read())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")
