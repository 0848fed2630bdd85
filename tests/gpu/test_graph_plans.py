"""Plans of graphs and of fused convolutions: through their text, tuned, and where memory is scarce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from plan_runs import result_of
from planted import search
from whole_numbers import exact_result, to_host, whole_numbers

import cudnnpy
from cudnnpy import Graph, Plan, TensorSpec

X, W = (4, 32, 14, 14), (64, 32, 3, 3)

Drawn = tuple[Graph, dict[str, torch.Tensor], Any]


def channels_last(array: torch.Tensor) -> TensorSpec:
    """The description of an array that lies channels last, those of its axes of size 1 too."""
    n, c, h, w = array.shape
    return TensorSpec((n, c, h, w), str(array.dtype).removeprefix("torch."), (c * h * w, 1, w * c, c))


def fused(**options: Any) -> Drawn:
    """Convolution, bias, relu: fused by engines with and without compilation at run time."""
    x, w = whole_numbers(*X, dtype="float16", last=True), whole_numbers(*W, dtype="float16", last=True, seed=1)
    bias = whole_numbers(1, 64, 1, 1, dtype="float16", seed=2)
    g = Graph(**options)
    nodes = [g.tensor(name, channels_last(array)) for name, array in (("x", x), ("w", w), ("bias", bias))]
    g.output("y", g.pointwise("relu_fwd", g.pointwise("add", g.convolution(*nodes[:2], padding=1), nodes[2])))
    right = exact_result("forward", x, w, padding=1, bias=to_host(bias).reshape(-1), activation="relu")
    return g, {"x": x, "w": w, "bias": bias}, right


def scaled(**options: Any) -> Drawn:
    """A number that is fixed with the graph; engines are compiled at run time."""
    x = whole_numbers(*X, dtype="float16", last=True)
    g = Graph(**options)
    g.output("y", g.pointwise("mul", g.tensor("x", channels_last(x)), g.number(0.5)))
    return g, {"x": x}, 0.5 * to_host(x)


def product(**options: Any) -> Drawn:
    a, b = whole_numbers(4, 128, 64, dtype="float16"), whole_numbers(4, 64, 32, dtype="float16", seed=1)
    g = Graph(**options)
    g.output("c", g.matmul(g.tensor("a", a), g.tensor("b", b)))
    return g, {"a": a, "b": b}, to_host(a) @ to_host(b)


def sums(**options: Any) -> Drawn:
    x = whole_numbers(512, 64, 1, 1)
    g = Graph(**options)
    g.output("y", g.reduction("add", g.tensor("x", channels_last(x)), (0,)))
    return g, {"x": x}, to_host(x).sum(0, keepdims=True)


DRAWN = pytest.mark.parametrize("draw", [fused, scaled, product, sums])


@DRAWN
def test_a_graphs_plan_survives_its_text(draw: Callable[..., Drawn]) -> None:
    g, arrays, right = draw()
    plan = g.plan()
    again = Plan.from_json(plan.to_json())
    for fact in ("name", "source", "notes", "deterministic", "operands", "workspace_size", "problem", "engine"):
        assert getattr(again, fact) == getattr(plan, fact)
    for one in (plan, again):
        np.testing.assert_allclose(to_host(result_of(one, *arrays.values())), right, rtol=2.0**-10)


@DRAWN
def test_a_tuned_graph_is_right_and_its_plan_survives_its_text(draw: Callable[..., Drawn]) -> None:
    g, arrays, right = draw(prefer="autotune", tune_seconds=2.0)
    np.testing.assert_allclose(to_host(g.run(**arrays)), right, rtol=2.0**-10)
    plan = g.plan()
    assert plan.milliseconds is not None
    again = Plan.from_json(plan.to_json())
    assert (again.engine, again.milliseconds) == (plan.engine, plan.milliseconds)
    np.testing.assert_allclose(to_host(result_of(again, *arrays.values())), right, rtol=2.0**-10)


def test_the_best_engines_of_a_graph_are_tried_with_other_knobs() -> None:
    g, _, _ = fused(tune_seconds=20.0)
    chosen, considered = search(g.problem(0), g.options)
    assert chosen.milliseconds is not None
    assert "knobs" in {candidate.source for candidate in considered}
    assert not [
        candidate.rejection_reason for candidate in considered if candidate.rejection_reason.startswith("wrong result")
    ]


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_a_graph_whose_memory_cannot_be_had_takes_the_next_candidate(prefer: str) -> None:
    g, arrays, right = fused(prefer=prefer, tune_seconds=1.0)
    asked: list[int] = []

    def allocate(size: int, device: int, stream: int) -> torch.Tensor:
        asked.append(size)
        raise MemoryError(f"{size} bytes are more than there are")

    cudnnpy.set_allocator(allocate)
    found = g.run(**arrays)
    np.testing.assert_allclose(to_host(found), right, rtol=2.0**-10)
