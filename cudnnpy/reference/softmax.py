"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import numpy as np

from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._layers import softmax as device
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Arrays, NumpyOperation

RANKS = (2, 3, 4, 5)


class Softmax(NumpyOperation, device.Softmax):
    __doc__ = device.Softmax.__doc__

    def _forward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, axes = self._checked("x", arrays["x"])
        out = arrays["out"]
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x.shape, (x.dtype.name,), in_place=("x",), x=x)
        values = x.astype(np.float64)
        if self.algorithm != "fast":
            values -= values.max(axes, keepdims=True, initial=-np.inf)
        powers = np.exp(values)
        total = powers.sum(axes, keepdims=True)
        values = values - np.log(total) if self.algorithm == "log" else powers / total
        return [_arrays.store_scaled(values, x.dtype, out, alpha, beta)]

    def _backward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, axes = self._checked("dy", arrays["dy"])
        y, out = _arrays.check_like("y", arrays["y"], "dy", dy), arrays["out"]
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, dy.shape, (dy.dtype.name,), in_place=("dy",), dy=dy, y=y)
        dy64, y64 = dy.astype(np.float64), y.astype(np.float64)
        if self.algorithm == "log":
            values = dy64 - np.exp(y64) * dy64.sum(axes, keepdims=True)
        else:
            values = y64 * (dy64 - (dy64 * y64).sum(axes, keepdims=True))
        return [_arrays.store_scaled(values, dy.dtype, out, alpha, beta)]

    def _checked(self, name: str, array: Array) -> tuple[Array, tuple[int, ...]]:
        """Check an array; return it as a plain array, and the axes of the sums."""
        array = _arrays.check_tensor(name, array, empty="any")
        _geometry.check_rank(name, array.shape, self.layout, RANKS)
        if self.mode == "instance":
            return array, tuple(range(1, array.ndim))
        return array, (array.ndim - 1 if self.layout.endswith("C") else 1,)
