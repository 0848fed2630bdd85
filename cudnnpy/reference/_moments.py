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
    if not prod(x.shape[axis] for axis in axes):
        reduced_shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        return np.zeros(reduced_shape), np.full(reduced_shape, np.nan)
    mean = x.mean(axis=axes, keepdims=True)
    return mean, np.square(x - mean).mean(axis=axes, keepdims=True)


def gradient(g: Float64, normalized: Float64, inverse: Float64, axes: Shape) -> Float64:
    """Return the gradient with respect to x of normalized = (x - mean) * inverse.

    g is the gradient with respect to normalized; mean and inverse are statistics of x along axes.
    """
    if not g.size:
        return np.zeros(g.shape)
    dx: Float64 = g - normalized * (g * normalized).mean(axis=axes, keepdims=True)
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
