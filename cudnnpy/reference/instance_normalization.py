"""Instance normalization, of each channel of each sample over its positions, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import wants_bias
from cudnnpy._options.operations import InstanceNormalizationOptions
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import ScalarT
from cudnnpy.reference._moments import (
    check_affine,
    check_channels,
    check_out,
    check_parameter,
    gradient,
    moments,
    spread,
    statistics_dtype,
)

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]

RANKS = (3, 4, 5)


@dataclass(frozen=True)
class InstanceNormalization(InstanceNormalizationOptions):
    """Normalization of each channel of each sample over its positions, on NumPy arrays.

    y = scale * (x - mean) / sqrt(variance + epsilon) + bias. x is float16, bfloat16, float32 or float64 and has 3 to 5
    axes, which may have size 0. scale and bias have shape (C,) and one dtype: x's, or float32 if x is float16 or bfloat16.
    A scale of None is 1, a bias of None 0. The statistics, of shape (N, C), are float32, or float64 if x is. Everything
    is computed in float64 and rounded once.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    epsilon : float
        Added to the biased variance; 0 or more.
    layout : str
        "NCHW": x is (N, C, spatial...); "NHWC": x is (N, spatial..., C); for 1 to 3 spatial dimensions. NCW, NWC, NCDHW and
        NDHWC require one number of them.
    """

    def forward_training(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> tuple[NDArray[ScalarT], Array, Array]:
        """Return y = scale * (x - mean) * inverse_variance + bias, and the statistics.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray, optional
            (C,), of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.

        Returns
        -------
        y : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        mean, inverse_variance : numpy.ndarray
            (N, C); inverse_variance is 1 / sqrt(variance + epsilon). For no positions they are 0 and NaN.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        statistics_shape = self._check(x, scale, bias)
        check_out(out, x, scale=scale, bias=bias)
        with np.errstate(all="ignore"):
            x64 = self._float64(x)
            mean, variance = moments(x64, tuple(range(2, x.ndim)))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = (x64 - mean) * inverse
            y = y if scale is None else y * spread(scale, x, 1)
            y = y if bias is None else y + spread(bias, x, 1)
            return (
                _arrays.store(_arrays.in_layout(y, self.layout), x.dtype, out),
                _arrays.store(mean.reshape(statistics_shape), statistics_dtype(x), None),
                _arrays.store(inverse.reshape(statistics_shape), statistics_dtype(x), None),
            )

    def forward_inference(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray, optional
            (C,), of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        return self.forward_training(x, scale, bias, out)[0]

    def backward(
        self,
        dy: NDArray[ScalarT],
        x: NDArray[ScalarT],
        scale: Array | None,
        mean: Array,
        inverse_variance: Array,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
        bias: bool | None = None,
    ) -> tuple[NDArray[ScalarT], Array | None, Array | None]:
        """Return the gradients with respect to x, scale and bias.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to y.
        x, scale : numpy.ndarray
            forward_training's; scale may be None.
        mean, inverse_variance : numpy.ndarray
            What `forward_training` returned with y.
        out : numpy.ndarray, optional
            dx, of x's shape and dtype.
        stream : object
            Ignored.
        bias : bool, optional
            Whether dbias is computed; by default if there is a scale.

        Returns
        -------
        dx : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        dscale : numpy.ndarray or None
            Of scale's shape and dtype; None without a scale.
        dbias : numpy.ndarray or None
            Of scale's dtype, or x's without a scale; None if it is not computed.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        with_bias = wants_bias(bias, scale)
        statistics_shape = self._check(x, scale)
        _arrays.check_like("dy", dy, "x", x)
        statistics = {"mean": mean, "inverse_variance": inverse_variance}
        for name, array in statistics.items():
            meaning = "the batch and the channels of x"
            check_parameter(name, array, statistics_shape, (statistics_dtype(x).name,), meaning)
        check_out(out, x, dy=dy, scale=scale, **statistics)
        with np.errstate(all="ignore"):
            dy64, inverse = self._float64(dy), spread(inverse_variance, x)
            normalized = (self._float64(x) - spread(mean, x)) * inverse
            positions = tuple(range(2, x.ndim))
            g = dy64 if scale is None else dy64 * spread(scale, x, 1)
            dx = gradient(g, normalized, inverse, positions)
            over, dtype = (0, *positions), x.dtype if scale is None else scale.dtype
            return (
                _arrays.store(_arrays.in_layout(dx, self.layout), x.dtype, out),
                None if scale is None else _arrays.store((dy64 * normalized).sum(axis=over), dtype, None),
                _arrays.store(dy64.sum(axis=over), dtype, None) if with_bias else None,
            )

    def _check(self, x: object, scale: object, bias: object = None) -> Shape:
        """Check x, scale and bias; return (N, C)."""
        x = _arrays.check_tensor("x", x, RANKS, empty="any")
        _geometry.check_rank("x", x.shape, self, RANKS)
        batch, channels = _arrays.channels_first(x, self.layout).shape[:2]
        check_affine(x, scale, bias, (channels,), "one for each channel of x")
        check_channels(channels, scale, bias)
        return batch, channels

    def _float64(self, array: Array) -> Float64:
        return np.asarray(_arrays.channels_first(array, self.layout), np.float64)
