"""Options, methods and documentation of Pooling."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_layout, check_option, check_per_axis, check_shape, expand_per_axis
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, CudnnPoolingMode, Layout, PerAxis, PoolingMode, Shape, Stream

POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
THEANO_POOLING: dict[str, CudnnPoolingMode] = {
    "average_inc_pad": "average_include_padding",
    "average_exc_pad": "average_exclude_padding",
}
Each = tuple[int, ...]


@with_suggestions
@dataclass(frozen=True)
class PoolingBase(Operation):
    """Pooling over 1, 2 or 3 spatial axes and its gradient.

    Parameters
    ----------
    mode : {"max", "max_deterministic", "average_include_padding", "average_exclude_padding"}
        The result of a window: its maximum; the sum divided by the size of the window; or the sum divided by the number of
        elements that are not padding. Theano's names "average_inc_pad" and "average_exc_pad" are aliases of the averages.
    window : int or tuple of ints
        An int, or one int for each spatial axis.
    padding : int or tuple of ints
        The padding on both sides, less than the window. It counts as 0, and as -infinity for a maximum.
    stride : int or tuple of ints, optional
        By default the window.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64. A batch of 0 gives an empty result; other sizes are 1 or more. The
    maximum of a window with a NaN is NaN; for all-`-inf` windows, cuDNN returns the lowest finite value.
    On a GPU, large averages over whole images are sums in any order, whose last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    >>> reference.Pooling("max", 2).forward(x).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    mode: PoolingMode = "max"
    window: PerAxis = 2
    _: KW_ONLY
    padding: PerAxis = 0
    stride: PerAxis | None = None
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        mode = check_option("mode", self.mode, POOLING_MODES)
        check_layout(self.layout)
        window, padding = check_per_axis("window", self.window, 1), check_per_axis("padding", self.padding, 0)
        stride = None if self.stride is None else check_per_axis("stride", self.stride, 1)
        ranks = {len(value) for value in (window, padding, stride) if isinstance(value, tuple)}
        _each(window, padding, stride, next(iter(ranks), 1))
        return {"mode": THEANO_POOLING.get(mode, mode), "window": window, "padding": padding, "stride": stride}

    def _each(self, rank: int) -> tuple[Each, Each, Each]:
        """Window, padding and stride of every spatial axis."""
        return _each(self.window, self.padding, self.stride, rank)

    def output_shape(self, x_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shape of x, both in the arrays' axis order.

        Each spatial size is floor((size + 2 * padding - window) / stride) + 1. Raises TypeError and ValueError for a shape
        that does not fit the options.
        """
        return self._output_shape(check_shape("x_shape", x_shape, low=0))

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * pooling(x) + beta * out (cudnnPoolingForward).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of shape `output_shape` and x's dtype.
        alpha, beta : float
            Factors of the pooling and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory format.
        """
        implementation, names = type(self)._forward, ("x", "out")
        return self._run("Pooling.forward", self, implementation, names, (x,), (out,), stream, alpha, beta)

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
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnPoolingBackward).

        Each element of dy goes to the maximum of its window, or is divided among the elements that were averaged. Of equal
        maxima, or of NaNs, it goes to the first in `cudnnpy.reference`.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, y : array
            forward's input and result, of dy's dtype.
        out : array, optional
            The result, of x's shape and dtype.
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, of x's shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "x", "y", "out")
        return self._run("Pooling.backward", self, implementation, names, (dy, x, y), (out,), stream, alpha, beta)


def _each(window: Any, padding: Any, stride: Any, rank: int) -> tuple[Each, Each, Each]:
    """Window, padding and stride of every spatial axis. Raises ValueError for padding of the window's size or more."""
    window, padding = expand_per_axis("window", window, rank), expand_per_axis("padding", padding, rank)
    for pad, size in zip(padding, window, strict=True):
        if pad >= size:
            raise ValueError(f"padding must be less than the window, {window}; got {padding}")
    return window, padding, window if stride is None else expand_per_axis("stride", stride, rank)
