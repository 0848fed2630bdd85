"""Options, methods and documentation of BatchNormalization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from cudnnpy._options.arguments import should_compute_bias
from cudnnpy._options.base import Operation
from cudnnpy._options.checks import check_layout, check_option
from cudnnpy._options.normalization import check_epsilon, unpack_gradients
from cudnnpy._options.suggestions import with_suggestions
from cudnnpy.typing import Array, ArrayT, Layout, NormalizationActivation, NormalizationMode, Stream

NORMALIZATION_MODES: tuple[NormalizationMode, ...] = get_args(NormalizationMode)


@with_suggestions
@dataclass(frozen=True)
class BatchNormalizationBase(Operation):
    """Batch normalization and its gradients, on arrays of 2 to 5 axes.

    Parameters
    ----------
    mode : {"spatial", "per_activation"}
        "spatial" has statistics for each channel, over the batch and all positions; "per_activation" has statistics for each
        element of x.shape[1:], over the batch.
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
    x is float16, bfloat16, float32 or float64. Parameters (scale, bias, means, variances) are packed, of shape (C,), or
    x.shape[1:] for "per_activation", and of x's dtype, or of float32 if x has 16 bits, which saves copies; a scale of None is
    1, a bias of None 0. Saved statistics are float32, or float64 if x is float64. Sizes may be 0: then running statistics
    stay as they are, and gradients of parameters are 0.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    References
    ----------
    Ioffe, Szegedy: Batch Normalization, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.array([[[[1.0]]], [[[3.0]]]], np.float32)  # two images of one channel
    >>> scale, bias = np.ones(1, np.float32), np.zeros(1, np.float32)
    >>> y, mean, inverse = reference.BatchNormalization().forward_training(x, scale, bias)
    >>> y.round(3).ravel().tolist(), mean.tolist()
    ([-1.0, 1.0], [2.0])
    """

    mode: NormalizationMode = "spatial"
    epsilon: float = 1e-5
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_option("mode", self.mode, NORMALIZATION_MODES)
        check_layout(self.layout)
        return {"epsilon": check_epsilon(self.epsilon)}

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        running_mean: Array | None = None,
        running_variance: Array | None = None,
        average_factor: float = 0.1,
        activation: NormalizationActivation | None = None,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Compute y by the mean and variance of the batch (cudnnBackendExecute or cudnnBatchNormalizationForwardTraining).

        y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out. If a call raises, nothing is written.

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        scale, bias : array, optional
            Parameters.
        running_mean, running_variance : array, optional
            Both or neither; they are updated in place: (1 - average_factor) * running + average_factor * the batch's, with
            the unbiased variance (the biased one of a single value). An empty x leaves them unchanged.
        average_factor : float
            A finite number.
        activation : {"relu"}, optional
            Fused; then alpha is 1 and beta 0.
        out : array, optional
            y, of x's shape and dtype.
        alpha, beta : float
            Factors of the normalization and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        y : array
            `out`, or a new array of x's library, shape, dtype and memory format.
        saved_mean, saved_inverse_variance : array
            The statistics for `backward`, of the parameters' shape; the latter is 1 / sqrt(biased variance + epsilon). For no
            elements they are 0 and NaN.
        """
        return self._run(
            "BatchNormalization.forward_training",
            self,
            type(self)._forward_training,
            ("x", "scale", "bias", "running_mean", "running_variance", "out", "saved_mean", "saved_inverse_variance"),
            (x, scale, bias, running_mean, running_variance),
            (out, None, None),
            stream,
            average_factor,
            activation,
            alpha,
            beta,
        )

    def forward_inference(
        self,
        x: ArrayT,
        scale: Array | None,
        bias: Array | None,
        mean: Array,
        variance: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out.

        C functions: cudnnBackendExecute or cudnnBatchNormalizationForwardInference.

        Parameters
        ----------
        x : array
            As for `forward_training`.
        scale, bias : array or None
            Parameters.
        mean, variance : array
            Parameters, such as the running ones.
        out, alpha, beta, stream
            As for `forward_training`.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        name, implementation = "BatchNormalization.forward_inference", type(self)._forward_inference
        names, inputs = ("x", "scale", "bias", "mean", "variance", "out"), (x, scale, bias, mean, variance)
        return self._run(name, self, implementation, names, inputs, (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        scale: Array | None = None,
        saved_mean: Array | None = None,
        saved_inverse_variance: Array | None = None,
        out: ArrayT | None = None,
        out_scale: Array | None = None,
        out_bias: Array | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        parameter_alpha: float = 1.0,
        parameter_beta: float = 0.0,
        stream: Stream | None = None,
        bias: bool | None = None,
    ) -> tuple[ArrayT, ArrayT | None, ArrayT | None]:
        """Compute the gradients with respect to x, scale and bias of `forward_training` without an activation.

        C functions: cudnnBackendExecute or cudnnBatchNormalizationBackward.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, scale : array
            forward_training's; scale may be None.
        saved_mean, saved_inverse_variance : array, optional
            forward_training's, both or neither; without them they are computed again.
        out, out_scale, out_bias : array, optional
            The results.
        alpha, beta : float
            dx = alpha * gradient + beta * out.
        parameter_alpha, parameter_beta : float
            dscale = parameter_alpha * gradient + parameter_beta * out_scale, and dbias likewise.
        stream : stream, optional
            Where the work is queued.
        bias : bool, optional
            Whether dbias is computed; by default if there is a scale.

        Returns
        -------
        dx : array
            `out`, or a new array of dy's library, shape, dtype and memory format.
        dscale : array or None
            Of scale's dtype; None without a scale.
        dbias : array or None
            Of scale's dtype, or without a scale of out_bias's or x's; None if it is not computed.
        """
        computed = scale is not None, should_compute_bias(bias, scale)
        results = {"out": out, "out_scale": out_scale, "out_bias": out_bias}
        if computed != (True, True):
            results = _computed_results(results, computed)
        found = self._run(
            "BatchNormalization.backward",
            self,
            type(self)._backward,
            ("dy", "x", "scale", "saved_mean", "saved_inverse_variance", *results),
            (dy, x, scale, saved_mean, saved_inverse_variance),
            tuple(results.values()),
            stream,
            alpha,
            beta,
            parameter_alpha,
            parameter_beta,
            computed[1],
        )
        return unpack_gradients(found, *computed)


def _computed_results(results: dict[str, Any], computed: tuple[bool, bool]) -> dict[str, Any]:
    """Return the results of a gradient that are computed; ValueError for an array for another one."""
    names = ["out"]
    for name, is_computed in zip(("out_scale", "out_bias"), computed, strict=True):
        if is_computed:
            names.append(name)
        elif results[name] is not None:
            raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
    return {name: results[name] for name in names}
