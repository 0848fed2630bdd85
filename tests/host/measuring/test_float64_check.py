"""The arbiter: single elements of a convolution in float64, and which of two results that differ they find right."""

from __future__ import annotations

import ctypes
from typing import Any

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
from cudnnpy.tuning.measuring import result_comparison
from cudnnpy.tuning.measuring.bench_buffers import drawn, image
from cudnnpy.tuning.measuring.result_comparison import Float64Checker

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


@pytest.fixture(autouse=True)
def _memory(cuda_driver: DriverFixture) -> None:
    """Arrays as device memory, by their addresses."""
    cuda_driver(
        cuMemcpyDtoHAsync=lambda to, at, size, _: ctypes.memmove(to, at, size),
        cuStreamSynchronize=lambda stream: DONE,
    )


class Case:
    """A forward convolution of the random operands of a measurement, and its right result in memory."""

    def __init__(self, last: bool = False, gaps: int = 0, **first_elements: float) -> None:
        shapes = ((2, 6, 7, 8), (4, 6, 3, 3), (2, 4, 7, 8))
        specs = [TensorSpec(shape, "float32", channels_last_strides(shape) if last else None) for shape in shapes]
        if gaps:
            for at in (0, 2):
                _, c, h, w = shapes[at]
                specs[at] = TensorSpec(shapes[at], "float32", ((c + gaps) * h * w, h * w, w, 1))
        options = ConvolutionOptions(padding=1)
        self.problem = ConvolutionProblem(*specification.make_problem(options, "forward", *specs, beta=1.0))
        x, w, start = (
            tensor_in(image(spec, drawn(self.problem, at), 0) if gaps else self.repeated(at), spec)
            for at, spec in enumerate(self.problem.specs)
        )
        self.right = np.zeros(8 << 10, np.uint8)
        given = (tensor.astype(np.float64) for tensor in (x, w))
        out = reference.Convolution(padding=1).forward(*given, out=start.astype(np.float64), beta=1.0)
        tensor_in(self.right, self.problem.specs[2])[...] = out

    def repeated(self, operand: int) -> np.ndarray:
        numbers: np.ndarray = drawn(self.problem, operand)[: 8 << 10]
        return numbers.view(np.uint8)

    def errors(self, other: np.ndarray, asked: Any = None) -> list[float] | None:
        return Float64Checker(asked or self.problem).errors(self.right.ctypes.data, other.ctypes.data)


@pytest.mark.parametrize(("last", "gaps"), [(False, 0), (True, 0), (False, 3)])
def test_the_right_result_has_no_error(last: bool, gaps: int) -> None:
    """In whatever order its operands are in memory."""
    case = Case(last, gaps)
    other = case.right.copy()
    tensor_in(other, case.problem.specs[2])[1, 2, 3, 4] += 9.0
    for found in (case.errors(other), Float64Checker(case.problem).errors(case.right.ctypes.data)):
        assert found is not None
        assert found[0] < 1e-6


def test_elements_of_any_part_of_a_large_result_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_comparison, "_CHUNK", 64)
    monkeypatch.setattr(result_comparison, "_CHUNKS", 100)
    case = Case()
    for position in ((0, 0, 0, 0), (0, 2, 3, 4), (1, 3, 6, 7)):
        other = case.right.copy()
        tensor_in(other, case.problem.specs[2])[position] = 9.0
        found = case.errors(other)
        assert found is not None
        assert found[1] > 0.1


def test_numbers_that_cannot_be_summed_leave_no_arbiter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()

    def read(problem: ConvolutionProblem, operand: int, box: StridedSlice) -> Any:
        return np.full(box.shape, -np.inf if operand == 0 else np.inf)

    monkeypatch.setattr(result_comparison, "part", read)
    assert case.errors(case.right + 1) is None


def test_there_is_no_arbiter_for_graphs_and_small_types() -> None:
    case = Case()

    class Graph(ConvolutionProblem):
        def float64_elements(self, positions: Any, read: Any) -> Any:
            return None

    assert case.errors(case.right, Graph(*case.problem)) is None
    x, w, y = (spec._replace(dtype="int8") for spec in (case.problem.x, case.problem.w, case.problem.y))
    assert case.errors(case.right, case.problem._replace(x=x, w=w, y=y)) is None
