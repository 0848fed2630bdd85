"""The example of each kind of operation: what it computes in NumPy, and whether it has a plan for a GPU that is not here."""

from __future__ import annotations

from collections.abc import Callable

import graph_kinds
import numpy as np
import pytest
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile, Graph, NoAlgorithmError, TensorSpec, raw, reference
from cudnnpy._layers.graph import Node
from cudnnpy.errors import PlanningError
from cudnnpy.graph.kinds import KINDS
from tools import graph_kinds as page

RELEASE = "{}.{}".format(*divmod(raw.version() // 100, 100))


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_evaluated(kind: str) -> None:
    example = graph_kinds.example(kind)
    assert kind in example.graph.operations
    results = reference.run(example.graph, example.arrays)
    allowed = reference.tolerance(example.graph, example.arrays)
    for name, array in results.items():
        assert np.isfinite(array.astype(np.float64)).all()
        assert np.isfinite(allowed[name]).all() or kind == "pointwise"  # a comparison may go either way


@needs_profiles
@pytest.mark.skipif(RELEASE not in page.PLANNED, reason="the page has no column for the loaded release")
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_which_examples_have_a_plan(kind: str) -> None:
    graph = graph_kinds.example(kind).graph
    try:
        plan = graph.plan(DeviceProfile.load("h200"))
    except (NoAlgorithmError, PlanningError):
        assert kind not in page.PLANNED[RELEASE]
    else:
        assert kind in page.PLANNED[RELEASE]
        assert plan.entry is not None


def test_the_page_is_what_the_table_says() -> None:
    assert page.main(["--check"]) == 0


# Graphs that need more than the example of a kind


def ragged_product(g: Graph) -> None:
    offsets = g.tensor("offsets", TensorSpec((3, 1, 1), "int32"))
    a = g.tensor("a", TensorSpec((2, 64, 32), "float16"), ragged=offsets)
    g.output("c", g.matmul(a, g.tensor("b", TensorSpec((2, 32, 64), "float16"))))


def layer_norm_of_a_sum(g: Graph) -> None:
    """Its engine asks CUDA's runtime for the driver when it is planned."""

    def rows(name: str, count: int) -> Node:
        return g.tensor(name, TensorSpec((count, 768, 1, 1), "float32", (768, 1, 768, 768)))

    total = g.output("total", g.pointwise("add", rows("x", 4096), rows("residual", 4096), dtype="bfloat16"))
    results = g.normalization("layer_norm", total, rows("scale", 1), rows("bias", 1), 1e-5)
    for name, node in zip(("y", "mean", "inv_variance"), results, strict=True):
        g.output(name, node, "float32")


def gradient_of_an_inference(g: Graph) -> None:
    """Through a relu to a batch normalization by its statistics."""
    x, dy = (g.tensor(name, TensorSpec((4, 32, 16, 16), "float16", (8192, 1, 512, 32))) for name in ("x", "dy"))
    names = ("scale", "bias", "mean", "inv_variance")
    of_channels = {name: g.tensor(name, TensorSpec((1, 32, 1, 1), "float32", (32, 1, 32, 32))) for name in names}
    y = g.add("norm_forward", x=x, mode="batch_norm", phase="inference", **of_channels)["y"]
    slope = g.pointwise("relu_bwd", dy, y, dtype="float16")
    given = [of_channels[name] for name in ("scale", "mean", "inv_variance")]
    results = g.normalization_backward("batch_norm", slope, x, *given)
    for name, node in zip(("dx", "dscale", "dbias"), results, strict=True):
        g.output(name, node, "float16" if name == "dx" else "float32")


@needs_profiles
@pytest.mark.skipif(RELEASE not in page.PLANNED, reason="the releases with which these were tried")
@pytest.mark.parametrize("build", [ragged_product, layer_norm_of_a_sum, gradient_of_an_inference])
def test_a_graph_has_a_plan(build: Callable[[Graph], None]) -> None:
    g = Graph()
    build(g)
    assert g.plan(DeviceProfile.load("h200")).entry is not None


@needs_profiles
@pytest.mark.skipif(raw.version() < 92000, reason="the first release with the kinds diagonal_band_mask and softmax")
@pytest.mark.parametrize("bound", [None, 5.0, 5])
def test_a_mask_takes_lengths_and_bounds_by_value(bound: float | None) -> None:
    g = Graph()
    q, v = (g.tensor(name, TensorSpec((2, 4, 64, 64), "float16")) for name in "qv")
    scores = g.matmul(q, g.tensor("k", TensorSpec((2, 4, 64, 64), "float16", (16384, 4096, 1, 64))))
    left = (
        {}
        if bound is None
        else {"left_bound": g.number(bound, dtype="float32" if isinstance(bound, float) else "int32")}
    )
    given = {"b": -1e9, "comparison_mode": "cmp_ge", "seq_len_q": 64, "seq_len_kv": 64, **left}
    weights = g.add("softmax", x=g.add("diagonal_band_mask", x=scores, **given)["y"], dtype="float16")["y"]
    g.output("o", g.matmul(weights, v))
    assert g.plan(DeviceProfile.load("h200")).entry is not None


def test_a_reduction_to_groups_adds_neighbours() -> None:
    g = Graph()
    x = g.tensor("x", TensorSpec((2, 8, 3, 4), "float32"))
    g.output("y", g.add("reduction", x=x, op="add", shape=(2, 2, 3, 1))["y"])
    values = np.random.default_rng(0).standard_normal((2, 8, 3, 4)).astype(np.float32)
    expected = values.astype(np.float64).reshape(2, 2, 4, 3, 4).sum((2, 4))[..., None]
    np.testing.assert_allclose(reference.run(g, {"x": values})["y"], expected, rtol=1e-6)


def test_a_number_is_an_operand_of_a_pointwise_operation() -> None:
    g = Graph()
    g.output("y", g.pointwise("mul", g.tensor("x", TensorSpec((2, 3, 4), "float16")), 0.5))
    values = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    np.testing.assert_array_equal(reference.run(g, {"x": values})["y"], values / 2)
