"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import numpy as np

from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import softmax as device
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, NumpyOperation


class Softmax(NumpyOperation, device.Softmax):
    __doc__ = device.Softmax.__doc__

    def _forward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _arrays.check_operands(self._forward_operands(call, alpha, beta), call.arrays)
        x = call.arrays["x"]
        axes, values = self._axes(x), x.astype(np.float64)
        if self.algorithm != "fast":
            values -= values.max(axes, keepdims=True, initial=-np.inf)
        powers = np.exp(values)
        total = powers.sum(axes, keepdims=True)
        values = values - np.log(total) if self.algorithm == "log" else powers / total
        return [_arrays.store_scaled(values, x.dtype, call.arrays["out"], alpha, beta)]

    def _backward(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _arrays.check_operands(self._backward_operands(call, alpha, beta), call.arrays)
        dy, y = (call.arrays[name].astype(np.float64) for name in ("dy", "y"))
        axes = self._axes(dy)
        if self.algorithm == "log":
            values = dy - np.exp(y) * dy.sum(axes, keepdims=True)
        else:
            values = y * (dy - (dy * y).sum(axes, keepdims=True))
        return [_arrays.store_scaled(values, call.arrays["dy"].dtype, call.arrays["out"], alpha, beta)]

    def _axes(self, array: Array) -> tuple[int, ...]:
        """Return the axes of the sums."""
        if self.mode == "instance":
            return tuple(range(1, array.ndim))
        return (array.ndim - 1 if self.layout.endswith("C") else 1,)
