"""Batch normalization as it is planned, carried out with NumPy (numpy_machine.py) and compared with the reference.

What cuDNN makes of a graph's nodes and of its functions is left to the GPU's tests. Here it is whether every array comes
to its place: with parameters of any type or none, sizes of 0, and whatever graphs there are engines for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy_machine import NumpyExecutable, plan_of, run_steps, tensor_in

import cudnnpy
from cudnnpy import Graph, raw, reference
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import _function_names
from cudnnpy._layers import batch_normalization as batch
from cudnnpy._layers.batch_normalization import Normalized
from cudnnpy.graph.operation_graph import Operation
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import Handle

DTYPES = ("float16", np.dtype(ml_dtypes.bfloat16).name, "float32", "float64")
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-11}
ENGINES: dict[str, Callable[[str, Graph], bool]] = {
    "none": lambda mode, graph: False,
    "all": lambda mode, graph: True,
    "float32 parameters": lambda mode, graph: {i.spec.dtype for i in graph.inputs if i.shape[0] == 1} == {"float32"},
    "forward": lambda mode, graph: mode == "norm_forward",
}


@dataclass
class Engines:
    """Which graphs there are engines for."""

    there: str = "all"


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """Stand-ins for what needs a GPU."""
    found = Engines()

    def plan(graph: Graph, call: Call) -> Any:
        return plan_of(Planned(graph)) if ENGINES[found.there](graph.operations[0], graph) else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "_plan_if_supported", plan)
        patch.setattr(Handle, "default", classmethod(lambda cls, device=None: None))
        patch.setattr(batch, "check_writable", lambda name, array: None)
        yield found


@dataclass
class Planned(NumpyExecutable):
    """A graph in a plan's place."""

    graph: Graph
    workspace_size = 0

    def run(self, *memories: np.ndarray) -> None:
        problem, caller = self.graph._problem(0)
        assert isinstance(problem, GraphProblem)
        ordered = [memories[at] for at in caller.order]
        values: dict[int, Any] = {uid: np.float64(number) for uid, number, _ in problem.graph.numbers}
        tensors = [
            (uid, spec, memory)
            for uid, spec, memory in zip(problem.graph.in_memory, problem.specs, ordered, strict=True)
        ]
        for uid, spec, memory in tensors[: -problem.results]:
            values[uid] = tensor_in(memory, spec).astype(np.float64)
        for operation in problem.graph.operations:
            given: Any = {name: values[uid] for name, uid in operation.operands}  # type: ignore[index]
            made = NODES[operation.kind](operation, given)
            values |= {uid: made[name] for name, uid in operation.results}
        for uid, spec, memory in tensors[-problem.results :]:
            tensor_in(memory, spec)[...] = values[uid]


def _forward(operation: Operation, given: Any) -> dict[str, np.ndarray]:
    x = given["x"]
    assert operation.option("mode") == raw.CUDNN_BATCH_NORM
    shape = (1, x.shape[1], *[1] * (x.ndim - 2))
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
    mean = x.mean(axes, keepdims=True)
    variance = np.square(x - mean).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + given["epsilon"])
    found = {"y": (x - mean) * inverse * given["scale"] + given.get("bias", 0.0), "mean": mean, "inv_variance": inverse}
    if "input_running_mean" in given:
        factor, count = given["exp_avg_factor"], x.size // inverse.size
        for name, value in (("mean", mean), ("var", variance * count / (count - 1))):
            found[f"output_running_{name}"] = (1 - factor) * given[f"input_running_{name}"] + factor * value
    return found


def _backward(operation: Operation, given: Any) -> dict[str, np.ndarray]:
    dy, x, inverse, scale = (given[name] for name in ("dy", "x", "inv_variance", "scale"))
    axes = tuple(axis for axis, size in enumerate(inverse.shape) if size == 1)
    over = tuple(axis for axis, size in enumerate(scale.shape) if size == 1)
    n, g = (x - given["mean"]) * inverse, dy * scale
    dx = (g - n * (g * n).mean(axes, keepdims=True) - g.mean(axes, keepdims=True)) * inverse
    return {"dx": dx, "dscale": (dy * n).sum(over, keepdims=True), "dbias": dy.sum(over, keepdims=True)}


NODES = {
    "norm_forward": _forward,
    "norm_backward": _backward,
}


# A call, planned and carried out


