"""Arrays without elements: results of the right shape and type, gradients of parameters that are 0, and no launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import (
    Activation,
    Convolution,
    ConvolutionTranspose,
    FusedConvolution,
    Graph,
    Pooling,
    Softmax,
    TensorSpec,
    reference,
)

nn: Any = cudnnpy
untyped_reference: Any = reference
W, BIAS = (6, 4, 3, 3), (6,)

# Calls whose results have no elements: what is made of a package, the method's name, the arrays' shapes, the keywords.
CALLS: list[tuple[str, Any, str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("convolution", lambda nn: nn.Convolution(padding=1), "forward", [(0, 4, 8, 8), W, BIAS], {"activation": "relu"}),
    ("1 axis", lambda nn: nn.Convolution(), "forward", [(0, 4, 8), (6, 4, 3)], {}),
    ("3 axes", lambda nn: nn.Convolution(), "forward", [(0, 4, 8, 8, 8), (6, 4, 3, 3, 3)], {}),
    ("NHWC", lambda nn: nn.Convolution(layout="NHWC"), "forward", [(0, 8, 8, 4), (6, 3, 3, 4)], {}),
    (
        "gradient to x",
        lambda nn: nn.Convolution(),
        "backward_data",
        [(0, 6, 6, 6), W],
        {"x_shape": (0, 4, 8, 8)},
    ),
    ("channels", lambda nn: nn.Convolution(), "backward_data", [(2, 6, 6, 6), (6, 0, 3, 3)], {"x_shape": (2, 0, 8, 8)}),
    (
        "filters",
        lambda nn: nn.Convolution(),
        "backward_filter",
        [(2, 6, 6, 6), (2, 0, 8, 8)],
        {"w_shape": (6, 0, 3, 3)},
    ),
    ("transposed", lambda nn: nn.ConvolutionTranspose(stride=2), "forward", [(0, 6, 4, 4), W], {}),
    ("extended", lambda nn: nn.ConvolutionTranspose(dilation=3, output_padding=2), "forward", [(0, 6, 4, 4), W], {}),
    ("its gradient", lambda nn: nn.ConvolutionTranspose(stride=2), "backward_data", [(0, 4, 9, 9), W], {}),
    ("fused", lambda nn: nn.FusedConvolution(), "forward", [(0, 4, 8, 8), W, BIAS, BIAS, (0, 6, 6, 6)], {}),
    ("pooling", lambda nn: nn.Pooling(), "forward", [(0, 4, 7, 7)], {}),
    ("its gradient", lambda nn: nn.Pooling(), "backward", [(0, 4, 3, 3), (0, 4, 7, 7), (0, 4, 3, 3)], {}),
    ("softmax", lambda nn: nn.Softmax(), "forward", [(0, 4, 5)], {}),
    ("no channels", lambda nn: nn.Softmax("log"), "forward", [(3, 0)], {}),
    ("its gradient", lambda nn: nn.Softmax(layout="NHWC"), "backward", [(3, 0, 4, 5), (3, 0, 4, 5)], {}),
    ("activation", lambda nn: nn.Activation("tanh"), "forward", [(4, 0, 2)], {}),
    ("of 1 axis", lambda nn: nn.Activation("identity"), "forward", [(0,)], {}),
    ("its gradient", lambda nn: nn.Activation("swish"), "backward", [(0, 3)] * 3, {}),
]


@pytest.mark.parametrize(("make", "method", "shapes", "keywords"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_results_without_elements(
    stand_in: StandInDevice, make: Any, method: str, shapes: list[tuple[int, ...]], keywords: dict[str, Any], dtype: str
) -> None:
    """As the reference has them, new or in out; nothing is launched, planned or allocated."""
    arrays = [Array(*shape, dtype=dtype) for shape in shapes]
    hosts = [np.ones(shape, dtype) for shape in shapes]
    for _ in range(2):
        found = getattr(make(nn), method)(*arrays, **keywords)
        expected = getattr(make(untyped_reference), method)(*hosts, **keywords)
        assert (type(found), found.shape, found.dtype) == (Array, expected.shape, expected.dtype.name)
    out = Array(*found.shape, dtype=found.dtype)
    scaled = type(make(nn)) is not FusedConvolution
    more = {"beta": 0.5} if scaled and not keywords.get("activation") else {}
    assert getattr(make(nn), method)(*arrays, out=out, **{**keywords, **more}) is out
    assert stand_in.launches == []
    assert stand_in.choices == stand_in.planned_graphs == stand_in.allocated == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_gradients_of_parameters_are_0_or_beta_times_out(stand_in: StandInDevice, dtype: str) -> None:
    x, dy = Array(0, 4, 8, 8, dtype=dtype), Array(0, 6, 6, 6, dtype=dtype)
    fill = {"float32": "cuMemsetD32Async", "bfloat16": "cuMemsetD16Async", "float64": "cudnnSetTensor"}[dtype]
    conv, up = Convolution(), ConvolutionTranspose()
    calls = [
        (lambda **o: conv.backward_filter(dy, x, W, **o), W),
        (lambda **o: conv.backward_bias(dy, **o), (6,)),
        (lambda **o: up.backward_filter(x, dy, W, **o), W),
        (lambda **o: up.backward_bias(x, **o), (4,)),
    ]
    for call, shape in calls:
        stand_in.launches.clear()
        made = call()
        assert (made.shape, made.dtype) == (shape, dtype)
        assert [launch.name for launch in stand_in.launches] == [fill]
        out = Array(*shape, dtype=dtype)
        assert call(out=out, beta=0.5) is out
        assert [launch.name for launch in stand_in.launches[1:]] == ["cudnnScaleTensor"]
        if fill.startswith("cuMemset"):
            assert stand_in.launches[0].arguments[1] == 0
    assert stand_in.choices == stand_in.planned_graphs == []


def test_sums_over_no_channels_plan_a_convolution_of_zeros(stand_in: StandInDevice) -> None:
    x, w = Array(2, 0, 8, 8), Array(6, 0, 3, 3)
    y = Convolution(padding=1, groups=2).forward(x, w, Array(6), "relu")
    assert y.shape == (2, 6, 8, 8)
    ((problem, _, _),) = stand_in.choices
    assert (problem.x.shape, problem.w.shape, problem.y.shape) == ((2, 4, 8, 8), (6, 4, 1, 1), (2, 6, 8, 8))
    assert (problem.bias is not None, problem.activation, problem.groups) == (True, "relu", 1)
    assert [launch.name for launch in stand_in.launches] == ["cuMemsetD32Async"] * 2 + ["cudnnBackendExecute"]
    z = FusedConvolution(padding=1).forward(x, w, bias=Array(6))
    assert z.shape == y.shape
    assert [launch.name for launch in stand_in.launches[3:]].count("cudnnBackendExecute") == 1


def test_a_call_that_is_refused_is_refused_for_nothing_too(stand_in: StandInDevice) -> None:
    nothing = Array(0, 4, 8, 8)
    cases: list[tuple[Any, str]] = [
        (
            lambda: Convolution().forward(nothing, Array(6, 3, 3, 3)),
            r"x must have 3 channels, .*; got 4 \(x has shape \(0, 4, 8, 8\), w \(6, 3, 3, 3\)\)",
        ),
        (
            lambda: Convolution().forward(nothing, Array(6, 4, 9, 9)),
            "the output would be empty",
        ),
        (lambda: Convolution().forward(nothing, Array(*W), beta=1.0), "beta must be 0 where out is None; got 1.0"),
        (lambda: Convolution().forward(nothing, Array(0, 4, 3, 3)), "w must have sizes of 1 or more, except for C"),
        (lambda: Convolution().backward_bias(Array(2, 4, 0, 8)), "dy must have sizes of 1 or more, except for a batch"),
        (
            lambda: ConvolutionTranspose().forward(Array(2, 0, 8, 8), Array(0, 4, 3, 3)),
            r"w_shape must be .* sizes of 1 or more",
        ),
        (
            lambda: ConvolutionTranspose().forward(Array(2, 6, 0, 8), Array(*W)),
            "x must have sizes of 1 or more, except",
        ),
        (lambda: Pooling(window=9).forward(nothing), r"window must be at most 8.*; got 9"),
        (lambda: Pooling().forward(Array(2, 0, 8, 8)), "x must have sizes of 1 or more, except for a batch of 0"),
        (lambda: Softmax().forward(nothing, Array(0, 4, 8, 9)), r"out must have shape \(0, 4, 8, 8\)"),
        (lambda: Activation().forward(nothing, alpha=float("nan")), r"alpha must .*; got nan"),
    ]
    for call, text in cases:
        with pytest.raises((ValueError, TypeError), match=text):
            call()
    assert stand_in.launches == []


def test_memory_order_of_an_empty_result(stand_in: StandInDevice) -> None:
    """Like x's, as for arrays that have elements."""
    x = Array(0, 4, 8, 8, strides=(256, 1, 32, 4))
    assert Convolution().forward(x, Array(*W)).strides == (216, 1, 36, 6)
    assert Pooling().forward(x).strides == (64, 1, 16, 4)
    assert Activation().forward(x).strides == x.strides
    unknown = Array(0, 4, 8, 8)
    unknown.strides = (0, 0, 0, 0)  # as NumPy has them
    assert Convolution().forward(unknown, Array(*W)).shape == (0, 6, 6, 6)


