"""The arbiter: single elements of a convolution in float64, and which of two results that differ they find right."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_machine import tensor_in
from stand_in_driver import DONE, DriverFixture

from cudnnpy import TensorSpec, reference
from cudnnpy._convolution import specification
from cudnnpy._convolution.float64_elements import float64_elements
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.problem import StridedSlice
from cudnnpy.tuning.measuring import float64_check
from cudnnpy.tuning.measuring.float64_check import Float64Checker

SMALL = st.integers(1, 3)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[ConvolutionProblem, dict[str, Any], dict[str, np.ndarray]]:
    """A problem, the options of its Convolution, and its tensors."""
    rank, groups = draw(SMALL), draw(SMALL)
    axes = [draw(st.tuples(st.integers(5, 9), SMALL, SMALL, st.integers(1, 2))) for _ in range(rank)]
    padding = tuple(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in range(rank))
    options = {
        "groups": groups,
        "stride": tuple(axis[2] for axis in axes),
        "dilation": tuple(axis[3] for axis in axes),
        "padding": padding,
        "mode": draw(st.sampled_from(["convolution", "cross_correlation"])),
    }
    checked = ConvolutionOptions(**options)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (2, draw(SMALL) * groups, *(axis[0] for axis in axes)),
        "w": (draw(SMALL) * groups, 0, *(axis[1] for axis in axes)),
    }
    shapes["w"] = (shapes["w"][0], shapes["x"][1] // groups, *shapes["w"][2:])
    shapes["y"] = output_shape(checked, shapes["x"], shapes["w"])
    operation = draw(st.sampled_from(["forward", "backward_data", "backward_filter"]))
    forward = operation == "forward"
    bias = TensorSpec(shapes["w"][:1], "float64") if forward and draw(st.booleans()) else None
    made = specification.make_problem(
        checked,
        operation,
        *(TensorSpec(shapes[name], "float64") for name in "xwy"),
        alpha=draw(st.sampled_from([1.0, 0.5])),
        beta=draw(st.sampled_from([0.0, 2.0])),
        bias=bias,
        activation=draw(st.sampled_from([None, "relu", "sigmoid", "tanh", "elu", "swish"])) if forward else None,
    )
    numbers = np.random.default_rng(draw(st.integers(0, 9)))
    tensors = {name: numbers.normal(size=shape) for name, shape in shapes.items()}
    tensors["bias"] = numbers.normal(size=shapes["w"][:1])
    return ConvolutionProblem(*made), options, tensors


@settings(max_examples=150, deadline=None)
@given(convolutions(), st.randoms(use_true_random=False))
def test_single_elements_are_those_of_the_reference(drawn: Any, random: Any) -> None:
    asked, options, tensors = drawn
    roles = [name.removeprefix("d") for name in asked.operands]
    result = roles[-1]
    operands = [tensors[role] for role in roles]
    given_arrays = [tensors["y"], tensors["x"]] if asked.operation == "backward_filter" else operands[:2]
    more: dict[str, Any] = {"alpha": asked.alpha, "beta": asked.beta, "out": tensors[result].copy()}
    if asked.operation == "forward":
        more |= {"bias": tensors["bias"] if asked.bias else None, "activation": asked.activation}
    else:
        given_arrays.append(tensors[result].shape)
    right = getattr(reference.Convolution(**options), asked.operation)(*given_arrays, **more)

    def read(operand: int, box: StridedSlice) -> Any:
        array = operands[operand]
        for begin, count, step, size in zip(*box, array.shape, strict=True):
            assert count > 0
            assert begin >= 0
            assert begin + (count - 1) * step < size
        return array[tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(*box, strict=True))]

    positions = [tuple(random.randrange(size) for size in right.shape) for _ in range(6)]
    values, sizes = float64_elements(asked, positions, read)
    expected = np.array([right[position] for position in positions])
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9)
    assert all(size >= 0 for size in sizes)


class Device:
    """Arrays as device memory, by their addresses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: DriverFixture) -> None:
        self.kept: list[np.ndarray] = []
        monkeypatch.setattr(float64_check, "allocate", self.take)
        monkeypatch.setattr(float64_check, "copy", self.copy)
        driver(
            cuMemcpyDtoHAsync=lambda to, at, size, _: ctypes.memmove(to, at, size),
            cuStreamSynchronize=lambda stream: DONE,
        )
        self.fails = False

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        self.kept.append(np.zeros(size, np.uint8))
        return self.kept[-1].ctypes.data, size, None

    def copy(self, source: TensorSpec, packed: TensorSpec) -> Any:
        def launch() -> int:
            read, written = pair
            tensor_at(written, packed)[...] = tensor_at(read, source)
            return 3000 if self.fails else 0

        pair: list[int] = []

        def bind(handle: Any, pointers: tuple[int, ...], workspace: int) -> Any:
            pair[:] = pointers
            return launch

        return SimpleNamespace(bind=bind)


