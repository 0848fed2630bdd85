"""Serialized plans of graphs: their text, the plans that are loaded from it, and rejected texts."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_candidates import made_up
from planning import Planner
from sample_graphs import FUSED, GRAPHS, as_graph

from cudnnpy import Graph, Plan, TensorSpec, raw
from cudnnpy._planning import candidates
from cudnnpy._planning import plan as plans
from cudnnpy._planning.choice import Engine, digest
from cudnnpy._planning.engines import engine_name
from cudnnpy._planning.problem_notation import ProblemTextError, parse, text_of
from cudnnpy.errors import StatusError
from cudnnpy.graph.problem import GraphProblem


def pooled(g: Graph) -> Graph:
    """With options of every kind, a number beyond the finite ones among them."""
    x = g.tensor("x", TensorSpec((2, 4, 8, 8), "float16", alignment=2))
    top = g.resample("maxpool", x, (3, 2), padding=1, stride=2)
    top = g.pointwise("relu_fwd", top, how={"relu_lower_clip": 0.25, "relu_upper_clip": math.inf})
    g.output("y", g.pointwise("min", top, g.number(math.inf)), "float32")
    return g


def running(g: Graph) -> Graph:
    """A batch normalization with running statistics."""
    x = g.tensor("x", TensorSpec((4, 8, 5, 5)))
    s, b, m, v = (g.tensor(name, TensorSpec((1, 8, 1, 1))) for name in "sbmv")
    made = g.normalization("batch_norm", x, s, b, 1e-3, running=(m, v), average_factor=0.1)
    for name, node in zip(("y", "mean", "inverse", "mean2", "variance2"), made, strict=True):
        g.output(name, node)
    return g


def in_three_dimensions(g: Graph) -> Graph:
    """With padding that differs before and after; the operation's own result is an input of another, and in memory."""
    x, w = g.tensor("x", TensorSpec((2, 4, 6, 6, 6))), g.tensor("w", TensorSpec((8, 2, 3, 3, 3)))
    y = g.convolution(
        x, w, padding=((0, 1), (1, 1), (2, 0)), stride=(1, 2, 1), dilation=2, groups=2, mode="convolution"
    )
    g.output("y", y)
    g.output("most", g.reduction("amax", y, (0, -1)))
    return g


MADE = {**GRAPHS, **{function.__name__: function for function in (pooled, running, in_three_dimensions)}}
MADE.pop("nothing_that_cudnn_takes")  # which no calls make


class Planned:
    """Stands for a plan: of an engine, for whatever was configured."""

    workspace_size = 0

    def __init__(self, *given: Any) -> None:
        self.given = given


