"""Local response normalization across channels, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._numbers import integer, real, scales
from cudnnpy.reference._options import LAYOUTS, one_of

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

LARGEST_SIZE, SMALLEST_BETA, SMALLEST_K = 16, 0.01, 1e-5  # cuDNN's limits
RANKS = (3, 4, 5)


@dataclass(frozen=True)
class LocalResponseNormalization:
    """y = x / (k + alpha / size * s) ** beta and its gradient, on NumPy arrays; s sums x * x over nearby channels.

    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.3;
    except that alpha is divided by size here.

    The result is NaN where s is NaN, at an infinity, and where a negative alpha makes the base negative; it is 0 beside an
    infinity.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    size : int
        The number of channels that s sums over, 1 to 16: for channel c those from c - (size - 1) // 2 to c + size // 2
        that exist.
    alpha : float
        Any number.
    beta : float
        At least 0.01.
    k : float
        At least 1e-5.
    layout : str
        "NCHW": x is (N, C, spatial...); "NHWC": x is (N, spatial..., C); for 1 to 3 spatial dimensions. NCW, NWC, NCDHW and
        NDHWC require one number of them.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        """Check the options."""
        self._set("size", integer("size", self.size, 1))
        if self.size > LARGEST_SIZE:
            raise ValueError(f"size must be an integer of 1 to {LARGEST_SIZE}; got {self.size}")
        for name, least in (("alpha", None), ("beta", SMALLEST_BETA), ("k", SMALLEST_K)):
            value = real(name, getattr(self, name))
            if not isfinite(value):
                raise ValueError(f"{name} must be a finite number; got {value}")
            if least is not None and value < least:
                raise ValueError(f"{name} must be a number of {least} or more; got {value}")
            self._set(name, value)
        one_of("layout", self.layout, tuple(LAYOUTS))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def forward(
        self, x: Array, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0, stream: object = None
    ) -> Array:
        """Return alpha * (x normalized) + beta * out, of x's shape and dtype.

        x is float16, bfloat16, float32 or float64 and has 3 to 5 axes, which may have size 0. Computed in float64 and
        rounded once. With beta 0, out is not read. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps x.
        """
        self._check("x", x)
        alpha, beta = scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        values = np.asarray(_arrays.channels_first(x, self.layout), np.float64)
        with np.errstate(all="ignore"):
            values = values * self._base(values) ** -self.beta
            return _arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: Array,
        x: Array,
        y: Array,
        out: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> Array:
        """Return alpha * (gradient in x) + beta * out, for the gradient dy of forward's result y.

        y is checked for shape and dtype, and computed again from x. The rest is as for `forward`.
        """
        self._check("dy", dy)
        _arrays.check_like("x", x, "dy", dy)
        _arrays.check_like("y", y, "dy", dy)
        alpha, beta = scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, dy.shape, (dy.dtype.name,), dy=dy, x=x, y=y)
        dy64 = np.asarray(_arrays.channels_first(dy, self.layout), np.float64)
        x64 = np.asarray(_arrays.channels_first(x, self.layout), np.float64)
        with np.errstate(all="ignore"):
            base = self._base(x64)
            # x of channel i occurs in the sums of the channels from i - size // 2 to i + (size - 1) // 2.
            through = _nearby(dy64 * x64 * base ** -(self.beta + 1), self.size // 2, (self.size - 1) // 2)
            values = dy64 * base**-self.beta - 2 * self.alpha * self.beta / self.size * x64 * through
            return _arrays.store_scaled(_arrays.in_layout(values, self.layout), dy.dtype, out, alpha, beta)

    def _check(self, name: str, array: Array) -> None:
        _arrays.check_tensor(name, array, empty="any")
        _geometry.check_rank(name, array.shape, self, RANKS)

    def _base(self, x: Float64) -> Float64:
        """Return k + alpha / size * s, the base of the power."""
        return self.k + self.alpha / self.size * _nearby(x * x, (self.size - 1) // 2, self.size // 2)


def _nearby(values: Float64, before: int, after: int) -> Float64:
    """For each channel c on axis 1, the sum over the channels from c - before to c + after that exist."""
    total = np.zeros_like(values)
    channels = values.shape[1]
    for offset in range(max(-before, 1 - channels), min(after, channels - 1) + 1):
        start, stop = max(0, -offset), min(channels, channels - offset)
        total[:, start:stop] += values[:, start + offset : stop + offset]
    return total
