"""Options, methods and documentation of InstanceNormalization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_layout
from cudnnpy._options.normalization import check_epsilon, run_backward
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Layout, Stream


@with_suggestions
@dataclass(frozen=True)
class InstanceNormalizationBase(Operation):
    """Instance normalization, of each channel of each n over its spatial axes, and its gradients.

    Parameters
    ----------
    epsilon : float
        Added to the variance; 0 or more.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x has 3 to 5 axes; scale and bias are (C,), the statistics (N, C).
    x is float16, bfloat16, float32 or float64. scale and bias are packed, of x's dtype, or of float32 if x has 16 bits; a
    scale of None is 1, a bias of None 0. Statistics are float32, or float64 if x is float64. Sizes may be 0.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    References
    ----------
    Ulyanov, Vedaldi, Lempitsky: Instance Normalization, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.random.default_rng(0).random((2, 4, 5, 5), np.float32)
    >>> y = reference.InstanceNormalization().forward_inference(x)
    >>> bool(abs(y.mean(axis=(2, 3))).max() < 1e-5)
    True
    """

    epsilon: float = 1e-5
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {"epsilon": check_epsilon(self.epsilon)}

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Compute y = scale * (x - mean) * inverse_variance + bias, and the statistics (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        scale, bias : array, optional
            (C,).
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        mean, inverse_variance : array
            (N, C); inverse_variance is 1 / sqrt(variance + epsilon). For no positions they are 0 and NaN.
        """
        name, names = (
            "InstanceNormalization.forward_training",
            ("x", "scale", "bias", "out", "mean", "inverse_variance"),
        )
        return self._run(name, self, type(self)._forward, names, (x, scale, bias), (out, None, None), stream, True)

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x, scale, bias, out, stream
            As for `forward_training`.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        name, names = "InstanceNormalization.forward_inference", ("x", "scale", "bias", "out")
        return self._run(name, self, type(self)._forward, names, (x, scale, bias), (out,), stream, False)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        scale: Array | None,
        mean: Array,
        inverse_variance: Array,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        bias: bool | None = None,
    ) -> tuple[ArrayT, ArrayT | None, ArrayT | None]:
        """Compute the gradients with respect to x, scale and bias (cudnnBackendExecute).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, scale : array
            forward_training's; scale may be None.
        mean, inverse_variance : array
            The statistics that `forward_training` returned.
        out : array, optional
            dx, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        bias : bool, optional
            Whether dbias is computed; by default if there is a scale.

        Returns
        -------
        dx : array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        dscale : array or None
            Of scale's shape and dtype; None without a scale.
        dbias : array or None
            Of scale's dtype, or x's without a scale; None if it is not computed.
        """
        inputs = dy, x, scale, mean, inverse_variance
        return run_backward("InstanceNormalization.backward", self, inputs, out, stream, bias)
