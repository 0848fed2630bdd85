"""Mean and variance along axes, the gradient of a normalization, and checks of the arguments of normalizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._numpy_operation import Arrays


def moments(x: Float64, axes: Shape) -> tuple[Float64, Float64]:
    """Return the mean and the biased variance along axes, which remain with size 1.

    The variance is computed from the differences from the mean. Over no elements the mean is 0 and the variance NaN, as
    in PyTorch.
    """
    if _is_empty(x, axes):
        reduced_shape = _kept(x, axes)
        return np.zeros(reduced_shape), np.full(reduced_shape, np.nan)
    mean = x.mean(axis=axes, keepdims=True)
    return mean, np.square(x - mean).mean(axis=axes, keepdims=True)


def mean_square(x: Float64, axes: Shape) -> Float64:
    """Return the mean of the squares along axes, which remain with size 1; NaN over no elements, as in PyTorch."""
    if _is_empty(x, axes):
        return np.full(_kept(x, axes), np.nan)
    square: Float64 = np.square(x).mean(axis=axes, keepdims=True)
    return square


def _is_empty(x: Float64, axes: Shape) -> bool:
    return not prod(x.shape[axis] for axis in axes)


def _kept(x: Float64, axes: Shape) -> Shape:
    return tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))


def gradient(g: Float64, normalized: Float64, inverse: Float64, axes: Shape, centred: bool = True) -> Float64:
    """Return the gradient with respect to x of normalized = (x - mean) * inverse, or, if not centred, of x * inverse.

    g is the gradient with respect to normalized; mean and inverse are statistics of x along axes.
    """
    if not g.size:
        return np.zeros(g.shape)
    dx: Float64 = g - normalized * (g * normalized).mean(axis=axes, keepdims=True)
    if centred:
        dx -= g.mean(axis=axes, keepdims=True)
    dx *= inverse
    return dx


def check_dtypes_of_parameters(arrays: Arrays) -> None:
    """Check that scale and bias, if both were passed, have the same dtype."""
    if "scale" in arrays and "bias" in arrays:
        _arrays.check_same_dtype("bias", arrays["bias"], "scale", arrays["scale"])


def check_results(results: Sequence[tuple[str, Array | None, Shape, str]], inputs: Mapping[str, Array | None]) -> None:
    """Check that results, as (name, array, shape, dtype), can be written to and overlap no input and no other result."""
    others = dict(inputs)
    for name, array, shape, dtype in results:
        _arrays.check_written(name, array, shape, (dtype,), others)
        others[name] = array


def check_parameter(name: str, array: object, shape: Shape, dtypes: Sequence[str], meaning: str) -> None:
    """Check that a parameter is an array of one of the dtypes and of the shape, which meaning explains in the error."""
    _arrays.check_array(name, array, tuple(dtypes))
    assert isinstance(array, np.ndarray)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}; got shape {array.shape}")
