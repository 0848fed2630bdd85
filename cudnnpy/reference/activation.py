"""Activations on float64 values, and the sigmoid as an operation of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays
from cudnnpy.reference._numbers import real

Float64: TypeAlias = NDArray[np.float64]


def sigmoid(x: NDArray[Any], out: NDArray[Any] | None = None, alpha: float = 1.0, beta: float = 0.0) -> NDArray[Any]:
    """Return alpha * 1 / (1 + exp(-x)) + beta * out, of x's shape.

    x is float16, bfloat16, float32 or float64; the result has its dtype, or is written to out, which may be x itself
    (in place). Computed in float64 and rounded once; no input overflows. With beta 0, out is not read.

    Raises TypeError for a wrong type or dtype and ValueError for an out of another shape or one that is read-only.
    """
    _arrays.check_array("x", x, _arrays.FLOATS)
    alpha, beta = real("alpha", alpha), real("beta", beta)
    if out is not None:
        _arrays.check_out(out, x.shape, _arrays.FLOATS)
    with np.errstate(all="ignore"):
        values = alpha * _sigmoid(x.astype(np.float64))
        if out is not None and beta:
            values += beta * out.astype(np.float64)
        return _arrays.store(values, x.dtype, out)


def _sigmoid(x: Float64) -> Float64:
    small = np.exp(-np.abs(x))  # never above 1, so nothing overflows for either sign
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _relu(x: Float64) -> Float64:
    return np.maximum(x, 0.0)


def _elu(x: Float64) -> Float64:
    return np.where(x > 0, x, np.expm1(x))


def _swish(x: Float64) -> Float64:
    return x * _sigmoid(x)


def _identity(x: Float64) -> Float64:
    return x


ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {
    "identity": _identity,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "elu": _elu,
    "swish": _swish,
}


def activation(name: object) -> Callable[[Float64], Float64]:
    """Return the function of a name (None is "identity"); an unknown one is a ValueError."""
    if name is None:
        return _identity
    if not isinstance(name, str):
        raise TypeError(f"activation={name!r}: expected None or one of {', '.join(ACTIVATIONS)}")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r}: expected None or one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
