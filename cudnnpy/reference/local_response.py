"""Local response normalization across channels, and its gradient."""

from __future__ import annotations

import numpy as np

from cudnnpy._options.arguments import check_scales
from cudnnpy._options.local_response import LocalResponseNormalizationBase
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Float64
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation

RANKS = (3, 4, 5)


class LocalResponseNormalization(LocalResponseNormalizationBase, NumpyOperation):
    def _forward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, out = self._checked("x", arrays["x"]), arrays["out"]
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        values = self._float64(x)
        values = values * self._base(values) ** -self.beta
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)]

    def _backward(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        dy, out = self._checked("dy", arrays["dy"]), arrays["out"]
        x, y = (_arrays.check_like(name, arrays[name], "dy", dy) for name in ("x", "y"))
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_out(out, dy.shape, (dy.dtype.name,), dy=dy, x=x, y=y)
        dy64, x64 = self._float64(dy), self._float64(x)  # y is computed again from x
        base = self._base(x64)
        # x of channel i occurs in the sums of the channels from i - size // 2 to i + (size - 1) // 2.
        through = _nearby(dy64 * x64 * base ** -(self.beta + 1), self.size // 2, (self.size - 1) // 2)
        values = dy64 * base**-self.beta - 2 * self.alpha * self.beta / self.size * x64 * through
        return [_arrays.store_scaled(_arrays.in_layout(values, self.layout), dy.dtype, out, alpha, beta)]

    def _float64(self, array: Array) -> Float64:
        return np.asarray(_arrays.channels_first(array, self.layout), np.float64)

    def _checked(self, name: str, array: object) -> Array:
        """Check an array; return it as a plain array."""
        checked = _arrays.check_tensor(name, array, empty="any")
        _geometry.check_rank(name, checked.shape, self, RANKS)
        return checked

    def _base(self, x: Float64) -> Float64:
        """Return k + alpha / size * s, the base of the power."""
        return self.k + self.alpha / self.size * _nearby(x * x, (self.size - 1) // 2, self.size // 2)


def _nearby(values: Float64, before: int, after: int) -> Float64:
    """Return, for each channel c on axis 1, the sum over the channels from c - before to c + after that exist."""
    total = np.zeros_like(values)
    channels = values.shape[1]
    for offset in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        start, stop = max(0, -offset), min(channels, channels - offset)
        total[:, start:stop] += values[:, start + offset : stop + offset]
    return total
