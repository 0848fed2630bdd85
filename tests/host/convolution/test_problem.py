"""Problems: geometry and shapes against counting and against the reference; bad input; cache keys."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudnnpy
from cudnnpy import Convolution, ConvolutionTranspose, Engine, TensorSpec, names, raw, reference
from cudnnpy._convolution import sizes
from cudnnpy._convolution import specification as ask
from cudnnpy._convolution.options import MODES, PADDINGS, ConvolutionOptions
from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._core.layouts import from_logical, to_logical
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning import problem_notation
from cudnnpy._planning.problem import is_strict
from cudnnpy.reference import _geometry

# Drawing options and shapes

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}


@st.composite
def paddings(draw: st.DrawFn, rank: int) -> Any:
    amount = st.integers(0, 3)
    per_axis = st.lists(st.one_of(amount, st.tuples(amount, amount)), min_size=rank, max_size=rank)
    return draw(st.one_of(st.sampled_from(PADDINGS), amount, per_axis, per_axis.map(tuple)))


@st.composite
def asked(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Options, and logical shapes of x and w, which mostly go together."""
    rank = draw(st.integers(1, 3))
    steps = st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    groups = draw(st.integers(1, 3))
    options = {
        "padding": draw(paddings(rank)),
        "stride": draw(steps),
        "dilation": draw(steps),
        "groups": groups,
        "layout": draw(st.sampled_from((*LAYOUTS[rank], "NCHW", "NHWC"))),
        "mode": draw(st.sampled_from(MODES)),
    }
    per_group = draw(st.integers(1, 3))
    x = (draw(st.integers(1, 2)), per_group * groups, *(draw(st.integers(1, 9)) for _ in range(rank)))
    w = (groups * draw(st.integers(1, 2)), per_group, *(draw(st.integers(1, 4)) for _ in range(rank)))
    return options, x, w


def outcome(function: Callable[[], Any]) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return function()
    except (TypeError, ValueError) as error:
        return type(error)


# Geometry


@given(asked())
def test_the_output_has_a_place_for_every_step_of_the_filter(drawn: Any) -> None:
    options, x, w = drawn
    checked = ConvolutionOptions(**options)
    spatial = sizes.geometry(checked, x[2:], w[2:])
    places = []
    for size, kernel, before, after, stride, dilation in zip(x[2:], w[2:], *spatial, strict=True):
        taps = range(0, kernel * dilation, dilation)
        padded = range(size + before + after)
        places.append(sum(all(start + tap in padded for tap in taps) for start in padded[::stride]))
    if all(places):
        assert sizes.output_shape(checked, x, w) == (x[0], w[0], *places)
    else:
        with pytest.raises(
            ValueError,
            match="the output would be empty",
        ):
            sizes.output_shape(checked, x, w)


