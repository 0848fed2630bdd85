"""Batch normalization and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import batch_normalization as device
from cudnnpy._layers.batch_normalization import GRADIENTS, SAVED
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, NumpyOperation, Shape
from cudnnpy.reference._kinds import mean_of, norm_backward


class BatchNormalization(NumpyOperation, device.BatchNormalization):
    __doc__ = device.BatchNormalization.__doc__

    def _forward_training(
        self, call: Call, average_factor: float, activation: str | None, alpha: float, beta: float
    ) -> list[Array]:
        normalized, operands = self._training_operands(call, average_factor, activation, alpha, beta)
        _arrays.check_operands(operands, call.arrays)
        arrays, shape, factor = call.arrays, normalized.shape, float(average_factor)
        x, out, dtype = np.asarray(arrays["x"]), arrays["out"], np.dtype(normalized.statistics.dtype)
        if not x.size:  # the running statistics are unchanged
            result = _arrays.store(np.zeros(x.shape), x.dtype, out)
            return [result, np.zeros(shape, dtype), np.full(shape, np.nan, dtype)]
        x64 = self._float64(x)
        mean, variance, inverse = self._moments(x64)
        y = self._affine((x64 - mean) * inverse, x, arrays["scale"], arrays["bias"])
        y = y if activation is None else np.maximum(y, 0.0)
        result = _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)
        count = x64.size // mean.size
        self._update(arrays["running_mean"], mean, factor)
        self._update(arrays["running_variance"], variance * (count / max(count - 1, 1)), factor)
        saved = [_arrays.store(self._parameter(values, shape), dtype, None) for values in (mean, inverse)]
        return [result, *saved]

    def _forward_inference(self, call: Call, alpha: float, beta: float) -> list[Array]:
        _, operands = self._inference_operands(call, alpha, beta)
        _arrays.check_operands(operands, call.arrays)
        arrays, x = call.arrays, np.asarray(call.arrays["x"])
        if not x.size:
            return [_arrays.store(np.zeros(x.shape), x.dtype, arrays["out"])]
        inverse = 1 / np.sqrt(self._spread(arrays["variance"], x) + self.epsilon)
        normalized = (self._float64(x) - self._spread(arrays["mean"], x)) * inverse
        y = self._affine(normalized, x, arrays["scale"], arrays["bias"])
        return [_arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, arrays["out"], alpha, beta)]

    def _backward(
        self, call: Call, alpha: float, beta: float, parameter_alpha: float, parameter_beta: float, with_bias: bool
    ) -> list[Array]:
        factors = (alpha, beta), (parameter_alpha, parameter_beta)
        normalized, operands = self._backward_operands(call, *factors[0], *factors[1], with_bias)
        _arrays.check_operands(operands, call.arrays)
        arrays, dtypes = call.arrays, {operand.name: numpy_dtype(operand.spec.dtype) for operand in operands}
        dy, x = (np.asarray(arrays[name]) for name in ("dy", "x"))
        made = dict(zip(("out", *GRADIENTS), self._gradients(dy, x, normalized.shape, arrays), strict=True))
        return [
            _arrays.store_scaled(made[name], dtypes[name], arrays[name], *factors[name != "out"])
            for name in made
            if name in dtypes
        ]

    def _gradients(self, dy: Array, x: Array, shape: Shape, arrays: dict[str, Any]) -> tuple[Float64, Float64, Float64]:
        """Return the gradients with respect to x, scale and bias in float64, in the layouts of x and the parameters."""
        if not x.size:
            return np.zeros(x.shape), np.zeros(shape), np.zeros(shape)
        dy64, x64 = self._float64(dy), self._float64(x)
        if SAVED[0] in arrays:
            mean, inverse = (self._spread(arrays[name], x) for name in SAVED)
        else:
            mean, _, inverse = self._moments(x64)
        scale = np.ones_like(inverse) if arrays["scale"] is None else self._spread(arrays["scale"], x)
        given = {"dy": dy64, "x": x64, "scale": scale, "mean": mean, "inv_variance": inverse}
        made = norm_backward({"mode": raw.CUDNN_BATCH_NORM}, given, {})
        dx, dscale, dbias = (made[name] for name in ("dx", "dscale", "dbias"))
        return _arrays.in_layout(dx, self.layout), self._parameter(dscale, shape), self._parameter(dbias, shape)

    def _moments(self, x: Float64) -> tuple[Float64, Float64, Float64]:
        """Return the mean, the biased variance and the inverse of the deviation; x is channels first."""
        axes = (0,) if self.mode == "per_activation" else (0, *range(2, x.ndim))
        mean = mean_of(x, axes)
        variance = mean_of(np.square(x - mean), axes)
        return mean, variance, 1 / np.sqrt(variance + self.epsilon)

    def _float64(self, array: Array) -> Float64:
        return np.asarray(_arrays.channels_first(array, self.layout), np.float64)

    def _spread(self, parameter: Array, x: Array) -> Float64:
        """Return a parameter in float64, shaped to broadcast against a channels-first x."""
        if self.mode == "per_activation":
            return self._float64(parameter[None])
        return np.asarray(parameter, np.float64).reshape(1, -1, *[1] * (x.ndim - 2))

    def _affine(self, values: Float64, x: Array, scale: Array | None, bias: Array | None = None) -> Float64:
        """Return scale * values + bias; a scale of None is 1, a bias of None is 0."""
        values = values if scale is None else values * self._spread(scale, x)
        return values if bias is None else values + self._spread(bias, x)

    def _parameter(self, values: Float64, shape: Shape) -> Float64:
        """Reshape values with one entry for each parameter, channels first, to the parameters' shape."""
        if self.mode == "per_activation":
            values = _arrays.in_layout(values, self.layout)
        return values.reshape(shape)

    def _update(self, running: Array | None, values: Float64, factor: float) -> None:
        """Replace a running statistic by (1 - factor) * running + factor * values, in place."""
        if running is not None:
            _arrays.store_scaled(self._parameter(values, running.shape), running.dtype, running, factor, 1 - factor)
