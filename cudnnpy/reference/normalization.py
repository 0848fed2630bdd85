"""Batch normalization and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._moments import check_parameter, check_results, epsilon_of, gradient, moments
from cudnnpy.reference._numbers import real, scales
from cudnnpy.reference._options import LAYOUTS, one_of

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]

RANKS = (2, 3, 4, 5)
MODES = ("spatial", "per_activation")


@dataclass(frozen=True)
class BatchNormalization:
    """Normalization by the mean and variance of a batch, on NumPy arrays: (x - mean) / sqrt(variance + epsilon).

    mode      "spatial": a mean for each channel, over the batch and all positions; its parameters (scale, bias, means,
              variances) have shape (C,). Or "per_activation": one for each element of x.shape[1:], over the batch;
              its parameters have that shape
    epsilon   added to the variance; 0 or more
    layout    "NCHW": x (N, C, spatial...); or "NHWC": x (N, spatial..., C); with 0 to 3 spatial axes. NCW, NWC, NCDHW
              and NDHWC name one number of them, which is checked

    x is float16, bfloat16, float32 or float64 and has 2 to 5 axes. Its parameters are float32, or float64 if x is.
    Everything is computed in float64 and rounded once.

    An instance cannot change and may be shared by threads. A wrong option is a ValueError or TypeError that names it.
    """

    mode: str = "spatial"
    epsilon: float = 1e-5
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        """Check the options."""
        one_of("mode", self.mode, MODES)
        object.__setattr__(self, "epsilon", epsilon_of(self.epsilon))
        one_of("layout", self.layout, tuple(LAYOUTS))

    def forward_training(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        running_mean: Array | None = None,
        running_variance: Array | None = None,
        average_factor: float = 0.1,
        activation: str | None = None,
        out: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> tuple[Array, Array, Array]:
        """Return (y, saved_mean, saved_inverse_variance), by the mean and variance of x itself.

        y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out, of x's shape and dtype; with
        activation "relu" its values below 0 are 0, and alpha and beta must be 1 and 0. saved_inverse_variance is
        1 / sqrt(variance + epsilon), the variance of m values being their squares' sum over m.

        running_mean and running_variance, both or neither, become (1 - average_factor) * what they were +
        average_factor * the batch's, in place; there the variance is the sum over m - 1 (over m if m is 1).
        average_factor is 0 to 1. With beta 0, out is not read. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape or option, or an array to write to that
        is read-only or overlaps another. Then nothing has been written.
        """
        shape = self._check(x)
        running = {"running_mean": running_mean, "running_variance": running_variance}
        _check_pair(running)
        dtype = self._check_parameters(x, shape, scale=scale, bias=bias, **running)
        factor = real("average_factor", average_factor)
        if not 0 <= factor <= 1:
            raise ValueError(f"average_factor={factor}: expected 0 to 1")
        alpha, beta = scales(alpha, beta, out=out)
        if activation is not None:
            one_of("activation", activation, ("relu",))
            if (alpha, beta) != (1, 0):
                raise ValueError(f"alpha={alpha} and beta={beta} with activation={activation!r}: expected 1 and 0")
        results = [
            ("out", out, x.shape, x.dtype.name),
            ("running_mean", running_mean, shape, dtype.name),
            ("running_variance", running_variance, shape, dtype.name),
        ]
        check_results(results, {"x": x, "scale": scale, "bias": bias})
        with np.errstate(all="ignore"):
            x64 = self._float64(x)
            mean, variance = moments(x64, self._axes(x))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = (x64 - mean) * inverse * self._spread(scale, x) + self._spread(bias, x)
            if activation is not None:
                y = np.maximum(y, 0.0)
            result = _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)
            if running_mean is not None and running_variance is not None:
                count = x64.size // mean.size
                unbiased = variance * (count / max(count - 1, 1))
                _arrays.store_scaled(self._parameter(mean, shape), dtype, running_mean, factor, 1 - factor)
                _arrays.store_scaled(self._parameter(unbiased, shape), dtype, running_variance, factor, 1 - factor)
            return (
                result,
                _arrays.store(self._parameter(mean, shape), dtype, None),
                _arrays.store(self._parameter(inverse, shape), dtype, None),
            )

    def forward_inference(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        variance: Array,
        out: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> Array:
        """Return alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out, of x's shape and dtype.

        mean and variance are parameters, such as the running ones. With beta 0, out is not read. stream is ignored.
        Raises as `forward_training` does.
        """
        shape = self._check(x)
        self._check_parameters(x, shape, scale=scale, bias=bias, mean=mean, variance=variance)
        alpha, beta = scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x, scale=scale, bias=bias, mean=mean, variance=variance)
        with np.errstate(all="ignore"):
            inverse = 1 / np.sqrt(self._spread(variance, x) + self.epsilon)
            y = (self._float64(x) - self._spread(mean, x)) * inverse * self._spread(scale, x) + self._spread(bias, x)
            return _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: Array,
        x: Array,
        scale: Array,
        saved_mean: Array | None = None,
        saved_inverse_variance: Array | None = None,
        out: Array | None = None,
        out_scale: Array | None = None,
        out_bias: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        parameter_alpha: float = 1.0,
        parameter_beta: float = 0.0,
        stream: object = None,
    ) -> tuple[Array, Array, Array]:
        """Return the gradients (dx, dscale, dbias) of forward_training, without activation, for the gradient dy of y.

        dx = alpha * (gradient in x) + beta * out, of x's shape and dtype. dscale = parameter_alpha * (gradient in
        scale) + parameter_beta * out_scale, and dbias likewise with out_bias; they are parameters. saved_mean and
        saved_inverse_variance are forward_training's, both or neither; without them they are computed again. With beta
        0, out is not read, and with parameter_beta 0 neither out_scale nor out_bias. stream is ignored. Raises as
        `forward_training` does.
        """
        shape = self._check(x)
        _arrays.check_like("dy", dy, "x", x)
        saved = {"saved_mean": saved_mean, "saved_inverse_variance": saved_inverse_variance}
        _check_pair(saved)
        dtype = self._check_parameters(x, shape, scale=scale, **saved)
        alpha, beta = scales(alpha, beta, out=out)
        parameter_alpha, parameter_beta = scales(
            parameter_alpha, parameter_beta, prefix="parameter_", out_scale=out_scale, out_bias=out_bias
        )
        results = [
            ("out", out, x.shape, x.dtype.name),
            ("out_scale", out_scale, shape, dtype.name),
            ("out_bias", out_bias, shape, dtype.name),
        ]
        check_results(results, {"dy": dy, "x": x, "scale": scale, **saved})
        with np.errstate(all="ignore"):
            axes = self._axes(x)
            dy64, x64 = self._float64(dy), self._float64(x)
            if saved_mean is None or saved_inverse_variance is None:
                mean, variance = moments(x64, axes)
                inverse = 1 / np.sqrt(variance + self.epsilon)
            else:
                mean, inverse = self._spread(saved_mean, x), self._spread(saved_inverse_variance, x)
            normalized = (x64 - mean) * inverse
            dx = gradient(dy64 * self._spread(scale, x), normalized, inverse, axes)
            dscale = self._parameter((dy64 * normalized).sum(axis=axes, keepdims=True), shape)
            dbias = self._parameter(dy64.sum(axis=axes, keepdims=True), shape)
            return (
                _arrays.store_scaled(_arrays.in_layout(dx, self.layout), x.dtype, out, alpha, beta),
                _arrays.store_scaled(dscale, dtype, out_scale, parameter_alpha, parameter_beta),
                _arrays.store_scaled(dbias, dtype, out_bias, parameter_alpha, parameter_beta),
            )

    def _check(self, x: object) -> Shape:
        """Refuse an x of a wrong type, dtype, rank or size; return its parameters' shape."""
        _arrays.check_tensor("x", x, RANKS)
        assert isinstance(x, np.ndarray)
        _geometry.check_rank("x", x.shape, self, RANKS)
        if self.mode == "per_activation":
            return tuple(x.shape[1:])
        return (_arrays.channels_first(x, self.layout).shape[1],)

    def _check_parameters(self, x: Array, shape: Shape, **parameters: object) -> np.dtype[Any]:
        """Refuse parameters of a wrong type, dtype or shape; return their dtype. None is left out."""
        dtype = np.dtype(np.float64 if x.dtype.name == "float64" else np.float32)
        meaning = "one for each channel of x" if self.mode == "spatial" else "the shape of x without its first axis"
        for name, array in parameters.items():
            if array is not None or name in ("scale", "bias", "mean", "variance"):
                check_parameter(name, array, shape, dtype.name, f"{meaning} ({self.mode})")
        return dtype

    def _axes(self, x: Array) -> Shape:
        """The axes of x, channels first, that a mean is over."""
        return (0,) if self.mode == "per_activation" else (0, *range(2, x.ndim))

    def _float64(self, array: Array) -> Float64:
        return _arrays.channels_first(array, self.layout).astype(np.float64, copy=False)

    def _spread(self, parameter: Array, x: Array) -> Float64:
        """A parameter in float64, so that it broadcasts against x with its channels first."""
        if self.mode == "per_activation":
            return self._float64(parameter[None])
        return parameter.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))

    def _parameter(self, values: Float64, shape: Shape) -> Float64:
        """Values with one entry for each parameter, channels first, in the parameters' shape."""
        if self.mode == "per_activation":
            values = _arrays.in_layout(values, self.layout)
        return values.reshape(shape)


def _check_pair(arrays: dict[str, Array | None]) -> None:
    """Refuse one of two arrays without the other."""
    (first, a), (second, b) = arrays.items()
    if (a is None) != (b is None):
        given, missing = (second, first) if a is None else (first, second)
        raise ValueError(f"{given} is given without {missing}: expected both or neither")
