"""Formulas of layer, RMS, instance and local response normalization and of dropout, with their gradients, in float64.

Instance normalization is layer normalization over the spatial axes. A scale or bias has x's number of axes, each of x's
size or of size 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference._arrays import Float64, Shape
from cudnnpy.reference._moments import gradient, mean_square, moments


def layer_norm(
    x: Float64, scale: Float64, bias: Float64, epsilon: float, axes: Shape
) -> tuple[Float64, Float64, Float64]:
    """Return y = scale * (x - mean) * inverse + bias, and the statistics along axes, which remain with size 1.

    inverse is 1 / sqrt(variance + epsilon).
    """
    mean, variance = moments(x, axes)
    inverse = 1 / np.sqrt(variance + epsilon)
    return scale * ((x - mean) * inverse) + bias, mean, inverse


def layer_norm_gradient(
    dy: Float64, x: Float64, scale: Float64, mean: Float64, inverse: Float64, axes: Shape
) -> tuple[Float64, Float64, Float64]:
    """Return the gradients with respect to x, scale and bias, by the statistics of `layer_norm`."""
    normalized = (x - mean) * inverse
    dx = gradient(dy * scale, normalized, inverse, axes)
    return dx, _sum_like(scale, dy * normalized), _sum_like(scale, dy)


def rms_norm(x: Float64, scale: Float64, epsilon: float, axes: Shape) -> tuple[Float64, Float64]:
    """Return y = scale * x * inverse, and inverse = 1 / sqrt(mean(x * x) + epsilon) along axes, which remain with size 1."""
    inverse = 1 / np.sqrt(mean_square(x, axes) + epsilon)
    return scale * (x * inverse), inverse


def rms_norm_gradient(
    dy: Float64, x: Float64, scale: Float64, inverse: Float64, axes: Shape
) -> tuple[Float64, Float64]:
    """Return the gradients with respect to x and scale, by the statistics of `rms_norm`."""
    normalized = x * inverse
    dx = gradient(dy * scale, normalized, inverse, axes, centred=False)
    return dx, _sum_like(scale, dy * normalized)


def _sum_like(scale: Float64, terms: Float64) -> Float64:
    """Return the sums of terms over the axes along which scale is repeated."""
    axes = tuple(axis for axis, size in enumerate(scale.shape) if size != terms.shape[axis])
    total: Float64 = terms.sum(axis=axes, keepdims=True)
    return total


def local_response(x: Float64, size: int, alpha: float, beta: float, k: float) -> Float64:
    """Return x / (k + alpha / size * s) ** beta, where s is the sum of x * x over `size` channels around each on axis 1.

    They are the channels from c - (size - 1) // 2 to c + size // 2 for channel c.
    """
    return x * _base(x, size, alpha, k) ** -beta


def local_response_gradient(dy: Float64, x: Float64, size: int, alpha: float, beta: float, k: float) -> Float64:
    """Return the gradient of `local_response` with respect to x."""
    base = _base(x, size, alpha, k)
    # x of channel c occurs in the sums of the channels from c - size // 2 to c + (size - 1) // 2.
    through = _nearby(dy * x * base ** -(beta + 1), size // 2, (size - 1) // 2)
    return dy * base**-beta - 2 * alpha * beta / size * x * through


def _base(x: Float64, size: int, alpha: float, k: float) -> Float64:
    return k + alpha / size * _nearby(x * x, (size - 1) // 2, size // 2)


def _nearby(values: Float64, before: int, after: int) -> Float64:
    """Return, for each channel c on axis 1, the sum over the channels from c - before to c + after that exist."""
    total = np.zeros_like(values)
    channels = values.shape[1]
    for offset in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        start, stop = max(0, -offset), min(channels, channels - offset)
        total[:, start:stop] += values[:, start + offset : stop + offset]
    return total


def dropout(x: Float64, mask: NDArray[np.bool_], probability: float) -> Float64:
    """Return x / (1 - probability) where mask is true and 0 elsewhere, whatever x is there. The gradient maps dy likewise."""
    return np.where(mask, x / (1 - probability), 0.0)
