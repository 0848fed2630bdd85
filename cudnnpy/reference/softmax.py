"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy._options.arguments import check_scales
from cudnnpy._options.operations import SoftmaxOptions
from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._arrays import ScalarT

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

RANKS = (2, 3, 4, 5)


@dataclass(frozen=True)
class Softmax(SoftmaxOptions):
    """The softmax exp(x) / sum(exp(x)) and its gradient, on NumPy arrays.

    A NaN makes all results of its sum NaN, and so does infinity, except in "fast". There, exp overflows for x above 709 (88
    on a GPU) and for infinity, where the result is NaN; it is 0 for the others of the sum. The result for -infinity is 0, or
    -infinity in "log"; it is NaN if all x of a sum are -infinity. Any size may be 0; the result is then empty.

    An instance is immutable and may be shared by threads. A wrong option raises ValueError or TypeError.

    Parameters
    ----------
    algorithm : str
        "accurate" (the maximum is subtracted first, so that no exp overflows), "fast" (it is not) or "log" (the logarithm
        of the softmax).
    mode : str
        What is summed over: "channel" (the channels, for each n and position) or "instance" (channels and positions, for
        each n).
    layout : str
        "NCHW": x is (N, C, spatial...); "NHWC": x is (N, spatial..., C); for 0 to 3 spatial dimensions. NCW, NWC, NCDHW and
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
        """Return alpha * softmax(x) + beta * out, computed in float64 and rounded once.

        Parameters
        ----------
        x : numpy.ndarray
            float16, bfloat16, float32 or float64, of 2 to 5 axes.
        out : numpy.ndarray, optional
            The result, of x's shape and dtype; it may be x itself (in place).
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
        x, axes = self._checked("x", x)
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, x.shape, (x.dtype.name,), in_place=("x",), x=x)
        values = x.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.algorithm != "fast":
                values -= values.max(axes, keepdims=True, initial=-np.inf)
            powers = np.exp(values)
            total = powers.sum(axes, keepdims=True)
            values = values - np.log(total) if self.algorithm == "log" else powers / total
            return _arrays.store_scaled(values, x.dtype, out, alpha, beta)

    def backward(
        self,
        dy: NDArray[ScalarT],
        y: NDArray[ScalarT],
        out: NDArray[ScalarT] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> NDArray[ScalarT]:
        """Return alpha * dx + beta * out, with the gradient dx with respect to x.

        The gradient is y * (dy - sum(dy * y)), for "log" dy - exp(y) * sum(dy), with the sums of forward.

        Parameters
        ----------
        dy : numpy.ndarray
            The gradient with respect to forward's result y.
        y : numpy.ndarray
            forward's result, of dy's shape and dtype.
        out : numpy.ndarray, optional
            The result, of dy's shape and dtype; it may be dy itself (in place).
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
        dy, axes = self._checked("dy", dy)
        y = _arrays.check_like("y", y, "dy", dy)
        alpha, beta = check_scales(alpha, beta, out=out)
        if out is not None:
            _arrays.check_out(out, dy.shape, (dy.dtype.name,), in_place=("dy",), dy=dy, y=y)
        dy64, y64 = dy.astype(np.float64), y.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.algorithm == "log":
                values = dy64 - np.exp(y64) * dy64.sum(axes, keepdims=True)
            else:
                values = y64 * (dy64 - (dy64 * y64).sum(axes, keepdims=True))
            return _arrays.store_scaled(values, dy.dtype, out, alpha, beta)

    def _checked(self, name: str, array: Array) -> tuple[Array, tuple[int, ...]]:
        """Check an array; return it as a plain array, and the axes of the sums."""
        array = _arrays.check_tensor(name, array, empty="any")
        _geometry.check_rank(name, array.shape, self, RANKS)
        if self.mode == "instance":
            return array, tuple(range(1, array.ndim))
        return array, (array.ndim - 1 if self.layout.endswith("C") else 1,)
