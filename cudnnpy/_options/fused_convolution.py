"""Methods and documentation of FusedConvolution."""

from __future__ import annotations

from cudnnpy._options.base import Operation
from cudnnpy._options.convolution import FusedOptions
from cudnnpy.typing import Array, ArrayT, FusedActivation, Shape, Stream

_NAMES = ("x", "w", "scale", "bias", "residual", "out")


class FusedConvolutionBase(FusedOptions, Operation):
    """activation(scale * convolution(x, w) + bias + residual) in one launch.

    On a GPU, engines that fuse take float16 and bfloat16, and float32 as tf32, channels last in memory. Tensors in another
    memory format are copied before and after.

    Parameters
    ----------
    padding, stride, dilation, groups, mode, layout, prefer, workspace_limit, deterministic, tf32, tune_seconds
        As for `Convolution`.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays, streams and errors are as for `Convolution`. A batch of 0 gives an empty result; sums over 0 channels in x and w
    are 0. `cudnnpy.reference` computes in float64 and rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((8, 32, 16, 16), np.float16), np.ones((64, 32, 3, 3), np.float16)
    >>> fused = reference.FusedConvolution(padding=1)
    >>> fused.forward(x, w, bias=np.full(64, -1, np.float16), activation="relu").shape
    (8, 64, 16, 16)
    """

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        return self._output_shape(x_shape, w_shape)

    def forward(
        self,
        x: ArrayT,
        w: Array,
        scale: Array | None = None,
        bias: Array | None = None,
        residual: Array | None = None,
        activation: FusedActivation | None = "relu",
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute activation(scale * convolution(x, w) + bias + residual) (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (N, C, spatial...), in float16, bfloat16 or float32.
        w : array
            (K, C / groups, spatial...), of x's dtype.
        scale, bias : array, optional
            (K,), packed, of x's dtype or float32.
        residual : array, optional
            Of the result's shape and x's dtype.
        activation : {"relu", "sigmoid", "tanh", "elu", "swish"} or None
            The activation.
        out : array, optional
            The result, (N, K, spatial...), of x's dtype.
        stream : stream, optional
            Where the work is queued; by default the library's current stream.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory format.
        """
        name, inputs = "FusedConvolution.forward", (x, w, scale, bias, residual)
        return self._run(name, self, type(self)._forward, _NAMES, inputs, (out,), stream, activation)