def tensor_at(address: int, spec: TensorSpec) -> np.ndarray:
    assert spec.strides is not None
    count = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True))
    size = count * np.dtype(spec.dtype).itemsize
    return tensor_in(np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address)), spec)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> Device:
    return Device(monkeypatch, cuda_driver)


class Case:
    """A forward convolution in memory, its right result, and an arbiter over it."""

    def __init__(self, last: bool = False, dtype: str = "float32", gaps: int = 0) -> None:
        shapes = ((2, 6, 7, 8), (4, 6, 3, 3), (2, 4, 7, 8))
        specs = [TensorSpec(shape, dtype, channels_last_strides(shape) if last else None) for shape in shapes]
        if gaps:
            _, c, h, w = shapes[2]
            specs[2] = TensorSpec(shapes[2], dtype, ((c + gaps) * h * w, h * w, w, 1))
        options = ConvolutionOptions(padding=1)
        self.problem = ConvolutionProblem(*specification.make_problem(options, "forward", *specs, beta=1.0))
        numbers = np.random.default_rng(0)
        self.memory = [np.zeros(8 << 10, np.uint8) for _ in range(4)]
        x, w, start, out = (self.of(at) for at in range(4))
        for tensor in (x, w, start):
            tensor[...] = numbers.normal(size=tensor.shape)
        given = (tensor.astype(np.float64) for tensor in (x, w))
        out[...] = reference.Convolution(padding=1).forward(*given, out=start.astype(np.float64), beta=1.0)

    def of(self, at: int) -> np.ndarray:
        return tensor_in(self.memory[at], self.problem.specs[min(at, 2)])

    def errors(self, other: np.ndarray, asked: Any = None) -> tuple[float, float] | None:
        x, w, start, right = (memory.ctypes.data for memory in self.memory)
        memory: Any = SimpleNamespace(inputs=(x, w), start=start)
        return Float64Checker(asked or self.problem, memory, cast(Any, None)).errors(right, other.ctypes.data)


def test_elements_of_any_part_of_a_large_result_are_compared(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64_check, "_CHUNK", 64)
    monkeypatch.setattr(float64_check, "_CHUNKS", 100)
    case = Case()
    for position in ((0, 0, 0, 0), (0, 2, 3, 4), (1, 3, 6, 7)):
        other = case.memory[3].copy()
        tensor_in(other, case.problem.specs[2])[position] = 9.0
        found = case.errors(other)
        assert found is not None
        assert found[1] > 0.1


def test_numbers_that_cannot_be_summed_leave_no_arbiter(device: Device) -> None:
    case = Case()
    position = (1, 3, 3, 4)
    case.of(2)[position] = np.inf
    case.of(0)[1, 0, 3, 4], case.of(1)[3, 0, 1, 1] = -np.inf, 1.0
    other = case.memory[3].copy()
    tensor_in(other, case.problem.specs[2])[position] = 9.0
    assert case.errors(other) is None


def test_there_is_no_arbiter_for_graphs_small_types_and_copies_that_fail(device: Device) -> None:
    case = Case()

    class Graph(ConvolutionProblem):
        def float64_elements(self, positions: Any, read: Any) -> Any:
            return None

    assert case.errors(case.memory[3], Graph(*case.problem)) is None
    x, w, y = (spec._replace(dtype="int8") for spec in (case.problem.x, case.problem.w, case.problem.y))
    assert case.errors(case.memory[3], case.problem._replace(x=x, w=w, y=y)) is None
    device.fails = True
    assert case.errors(case.memory[3]) is None
