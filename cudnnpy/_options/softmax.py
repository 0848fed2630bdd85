"""Options, methods and documentation of Softmax."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_layout, check_option
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Layout, SoftmaxAlgorithm, SoftmaxMode, Stream

SOFTMAX_ALGORITHMS: tuple[SoftmaxAlgorithm, ...] = get_args(SoftmaxAlgorithm)
SOFTMAX_MODES: tuple[SoftmaxMode, ...] = get_args(SoftmaxMode)


@with_suggestions
@dataclass(frozen=True)
class SoftmaxBase(Operation):
    """The softmax exp(x) / sum(exp(x)) or its logarithm, and its gradient, on arrays of 2 to 5 axes.

    Parameters
    ----------
    algorithm : {"accurate", "fast", "log"}
        "accurate" subtracts the maximum first, so that exp does not overflow; "fast" does not; "log" is the logarithm.
    mode : {"channel", "instance"}
        The elements that are summed: the channels, for each n and position; or channels and positions, for each n.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64; sizes may be 0. "fast" overflows for x above about 88 in float32 (709 in
    float64), where the result is NaN. A NaN makes all results of its sum NaN, and so does infinity, except that in "fast" the
    other results of the sum are 0. The result for -infinity is 0, or -infinity in "log"; it is NaN if all x of a sum are
    -infinity.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.zeros((1, 4), np.float32)
    >>> reference.Softmax().forward(x).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    algorithm: SoftmaxAlgorithm = "accurate"
    mode: SoftmaxMode = "channel"
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_option("algorithm", self.algorithm, SOFTMAX_ALGORITHMS)
        check_option("mode", self.mode, SOFTMAX_MODES)
        check_layout(self.layout)
        return {}

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * softmax(x) + beta * out (cudnnSoftmaxForward).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of x's shape and dtype; it may be x itself (in place).
        alpha, beta : float
            Factors of the softmax and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._forward, ("x", "out")
        return self._run("Softmax.forward", self, implementation, names, (x,), (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        y: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnSoftmaxBackward).

        dx is y * (dy - sum(dy * y)), or dy - exp(y) * sum(dy) for "log", with the sums of forward.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        y : array
            forward's result, of dy's shape and dtype.
        out : array, optional
            The result, of dy's shape and dtype; it may be dy itself (in place).
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "y", "out")
        return self._run("Softmax.backward", self, implementation, names, (dy, y), (out,), stream, alpha, beta)
