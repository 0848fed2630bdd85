"""The comparison of candidates' results, and its tolerances."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from stand_in_driver import DONE, DriverFixture

from cudnnpy import TensorSpec
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy.tuning.measuring import result_comparison
from cudnnpy.tuning.measuring.result_comparison import MaxAbs, tolerance


def test_tolerance_grows_with_the_sum_and_with_coarser_types() -> None:
    def of(dtype: str, channels: int, tf32: bool = True) -> float:
        options = ConvolutionOptions()
        x, w = TensorSpec((1, channels, 4, 4), dtype), TensorSpec((1, channels, 3, 3), dtype)
        y = TensorSpec((1, 1, 2, 2), dtype)
        return tolerance(ConvolutionProblem(*specification.make_problem(options, "forward", x, w, y)), tf32)

    assert of("float64", 8) < of("float32", 8, tf32=False) < of("float32", 8) <= of("float16", 8) < of("bfloat16", 8)
    assert of("float32", 8, tf32=False) < of("float32", 800, tf32=False) < 1e-2
    assert of("bfloat16", 8) < 0.25


@pytest.mark.parametrize("dtype", ["int8", "int32", "float8_e4m3fn"])
def test_types_that_no_v7_function_adds_are_compared_by_numpy(cuda_driver: DriverFixture, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    memory = {1: np.array([1, -4, 2, 3]).astype(kind), 2: np.array([1, 4, 2, 2]).astype(kind)}

    def read(to: int, at: int, size: int, stream: int) -> None:
        ctypes.memmove(to, memory[at].ctypes.data, size)

    cuda_driver(cuMemcpyDtoHAsync=read, cuStreamSynchronize=lambda stream: DONE)
    largest = MaxAbs(None, 0)  # type: ignore[arg-type]
    spec = TensorSpec((4,), dtype)
    assert largest(spec, 1, memory[1].nbytes) == 4.0
    assert largest(spec, 1, memory[1].nbytes, minus=2) == 8.0


@pytest.mark.parametrize(("place", "value"), [(0, 9.0), (7, -9.0), (4, np.nan)])
def test_more_elements_than_a_descriptor_can_have_are_compared_in_parts(
    monkeypatch: pytest.MonkeyPatch, place: int, value: float
) -> None:
    memory = np.ones(8, np.int32).astype(float)
    memory[place] = value
    asked: list[tuple[int, int, int | None]] = []

    def by_numpy(self: Any, dtype: str, at: int, size: int, minus: int | None) -> float:
        asked.append((at, size, minus))
        return float(np.abs(memory[(at - 100) // 4 :][: size // 4]).max())

    monkeypatch.setattr(result_comparison, "MAX_TENSOR_ELEMENTS", 3)
    monkeypatch.setattr(MaxAbs, "_by_numpy", by_numpy)
    largest = MaxAbs(None, 0)  # type: ignore[arg-type]
    np.testing.assert_equal(largest(TensorSpec((8,), "int32"), 100, 32, minus=500), abs(value))
    assert asked == [(100, 12, 500), (112, 12, 512), (124, 8, 524)]


def test_a_result_of_one_element_is_read_without_a_reduction(
    monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture
) -> None:
    """cudnnReduceTensor rejects tensors of one shape, so that no candidate for such a result could be compared."""
    memory = np.array([-3.5], np.float32)

    real = result_comparison.raw.call

    def called(name: str, *arguments: Any) -> Any:
        assert "Reduc" not in name
        if name != "cudnnAddTensor":
            return real(name, *arguments)
        memory[0] -= 1.0  # in place
        return None

    monkeypatch.setattr(result_comparison.raw, "call", called)
    cuda_driver(
        cuMemcpyDtoHAsync=lambda to, at, size, stream: ctypes.memmove(to, memory.ctypes.data, size),
        cuStreamSynchronize=lambda stream: DONE,
    )
    largest = MaxAbs(None, 0)  # type: ignore[arg-type]
    assert largest(TensorSpec((1, 1, 1, 1), "float32"), memory.ctypes.data, 4) == 3.5
    assert largest(TensorSpec((1, 1, 1, 1), "float32"), memory.ctypes.data, 4, minus=64) == 4.5
