"""Averages over whole images as they are planned: sums and broadcasts, carried out with NumPy (numpy_machine.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_machine import planned_sum, run_steps, tensor_in

from cudnnpy import Graph, Pooling, TensorSpec, reference
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program, _function_names
from cudnnpy._layers import pooling
from cudnnpy._layers.lowerings import sums as reductions


@pytest.fixture(autouse=True, scope="module")
def engines() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "_plan_if_supported", planned_sum)
        patch.setattr(reductions, "_MIN_BYTES", 0)
        yield


@pytest.fixture
def small_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MIN_SUM_BYTES", "_MIN_SUM_POSITIONS"):
        monkeypatch.setattr(pooling, name, 0)


def spec_of(shape: tuple[int, ...], dtype: Any, last: bool) -> TensorSpec:
    return TensorSpec(shape, dtype, channels_last_strides(shape) if last else packed_strides(shape))


def prepared(op: Pooling, alpha: float, beta: float, specs: dict[str, TensorSpec], limit: int | None = None) -> Program:
    prepare = Pooling._backward if "dy" in specs else Pooling._forward
    return prepare(op, Call(Specs(specs), {}, 0, 0, {}, limit), alpha, beta)[0]


def names(program: Program) -> list[str]:
    return list(_function_names(program.executable))


def specs_of(shape: tuple[int, ...], dtype: Any, last: bool, gradient: bool, one: bool) -> dict[str, TensorSpec]:
    x = spec_of(shape, dtype, last)
    y = spec_of((*shape[:2], *(1 for _ in shape[2:])), dtype, one)
    return {"dy": y, "x": x, "y": y, "out": x} if gradient else {"x": x, "out": y}


@pytest.mark.parametrize("is_planned", [True, False])
def test_the_average_of_an_image_and_its_gradient_are_the_references(
    is_planned: bool, small_sums: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any memory format, with an engine for the sums and without one."""
    if not is_planned:
        monkeypatch.setattr(Graph, "_plan_if_supported", lambda *_: None)

    @given(
        st.tuples(*[st.integers(1, 4)] * 4),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["average_include_padding", "average_exclude_padding"]),
        st.sampled_from([(1.0, 0.0), (2.0, -0.5)]),
    )
    def check(shape: Any, last: bool, one: bool, gradient: bool, mode: Any, scales: tuple[float, float]) -> None:
        op, twin = (package(mode, shape[2:]) for package in (Pooling, reference.Pooling))
        specs = specs_of(shape, "float32", last, gradient, one)
        rng = np.random.default_rng(0)
        values = {name: rng.standard_normal(spec.shape).astype("float32") for name, spec in specs.items()}
        memories = []
        for name, spec in specs.items():
            memories.append(np.zeros(math.prod(spec.shape), "float32"))
            tensor_in(memories[-1], spec)[...] = values[name]
        program = prepared(op, *scales, specs)
        run_steps(program.steps, program.scratch, *memories)
        *given, out = values.values()
        exact = scales[0] * (twin.backward if gradient else twin.forward)(*given) + scales[1] * out
        np.testing.assert_allclose(tensor_in(memories[-1], specs["out"]), exact, rtol=1e-5, atol=1e-5)

    check()


@pytest.mark.parametrize(
    ("shape", "dtype", "last", "is_sum"),
    [
        ((32, 512, 64, 64), "float16", False, True),
        ((32, 512, 64, 64), "bfloat16", True, True),
        ((128, 2048, 7, 7), "float16", True, False),  # few positions
        ((2, 16, 32, 32), "float32", False, False),  # small
        ((32, 512, 64, 64), "float64", True, False),
        ((1 << 11, 1 << 10, 32, 32), "float16", False, False),  # exceeds one descriptor
    ],
)
def test_the_average_of_a_large_image_is_a_sum(shape: Any, dtype: Any, last: bool, is_sum: bool) -> None:
    x, y = spec_of(shape, dtype, last), spec_of((*shape[:2], 1, 1), dtype, last)
    op = Pooling("average_include_padding", shape[2:])
    assert ("cudnnPoolingForward" in names(prepared(op, 1.0, 0.0, {"x": x, "out": y}))) != is_sum
    for change in ({"x": x._replace(alignment=2)}, {"x": x._replace(strides=tuple(2 * s for s in x.strides or ()))}):
        if math.prod(shape) < 1 << 30:
            assert names(prepared(op, 1.0, 0.0, {"x": x, "out": y} | change)) == ["cudnnPoolingForward"]


def test_without_memory_for_a_sum_the_average_is_a_pooling() -> None:
    shape = (32, 512, 64, 64)
    specs = {"x": spec_of(shape, "float16", True), "out": spec_of((*shape[:2], 1, 1), "float16", True)}
    op = Pooling("average_include_padding", shape[2:])
    assert names(prepared(op, 1.0, 0.0, specs, 1 << 20)) == ["cudnnPoolingForward"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "average_include_padding", "window": (2, 3), "stride": 1}, ["cudnnAddTensor"]),
        ({"mode": "max", "window": (2, 3)}, ["cudnnPoolingBackward"]),
        ({"mode": "average_include_padding", "window": (2, 2)}, ["cudnnPoolingBackward"]),
        (
            {"mode": "average_include_padding", "window": (2, 3), "padding": (1, 0), "stride": 9},
            ["cudnnPoolingBackward"],
        ),
    ],
)
def test_only_the_gradient_of_an_average_over_whole_images_is_a_broadcast(
    options: dict[str, Any], expected: list[str]
) -> None:
    op = Pooling(**options)
    shape = (2, 8, 2, 3)
    x, y = spec_of(shape, "float16", False), spec_of(op.output_shape(shape), "float16", False)
    assert names(prepared(op, 1.0, 0.0, {"dy": y, "x": x, "y": y, "out": x})) == expected


def test_the_gradient_of_tensors_with_gaps_is_a_function_on_copies() -> None:
    x, y = spec_of((2, 8, 2, 3), "float16", False), spec_of((2, 8, 1, 1), "float16", False)
    gaps = x._replace(strides=tuple(2 * stride for stride in x.strides or ()))
    program = prepared(Pooling("average_include_padding", (2, 3)), 1.0, 0.0, {"dy": y, "x": x, "y": y, "out": gaps})
    assert names(program) == ["cudnnPoolingBackward", "cudnnTransformTensor"]
