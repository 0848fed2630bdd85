"""Activations: functions of float64 values, which convolutions apply too, and the operations `sigmoid` and `Activation`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._layers import activation as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, ScalarT
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation


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

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> reference.sigmoid(np.zeros(2, np.float32)).tolist()
    [0.5, 0.5]
    """
    x = _arrays.check_array("x", x, _arrays.FLOATS)
    alpha, beta = check_scales(alpha, beta, out=out)
    _arrays.check_out(out, x.shape, _arrays.FLOATS)
    with np.errstate(all="ignore"):
        return _arrays.store_scaled(_sigmoid(x.astype(np.float64)), x.dtype, out, alpha, beta)


class Activation(NumpyOperation, device.Activation):
    __doc__ = device.Activation.__doc__

    def _forward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, out = _arrays.check_tensor("x", arrays["x"], empty="any"), arrays["out"]
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x.shape, (x.dtype.name,), in_place=("x",), x=x)
        values = FUNCTIONS[self.mode](x.astype(np.float64), self.coefficient)
        return [_arrays.store_scaled(values, x.dtype, out, alpha, beta)]

    def _backward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, out = _arrays.check_tensor("dy", arrays["dy"], empty="any"), arrays["out"]
        x, y = (_arrays.check_like(name, arrays[name], "dy", dy) for name in ("x", "y"))
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, dy.shape, (dy.dtype.name,), in_place=("dy",), dy=dy, x=x, y=y)
        read = (y if self.mode in FROM_RESULT else x).astype(np.float64)
        values = GRADIENTS[self.mode](dy.astype(np.float64), read, self.coefficient)
        return [_arrays.store_scaled(values, dy.dtype, out, alpha, beta)]


def _sigmoid(x: Float64, c: float = 1.0) -> Float64:
    small = np.exp(-np.abs(x))  # at most 1, so it cannot overflow
    return np.asarray(np.where(x >= 0, 1.0, small) / (1.0 + small))


def _swish_gradient(dy: Float64, x: Float64, c: float) -> Float64:
    small = np.exp(-np.abs(c * x))
    # sigmoid' is small / (1 + small) ** 2: sigmoid * (1 - sigmoid) would lose digits to cancellation.
    return dy * (_sigmoid(c * x) + c * x * small / (1.0 + small) ** 2)


# Activations as functions of x and the coefficient. Convolutions apply the ones in ACTIVATIONS, with coefficient 1.
ACTIVATIONS: dict[str, Callable[..., Float64]] = {
    "identity": lambda x, c=1.0: x,
    "relu": lambda x, c=1.0: np.maximum(x, 0.0),
    "sigmoid": _sigmoid,
    "tanh": lambda x, c=1.0: np.tanh(x),
    "elu": lambda x, c=1.0: np.where(x > 0, x, c * np.expm1(x)),
    "swish": lambda x, c=1.0: x * _sigmoid(c * x),
}
FUNCTIONS: dict[str, Callable[[Float64, float], Float64]] = {
    **ACTIVATIONS,
    "clipped_relu": lambda x, c: np.minimum(np.maximum(x, 0.0), c),
}

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
