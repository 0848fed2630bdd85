"""Sums by the reduction nodes of graphs as they are planned, carried out with NumPy (numpy_machine.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_machine import planned_sum, run_steps, tensor_in

from cudnnpy import Graph, TensorSpec
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.steps import StepSequence
from cudnnpy._layers.lowerings import sums as reductions
from cudnnpy._layers.lowerings.sums import sum_by_graphs

CALL = Call(Specs(), {}, 0, 0, {})


@pytest.fixture(autouse=True, scope="module")
def short_rows() -> Iterator[None]:
    """Limits so that small tensors have long rows."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_MAX_ROW_ELEMENTS": 32, "_PART": 32, "_MIN_BYTES": 0}.items():
            patch.setattr(reductions, name, value)
        patch.setattr(Graph, "_plan_if_supported", planned_sum)
        yield


def planned(x: TensorSpec, y: TensorSpec, alpha: float = 1.0, beta: float = 0.0) -> StepSequence | None:
    return sum_by_graphs(CALL, x, y, alpha, beta)


def summed(shape: tuple[int, ...], kept: tuple[int, ...], dtype: Any = "float32", last: bool = False) -> Any:
    """The plan of a sum of a packed tensor."""
    strides = channels_last_strides(shape) if last else packed_strides(shape)
    return planned(TensorSpec(shape, dtype, strides), TensorSpec(kept, dtype, packed_strides(kept)))


def check(steps: StepSequence, x: TensorSpec, y: TensorSpec, alpha: float, beta: float) -> None:
    """The steps compute what NumPy does, and leave x as it was."""
    rng = np.random.default_rng(0)
    memory, out = (rng.integers(-4, 5, math.prod(spec.shape)).astype(spec.dtype) for spec in (x, y))
    kept, before = memory.copy(), tensor_in(out, y).astype(np.float64)
    run_steps(steps.steps, steps.scratch, memory, out)
    axes = tuple(axis for axis, size in enumerate(y.shape) if size == 1)
    exact = alpha * tensor_in(kept, x).astype(np.float64).sum(axes, keepdims=True) + beta * before
    np.testing.assert_array_equal(memory, kept)
    found = tensor_in(out, y).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2e-3 if x.dtype == "float16" else 1e-5, atol=1e-3)


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 16, 64]), min_size=3, max_size=5).filter(lambda s: math.prod(s) <= 20_000),
    st.randoms(use_true_random=False),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from([(1.0, 0.0), (2.0, 0.0), (-0.5, 3.0)]),
)
def test_the_steps_add_up_what_numpy_does(
    shape: list[int], random: Any, dtype: Any, scales: tuple[float, float]
) -> None:
    """x and the result lie in any order of memory."""
    kept = [random.choice([1, size]) for size in shape]
    orders = [random.sample(range(len(shape)), len(shape)) for _ in range(2)]
    x, y = (
        TensorSpec(tuple(sizes), dtype, packed_strides(sizes, order))
        for sizes, order in zip((shape, kept), orders, strict=True)
    )
    steps = planned(x, y, *scales)
    assert (steps is None) == (shape == kept)
    if steps is not None:
        check(steps, x, y, *scales)


@pytest.mark.parametrize(
    ("length", "parts"), [(32, [32]), (33, None), (64, [32, 2]), (34, [17, 2]), (37, None), (2048, [32, 32, 2])]
)
def test_long_rows_are_summed_in_parts(length: int, parts: list[int] | None) -> None:
    """cudnnReduceTensor or a pooling takes a row without a divisor."""
    steps = summed((3, length), (3, 1))
    found = steps and [step.executable.graph.inputs[0].shape[1] for step in steps.steps]
    assert found == parts


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "is_preferred"),
    [("float32", 1500, 8, True), ("float32", 1500, 3, False), ("float32", 1000, 8, False), ("float16", 1500, 8, False)],
)
def test_the_engine_for_columns(dtype: Any, rows: int, columns: int, is_preferred: bool) -> None:
    (step,) = summed((rows, columns), (1, columns), dtype).steps
    assert step.executable.graph.inputs[0].shape == (rows, columns, 1, 1)
    assert (step.executable.preferred is not None) == is_preferred


def test_autotune_chooses_the_engine_for_columns() -> None:
    """For the time that it is given; other preferences measure nothing."""
    x, y = TensorSpec((1500, 8), "float32", (8, 1)), TensorSpec((1, 8), "float32", (8, 1))
    found = []
    for seconds in (None, 0.5):
        steps = sum_by_graphs(CALL, x, y, 1.0, 0.0, seconds)
        assert steps is not None
        found.append(steps.steps[0].executable)
    assert [one.graph.options.prefer for one in found] == ["fastest", "autotune"]
    assert [one.preferred is None for one in found] == [False, True]
    assert found[1].graph.options.tune_seconds == 0.5


def test_a_result_that_no_engine_writes_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float32(graph: Graph, *given: Any) -> Any:
        return planned_sum(graph, *given) if graph.outputs[0].spec.dtype == "float32" else None

    monkeypatch.setattr(Graph, "_plan_if_supported", in_float32)
    x, y = TensorSpec((40, 3), "float16", (3, 1)), TensorSpec((1, 3), "float16", (3, 1))
    steps = planned(x, y)
    assert steps is not None
    assert len(steps.steps) == 2
    check(steps, x, y, 1.0, 0.0)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float64"}, {"alignment": 8}, {"strides": (6, 2)}],
    ids=["float64", "misaligned", "with gaps"],
)
def test_what_graphs_do_not_sum(change: dict[str, Any]) -> None:
    x, y = TensorSpec((40, 3), "float32", (3, 1)), TensorSpec((1, 3), "float32", (3, 1))
    assert planned(x, y) is not None
    assert planned(x._replace(**change), y) is None


def test_without_an_engine_there_is_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "_plan_if_supported", lambda *_: None)
    assert summed((40, 3), (1, 3)) is None


def test_small_tensors_are_not_worth_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "_MIN_BYTES", 1 << 13)
    assert summed((682, 3), (1, 3)) is None
    assert summed((683, 3), (1, 3)) is not None
