"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cudnnpy.reference import _arrays, _geometry
from cudnnpy.reference._numbers import scales
from cudnnpy.reference._options import LAYOUTS, one_of

Array: TypeAlias = NDArray[Any]
Float64: TypeAlias = NDArray[np.float64]

ALGORITHMS = ("fast", "accurate", "log")
MODES = ("channel", "instance")
RANKS = (2, 3, 4, 5)


@dataclass(frozen=True)
class Softmax:
    """The softmax exp(x) / sum(exp(x)) and its gradient, on NumPy arrays.

    A NaN or infinity makes all that is summed with it NaN. Where exp overflows in "fast", for x above 709 (88 on a GPU)
    and for infinity, the result is NaN, and 0 beside it. -infinity gives 0, or -infinity in "log"; all -infinity gives NaN.
    Any size may be 0; the result is then empty.

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

    algorithm: str = "accurate"
    mode: str = "channel"
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        """Check the options."""
        one_of("algorithm", self.algorithm, ALGORITHMS)
        one_of("mode", self.mode, MODES)
        one_of("layout", self.layout, tuple(LAYOUTS))

    def forward(
        self, x: Array, out: Array | None = None, alpha: float = 1.0, beta: float = 0.0, stream: object = None
    ) -> Array:
        """Return alpha * (softmax of x, or its logarithm) + beta * out, of x's shape and dtype.

        x is float16, bfloat16, float32 or float64 and has 2 to 5 axes. out may be x itself (in place). Computed in
        float64 and rounded once. With beta 0, out is not read. stream is ignored.

        Raises TypeError for a wrong type or dtype, ValueError for a wrong shape, or an out that is read-only or
        overlaps x otherwise.
        """
        x, axes = self._checked("x", x)
        alpha, beta = scales(alpha, beta, out=out)
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
        dy: Array,
        y: Array,
        out: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: object = None,
    ) -> Array:
        """Return alpha * (gradient in x) + beta * out, for the gradient dy of forward's result y.

        The gradient is y * (dy - sum(dy * y)), for "log" dy - exp(y) * sum(dy), the sums as in forward. out may be dy
        itself (in place). The rest is as for `forward`.
        """
        dy, axes = self._checked("dy", dy)
        y = _arrays.check_like("y", y, "dy", dy)
        alpha, beta = scales(alpha, beta, out=out)
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
