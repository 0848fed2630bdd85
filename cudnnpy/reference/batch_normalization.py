"""Batch normalization and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudnnpy import raw
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._launch.dispatch import Call
from cudnnpy._layers import batch_normalization as device
from cudnnpy._layers.batch_normalization import GRADIENTS, RUNNING, SAVED
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Float64, NumpyOperation, Shape
from cudnnpy.reference._kinds import norm_backward, norm_forward

# The operands of the normalization of graphs, and the arrays of the layer
_NAMES = ("scale", "bias", "input_running_mean", "input_running_var", "mean", "inv_variance")
_OPERANDS = dict(zip(_NAMES, ("scale", "bias", "mean", "variance", *SAVED), strict=True))
_TRAINING = {"mode": raw.CUDNN_BATCH_NORM, "phase": raw.CUDNN_NORM_FWD_TRAINING}
_INFERENCE = {**_TRAINING, "phase": raw.CUDNN_NORM_FWD_INFERENCE}


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
        alone = {"exp_avg_factor": 1.0, "input_running_mean": 0.0, "input_running_var": 0.0}  # of this batch
        made = norm_forward(_TRAINING, self._given(arrays, x, shape) | alone, {})
        y = made["y"] if activation is None else np.maximum(made["y"], 0.0)
        result = _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)
        for name, new in zip(RUNNING, ("output_running_mean", "output_running_var"), strict=True):
            if (running := arrays[name]) is not None:  # (1 - factor) * running + factor * new, in place
                _arrays.store_scaled(self._parameter(made[new], shape), running.dtype, running, factor, 1 - factor)
        saved = [_arrays.store(self._parameter(made[name], shape), dtype, None) for name in ("mean", "inv_variance")]
        return [result, *saved]

    def _forward_inference(self, call: Call, alpha: float, beta: float) -> list[Array]:
        normalized, operands = self._inference_operands(call, alpha, beta)
        _arrays.check_operands(operands, call.arrays)
        arrays, x = call.arrays, np.asarray(call.arrays["x"])
        if not x.size:
            return [_arrays.store(np.zeros(x.shape), x.dtype, arrays["out"])]
        y = norm_forward(_INFERENCE, self._given(arrays, x, normalized.shape), {})["y"]
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
        given = {**self._given(arrays, x, shape), "dy": _arrays.logical(dy, self.layout)}
        if SAVED[0] not in arrays:
            given |= norm_forward(_TRAINING, given, {})
        made = norm_backward(_TRAINING, given, {})
        dx, dscale, dbias = (made[name] for name in ("dx", "dscale", "dbias"))
        return _arrays.in_layout(dx, self.layout), self._parameter(dscale, shape), self._parameter(dbias, shape)

    def _given(self, arrays: dict[str, Any], x: Array, shape: Shape) -> dict[str, Any]:
        """Return the operands of the normalization of graphs, channels first; a scale of None is 1."""
        found = {name: self._spread(arrays[ours], x) for name, ours in _OPERANDS.items() if arrays[ours] is not None}
        scale = self._spread(np.ones(shape), x)
        return {"x": _arrays.logical(x, self.layout), "scale": scale, "epsilon": self.epsilon} | found

    def _spread(self, parameter: Array, x: Array) -> Float64:
        """Return a parameter in float64, shaped to broadcast against a channels-first x."""
        if self.mode == "per_activation":
            return _arrays.logical(parameter[None], self.layout)
        return np.asarray(parameter, np.float64).reshape(1, -1, *[1] * (x.ndim - 2))

    def _parameter(self, values: Float64, shape: Shape) -> Float64:
        """Reshape values with one entry for each parameter, channels first, to the parameters' shape."""
        if self.mode == "per_activation":
            values = _arrays.in_layout(values, self.layout)
        return values.reshape(shape)
