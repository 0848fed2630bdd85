"""The reference's attention against loops over queries and keys, and its gradients against differences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_problems import (
    SCALES,
    Arrays,
    arguments,
    by_loops,
    drawn,
    has_dbias,
    in_float8,
    in_pages,
    in_sequences,
    out_of_pages,
    sequences,
    with_dropout,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnnpy._layers import attention as device
from cudnnpy.reference import Attention

seeds = st.integers(0, 2**32 - 1)
STEP = 1e-4


@settings(deadline=None, max_examples=100)
@given(seeds)
def test_forward_is_the_softmax_of_each_query(seed: int) -> None:
    problem = with_dropout(drawn(seed), seed) if seed % 2 else drawn(seed)
    out, statistics = Attention(**problem.options).forward(**problem.without_dout(), statistics=True)
    expected, logarithms = by_loops(problem.options, problem.arrays)
    roundoff = float(np.finfo(np.float16).eps) if out.dtype == np.float16 else 2.0**-8
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=roundoff, atol=1e-7)
    np.testing.assert_allclose(statistics, logarithms, rtol=1e-6, atol=1e-6)
    assert not out[np.broadcast_to(expected == 0, out.shape)].any()  # exactly, for queries without keys


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_float8_is_scaled_before_and_after_the_softmax(seed: int) -> None:
    problem = in_float8(drawn(seed), seed)
    made = Attention(**problem.options).forward(**arguments(problem.arrays), statistics=True)
    out, statistics, amax_s, amax_o = made
    factors = {name: float(problem.arrays[name][0]) for name in SCALES}
    values = {name: problem.arrays[name].astype(np.float64) * factors[f"descale_{name}"] for name in "qkv"}
    expected, logarithms = by_loops(problem.options, {**problem.arrays, **values})
    expected *= factors["scale_s"] * factors["descale_s"]
    np.testing.assert_allclose(statistics, logarithms, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(amax_o, [np.abs(expected).max()], rtol=1e-6)
    assert 0 <= amax_s[0] <= 1
    most = float(ml_dtypes.finfo(out.dtype).max)
    expected = np.clip(factors["scale_o"] * expected, -most, most)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=float(ml_dtypes.finfo(out.dtype).eps), atol=1e-2)


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_pages_are_the_keys_in_the_order_of_the_table(seed: int) -> None:
    problem = in_pages(drawn(seed), seed)
    out, statistics = Attention(**problem.options).forward(**problem.arrays, statistics=True)
    expected, logarithms = by_loops(problem.options, out_of_pages(problem.arrays, problem.options["layout"]))
    roundoff = float(np.finfo(np.float16).eps) if out.dtype == np.float16 else 2.0**-8
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=roundoff, atol=1e-7)
    np.testing.assert_allclose(statistics, logarithms, rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_packed_sequences_are_computed_one_by_one(seed: int) -> None:
    problem = in_sequences(drawn(seed), seed)
    arrays, options = problem.arrays, {**problem.options, "layout": "BSHD"}
    out, statistics = Attention(**options).forward(**problem.without_dout(), statistics=True)
    others = problem.others()
    gradients = Attention(**options).backward(
        *(arrays[name] for name in ("dout", "q", "k", "v")), out, statistics, **others
    )
    made = {**arrays, "out": out, "dq": gradients[0], "dk": gradients[1], "dv": gradients[2]}
    found = {name: np.zeros(made[name].shape) for name in ("out", "dq", "dk", "dv")}
    for b in range(len(statistics)):
        at = {name: sequences(name, arrays)[b] for name in ("q", "k")}
        alone = {name: made[name][at["q" if name in ("q", "dout") else "k"]][None] for name in ("q", "k", "v", "dout")}
        queries, keys = alone["q"].shape[1], alone["k"].shape[1]
        if "bias" in arrays:
            bias = arrays["bias"][b % len(arrays["bias"]) :][:1, ..., :keys]
            alone["bias"] = bias[:, :, :queries] if bias.shape[2] > 1 else bias
        dout = alone.pop("dout")
        one, of_one = Attention(**options).forward(**alone, statistics=True)
        parts = Attention(**options).backward(dout, out=one, statistics=of_one, **alone)
        for name, part in zip(found, (one, *parts), strict=True):
            found[name][at["q" if name in ("out", "dq") else "k"]] = part[0]
        np.testing.assert_allclose(statistics[b, :, :queries, 0], of_one[0, ..., 0], rtol=1e-6)
        assert np.isneginf(statistics[b, :, queries:]).all()
    for name, right in found.items():  # backward takes a rounded out
        np.testing.assert_allclose(made[name].astype(np.float64), right, atol=2e-2, err_msg=name)


def test_numbers_that_are_no_pages_are_named() -> None:
    q, k = np.ones((1, 1, 4, 8), np.float16), np.ones((1, 1, 128, 8), np.float16)
    lengths = np.ones(1, np.int32)
    for number in (-1, 1):
        table = np.full((1, 1, 1, 1), number, np.int32)
        with pytest.raises(ValueError, match=f"^page_table must have numbers of the 1 pages; got {number} to {number}"):
            Attention().forward(q, k, k, lengths_kv=lengths, page_table=table)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays in float64, so that differences are exact enough."""
    monkeypatch.setattr(device, "DTYPES", ("float64",))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("seed", range(40))
