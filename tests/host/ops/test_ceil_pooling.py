"""Pooling in ceil mode as it is planned: its steps carried out with NumPy, whose C functions know no ceil mode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_machine import run_steps, tensor_in

from cudnnpy import Pooling, TensorSpec, reference
from cudnnpy._core.layouts import byte_extent, packed_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.program import Program
from cudnnpy._launch.steps import FunctionCall, OffsetExecutable

MODES = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")


@dataclass(frozen=True)
class Problem:
    """One pooling in ceil mode, on tensors that lie in some order of memory, with gaps."""

    options: dict[str, Any]
    x_shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    gaps: tuple[int, ...]
    alpha: float
    beta: float

    def spec(self, shape: tuple[int, ...], gap: int) -> TensorSpec:
        """A tensor whose fastest axis has every gap-th element of memory."""
        strides = tuple(stride * gap for stride in packed_strides(shape, self.order))
        return TensorSpec(shape, self.dtype, strides)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(1, 3))
    window = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    padding = tuple(draw(st.integers(0, size - 1)) for size in window)
    stride = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *(draw(st.integers(1, 7)) for _ in range(rank)))
    options = {"mode": draw(st.sampled_from(MODES)), "window": window, "padding": padding, "stride": stride}
    axes = range(rank + 2)
    order = draw(st.sampled_from([tuple(axes), (0, *range(2, rank + 2), 1)]))
    gaps = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(4))
    alpha, beta = draw(st.sampled_from([(1.0, 0.0), (2.0, 0.0), (-0.5, 3.0), (1.0, 1.0)]))
    return Problem(options, shape, draw(st.sampled_from(["float32", "float64"])), order, gaps, alpha, beta)


def memory_of(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-8, 9, byte_extent(spec) // np.dtype(spec.dtype).itemsize).astype(spec.dtype)


def call(**specs: TensorSpec) -> Call:
    return Call(Specs(specs), {}, 0, 0, {})


def planned(problem: Problem, operation: str, **specs: TensorSpec) -> Program | None:
    """The program of a problem that has a place beyond the padding; None of one that is pooled in one go."""
    pool = Pooling(**problem.options, ceil_mode=True)
    program, _ = getattr(pool, operation)(call(**specs), problem.alpha, problem.beta)
    pools = [step for step in program.steps if pooling_of(step.executable)]
    if len(program.steps) == 1 and not (pools and isinstance(pools[0].executable, OffsetExecutable)):
        return None
    return program


def pooling_of(executable: Any) -> bool:
    executable = getattr(executable, "executable", executable)
    return isinstance(executable, FunctionCall) and executable.name.startswith("cudnnPooling")


@settings(deadline=None, max_examples=400)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_parts_of_the_result_are_the_references(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    by_numpy = reference.Pooling(**problem.options, ceil_mode=True)
    try:
        y_shape = by_numpy.output_shape(problem.x_shape)
    except ValueError:
        with pytest.raises(ValueError, match="window"):
            Pooling(**problem.options, ceil_mode=True).output_shape(problem.x_shape)
        return
    assert Pooling(**problem.options, ceil_mode=True).output_shape(problem.x_shape) == y_shape
    x, y = problem.spec(problem.x_shape, problem.gaps[0]), problem.spec(y_shape, problem.gaps[1])
    program = planned(problem, "_forward", x=x, out=y)
    if program is None:
        assert reference.Pooling(**problem.options).output_shape(problem.x_shape) == y_shape
        return
    source, target = memory_of(x, rng), memory_of(y, rng)
    before = tensor_in(target, y).astype(np.float64)
    around = target.copy()
    run_steps(program.steps, program.scratch, source, target)
    exact = problem.alpha * by_numpy.forward(tensor_in(source, x).astype(np.float64)) + problem.beta * before
    np.testing.assert_allclose(tensor_in(target, y), exact, rtol=1e-5, atol=1e-5)
    tensor_in(around, y)[...] = tensor_in(target, y)
    np.testing.assert_array_equal(target, around)  # nothing in the gaps was written


@settings(deadline=None, max_examples=400)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_steps_of_the_gradient_give_the_references(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    by_numpy = reference.Pooling(**problem.options, ceil_mode=True)
    try:
        y_shape = by_numpy.output_shape(problem.x_shape)
    except ValueError:
        return
    dy, y = (problem.spec(y_shape, gap) for gap in problem.gaps[:2])
    x, dx = (problem.spec(problem.x_shape, gap) for gap in problem.gaps[2:])
    program = planned(problem, "_backward", dy=dy, x=x, y=y, out=dx)
    if program is None:
        return
    memories = [memory_of(spec, rng) for spec in (dy, x, y, dx)]
    tensor_in(memories[2], y)[...] = by_numpy.forward(tensor_in(memories[1], x).astype(np.float64))
    kept = [memory.copy() for memory in memories]
    run_steps(program.steps, program.scratch, *memories)
    values = by_numpy.backward(*(tensor_in(m, s).astype(np.float64) for m, s in zip(kept[:3], (dy, x, y), strict=True)))
    exact = problem.alpha * values + problem.beta * tensor_in(kept[3], dx).astype(np.float64)
    np.testing.assert_allclose(tensor_in(memories[3], dx), exact, rtol=1e-5, atol=1e-4)
    for memory, before in zip(memories[:3], kept, strict=False):
        np.testing.assert_array_equal(memory, before)
    tensor_in(kept[3], dx)[...] = tensor_in(memories[3], dx)
    np.testing.assert_array_equal(memories[3], kept[3])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_maxima_and_averages_of_the_types(mode: str, dtype: str) -> None:
    """A gradient is computed in float32 where factors of dy would be rounded to a narrower type, else in x's own."""
    shape, y_shape = (1, 2, 5, 5), (1, 2, 3, 3)
    x, y = (TensorSpec(s, dtype, packed_strides(s)) for s in (shape, y_shape))
    program, _ = Pooling(mode, 2, ceil_mode=True)._backward(call(dy=y, x=x, y=y), 1.0, 0.0)
    wide = "float32" if mode.startswith("average") and dtype == "float16" else dtype
    assert program.scratch[0] == math.prod((1, 2, 6, 6)) * np.dtype(wide).itemsize
    x64 = np.random.default_rng(0).permutation(50).astype(np.float64).reshape(shape)
    by_numpy = reference.Pooling(mode, 2, ceil_mode=True)
    y64 = by_numpy.forward(x64)
    dy64 = np.arange(18.0).reshape(y_shape)
    memories = [a.astype(dtype).reshape(-1) for a in (dy64, x64, y64, np.full(shape, np.nan))]
    run_steps(program.steps, program.scratch, *memories)
    np.testing.assert_allclose(memories[3].reshape(shape), by_numpy.backward(dy64, x64, y64), rtol=1e-3)


def test_sizes_that_fit_are_pooled_in_one_go() -> None:
    x = TensorSpec((1, 2, 6, 8), "float32", packed_strides((1, 2, 6, 8)))
    for ceil_mode in (False, True):
        program, _ = Pooling(window=2, ceil_mode=ceil_mode)._forward(call(x=x), 1.0, 0.0)
        assert [step.executable.name for step in program.steps] == ["cudnnPoolingForward"]  # type: ignore[attr-defined]
