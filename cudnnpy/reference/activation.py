"""Activations: functions of float64 values, which convolutions apply too, and the operations `sigmoid` and `Activation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_scales
from cudnnpy._options.operations import ActivationOptions
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import ScalarT

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]


def sigmoid(x: NDArray[ScalarT], out: Array | None = None, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """Return alpha * 1 / (1 + exp(-x)) + beta * out.

    The result is computed in float64, without overflow for any input, and rounded once. With beta 0, out is not read.

    Parameters
    ----------
    x : numpy.ndarray
        float16, bfloat16, float32 or float64, of any shape.
    out : numpy.ndarray, optional
        The result, of x's shape; it may be x itself (in place). A new array of x's dtype by default.
    alpha, beta : float
        Factors of the sigmoid and of out.

    Raises
    ------
    TypeError
        The type or dtype of an argument is wrong.
    ValueError
        The shape of out is wrong, or it is read-only.
    """
    x = _arrays.check_array("x", x, _arrays.FLOATS)
    alpha, beta = check_scales(alpha, beta, out=out)
    if out is not None:
        _arrays.check_out(out, x.shape, _arrays.FLOATS)
    with np.errstate(all="ignore"):
        return _arrays.store_scaled(_sigmoid(x.astype(np.float64)), x.dtype, out, alpha, beta)


@dataclass(frozen=True)
class Activation(ActivationOptions):
    """An activation and its gradient, on NumPy arrays.

    ============  ======================================  ===================================
    mode          f(x)                                    gradient, times dy
    ============  ======================================  ===================================
    sigmoid       1 / (1 + exp(-x))                       y * (1 - y)
    relu          max(x, 0)                               1 where x > 0, else 0
    tanh          tanh(x)                                 1 - y * y
    clipped_relu  min(max(x, 0), c)                       1 where 0 < x < c, else 0
    elu           x where x > 0, else c * (exp(x) - 1)    1 where x > 0, else c * exp(x)
    identity      x                                       1
    swish         x / (1 + exp(-c * x))                   the derivative of f at x
    ============  ======================================  ===================================

    Where x is NaN, f(x) is NaN. swish of -infinity (of infinity for c < 0) is an infinity times 0, and so NaN as well. A
    gradient that is "else 0" is 0 whatever dy is, and where x is NaN.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    mode : str
        A mode of the table.
    coefficient : float
        c: the ceiling of clipped_relu, the factor of elu or of the exponent of swish. The other modes do not use it.
    """

    def forward(
        self,
        x: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * f(x) + beta * out, computed in float64 and rounded once.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64, of 1 to 5 axes.
        out : numpy.ndarray, optional
            The result, of x's shape and dtype; it may be x itself (in place).
        alpha, beta : float
            Factors; out is not read if beta is 0.
        stream : object
            Ignored.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        x = _arrays.check_tensor("x", x, empty="any")
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), in_place=("x",), x=x)
        with np.errstate(all="ignore"):
            values = FUNCTIONS[self.mode](x.astype(np.float64), self.coefficient)
            return _arrays.store_scaled(values, x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: NDArray[ScalarT],
        x: NDArray[ScalarT],
        y: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * dx + beta * out, with the gradient dx with respect to x.

        sigmoid and tanh read y, the others x; of the one that is not read, only shape and dtype are checked. After a forward
        in place, y may be given for both with sigmoid, tanh, relu and clipped_relu.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to forward's result y.
        x, y : numpy.ndarray
            forward's input and result, of dy's shape and dtype.
        out : numpy.ndarray, optional
            The result, of dy's shape and dtype; it may be dy itself (in place).
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of dy's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        dy = _arrays.check_tensor("dy", dy, empty="any")
        x, y = _arrays.check_like("x", x, "dy", dy), _arrays.check_like("y", y, "dy", dy)
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, dy.shape, (dy.dtype.name,), in_place=("dy",), dy=dy, x=x, y=y)
        with np.errstate(all="ignore"):
            read = (y if self.mode in FROM_RESULT else x).astype(np.float64)
            values = GRADIENTS[self.mode](dy.astype(np.float64), read, self.coefficient)
            return _arrays.store_scaled(values, dy.dtype, out, alpha, beta)


def _sigmoid(x: Float64, c: float = 1.0) -> Float64:
    small = np.exp(-np.abs(x))  # at most 1, so it cannot overflow
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _relu(x: Float64, c: float = 1.0) -> Float64:
    return np.maximum(x, 0.0)


def _tanh(x: Float64, c: float = 1.0) -> Float64:
    return np.tanh(x)


def _clipped_relu(x: Float64, c: float) -> Float64:
    return np.minimum(np.maximum(x, 0.0), c)


def _elu(x: Float64, c: float = 1.0) -> Float64:
    return np.where(x > 0, x, c * np.expm1(x))


def _swish(x: Float64, c: float = 1.0) -> Float64:
    return x * _sigmoid(c * x)


def _identity(x: Float64, c: float = 1.0) -> Float64:
    return x


def _swish_gradient(dy: Float64, x: Float64, c: float) -> Float64:
    small = np.exp(-np.abs(c * x))
    # sigmoid' is small / (1 + small) ** 2: sigmoid * (1 - sigmoid) would lose digits to cancellation.
    return dy * (_sigmoid(c * x) + c * x * small / (1.0 + small) ** 2)


# Activations as functions of x and the coefficient. Convolutions apply those in ACTIVATIONS, with coefficient 1.
ACTIVATIONS: dict[str, Callable[..., Float64]] = {
    "identity": _identity,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "elu": _elu,
    "swish": _swish,
}
FUNCTIONS: dict[str, Callable[[Float64, float], Float64]] = {**ACTIVATIONS, "clipped_relu": _clipped_relu}

# Gradients with respect to x as functions of dy, x (y for the modes in FROM_RESULT) and the coefficient.
FROM_RESULT = ("sigmoid", "tanh")
GRADIENTS: dict[str, Callable[[Float64, Float64, float], Float64]] = {
    "sigmoid": lambda dy, y, c: dy * y * (1.0 - y),
    "relu": lambda dy, x, c: np.where(x > 0, dy, 0.0),
    "tanh": lambda dy, y, c: dy * (1.0 - y) * (1.0 + y),
    "clipped_relu": lambda dy, x, c: np.where((x > 0) & (x < c), dy, 0.0),
    "elu": lambda dy, x, c: np.where(x > 0, dy, dy * c * np.exp(x)),
    "identity": lambda dy, x, c: dy,
    "swish": _swish_gradient,
}