def test_gradients_are_differences(seed: int) -> None:
    problem = drawn(seed, "float64", (1, 2, 5, 7))
    problem = with_dropout(problem, seed) if seed % 2 else problem
    arrays = problem.arrays
    if "bias" in arrays:
        arrays["bias"] = arrays["bias"].astype(np.float64)
    attention, has_bias = Attention(**problem.options), has_dbias(problem)
    out, statistics = attention.forward(**problem.without_dout(), statistics=True)
    given = (arrays[name] for name in ("dout", "q", "k", "v"))
    gradients = attention.backward(*given, out, statistics, **problem.others(), dbias=has_bias)
    random = np.random.default_rng(seed)
    for name, gradient in zip(("q", "k", "v", *(("bias",) if has_bias else ())), gradients, strict=True):
        assert np.isfinite(gradient).all()
        for index in random.permutation(gradient.size)[:6]:
            expected = difference(problem.options, arrays, name, int(index))
            np.testing.assert_allclose(gradient.flat[index], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def difference(options: dict[str, Any], arrays: Arrays, name: str, index: int) -> float:
    """The change of the sum of dout * out with one element."""
    found = []
    for step in (STEP, -STEP):
        moved = arrays[name].copy()
        moved.flat[index] += step
        found.append(float((by_loops(options, {**arrays, name: moved})[0] * arrays["dout"]).sum()))
    return (found[0] - found[1]) / (2 * STEP)


def test_a_query_without_keys_gives_zeros_and_leaves_others_alone() -> None:
    q = np.ones((1, 1, 4, 8), np.float16)
    k = v = np.ones((1, 1, 2, 8), np.float16)
    attention = Attention(causal="bottom_right")  # queries 0 and 1 have no key
    out, statistics = attention.forward(q, k, v, statistics=True)
    assert out[0, 0, :, 0].tolist() == [0, 0, 1, 1]
    assert statistics[0, 0, :2, 0].tolist() == [-np.inf] * 2
    dq, _, dv = attention.backward(np.ones_like(out), q, k, v, out, statistics)
    assert not dq[0, 0, :2].any()
    assert dv.sum() == 2 * 8


def test_a_bias_of_minus_infinity_masks_and_a_large_one_does_not() -> None:
    x = np.ones((1, 1, 2, 8), np.float16)
    v = np.stack([np.zeros((1, 1, 8)), np.ones((1, 1, 8))], 2).astype(np.float16)
    for bias, expected in (([-np.inf, 0], 1), ([-np.inf, -np.inf], 0), ([-1e9, -1e9], 0.5), ([-3e38, -3e38], 0)):
        out = Attention().forward(x, x, v, np.array(bias, np.float32).reshape(1, 1, 1, 2))
        assert (out == expected).all(), bias


def test_nan_stays() -> None:
    q = np.ones((1, 1, 2, 8), np.float16)
    q[0, 0, 0] = np.nan
    bias = np.zeros((1, 1, 2, 2), np.float16)
    out = Attention().forward(q, q, np.ones_like(q), bias)
    assert np.isnan(out[0, 0, 0]).all()


def test_arrays_for_the_results_are_written() -> None:
    q, k = np.ones((1, 2, 4, 8), np.float16), np.ones((1, 1, 4, 8), np.float16)
    out, statistics = np.empty_like(q), np.empty((1, 2, 4, 1), np.float32)
    found = Attention().forward(q, k, k, out=out, statistics=statistics)
    assert found[0] is out
    assert found[1] is statistics
    made = Attention().forward(q, k, k, statistics=True)
    np.testing.assert_array_equal(out, made[0])
    np.testing.assert_array_equal(statistics, made[1])
    results = [np.empty_like(q), np.empty_like(k), np.empty_like(k)]
    found = Attention().backward(q, q, k, k, out, statistics, *[None] * 3, *results)
    assert all(one is other for one, other in zip(found, results, strict=True))
    with pytest.raises(ValueError, match=r"^dk must not overlap k in memory"):
        Attention().backward(q, q, k, k, out, statistics, dk=k)


def test_results_are_checked_before_one_is_written() -> None:
    q, dq, bias = (
        np.ones((1, 1, 4, 8), np.float16),
        np.zeros((1, 1, 4, 8), np.float16),
        np.ones((1, 1, 4, 4), np.float16),
    )
    out, statistics = Attention().forward(q, q, q, bias, statistics=True)
    with pytest.raises(ValueError, match=r"^dbias must have shape \(1, 1, 4, 4\); got shape \(4,\)"):
        Attention().backward(q, q, q, q, out, statistics, bias, dq=dq, dbias=np.zeros(4, np.float16))
    assert not dq.any()
    with pytest.raises(ValueError, match=r"^dbias must not overlap dq in memory"):
        Attention().backward(q, q, q, q, out, statistics, bias, dq=dq, dbias=dq[..., :4])


@pytest.mark.parametrize(("batch", "heads"), [(0, 1), (1, 0)])
def test_pages_without_a_sequence_or_a_head_give_an_empty_result(batch: int, heads: int) -> None:
    q, pages = np.ones((batch, heads, 4, 8), np.float16), np.ones((3, heads, 128, 8), np.float16)
    lengths, table = np.ones(batch, np.int32), np.zeros((batch, 1, 1, 1), np.int32)
    out = Attention().forward(q, pages, pages, lengths_kv=lengths, page_table=table)
    assert out.shape == q.shape


def test_an_array_for_a_number_is_named_by_its_shape() -> None:
    q = np.ones((1, 1, 4, 8), np.float16)
    with pytest.raises(
        ValueError, match=r"^max_length_q must be None .*; got an array \(numpy.ndarray of shape \(2, 2\)\)$"
    ):
        Attention().forward(q, q, q, max_length_q=np.ones((2, 2), np.int32))  # type: ignore[arg-type]
