"""Random operands of a measurement on the host: their numbers, their bytes, and slices of them as float64."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense, packed_strides
from cudnnpy._planning.problem import Problem, StridedSlice, Values

# The random numbers of a tensor, which repeat in memory. It is prime, so that no two images of a batch are alike.
_NUMBERS = 262_139


@lru_cache(maxsize=32)
def numbers(dtype: str, seed: int, values: Values) -> Any:
    """Return random numbers, or lengths or indices, as an array of a data type."""
    import numpy as np

    if values.step is not None:
        return (values.low + values.step * np.arange(_NUMBERS)).astype(numpy_dtype(dtype))
    drawn = np.random.default_rng(seed).uniform(values.low, values.high, _NUMBERS)
    return (np.rint(drawn) if values.is_whole else drawn).astype(numpy_dtype(dtype))


def drawn(problem: Problem, operand: int) -> Any:
    """Return the numbers that repeat in an operand of a problem; of a result, those of its initial content for beta."""
    return numbers(problem.specs[operand].dtype, operand, problem.value_ranges[operand])


def image(spec: TensorSpec, elements: Any, gaps: int) -> Any:
    """Return the bytes of a tensor: elements from a repeated array, or filled with one byte; gaps filled with another byte."""
    import numpy as np

    assert spec.strides is not None
    memory, size = np.full(byte_extent(spec), gaps, np.uint8), dtype_of(spec.dtype).itemsize
    view = np.lib.stride_tricks.as_strided(
        memory.view(f"u{size}"), spec.shape, [size * stride for stride in spec.strides]
    )
    if isinstance(elements, int):
        elements = np.full(view.itemsize, elements, np.uint8)
    view[...] = np.resize(elements.view(view.dtype), spec.shape)
    return memory


def part(problem: Problem, operand: int, box: StridedSlice) -> Any:
    """Return a slice of an operand as float64: its numbers repeat in memory, or between gaps in logical order."""
    import numpy as np

    spec, index = problem.specs[operand], np.zeros((), np.int64)
    strides = spec.strides if spec.strides and is_dense(spec) else packed_strides(spec.shape)
    for begin, count, step, stride in zip(*box, strides, strict=True):
        index = index[..., None] + stride * (begin + step * np.arange(count))
    return drawn(problem, operand)[index % _NUMBERS].astype(np.float64)
