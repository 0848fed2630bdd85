"""Activations: functions of float64 values, which convolutions apply too, and the operations `sigmoid` and `Activation`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import activation as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, NumpyOperation, ScalarT
from cudnnpy.reference._kinds import pointwise


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
    _arrays.check_written("out", out, x.shape, _arrays.FLOATS, {})
    with np.errstate(all="ignore"):
        return _arrays.store_scaled(_forward("sigmoid", x.astype(np.float64)), x.dtype, out, alpha, beta)


class Activation(NumpyOperation, device.Activation):
    __doc__ = device.Activation.__doc__

    def _forward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _arrays.check_operands(self._forward_operands(call, alpha, beta), call.arrays)
        x, activation = call.arrays["x"], ACTIVATIONS.get(self.mode) or partial(_forward, self.mode)
        values = activation(x.astype(np.float64), self.coefficient)
        return [_arrays.store_scaled(values, x.dtype, call.arrays["out"], alpha, beta)]

    def _backward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _arrays.check_operands(self._backward_operands(call, alpha, beta), call.arrays)
        values, x, y = (call.arrays[name].astype(np.float64) for name in ("dy", "x", "y"))
        if self.mode in _OF_RESULT:
            values *= _OF_RESULT[self.mode](y)
        else:
            values = _pointwise(self.mode, "bwd", self.coefficient, dy=values, x=x)
        return [_arrays.store_scaled(values, call.arrays["dy"].dtype, call.arrays["out"], alpha, beta)]


def _pointwise(mode: str, end: str, coefficient: float, **given: Float64) -> Float64:
    """Return the elementwise operation of graphs for a mode, "fwd" or "bwd", with its coefficient."""
    number = raw.cudnnPointwiseMode_t[f"CUDNN_POINTWISE_{mode.removeprefix('clipped_')}_{end}".upper()]
    (made,) = pointwise({"mode": number, _COEFFICIENTS.get(mode, ""): coefficient}, given, {}).values()
    return np.asarray(made)


def _forward(mode: str, x: Float64, coefficient: float = 1.0) -> Float64:
    return _pointwise(mode, "fwd", coefficient, x=x)


# The coefficients of modes among the options of elementwise operations
_COEFFICIENTS = {"elu": "elu_alpha", "swish": "swish_beta", "clipped_relu": "relu_upper_clip"}
# Activations as functions of x and the coefficient. Convolutions apply these, with coefficient 1.
ACTIVATIONS: dict[str, Callable[..., Float64]] = {
    "identity": lambda x, coefficient=1.0: x,
    **{mode: partial(_forward, mode) for mode in ("relu", "sigmoid", "tanh", "elu", "swish")},
}
# Derivatives as functions of the result, which cuDNN reads for these modes
_OF_RESULT: dict[str, Callable[[Float64], Float64]] = {
    "sigmoid": lambda y: y * (1.0 - y),
    "tanh": lambda y: (1.0 - y) * (1.0 + y),
    "identity": np.ones_like,
}
