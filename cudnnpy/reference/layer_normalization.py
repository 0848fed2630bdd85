"""Normalization of each sample by itself, and its gradients: by layer, by root mean square, by instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._moments import check_parameter, check_results, epsilon_of, gradient, moments
from cudnnpy.reference._options import LAYOUTS, one_of

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]

DTYPES = ("float16", "bfloat16", "float32")
FLOAT32 = np.dtype(np.float32)
LAYER_RANKS = (2, 3, 4, 5)
INSTANCE_RANKS = (3, 4, 5)


@dataclass(frozen=True)
class LayerNormalization:
    """Normalization over the last axes of x, on NumPy arrays: scale * (x - mean) / sqrt(variance + epsilon) + bias.

    The axes are those of scale: x is (..., *scale.shape) with at least one axis before, and 2 to 5 in all. x is
    float16, bfloat16 or float32; scale, bias and the statistics are float32. Everything is computed in float64 and
    rounded once.

    epsilon   added to the biased variance; 0 or more

    An instance cannot change and may be shared by threads. A wrong option is a ValueError or TypeError that names it.
    """

    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "epsilon", epsilon_of(self.epsilon))

    def forward_training(
        self, x: Array, scale: Array, bias: Array, out: Array | None = None, stream: object = None
    ) -> tuple[Array, Array, Array]:
        """Return (y, mean, inverse_variance): y of x's shape and dtype, and what `backward` needs.

        mean and inverse_variance, 1 / sqrt(variance + epsilon), have x's shape without the normalized axes. y goes to
        out if there is one. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps an input.
        """
        kept = _check_layer(x, scale)
        check_parameter("bias", bias, scale.shape, "float32", "the shape of scale")
        _check_out(out, x, scale=scale, bias=bias)
        with np.errstate(all="ignore"):
            x64 = x.astype(np.float64)
            mean, variance = moments(x64, tuple(range(kept, x.ndim)))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = (x64 - mean) * inverse * scale.astype(np.float64) + bias.astype(np.float64)
            return (
                _arrays.store(y, x.dtype, out),
                _arrays.store(mean.reshape(x.shape[:kept]), FLOAT32, None),
                _arrays.store(inverse.reshape(x.shape[:kept]), FLOAT32, None),
            )

    def forward_inference(
        self, x: Array, scale: Array, bias: Array, out: Array | None = None, stream: object = None
    ) -> Array:
        """Return y alone. Takes and raises what `forward_training` does."""
        return self.forward_training(x, scale, bias, out)[0]

    def backward(
        self,
        dy: Array,
        x: Array,
        scale: Array,
        mean: Array,
        inverse_variance: Array,
        out: Array | None = None,
        stream: object = None,
    ) -> tuple[Array, Array, Array]:
        """Return the gradients (dx, dscale, dbias) for the gradient dy of y.

        dx has x's shape and dtype and goes to out if there is one; dscale and dbias are float32, of scale's shape.
        mean and inverse_variance are those of `forward_training`. stream is ignored. Raises as `forward_training` does.
        """
        kept = _check_layer(x, scale)
        _arrays.check_like("dy", dy, "x", x)
        statistics = {"mean": mean, "inverse_variance": inverse_variance}
        for name, array in statistics.items():
            check_parameter(name, array, x.shape[:kept], "float32", "the axes of x before scale's")
        _check_out(out, x, dy=dy, scale=scale, **statistics)
        with np.errstate(all="ignore"):
            dy64, inverse = dy.astype(np.float64), _before(inverse_variance, x)
            normalized = (x.astype(np.float64) - _before(mean, x)) * inverse
            dx = gradient(dy64 * scale.astype(np.float64), normalized, inverse, tuple(range(kept, x.ndim)))
            before = tuple(range(kept))
            return (
                _arrays.store(dx, x.dtype, out),
                _arrays.store((dy64 * normalized).sum(axis=before), FLOAT32, None),
                _arrays.store(dy64.sum(axis=before), FLOAT32, None),
            )


@dataclass(frozen=True)
class RMSNormalization:
    """Division by the root mean square over the last axes of x, on NumPy arrays: scale * x / sqrt(mean(x^2) + epsilon).

    As `LayerNormalization`, without mean and bias: x is (..., *scale.shape), float16, bfloat16 or float32, with at
    least one axis before scale's and 2 to 5 in all; scale and the statistics are float32. Everything is computed in
    float64 and rounded once.

    epsilon   added to the mean square; 0 or more

    An instance cannot change and may be shared by threads. A wrong option is a ValueError or TypeError that names it.
    """

    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "epsilon", epsilon_of(self.epsilon))

    def forward_training(
        self, x: Array, scale: Array, out: Array | None = None, stream: object = None
    ) -> tuple[Array, Array]:
        """Return (y, inverse_rms): y of x's shape and dtype, and what `backward` needs.

        inverse_rms, 1 / sqrt(mean(x^2) + epsilon), has x's shape without the normalized axes. y goes to out if there
        is one. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps an input.
        """
        kept = _check_layer(x, scale)
        _check_out(out, x, scale=scale)
        with np.errstate(all="ignore"):
            x64 = x.astype(np.float64)
            square = np.square(x64).mean(axis=tuple(range(kept, x.ndim)), keepdims=True)
            inverse = 1 / np.sqrt(square + self.epsilon)
            return (
                _arrays.store(x64 * inverse * scale.astype(np.float64), x.dtype, out),
                _arrays.store(inverse.reshape(x.shape[:kept]), FLOAT32, None),
            )

    def forward_inference(self, x: Array, scale: Array, out: Array | None = None, stream: object = None) -> Array:
        """Return y alone. Takes and raises what `forward_training` does."""
        return self.forward_training(x, scale, out)[0]

    def backward(
        self,
        dy: Array,
        x: Array,
        scale: Array,
        inverse_rms: Array,
        out: Array | None = None,
        stream: object = None,
    ) -> tuple[Array, Array]:
        """Return the gradients (dx, dscale) for the gradient dy of y.

        dx has x's shape and dtype and goes to out if there is one; dscale is float32, of scale's shape. inverse_rms is
        that of `forward_training`. stream is ignored. Raises as `forward_training` does.
        """
        kept = _check_layer(x, scale)
        _arrays.check_like("dy", dy, "x", x)
        check_parameter("inverse_rms", inverse_rms, x.shape[:kept], "float32", "the axes of x before scale's")
        _check_out(out, x, dy=dy, scale=scale, inverse_rms=inverse_rms)
        with np.errstate(all="ignore"):
            dy64, inverse = dy.astype(np.float64), _before(inverse_rms, x)
            normalized = x.astype(np.float64) * inverse
            axes = tuple(range(kept, x.ndim))
            dx = gradient(dy64 * scale.astype(np.float64), normalized, inverse, axes, centred=False)
            return (
                _arrays.store(dx, x.dtype, out),
                _arrays.store((dy64 * normalized).sum(axis=tuple(range(kept))), FLOAT32, None),
            )


@dataclass(frozen=True)
class InstanceNormalization:
    """Normalization of each channel of each sample over its positions, on NumPy arrays.

    y = scale * (x - mean) / sqrt(variance + epsilon) + bias. x is float16, bfloat16 or float32 and has 3 to 5 axes;
    scale and bias, of shape (C,), and the statistics, of shape (N, C), are float32. Everything is computed in float64
    and rounded once.

    epsilon   added to the biased variance; 0 or more
    layout    "NCHW": x (N, C, spatial...); or "NHWC": x (N, spatial..., C); for 1 to 3 spatial axes. NCW, NWC, NCDHW
              and NDHWC name one number of them, which is checked

    An instance cannot change and may be shared by threads. A wrong option is a ValueError or TypeError that names it.
    """

    epsilon: float = 1e-5
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "epsilon", epsilon_of(self.epsilon))
        one_of("layout", self.layout, tuple(LAYOUTS))

    def forward_training(
        self, x: Array, scale: Array, bias: Array, out: Array | None = None, stream: object = None
    ) -> tuple[Array, Array, Array]:
        """Return (y, mean, inverse_variance): y of x's shape and dtype, and what `backward` needs.

        inverse_variance is 1 / sqrt(variance + epsilon). y goes to out if there is one. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps an input.
        """
        statistics_shape = self._check(x, scale=scale, bias=bias)
        _check_out(out, x, scale=scale, bias=bias)
        with np.errstate(all="ignore"):
            x64 = self._float64(x)
            mean, variance = moments(x64, tuple(range(2, x.ndim)))
            inverse = 1 / np.sqrt(variance + self.epsilon)
            y = (x64 - mean) * inverse * _before(scale, x, 1) + _before(bias, x, 1)
            return (
                _arrays.store(_arrays.in_layout(y, self.layout), x.dtype, out),
                _arrays.store(mean.reshape(statistics_shape), FLOAT32, None),
                _arrays.store(inverse.reshape(statistics_shape), FLOAT32, None),
            )

    def forward_inference(
        self, x: Array, scale: Array, bias: Array, out: Array | None = None, stream: object = None
    ) -> Array:
        """Return y alone. Takes and raises what `forward_training` does."""
        return self.forward_training(x, scale, bias, out)[0]

    def backward(
        self,
        dy: Array,
        x: Array,
        scale: Array,
        mean: Array,
        inverse_variance: Array,
        out: Array | None = None,
        stream: object = None,
    ) -> tuple[Array, Array, Array]:
        """Return the gradients (dx, dscale, dbias) for the gradient dy of y.

        dx has x's shape and dtype and goes to out if there is one; dscale and dbias are float32, of shape (C,). mean
        and inverse_variance are those of `forward_training`. stream is ignored. Raises as `forward_training` does.
        """
        statistics_shape = self._check(x, scale=scale)
        _arrays.check_like("dy", dy, "x", x)
        statistics = {"mean": mean, "inverse_variance": inverse_variance}
        for name, array in statistics.items():
            check_parameter(name, array, statistics_shape, "float32", "the batch and the channels of x")
        _check_out(out, x, dy=dy, scale=scale, **statistics)
        with np.errstate(all="ignore"):
            dy64, inverse = self._float64(dy), _before(inverse_variance, x)
            normalized = (self._float64(x) - _before(mean, x)) * inverse
            positions = tuple(range(2, x.ndim))
            dx = gradient(dy64 * _before(scale, x, 1), normalized, inverse, positions)
            return (
                _arrays.store(_arrays.in_layout(dx, self.layout), x.dtype, out),
                _arrays.store((dy64 * normalized).sum(axis=(0, *positions)), FLOAT32, None),
                _arrays.store(dy64.sum(axis=(0, *positions)), FLOAT32, None),
            )

    def _check(self, x: object, **parameters: object) -> Shape:
        """Refuse a wrong x and wrong parameters of it; return (N, C)."""
        x = _check_x(x, INSTANCE_RANKS)
        _geometry.check_rank("x", x.shape, self, INSTANCE_RANKS)
        batch, channels = _arrays.channels_first(x, self.layout).shape[:2]
        for name, array in parameters.items():
            check_parameter(name, array, (channels,), "float32", "one for each channel of x")
        return batch, channels

    def _float64(self, array: Array) -> Float64:
        return _arrays.channels_first(array, self.layout).astype(np.float64)


def _check_x(x: object, ranks: Shape) -> Array:
    _arrays.check_array("x", x, DTYPES)
    _arrays.check_tensor("x", x, ranks)
    assert isinstance(x, np.ndarray)
    return x


def _check_layer(x: object, scale: object) -> int:
    """Refuse a wrong x and a scale that does not fit its last axes; return the number of axes before."""
    x = _check_x(x, LAYER_RANKS)
    _arrays.check_array("scale", scale, ("float32",))
    assert isinstance(scale, np.ndarray)
    kept = x.ndim - scale.ndim
    if not 1 <= kept < x.ndim or x.shape[kept:] != scale.shape:
        allowed = " or ".join(str(x.shape[first:]) for first in range(x.ndim - 1, 0, -1))
        raise ValueError(f"scale has shape {scale.shape}: expected the last axes of x, {allowed}")
    return kept


def _check_out(out: Array | None, x: Array, **inputs: Array) -> None:
    check_results([("out", out, x.shape, x.dtype.name)], {"x": x, **inputs})


def _before(values: Array, x: Array, skipped: int = 0) -> Float64:
    """Values of x's first axes, less some skipped, in float64, so that they broadcast against x."""
    return values.astype(np.float64).reshape(*values.shape, *[1] * (x.ndim - values.ndim - skipped))
