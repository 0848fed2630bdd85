"""Layer and RMS normalization, over the last axes of x, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_normalized_shape, wants_bias
from cudnnpy._options.operations import RowNormalizationOptions
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import ScalarT
from cudnnpy.reference._moments import (
    check_affine,
    check_out,
    check_parameter,
    gradient,
    mean_square,
    moments,
    parameter_dtypes,
    spread,
    statistics_dtype,
)
from cudnnpy.typing import Shape as ShapeArgument

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class LayerNormalization(RowNormalizationOptions):
    """Normalization over the last axes of x, on NumPy arrays: scale * (x - mean) / sqrt(variance + epsilon) + bias.

    The axes are those of scale and bias: x is `(..., *scale.shape)`. Without both, `normalized_shape` has their sizes. They
    may be all axes of x. x is float16, bfloat16, float32 or float64 and has 1 to 5 axes, which may have size 0. scale and
    bias have one dtype: x's, or float32 if x is float16 or bfloat16. The statistics are float32, or float64 if x is.
    Everything is computed in float64 and rounded once.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    epsilon : float
        Added to the biased variance; 0 or more.
    """

    def forward_training(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
        normalized_shape: SupportsIndex | ShapeArgument | None = None,
    ) -> tuple[NDArray[ScalarT], Array, Array]:
        """Return y = scale * (x - mean) * inverse_variance + bias, and the statistics.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray, optional
            Of the shape of the normalized axes, and of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale or a bias.

        Returns
        -------
        y : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        mean, inverse_variance : numpy.ndarray
            Of x's shape without the normalized axes; inverse_variance is 1 / sqrt(variance + epsilon). For no elements they
            are 0 and NaN.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        kept = _check(x, normalized_shape, scale, bias)
        check_out(out, x, scale=scale, bias=bias)
        with np.errstate(all="ignore"):
            x64 = np.asarray(x, np.float64)
            mean, variance = moments(x64, tuple(range(kept, x.ndim)))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = (x64 - mean) * inverse
            y = y if scale is None else y * np.asarray(scale, np.float64)
            y = y if bias is None else y + np.asarray(bias, np.float64)
            return (
                _arrays.store(y, x.dtype, out),
                _arrays.store(mean.reshape(x.shape[:kept]), statistics_dtype(x), None),
                _arrays.store(inverse.reshape(x.shape[:kept]), statistics_dtype(x), None),
            )

    def forward_inference(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        bias: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
        normalized_shape: SupportsIndex | ShapeArgument | None = None,
    ) -> NDArray[ScalarT]:
        """Return y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale, bias : numpy.ndarray, optional
            Of the shape of the normalized axes, and of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale or a bias.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        return self.forward_training(x, scale, bias, out, stream, normalized_shape)[0]

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
            forward_training's; scale may be None, then the normalized axes are those that mean lacks.
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
        statistics = {"mean": mean, "inverse_variance": inverse_variance}
        kept = _check_gradients(dy, x, scale, statistics, out)
        with np.errstate(all="ignore"):
            dy64, inverse = np.asarray(dy, np.float64), spread(inverse_variance, x)
            normalized = (np.asarray(x, np.float64) - spread(mean, x)) * inverse
            g = dy64 if scale is None else dy64 * np.asarray(scale, np.float64)
            dx = gradient(g, normalized, inverse, tuple(range(kept, x.ndim)))
            before, dtype = tuple(range(kept)), x.dtype if scale is None else scale.dtype
            return (
                _arrays.store(dx, x.dtype, out),
                None if scale is None else _arrays.store((dy64 * normalized).sum(axis=before), dtype, None),
                _arrays.store(dy64.sum(axis=before), dtype, None) if with_bias else None,
            )


@dataclass(frozen=True)
class RMSNormalization(RowNormalizationOptions):
    """Division by the root mean square over the last axes of x, on NumPy arrays: scale * x / sqrt(mean(x^2) + epsilon).

    As `LayerNormalization`, without mean and bias: x is `(..., *scale.shape)` or `(..., *normalized_shape)`, float16,
    bfloat16, float32 or float64, with 1 to 5 axes, which may have size 0. scale has x's dtype, or float32 if x is float16
    or bfloat16; the statistics are float32, or float64 if x is. Everything is computed in float64 and rounded once.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    epsilon : float
        Added to the mean square; 0 or more.
    """

    def forward_training(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
        normalized_shape: SupportsIndex | ShapeArgument | None = None,
    ) -> tuple[NDArray[ScalarT], Array]:
        """Return y = scale * x * inverse_rms, and inverse_rms.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale : numpy.ndarray, optional
            Of the shape of the normalized axes, and of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale.

        Returns
        -------
        y : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        inverse_rms : numpy.ndarray
            1 / sqrt(mean(x^2) + epsilon), of x's shape without the normalized axes; NaN for no elements.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        kept = _check(x, normalized_shape, scale)
        check_out(out, x, scale=scale)
        with np.errstate(all="ignore"):
            x64 = np.asarray(x, np.float64)
            inverse = 1 / np.sqrt(mean_square(x64, tuple(range(kept, x.ndim))) + self.epsilon)
            y = x64 * inverse
            y = y if scale is None else y * np.asarray(scale, np.float64)
            return (
                _arrays.store(y, x.dtype, out),
                _arrays.store(inverse.reshape(x.shape[:kept]), statistics_dtype(x), None),
            )

    def forward_inference(
        self,
        x: NDArray[ScalarT],
        scale: Array | None = None,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
        normalized_shape: SupportsIndex | ShapeArgument | None = None,
    ) -> NDArray[ScalarT]:
        """Return y as `forward_training` does, without inverse_rms.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64.
        scale : numpy.ndarray, optional
            Of the shape of the normalized axes, and of x's dtype, or float32 if x has 16 bits.
        out : numpy.ndarray, optional
            y, of x's shape and dtype.
        stream : object
            Ignored.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of x's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        return self.forward_training(x, scale, out, stream, normalized_shape)[0]

    def backward(
        self,
        dy: NDArray[ScalarT],
        x: NDArray[ScalarT],
        scale: Array | None,
        inverse_rms: Array,
        out: NDArray[ScalarT] | None = None,
        stream: object = None,
    ) -> tuple[NDArray[ScalarT], Array | None]:
        """Return the gradients with respect to x and scale.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to y.
        x, scale : numpy.ndarray
            forward_training's; scale may be None, then the normalized axes are those that inverse_rms lacks.
        inverse_rms : numpy.ndarray
            What `forward_training` returned with y.
        out : numpy.ndarray, optional
            dx, of x's shape and dtype.
        stream : object
            Ignored.

        Returns
        -------
        dx : numpy.ndarray
            `out`, or a new array of x's shape and dtype.
        dscale : numpy.ndarray or None
            Of scale's shape and dtype; None without a scale.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        kept = _check_gradients(dy, x, scale, {"inverse_rms": inverse_rms}, out)
        with np.errstate(all="ignore"):
            dy64, inverse = np.asarray(dy, np.float64), spread(inverse_rms, x)
            normalized = np.asarray(x, np.float64) * inverse
            g = dy64 if scale is None else dy64 * np.asarray(scale, np.float64)
            dx = _arrays.store(
                gradient(g, normalized, inverse, tuple(range(kept, x.ndim)), centred=False), x.dtype, out
            )
            if scale is None:
                return dx, None
            return dx, _arrays.store((dy64 * normalized).sum(axis=tuple(range(kept))), scale.dtype, None)


