"""Averages over whole images as they are planned: reductions and broadcasts, carried out with NumPy (numpy_machine.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_machine import run_steps, tensor_in

from cudnnpy import Graph, TensorSpec, raw, reference
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program
from cudnnpy._launch.steps import FunctionCall
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.graph import reductions
from cudnnpy.handle import Handle
from cudnnpy.ops.pooling import pooling
from cudnnpy.ops.pooling.pooling import Pooling, _is_reduction


@pytest.fixture(autouse=True, scope="module")
def without_engines() -> Iterator[None]:
    real = raw.call

    def called(name: str, *arguments: Any) -> Any:
        return None if name == "cudnnGetReductionWorkspaceSize" else real(name, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "executable", lambda self, device, pick=0: None)
        patch.setattr(Handle, "default", classmethod(lambda cls, device=None: None))
        patch.setattr(reductions.raw, "call", called)
        for module, name in ((pooling, "_MIN_REDUCED_BYTES"), (reductions, "_MIN_BYTES")):
            patch.setattr(module, name, 0)
        yield


def spec_of(shape: tuple[int, ...], dtype: Any, last: bool) -> TensorSpec:
    return TensorSpec(shape, dtype, channels_last_strides(shape) if last else packed_strides(shape))


def prepared(op: Pooling, alpha: float, beta: float, specs: dict[str, TensorSpec]) -> Program:
    prepare = Pooling._backward if "dy" in specs else Pooling._forward
    return prepare(op, Call(Specs(specs), {}, 0, 0, {}), alpha, beta)[0]


def names(program: Program) -> list[str]:
    return [step.executable.name for step in program.steps if isinstance(step.executable, FunctionCall)]


def specs_of(shape: tuple[int, ...], dtype: Any, last: bool, gradient: bool, one: bool) -> dict[str, TensorSpec]:
    x = spec_of(shape, dtype, last)
    y = spec_of((*shape[:2], *(1 for _ in shape[2:])), dtype, one)
    return {"dy": y, "x": x, "y": y, "out": x} if gradient else {"x": x, "out": y}


@given(
    st.tuples(*[st.integers(1, 4)] * 4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["average_include_padding", "average_exclude_padding"]),
    st.sampled_from([(1.0, 0.0), (2.0, -0.5)]),
)
def test_the_average_of_an_image_and_its_gradient_are_the_references(
    shape: Any, last: bool, one: bool, gradient: bool, mode: Any, scales: tuple[float, float]
) -> None:
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
    *given_, out = values.values()
    expected = scales[0] * (twin.backward if gradient else twin.forward)(*given_) + scales[1] * out
    np.testing.assert_allclose(tensor_in(memories[-1], specs["out"]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "average_include_padding", "window": (2, 3)}, ["cudnnAddTensor"]),
        ({"mode": "average_exclude_padding", "window": (2, 3), "stride": 1}, ["cudnnAddTensor"]),
        ({"mode": "max", "window": (2, 3)}, ["cudnnPoolingBackward"]),
        ({"mode": "average_include_padding", "window": (2, 2)}, ["cudnnPoolingBackward"]),
        (
            {"mode": "average_include_padding", "window": (2, 3), "padding": (1, 0), "stride": 9},
            ["cudnnPoolingBackward"],
        ),
    ],
)
def test_only_the_average_of_whole_images_is_broadcast(options: dict[str, Any], expected: list[str]) -> None:
    op = Pooling(**options)
    shape = (2, 8, 2, 3)
    x, y = spec_of(shape, "float16", False), spec_of(op.output_shape(shape), "float16", False)
    assert names(prepared(op, 1.0, 0.0, {"dy": y, "x": x, "y": y, "out": x})) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "last", "expected"),
    [
        ((128, 2048, 7, 7), "float16", True, True),
        ((128, 2048, 7, 7), "float16", False, False),  # cudnnPoolingForward is faster
        ((32, 512, 64, 64), "float16", False, True),
        ((32, 512, 64, 64), "float64", False, False),
        ((32, 512, 64, 64), "float64", True, False),
        ((2, 16, 32, 32), "float32", False, False),  # small
        ((128, 2048, 1, 1), "float16", True, False),
    ],
)
def test_the_average_of_an_image_is_a_reduction_where_that_is_faster(
    shape: Any, dtype: Any, last: bool, expected: bool
) -> None:
    assert _is_reduction(spec_of(shape, dtype, last)) == expected
    assert not _is_reduction(spec_of(shape, dtype, last)._replace(alignment=8))


def test_the_gradient_of_tensors_with_gaps_is_left_to_the_function() -> None:
    x, y = spec_of((2, 8, 2, 3), "float16", False), spec_of((2, 8, 1, 1), "float16", False)
    gaps = x._replace(strides=tuple(2 * stride for stride in x.strides or ()))
    found = names(
        prepared(Pooling("average_include_padding", (2, 3)), 1.0, 0.0, {"dy": y, "x": x, "y": y, "out": gaps})
    )
    assert "cudnnPoolingBackward" in found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_images_that_no_graph_averages_are_left_to_the_pooling_function(dtype: Any) -> None:
    """cudnnReduceTensor, the last road of other reductions, is slower."""
    op, shape = Pooling("average_include_padding", (1024, 512)), (2, 2, 1024, 512)
    x, y = spec_of(shape, dtype, False), spec_of((2, 2, 1, 1), dtype, False)
    assert _is_reduction(x)
    assert names(prepared(op, 1.0, 0.0, {"x": x, "out": y})) == ["cudnnPoolingForward"]


def test_without_memory_for_copies_the_gradient_of_maxima_stays_channels_last() -> None:
    op, shape = Pooling("max"), (16, 64, 32, 32)
    x, y = spec_of(shape, "float16", True), spec_of(op.output_shape(shape), "float16", True)
    specs = Specs({"dy": y, "x": x, "y": y, "out": x})
    copies = [
        len(Pooling._backward(op, Call(specs, {}, 0, 0, {}, cap), 1.0, 0.0)[0].steps) - 1 for cap in (None, 1 << 10)
    ]
    assert copies == [4, 0]


@pytest.mark.parametrize(("count", "channels"), [(1, 1), (7, 1), (7, 3), (70_000, 1)])
def test_the_gradient_sees_images_of_one_channel_as_channels_of_one_image(count: int, channels: int) -> None:
    """The descriptors are of the same memory. A batch that is too large for the blocks of a grid stays a batch."""
    shape = (count, channels, 8, 8)
    x, y = spec_of(shape, "float16", False), spec_of((count, channels, 4, 4), "float16", False)
    program = prepared(Pooling("max", 3, padding=1, stride=2), 1.0, 0.0, {"dy": y, "x": x, "y": y, "out": x})
    function = next(step.executable for step in program.steps if "Pooling" in getattr(step.executable, "name", ""))
    found = [(given.shape, given.strides) for given in function.arguments if isinstance(given, TensorDescriptor)]
    if channels == 1 and count < 1 << 16:
        assert found[-1] == ((1, count, 8, 8), (count * 64, 64, 8, 1))
        assert {one[0][:2] for one in found} == {(1, count)}
    else:
        assert found[-1] == (shape, x.strides)