# Graphs


def graph_of(*shape: int) -> Graph:
    made = Graph()
    x, w, b = (
        made.tensor("x", TensorSpec(shape)),
        made.tensor("w", TensorSpec(W)),
        made.tensor("b", TensorSpec((1, 6, 1, 1))),
    )
    made.output("y", made.pointwise("relu_fwd", made.pointwise("add", made.convolution(x, w), b)))
    return made


def test_a_graph_of_an_empty_batch(stand_in: StandInDevice) -> None:
    made = graph_of(0, 4, 8, 8)
    arrays = {"x": Array(0, 4, 8, 8), "w": Array(*W), "b": Array(1, 6, 1, 1)}
    y = made.run(**arrays)
    assert (type(y), y.shape, y.dtype) == (Array, (0, 6, 6, 6), "float32")
    out = Array(0, 6, 6, 6)
    assert made.run(**arrays, y=out) is out
    assert stand_in.planned_graphs == stand_in.launches == []
    with pytest.raises(ValueError, match=r"^x must have the graph's shape"):
        made.run(**{**arrays, "x": Array(0, 4, 9, 9)})
    with pytest.raises(ValueError, match=r"^a planned graph must have elements; got none in x"):
        made.plan()


def test_shapes_of_nodes_without_elements() -> None:
    made = Graph()
    x, one = made.tensor("x", TensorSpec((0, 4, 8, 8))), made.tensor("one", TensorSpec((1, 4, 1, 1)))
    assert made.pointwise("add", one, x).shape == made.pointwise("add", x, one).shape == (0, 4, 8, 8)
    assert made.reduction("add", x, (1, 2, 3)).shape == (0, 1, 1, 1)
    assert made.resample("maxpool", x, 2).shape == (0, 4, 4, 4)
    a, b = made.tensor("a", TensorSpec((0, 2, 3))), made.tensor("b", TensorSpec((1, 3, 4)))
    assert made.matmul(a, b).shape == (0, 2, 4)
    with pytest.raises(
        ValueError,
        match=r"x, b and t must have the same size, or 1, on each axis; got shapes \[\(0, 4, 8, 8\), \(2, 4, 8, 8\)\]",
    ):
        made.pointwise("add", x, made.tensor("two", TensorSpec((2, 4, 8, 8))))
    for shape, filters in (((2, 0, 8, 8), (6, 0, 3, 3)), ((2, 4, 8, 8), (0, 4, 3, 3))):
        with pytest.raises(ValueError, match="x and w must have sizes of 1 or more, except for a batch of 0"):
            other = Graph()
            other.convolution(other.tensor("x", TensorSpec(shape)), other.tensor("w", TensorSpec(filters)))


def test_a_graph_whose_result_has_elements_is_refused(stand_in: StandInDevice) -> None:
    made = Graph()
    x = made.tensor("x", TensorSpec((0, 4, 8, 8)))
    made.output("sum", made.reduction("add", x, (0,)))
    with pytest.raises(
        ValueError, match=r"^sum must have no elements where x has none; got shape \(1, 4, 8, 8\)\. For such inputs use"
    ):
        made.run(x=Array(0, 4, 8, 8))
    assert stand_in.launches == []
