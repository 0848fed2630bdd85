"""Random operands of a measurement as bytes on the host, and the gaps between their elements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._planning.problem import Values

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


def image(spec: TensorSpec, elements: Any, gaps: int) -> Any:
    """Return the bytes of a tensor: elements from a repeated array, or filled with one byte; gaps filled with another byte."""
    import numpy as np

    memory = np.full(byte_extent(spec), gaps, np.uint8)
    view = _elements(memory, spec)
    if isinstance(elements, int):
        elements = np.full(view.itemsize, elements, np.uint8)
    view[...] = np.resize(elements.view(view.dtype), spec.shape)
    return memory


def have_gaps_changed(memory: Any, spec: TensorSpec, gaps: int) -> bool:
    """Return whether a byte in the gaps of a tensor differs from `gaps`."""
    import numpy as np

    others = memory.copy()
    view = _elements(others, spec)
    view[...] = np.full(view.itemsize, gaps, np.uint8).view(view.dtype)
    return bool((others != gaps).any())


def without_gaps(memory: Any, spec: TensorSpec) -> Any:
    """Return the bytes of a tensor with gaps of 0."""
    import numpy as np

    cleared = np.zeros_like(memory)
    _elements(cleared, spec)[...] = _elements(memory, spec)
    return cleared


def _elements(memory: Any, spec: TensorSpec) -> Any:
    """Return the elements in the bytes of a tensor, as unsigned integers of their size."""
    import numpy as np

    assert spec.strides is not None
    size = dtype_of(spec.dtype).itemsize
    strides = [size * stride for stride in spec.strides]
    return np.lib.stride_tricks.as_strided(memory.view(f"u{size}"), spec.shape, strides)