def plan_of(g: Graph, **facts: Any) -> Plan:
    """A plan that no cuDNN made, of engine 61 with a knob."""
    found, operands = g._problem(0)
    problem = found if isinstance(found, GraphProblem) else as_graph(g)
    how: dict[str, Any] = {"engine": Engine(61, {1: 2}), "lowering": next(problem.lowerings()), **facts}
    made = made_up("engine 61 (swizzle=2)", "knobs", executable=Planned(), **how)
    return Plan(problem, made, operands=operands if problem is found else None)


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Engines are configured without cuDNN: (graph, index, knobs) of each."""
    asked: list[Any] = []

    def engine(built: Any, target: Any, index: int, knobs: Any) -> Any:
        asked.append((built, index, knobs))
        pairs = tuple(sorted(knobs.items()))
        return SimpleNamespace(
            engine=index,
            knobs=pairs,
            name=engine_name(index, pairs),
            notes=(),
            numerical_notes=(),
            behavior_notes=(),
            finalize=lambda: "plan",
        )

    monkeypatch.setattr(plans, "Handle", SimpleNamespace(default=lambda device: None))
    monkeypatch.setattr(plans, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(candidates, "engine", engine)
    monkeypatch.setattr("cudnnpy.graph.problem.build_graph", lambda graph, target: graph)
    monkeypatch.setattr("cudnnpy.graph.problem.GraphExecutable", Planned)
    return asked


@pytest.mark.parametrize("name", MADE)
def test_a_graph_comes_back_with_every_tensor_and_operation(name: str, cudnn: list[Any]) -> None:
    plan = plan_of(MADE[name](Graph()))
    again = Plan.from_json(plan.to_json())
    (graph, index, knobs), *_ = cudnn
    problem: Any = plan.problem
    assert graph == problem.graph == again.problem.graph  # type: ignore[attr-defined]
    assert (index, knobs) == (61, {1: 2})
    for fact in ("name", "source", "operation", "operands", "deterministic", "engine"):
        assert getattr(again, fact) == getattr(plan, fact)
    assert again.to_json() == plan.to_json()
    executable: Any = getattr(again.executable, "executable", again.executable)  # in the caller's order
    _, uids, constants = executable.given
    assert set(uids) == set(problem.graph.in_memory)
    assert [(uid, number.value) for uid, number in constants] == [one[:2] for one in problem.graph.numbers]


def test_a_text_does_not_depend_on_names_and_on_the_order_of_calls() -> None:
    def made(g: Graph, names: str, order: tuple[int, ...]) -> str:
        specs = TensorSpec((2, 4, 8, 8)), TensorSpec((4, 4, 3, 3)), TensorSpec((1, 4, 1, 1))
        x, w, bias = (node for _, node in sorted((at, g.tensor(names[at], specs[at])) for at in order))
        g.pointwise("abs", bias)  # on which no output depends
        g.output("out", g.pointwise("add", g.convolution(x, w), bias))
        return text_of(g.problem())

    texts = {made(Graph(), "xwb", (0, 1, 2)), made(Graph(), "abc", (2, 0, 1)), made(Graph(), "bca", (1, 2, 0))}
    assert len(texts) == 1


def test_a_text_has_the_graph_that_was_planned_though_it_grew(cudnn: list[Any]) -> None:
    g = GRAPHS["convolution_bias_relu"](Graph())
    plan = plan_of(g)
    text = plan.to_json()
    g.output("z", g.pointwise("abs", g.inputs[0]))
    assert plan.to_json() == text
    assert Plan.from_json(text).operands == plan.operands


@pytest.mark.parametrize(
    ("operands", "why"),
    [
        ([{"name": "x", "position": 0}], "must name each of x, y once"),
        ([{"name": "x", "position": 0}, {"name": "x", "position": 1}], "must name each of x, y once"),
        ([{"name": "x", "position": 0}, {"name": "y", "position": 2}], "must name each of x, y once"),
        ([{"name": "y", "position": 1}, {"name": "x", "position": 0}], "its results must be its last operands"),
        ([{"name": "x", "position": "0"}, {"name": "y", "position": 1}], "position must be an int"),
        (["x", "y"], "must be an object of name, position"),
    ],
)
def test_operands_that_cannot_be_are_refused(operands: list[Any], why: str, cudnn: list[Any]) -> None:
    fields = json.loads(plan_of(pooled(Graph())).to_json())
    del fields["sha256"]
    fields["operands"] = operands
    with pytest.raises(ValueError, match=why):
        Plan.from_json(json.dumps({**fields, "sha256": digest(fields)}))


@pytest.mark.parametrize("name", [function.__name__ for function in FUSED])
def test_cudnn_plans_the_same_again(plan: Planner, name: str) -> None:
    made, again = plan("own_text", name=name)
    assert json.loads(made.pop("cudnn")) == json.loads(again.pop("cudnn"))
    assert again == made


def test_an_engine_that_does_not_take_the_graph_is_cudnns_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "Handle", SimpleNamespace(default=lambda device: None))
    monkeypatch.setattr(plans, "on_device", lambda device: nullcontext())
    monkeypatch.setattr("cudnnpy.graph.problem.build_graph", lambda graph, target: None)

    def refused(*_: Any) -> Any:
        raise raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize")

    monkeypatch.setattr(candidates, "engine", refused)
    with pytest.raises(StatusError, match="NOT_SUPPORTED"):
        Plan.from_json(plan_of(pooled(Graph())).to_json())


def test_a_known_issue_of_the_engine_is_applied(cudnn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been planned before the issue was known."""
    monkeypatch.setattr(candidates.known_issues, "rejection_by_issues", lambda *_: "has a known issue")
    with pytest.raises(ValueError, match=r"got invalid text: engine 61 \(swizzle=2\) has a known issue"):
        Plan.from_json(plan_of(pooled(Graph())).to_json())


# The JSON of a graph


def changed(problem: Any, *path: Any, value: Any) -> str:
    """The notation of a graph with one value of its JSON changed."""
    plain = json.loads(text_of(problem).removeprefix("graph "))
    at = plain
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return f"graph {json.dumps(plain)}"


def of_operation(number: int, part: int, name: str) -> tuple[Any, ...]:
    """The path of an option (part 1), an operand (2) or a result (3) of an operation."""
    return ("operations", number, part, name)


