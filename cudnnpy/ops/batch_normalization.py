"""Batch normalization and its gradients.

cudnnBatchNormalizationForwardTraining, -ForwardInference and -Backward, or graphs: see batch_normalization_executables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnnpy._core.frozen import Frozen
from cudnnpy._core.validation import check_layout, check_number, check_option
from cudnnpy._runtime import dispatch
from cudnnpy.ops import batch_normalization_executables as executables
from cudnnpy.ops.parameters import gradients, wants_bias

MODES = ("spatial", "per_activation")


@dataclass(frozen=True)
class BatchNormalization(Frozen):
    """Batch normalization and its gradient, on device arrays of 2 to 5 axes.

    mode: "spatial" (a mean for each channel) or "per_activation" (one for each element of x.shape[1:]). epsilon: added
    to variances; 0 or more. layout: "NCHW", or "NHWC" for arrays whose axis order is (N, spatial..., C).

    x is float16, bfloat16, float32 or float64. Parameters (scale, bias, means, variances) are packed, of shape (C,), or
    x.shape[1:] for per_activation, and of x's type, or float32 beside 16 bits, which is copied less; a scale of None is
    1, a bias of None 0. What is saved is float32 (float64 for float64). Sizes may be 0: then running statistics stay as
    they are, and the gradients of parameters are 0. Raises TypeError and ValueError for options and arrays that do not
    fit, NotSupportedError for what cuDNN lacks. Ioffe, Szegedy: Batch Normalization, 2015.
    """

    mode: str = "spatial"
    epsilon: float = 1e-5
    layout: str = "NCHW"

    def _checked(self) -> dict[str, Any]:
        check_option("mode", self.mode, MODES)
        check_layout(self.layout)
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(
        self,
        x: Any,
        scale: Any = None,
        bias: Any = None,
        running_mean: Any = None,
        running_variance: Any = None,
        average_factor: float = 0.1,
        activation: str | None = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """(y, saved_mean, saved_inverse_variance) with the mean and variance of the batch.

        y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out. saved_inverse_variance is
        1 / sqrt(biased variance + epsilon). running_mean and running_variance, both or neither, are updated in place:
        (1 - average_factor) * running + average_factor * the batch's, the variance unbiased. activation: None or "relu",
        fused (then alpha is 1 and beta 0). Of no elements the mean is 0 and the inverse variance NaN.
        """
        return dispatch.run(
            "BatchNormalization.forward_training",
            self,
            executables.training,
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
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> Any:
        """alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out."""
        name, names = "BatchNormalization.forward_inference", ("x", "scale", "bias", "mean", "variance", "out")
        inputs, prepare = (x, scale, bias, mean, variance), executables.inference
        return dispatch.run(name, self, prepare, names, inputs, (out,), stream, alpha, beta)

    def backward(
        self,
        dy: Any,
        x: Any,
        scale: Any = None,
        saved_mean: Any = None,
        saved_inverse_variance: Any = None,
        out: Any = None,
        out_scale: Any = None,
        out_bias: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        parameter_alpha: float = 1.0,
        parameter_beta: float = 0.0,
        stream: Any = None,
        bias: bool | None = None,
    ) -> Any:
        """(dx, dscale, dbias) for forward_training's x and the gradient dy in its result.

        dx = alpha * ... + beta * out; dscale and dbias = parameter_alpha * ... + parameter_beta * out_scale, out_bias.
        saved_mean and saved_inverse_variance are forward_training's, both or neither (then they are computed again).
        dscale and dbias have scale's dtype; dscale is None without a scale. bias: whether there is a dbias; None: if there
        is a scale. Without a scale dbias has out_bias's dtype, or x's.
        """
        there = scale is not None, wants_bias(bias, scale)
        names: tuple[str, ...] = (
            "dy",
            "x",
            "scale",
            "saved_mean",
            "saved_inverse_variance",
            "out",
            "out_scale",
            "out_bias",
        )
        outs: tuple[Any, ...] = out, out_scale, out_bias
        if there != (True, True):
            names, outs = _wanted_results(names, outs, there)
        found = dispatch.run(
            "BatchNormalization.backward",
            self,
            executables.backward,
            names,
            (dy, x, scale, saved_mean, saved_inverse_variance),
            outs,
            stream,
            alpha,
            beta,
            parameter_alpha,
            parameter_beta,
            there[1],
        )
        return gradients(found, *there)


def _wanted_results(
    names: tuple[str, ...], outs: tuple[Any, ...], there: tuple[bool, bool]
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names and outs of a gradient without those that are not computed. Raises ValueError for an out of these."""
    kept = []
    for name, out, wanted in zip(names[5:], outs, (True, *there), strict=True):
        if not wanted and out is not None:
            raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
        if wanted:
            kept.append((name, out))
    return (*names[:5], *(name for name, _ in kept)), tuple(out for _, out in kept)
