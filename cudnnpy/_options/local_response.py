"""Options, methods and documentation of LocalResponseNormalization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_integer, check_layout, check_number
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Layout, Stream

# The limits of cudnnSetLRNDescriptor.
LRN_SIZES = 1, 16
LRN_SMALLEST_BETA, LRN_SMALLEST_K = 0.01, 1e-5


@with_suggestions
@dataclass(frozen=True)
class LocalResponseNormalizationBase(Operation):
    """y = x / (k + alpha / size * s) ** beta and its gradient, where s is the sum of x * x over nearby channels.

    Parameters
    ----------
    size : int
        The number of channels that s sums over, 1 to 16: from c - (size - 1) // 2 to c + size // 2 for channel c.
    alpha, beta, k : float
        Finite numbers; beta is 0.01 or more, k is 1e-5 or more.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64 and have 3 to 5 axes; sizes may be 0.
    `cudnnpy.reference` gives NaN where s is NaN, where x is infinite, and where a negative alpha makes the base negative; and
    0 where only other elements of the sum are infinite.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    References
    ----------
    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.3;
    except that alpha is divided by size here.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.ones((1, 8, 4, 4), np.float32)
    >>> reference.LocalResponseNormalization(size=5).forward(x).shape
    (1, 8, 4, 4)
    """

    size: int = 5
    _: KW_ONLY
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {
            "size": check_integer("size", self.size, *LRN_SIZES),
            "alpha": check_number("alpha", self.alpha, finite=True),
            "beta": check_number("beta", self.beta, LRN_SMALLEST_BETA, finite=True),
            "k": check_number("k", self.k, LRN_SMALLEST_K, finite=True),
        }

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * y + beta * out (cudnnLRNCrossChannelForward).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of x's shape and dtype.
        alpha, beta : float
            Factors of y and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        name, implementation, names = "LocalResponseNormalization.forward", type(self)._forward, ("x", "out")
        return self._run(name, self, implementation, names, (x,), (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        y: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnLRNCrossChannelBackward).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, y : array
            forward's input and result, of dy's shape and dtype.
        out : array, optional
            The result, of dy's shape and dtype.
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        """
        name, implementation, names = (
            "LocalResponseNormalization.backward",
            type(self)._backward,
            ("dy", "x", "y", "out"),
        )
        return self._run(name, self, implementation, names, (dy, x, y), (out,), stream, alpha, beta)
