"""Arguments that the reference rejects before any work, with the value and the expectation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import says

from cudnnpy.reference import Convolution, ConvolutionTranspose, sigmoid

X, W = np.ones((2, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)
Y = np.ones((2, 6, 6, 6), np.float32)


def overlapping(array: np.ndarray) -> np.ndarray:
    strides = (*array.strides[:2], *array.strides[3:], *array.strides[3:])
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def forward_onto_itself(x: np.ndarray) -> object:
    return Convolution(padding=1).forward(x, W[:4], out=x)


def gradient_onto_itself(dy: np.ndarray) -> object:
    return Convolution(padding=1).backward_data(dy, W.repeat(2, axis=1)[:, :6], dy.shape, out=dy)


CALLS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("int8 gradient", lambda: Convolution().backward_data(Y.astype(np.int8), W.astype(np.int8), X.shape), TypeError,
     "inputs of backward_data must be float16...; got int8, which only forward supports"),
    ("dy rank", lambda: Convolution(layout="NDHWC").backward_bias(Y), ValueError, "layout must ..., as dy; got 'NDHWC'"),
    ("empty dy", lambda: Convolution().backward_bias(Y[:, :0]), ValueError,
     "dy must have sizes of 1 or more...; got shape (2, 0, 6, 6)"),
    ("dy", lambda: Convolution(padding=1).backward_data(Y, W, X.shape), ValueError,
     "dy must have shape (2, 6, 8, 8); got shape (2, 6, 6, 6)"),
    ("dy, w", lambda: Convolution().backward_filter(Y, X, (6, 4, 4, 3)), ValueError,
     "dy must have shape (2, 6, 5, 6); got shape (2, 6, 6, 6)"),
    ("t dy too small",
     lambda: ConvolutionTranspose(padding=1, output_padding=1, stride=2).backward_data(Y[:, :4, :, :1], W), ValueError,
     "dy must have size 2 or more where it has 1, which is what an x of size 1 gives...; got shape (2, 4, 6, 1)"),
    ("t dy between", lambda: ConvolutionTranspose(stride=2).backward_data(Y[:, :4], W), ValueError,
     "dy must have shape (2, 4, 5, 5), the result's for x of shape (2, 6, 2, 2)...; got shape (2, 4, 6, 6)"),
    ("t dy channels", lambda: ConvolutionTranspose().backward_data(Y, W), ValueError,
     "dy must have shape (2, 4, 6, 6), the result's for x of shape (2, 6, 4, 4)...; got shape (2, 6, 6, 6)"),
    ("bias rank", lambda: Convolution().forward(X, W, X[:, :, :1]), ValueError,
     "bias must be packed, of shape (6,); got shape (2, 4, 1, 8)"),
    ("bias dtype", lambda: Convolution().forward(X, W, np.ones(6)), TypeError,
     "bias must be float32, as the result; got float64"),
    ("out overlaps itself", lambda: Convolution().forward(X, W, out=overlapping(Y.copy())), ValueError,
     "out must not overlap itself in memory; got shape (2, 6, 6, 6), strides"),
    ("out is x", lambda: forward_onto_itself(X.copy()), ValueError, "out must not overlap...; got overlapping arrays"),
    ("dx is dy", lambda: gradient_onto_itself(Y.copy()), ValueError, "out must not...; got overlapping arrays"),
    ("sigmoid alpha", lambda: sigmoid(X, alpha=None), TypeError, "alpha must be a finite number; got None"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_bad_call(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=says(message)):
        call()


def sizes(rank: int, low: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(low, 4), min_size=rank, max_size=rank).map(tuple)


any_shapes = st.tuples(*[st.integers(1, 6).flatmap(lambda rank: sizes(rank, -1))] * 2)
like_shapes = st.integers(3, 5).flatmap(lambda rank: st.tuples(sizes(rank), sizes(rank)))
few = st.one_of(st.integers(1, 3), st.integers(-1, 3), st.lists(st.integers(-1, 3), max_size=4))


@settings(deadline=None, max_examples=1000)
@given(
    kind=st.sampled_from([Convolution, ConvolutionTranspose]),
    options=st.fixed_dictionaries(
        {"layout": st.sampled_from(["NCHW", "NHWC", "NCW", "NDHWC"])},
        optional={
            "padding": st.one_of(few, st.sampled_from(["same", "half", "full"]), st.lists(few, max_size=4)),
            "stride": few,
            "dilation": few,
            "groups": st.integers(-1, 3),
        },
    ),
    shapes=st.one_of(any_shapes, like_shapes, like_shapes),
)
def test_a_shape_is_right_or_refused(kind: Any, options: Any, shapes: Any) -> None:
    """Whatever is given, forward makes what output_shape says, or both refuse."""
    x_shape, w_shape = shapes
    try:
        op = kind(**options)
        expected = op.output_shape(x_shape, w_shape)
    except (ValueError, TypeError):
        if min(x_shape + w_shape) >= 0:
            with pytest.raises((ValueError, TypeError)):
                kind(**options).forward(np.ones(x_shape), np.ones(w_shape))
    else:
        assert min(expected[1:]) >= 1
        assert op.forward(np.ones(x_shape), np.ones(w_shape)).shape == expected
