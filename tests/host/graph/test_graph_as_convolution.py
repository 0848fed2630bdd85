"""A convolution that is written as a Graph is the problem of Convolution; other graphs are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnnpy import Convolution, Graph, TensorSpec
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import make_problem
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy.graph.convolutions import convolution_graph
from cudnnpy.graph.operation_graph import canonical_graph
from cudnnpy.graph.problem import GraphProblem

X, W = (8, 16, 12, 10), (32, 8, 3, 3)


def tensors(g: Graph, dtype: Any, order: str = "xwb") -> dict[str, Any]:
    shapes = {"x": X, "w": W, "b": (1, 32, 1, 1)}
    return {n: g.tensor(n, TensorSpec(shapes[n], dtype, channels_last_strides(shapes[n]))) for n in order}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("activation", [None, "relu", "sigmoid", "tanh", "elu", "swish"])
@pytest.mark.parametrize("order", ["xw", "wx", "bwx", "xwb"])
def test_a_convolution_with_its_epilogue_is_convolutions_problem(order: str, activation: Any, dtype: Any) -> None:
    how: Any = {"padding": ((0, 2), (1, 1)), "stride": (2, 1), "dilation": (1, 2), "mode": "convolution"}
    g = Graph(compute_dtype="float64" if dtype == "float64" else "float32")
    given = tensors(g, dtype, order)
    top = g.convolution(given["x"], given["w"], groups=2, **how)
    if "b" in given:
        top = g.pointwise("add", top, given["b"])
    if activation is not None:
        top = g.pointwise(f"{activation}_fwd", top)
    out = g.output("out", top)
    specs = TensorSpec(X, dtype, given["x"].spec.strides), TensorSpec(W, dtype, given["w"].spec.strides)
    expected = Convolution(groups=2, **how)._problem(
        "forward",
        *specs,
        None,
        bias=TensorSpec((32,), dtype) if "b" in given else None,
        activation=activation,
        out=out.spec,
        device=0,
    )
    problem, caller = g._problem(0)
    assert isinstance(problem, ConvolutionProblem)
    assert text_of(problem) == text_of(expected)
    assert caller.names == (*order, "out")
    ours = {"x": "x", "w": "w", "bias": "b", "y": "out"}
    assert [caller.names[at] for at in caller.order] == [ours[name] for name in problem.operands]


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_a_graph_adds_as_many_products_as_its_convolution(operation: Any, groups: int) -> None:
    x, w, y = (TensorSpec(shape) for shape in ((2, 8, 9, 7), (12, 8 // groups, 3, 2), (2, 12, 7, 6)))
    problem = make_problem(ConvolutionOptions(groups=groups), operation, x, w, y)
    graph, _ = canonical_graph(convolution_graph(problem))
    assert GraphProblem(graph, 0).reduction_length == problem.reduction_length


def scaled(g: Graph) -> None:
    given = tensors(g, "float16")
    g.output("y", g.pointwise("mul", g.convolution(given["x"], given["w"], groups=2), given["b"]))


def clipped(g: Graph) -> None:
    given = tensors(g, "float16", "xw")
    g.output(
        "y", g.pointwise("relu_fwd", g.convolution(given["x"], given["w"], groups=2), how={"relu_upper_clip": 6.0})
    )


def with_two_outputs(g: Graph) -> None:
    given = tensors(g, "float16", "xw")
    y = g.output("y", g.convolution(given["x"], given["w"], groups=2))
    g.output("z", g.pointwise("relu_fwd", y))


def with_a_residual(g: Graph) -> None:
    given = tensors(g, "float16", "xw")
    y = g.convolution(given["x"], given["w"], groups=2)
    g.output("y", g.pointwise("add", y, g.tensor("r", y.spec._replace(dtype="float16"))))


def with_a_reduction(g: Graph) -> None:
    given = tensors(g, "float16")
    g.output(
        "y",
        g.pointwise("add", g.reduction("add", g.convolution(given["x"], given["w"], groups=2), (0, 2, 3)), given["b"]),
    )


def with_another_result(g: Graph) -> None:
    given = tensors(g, "float16", "xw")
    g.output("y", g.convolution(given["x"], given["w"], groups=2), "float32")


@pytest.mark.parametrize(
    "fill", [scaled, clipped, with_two_outputs, with_a_residual, with_a_reduction, with_another_result]
)
def test_a_graph_that_is_more_stays_a_graph(fill: Callable[[Graph], None]) -> None:
    g = Graph()
    fill(g)
    assert isinstance(g.problem(), GraphProblem)


def test_an_input_that_no_operation_takes_is_refused() -> None:
    g = Graph()
    given = tensors(g, "float16")
    g.output("y", g.convolution(given["x"], given["w"], groups=2))
    with pytest.raises(
        ValueError, match="must be taken by operations that an output depends on; got b, which none takes"
    ):
        g.plan()
