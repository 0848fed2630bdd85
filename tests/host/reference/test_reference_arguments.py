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
HALF = np.float16


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def forward_onto_itself(x: np.ndarray) -> object:
    return Convolution(padding=1).forward(x, W[:4], out=x)


def gradient_onto_itself(dy: np.ndarray) -> object:
    return Convolution(padding=1).backward_data(dy, W.repeat(2, axis=1)[:, :6], dy.shape, out=dy)


CALLS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    # arrays
    ("list", lambda: Convolution().forward([[1.0]], W), TypeError, "x must be a numpy.ndarray; got a builtins.list"),
    ("none", lambda: Convolution().forward(X, None), TypeError, "w must be a numpy.ndarray; got a builtins.NoneType"),
    ("int64", lambda: Convolution().forward(X.astype(int), W), TypeError, "x must be float16 or...; got int64"),
    ("complex", lambda: Convolution().forward(X, W.astype(complex)), TypeError, "w must be...; got complex128"),
    ("mixed", lambda: Convolution().forward(X, W.astype(HALF)), TypeError, "w must be float32...; got float16"),
    (
        "int8 gradient",
        lambda: Convolution().backward_data(Y.astype(np.int8), W.astype(np.int8), X.shape),
        TypeError,
        "dy must be float16...; got int8",
    ),
    (
        "mixed gradient",
        lambda: Convolution().backward_filter(Y.astype(HALF), X, W.shape),
        TypeError,
        "x must be float16, as dy...; got float32",
    ),
    # ranks and shapes
    ("2 axes", lambda: Convolution().forward(X[0, 0], W), ValueError, "x must have 3, 4 or 5 axes"),
    (
        "6 axes",
        lambda: Convolution().forward(X[None, None], W),
        ValueError,
        "x must have 3, 4 or 5 axes; got shape (1, 1, 2, 4, 8, 8)",
    ),
    (
        "0 axes",
        lambda: Convolution(layout="NHWC").output_shape((), ()),
        ValueError,
        "x must have 3, 4 or 5 axes; got shape ()",
    ),
    ("rank of w", lambda: Convolution().forward(X, W[0]), ValueError, "w must have 4 axes, as x; got shape"),
    (
        "dy rank",
        lambda: Convolution(layout="NDHWC").backward_bias(Y),
        ValueError,
        "layout must have 4 axes, as dy; got 'NDHWC'",
    ),
    (
        "empty x",
        lambda: Convolution().forward(X[:, :, :0], W),
        ValueError,
        "x.shape[2] must be 1 or more; got shape...",
    ),
    ("no filters", lambda: Convolution().forward(X, W[:0]), ValueError, "w.shape[0] must be 1 or more; got shape..."),
    ("x alone without channels", lambda: Convolution().forward(X[:, :0], W), ValueError, "x must have 4...; got 0"),
    (
        "too small a batch of 0",
        lambda: Convolution().forward(X[:0, :, :2], W),
        ValueError,
        "the output would be empty",
    ),
    ("empty w", lambda: Convolution().forward(X, W[..., :0]), ValueError, "w.shape[3] must be 1 or more; got shape..."),
    (
        "empty dy",
        lambda: Convolution().backward_bias(Y[:, :0]),
        ValueError,
        "dy.shape[1] must be 1 or more; got shape...",
    ),
    ("channels", lambda: Convolution().forward(X[:, :3], W), ValueError, "x must have 4 channels, ...; got 3"),
    ("groups", lambda: Convolution(groups=2).forward(X, W), ValueError, "x must have 8 channels, ...; got 4"),
    ("filters", lambda: Convolution(groups=4).forward(X, W[:, :1]), ValueError, "groups must divide the 6...; got 4"),
    (
        "w too large",
        lambda: Convolution(dilation=(1, 4)).forward(X, W),
        ValueError,
        "w must fit into x with padding; got the dilated size 9 on spatial axis 1, where",
    ),
    (
        "dy",
        lambda: Convolution(padding=1).backward_data(Y, W, X.shape),
        ValueError,
        "dy must have shape (2, 6, 8, 8), the output's for x of shape (2, 4, 8, 8)...; got shape (2, 6, 6, 6)",
    ),
    (
        "dy, w",
        lambda: Convolution().backward_filter(Y, X, (6, 4, 4, 3)),
        ValueError,
        "dy must have shape (2, 6, 5, 6), the output's for x of shape...; got shape (2, 6, 6, 6)",
    ),
    (
        "w_shape float",
        lambda: Convolution().backward_filter(Y, X, (6, 4, 3.0, 3)),
        TypeError,
        "w_shape must be a tuple of sizes of 0 or more; got (6, 4, 3.0, 3)",
    ),
    # the transposed convolution's own
    ("t channels", lambda: ConvolutionTranspose().forward(X, W), ValueError, "x must have 6 channels, as w; got 4"),
    ("t groups", lambda: ConvolutionTranspose(groups=4).forward(Y, W), ValueError, "groups must divide the...; got 4"),
    (
        "t crop",
        lambda: ConvolutionTranspose(padding=4).forward(Y, W),
        ValueError,
        "padding must be smaller; got (4, 4) on spatial axis 0, where it crops all of the 8",
    ),
    ("t extra", lambda: ConvolutionTranspose(output_padding=-1), ValueError, "output_padding must be ...; got -1"),
    (
        "t too much",
        lambda: ConvolutionTranspose(stride=2, output_padding=(1, 2)).forward(Y, W),
        ValueError,
        "output_padding must be less than the stride, 2, or the dilation, 1; got 2 (on spatial axis 1)",
    ),
    (
        "t empty x",
        lambda: ConvolutionTranspose().forward(X[:, :0], W[:0]),
        ValueError,
        "x.shape[1] must be 1 or more",
    ),
    (
        "t empty w",
        lambda: ConvolutionTranspose().forward(Y, W[:, :0]),
        ValueError,
        "w.shape[1] must be 1 or more",
    ),
    (
        "t dy too small",
        lambda: ConvolutionTranspose(padding=1, output_padding=1, stride=2).backward_data(Y[:, :4, :, :1], W),
        ValueError,
        "dy must have size 2 or more on spatial axis 1, the output's for x of size 1; got 1",
    ),
    (
        "t dy between",
        lambda: ConvolutionTranspose(stride=2).backward_data(Y[:, :4], W),
        ValueError,
        "dy must have shape (2, 4, 5, 5), the output's for x of shape (2, 6, 2, 2)...; got shape (2, 4, 6, 6)",
    ),
    (
        "t dy channels",
        lambda: ConvolutionTranspose().backward_data(Y, W),
        ValueError,
        "dy must have shape (2, 4, 6, 6), the output's for x of shape (2, 6, 4, 4)...; got shape (2, 6, 6, 6)",
    ),
    (
        "t rank",
        lambda: ConvolutionTranspose(output_padding=(0,)).forward(Y, W),
        ValueError,
        "output_padding must be an integer, or one for each of 2 spatial axes; got (0,)",
    ),
    # bias, activation, scales
    (
        "bias",
        lambda: Convolution().forward(X, W, [0.0] * 6),
        TypeError,
        "bias must be a numpy.ndarray; got a builtins.list. Convert it with numpy.asarray(bias, dtype)",
    ),
    (
        "bias size",
        lambda: Convolution().forward(X, W, np.ones(4, np.float32)),
        ValueError,
        "bias must have shape (6,), one for each output channel; got shape (4,)",
    ),
    (
        "bias rank",
        lambda: Convolution().forward(X, W, X[:, :, :1]),
        ValueError,
        "bias must have shape (6,), one for each output channel; got shape (2, 4, 1, 8)",
    ),
    ("bias dtype", lambda: Convolution().forward(X, W, np.ones(6)), TypeError, "bias must be float32; got float64"),
    # out
    (
        "out type",
        lambda: Convolution().forward(X, W, out=True),
        TypeError,
        "out must be a numpy.ndarray; got a builtins.bool. Convert it with numpy.asarray(out)",
    ),
    (
        "out shape",
        lambda: Convolution().forward(X, W, out=X.copy()),
        ValueError,
        "out must have shape (2, 6, 6, 6); got shape (2, 4, 8, 8)",
    ),
    ("out dtype", lambda: Convolution().forward(X, W, out=Y.astype(np.int32)), TypeError, "out must ...; got int32"),
    (
        "out read-only",
        lambda: Convolution().forward(X, W, out=read_only(Y.copy())),
        ValueError,
        "out must be a writable array; got a read-only one",
    ),
    (
        "out repeats",
        lambda: Convolution().forward(
            X, W, out=np.lib.stride_tricks.as_strided(Y.copy(), Y.shape, (0, *Y.strides[1:]))
        ),
        ValueError,
        "out must have no stride of 0, which would write one element twice",
    ),
    (
        "out overlaps itself",
        lambda: Convolution().forward(
            X,
            W,
            out=np.lib.stride_tricks.as_strided(Y.copy(), Y.shape, (*Y.strides[:2], *Y.strides[3:], *Y.strides[3:])),
        ),
        ValueError,
        "out must not overlap itself in memory; got shape (2, 6, 6, 6), strides",
    ),
    ("out is x", lambda: forward_onto_itself(X.copy()), ValueError, "out must not overlap...; got overlapping arrays"),
    ("dx is dy", lambda: gradient_onto_itself(Y.copy()), ValueError, "out must not...; got overlapping arrays"),
    (
        "db shape",
        lambda: Convolution().backward_bias(Y, out=np.ones(2, np.float32)),
        ValueError,
        "out must have shape (6,)...; got shape (2,)",
    ),
    ("y dtype", lambda: Convolution().forward(X, W, out=np.ones(Y.shape)), TypeError, "out must ...; got float64"),
    ("dx dtype", lambda: Convolution().backward_data(Y, W, out=X.astype(HALF)), TypeError, "out must ...; got float16"),
    (
        "dw dtype",
        lambda: Convolution().backward_filter(Y, X, out=W.astype(HALF)),
        TypeError,
        "out must be float32; got float16",
    ),
    ("db dtype", lambda: Convolution().backward_bias(Y, out=np.ones(6)), TypeError, "out must be float32; got float64"),
    # the sigmoid
    (
        "sigmoid list",
        lambda: sigmoid([1.0]),
        TypeError,
        "x must be a numpy.ndarray; got a builtins.list. Convert it with numpy.asarray(x, dtype)",
    ),
    ("sigmoid int", lambda: sigmoid(np.ones(3, int)), TypeError, "x must be float16...; got int64"),
    ("sigmoid out", lambda: sigmoid(X, out=Y.copy()), ValueError, "out must have shape ...; got shape (2, 6, 6, 6)"),
    ("sigmoid alpha", lambda: sigmoid(X, alpha=None), TypeError, "alpha must be a finite number; got None"),
]


