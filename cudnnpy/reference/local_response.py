"""Local response normalization across channels, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_scales
from cudnnpy._options.operations import LocalResponseOptions
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import ScalarT

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

RANKS = (3, 4, 5)


@dataclass(frozen=True)
class LocalResponseNormalization(LocalResponseOptions):
    """y = x / (k + alpha / size * s) ** beta and its gradient, on NumPy arrays; s sums x * x over nearby channels.

    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.3;
    except that alpha is divided by size here.

    The result is NaN where s is NaN, where x is infinite, and where a negative alpha makes the base negative. It is 0 where
    only other elements of the sum are infinite.

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

    def forward(
        self,
        x: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * (x normalized) + beta * out, computed in float64 and rounded once.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64, of 3 to 5 axes.
        out : numpy.ndarray, optional
            The result, of x's shape and dtype.
        alpha, beta : float
            Factors; out is not read if beta is 0.
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
        self._check("x", x)
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), x=x)
        values = np.asarray(_arrays.channels_first(x, self.layout), np.float64)
        with np.errstate(all="ignore"):
            values = values * self._base(values) ** -self.beta
            return _arrays.store_scaled(_arrays.in_layout(values, self.layout), x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: NDArray[ScalarT],
        x: NDArray[ScalarT],
        y: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * dx + beta * out, with the gradient dx with respect to x.

        y is checked for shape and dtype, and computed again from x.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to forward's result y.
        x, y : numpy.ndarray
            forward's input and result, of dy's shape and dtype.
        out : numpy.ndarray, optional
            The result, of dy's shape and dtype.
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array of dy's shape and dtype.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, or out is read-only or overlaps an input.
        """
        self._check("dy", dy)
        _arrays.check_like("x", x, "dy", dy)
        _arrays.check_like("y", y, "dy", dy)
        alpha, beta = check_scales(alpha, beta, out=out)
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
