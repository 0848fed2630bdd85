"""Graph.check, here with a stand-in for the GPU that computes as NumPy and makes a mistake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnnpy import Graph, TensorSpec, reference
from cudnnpy._arrays import copies
from cudnnpy._layers import graph as layer
from cudnnpy.reference.graph import OutputCheck, compare

A, B = np.random.default_rng(0).uniform(-1, 1, (2, 1, 16, 16)).astype(np.float16)


def products() -> Graph:
    g = Graph()
    c = g.matmul(
        g.tensor("a", TensorSpec(A.shape, "float16")), g.tensor("b", TensorSpec(B.shape, "float16", (256, 1, 16)))
    )
    g.output("c", c)
    g.output("sums", g.reduction("add", c, (2,)), "float32")
    return g


class Gpu:
    """A GPU's memory in the host's, and a plan that computes with a mistake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, g: Graph, mistake: Any = lambda results: None) -> None:
        self.graph, self.mistake, self.arrays = g, mistake, dict[int, Any]()
        monkeypatch.setattr(copies, "copy_with_strides", self.copy)
        monkeypatch.setattr(copies, "to_numpy", lambda array: array.values)
        monkeypatch.setattr(
            layer, "empty", lambda shape, dtype, device: self.copy(np.empty(shape, dtype), None, (), device)
        )
        plan = SimpleNamespace(workspace_size=16, notes=(), execute=self.execute)
        monkeypatch.setattr(Graph, "plan", lambda graph, device: plan)

    def copy(self, values: np.ndarray, dtype: Any, strides: Any, device: int) -> Any:
        made = SimpleNamespace(values=values.copy(), pointer=16 * (len(self.arrays) + 1), strides=strides)
        self.arrays[made.pointer] = made
        return made

    def execute(self, *addresses: int) -> None:
        *operands, workspace, stream = addresses
        assert workspace in self.arrays
        assert stream == 0
        names = [node.name for node in (*self.graph.inputs, *self.graph.outputs)]
        given = dict(zip(names, (self.arrays[address] for address in operands), strict=True))
        assert given["b"].strides == (256, 1, 16)
        results = reference.run(self.graph, {name: given[name].values for name in ("a", "b")})
        assert all(np.isnan(given[name].values).all() for name in results)  # poisoned
        self.mistake(results)
        for name, values in results.items():
            given[name].values[...] = values


def test_a_right_run_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    g = products()
    Gpu(monkeypatch, g)
    found = g.check({"a": A, "b": B})
    assert list(found) == ["c", "sums"]
    assert all(one.is_right and one.error == 0 and one.unchecked == 0 for one in found.values())
    assert str(found["c"]).startswith("right; largest error 0 of ")


@pytest.mark.parametrize("factor", [1.02, np.nan, np.inf, -1.0])
def test_one_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def mistake(results: dict[str, np.ndarray]) -> None:
        results["c"][0, 3, place] *= factor

    place = int(np.argmax(np.abs(A.astype(np.float32) @ B.astype(np.float32))[0, 3]))
    g = products()
    Gpu(monkeypatch, g, mistake)
    found = g.check({"a": A, "b": B})
    assert (found["c"].is_right, found["c"].place) == (False, (0, 3, place))
    assert found["c"].error > found["c"].tolerance > 0
    assert found["sums"].is_right


def test_a_result_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    g = products()
    Gpu(monkeypatch, g, lambda results: results.pop("sums"))
    found = g.check({"a": A, "b": B})
    assert not found["sums"].is_right
    assert found["sums"].error == np.inf


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ({"a": A}, TypeError, "arrays must be the graph's inputs, by name; got no b"),
        ({"a": A, "b": B[:, :4]}, ValueError, "b must have the graph's shape"),
        ([A, B], TypeError, "arrays must be a dict of arrays by name"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_planning(
    monkeypatch: pytest.MonkeyPatch, arrays: Any, kind: type[Exception], message: str
) -> None:
    monkeypatch.setattr(Graph, "plan", lambda graph, device: pytest.fail("it was planned"))
    with pytest.raises(kind, match=message):
        products().check(arrays)


def test_equal_infinities_and_nan_are_no_difference() -> None:
    same = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert compare(same, same, np.zeros(4)).is_right
    other = compare(np.array([np.nan, 1.0]), np.array([1.0, 1.0]), np.ones(2))
    assert (other.is_right, other.place, other.error) == (False, (0,), np.inf)
    assert compare(np.array([2.0, 1.0]), np.array([1.0, 1.0]), np.array([np.inf, 0.0])) == OutputCheck(
        True, 1.0, np.inf, (0,), 2.0, 1.0, 1
    )
    assert compare(np.empty((0, 3)), np.empty((0, 3)), np.empty((0, 3))).is_right
