"""Batch normalization and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_activation, check_scales, wants_bias
from cudnnpy._options.checks import check_number
from cudnnpy._options.operations import BatchNormalizationOptions
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import ScalarT
from cudnnpy.reference._moments import (
    check_channels,
    check_parameter,
    check_results,
    gradient,
    moments,
    parameter_dtypes,
    statistics_dtype,
)
from cudnnpy.typing import NormalizationActivation

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]

RANKS = (2, 3, 4, 5)


@dataclass(frozen=True)
class BatchNormalization(BatchNormalizationOptions):
    """Normalization by the mean and variance of a batch, on NumPy arrays: (x - mean) / sqrt(variance + epsilon).

    x is float16, bfloat16, float32 or float64 and has 2 to 5 axes, which may have size 0. Its parameters have x's dtype, or
    float32 if x is float16 or bfloat16; scale and bias have the same dtype. A scale of None is 1, a bias of None 0. The
    saved statistics are float32, or float64 if x is. Everything is computed in float64 and rounded once.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    mode : str
        "spatial": a mean for each channel, over the batch and all positions; the parameters (scale, bias, means,
        variances) have shape (C,). "per_activation": a mean for each element of x.shape[1:], over the batch; the
        parameters have that shape.
    epsilon : float
        Added to the variance; 0 or more.
    layout : str
        "NCHW": x is (N, C, spatial...); "NHWC": x is (N, spatial..., C); for 0 to 3 spatial dimensions. NCW, NWC, NCDHW and
        NDHWC require one number of them.
    """

    def forward_training(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        running_mean: Array | None = None,
        running_variance: Array | None = None,
        average_factor: float = 0.1,
        activation: NormalizationActivation | None = None,
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> tuple[NDArray[ScalarT], Array, Array]:
        """Return y by the mean and variance of the batch, and the statistics.

        y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out. If a call raises, nothing is written.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray, optional
            Parameters.
        running_mean, running_variance : numpy.ndarray, optional
            Both or neither; they become (1 - average_factor) * running + average_factor * the batch's, in place, with the
            unbiased variance (the biased one of a single value). An x without elements leaves them as they are.
        average_factor : float
            A finite number.
        activation : {"relu"}, optional
            Then alpha is 1 and beta 0.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        alpha, beta : float
            Factors; out is not read if beta is 0.
        stream : object
            Ignored.

        Returns
        -------
        y : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        saved_mean, saved_inverse_variance : numpy.ndarray
            Of the parameters' shape; the latter is 1 / sqrt(biased variance + epsilon). For no elements they are 0 and NaN.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        shape = self._check(x)
        running = {"running_mean": running_mean, "running_variance": running_variance}
        _check_pair(running)
        self._check_parameters(x, shape, scale=scale, bias=bias, **running)
        dtype = statistics_dtype(x)
        factor = check_number("average_factor", average_factor, finite=True)
        alpha, beta = check_scales(alpha, beta, out=out)
        if check_activation(activation, ("relu",)) and (alpha, beta) != (1, 0):
            raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
        results = [("out", out, x.shape, x.dtype.name)]
        results += [(name, array, shape, array.dtype.name) for name, array in running.items() if array is not None]
        check_results(results, {"x": x, "scale": scale, "bias": bias})
        if not x.size:  # the running statistics keep their values
            result = _arrays.store(np.zeros(x.shape), x.dtype, out)
            return result, np.zeros(shape, dtype), np.full(shape, np.nan, dtype)
        with np.errstate(all="ignore"):
            x64 = self._float64(x)
            mean, variance = moments(x64, self._axes(x))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = self._affine((x64 - mean) * inverse, x, scale, bias)
            y = y if activation is None else np.maximum(y, 0.0)
            result = _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)
            count = x64.size // mean.size
            self._update(running_mean, mean, factor)
            self._update(running_variance, variance * (count / max(count - 1, 1)), factor)
            return (
                result,
                _arrays.store(self._parameter(mean, shape), dtype, None),
                _arrays.store(self._parameter(inverse, shape), dtype, None),
            )

    def forward_inference(
        self,
        x: NDArray[ScalarT],
        scale: Array | None,
        bias: Array | None,
        mean: Array,
        variance: Array,
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray or None
            Parameters.
        mean, variance : numpy.ndarray
            Parameters, such as the running ones.
        out, alpha, beta, stream
            As for `forward_training`.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        shape = self._check(x)
        self._check_parameters(x, shape, scale=scale, bias=bias, mean=mean, variance=variance)
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x, scale=scale, bias=bias, mean=mean, variance=variance)
        if not x.size:
            return _arrays.store(np.zeros(x.shape), x.dtype, out)
        with np.errstate(all="ignore"):
            inverse = 1 / np.sqrt(self._spread(variance, x) + self.epsilon)
            y = self._affine((self._float64(x) - self._spread(mean, x)) * inverse, x, scale, bias)
            return _arrays.store_scaled(_arrays.in_layout(y, self.layout), x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: NDArray[ScalarT],
        x: NDArray[ScalarT],
        scale: Array | None = None,
        saved_mean: Array | None = None,
        saved_inverse_variance: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        out_scale: Array | None = None,
        out_bias: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        parameter_alpha: float = 1.0,
        parameter_beta: float = 0.0,
        stream: object = None,
        bias: bool | None = None,
    ) -> tuple[NDArray[ScalarT], Array | None, Array | None]:
        """Return the gradients with respect to x, scale and bias of `forward_training` without an activation.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to y.
        x, scale : numpy.ndarray
            forward_training's; scale may be None.
        saved_mean, saved_inverse_variance : numpy.ndarray, optional
            forward_training's, both or neither; without them they are computed again.
        out, out_scale, out_bias : numpy.ndarray, optional
            The results.
        alpha, beta : float
            dx = alpha * gradient + beta * out.
        parameter_alpha, parameter_beta : float
            dscale = parameter_alpha * gradient + parameter_beta * out_scale, and dbias likewise.
        stream : object
            Ignored.
        bias : bool, optional
            Whether dbias is computed; by default if there is a scale.

        Returns
        -------
        dx : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        dscale : numpy.ndarray or None
            Of scale's dtype; None without a scale.
        dbias : numpy.ndarray or None
            Of scale's dtype, or without a scale of out_bias's or x's; None if it is not computed.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        shape = self._check(x)
        _arrays.check_like("dy", dy, "x", x)
        saved = {"saved_mean": saved_mean, "saved_inverse_variance": saved_inverse_variance}
        _check_pair(saved)
        self._check_parameters(x, shape, scale=scale)
        for name, array in saved.items():
            if array is not None:
                check_parameter(name, array, shape, (statistics_dtype(x).name,), self._meaning)
        alpha, beta = check_scales(alpha, beta, out=out)
        with_bias = wants_bias(bias, scale)
        _check_none_unless("out_scale", out_scale, wanted=scale is not None)
        _check_none_unless("out_bias", out_bias, wanted=with_bias)
        outs = {"out_scale": out_scale} if scale is not None else {}
        outs |= {"out_bias": out_bias} if with_bias else {}
        parameter_alpha, parameter_beta = check_scales(parameter_alpha, parameter_beta, prefix="parameter_", **outs)
        dtype = x.dtype if scale is None else scale.dtype
        if scale is None and out_bias is not None:
            self._check_parameters(x, shape, out_bias=out_bias)
            dtype = out_bias.dtype
        results = [
            ("out", out, x.shape, x.dtype.name),
            ("out_scale", out_scale, shape, dtype.name),
            ("out_bias", out_bias, shape, dtype.name),
        ]
        check_results(results, {"dy": dy, "x": x, "scale": scale, **saved})
        with np.errstate(all="ignore"):
            dx, dscale, dbias = self._gradients(dy, x, shape, scale, saved_mean, saved_inverse_variance)
            factors = parameter_alpha, parameter_beta
            return (
                _arrays.store_scaled(dx, x.dtype, out, alpha, beta),
                None if scale is None else _arrays.store_scaled(dscale, dtype, out_scale, *factors),
                _arrays.store_scaled(dbias, dtype, out_bias, *factors) if with_bias else None,
            )

    def _gradients(
        self,
        dy: Array,
        x: Array,
        shape: Shape,
        scale: Array | None,
        saved_mean: Array | None,
        saved_inverse_variance: Array | None,
    ) -> tuple[Float64, Float64, Float64]:
        """Return the gradients with respect to x, scale and bias in float64, in the layouts of x and the parameters."""
        if not x.size:
            return np.zeros(x.shape), np.zeros(shape), np.zeros(shape)
        axes = self._axes(x)
        dy64, x64 = self._float64(dy), self._float64(x)
        if saved_mean is None or saved_inverse_variance is None:
            mean, variance = moments(x64, axes)
            inverse = 1 / np.sqrt(variance + self.epsilon)
        else:
            mean, inverse = self._spread(saved_mean, x), self._spread(saved_inverse_variance, x)
        normalized = (x64 - mean) * inverse
        dx = gradient(self._affine(dy64, x, scale), normalized, inverse, axes)
        dscale = (dy64 * normalized).sum(axis=axes, keepdims=True)
        dbias = dy64.sum(axis=axes, keepdims=True)
        return _arrays.in_layout(dx, self.layout), self._parameter(dscale, shape), self._parameter(dbias, shape)

    def _check(self, x: object) -> Shape:
        """Check the type, dtype and rank of x; return the shape of its parameters."""
        if isinstance(x, np.ndarray) and x.shape == (0,):  # one axis and no channels, as PyTorch accepts
            _arrays.check_array("x", x, _arrays.FLOATS)
            return (0,)
        x = _arrays.check_tensor("x", x, RANKS, empty="any")
        _geometry.check_rank("x", x.shape, self, RANKS)
        if self.mode == "per_activation":
            return tuple(x.shape[1:])
        return (_arrays.channels_first(x, self.layout).shape[1],)

    @property
    def _meaning(self) -> str:
        """What the parameters' shape is, for errors."""
        meaning = "one for each channel of x" if self.mode == "spatial" else "the shape of x without its first axis"
        return f"{meaning} ({self.mode})"

    def _check_parameters(self, x: Array, shape: Shape, **parameters: object) -> None:
        """Check the types, dtypes and shapes of parameters. Only mean and variance are required."""
        for name, array in parameters.items():
            if array is not None or name in ("mean", "variance"):
                check_parameter(name, array, shape, parameter_dtypes(x), self._meaning)
        scale, bias = parameters.get("scale"), parameters.get("bias")
        if isinstance(scale, np.ndarray) and isinstance(bias, np.ndarray):
            _arrays.check_same_dtype("bias", bias, "scale", scale)
        if self.mode == "spatial":
            check_channels(shape[0], scale, bias)

    def _axes(self, x: Array) -> Shape:
        """The axes of x, channels first, over which its mean is computed."""
        return (0,) if self.mode == "per_activation" else (0, *range(2, x.ndim))

    def _float64(self, array: Array) -> Float64:
        return np.asarray(_arrays.channels_first(array, self.layout), np.float64)

    def _spread(self, parameter: Array, x: Array) -> Float64:
        """Return a parameter in float64, shaped to broadcast against a channels-first x."""
        if self.mode == "per_activation":
            return self._float64(parameter[None])
        return np.asarray(parameter, np.float64).reshape(-1, *[1] * (x.ndim - 2))

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


def _check_none_unless(name: str, out: Array | None, *, wanted: bool) -> None:
    """Raise ValueError for an out of a gradient that is not computed."""
    if out is not None and not wanted:
        raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")


def _check_pair(arrays: dict[str, Array | None]) -> None:
    """Raise ValueError for one of two arrays without the other."""
    (first, a), (second, b) = arrays.items()
    if (a is None) != (b is None):
        given, missing = (second, first) if a is None else (first, second)
        raise ValueError(f"{given} and {missing} must be passed together; got None for {missing}")
