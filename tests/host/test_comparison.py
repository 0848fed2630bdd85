"""How far results of candidates may differ, and what compares them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cudnnpy import TensorSpec
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._planning.comparison import Largest, tolerance
from cudnnpy.convolution import problem
from cudnnpy.convolution.candidates import ConvolutionProblem


def test_tolerance_grows_with_the_sum_and_with_coarser_types() -> None:
    def of(dtype: str, channels: int, tf32: bool = True) -> float:
        options = problem.checked(problem.Options())
        x, w = TensorSpec((1, channels, 4, 4), dtype), TensorSpec((1, channels, 3, 3), dtype)
        y = TensorSpec((1, 1, 2, 2), dtype)
        return tolerance(ConvolutionProblem(*problem.make_problem(options, "forward", x, w, y)), tf32)

    assert of("float64", 8) < of("float32", 8, tf32=False) < of("float32", 8) <= of("float16", 8) < of("bfloat16", 8)
    assert of("float32", 8, tf32=False) < of("float32", 800, tf32=False) < 1e-2
    assert of("bfloat16", 8) < 0.25


@pytest.mark.parametrize("dtype", ["int8", "int32", "float8_e4m3fn"])
def test_types_that_no_v7_function_adds_are_compared_by_numpy(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    memory = {1: np.array([1, -4, 2, 3]).astype(kind), 2: np.array([1, 4, 2, 2]).astype(kind)}

    def read(to: int, at: int, size: int, stream: int) -> None:
        ctypes.memmove(to, memory[at].ctypes.data, size)

    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyDtoHAsync", read)
    monkeypatch.setattr("cuda.bindings.driver.cuStreamSynchronize", lambda stream: None)
    largest = Largest(None, 0, 0)  # type: ignore[arg-type]
    spec = TensorSpec((4,), dtype)
    assert largest(spec, 1, memory[1].nbytes) == 4.0
    assert largest(spec, 1, memory[1].nbytes, minus=2) == 8.0
