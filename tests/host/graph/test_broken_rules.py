"""The rules of cuDNN's engines that the error of a graph begins with, with the real libcudnn and a device profile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sample_graphs
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile, Graph, TensorSpec
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.graph.broken_rules import broken_rule
from cudnnpy.graph.operation_graph import Operation, OperationGraph
from cudnnpy.graph.operation_graph import Tensor as GraphTensor

X = sample_graphs.channels_last(sample_graphs.X)


def softmax(g: Graph) -> Graph:
    x = g.tensor("x", TensorSpec((4, 128, 64), "float32"))
    weights = g.pointwise("exp", g.pointwise("sub", x, g.reduction("max", x, (2,))))
    g.output("y", g.pointwise("div", weights, g.reduction("add", weights, (2,))))
    return g


def product(*shape: int) -> Callable[[Graph], Graph]:
    def made(g: Graph) -> Graph:
        a, b = (g.tensor(name, TensorSpec(shape, "float16")) for name in "ab")
        g.output("c", g.matmul(a, b))
        return g

    return made


def attention_for_inference(g: Graph) -> Graph:
    return sample_graphs.attention(g, has_statistics=False)


def bilinear(g: Graph) -> Graph:
    g.output("y", g.resample("bilinear", g.tensor("x", X), 2))
    return g


def mean(g: Graph) -> Graph:
    g.output("y", g.reduction("avg", g.tensor("x", X), (0, 2, 3)))
    return g


def relu_of_a_matrix(g: Graph) -> Graph:
    g.output("y", g.pointwise("relu_fwd", g.tensor("x", TensorSpec((64, 64), "float16"))))
    return g


REFUSED = [
    (sample_graphs.product_in_float64, "no engine takes float64, except for convolutions"),
    (softmax, "no engine computes a softmax alone"),
    (product(64, 64), "a matmul must have three axes, (batch, M, K) by (batch, K, N)"),
    (product(2, 4, 64, 64), "a matmul must have three axes"),
    (attention_for_inference, "attention must have its statistics as an output"),
    (bilinear, "no engine resamples by bilinear"),
    (mean, "no engine reduces by another operation than add"),
    (relu_of_a_matrix, "tensors of pointwise operations must have four axes"),
]


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_the_error_of_a_graph_that_no_engine_computes_begins_with_the_rule() -> None:
    h200 = DeviceProfile.load("h200")
    for make, begin in REFUSED:
        with pytest.raises(NoAlgorithmError) as caught:
            make(Graph()).plan(h200)
        rule, title, *_ = str(caught.value).splitlines()
        assert rule.startswith(begin)
        assert title.startswith("no algorithm for graph of ")
        assert "channels last" not in str(caught.value)  # which is no remedy while the rule is broken


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_attention_that_no_engine_computes_is_not_told_about_channels_last() -> None:
    g = Graph()
    q, k, v = (g.tensor(name, TensorSpec((1, 2, 64, 36), "float16")) for name in "qkv")  # 36 is no multiple of 8
    g.output("o", g.add("sdpa_fwd", q=q, k=k, v=v, scale=0.125)["o"])
    with pytest.raises(NoAlgorithmError) as caught:
        g.plan(DeviceProfile.load("h200"))
    assert "channels last" not in str(caught.value)


@pytest.mark.parametrize("kind", ["concat", "reshape", "rng", "slice", "softmax", "transpose"])
def test_kinds_that_no_engine_computes_alone(kind: str) -> None:
    spec = TensorSpec((4, 64, 64), "float16", (4096, 64, 1))
    alone = OperationGraph(
        (GraphTensor(1, spec), GraphTensor(2, spec)), (Operation(kind, (), (("x", 1),), (("y", 2),)),)
    )
    assert broken_rule(alone).startswith("no engine computes a ")
    product = Operation("matmul", (), (("a", 2), ("b", 1)), (("c", 3),))
    assert broken_rule(OperationGraph((*alone.tensors, GraphTensor(3, spec)), (*alone.operations, product))) == ""


def test_graphs_that_are_planned_break_none() -> None:
    for make in {*sample_graphs.GRAPHS.values(), sample_graphs.attention} - {sample_graphs.product_in_float64}:
        assert sample_graphs.as_graph(make(Graph())).broken_rule == ""
