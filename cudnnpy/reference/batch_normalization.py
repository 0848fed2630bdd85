"""Batch normalization and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_activation, check_scales
from cudnnpy._checks.option_values import check_number
from cudnnpy._layers import batch_normalization as device
from cudnnpy._layers.batch_normalization import (
    GRADIENTS,
    RUNNING,
    SAVED,
    check_both_or_neither,
    check_channels,
    parameter_dtypes,
    statistics_dtype,
)
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import Array, Arrays, Float64, NumpyOperation, Shape
from cudnnpy.reference._kinds import mean_of, norm_backward

RANKS = (2, 3, 4, 5)


class BatchNormalization(NumpyOperation, device.BatchNormalization):
    __doc__ = device.BatchNormalization.__doc__

    def _forward_training(
        self, arrays: Arrays, average_factor: float, activation: str | None, alpha: float, beta: float
    ) -> list[Array]:
        x, shape = self._checked_input(arrays["x"])
        with_running = check_both_or_neither(arrays, *RUNNING)
        self._check_parameters(x, shape, arrays, "scale", "bias", *RUNNING)
        dtype, out = np.dtype(statistics_dtype(x.dtype.name)), arrays["out"]
        factor = check_number("average_factor", average_factor, finite=True)
        alpha, beta = check_scales(alpha, beta, out=out)
        if check_activation(activation, ("relu",)) and (alpha, beta) != (1, 0):
            raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
        results = [("out", out, x.shape, x.dtype.name)]
        results += [(name, arrays[name], shape, arrays[name].dtype.name) for name in RUNNING if with_running]
        _arrays.check_results(results, {name: arrays[name] for name in ("x", "scale", "bias")})
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

    def _forward_inference(self, arrays: Arrays, alpha: float, beta: float) -> list[Array]:
        x, shape = self._checked_input(arrays["x"])
        self._check_parameters(x, shape, arrays, "scale", "bias", "mean", "variance")
        out = arrays["out"]
        alpha, beta = check_scales(alpha, beta, out=out)
        _arrays.check_results([("out", out, x.shape, x.dtype.name)], {n: a for n, a in arrays.items() if n != "out"})
        if not x.size:
            return [_arrays.store(np.zeros(x.shape), x.dtype, out)]
        inverse = 1 / np.sqrt(self._spread(arrays["variance"], x) + self.epsilon)
        normalized = (self._float64(x) - self._spread(arrays["mean"], x)) * inverse
        y = self._affine(normalized, x, arrays["scale"], arrays["bias"])
        return [_arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)]

    def _backward(
        self, arrays: Arrays, alpha: float, beta: float, parameter_alpha: float, parameter_beta: float, with_bias: bool
    ) -> list[Array]:
        x, shape = self._checked_input(arrays["x"])
        dy = _arrays.check_like("dy", arrays["dy"], "x", x)
        is_saved, scale, out = check_both_or_neither(arrays, *SAVED), arrays["scale"], arrays["out"]
        self._check_parameters(x, shape, arrays, "scale")
        for name in SAVED if is_saved else ():
            _check_parameter(name, arrays[name], shape, (statistics_dtype(x.dtype.name),), self._meaning)
        alpha, beta = check_scales(alpha, beta, out=out)
        outs = {name: arrays[name] for name in compress(GRADIENTS, (scale is not None, with_bias))}
        factors = check_scales(parameter_alpha, parameter_beta, prefix="parameter_", **outs)
        dtype = x.dtype if scale is None else scale.dtype
        if scale is None and "out_bias" in arrays:
            self._check_parameters(x, shape, arrays, "out_bias")
            dtype = arrays["out_bias"].dtype
        results = [("out", out, x.shape, x.dtype.name), *((n, a, shape, dtype.name) for n, a in outs.items())]
        _arrays.check_results(results, {name: arrays[name] for name in ("dy", "x", "scale", *SAVED)})
        dx, *gradients = self._gradients(dy, x, shape, arrays)
        found = dict(zip(GRADIENTS, gradients, strict=True))
        made = [_arrays.store_scaled(found[name], dtype, array, *factors) for name, array in outs.items()]
        return [_arrays.store_scaled(dx, x.dtype, out, alpha, beta), *made]

    def _gradients(self, dy: Array, x: Array, shape: Shape, arrays: Arrays) -> tuple[Float64, Float64, Float64]:
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

    def _checked_input(self, array: object) -> tuple[Array, Shape]:
        """Check the type, dtype and rank of x; return it as a plain array, and the shape of its parameters."""
        if isinstance(array, np.ndarray) and array.shape == (0,):  # one axis and no channels, as PyTorch accepts
            return _arrays.check_array("x", array, _arrays.FLOATS), (0,)
        x = _arrays.check_tensor("x", array, RANKS, empty="any")
        _geometry.check_rank("x", x.shape, self.layout, RANKS)
        if self.mode == "per_activation":
            return x, tuple(x.shape[1:])
        return x, (_arrays.channels_first(x, self.layout).shape[1],)

    @property
    def _meaning(self) -> str:
        """The meaning of the parameters' shape, for errors."""
        meaning = "one for each channel of x" if self.mode == "spatial" else "the shape of x without its first axis"
        return f"{meaning} ({self.mode})"

    def _check_parameters(self, x: Array, shape: Shape, arrays: Arrays, *names: str) -> None:
        """Check the types, dtypes and shapes of parameters. Only mean and variance are required."""
        for name in names:
            if name in arrays or name in ("mean", "variance"):
                _check_parameter(name, arrays[name], shape, parameter_dtypes(x.dtype.name), self._meaning)
        if "scale" in arrays and "bias" in arrays:
            _arrays.check_same_dtype("bias", arrays["bias"], "scale", arrays["scale"])
        if self.mode == "spatial":
            check_channels(arrays, shape[0])

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


def _check_parameter(name: str, array: object, shape: Shape, dtypes: Sequence[str], meaning: str) -> None:
    """Check that a parameter is an array of one of the dtypes and of the shape, which meaning explains in the error."""
    checked = _arrays.check_array(name, array, tuple(dtypes))
    if checked.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, {meaning}; got shape {checked.shape}")