@given(asked())
def test_named_paddings_are_what_their_names_say(drawn: Any) -> None:
    options, x, w = drawn
    rank = len(x) - 2
    stride = options["stride"] if isinstance(options["stride"], list) else [options["stride"]] * rank
    dilation = options["dilation"] if isinstance(options["dilation"], list) else [options["dilation"]] * rank
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w[2:], strict=True)]

    def sides(padding: Any) -> list[tuple[int, int]]:
        spatial = sizes.geometry(ConvolutionOptions(**{**options, "padding": padding}), x[2:], w[2:])
        return list(zip(spatial.pre_padding, spatial.post_padding, strict=True))

    assert sides("valid") == [(0, 0)] * rank == sides(0)
    assert sides("half") == [(r // 2, r // 2) for r in reach] == sides([r // 2 for r in reach])
    assert sides("full") == [(r - 1, r - 1) for r in reach] == sides([(r - 1, r - 1) for r in reach])
    same = ConvolutionOptions(**{**options, "padding": "same"})
    assert sizes.output_shape(same, x, w)[2:] == tuple(math.ceil(n / s) for n, s in zip(x[2:], stride, strict=True))
    assert all(0 <= after - before <= 1 for before, after in sides("same"))


@given(asked(), st.integers(0, 6), st.integers(0, 9))
def test_output_shapes_are_the_references(drawn: Any, change: int, at: int) -> None:
    options, x, w = drawn
    if change == 3:
        x = (0, *x[1:])
    if change == 4:  # sums over no channels
        x, w = (x[0], 0, *x[2:]), (w[0], 0, *w[2:])
    if change == 5:
        x = tuple(0 if axis == at % len(x) else size for axis, size in enumerate(x))
    if change == 6:
        w = tuple(0 if axis == at % len(w) else size for axis, size in enumerate(w))
    if change == 1:
        w = (w[0], w[1] + 1, *w[2:])  # channels that do not fit
    if change == 2:
        w = w[:-1]
    last = options["layout"].endswith("C")
    shapes = [from_logical(shape, last) for shape in (x, w)]
    for ours in (Convolution, ConvolutionTranspose):
        if ours is ConvolutionTranspose and change != 1:
            w = (x[1], *w[1:])
            shapes[1] = from_logical(w, last)
        op = ours(**options)
        found = outcome(lambda: op.output_shape(*shapes))  # noqa: B023  # called at once
        if not isinstance(found, tuple):
            assert change or min(sizes_of_reference(op, x, w)) < 1
        else:
            assert to_logical(found, last)[2:] == sizes_of_reference(op, x, w)


def sizes_of_reference(op: Any, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial sizes of forward's result, as the reference derives them."""
    if isinstance(op, ConvolutionTranspose):
        return _geometry.transpose(op, op.output_padding, x, w).input
    return _geometry.convolution(op, x, w).output


@given(asked(), st.integers(0, 3))
def test_output_padding_picks_a_size_that_the_convolution_maps_back(drawn: Any, extra: int) -> None:
    options, x, w = drawn
    w = (x[1], *w[1:])
    last = options["layout"].endswith("C")
    shapes = [from_logical(shape, last) for shape in (x, w)]
    transpose = ConvolutionTranspose(**options, output_padding=extra)
    got = outcome(lambda: transpose.output_shape(*shapes))
    if isinstance(got, tuple):
        assert to_logical(got, last)[2:] == sizes_of_reference(transpose, x, w)
        dy, filters = (np.empty(shape) for shape in (got, shapes[1]))
        assert sizes.transposed_input_shape(transpose, got, shapes[1]) == shapes[0]
        assert (
            reference.ConvolutionTranspose(**options, output_padding=extra).backward_data(dy, filters).shape
            == shapes[0]
        )
    stride = options["stride"]
    if isinstance(got, tuple) and options["padding"] != "same" and extra < min(np.atleast_1d(stride)):
        assert Convolution(**options).output_shape(got, shapes[1]) == shapes[0]


# Bad input

X, W, Y = TensorSpec((2, 4, 8, 8)), TensorSpec((6, 4, 3, 3)), TensorSpec((2, 6, 6, 6))


@pytest.fixture
def no_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any call of cuDNN fails the test."""

    def called(name: str, *_: Any) -> Any:
        pytest.fail(f"{name} was called")

    for way in ("call", "bound", "unchecked"):
        monkeypatch.setattr(raw, way, called)


def spec(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(())._replace(shape=shape, dtype=dtype, strides=strides)


BAD_CALLS: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    # options; arguments of plan; its keyword arguments; what is raised
    ({}, ("sideways", X, W), {}, ValueError, r"operation must be one of 'forward', 'backward_data'.*; got 'sideways'"),
    ({}, ("forward", spec(2, 4), W), {}, ValueError, r"x must have 3, 4 or 5 axes; got shape \(2, 4\)"),
    ({}, ("forward", X, spec(6, 4, 3)), {}, ValueError, r"w must have 4 axes, as x; got shape \(6, 4, 3\)"),
    (
        {},
        ("forward", X, spec(6, 5, 3, 3)),
        {},
        ValueError,
        r"x must have 5 channels, .*; got 4 \(x has shape \(2, 4, 8, 8\), w \(6, 5, 3, 3\)\)",
    ),
    (
        {"groups": 2},
        ("forward", X, W),
        {},
        ValueError,
        r"x must have 8 channels, .*; got 4 \(x has shape \(2, 4, 8, 8\), w \(6, 4, 3, 3\)\)",
    ),
    ({"groups": 4}, ("forward", X, spec(6, 1, 3, 3)), {}, ValueError, r"groups must divide the 6 output.*; got 4"),
    ({}, ("forward", spec(2, 4, -8, 8), W), {}, ValueError, r"x.shape must be a tuple.*; got \(2, 4, -8, 8\)"),
    (
        {},
        ("forward", spec(0, 4, 8, 8), W),
        {},
        ValueError,
        "a planned problem must have elements; got forward 0x4x8x8 6x4x3x3,",
    ),
    ({}, ("forward", X, spec(0, 4, 3, 3)), {}, ValueError, "w must have sizes of 1 or more, except for C / groups"),
    (
        {},
        ("forward", spec(2, 0, 8, 8), spec(6, 0, 3, 3)),
        {},
        ValueError,
        "a planned problem must have elements; got forward 2x0x8x8 6x0x3x3,",
    ),
    ({}, ("forward", spec(0, 4, 2, 2), W), {}, ValueError, r"w must .*; got a filter of size 3 with dilation 1 on an"),
    ({}, ("forward", X, spec(6, 4, 9, 9)), {}, ValueError, r"w must .*; got a filter of size 9 with dilation 1 on an"),
    ({"padding": (1, 1, 1)}, ("forward", X, W), {}, ValueError, r"padding must be .* each of 2 spatial axes.*; got .*"),
    ({"layout": "NCDHW"}, ("forward", X, W), {}, ValueError, "layout must have 4 axes, as x; got 'NCDHW'"),
    ({}, ("forward", X, W._replace(dtype="float16")), {}, TypeError, r"w must be float32, as x.*; got float16"),
    ({}, ("forward", X, W), {"out": spec(2, 6, 6, 5)}, ValueError, r"out must have shape.*; got shape \(2, 6, 6, 5\)"),
    ({}, ("forward", X, W), {"bias": spec(5)}, ValueError, r"bias must be packed.*; got shape \(5,\), strides None"),
    ({}, ("forward", X, W), {"bias": spec(6, dtype="float16")}, TypeError, r"bias must be float32.*; got float16"),
    ({}, ("forward", X, W), {"activation": "gelu"}, ValueError, r"activation must be one of 'identity'.*; got 'gelu'"),
    ({}, ("forward", X, W), {"alpha": "1"}, TypeError, r"alpha must be a finite number.*; got '1'"),
    ({}, ("forward", X, W), {"beta": 1.0}, ValueError, "beta must be 0 where out is None; got 1.0"),
    ({"compute_dtype": "float64"}, ("forward", X, W), {}, ValueError, r"compute_dtype must .*; got 'float64'"),
    ({}, ("forward", X, W), {"device": "cuda"}, TypeError, r"device must be an ordinal, a cuda\.core Device or None"),
    (
        {},
        ("forward", spec(2, 4, 8, 8, strides=(256, 64, 8, 0)), W),
        {},
        ValueError,
        r"x must have strides of 1 or more; got strides \(256, 64, 8, 0\)",
    ),
    (
        {},
        ("forward", spec(2, 4, 8, 8, strides=(256, 64, 8, -1)), W),
        {},
        ValueError,
        r"x\.strides must be None, or a tuple of 4 integers of 0 or more; got \(256, 64, 8, -1\)",
    ),
    (
        {},
        ("forward", spec(2, 4, 8, 8, strides=(256, 64, 4, 1)), W),
        {},
        ValueError,
        r"x must not overlap itself in memory; got shape \(2, 4, 8, 8\), strides \(256, 64, 4, 1\)",
    ),
    (
        {},
        ("forward", spec(2, 4, 8, 8, strides=(64, 8, 1)), W),
        {},
        ValueError,
        r"x\.strides must be None, or a tuple of 4 integers of 0 or more; got \(64, 8, 1\) \(shape \(2, 4, 8, 8\)\)",
    ),
    (
        {},
        ("forward", spec(2, 4, 8, 8)._replace(dtype="int64"), W),
        {},
        TypeError,
        r"x must be of a floating-point type, or int8; got int64",
    ),
    ({}, ("forward", X, W._replace(dtype="complex64")), {}, TypeError, r"w.dtype must be one of .*; got 'complex64'"),
    ({}, ("forward", X, W), {"out": Y._replace(dtype=None)}, TypeError, r"out.dtype must be one of .*; got None"),
    ({}, ("forward", X._replace(shape=5), W), {}, TypeError, r"x.shape must be a tuple of sizes.*; got 5"),
    (
        {},
        ("forward", X._replace(strides=("a", 1, 1, 1)), W),
        {},
        TypeError,
        r"x\.strides must be None, or a tuple of 4 integers of 0 or more; got \('a', 1, 1, 1\)",
    ),
    ({}, ("forward", X._replace(alignment=0), W), {}, ValueError, r"x.alignment must be a power of two, 4.*; got 0"),
    ({}, ("forward", X._replace(alignment=12), W), {}, ValueError, r"x.alignment must be a power of two.*; got 12"),
    ({}, ("forward", X, W, (2, 6, 6, 6)), {}, ValueError, r"shape must be None for forward.*; got \(2, 6, 6, 6\)"),
    ({"algorithm": "gemm"}, ("backward_filter", Y, X, W.shape), {}, ValueError, r"algorithm must .*; got 'gemm'"),
    ({}, ("forward", None, W), {}, TypeError, "x and w must be arrays or TensorSpecs; got None"),
    ({}, ("backward_data", Y, W), {}, TypeError, "x_shape must be the shape of the result where out is None; got None"),
    (
        {},
        ("backward_data", Y, W, (10**5000, 4)),
        {},
        ValueError,
        "x_shape .*of 64 bits; got an integer of 16610 bits, 4",
    ),
    ({}, ("backward_data", Y, W, (2, 4, 8)), {}, ValueError, r"x_shape must be a tuple of 4 sizes.*; got \(2, 4, 8\)"),
    ({}, ("backward_data", Y, W, (2, 4, 9, 8)), {}, ValueError, r"dy must have shape.*; got shape \(2, 6, 6, 6\)"),
    (
        {},
        ("backward_data", Y, W, (2, 4, 8, 8)),
        {"bias": spec(6)},
        ValueError,
        r"bias must be packed, of shape \(4,\); got shape \(6,\), strides None",
    ),
    ({}, ("backward_filter", Y, X, W.shape), {"activation": "relu"}, ValueError, r"activation must .*; got 'relu'"),
    ({}, ("backward_filter", Y, X), {}, TypeError, r"w_shape must be .*; got None"),
    ({}, ("backward_filter", Y, X, (5, 4, 3, 3)), {}, ValueError, r"dy must have shape.*; got shape \(2, 6, 6, 6\)"),
    ({}, ("backward_filter", Y, X._replace(dtype="float64"), W.shape), {}, TypeError, r"x must .*; got float64"),
    (
        {},
        ("backward_data", Y._replace(dtype="int8"), W._replace(dtype="int8"), X.shape),
        {},
        TypeError,
        "inputs of backward_data must be float16, bfloat16, float32 or float64; got int8, which only forward supports",
    ),
]


@pytest.mark.usefixtures("no_c")
@pytest.mark.parametrize(("options", "arguments", "keywords", "kind", "text"), BAD_CALLS)
def test_a_bad_argument_is_refused_before_any_c_call(
    options: dict[str, Any], arguments: tuple[Any, ...], keywords: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        Convolution(**options).plan(*arguments, **{"device": 0, **keywords})
    assert re.search(text, str(caught.value)), str(caught.value)


@pytest.mark.usefixtures("no_c")
@pytest.mark.parametrize(
    ("options", "x", "w", "text"),
    [
        (
            {},
            (2, 4, 5, 5),
            (3, 3, 3, 3),
            r"x must have 3 channels, as w; got 4 \(x has shape \(2, 4, 5, 5\), w \(3, 3, 3, 3\)\)",
        ),
        ({"groups": 3}, (2, 4, 5, 5), (4, 3, 3, 3), "groups must divide the 4 input channels; got 3"),
        (
            {"padding": 7},
            (2, 4, 5, 5),
            (4, 3, 3, 3),
            "the output would be empty",
        ),
        ({}, (2, 4, 5, 5), (4, 3, 3), r"w_shape must be a tuple of 4 sizes.*; got \(4, 3, 3\)"),
    ],
)
def test_a_transposed_convolution_refuses_shapes(
    options: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        ConvolutionTranspose(**options).output_shape(x, w)


@pytest.mark.parametrize("knobs", ["fast", {1: "2"}, {True: 1}, 5])
def test_an_engine_is_numbers(knobs: Any) -> None:
    with pytest.raises(TypeError, match="index and knobs must be integers"):
        Engine(3, knobs)
    with pytest.raises(TypeError, match=r"index and knobs must be integers; got Engine\('3', None\)"):
        Engine("3")  # type: ignore[arg-type]


# What a problem says of itself


def test_a_problem_knows_its_operands_and_its_sums() -> None:
    options = ConvolutionOptions(groups=2, padding=1)
    x, w, y = spec(2, 4, 8, 8), spec(6, 2, 3, 3), spec(2, 6, 8, 8)
    made = {operation: ask.make_problem(options, operation, x, w, y) for operation in ask.OPERATIONS}
    assert {operation: p.operands for operation, p in made.items()} == {
        "forward": ("x", "w", "y"),
        "backward_data": ("dy", "w", "dx"),
        "backward_filter": ("dy", "x", "dw"),
    }
    assert [p.specs[-1].shape for p in made.values()] == [y.shape, x.shape, w.shape]
    assert [p.reduction_length for p in made.values()] == [2 * 9, 3 * 9, 2 * 8 * 8]
    biased = ask.make_problem(options, "forward", x, w, y, bias=spec(6), activation="relu")
    assert biased.operands == ("x", "w", "bias", "y")
    assert [s.shape for s in biased.specs] == [x.shape, w.shape, (6,), y.shape]
    assert str(ConvolutionProblem(*biased)) == "forward 2x4x8x8 6x2x3x3 pad=1 groups=2 bias activation=relu"


# Cache keys

OTHER_OPTIONS: dict[str, tuple[Any, ...]] = {
    "padding": (1, (0, 1), ((0, 0), (0, 1)), "same", "half", "full", "valid"),
    "stride": (2, (1, 2)),
    "dilation": (2, (1, 2)),
    "groups": (2,),
    "mode": ("convolution",),
    "layout": ("NHWC", "NCW", "NWC", "NCDHW", "NDHWC"),
    "compute_dtype": ("float32", "float64", "float16"),
    "prefer": ("limited_workspace", "no_workspace", "autotune"),
    "workspace_limit": (0, 1, 1 << 30),
    "deterministic": (True,),
    "tf32": (False,),
    "algorithm": ("gemm", "fft", Engine(1), Engine(2), Engine(1, {1: 1}), Engine(1, {1: 2})),
    "policy": ("once",),
    "tune_seconds": (1.0,),
}


def test_every_value_of_every_option_has_an_identity_of_its_own() -> None:
    assert set(OTHER_OPTIONS) == {option.name for option in fields(Convolution)}
    every = [
        Convolution(),
        *(Convolution(**{name: value}) for name, values in OTHER_OPTIONS.items() for value in values),
    ]
    identities = [one._token for one in every]
    assert len(set(identities)) == len(every)
    again = [pickle.loads(pickle.dumps(one)) for one in every]
    assert [one._token for one in again] == identities


def test_every_field_of_a_problem_tells_problems_apart() -> None:
    base = ask.make_problem(ConvolutionOptions(), "forward", X, W, Y)
    others: dict[str, Any] = {
        "operation": "backward_data",
        "x": base.x._replace(alignment=4),
        "w": base.w._replace(strides=(36, 1, 12, 4)),
        "y": base.y._replace(dtype="float16"),
        "geometry": base.geometry._replace(dilation=(1, 2)),
        "groups": 2,
        "mode": "convolution",
        "compute_dtype": "float64",
        "alpha": 2.0,
        "beta": 1.0,
        "bias": spec(6),
        "activation": "relu",
        "device": 1,
    }
    assert set(others) == set(ConvolutionSpec._fields)
    every = {base, *(base._replace(**{name: value}) for name, value in others.items())}
    assert len(every) == len(others) + 1
    sides = {base._replace(geometry=base.geometry._replace(**{side: (7, 7)})) for side in sizes.Geometry._fields}
    assert len(sides) == len(sizes.Geometry._fields)
    assert cudnnpy.TensorSpec._fields == ("shape", "dtype", "strides", "alignment")


# Specs by any of the names of their dtypes


@pytest.mark.parametrize("name", ["fp32", "torch.float32", np.float32, np.dtype("float32")])
def test_a_dtype_means_the_same_by_each_of_its_names(name: Any) -> None:
    """Also to the options that look at it: tf32=False is about float32, whatever it is called."""
    x, w = (TensorSpec(t.shape, name) for t in (X, W))
    ours, same = (
        Convolution(tf32=False)._problem("forward", *given, *[None] * 4, 1.0, 0.0, 0) for given in ((x, w), (X, W))
    )
    assert ours == same
    assert is_strict(ours, ConvolutionOptions(tf32=False))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (float, "float64"),
        (np.float32, "float32"),
        ("half", "float16"),
        ("fp16", "float16"),
        ("bf16", "bfloat16"),
        ("fp32", "float32"),
        ("fp64", "float64"),
        ("torch.bfloat16", "bfloat16"),
        (raw.CUDNN_DATA_HALF, "float16"),
    ],
)
def test_tensors_and_descriptors_have_one_parser_of_data_types(name: Any, dtype: str) -> None:
    assert TensorSpec((1, 2), name).dtype == dtype
    assert names.data_type(name) is names.data_type(dtype)
    if isinstance(name, str):
        problem, _ = problem_notation.parse(f"forward 1x2x4x4 2x2x1x1 {name.removeprefix('torch.')}")
        assert problem.specs[0].dtype == dtype


def test_the_word_float_is_refused_since_numpy_and_c_mean_different_types() -> None:
    for call in (
        lambda: TensorSpec((1, 2), "float"),
        lambda: names.data_type("FLOAT"),
        lambda: Convolution(compute_dtype="float"),
        lambda: problem_notation.parse("forward 1x2x4x4 2x2x1x1 dtype=float"),
    ):
        with pytest.raises((TypeError, ValueError), match=r"(?is)float32.*float64.*got '(dtype=)?float'"):
            call()