def planned(
    norm: Any, prepare: Any, names: tuple[str, ...], arrays: dict[str, Any], *arguments: Any
) -> tuple[dict[str, np.ndarray], Any]:
    """The results of a call by name (the running statistics too), and the program; names are those of the call's arrays."""
    dtypes = {name: array.dtype.name for name, array in arrays.items()}
    specs, memories = {}, {}
    for name, array in arrays.items():
        strides = tuple(stride // array.itemsize for stride in array.strides) if array.size else None
        specs[name] = TensorSpec(array.shape, dtypes[name], strides or packed_strides(array.shape))
        memories[name] = np.lib.stride_tricks.as_strided(array, (_reach(specs[name]),), (array.itemsize,))
    addresses = {name: (at + 1) << 32 for at, name in enumerate(arrays)}
    call = Call(Specs(specs), addresses, 0, 0, dict(arrays))
    program, results = prepare(norm, call, *arguments)
    order = [name for name in names if name in arrays or name in names[-len(results) :]]
    assert [operand.name for operand in program.operands] == order  # the addresses come in the order of the names
    new = names[-len(results) :]
    for name, spec in zip(new, results, strict=True):
        if name not in memories:
            memories[name] = np.full(_reach(spec), math.nan, spec.dtype)
    run_steps(program.steps, program.scratch, *(memories[name] for name in order))
    made = {
        name: np.empty(spec.shape, spec.dtype) if 0 in spec.shape else tensor_in(memories[name], spec)
        for name, spec in zip(new, results, strict=True)
    }
    return made | {name: array for name, array in arrays.items() if name.startswith("running")}, program


def _reach(spec: TensorSpec) -> int:
    assert spec.strides is not None
    if 0 in spec.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))


def close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), what
    a, b = found.astype(np.float64), expected.astype(np.float64)
    tolerance = TOLERANCE[expected.dtype.name]
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(np.nan_to_num(b)).max(initial=0)))


@dataclass(frozen=True)
class Problem:
    """One batch normalization and the arrays that it gets."""

    shape: tuple[int, ...]
    dtype: str
    own: bool = False
    given: tuple[str, ...] = ("scale", "bias")
    layout: str = "NCHW"
    order: tuple[int, ...] = ()
    there: str = "all"
    seed: int = 0

    @property
    def wide(self) -> Any:
        return np.dtype("float64" if self.dtype == "float64" else "float32")

    def tensor(self, random: np.random.Generator) -> np.ndarray:
        order = self.order or tuple(range(len(self.shape)))
        packed = random.standard_normal([self.shape[axis] for axis in order]).astype(self.dtype)
        return packed.transpose([order.index(axis) for axis in range(len(order))])

    @property
    def kind_of_parameters(self) -> Any:
        return np.dtype(self.dtype) if self.own else self.wide

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return (self.shape[-1 if self.layout.endswith("C") and len(self.shape) > 2 else 1],)

    @property
    def options(self) -> dict[str, Any]:
        return {"epsilon": 1e-3, "layout": self.layout}

    def parameters(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        kind = self.kind_of_parameters
        shape, names = self.parameter_shape, [n for n in ("scale", "bias") if n in self.given]
        return {name: random.standard_normal(shape).astype(kind) for name in names}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(2, 5))
    shape = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    if draw(st.integers(0, 5)) == 0:
        shape[draw(st.integers(0, rank - 1))] = 0
    found = Problem(
        tuple(shape),
        draw(st.sampled_from(DTYPES)),
        own=draw(st.booleans()),
        given=draw(st.sampled_from([(), ("scale",), ("bias",), ("scale", "bias")])),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        order=tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else (),
        there=draw(st.sampled_from(sorted(ENGINES))),
        seed=draw(st.integers(0, 1000)),
    )
    return replace(found, given=()) if found.parameter_shape == (0,) else found


