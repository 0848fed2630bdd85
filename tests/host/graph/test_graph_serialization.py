"""Serialized plans of graphs: their text, the plans that are loaded from it, and rejected texts."""

from __future__ import annotations

import json
import math
import pickle
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_candidates import made_up
from planning import Planner
from sample_graphs import FUSED, GRAPHS
from stand_in_device import Array, StandInDevice

from cudnnpy import FusedConvolution, Graph, Plan, TensorSpec, raw
from cudnnpy._core.choice import Engine
from cudnnpy._planning import candidates
from cudnnpy._planning import plan as plans
from cudnnpy._planning.engines import engine_name
from cudnnpy._planning.problem_notation import ProblemTextError, parse, text_of
from cudnnpy.errors import StatusError
from cudnnpy.graph.problem import GraphLowering


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
    y = g.convolution(x, w, padding=((0, 1), (1, 1), (2, 0)), stride=(1, 2, 1), dilation=2, mode="convolution")
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
    """A plan that no cuDNN made, of engine 7 with a knob."""
    problem = g.problem()
    how: dict[str, Any] = {"engine": Engine(7, {1: 2}), "lowering": GraphLowering(problem), **facts}
    made = made_up("engine 7 (swizzle=2)", "knobs", executable=Planned(), **how)
    return Plan(problem, made)


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
    monkeypatch.setattr(Graph.__mro__[1], "build_graph", lambda self, target, alignment: (self, alignment))
    monkeypatch.setattr("cudnnpy.graph.problem.GraphExecutable", Planned)
    return asked


def made_of(g: Any) -> tuple[str, ...]:
    """All that a graph describes to cuDNN, as text: nodes by what they are."""
    tensors = {uid: (node.spec, node.name, node.virtual, node.number) for uid, node in g._by_uid.items()}
    text = repr([g.compute_dtype, g._nodes, tensors, g.operations, g._max_reduction_length])
    return tuple(re.sub(r"object at \w+", "", text).split(", "))


@pytest.mark.parametrize("name", MADE)
def test_a_graph_comes_back_with_every_tensor_and_operation(name: str, cudnn: list[Any]) -> None:
    plan = plan_of(MADE[name](Graph()))
    again = Plan.from_json(plan.to_json())
    ((graph, alignment), index, knobs), *_ = cudnn
    problem: Any = plan.problem
    assert made_of(graph) == made_of(problem.graph)
    assert alignment == {name: spec.alignment for name, spec in zip(problem.operands, problem.specs, strict=True)}
    assert (index, knobs) == (7, {1: 2})
    for fact in ("problem", "name", "source", "operands", "operation", "deterministic", "engine"):
        assert getattr(again, fact) == getattr(plan, fact)
    assert again.to_json() == plan.to_json()
    executable: Any = again.executable
    _, uids, constants = executable.given
    assert uids == tuple(node.uid for node in (*problem.graph.inputs, *problem.graph.outputs))
    assert [(uid, number.value) for uid, number in constants] == [
        (node.uid, node.number.value) for node in problem.graph._constants
    ]


def test_alignments_of_arrays_come_back(cudnn: list[Any]) -> None:
    g = GRAPHS["convolution_bias_relu"](Graph())
    problem = g.problem(0, {"bias": TensorSpec((1, 64, 1, 1), alignment=2)})
    made = made_up("engine 7", "engines", engine=Engine(7), executable=Planned())
    made.lowering = GraphLowering(problem)
    plan = Plan(problem, made)
    assert Plan.from_json(plan.to_json()).problem == problem != g.problem()
    assert cudnn[0][0][1] == {"x": 16, "w": 16, "bias": 2, "y": 16}


@pytest.mark.parametrize("shape", [(2, 8, 9), (2, 8, 9, 9), (2, 8, 5, 9, 9)])
def test_the_graph_of_a_fused_convolution_comes_back(stand_in: StandInDevice, shape: tuple[int, ...]) -> None:
    x, w = Array(*shape, dtype="float16"), Array(16, 4, *(3 for _ in shape[2:]), dtype="float16")
    conv = FusedConvolution(padding=1, stride=2, groups=2)
    conv.forward(x, w, scale=Array(16), bias=Array(16, dtype="float16"), activation="elu")
    (problem,) = stand_in.planned_graphs
    assert problem.operands == ("x", "w", "scale", "bias", "out")
    assert parse(text_of(problem), problem.device)[0] == problem