def _check(x: object, normalized_shape: object, scale: object, bias: object = None) -> int:
    """Check x, and what gives the sizes of its normalized axes; return the number of axes before these."""
    x = _arrays.check_tensor("x", x, empty="any")
    source, first = ("scale", scale) if scale is not None else ("bias", bias)
    if normalized_shape is not None:
        shape = check_normalized_shape(normalized_shape)
        kept = _kept(x, shape, "normalized_shape")
        source = "normalized_shape"
    elif first is None:
        raise TypeError("normalized_shape must be the sizes of x's last axes where there is no scale or bias; got None")
    else:
        _arrays.check_array(source, first, parameter_dtypes(x))
        assert isinstance(first, np.ndarray)
        kept = _kept(x, first.shape, source)
    check_affine(x, scale, bias, x.shape[kept:], source if source == "normalized_shape" else f"the shape of {source}")
    return kept


def _kept(x: Array, shape: Shape, name: str) -> int:
    """Return the number of x's axes before the last ones. Raise ValueError if the last ones do not have this shape."""
    kept = x.ndim - len(shape)
    if not 0 <= kept < x.ndim or x.shape[kept:] != shape:
        allowed = " or ".join(str(x.shape[first:]) for first in range(x.ndim - 1, -1, -1))
        if name == "normalized_shape":
            raise ValueError(f"normalized_shape must be the sizes of the last axes of x, {allowed}; got {shape}")
        raise ValueError(f"{name} must have the shape of the last axes of x, {allowed}; got shape {shape}")
    return kept


def _check_gradients(dy: object, x: object, scale: object, statistics: dict[str, Array], out: Array | None) -> int:
    """Check the arguments of a gradient; return the number of axes of x before the normalized ones."""
    x = _arrays.check_tensor("x", x, empty="any")
    dtype = statistics_dtype(x)
    first, array = next(iter(statistics.items()))
    if scale is not None:
        kept = _check(x, None, scale)
    else:
        _arrays.check_array(first, array, (dtype.name,))
        kept = array.ndim
        if kept >= x.ndim:
            allowed = " or ".join(str(x.shape[:count]) for count in range(x.ndim))
            raise ValueError(f"{first} must have the shape of the first axes of x, {allowed}; got shape {array.shape}")
    _arrays.check_like("dy", dy, "x", x)
    assert isinstance(dy, np.ndarray)
    for name, array in statistics.items():
        check_parameter(name, array, x.shape[:kept], (dtype.name,), "the axes of x before the normalized ones")
    check_out(out, x, dy=dy, scale=scale, **statistics)
    return kept
