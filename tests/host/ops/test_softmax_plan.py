"""Softmax as it is planned: rows, copies and graphs, carried out with NumPy (numpy_machine.py), against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_machine import NumpyExecutable, run_steps, tensor_in

from cudnnpy import Graph, TensorSpec, raw, reference
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program
from cudnnpy._launch.steps import FunctionCall
from cudnnpy.ops.softmax import row_graphs, softmax
from cudnnpy.ops.softmax.row_graphs import backward_is_faster, forward_is_faster
from cudnnpy.ops.softmax.softmax import Softmax

POINTWISE = {
    raw.CUDNN_POINTWISE_EXP: np.exp,
    raw.CUDNN_POINTWISE_LOG: np.log,
    raw.CUDNN_POINTWISE_SUB: np.subtract,
    raw.CUDNN_POINTWISE_DIV: np.divide,
    raw.CUDNN_POINTWISE_MUL: np.multiply,
    raw.CUDNN_POINTWISE_ADD: np.add,
}
REDUCTIONS = {raw.CUDNN_REDUCE_TENSOR_ADD: np.sum, raw.CUDNN_REDUCE_TENSOR_MAX: np.max}
MEMORY = st.sampled_from(["packed", "channels last", "gaps"])


@dataclass
class Planned(NumpyExecutable):
    """A graph in a plan's place."""

    graph: Graph
    workspace_size = 0

    def run(self, *memories: np.ndarray) -> None:
        nodes = (*self.graph.inputs, *self.graph.outputs)
        values = {
            node.uid: tensor_in(memory, node.spec).astype(np.float64)
            for node, memory in zip(self.graph.inputs, memories, strict=False)
        }
        broadcast = {node.uid for node in self.graph.inputs if node.shape[1] == 1}
        for kind, _, what in self.graph._nodes:
            first = values[what["XDESC"].uid]
            if kind == "OPERATION_REDUCTION":
                made: Any = REDUCTIONS[what["DESC"][1]["OPERATOR"]](first, axis=1, keepdims=True)
            else:
                others = [values[what["BDESC"].uid]] if what.get("BDESC") else []
                # engines go wrong with what is computed from numbers that they broadcast
                assert not {what["XDESC"].uid} & broadcast or self.graph.inputs[0].shape[1] == 1
                made = POINTWISE[what["PW_DESCRIPTOR"][1]["MODE"]](first, *others)
            values[what["YDESC"].uid] = made
        for node, memory in zip(nodes, memories, strict=True):
            if node in self.graph.outputs:
                tensor_in(memory, node.spec)[...] = values[node.uid]


@pytest.fixture(autouse=True, scope="module")
def graphs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "executable", lambda self, device, pick=0: Planned(self))
        patch.setattr(softmax, "_MIN_MANY_CHANNELS", 3)
        patch.setattr(softmax, "_MAX_SHORT_ROW", 4)
        yield


def spec_of(shape: tuple[int, ...], dtype: Any, memory: str) -> TensorSpec:
    strides = {"packed": packed_strides(shape), "channels last": channels_last_strides(shape)}
    return TensorSpec(shape, dtype, strides.get(memory) or tuple(2 * stride for stride in packed_strides(shape)))


def prepared(op: Softmax, alpha: float, beta: float, **specs: TensorSpec) -> Program:
    call = Call(Specs(specs), {}, 0, 0, {})
    prepare = Softmax._backward if "dy" in specs else Softmax._forward
    return prepare(op, call, alpha, beta)[0]


def check(op: Softmax, dtype: Any, scales: tuple[float, float], specs: dict[str, TensorSpec]) -> None:
    """The program's result is the reference's, whatever the memory of its operands."""
    program = prepared(op, *scales, **specs)
    rng = np.random.default_rng(0)
    shape = specs["out"].shape
    values = {name: rng.standard_normal(shape).astype(dtype) for name in specs}
    twin = reference.Softmax(op.algorithm, op.mode)
    if "dy" in specs:
        values["y"] = twin.forward(values["y"])
    memories = []
    for name, spec in specs.items():
        assert spec.strides is not None
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, spec.strides, strict=True))
        memories.append(np.zeros(extent, dtype))
        tensor_in(memories[-1], spec)[...] = values[name]
    run_steps(program.steps, program.scratch, *memories)
    *given, out = values.values()
    expected = (twin.backward if "dy" in specs else twin.forward)(*given).astype(np.float64)
    found = tensor_in(memories[-1], specs["out"])
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    exact = scales[0] * expected + scales[1] * out.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=tolerance, atol=tolerance)


SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=5).map(tuple)


@given(
    SHAPES,
    st.sampled_from(["accurate", "log"]),
    st.sampled_from(["channel", "instance"]),
    st.sampled_from(["float16", "float32"]),
    st.lists(MEMORY, min_size=3, max_size=3),
    st.sampled_from([(1.0, 0.0), (0.5, 0.0), (2.0, -1.0)]),
    st.booleans(),
    st.booleans(),
)
def test_every_plan_has_the_references_result(
    shape: Any, algorithm: Any, mode: Any, dtype: Any, memory: Any, scales: Any, gradient: bool, by_graphs: bool
) -> None:
    names = ("dy", "y", "out") if gradient else ("x", "out")
    specs = {name: spec_of(shape, dtype, lies) for name, lies in zip(names, memory, strict=False)}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward_is_faster", "backward_is_faster"):
            patch.setattr(softmax, name, lambda *given: by_graphs)
        check(Softmax(algorithm, mode), dtype, scales, specs)