def test_a_text_has_the_graph_that_was_planned_though_it_grew(cudnn: list[Any]) -> None:
    g = GRAPHS["convolution_bias_relu"](Graph())
    plan = plan_of(g)
    text = plan.to_json()
    g.output("z", g.pointwise("abs", g.inputs[0]))
    assert plan.to_json() == text
    assert Plan.from_json(text).operands == ("x", "w", "bias", "y")


def test_a_plan_of_a_graph_is_pickled_by_its_text(cudnn: list[Any]) -> None:
    plan = plan_of(pooled(Graph()))
    again = pickle.loads(pickle.dumps(plan))
    assert (again.problem, again.name) == (plan.problem, plan.name)


@pytest.mark.parametrize("name", [function.__name__ for function in FUSED])
def test_cudnn_plans_the_same_again(plan: Planner, name: str) -> None:
    made, again = plan("own_text", name=name)
    assert json.loads(made.pop("cudnn")) == json.loads(again.pop("cudnn"))
    assert again == made


def test_an_engine_that_does_not_take_the_graph_is_cudnns_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "Handle", SimpleNamespace(default=lambda device: None))
    monkeypatch.setattr(plans, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(Graph.__mro__[1], "build_graph", lambda *_: None)

    def refused(*_: Any) -> Any:
        raise raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize")

    monkeypatch.setattr(candidates, "engine", refused)
    with pytest.raises(StatusError, match="NOT_SUPPORTED"):
        Plan.from_json(plan_of(pooled(Graph())).to_json())


def test_a_known_issue_of_the_engine_is_applied(cudnn: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been planned before the issue was known."""
    monkeypatch.setattr(candidates.known_issues, "rejection", lambda *_: "has a known issue")
    with pytest.raises(ValueError, match=r"got invalid text: engine 7 \(swizzle=2\) has a known issue"):
        Plan.from_json(plan_of(pooled(Graph())).to_json())


# The JSON of a graph


def changed(problem: Any, *path: Any, value: Any) -> str:
    """The notation of a graph with one value of its JSON changed."""
    plain = json.loads(json.dumps(problem.to_dict()))
    at = plain
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return f"graph {json.dumps(plain)}"


def call(number: int, *path: Any) -> tuple[Any, ...]:
    return ("calls", number, *path)


def argument(number: int, name: str) -> tuple[Any, ...]:
    return call(number, 1, name)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("more",), 1, "it has calls, compute_dtype, more, tensors"),
        (("compute_dtype",), "coffee", "its graph is invalid: compute_dtype must be"),
        (("compute_dtype",), 7, "its graph is invalid: compute_dtype must be"),
        (("calls",), "zz", "its graph must have a list of 1000 calls at most"),
        (("calls",), [[]] * 1001, "its graph must have a list of 1000 calls at most"),
        (("calls",), [], "its graph has no output"),
        (("tensors",), [], "it is not in canonical form"),
        (("tensors",), [[1]], "its tensors are not names, shapes"),
        (("tensors", 0, 1), [2, 4, 8, 9], "it is not in canonical form"),
        (("tensors", 0, 4), 3, "a tensor must have a known dtype, and its alignment"),
        (("tensors", 1, 0), "z", "it is not in canonical form"),
        (call(0), "zz", "a call of its graph is not a method and arguments"),
        (call(0, 0), "_add", "'_add' is not a method of a graph"),
        (call(0, 0), "facts", "'facts' is not a method of a graph"),
        (
            call(1, 0),
            "tensor",
            "its graph is invalid: an argument of Graph.tensor must be one of name, like; got 'mode'",
        ),
        (
            argument(0, "more"),
            1,
            "its graph is invalid: an argument of Graph.tensor must be one of name, like; got 'more'",
        ),
        (argument(0, "name"), 3, "its graph is invalid: name must be a str"),
        (argument(0, "name"), "stream", "its graph is invalid: name must differ from the arguments of run"),
        (argument(0, "like"), [[2, 4], "float16", [4, 1], 2], "x must have|must fit|window"),
        (argument(0, "like"), [[2, 4, 8, -8], "float16", [256, 64, 8, 1], 2], "shape must be integers of 1 or more"),
        (argument(0, "like"), [[1 << 61, 4, 8, 8], "float16", [256, 64, 8, 1], 2], "must fit into memory"),
        (argument(0, "like"), [[2, 4, 8, 8], "float33", [256, 64, 8, 1], 2], "must be one of .*; got 'float33'"),
        (argument(1, "x"), 2, "a node must be one that its graph has; got 2"),
        (argument(1, "x"), True, "its graph is invalid: x must be a node of this graph; got True"),
        (argument(1, "x"), "1", "a node must be one that its graph has; got 1"),
        (argument(1, "x"), None, "its graph is invalid: x must be a node of this graph; got None"),
        (argument(1, "mode"), "median", "its graph is invalid: mode must be one of"),
        (argument(1, "mode"), "MAXPOOL", "it is not in canonical form"),
        (argument(1, "window"), [3, -2], "its graph is invalid: window must be an integer of 1 or more"),
        (argument(1, "window"), [11, 11], "its graph is invalid: window must"),
        (argument(1, "window"), [True, 2], "its graph is invalid: window must be an integer of 1 or more"),
        (argument(1, "padding"), [1 << 61, 1 << 61], "its graph must have tensors that fit into memory|invalid"),
        (argument(2, "how"), {"slope": 1.0}, "its graph is invalid: how must have keys among"),
        (argument(2, "how"), {"relu_upper_clip": "nan"}, "its graph is invalid: how.* must be a number; got 'nan'"),
        (argument(2, "how"), {"relu_upper_clip": True}, "its graph is invalid: how.* must be a number; got True"),
        (argument(2, "how"), [], "its graph is invalid: how must be a mapping"),
        (argument(2, "b"), 1, "its graph is invalid: b must be None for relu_fwd"),
        (argument(3, "value"), "1.0", "its graph is invalid: value must be a number; got '1.0'"),
        (argument(3, "value"), 1e300, "its graph is invalid: value must be a number that fits float32"),
        (argument(3, "rank"), 9, "its graph is invalid: rank must be"),
        (argument(5, "node"), 1, "its graph is invalid: node must be the result of an operation"),
        (argument(5, "dtype"), "coffee", "its graph is invalid: "),
        (argument(5, "strides"), [0, 0, 0, 0], "its graph is invalid: y must have strides of 1 or more"),
        (argument(5, "strides"), [1], "its graph is invalid: y.strides must be 4 integers"),
    ],
)
def test_a_graph_that_is_none_is_refused(path: tuple[Any, ...], value: Any, why: str) -> None:
    text = changed(pooled(Graph()).problem(), *path, value=value)
    with pytest.raises(ProblemTextError, match=f"graph must be the JSON of a graph; got invalid JSON: .*({why})"):
        parse(text)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (argument(5, "running"), [4], "running must be two nodes"),
        (argument(5, "running"), [4, 77], "a node must be one that its graph has; got 77"),
        (argument(5, "running"), None, "its graph is invalid: node must be the result of an operation"),
        (argument(5, "training"), 1, "its graph is invalid: training must be a bool; got 1"),
        (argument(5, "epsilon"), -1.0, "its graph is invalid: epsilon must"),
        (argument(5, "scale"), 1, "its graph is invalid: bias must have shape"),
    ],
)
def test_a_normalization_that_is_none_is_refused(path: tuple[Any, ...], value: Any, why: str) -> None:
    text = changed(running(Graph()).problem(), *path, value=value)
    with pytest.raises(ProblemTextError, match=f"graph must be the JSON of a graph; got invalid JSON: .*({why})"):
        parse(text)


def test_what_lies_between_two_operations_has_to_fit_into_memory_too() -> None:
    g = Graph()
    x, w = g.tensor("x", TensorSpec((1, 4, 8, 8))), g.tensor("w", TensorSpec((4, 4, 3, 3)))
    g.output("y", g.reduction("add", g.convolution(x, w, padding=1), (0, 1, 2, 3)))
    text = changed(g.problem(), *argument(2, "padding"), value=[[1 << 60, 1], [1, 1]])
    with pytest.raises(ValueError, match="its graph must have tensors that fit into memory; got shape"):
        parse(text)
