"""Graphs of one's own, without a GPU: inferred shapes, rejected nodes, and plans for a device profile (see planner.py)."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import deque
from collections.abc import Callable
from ctypes import c_float
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planning import Planner, Refused
from sample_graphs import FUSED, GRAPHS, OTHERS, channels_last
from stand_in_device import Array, StandInDevice, StandInPlan, calls_of_c, number_of

from cudnnpy import Graph, TensorSpec, raw
from cudnnpy._core.layouts import packed_strides
from cudnnpy._launch import plan_cache
from cudnnpy._planning import candidates, engines, selection
from cudnnpy._planning import plan as plan_module
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.chooser import Chooser, Chosen, Request
from cudnnpy._planning.engines import GraphExecutable
from cudnnpy.graph import descriptors
from cudnnpy.graph.operation_graph import Tensor
from cudnnpy.graph.problem import GraphLowering
from cudnnpy.handle import Handle

NAMES = [function.__name__ for function in (*FUSED, *OTHERS)]
PLANNED = [function.__name__ for function in FUSED]
nn: Any = Graph  # whose types forbid what is tried here


def spec(*shape: int, dtype: str = "float16", strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, dtype, strides)


def started(*shapes: tuple[int, ...], **options: Any) -> tuple[Any, ...]:
    """A graph, and inputs of these shapes."""
    g = nn(**options)
    return g, *(g.tensor(f"x{at}", spec(*shape)) for at, shape in enumerate(shapes))


def guesses(g: Graph) -> list[Candidate]:
    """The candidates of a graph, the best guess first."""
    return list(Chooser(Request(g.problem(), g.options, engines.Target(), 0)).order())


# What nodes infer


@pytest.mark.parametrize(
    ("options", "x", "w", "y"),
    [
        ({}, (2, 8, 9, 7), (5, 8, 3, 3), (2, 5, 7, 5)),
        ({"padding": 1}, (2, 8, 9, 7), (5, 8, 3, 3), (2, 5, 9, 7)),
        ({"padding": (1, 0)}, (2, 8, 9, 7), (5, 8, 3, 3), (2, 5, 9, 5)),
        ({"padding": ((0, 2), (1, 0))}, (2, 8, 9, 7), (5, 8, 3, 3), (2, 5, 9, 6)),
        ({"stride": 2, "dilation": (2, 1)}, (2, 8, 9, 7), (5, 8, 3, 3), (2, 5, 3, 3)),
        ({"groups": 2}, (2, 8, 9, 7), (6, 4, 1, 1), (2, 6, 9, 7)),
        ({"stride": 3}, (1, 2, 9, 9, 9), (4, 2, 3, 3, 3), (1, 4, 3, 3, 3)),
    ],
)
def test_convolutions_infer_their_shape(options: Any, x: Any, w: Any, y: Any) -> None:
    g, one, two = started(x, w)
    assert g.convolution(one, two, **options).shape == y


def test_other_nodes_infer_theirs() -> None:
    g, x, bias, a, b = started((2, 4, 6, 6), (1, 4, 1, 1), (3, 1, 5, 7), (3, 2, 7, 4))
    assert g.pointwise("add", x, bias).shape == (2, 4, 6, 6)
    assert g.pointwise("add", bias, x).shape == (2, 4, 6, 6)
    assert g.pointwise("relu_fwd", x).shape == (2, 4, 6, 6)
    assert g.reduction("add", x, (0, 2, 3)).shape == (1, 4, 1, 1)
    assert g.reduction("add", x, (-1,)).shape == (2, 4, 6, 1)
    assert g.matmul(a, b).shape == (3, 2, 5, 4)
    assert g.resample("maxpool", x, 2).shape == (2, 4, 3, 3)
    assert g.resample("maxpool", x, (3, 2), padding=(1, 0), stride=(2, 3)).shape == (2, 4, 3, 2)
    assert g.number(1.0, 3).shape == (1, 1, 1)
    assert g.operations == ["pointwise"] * 3 + ["reduction"] * 2 + ["matmul"] + ["resample_fwd"] * 2


@pytest.mark.parametrize(
    ("mode", "scale", "statistics"),
    [
        ("batch_norm", (1, 4, 1, 1), (1, 4, 1, 1)),
        ("layer_norm", (1, 4, 6, 6), (2, 1, 1, 1)),
        ("instance_norm", (1, 4, 1, 1), (2, 4, 1, 1)),
        ("rms_norm", (1, 4, 6, 6), (2, 1, 1, 1)),
    ],
)
def test_normalizations_infer_theirs(mode: str, scale: Any, statistics: Any) -> None:
    g, x, weight, bias = started((2, 4, 6, 6), scale, scale)
    found = g.normalization(mode, x, weight, None if mode == "rms_norm" else bias, 1e-5)
    count = 1 if mode == "rms_norm" else 2
    assert [node.shape for node in found] == [x.shape, *[statistics] * count]
    (alone,) = g.normalization(mode, x, weight, bias, 1e-5, training=False)
    assert alone.shape == x.shape
    back = g.normalization_backward(
        mode, x, x, weight, *(found[1:] if count == 2 else (None, found[1])), bias=count == 2
    )
    assert [node.shape for node in back] == [x.shape, *[scale] * count]
    if mode == "batch_norm":
        running = g.normalization(mode, x, weight, bias, 1e-5, running=(weight, bias), average_factor=0.1)
        assert [node.shape for node in running] == [x.shape, *[scale] * 4]


def test_results_lie_as_their_inputs_and_what_is_between_is_float32_and_virtual() -> None:
    g = Graph()
    x, first = g.tensor("x", channels_last((2, 4, 6, 6))), g.tensor("first", spec(2, 4, 6, 6))
    one, two = g.pointwise("abs", x), g.pointwise("abs", first)
    assert one.spec == TensorSpec((2, 4, 6, 6), "float32", channels_last((2, 4, 6, 6)).strides)
    assert two.spec.strides == packed_strides((2, 4, 6, 6))
    assert (x.virtual, one.virtual, g.number(1.0).virtual) == (False, True, False)
    assert g.output("y", one) is one
    assert (one.virtual, one.spec.dtype, one.name) == (False, "float16", "y")
    g.output("z", two, "float32", (1, 2, 8, 48))
    assert (two.spec.dtype, two.spec.strides) == ("float32", (1, 2, 8, 48))
    assert Graph(compute_dtype="float64").number(1.0).spec.dtype == "float64"
    assert len({node.uid for node in (x, first, one, two)}) == 4


def test_inputs_are_like_arrays_or_specs(stand_in: StandInDevice) -> None:
    g = Graph()
    assert g.tensor("a", Array(2, 3, dtype="bfloat16", strides=(1, 2))).spec == ((2, 3), "bfloat16", (1, 2), 16)
    assert g.tensor("b", spec(2, 3, dtype="half")).spec == ((2, 3), "float16", (3, 1), 16)
    assert calls_of_c(stand_in) == {}


# What they refuse


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda g, x: g.tensor("x0", spec(2)), ValueError, r"name must differ from .*; got 'x0'"),
        (lambda g, x: g.tensor("", spec(2)), TypeError, r"name must be a str.*; got ''"),
        (lambda g, x: g.tensor(3, spec(2)), TypeError, r"name must be a str.*; got 3"),
        (lambda g, x: g.tensor("stream", spec(2)), ValueError, r"name must differ.*; got 'stream'"),
        (lambda g, x: g.tensor("b", spec(2, -1)), ValueError, r"shape must be a tuple of sizes.*; got \(2, -1\)"),
        (lambda g, x: g.tensor("b", [1.0]), TypeError, r"b must be a device array .*; got \[1.0\]"),
        (lambda g, x: g.tensor("b", spec(2, dtype="complex64")), TypeError, r"dtype must .*; got 'complex64'"),
        (lambda g, x: g.output("y", x), ValueError, r"node must be the result.*; got x0, which is in memory already"),
        (
            lambda g, x: g.output("y", g.number(1.0)),
            ValueError,
            "node must be the result of an operation; got a number, which is in memory already",
        ),
        (lambda g, x: g.output("x0", g.pointwise("abs", x)), ValueError, r"name must differ from the.*; got 'x0'"),
        (
            lambda g, x: g.output("y", g.output("z", g.pointwise("abs", x))),
            ValueError,
            "node must be the result of an operation; got z, which is in memory already",
        ),
        (lambda g, x: g.pointwise("plus", x), ValueError, r"mode must be one of 'add', 'add_square'.*; got 'plus'"),
        (
            lambda g, x: g.pointwise("add", x, g.tensor("b", spec(4))),
            ValueError,
            r"x, b and t must have the same size, or 1, on each axis; got shapes \[\(2, 5, 6, 5\), \(4,\)\]",
        ),
        (
            lambda g, x: g.pointwise("add", x, g.tensor("b", spec(1, 3, 1, 1))),
            ValueError,
            r"x, b and t must have the same size, or 1, on each axis; got shapes \[\(2, 5, 6, 5\), \(1, 3, 1, 1\)\]",
        ),
        (lambda g, x: g.reduction("median", x, (1,)), ValueError, r"op must be one of 'add', 'mul'.*; got 'median'"),
        (lambda g, x: g.reduction("add", x, (4,)), ValueError, r"axes must be .*-4 to 3.*; got \(4,\)"),
        (lambda g, x: g.reduction("add", x, ()), ValueError, r"axes must be one or more.*; got \(\)"),
        (lambda g, x: g.matmul(x, x), ValueError, r"a and b must have.*; got \(2, 5, 6, 5\) and \(2, 5, 6, 5\)"),
        (lambda g, x: g.resample("median", x, 2), ValueError, r"mode must be one of 'nearest'.*; got 'median'"),
        (
            lambda g, x: g.resample("maxpool", x, 7),
            ValueError,
            r"window must fit into x with padding, \(2.*; got \(7, 7\)",
        ),
        (lambda g, x: g.resample("maxpool", x, (2,)), ValueError, r"window must be an integer, or one.*; got \(2,\)"),
        (lambda g, x: g.normalization("all", x, x, x, 1e-5), ValueError, r"mode must be .*; got 'all'"),
        (
            lambda g, x: g.normalization("layer_norm", x, g.tensor("s", spec(5)), x, 1e-5),
            ValueError,
            r"scale must have 4 axes of the sizes of x, \(2, 5, 6, 5\), or 1; got shape \(5,\)",
        ),
        (
            lambda g, x: g.convolution(x, g.tensor("w", spec(4, 5, 3))),
            ValueError,
            r"x and w must both have 2 or 3 spatial axes; got shapes \(2, 5, 6, 5\) and \(4, 5, 3\)",
        ),
        (
            lambda g, x: g.convolution(x, g.tensor("w", spec(4, 5, 9, 9))),
            ValueError,
            r"w must fit into x with padding, \(2, 5, 6, 5\); got shape \(4, 5, 9, 9\)",
        ),
        (lambda g, x: g.convolution(x, x, padding=(1,)), ValueError, r"padding must be an integer,.*; got \(1,\)"),
        (lambda g, x: g.convolution(x, x, mode="flip"), ValueError, r"mode must be .*; got 'flip'"),
        (lambda g, x: g.convolution(x, x, padding=((1, 1), (1,))), ValueError, r"padding must be .* pair.*; got .*"),
        (
            lambda g, x: g.convolution(x, g.tensor("v", spec(4, 3, 1, 1))),
            ValueError,
            r"w must have shape \(K, C / groups, \.\.\.\) for 5 channels and groups=1; got shape \(4, 3, 1, 1\)",
        ),
        (lambda g, x: g.pointwise("relu_bwd", x), TypeError, r"b must be the input of the forward .*; got None"),
    ],
)
def test_nodes_are_refused_by_name(make: Callable[[Any, Any], Any], kind: type[Exception], text: str) -> None:
    g, x = started((2, 5, 6, 5))
    with pytest.raises(kind, match=f"^{text}"):
        make(g, x)


def test_a_graph_without_an_output_is_refused() -> None:
    g, x = started((2, 3))
    g.pointwise("abs", x)
    with pytest.raises(ValueError, match=r"^a graph must have an output; got none\. Call output\(name, node\)"):
        g.plan()


# Running, on stand-ins


def relu() -> tuple[Graph, tuple[int, ...]]:
    g = Graph()
    x, b = g.tensor("x", spec(2, 4, 6, 6, dtype="float32")), g.tensor("b", spec(1, 4, 1, 1, dtype="float32"))
    g.output("y", g.pointwise("relu_fwd", g.pointwise("add", x, b)))
    return g, (2, 4, 6, 6)


def test_run_plans_a_signature_once_and_returns_the_outputs_by_order(stand_in: StandInDevice) -> None:
    g, shape = relu()
    out = Array(*shape)
    for _ in range(3):
        assert g.run(x=Array(*shape), b=Array(1, 4, 1, 1), y=out) is out
    assert g.run(b=Array(1, 4, 1, 1), x=Array(*shape)).shape == shape
    assert plan_cache.cache_info().misses == 2
    assert stand_in.c_calls["cudnnBackendExecute"] == 4
    assert [problem.operands for problem in stand_in.planned_graphs] == [("x", "b", "y")] * 2
    other, _ = relu()
    other.run(x=Array(*shape), b=Array(1, 4, 1, 1), y=out)  # the same nodes, but another graph
    assert plan_cache.cache_info().misses == 3


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"b": None}, TypeError, r"arrays must be .*; got no b$"),
        ({"z": 1}, TypeError, r"arrays must be .*; got unknown z$"),
        ({"b": Array(1, 5, 1, 1)}, ValueError, r"b must .*; got \(\(1, 5, 1, 1\), 'float32', \(5, 1, 1, 1\)\)"),
        (
            {"x": Array(2, 4, 6, 6, dtype="float16")},
            ValueError,
            r"x must have the graph's shape, dtype and strides, .*; got \(\(2, 4, 6, 6\), 'float16', \(144, 36, 6, 1\)\)",
        ),
        ({"x": Array(2, 4, 6, 6, strides=(144, 1, 24, 4))}, ValueError, "x must have the graph's shape"),
        ({"y": Array(2, 4, 6, 5)}, ValueError, r"y must .*; got \(\(2, 4, 6, 5\), 'float32', \(120, 30, 5, 1\)\)"),
        ({"y": Array(2, 4, 6, 6, writable=False)}, ValueError, "y must be a writable array; got a read-only one"),
        ({"x": Array(2, 4, 6, 6, device=-1)}, TypeError, "x must be an array on a CUDA device; got a host array"),
    ],
)
def test_run_refuses_other_arrays(
    stand_in: StandInDevice, change: dict[str, Any], kind: type[Exception], text: str
) -> None:
    g, shape = relu()
    arrays = {"x": Array(*shape), "b": Array(1, 4, 1, 1), "y": Array(*shape), **change}
    with pytest.raises(kind, match=f"^{text}"):
        g.run(**arrays)
    assert stand_in.planned_graphs == []
    assert calls_of_c(stand_in) == {}


def test_results_may_not_overlap_inputs_or_each_other(stand_in: StandInDevice) -> None:
    g, shape = relu()
    x, b = Array(*shape), Array(1, 4, 1, 1)
    with pytest.raises(ValueError, match="y must not overlap x in memory"):
        g.run(x=x, b=b, y=x)
    g.output("z", g.pointwise("abs", g.inputs[0]))
    out = Array(*shape)
    with pytest.raises(ValueError, match=r"(y|z) must not overlap (y|z) in memory"):
        g.run(x=x, b=b, y=out, z=out)


def test_a_problem_has_the_tensors_and_the_alignments_of_arrays() -> None:
    g, shape = relu()
    found = g.problem(3, {"b": spec(1, 4, 1, 1)._replace(alignment=4)})
    assert found.operands == ("x", "b", "y")
    assert [one.alignment for one in found.specs] == [16, 4, 16]
    assert (found.device, found.results, found.specs[-1].shape) == (3, 1, shape)
    assert str(found).startswith("graph of add, relu_fwd: x float32[2, 4, 6, 6], b float32[1, 4, 1, 1], y ")


@pytest.mark.parametrize("y", [(36, 36, 6, 1), (36, 7, 6, 1)])
def test_axes_of_size_1_have_no_strides_of_their_own(y: Any) -> None:
    """Graphs that differ in them alone are one problem, whose tensors are described in one memory order."""

    def made(x: Any, b: Any, out: Any) -> Graph:
        g = Graph()
        one, two = g.tensor("x", spec(1, 4, 6, 6, strides=x)), g.tensor("b", spec(1, 4, 1, 1, strides=b))
        g.output("y", g.reduction("add", g.pointwise("add", one, two), (1,)), strides=out)
        return g

    plain = made((144, 36, 6, 1), (4, 1, 1, 1), (36, 36, 6, 1)).problem()
    assert [one.strides for one in plain.specs] == [(144, 36, 6, 1), (4, 1, 1, 1), (36, 36, 6, 1)]
    for x, b in [((0, 36, 6, 1), (4, 1, 9, 3)), ((36, 36, 6, 1), (1, 1, 1, 1))]:
        found = made(x, b, y).problem()
        assert found == plain
        assert hash(found) == hash(plain)
    last = made((144, 1, 24, 4), (4, 1, 1, 1), y).problem()
    assert [one.strides for one in last.specs] == [(144, 1, 24, 4), (4, 1, 4, 4), (36, 1, 6, 1)]
    assert last != plain


# Planned for a described device


@pytest.mark.parametrize("name", NAMES)
def test_cudnn_takes_every_kind_of_graph(plan: Planner, name: str) -> None:
    assert plan("own_built", name=name) > 0


def test_what_cudnn_does_not_take_is_no_algorithm_with_its_reason(plan: Planner) -> None:
    (row,) = plan("own_candidates", name="nothing_that_cudnn_takes")["candidates"]
    assert (row["name"], row["engine"], row["planned"]) == ("graph", None, False)
    assert row["refused"].startswith("not supported here: CUDNN_STATUS_BAD_PARAM (2000): ")
    with pytest.raises(
        Refused, match=r"no algorithm for graph of convolution_forward.*(?s:.)*BAD_PARAM \(2000\)"
    ) as caught:
        plan("own_plan", name="nothing_that_cudnn_takes")
    assert caught.value.kind == "NoAlgorithmError"
    assert caught.value.candidates == [row]


def test_a_tensor_is_described_to_c_as_its_spec_says(stand_in: StandInDevice) -> None:
    for number, described in enumerate((spec(2, 3, strides=(1, 2))._replace(alignment=2), spec(4, 5)), 7):
        whole = described._replace(strides=described.strides or (5, 1))
        tensor = descriptors.graph_tensor(Tensor(number, whole), None)
        assert {
            raw.cudnnBackendAttributeName_t(k).name.removeprefix("CUDNN_ATTR_TENSOR_"): v
            for k, v in stand_in.attributes[number_of(tensor.pointer)].items()
        } == {
            "UNIQUE_ID": [number],
            "DATA_TYPE": [raw.CUDNN_DATA_HALF],
            "BYTE_ALIGNMENT": [whole.alignment],
            "DIMENSIONS": [*whole.shape],
            "STRIDES": [*(whole.strides or ())],
        }


def test_numbers_by_value_are_bound_behind_the_addresses(stand_in: StandInDevice) -> None:
    uid, number = 5, c_float(0.5)
    executable = GraphExecutable(StandInPlan(64), (1, 2, 6), ((uid, number),))
    number.value = 7.0  # no launch has another number than the plan was made with
    for addresses in ((16, 32, 48), (16, 32, 64)):
        assert executable.bind(Handle.default(0), addresses, 80)() == 0
        reached = dict(stand_in.launches[-1].addresses)
        host = reached.pop(str(uid))
        assert reached == {"1": addresses[0], "2": addresses[1], "6": addresses[2], "workspace": 80}
        assert c_float.from_address(host).value == 0.5


@pytest.mark.parametrize(("compiled", "left"), [(False, 0), (True, 3)])
def test_executables_that_nobody_uses_are_bounded(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch, compiled: bool, left: int
) -> None:
    """A CUDA graph may launch the kernels that were compiled last."""

    def chosen(chooser: Chooser) -> Chosen:
        found = stand_in.choose(chooser)
        found.candidate.compiled_at_run_time = compiled
        return found

    monkeypatch.setattr(selection, "choose", chosen)
    monkeypatch.setattr(plan_module, "_compiled", deque(plan_module._compiled, maxlen=3))
    g = GRAPHS["scaled_convolution"](Graph())
    made = [weakref.ref(g.plan().candidates[0].executable) for _ in range(10)]
    gc.collect()
    assert [one() is not None for one in made] == [False] * (10 - left) + [True] * left


def test_candidates_are_made_with_the_numbers_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SimpleNamespace(
        name="one", notes=(), numerical_notes=(), behavior_notes=(), engine=1, knobs=None, finalize=lambda: "plan"
    )
    monkeypatch.setattr(GraphLowering, "build_graph", lambda *_: None)
    for source in ("heuristics", "engines"):
        monkeypatch.setattr(candidates, source, lambda *_: [one])
    monkeypatch.setattr(
        "cudnnpy.graph.problem.GraphExecutable", lambda *given: SimpleNamespace(given=given, workspace_size=0)
    )
    g = GRAPHS["scaled_convolution"](Graph())
    (found,) = guesses(g)
    prepared: Any = found.prepare()
    problem = g.problem()
    plan, uids, ((uid, number),) = prepared.given
    assert (plan, uids) == ("plan", problem.graph.in_memory)
    assert ((uid, number.value, "float32"),) == problem.graph.numbers


@pytest.mark.parametrize("name", PLANNED)
def test_preferences_are_convolutions(plan: Planner, name: str) -> None:
    rows = plan("own_candidates", name=name)["candidates"]
    planned = [row for row in rows if row["planned"]]
    first = plan("own_plan", name=name)
    assert first["name"] == planned[0]["name"]
    assert first["operation"] == "forward"
    assert first["text"].startswith(f"<Plan {first['name']} for forward ")
    none = plan("own_plan", name=name, options={"prefer": "no_workspace"})
    assert none["workspace_size"] == 0
    assert none["name"] == next(row["name"] for row in planned if not row["workspace_size"])
    limited = plan("own_plan", name=name, options={"prefer": "limited_workspace", "workspace_limit": 100})
    assert limited["workspace_size"] <= 100
    assert plan("own_plan", name=name, options={"deterministic": True})["deterministic"]


def test_without_tf32_the_others_are_left(plan: Planner) -> None:
    assert "tensor_core" in plan("own_plan", name="convolution_alone")["notes"]
    assert "tensor_core" not in plan("own_plan", name="convolution_alone", options={"tf32": False})["notes"]


def test_strides_of_a_single_position_are_the_nodes_own() -> None:
    g = GRAPHS["one_position_channels_last"](Graph())
    (node,) = g.outputs
    other = Graph()
    x, w = other.tensor("x", channels_last((8, 64, 1, 1))), other.tensor("w", spec(64, 64, 1, 1))
    other.output("y", other.convolution(x, w), strides=(64, 1, 1, 1))
    assert other.outputs[0].spec.strides == node.spec.strides == (64, 1, 64, 64)


# Refused calls


def state(g: Any) -> Any:
    """Everything that a graph holds, by value."""
    found = dict(vars(g))
    nodes = {uid: (node, node.spec, node.name, node.virtual, node.number) for uid, node in found.pop("_by_uid").items()}
    copies = {name: list(value) if isinstance(value, list) else value for name, value in found.items()}
    return nodes, copies


OTHER = nn()
FOREIGN = OTHER.pointwise("abs", OTHER.tensor("p", spec(2, 6, 6, 6)))
NAN = float("nan")
not_a_node = "must be a node of this graph; got"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda g, x, s, v: g.pointwise("add", x, FOREIGN), ValueError, f"b {not_a_node} a node of shape"),
        (lambda g, x, s, v: g.pointwise("add", OTHER.inputs[0], x), ValueError, f"x {not_a_node} 'p', a node of ano"),
        (lambda g, x, s, v: g.convolution(x, FOREIGN), ValueError, f"w {not_a_node}"),
        (
            lambda g, x, s, v: g.normalization("batch_norm", x, s, s, 0.1, running=(s, FOREIGN)),
            ValueError,
            f"running {not_a_node}",
        ),
        (lambda g, x, s, v: g.output("y", FOREIGN), ValueError, f"node {not_a_node}"),
        (lambda g, x, s, v: g.pointwise("add", x, True), TypeError, r"b must be a number; got True"),
        (lambda g, x, s, v: g.convolution(x, spec(6, 6, 3, 3)), TypeError, f"w {not_a_node} TensorSpec"),
        (
            lambda g, x, s, v: g.reduction("add", x, (1.0,)),
            TypeError,
            r"axes must be a tuple of integers, one.*; got \(1\.0,\)",
        ),
        (lambda g, x, s, v: g.reduction("add", x, (1, -3)), ValueError, r"axes must be .*each axis.*; got \(1, -3\)"),
        (lambda g, x, s, v: g.normalization("layer_norm", x, s, s, NAN), ValueError, r"epsilon must .*; got nan"),
        (lambda g, x, s, v: g.normalization("layer_norm", x, s, s, 1e39), ValueError, r"epsilon must .*; got 1e.39"),
        (
            lambda g, x, s, v: g.normalization("batch_norm", x, s, s, 0.1, running=(s, s), average_factor=NAN),
            ValueError,
            r"average_factor must .*; got nan",
        ),
        (
            lambda g, x, s, v: g.normalization("batch_norm", x, s, s, 0.1, running=s),
            TypeError,
            r"running must be two nodes, the mean and the variance, or None; got a Node",
        ),
        (
            lambda g, x, s, v: g.normalization("batch_norm", x, s, s, 0.1, training=1),
            TypeError,
            r"training must .*; got 1",
        ),
        (
            lambda g, x, s, v: g.normalization("batch_norm", x, s, v, 0.1),
            ValueError,
            r"bias must have shape \(1, 6, 1, 1\), as scale; got shape \(2, 6, 6, 6\)",
        ),
        (
            lambda g, x, s, v: g.normalization_backward("batch_norm", s, x, s, s, s),
            ValueError,
            r"dy must have shape \(2, 6, 6, 6\), as x; got shape \(1, 6, 1, 1\)",
        ),
        (lambda g, x, s, v: g.number(True), TypeError, r"value must .*; got True"),
        (lambda g, x, s, v: g.number(1.0, 0), ValueError, r"rank must .*; got 0"),
        (lambda g, x, s, v: g.pointwise("relu_fwd", x, how={"slope": 1.0}), ValueError, r"how must .*; got 'slope'"),
        (lambda g, x, s, v: g.pointwise("relu_fwd", x, how=[1.0]), TypeError, r"how must be a mapping.*; got \[1.0\]"),
        (
            lambda g, x, s, v: g.pointwise("elu_fwd", x, how={"elu_alpha": NAN}),
            ValueError,
            r"how\['elu_alpha'\] must .*; got nan",
        ),
        (lambda g, x, s, v: g.pointwise("add", x), TypeError, "b must be a node for add; got None"),
        (lambda g, x, s, v: g.pointwise("add", x, x, x), TypeError, "t must be None for add; got a node"),
        (lambda g, x, s, v: g.convolution(x, x, dilation=1.5), TypeError, r"dilation must .*; got 1.5"),
        (lambda g, x, s, v: g.resample("maxpool", x, 2, padding=-1), ValueError, r"padding must .*; got -1"),
        (lambda g, x, s, v: g.output("y", v, None, (216, 36, 6.0, 1)), TypeError, r"y.strides must .*; got .*"),
    ],
)
def test_a_refused_call_names_the_argument_and_changes_nothing(call: Any, kind: type[Exception], message: str) -> None:
    g, x, scale = started((2, 6, 6, 6), (1, 6, 1, 1))
    virtual = g.pointwise("abs", x)
    g.convolution(x, x, padding=3)
    before = state(g)
    with pytest.raises(kind, match=f"^{message}"):
        call(g, x, scale, virtual)
    assert state(g) == before


def test_an_output_of_a_graph_without_inputs_wants_its_dtype() -> None:
    g = nn()
    y = g.pointwise("abs", g.number(1.0))
    with pytest.raises(
        ValueError, match="dtype must be a data type where the graph has no input to take it from; got None"
    ):
        g.output("y", y)
    assert g.output("y", y, "float32").spec.dtype == "float32"


@pytest.mark.parametrize("axes", [(1, 3), [3, -3], {1, 3}, range(1, 4, 2), (a for a in (1, 3)), np.array([1, 3])])
def test_axes_are_any_iterable_of_integers(axes: Any) -> None:
    g, x = started((2, 4, 6, 8))
    assert g.reduction("add", x, axes).shape == (2, 1, 6, 1)


def test_modes_may_be_enumerators_too() -> None:
    g, x, scale = started((2, 4, 6, 6), (1, 4, 1, 1))
    h, z, other = started((2, 4, 6, 6), (1, 4, 1, 1))
    g.pointwise(raw.CUDNN_POINTWISE_RELU_BWD, x, x)
    g.reduction(raw.CUDNN_REDUCE_TENSOR_MAX, x, (1,))
    g.resample(raw.CUDNN_RESAMPLE_MAXPOOL, x, 2)
    g.normalization(raw.CUDNN_BATCH_NORM, x, scale, scale, 0.1)
    h.pointwise("relu_bwd", z, z)
    h.reduction("max", z, (1,))
    h.resample("maxpool", z, 2)
    h.normalization("batch_norm", z, other, other, 0.1)

    assert g._operations == h._operations


def test_a_copy_of_a_graph_knows_its_own_nodes() -> None:
    g, x = started((2, 4, 6, 6))
    other = copy.copy(g)
    assert other.pointwise("abs", other.inputs[0]).shape == (2, 4, 6, 6)
    with pytest.raises(ValueError, match="x must be a node of this graph; got 'x0', a node of another graph"):
        other.pointwise("abs", x)


def test_an_input_is_described_by_an_array_on_the_host() -> None:
    x = Graph().tensor("x", np.zeros((2, 4, 6), np.float16).transpose(0, 2, 1))
    assert x.spec == TensorSpec((2, 6, 4), "float16", (24, 1, 6))
