"""The reference refuses what makes no sense, before any work, and says what was given and what was expected."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"padding": -1}, ValueError, "padding=-1: expected at least 0"),
    ({"padding": 1.0}, TypeError, "padding=1.0: expected an int"),
    ({"padding": True}, TypeError, "padding=True: expected an int"),
    ({"padding": None}, TypeError, "padding=None: expected an int"),
    ({"padding": "SAME"}, ValueError, "padding='SAME': expected one of valid, same, half, full"),
    ({"padding": b"same"}, TypeError, "padding=b'same': expected an int"),
    ({"padding": ()}, ValueError, "padding has 0 entries"),
    ({"padding": (1, 2, 3, 4)}, ValueError, "padding has 4 entries"),
    ({"padding": (1, "same")}, TypeError, "padding[1]='same': expected an int"),
    ({"padding": ((1, 2), (3,))}, ValueError, "padding[1]=(3,): expected an int or a pair (before, after)"),
    ({"padding": ((1, 2), (3, -4))}, ValueError, "padding[1][1]=-4: expected at least 0"),
    ({"stride": 0}, ValueError, "stride=0: expected at least 1"),
    ({"stride": (1, 0)}, ValueError, "stride[1]=0: expected at least 1"),
    ({"stride": "2"}, TypeError, "stride='2': expected an int"),
    ({"stride": np.float32(2)}, TypeError, "stride="),
    ({"stride": {1, 2}}, TypeError, "stride={1, 2}: expected an int"),
    ({"dilation": -2}, ValueError, "dilation=-2: expected at least 1"),
    ({"dilation": (1, 1, 1, 1)}, ValueError, "dilation has 4 entries"),
    ({"groups": 0}, ValueError, "groups=0: expected at least 1"),
    ({"groups": (1,)}, TypeError, "groups=(1,): expected an int"),
    ({"mode": "correlation"}, ValueError, "mode='correlation': expected one of cross_correlation, convolution"),
    ({"mode": None}, TypeError, "mode=None"),
    ({"layout": "CHWN"}, ValueError, "layout='CHWN': expected one of"),
    ({"layout": ["NCHW"]}, TypeError, "layout=['NCHW']"),
    ({"compute_dtype": "int8"}, ValueError, "compute_dtype='int8': expected one of"),
    ({"compute_dtype": object()}, TypeError, "compute_dtype="),
    ({"prefer": "best"}, ValueError, "prefer='best': expected one of fastest, limited_workspace, no_workspace"),
    ({"workspace_limit": -1}, ValueError, "workspace_limit=-1: expected at least 0"),
    ({"workspace_limit": "1GiB"}, TypeError, "workspace_limit='1GiB': expected an int"),
    ({"deterministic": 1}, TypeError, "deterministic=1: expected True or False"),
    ({"tf32": None}, TypeError, "tf32=None: expected True or False"),
    ({"policy": "always"}, ValueError, "policy='always': expected one of once, on_shape_change"),
    ({"tune_seconds": 0}, ValueError, "tune_seconds=0: expected more than 0 seconds"),
    ({"tune_seconds": float("nan")}, ValueError, "tune_seconds=nan"),
    ({"tune_seconds": "5"}, TypeError, "tune_seconds='5'"),
    ({"pad": 1}, TypeError, "pad"),
]


@pytest.mark.parametrize("kind", [Convolution, ConvolutionTranspose])
@pytest.mark.parametrize(("options", "error", "message"), OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_option(kind: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        kind(**options)


CALLS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    # arrays
    ("list", lambda: Convolution().forward([[1.0]], W), TypeError, "x is a builtins.list: expected a numpy.ndarray"),
    ("none", lambda: Convolution().forward(X, None), TypeError, "w is a builtins.NoneType"),
    ("int64", lambda: Convolution().forward(X.astype(int), W), TypeError, "x has dtype int64: expected float16 or"),
    ("complex", lambda: Convolution().forward(X, W.astype(complex)), TypeError, "w has dtype complex128"),
    ("mixed", lambda: Convolution().forward(X, W.astype(HALF)), TypeError, "w has dtype float16: expected float32"),
    (
        "int8 gradient",
        lambda: Convolution().backward_data(Y.astype(np.int8), W.astype(np.int8), X.shape),
        TypeError,
        "dy has dtype int8: expected float16",
    ),
    (
        "mixed gradient",
        lambda: Convolution().backward_filter(Y.astype(HALF), X, W.shape),
        TypeError,
        "x has dtype float32: expected float16, the dtype of dy",
    ),
    # ranks and shapes
    ("2 axes", lambda: Convolution().forward(X[0, 0], W), ValueError, "x has 2 axes: layout='NCHW' expects 3, 4 or 5"),
    ("6 axes", lambda: Convolution().forward(X[None, None], W), ValueError, "x has 6 axes"),
    ("0 axes", lambda: Convolution(layout="NHWC").output_shape((), ()), ValueError, "x has 0 axes"),
    ("rank of w", lambda: Convolution().forward(X, W[0]), ValueError, "w has 3 axes: expected 4, as many as x"),
    ("NCW", lambda: Convolution(layout="NCW").forward(X, W), ValueError, "x has 4 axes: layout='NCW' expects 3"),
    ("NDHWC", lambda: Convolution(layout="NDHWC").forward(X, W), ValueError, "x has 4 axes: layout='NDHWC' expects 5"),
    ("dy rank", lambda: Convolution(layout="NDHWC").backward_bias(Y), ValueError, "dy has 4 axes"),
    ("empty x", lambda: Convolution().forward(X[:, :, :0], W), ValueError, "x.shape[2]=0: expected at least 1"),
    ("no filters", lambda: Convolution().forward(X, W[:0]), ValueError, "w.shape[0]=0: expected at least 1"),
    (
        "x alone without channels",
        lambda: Convolution().forward(X[:, :0], W),
        ValueError,
        "x has 0 channels, but w has 4",
    ),
    ("too small a batch of 0", lambda: Convolution().forward(X[:0, :, :2], W), ValueError, "the output would be empty"),
    ("empty w", lambda: Convolution().forward(X, W[..., :0]), ValueError, "w.shape[3]=0: expected at least 1"),
    ("empty dy", lambda: Convolution().backward_bias(Y[:, :0]), ValueError, "dy.shape[1]=0"),
    ("channels", lambda: Convolution().forward(X[:, :3], W), ValueError, "x has 3 channels, but w has 4 per group"),
    ("groups", lambda: Convolution(groups=2).forward(X, W), ValueError, "groups=2 expected 4 * 2 = 8 channels"),
    ("filters", lambda: Convolution(groups=4).forward(X, W[:, :1]), ValueError, "w has 6 filters: expected a multiple"),
    ("stride rank", lambda: Convolution(stride=(1, 1, 1)).forward(X, W), ValueError, "stride=(1, 1, 1) has 3 entries"),
    ("dilation rank", lambda: Convolution(dilation=(2,)).forward(X, W), ValueError, "dilation=(2,) has 1 entries"),
    ("padding rank", lambda: Convolution(padding=(1,)).forward(X, W), ValueError, "padding=((1, 1),) has 1 entries"),
    (
        "w too large",
        lambda: Convolution(dilation=(1, 4)).forward(X, W),
        ValueError,
        "the output would be empty: on spatial axis 1 the padded x is 0 + 8 + 0 = 8 wide, less than w's",
    ),
    (
        "dy",
        lambda: Convolution(padding=1).backward_data(Y, W, X.shape),
        ValueError,
        "dy has shape (2, 6, 6, 6): expected (2, 6, 8, 8), the output's for x of shape (2, 4, 8, 8)",
    ),
    ("dy, w", lambda: Convolution().backward_filter(Y, X, (6, 4, 4, 3)), ValueError, "expected (2, 6, 5, 6)"),
    ("x_shape sizes", lambda: Convolution().backward_data(Y, W, (2, 4, -8, 8)), ValueError, "x_shape[2]=-8"),
    ("x_shape type", lambda: Convolution().backward_data(Y, W, 8), TypeError, "x_shape=8: expected a tuple of ints"),
    ("w_shape type", lambda: Convolution().backward_filter(Y, X, "3x3"), TypeError, "w_shape='3x3': expected a tuple"),
    ("w_shape float", lambda: Convolution().backward_filter(Y, X, (6, 4, 3.0, 3)), TypeError, "w_shape[2]=3.0"),
    # the transposed convolution's own
    ("t channels", lambda: ConvolutionTranspose().forward(X, W), ValueError, "x has 4 channels, but w takes 6"),
    ("t groups", lambda: ConvolutionTranspose(groups=4).forward(Y, W), ValueError, "6 channels: expected a multiple"),
    ("t crop", lambda: ConvolutionTranspose(padding=4).forward(Y, W), ValueError, "padding=(4, 4) crops all of the 8"),
    ("t extra", lambda: ConvolutionTranspose(output_padding=-1), ValueError, "output_padding=-1: expected at least 0"),
    (
        "t too much",
        lambda: ConvolutionTranspose(stride=2, output_padding=(1, 2)).forward(Y, W),
        ValueError,
        "output_padding=2 on spatial axis 1: expected less than the stride, 2, or the dilation, 1",
    ),
    (
        "t empty x",
        lambda: ConvolutionTranspose().forward(X[:, :0], W[:0]),
        ValueError,
        "x.shape[1]=0: expected at least 1",
    ),
    (
        "t empty w",
        lambda: ConvolutionTranspose().forward(Y, W[:, :0]),
        ValueError,
        "w.shape[1]=0: expected at least 1",
    ),
    (
        "t dy too small",
        lambda: ConvolutionTranspose(padding=1, output_padding=1, stride=2).backward_data(Y[:, :4, :, :1], W),
        ValueError,
        "`dy` must have at least size 2 on spatial axis 1, the output's for x of size 1; got 1",
    ),
    (
        "t dy between",
        lambda: ConvolutionTranspose(stride=2).backward_data(Y[:, :4], W),
        ValueError,
        "dy has shape (2, 4, 6, 6): expected (2, 4, 5, 5), the output's for x of shape (2, 6, 2, 2)",
    ),
    (
        "t dy channels",
        lambda: ConvolutionTranspose().backward_data(Y, W),
        ValueError,
        "dy has shape (2, 6, 6, 6): expected (2, 4, 6, 6), the output's for x of shape (2, 6, 4, 4)",
    ),
    ("x_shape missing", lambda: Convolution().backward_data(Y, W), TypeError, "x_shape is missing: expected the shape"),
    (
        "t rank",
        lambda: ConvolutionTranspose(output_padding=(0,)).forward(Y, W),
        ValueError,
        "output_padding=(0,) has 1 entries: expected 2",
    ),
    # bias, activation, scales
    ("bias", lambda: Convolution().forward(X, W, [0.0] * 6), TypeError, "bias is a builtins.list"),
    ("bias size", lambda: Convolution().forward(X, W, np.ones(4, np.float32)), ValueError, "bias has shape (4,)"),
    ("bias rank", lambda: Convolution().forward(X, W, X[:, :, :1]), ValueError, "bias has shape (2, 4, 1, 8)"),
    ("bias dtype", lambda: Convolution().forward(X, W, np.ones(6)), TypeError, "bias has dtype float64: expected"),
    ("activation", lambda: Convolution().forward(X, W, activation="gelu"), ValueError, "activation='gelu': expected"),
    ("activation type", lambda: Convolution().forward(X, W, activation=[]), TypeError, "activation=[]: expected"),
    ("alpha", lambda: Convolution().forward(X, W, alpha="1"), TypeError, "alpha='1': expected a real number"),
    ("beta", lambda: Convolution().backward_bias(Y, beta=1j), TypeError, "beta=1j: expected a real number"),
    ("infinite", lambda: Convolution().forward(X, W, alpha=np.inf), ValueError, "alpha=inf: expected a finite number"),
    ("huge", lambda: Convolution().forward(X, W, alpha=10**400), ValueError, "expected a number that a float holds"),
    (
        "beta alone",
        lambda: Convolution().forward(X, W, beta=1.0),
        ValueError,
        "beta=1.0 without out: expected the array",
    ),
    ("bias's beta", lambda: Convolution().backward_bias(Y, beta=0.5), ValueError, "beta=0.5 without out: expected"),
    ("algorithm", lambda: Convolution(algorithm=5), TypeError, "algorithm=5: expected None, an algorithm's name"),
    # out
    ("out type", lambda: Convolution().forward(X, W, out=True), TypeError, "out is a builtins.bool"),
    (
        "out shape",
        lambda: Convolution().forward(X, W, out=X.copy()),
        ValueError,
        "out has shape (2, 4, 8, 8): expected",
    ),
    ("out dtype", lambda: Convolution().forward(X, W, out=Y.astype(np.int32)), TypeError, "out has dtype int32"),
    ("out read-only", lambda: Convolution().forward(X, W, out=read_only(Y.copy())), ValueError, "out is read-only"),
    (
        "out repeats",
        lambda: Convolution().forward(
            X, W, out=np.lib.stride_tricks.as_strided(Y.copy(), Y.shape, (0, *Y.strides[1:]))
        ),
        ValueError,
        "out has strides (0, ",
    ),
    ("out is x", lambda: forward_onto_itself(X.copy()), ValueError, "out overlaps x"),
    ("dx is dy", lambda: gradient_onto_itself(Y.copy()), ValueError, "out overlaps dy"),
    (
        "db shape",
        lambda: Convolution().backward_bias(Y, out=np.ones(2, np.float32)),
        ValueError,
        "out has shape (2,): expected (6,)",
    ),
    (
        "y dtype",
        lambda: Convolution().forward(X, W, out=np.ones(Y.shape)),
        TypeError,
        "out has dtype float64: expected",
    ),
    ("dx dtype", lambda: Convolution().backward_data(Y, W, out=X.astype(HALF)), TypeError, "out has dtype float16"),
    ("dw dtype", lambda: Convolution().backward_filter(Y, X, out=W.astype(HALF)), TypeError, "out has dtype float16"),
    ("db dtype", lambda: Convolution().backward_bias(Y, out=np.ones(6)), TypeError, "out has dtype float64"),
    (
        "compute",
        lambda: Convolution(compute_dtype="int32").forward(X, W),
        ValueError,
        "compute_dtype='int32': expected",
    ),
    # the sigmoid
    ("sigmoid list", lambda: sigmoid([1.0]), TypeError, "x is a builtins.list"),
    ("sigmoid int", lambda: sigmoid(np.ones(3, int)), TypeError, "x has dtype int64: expected float16"),
    ("sigmoid out", lambda: sigmoid(X, out=Y.copy()), ValueError, "out has shape (2, 6, 6, 6): expected (2, 4, 8, 8)"),
    ("sigmoid alpha", lambda: sigmoid(X, alpha=None), TypeError, "alpha=None: expected a real number"),
]


@pytest.mark.parametrize(("call", "error", "message"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_bad_call(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
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
    assert other.padding == ((1, 2), (0, 0))
    assert "groups=2" in repr(other)
    assert plain.output_shape([2, 8, 5, 5], np.array([4, 4, 3, 3])) == (2, 4, 3, 3)
    with pytest.raises(AttributeError):
        plain.stride = 1
    assert Convolution(compute_dtype=np.float64) == Convolution(compute_dtype="float64") != Convolution()


def test_signatures() -> None:
    """The ones that the twins on the GPU have, written out."""
    options = (
        "(*, padding=0, stride=1, dilation=1, groups=1, mode='cross_correlation', layout='NCHW', compute_dtype=None, "
        "prefer='fastest', workspace_limit=None, deterministic=False, tf32=True, algorithm=None, "
        "policy='on_shape_change', tune_seconds=5.0{})"
    )
    tail = "out=None, alpha=1.0, beta=0.0"
    assert bare(Convolution) == options.format("")
    assert bare(ConvolutionTranspose) == options.format(", output_padding=0")
    for kind in (Convolution, ConvolutionTranspose):
        assert bare(kind.forward) == f"(self, x, w, bias=None, activation=None, {tail}, stream=None)"
        assert bare(kind.backward_data) == f"(self, dy, w, x_shape=None, {tail}, stream=None)"
        assert bare(kind.backward_filter) == f"(self, dy, x, w_shape=None, {tail}, stream=None)"
        assert bare(kind.backward_bias) == f"(self, dy, {tail}, stream=None)"
        assert bare(kind.output_shape) == "(self, x_shape, w_shape)"
    assert bare(sigmoid) == f"(x, {tail})"


def bare(function: Callable[..., object]) -> str:
    """A signature without its annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
