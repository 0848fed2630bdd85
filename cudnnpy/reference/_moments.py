"""Mean and variance along axes, the gradient through them, and the checks of what normalizations are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays
from cudnnpy.reference._numbers import real

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]


def moments(x: Float64, axes: Shape) -> tuple[Float64, Float64]:
    """Mean and biased variance, with the reduced axes kept. The variance is that of the differences from the mean."""
    mean = x.mean(axis=axes, keepdims=True)
    return mean, np.square(x - mean).mean(axis=axes, keepdims=True)


def gradient(g: Float64, normalized: Float64, inverse: Float64, axes: Shape, centred: bool = True) -> Float64:
    """Gradient in x of normalized = (x - mean) * inverse, mean and inverse along axes; g is that in normalized.

    Not centred: of x * inverse.
    """
    dx: Float64 = g - normalized * (g * normalized).mean(axis=axes, keepdims=True)
    if centred:
        dx -= g.mean(axis=axes, keepdims=True)
    dx *= inverse
    return dx


def epsilon_of(value: object) -> float:
    """Return epsilon as a float; below 0, infinite or NaN is a ValueError."""
    epsilon = real("epsilon", value)
    if not 0 <= epsilon < inf:
        raise ValueError(f"epsilon={epsilon}: expected 0 or more, and finite")
    return epsilon


def check_results(results: Sequence[tuple[str, Array | None, Shape, str]], inputs: Mapping[str, Array | None]) -> None:
    """Refuse (name, array, shape, dtype) that cannot be written to or overlap an input or each other; None is none."""
    others = dict(inputs)
    for name, array, shape, dtype in results:
        if array is not None:
            _arrays.check_written(name, array, shape, (dtype,), others)
            others[name] = array


def check_parameter(name: str, array: object, shape: Shape, dtype: str, meaning: str) -> None:
    """Refuse what is not an array of the dtype and shape; meaning says what has this shape."""
    _arrays.check_array(name, array, (dtype,))
    assert isinstance(array, np.ndarray)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: expected {shape}, {meaning}")
