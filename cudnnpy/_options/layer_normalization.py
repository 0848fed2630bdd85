"""Options, methods and documentation of LayerNormalization and RMSNormalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

from cudnnpy._options.arguments import check_normalized_shape
from cudnnpy._options.base import Operation
from cudnnpy._options.normalization import GRADIENTS, check_epsilon, run_backward, unpack_gradients
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Shape, Stream


@with_suggestions
@dataclass(frozen=True)
class LayerNormalizationBase(Operation):
    """Layer normalization over the last axes of x, and its gradients, on arrays of 1 to 5 axes.

    scale and bias have the shape of the normalized axes; without both, `normalized_shape` has their sizes.

    Parameters
    ----------
    epsilon : float
        Added to the variance; 0 or more.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x is float16, bfloat16, float32 or float64. scale and bias are packed, of x's dtype, or of float32 if x has 16 bits; a
    scale of None is 1, a bias of None 0. Statistics are float32, or float64 if x is float64. Sizes may be 0.
    On a GPU, for 4,096 or more rows whose length is not a multiple of 64, the last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    References
    ----------
    Ba, Kiros, Hinton: Layer Normalization, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.array([[1.0, 3.0]], np.float32)
    >>> reference.LayerNormalization().forward_inference(x, normalized_shape=2).round(3).tolist()
    [[-1.0, 1.0]]
    """

    epsilon: float = 1e-5

    def _canonical(self) -> dict[str, Any]:
        return {"epsilon": check_epsilon(self.epsilon)}

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Compute y = scale * (x - mean) * inverse_variance + bias, and the statistics (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale, bias : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale or a bias.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        mean, inverse_variance : array
            Of x's shape without the normalized axes; inverse_variance is 1 / sqrt(variance + epsilon). For no elements they
            are 0 and NaN.
        """
        shape = check_normalized_shape(normalized_shape)
        name, names = "LayerNormalization.forward_training", ("x", "scale", "bias", "out", "mean", "inverse_variance")
        return self._run(
            name, self, type(self)._forward, names, (x, scale, bias), (out, None, None), stream, True, *shape
        )

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without the statistics.

        Parameters
        ----------
        x, scale, bias, out, stream, normalized_shape
            As for `forward_training`.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        shape = check_normalized_shape(normalized_shape)
        name, names = "LayerNormalization.forward_inference", ("x", "scale", "bias", "out")
        return self._run(name, self, type(self)._forward, names, (x, scale, bias), (out,), stream, False, *shape)

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
            forward_training's; scale may be None, then the normalized axes are those that mean lacks.
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
        return run_backward("LayerNormalization.backward", self, inputs, out, stream, bias)


@with_suggestions
@dataclass(frozen=True)
class RMSNormalizationBase(Operation):
    """RMS normalization over the last axes of x, scale * x / sqrt(mean(x * x) + epsilon), and its gradients.

    scale has the shape of the normalized axes; without one, `normalized_shape` has their sizes.

    Parameters
    ----------
    epsilon : float
        Added to the mean square; 0 or more.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    x is float16, bfloat16, float32 or float64 and has 1 to 5 axes. scale is packed, of x's dtype, or of float32 if x has 16
    bits; None is 1. inverse_rms is float32, or float64 if x is float64. Sizes may be 0.
    On a GPU, for 4,096 or more rows whose length is not a multiple of 64, the last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    References
    ----------
    Zhang, Sennrich: Root Mean Square Layer Normalization, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.array([[3.0, -3.0]], np.float32)
    >>> reference.RMSNormalization().forward_inference(x, normalized_shape=2).round(3).tolist()
    [[1.0, -1.0]]
    """

    epsilon: float = 1e-5

    def _canonical(self) -> dict[str, Any]:
        return {"epsilon": check_epsilon(self.epsilon)}

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Compute y = scale * x * inverse_rms, and inverse_rms (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (..., normalized axes...).
        scale : array, optional
            Of the shape of the normalized axes.
        out : array, optional
            y, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.
        normalized_shape : int or tuple of ints, optional
            The sizes of the normalized axes; may be None if there is a scale.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        inverse_rms : array
            1 / sqrt(mean(x * x) + epsilon), of x's shape without the normalized axes; NaN for no elements.
        """
        shape = check_normalized_shape(normalized_shape)
        name, names = "RMSNormalization.forward_training", ("x", "scale", "out", "inverse_rms")
        return self._run(name, self, type(self)._forward, names, (x, scale), (out, None), stream, True, *shape)

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None = None,
        out: ArrayT | None = None,
        stream: Stream | None = None,
        normalized_shape: SupportsIndex | Shape | None = None,
    ) -> ArrayT:
        """Compute y as `forward_training` does, without inverse_rms.

        Parameters
        ----------
        x, scale, out, stream, normalized_shape
            As for `forward_training`.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        shape = check_normalized_shape(normalized_shape)
        name, names = "RMSNormalization.forward_inference", ("x", "scale", "out")
        return self._run(name, self, type(self)._forward, names, (x, scale), (out,), stream, False, *shape)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        scale: Array | None,
        inverse_rms: Array,
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> tuple[ArrayT, ArrayT | None]:
        """Compute the gradients with respect to x and scale (cudnnBackendExecute).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, scale : array
            forward_training's; scale may be None, then the normalized axes are those that inverse_rms lacks.
        inverse_rms : array
            The statistics that `forward_training` returned.
        out : array, optional
            dx, of x's shape and dtype.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        dx : array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        dscale : array or None
            Of scale's shape and dtype; None without a scale.
        """
        name, implementation = "RMSNormalization.backward", type(self)._backward
        names = "dy", "x", "scale", "inverse_rms", "out", *GRADIENTS[scale is not None, False]
        inputs, outs = (dy, x, scale, inverse_rms), (out, None)[: len(names) - 4]
        results = self._run(name, self, implementation, names, inputs, outs, stream)
        return unpack_gradients(results, scale is not None)