drawn = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_batch_normalization_as_planned_is_the_reference(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MIN_LAST_BYTES", "_MIN_LONG_CHANNEL"):
        monkeypatch.setattr(batch, name, 0)  # so that graphs are taken where there are any

    @settings(drawn, max_examples=200)
    @given(problems(), st.booleans(), st.booleans(), st.sampled_from([0.1, -1.0, 2.0]))
    def check(p: Problem, with_running: bool, saved: bool, factor: float) -> None:
        random = np.random.default_rng(p.seed)
        engines.there = p.there
        ours, theirs = (package.BatchNormalization(**p.options) for package in (cudnnpy, reference))
        x, dy, parameters = p.tensor(random), p.tensor(random), p.parameters(random)
        scale, bias = parameters.get("scale"), parameters.get("bias")
        running = {
            n: random.uniform(1, 2, p.parameter_shape).astype(p.kind_of_parameters)
            for n in ("running_mean", "running_variance")
        }
        running = running if with_running else {}
        right = {name: array.copy() for name, array in running.items()}
        expected = theirs.forward_training(x, scale, bias, **right, average_factor=factor)
        names = "x", "scale", "bias", "running_mean", "running_variance", "out", "saved_mean", "saved_inverse_variance"
        arrays = {"x": x, **parameters, **running}
        found, _ = planned(ours, type(ours)._forward_training, names, arrays, factor, None, 1.0, 0.0)
        for name, wanted in zip(names[-3:], expected, strict=True):
            close(found[name], wanted, name)
        for name, wanted in right.items():
            close(running[name], wanted, name)

        means = {
            name: random.uniform(1, 2, p.parameter_shape).astype(p.kind_of_parameters) for name in ("mean", "variance")
        }
        names = "x", "scale", "bias", "mean", "variance", "out"
        found, _ = planned(ours, type(ours)._forward_inference, names, {"x": x, **parameters, **means}, 1.0, 0.0)
        close(found["out"], theirs.forward_inference(x, scale, bias, **means), "out")

        kept = dict(zip(("saved_mean", "saved_inverse_variance"), expected[1:], strict=True)) if saved else {}
        gradients = theirs.backward(dy, x, scale, *kept.values(), bias=bias is not None)
        arrays = {"dy": dy, "x": x, **({"scale": scale} if scale is not None else {}), **kept}
        there = scale is not None, bias is not None
        made = [name for name, wanted in zip(("out_scale", "out_bias"), there, strict=True) if wanted]
        names = "dy", "x", "scale", "saved_mean", "saved_inverse_variance", "out", *made
        found, _ = planned(ours, type(ours)._backward, names, arrays, 1.0, 0.0, 1.0, 0.0, there[1])
        for name, wanted in zip(("out", "out_scale", "out_bias"), gradients, strict=True):
            assert (wanted is None) == (name not in found)
            if wanted is not None:
                close(found[name], wanted, name)

    check()


# Which memory orders graphs of batch normalization get


@pytest.mark.parametrize(
    ("shape", "last", "expected"),
    [
        ((128, 64, 56, 56), False, ["as_channels_first"]),  # few long channels
        ((8, 256, 200, 200), False, []),  # one channel is one block of cuDNN's function: there are enough
        ((128, 64, 7, 7), False, []),  # short channels
        ((8, 256, 200, 200), True, ["as_channels_last"]),
        ((128, 3, 56, 56), True, ["as_channels_last", "as_channels_first"]),
        ((8, 3, 56, 56), False, []),
        ((8, 64, 7, 7), True, ["as_channels_last"]),  # small, but the function is slow channels last
        ((2, 16, 7, 7), True, []),  # smaller still
        ((128, 64, 1, 1), False, ["as_channels_last"]),  # channels last in memory
    ],
)
def test_graphs_of_batch_normalization_get_the_orders_in_which_they_are_fast(
    shape: tuple[int, ...], last: bool, expected: list[str]
) -> None:
    strides = channels_last_strides(shape) if last else packed_strides(shape)
    x = TensorSpec(shape, "float16", strides)
    normalized = Normalized(x, True, False)
    assert [order.__name__ for order in normalized.faster_formats(x)] == expected
    assert normalized.faster_formats(x._replace(alignment=8)) == []
    assert normalized._replace(spatial=False).faster_formats(x) == []


@pytest.mark.parametrize("supported", ["last", "first", "none"])
def test_channels_last_without_an_engine_batch_normalization_is_on_copies(
    supported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (16, 3, 200, 200)
    x = TensorSpec(shape, "float16", channels_last_strides(shape))
    asked: list[Any] = []

    def plan(graph: Graph, call: Call) -> Any:
        asked.append(graph.inputs[0].spec.strides)
        is_last = asked[-1] == x.strides
        return plan_of(Planned(graph)) if (supported == "last") == is_last and supported != "none" else None

    monkeypatch.setattr(Graph, "_plan_if_supported", plan)
    vector = TensorSpec((3,), "float32", (1,))
    specs = Specs({"x": x, "scale": vector, "bias": vector, "out": x})
    call = Call(specs, dict.fromkeys(specs, 0), 0, 0, {})
    monkeypatch.setattr(batch, "check_no_overlaps", lambda call, operands: operands)
    program, _ = cudnnpy.BatchNormalization()._forward_training(call, 0.1, None, 1.0, 0.0)
    copies = [step for step in program.steps if getattr(step.executable, "name", "") == "cudnnTransformTensor"]
    assert len(copies) == (0 if supported == "last" else 2)
    functions = [*_function_names(program.executable)]
    assert ("cudnnBatchNormalizationForwardTraining" in functions) == (supported == "none")
    assert asked == [x.strides, packed_strides(shape)][: 1 if supported == "last" else 2]
