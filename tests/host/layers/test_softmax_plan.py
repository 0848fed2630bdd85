"""Softmax as it is planned: rows and copies, carried out with NumPy (numpy_machine.py), against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_machine import run_steps, tensor_in

from cudnnpy import TensorSpec, raw, reference
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program
from cudnnpy._launch.steps import FunctionCall
from cudnnpy._layers import softmax
from cudnnpy._layers.softmax import Softmax

MEMORY = st.sampled_from(["packed", "channels last", "gaps"])


@pytest.fixture(autouse=True, scope="module")
def many_channels() -> Iterator[None]:
    """Four channels are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "_MANY_CHANNELS", 3)
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
    st.sampled_from(["fast", "accurate", "log"]),
    st.sampled_from(["channel", "instance"]),
    st.sampled_from(["float16", "float32"]),
    st.lists(MEMORY, min_size=3, max_size=3),
    st.sampled_from([(1.0, 0.0), (0.5, 0.0), (2.0, -1.0)]),
    st.booleans(),
)
def test_every_plan_has_the_references_result(
    shape: Any, algorithm: Any, mode: Any, dtype: Any, memory: Any, scales: Any, gradient: bool
) -> None:
    names = ("dy", "y", "out") if gradient else ("x", "out")
    specs = {name: spec_of(shape, dtype, lies) for name, lies in zip(names, memory, strict=False)}
    check(Softmax(algorithm, mode), dtype, scales, specs)


def functions(op: Softmax, gradient: bool = False, alignment: int = 16, **more: Any) -> list[Any]:
    """The mode and the shape of each softmax function of a program, or the name of another function."""
    shape, dtype, memory = more["shape"], more.get("dtype", "float16"), more.get("memory", "packed")
    spec = spec_of(shape, dtype, memory)._replace(alignment=alignment)
    names = ("dy", "y", "out") if gradient else ("x", "out")
    found: list[Any] = []
    for step in prepared(op, more.get("alpha", 1.0), 0.0, **dict.fromkeys(names, spec)).steps:
        executable = step.executable
        assert isinstance(executable, FunctionCall)
        if "Softmax" in executable.name:
            found.append((raw.cudnnSoftmaxMode_t(executable.arguments[1]).name[19:], executable.arguments[3].shape))
        else:
            found.append(executable.name)
    return found


@pytest.mark.parametrize(
    ("gradient", "mode", "more", "expected"),
    [
        # rows go as instances
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
def test_without_room_for_copies_the_channels_stay_apart(gradient: bool) -> None:
    names, spec = ("dy", "y", "out") if gradient else ("x", "out"), spec_of((2, 5, 2, 3), "float16", "packed")
    op, prepare = Softmax(), Softmax._backward if gradient else Softmax._forward
    sizes = [
        prepare(op, Call(Specs(dict.fromkeys(names, spec)), {}, 0, 0, {}, cap), 1.0, 0.0)[0].workspace_size
        for cap in (None, 1 << 20, 100)
    ]
    assert sizes == [256 * len(names), 256 * len(names), 0]
