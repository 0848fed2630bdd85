"""Instance normalization, of each channel of each sample over its positions, and its gradients."""

from __future__ import annotations

import numpy as np

from cudnnpy._options.instance_normalization import InstanceNormalizationBase
from cudnnpy._options.normalization import check_channels, statistics_dtype
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Float64, Shape
from cudnnpy.reference._moments import (
    check_affine,
    check_out,
    check_parameter,
    gradient,
    moments,
    spread,
    with_parameter_gradients,
)
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation

RANKS = (3, 4, 5)


class InstanceNormalization(InstanceNormalizationBase, NumpyOperation):
    def _forward(self, arrays: Arrays, training: bool) -> list[Array]:
        x, statistics_shape = self._checked_input(arrays)
        check_out(arrays, x)
        x64 = self._float64(x)
        mean, variance = moments(x64, tuple(range(2, x.ndim)))
        inverse = 1 / np.sqrt(variance + self.epsilon)
        y = (x64 - mean) * inverse
        y = y * spread(arrays["scale"], x, 1) if "scale" in arrays else y
        y = y + spread(arrays["bias"], x, 1) if "bias" in arrays else y
        dtype, statistics = np.dtype(statistics_dtype(x.dtype.name)), (mean, inverse) if training else ()
        return [
            _arrays.store(_arrays.in_layout(y, self.layout), x.dtype, arrays["out"]),
            *(_arrays.store(values.reshape(statistics_shape), dtype, None) for values in statistics),
        ]

    def _backward(self, arrays: Arrays, with_bias: bool) -> list[Array]:
        x, statistics_shape = self._checked_input(arrays)
        dy, scale = _arrays.check_like("dy", arrays["dy"], "x", x), arrays["scale"]
        for name in ("mean", "inverse_variance"):
            meaning = "the batch and the channels of x"
            check_parameter(name, arrays[name], statistics_shape, (statistics_dtype(x.dtype.name),), meaning)
        check_out(arrays, x)
        dy64, inverse = self._float64(dy), spread(arrays["inverse_variance"], x)
        normalized = (self._float64(x) - spread(arrays["mean"], x)) * inverse
        positions = tuple(range(2, x.ndim))
        g = dy64 if scale is None else dy64 * spread(scale, x, 1)
        dx = gradient(g, normalized, inverse, positions)
        result = _arrays.store(_arrays.in_layout(dx, self.layout), x.dtype, arrays["out"])
        return with_parameter_gradients(result, dy64, normalized, (0, *positions), x, scale, with_bias)

    def _checked_input(self, arrays: Arrays) -> tuple[Array, Shape]:
        """Check x, scale and bias; return x as a plain array, and (N, C)."""
        x = _arrays.check_tensor("x", arrays["x"], RANKS, empty="any")
        _geometry.check_rank("x", x.shape, self, RANKS)
        batch, channels = _arrays.channels_first(x, self.layout).shape[:2]
        check_affine(x, arrays, (channels,), "one for each channel of x")
        check_channels(arrays, channels)
        return x, (batch, channels)

    def _float64(self, array: Array) -> Float64:
        return np.asarray(_arrays.channels_first(array, self.layout), np.float64)
