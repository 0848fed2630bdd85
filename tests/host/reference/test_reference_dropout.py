"""The reference's dropout: the share of elements that it drops, and that the gradient has the same mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_checks import (
    BAD_ARRAYS,
    INF,
    MEMORY,
    NAN,
    assert_refused,
    assert_same,
    bad_outs,
    check_overlap,
    dtypes,
    in_memory_order,
    normal_numbers,
    seeds,
    shapes,
)

from cudnnpy.reference import Dropout
from cudnnpy.reference._arrays import rounded

ranks = (1, 2, 3, 4, 5)
probabilities = st.one_of(st.sampled_from([0.0, 0.5, 0.999]), st.floats(0, 0.999))


@settings(deadline=None, max_examples=200)
@given(probabilities, seeds, shapes(ranks, empty=True), seeds, dtypes, st.sampled_from(MEMORY))
def test_forward_and_gradient_share_a_mask(
    probability: float, seed: int, shape: Any, data: int, dtype: Any, memory: str
) -> None:
    drop = Dropout(probability, seed)
    x, dy = normal_numbers(data, shape, dtype, memory), normal_numbers(data + 1, shape, dtype, memory)
    kept_x, kept_dy = x.copy(), dy.copy()
    y, reserve = drop.forward(x)
    mask = y != 0
    larger = 1 / (1 - probability)
    np.testing.assert_array_equal(mask, np.unpackbits(reserve, count=x.size).reshape(shape))
    assert_same(y, rounded(np.where(mask, x.astype(np.float64) / (1 - probability), 0), dtype))
    np.testing.assert_allclose(
        y.astype(np.float64),
        x.astype(np.float64) * mask * larger,
        rtol={2: 2**-8, 4: 2**-23, 8: 2**-51}[dtype.itemsize],
    )
    remembered = reserve.copy()
    for _ in range(2):
        dx = drop.backward(dy, reserve)
        assert_same(dx, rounded(np.where(mask, dy.astype(np.float64) / (1 - probability), 0), dtype))
        assert dx.flags.c_contiguous
    assert_same(reserve, remembered)
    assert_same(x, kept_x)
    assert_same(dy, kept_dy)

    out = in_memory_order(np.full(shape, NAN, dtype), memory)
    given_out, again = Dropout(probability, seed).forward(x, out, stream=object())
    assert given_out is out
    assert_same(out, y)
    assert_same(again, reserve)
    assert drop.backward(dy, reserve, out, stream=object()) is out
    assert_same(out, dx)
    check_overlap(lambda x, out: drop.forward(x, out)[0], [x], shape)
    check_overlap(lambda dy, out: drop.backward(dy, reserve, out), [dy], shape)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_was_asked(probability: float) -> None:
    """Within five standard deviations, and the mean stays; neighbours and channels know nothing of each other."""
    x = np.ones((10, 10, 100, 100), np.float32)
    y, reserve = Dropout(probability, 3).forward(x)
    deviation = np.sqrt(probability * (1 - probability) / x.size)
    assert abs((y == 0).mean() - probability) <= 5 * deviation
    assert y.mean(dtype=np.float64) == pytest.approx(1, abs=5 * deviation / (1 - probability) + 1e-6)
    assert reserve.dtype == np.uint8
    assert reserve.shape == (x.size // 8,)
    if probability:
        centred = (y == 0) - probability
        for axis in range(4):
            shifted = centred.take(range(1, x.shape[axis]), axis) * centred.take(range(x.shape[axis] - 1), axis)
            assert abs(shifted.mean()) <= 5 * probability * (1 - probability) / np.sqrt(shifted.size)


def test_the_same_seed_and_calls_give_the_same_masks() -> None:
    x, other = np.ones((100,)), np.ones((3, 5))
    first, second = Dropout(0.5, 7), Dropout(0.5, 7)
    masks = []
    for array in (x, other, x):
        (y, reserve), (y_again, reserve_again) = first.forward(array), second.forward(array)
        assert_same(y, y_again)
        assert_same(reserve, reserve_again)
        masks.append(y)
    assert (masks[0] != masks[2]).any()
    assert (Dropout(0.5, 8).forward(x)[0] != masks[0]).any()
    assert_same(Dropout(0.5).forward(x)[0], Dropout(0.5, 0).forward(x)[0])


def test_a_call_that_is_refused_and_a_gradient_draw_nothing() -> None:
    x = np.ones(100)
    plain, disturbed = Dropout(0.5, 1), Dropout(0.5, 1)
    plain.forward(x)
    _, reserve = disturbed.forward(x)
    assert_refused(
        lambda: disturbed.forward(x, out=np.ones(3)), ValueError, "out must have shape (100,)...; got shape (3,)"
    )
    assert_refused(lambda: disturbed.forward(x[:1].reshape(())), ValueError, "x must have 1 to 5 axes; got shape")
    disturbed.backward(x, reserve)
    assert_same(plain.forward(x)[0], disturbed.forward(x)[0])


def test_what_is_dropped_is_0_whatever_it_was() -> None:
    x = np.array([NAN, INF, -INF] * 50)
    drop = Dropout(0.5)
    y, reserve = drop.forward(x)
    kept = np.unpackbits(reserve, count=x.size).astype(bool)
    assert 0 < kept.sum() < x.size
    assert_same(y, np.where(kept, x, 0))
    assert_same(drop.backward(x, reserve), np.where(kept, x, 0))


def test_one_element_and_probability_0() -> None:
    for rank in ranks:
        x = np.full((1,) * rank, 3.0, np.float32)
        y, reserve = Dropout(0).forward(x)
        assert_same(y, x)
        assert reserve.shape == (1,)
        assert_same(Dropout(0).backward(x, reserve), x)


def test_options() -> None:
    drop = Dropout()
    assert (drop.probability, drop.seed) == (0.5, 0)
    assert repr(Dropout(0.25, 2**64 - 1)) == "Dropout(probability=0.25, seed=18446744073709551615)"
    with pytest.raises(AttributeError):
        drop.seed = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        drop.probability = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"probability": 1}, ValueError, "probability must be a number of 0 or more and below 1; got 1"),
        ({"probability": -0.1}, ValueError, "probability must be a number of 0 or more and below 1...; got -0.1"),
        ({"probability": NAN}, ValueError, "probability must be a number of 0 or more and below 1; got nan"),
        ({"probability": "0.5"}, TypeError, "probability must be a number of 0 or more and below 1; got '0.5'"),
        ({"probability": True}, TypeError, "probability must be a number of 0 or more and below 1; got True"),
        ({"seed": -1}, ValueError, "seed must be an integer of 0 to 18446744073709551615; got -1"),
        ({"seed": 2**64}, ValueError, "seed must be an integer of 0 to 18446744073709551615; got 18446744073709551616"),
        ({"seed": 1.0}, TypeError, "seed must be an int...; got 1.0"),
        ({"seed": None}, TypeError, "seed must be an int...; got None"),
    ],
)
def test_bad_option(options: dict[str, Any], error: type[Exception], message: str) -> None:
    assert_refused(lambda: Dropout(**options), error, message)


X = np.ones((2, 3, 5, 5), np.float32)
RESERVE = np.full(19, 255, np.uint8)  # 150 bits


@pytest.mark.parametrize(("array", "error", "message"), [bad[1:] for bad in BAD_ARRAYS], ids=[b[0] for b in BAD_ARRAYS])
def test_bad_array(array: Any, error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Dropout().forward(array, out=out), error, "x" + message)
    assert_refused(lambda: Dropout().backward(array, RESERVE, out=out), error, "dy" + message)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("reserve", "error", "message"),
    [
        (None, TypeError, "reserve must be a numpy.ndarray; got a builtins.NoneType"),
        (b"\0" * 19, TypeError, "reserve must be a numpy.ndarray; got a builtins.bytes"),
        (RESERVE.astype(np.int8), TypeError, "reserve must be uint8...; got int8"),
        (RESERVE[:-1], ValueError, "reserve must have shape ...; got shape (18,)"),
        (RESERVE[None], ValueError, "reserve must have shape (19,)...; got shape (1, 19)"),
    ],
)
def test_bad_reserve(reserve: Any, error: type[Exception], message: str) -> None:
    out = np.full(X.shape, 7, np.float32)
    assert_refused(lambda: Dropout().backward(X, reserve, out=out), error, message)
    assert (out == 7).all()


@pytest.mark.parametrize(("out", "error", "message"), [bad[1:] for bad in bad_outs(X.shape)])
def test_bad_out(out: Any, error: type[Exception], message: str) -> None:
    assert_refused(lambda: Dropout().forward(X, out=out), error, message)
    assert_refused(lambda: Dropout().backward(X, RESERVE, out=out), error, message)


def test_in_place_is_refused() -> None:
    x = X.copy()
    assert_refused(
        lambda: Dropout().forward(x, out=x), ValueError, "out must not overlap x in memory; got overlapping arrays"
    )
    assert_refused(lambda: Dropout().backward(x, RESERVE, out=x), ValueError, "out must not...; got overlapping arrays")
    assert_same(x, X)
