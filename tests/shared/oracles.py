"""What the reference's tests compare it with: the operations as textbooks write them, with gradients by autograd.

autograd (HIPS) differentiates NumPy programs without compiling anything, so that a test can draw a thousand shapes. Nothing
here is taken from cudnnpy. Arrays are float64, and channels are first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import make_vjp
from autograd.scipy.special import expit, logsumexp

Array = Any  # a NumPy array, or what stands for one while autograd records
Pairs = Sequence[tuple[int, int]]


def value_and_pullback(function: Callable[..., Array], *arrays: np.ndarray) -> tuple[np.ndarray, Callable[..., Any]]:
    """A function's value, and what gives its gradients with respect to each array for a gradient of the value."""
    pull, value = make_vjp(lambda given: function(*given))(tuple(array.astype(np.float64) for array in arrays))
    return value, pull


def padded(x: Array, padding: Pairs, value: float = 0.0) -> Array:
    """x with so many values before and behind each of its last axes."""
    return anp.pad(x, [(0, 0)] * (x.ndim - len(padding)) + list(padding), "constant", constant_values=value)


# Convolutions


def _taps(x: Array, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]) -> Any:
    """For each place in a window, in C order, what lies there for every position of the output."""
    for place in product(*map(range, window)):
        starts = [at * step for at, step in zip(place, dilation, strict=True)]
        ends = [first + (size - 1) * step + 1 for first, size, step in zip(starts, out, stride, strict=True)]
        slices = [slice(first, end, step) for first, end, step in zip(starts, ends, stride, strict=True)]
        yield place, x[(slice(None), slice(None), *slices)]


def convolve(x: Array, w: Array, padding: Pairs, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """The cross-correlation of x (N, groups * C, ...) and w (groups * K, C, ...), as deep learning calls convolution."""
    x = padded(x, padding)
    kernel, batch, spatial = w.shape[2:], x.shape[0], x.shape[2:]
    filters = w.shape[0] // groups
    reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
    out = [(size - span) // step + 1 for size, span, step in zip(spatial, reach, stride, strict=True)]
    w = anp.reshape(w, (groups, filters, *w.shape[1:]))
    y: Array = 0.0
    for place, at in _taps(x, kernel, stride, dilation, out):
        at = anp.reshape(at, (batch, groups, w.shape[2], math.prod(out)))
        y = y + anp.einsum("ngcp,gkc->ngkp", at, w[(..., *place)])
    return anp.reshape(y, (batch, groups * filters, *out))


def convolve_transposed(
    x: Array,
    w: Array,
    padding: Pairs,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int],
) -> Array:
    """The transposed convolution of x (N, groups * K, ...) and w (groups * K, C, ...).

    x is spread out with zeros by the stride and correlated with the turned filter, as Dumoulin and Visin draw it.
    """
    for axis, step in enumerate(stride, 2):
        shape = list(x.shape)
        x = anp.concatenate([anp.reshape(x, (*shape, 1)), anp.zeros((*shape, step - 1))], axis=-1)
        x = anp.reshape(anp.moveaxis(x, -1, axis + 1), (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
        x = x[(slice(None),) * axis + (slice((shape[axis] - 1) * step + 1),)]
    rank = len(stride)
    reach = [(taps - 1) * step for taps, step in zip(w.shape[2:], dilation, strict=True)]
    full = [(span, span + extra) for span, extra in zip(reach, output_padding, strict=True)]
    turned = w[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
    turned = anp.swapaxes(anp.reshape(turned, (groups, w.shape[0] // groups, *w.shape[1:])), 1, 2)
    turned = anp.reshape(turned, (groups * w.shape[1], *turned.shape[2:]))
    y = convolve(x, turned, full, (1,) * rank, dilation, groups)
    cut = [slice(before, size - after) for (before, after), size in zip(padding, y.shape[2:], strict=True)]
    return y[(slice(None), slice(None), *cut)]


# Pooling


def pool(x: Array, mode: str, window: Sequence[int], padding: Pairs, stride: Sequence[int]) -> Array:
    """The maximum of each window, the first of equal ones in C order; or the average with or without the padding."""
    largest = mode.startswith("max")
    out = [
        len(range(0, before + size + after - span + 1, step))
        for size, span, (before, after), step in zip(x.shape[2:], window, padding, stride, strict=True)
    ]
    counted = padded(np.ones(x.shape), padding, 1.0 if mode == "average_include_padding" else 0.0)
    x = padded(x, padding, -math.inf if largest else 0.0)
    ones = (1,) * len(out)
    stacked = anp.stack([at for _, at in _taps(x, window, stride, ones, out)])
    if largest:
        known = getattr(stacked, "_value", stacked)
        first = np.arange(len(known)).reshape(len(known), *[1] * (known.ndim - 1)) == np.argmax(known, 0)
        return anp.sum(anp.where(first, stacked, 0.0), 0)
    return anp.sum(stacked, 0) / sum(at for _, at in _taps(counted, window, stride, ones, out))


# Element by element, and over the channels


ACTIVATIONS: dict[str, Callable[[Array, float], Array]] = {
    "sigmoid": lambda x, c: expit(x),
    "relu": lambda x, c: anp.where(x > 0, x, 0.0),
    "tanh": lambda x, c: anp.tanh(x),
    "clipped_relu": lambda x, c: anp.where((x > 0) & (x < c), x, 0.0) + c * (x >= c),
    "elu": lambda x, c: anp.where(x > 0, x, c * (anp.exp(anp.where(x > 0, 0.0, x)) - 1)),
    "identity": lambda x, c: x * 1.0,
    "swish": lambda x, c: x * expit(c * x),
}


def softmax(x: Array, axes: int | tuple[int, ...], log: bool) -> Array:
    if 0 in x.shape:  # of which there is no largest
        return x * 1.0
    difference = x - logsumexp(x, axis=axes, keepdims=True)
    return difference if log else anp.exp(difference)


# Normalizations


def moments(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the biased variance; the axes stay, with size 1. Of no values they are 0 and NaN, as torch has it."""
    if not math.prod(x.shape[axis] for axis in axes):
        mean = np.zeros([1 if axis in axes else size for axis, size in enumerate(x.shape)])
        return mean, mean + math.nan
    mean = x.mean(axes, keepdims=True)
    return mean, np.square(x - mean).mean(axes, keepdims=True)


def standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    apart = x - anp.mean(x, axis=axes, keepdims=True)
    return apart / anp.sqrt(anp.mean(apart * apart, axis=axes, keepdims=True) + epsilon)