@pytest.mark.parametrize(("call", "error", "message"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_bad_call(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=says(message)):
        call()


def test_out_is_untouched_when_a_call_is_refused() -> None:
    out = np.full(Y.shape, 7, np.float32)
    for bad in ({"bias": np.ones(5, np.float32)}, {"activation": "gelu"}, {"alpha": None}, {"beta": "0"}):
        with pytest.raises((TypeError, ValueError)):
            Convolution().forward(X, W, out=out, **bad)
    assert (out == 7).all()


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


def test_sequences_and_numpy_ints_are_numbers() -> None:
    plain = Convolution(padding=((1, 2), (0, 0)), stride=(2, 1), groups=2, workspace_limit=1 << 20)
    other = Convolution(
        padding=[np.array([1, 2]), 0], stride=np.array([2, 1]), groups=np.int64(2), workspace_limit=np.uint32(1 << 20)
    )
    assert plain == other
    assert hash(plain) == hash(other)
    assert other.padding == ((1, 2), 0)
    assert "groups=2" in repr(other)
    assert plain.output_shape([2, 8, 5, 5], np.array([4, 4, 3, 3])) == (2, 4, 3, 3)
    with pytest.raises(AttributeError):
        plain.stride = 1
    assert Convolution(compute_dtype=np.float64) == Convolution(compute_dtype="float64") != Convolution()