def functions(op: Softmax, gradient: bool = False, alignment: int = 16, **more: Any) -> list[Any]:
    """The mode and the shape of each softmax function of a program, or its name; "graphs" for graphs."""
    shape, dtype, memory = more["shape"], more.get("dtype", "float16"), more.get("memory", "packed")
    spec = spec_of(shape, dtype, memory)._replace(alignment=alignment)
    names = ("dy", "y", "out") if gradient else ("x", "out")
    found: list[Any] = []
    for step in prepared(op, more.get("alpha", 1.0), 0.0, **dict.fromkeys(names, spec)).steps:
        executable = step.executable
        if not isinstance(executable, FunctionCall):
            found.append("graphs")
        elif "Softmax" in executable.name:
            found.append((raw.cudnnSoftmaxMode_t(executable.arguments[1]).name[19:], executable.arguments[3].shape))
        else:
            found.append(executable.name)
    return found


@pytest.mark.parametrize(
    ("gradient", "mode", "more", "expected"),
    [
        # rows that are short go as channels forward, others as instances
        (False, "channel", {"shape": (7, 4)}, [("CHANNEL", (7, 4, 1, 1))]),
        (False, "channel", {"shape": (7, 5)}, [("INSTANCE", (7, 5, 1, 1))]),
        (True, "channel", {"shape": (7, 4)}, [("INSTANCE", (7, 4, 1, 1))]),
        # channels that are the fastest axis are rows
        (True, "channel", {"shape": (2, 5, 2, 3), "memory": "channels last"}, [("INSTANCE", (12, 5, 1, 1))]),
        (False, "channel", {"shape": (2, 5, 2, 3), "memory": "channels last"}, [("INSTANCE", (12, 5, 1, 1))]),
        (False, "instance", {"shape": (2, 5, 2, 3)}, [("INSTANCE", (2, 30, 1, 1))]),
        # a few channels stay apart; more of them become rows by way of copies
        (False, "channel", {"shape": (2, 2, 2, 3)}, [("CHANNEL", (2, 2, 6, 1))]),
        (
            False,
            "channel",
            {"shape": (2, 5, 2, 3)},
            ["cudnnTransformTensor", ("INSTANCE", (12, 5, 1, 1)), "cudnnTransformTensor"],
        ),
    ],
)
def test_the_function_gets_rows_where_they_are_faster(
    gradient: bool, mode: Any, more: dict[str, Any], expected: list[Any]
) -> None:
    assert functions(Softmax(mode=mode), gradient, **more) == expected


@pytest.mark.parametrize("gradient", [False, True])
def test_long_rows_are_graphs(gradient: bool) -> None:
    long: dict[str, Any] = {"shape": (2, 32768)}
    assert functions(Softmax(), gradient, **long) == ["graphs"]
    for op, more in (
        (Softmax(), {**long, "alpha": 0.5}),
        (Softmax("fast"), long),
        (Softmax(), {**long, "alignment": 8}),
        (Softmax(), {**long, "dtype": "float64"}),
    ):
        assert functions(op, gradient, **more) == [("INSTANCE", (2, 32768, 1, 1))]


def test_without_an_engine_the_function_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "executable", lambda self, device, pick=0: None)
    for gradient in (False, True):
        for algorithm in ("accurate", "log"):
            assert functions(Softmax(algorithm), gradient, shape=(2, 32768)) == [("INSTANCE", (2, 32768, 1, 1))]


@pytest.mark.parametrize(
    ("length", "dtype", "faster"),
    [
        (16_384, "float16", False),
        (32_000, "bfloat16", True),
        (50_257, "float16", False),  # rows that are not aligned
        (50_304, "float32", False),  # a row that fits in shared memory
        (128_256, "float32", True),
        (128_256, "float64", False),
    ],
)
def test_forward_roads_are_those_that_were_measured(length: int, dtype: Any, faster: bool) -> None:
    assert forward_is_faster(length, dtype) == faster


@pytest.mark.parametrize(
    ("count", "length", "dtype", "faster"),
    [
        (2048, 4096, "float16", False),
        (128, 4096, "float16", False),
        (4096, 32_000, "bfloat16", True),
        (166, 50_257, "bfloat16", True),
        (2048, 50_257, "float16", False),
        (667, 50_304, "float32", False),
        (13, 10_000, "float32", True),
        (13, 10_000, "float64", False),
    ],
)
def test_backward_roads_are_those_that_were_measured(count: int, length: int, dtype: Any, faster: bool) -> None:
    assert backward_is_faster(count, length, dtype, False) == faster
    medium = dtype == "float16" and length == 4096 and count == 2048  # the logarithm's gradient is slower
    assert backward_is_faster(count, length, dtype, True) == (faster or medium)


def test_statistics_are_float32_and_as_many_as_rows() -> None:
    for log, arrays in ((False, 2), (True, 3)):
        made: Any = row_graphs.forward(0, 6, 64, "float16", log)
        assert made.scratch == [24] * arrays
    made = row_graphs.backward(0, 6, 64, "float16", True)
    assert made.scratch == [24]
    assert math.prod(made.steps[0].executable.graph.outputs[0].shape) == 6


@pytest.mark.parametrize("gradient", [False, True])
def test_without_room_for_copies_the_channels_stay_apart(gradient: bool) -> None:
    names, spec = ("dy", "y", "out") if gradient else ("x", "out"), spec_of((2, 5, 2, 3), "float16", "packed")
    op, prepare = Softmax(), Softmax._backward if gradient else Softmax._forward
    sizes = [
        prepare(op, Call(Specs(dict.fromkeys(names, spec)), {}, 0, 0, {}, cap), 1.0, 0.0)[0].workspace_size
        for cap in (None, 1 << 20, 100)
    ]
    assert sizes == [256 * len(names), 256 * len(names), 0]