# `pooled` has the tensors y, relu's result, the pooling's, x, and a number; its operations are in the order of the calls.
POOLING, RELU, MIN = range(3)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("more",), 1, "it must have tensors and operations; plan again"),
        (("operations",), "zz", "its tensors and operations must be lists"),
        (("operations",), [[]] * 1001, "it must have 1000 operations at most"),
        (("operations",), [], "its virtual tensors must be results"),
        (("tensors",), [], "must be a tensor of the graph"),
        (("tensors", 0), [1], "tensor 1 must be a list of 3 to 5 elements"),
        (("tensors", 0, 1), "float33", "must be one of .*; got 'float33'"),
        (("tensors", 0, 0), [2, 4, 8, 9], "the results of pointwise must have shapes"),
        (("tensors", 0, 2), [0, 0, 0, 0], "tensor 1 must have strides of 1 or more"),
        (("tensors", 0, 2), [1], "tensor 1.strides must be 4 integers"),
        (("tensors", 0, 3), 6, "tensor 1 must have a known dtype, and its alignment"),
        (("tensors", 3, 0), [2, 4, 8, -8], "shape must be integers of 1 or more"),
        (("tensors", 3, 0), [1 << 61, 4, 8, 8], "must fit into memory"),
        (("tensors", 4, 0), "1.0", "tensor 5 must be a number; got '1.0'"),
        (("tensors", 4, 0), "nan", "tensor 5 must be a number; got 'nan'"),
        (("tensors", 4, 0), 0.1, "it is not in canonical form"),
        (("tensors", 4, 1), "float8_e5m2", "tensor 5 must be of one of float32, .*; got float8_e5m2"),
        (("tensors", 4, 2), 9, "tensor 5 must be a number with a dtype and a rank"),
        (("operations", 0), "zz", "an operation must be a kind, options, operands and results"),
        (("operations", 0, 0), "_add", "'_add' is not a kind of operation"),
        (("operations", 0, 0), "matmul", "options must be an object with keys among"),
        (of_operation(POOLING, 1, "slope"), 1, "options must be an object with keys among alpha"),
        (of_operation(POOLING, 1, "mode"), "median", "mode must be one of"),
        (of_operation(POOLING, 1, "mode"), "MAXPOOL", "it is not in canonical form"),
        (of_operation(POOLING, 1, "mode"), 3, "mode must be a name"),
        (of_operation(POOLING, 1, "window"), [3, -2], "window must be an integer of 1 to .*; got -2"),
        (of_operation(POOLING, 1, "window"), [11, 11], "its graph is invalid: window must fit"),
        (of_operation(POOLING, 1, "window"), [True, 2], "window must be an integer of 1 to .*; got True"),
        (of_operation(POOLING, 1, "window"), [2], "its graph is invalid: options of an axis must be 2 integers"),
        (of_operation(POOLING, 1, "spatial_dims"), 3, "its graph is invalid: options of an axis must be 2 integers"),
        (of_operation(POOLING, 1, "spatial_dims"), True, "spatial_dims must be an integer of 0 to .*; got True"),
        (of_operation(POOLING, 1, "compute_dtype"), "coffee", "compute_dtype must be one of .*; got 'coffee'"),
        (of_operation(POOLING, 2, "x"), True, "x must be a tensor of the graph; got True"),
        (of_operation(POOLING, 2, "x"), "1", "x must be a tensor of the graph; got '1'"),
        (of_operation(POOLING, 2, "x"), 77, "x must be a tensor of the graph; got 77"),
        (of_operation(POOLING, 2, "x"), 2, "x must be in memory, or the result of an operation before"),
        (("operations", POOLING, 2), {}, "its graph is invalid: x must be a node; got none"),
        (of_operation(RELU, 1, "relu_upper_clip"), "nan", "relu_upper_clip must be a number; got 'nan'"),
        (of_operation(RELU, 1, "relu_upper_clip"), True, "relu_upper_clip must be a number; got True"),
        (of_operation(RELU, 2, "b"), 4, "its graph is invalid: b must be None for relu_fwd"),
        (of_operation(RELU, 3, "y"), 3, "y must be a tensor that no operation took or made before; got 3"),
        (of_operation(RELU, 3, "y"), 5, "y must be a tensor that no operation took or made before; got 5"),
        (of_operation(RELU, 3, "y"), "a\nb", r"y must be a tensor that no operation took or made before; got 'a\\nb'"),
        (of_operation(RELU, 2, "x"), 1, "y must be a tensor that no operation took or made before; got 1"),  # a cycle
        (of_operation(RELU, 3, "dx"), 2, "the results of pointwise must have shapes"),
    ],
)
def test_a_graph_that_is_none_is_refused(path: tuple[Any, ...], value: Any, why: str) -> None:
    text = changed(pooled(Graph()).problem(), *path, value=value)
    with pytest.raises(ProblemTextError, match=f"graph must be the JSON of a graph; got invalid JSON: .*({why})"):
        parse(text)
