"""Layer and RMS normalization, over the last axes of x, and their gradients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cudnnpy._options.layer_normalization import LayerNormalizationBase, RMSNormalizationBase
from cudnnpy._options.normalization import parameter_dtypes, statistics_dtype
from cudnnpy.reference import _arrays
from cudnnpy.reference._arrays import Array, Shape
from cudnnpy.reference._moments import (
    check_affine,
    check_out,
    check_parameter,
    gradient,
    mean_square,
    moments,
    spread,
    with_parameter_gradients,
)
from cudnnpy.reference._numpy_operation import Arrays, NumpyOperation


class _RowNormalization(NumpyOperation):
    """Base class of layer and RMS normalization. A subclass names its statistics."""

    epsilon: float
    _statistics: ClassVar[tuple[str, ...]]

    def _forward(self, arrays: Arrays, training: bool, *normalized_shape: int) -> list[Array]:
        x, leading = _checked_input(arrays, normalized_shape)
        check_out(arrays, x)
        x64, axes = np.asarray(x, np.float64), tuple(range(leading, x.ndim))
        if "mean" in self._statistics:
            mean, variance = moments(x64, axes)
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y, statistics = (x64 - mean) * inverse, [mean, inverse]
        else:
            inverse = 1 / np.sqrt(mean_square(x64, axes) + self.epsilon)
            y, statistics = x64 * inverse, [inverse]
        y = y * np.asarray(arrays["scale"], np.float64) if "scale" in arrays else y
        y = y + np.asarray(arrays["bias"], np.float64) if "bias" in arrays else y
        dtype = np.dtype(statistics_dtype(x.dtype.name))
        return [
            _arrays.store(y, x.dtype, arrays["out"]),
            *(_arrays.store(v.reshape(x.shape[:leading]), dtype, None) for v in statistics if training),
        ]

    def _backward(self, arrays: Arrays, with_bias: bool = False) -> list[Array]:
        dy, x, leading = _checked_gradients(arrays, *self._statistics)
        scale = arrays["scale"]
        x64, dy64 = np.asarray(x, np.float64), np.asarray(dy, np.float64)
        *mean, inverse = (spread(arrays[name], x) for name in self._statistics)
        normalized = (x64 - mean[0] if mean else x64) * inverse
        g = dy64 if scale is None else dy64 * np.asarray(scale, np.float64)
        dx = gradient(g, normalized, inverse, tuple(range(leading, x.ndim)), centred=bool(mean))
        result = _arrays.store(dx, x.dtype, arrays["out"])
        return with_parameter_gradients(result, dy64, normalized, tuple(range(leading)), x, scale, with_bias)


class LayerNormalization(LayerNormalizationBase, _RowNormalization):
    _statistics = ("mean", "inverse_variance")


class RMSNormalization(RMSNormalizationBase, _RowNormalization):
    _statistics = ("inverse_rms",)


def _checked_input(arrays: Arrays, normalized_shape: Shape = ()) -> tuple[Array, int]:
    """Check x, scale and bias; return x as a plain array, and the number of axes before the normalized ones."""
    x = _arrays.check_tensor("x", arrays["x"], empty="any")
    source = "scale" if "scale" in arrays else "bias"
    if normalized_shape:
        source = "normalized_shape"
        leading = _leading_axis_count(x, normalized_shape, source)
    elif source not in arrays:
        raise TypeError("normalized_shape must be the sizes of x's last axes where there is no scale or bias; got None")
    else:
        first = _arrays.check_array(source, arrays[source], parameter_dtypes(x.dtype.name))
        leading = _leading_axis_count(x, first.shape, source)
    check_affine(x, arrays, x.shape[leading:], source if normalized_shape else f"the shape of {source}")
    return x, leading


def _leading_axis_count(x: Array, shape: Shape, name: str) -> int:
    """Return the number of x's axes before the last ones. Raise ValueError if the last ones do not have this shape."""
    leading = x.ndim - len(shape)
    if not 0 <= leading < x.ndim or x.shape[leading:] != shape:
        allowed = " or ".join(str(x.shape[first:]) for first in range(x.ndim - 1, -1, -1))
        if name == "normalized_shape":
            raise ValueError(f"normalized_shape must be the sizes of the last axes of x, {allowed}; got {shape}")
        raise ValueError(f"{name} must have the shape of the last axes of x, {allowed}; got shape {shape}")
    return leading


def _checked_gradients(arrays: Arrays, *statistics: str) -> tuple[Array, Array, int]:
    """Check the arguments of a gradient; return dy and x as plain arrays, and the number of axes before the normalized ones."""
    x = _arrays.check_tensor("x", arrays["x"], empty="any")
    dtypes = (statistics_dtype(x.dtype.name),)
    if "scale" in arrays:
        leading = _checked_input(arrays)[1]
    else:
        first = _arrays.check_array(statistics[0], arrays[statistics[0]], dtypes)
        leading = first.ndim
        if leading >= x.ndim:
            allowed = " or ".join(str(x.shape[:count]) for count in range(x.ndim))
            raise ValueError(
                f"{statistics[0]} must have the shape of the first axes of x, {allowed}; got shape {first.shape}"
            )
    dy = _arrays.check_like("dy", arrays["dy"], "x", x)
    for name in statistics:
        check_parameter(name, arrays[name], x.shape[:leading], dtypes, "the axes of x before the normalized ones")
    check_out(arrays, x)
    return dy, x, leading
