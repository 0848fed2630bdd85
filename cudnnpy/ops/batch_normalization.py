"""Batch normalization: graphs for large tensors, else cudnnBatchNormalizationForwardTraining, -ForwardInference, -Backward.

On an H200 these functions take 1.0 of PyTorch's time channels first, and 35 to 70 times it channels last; the graph's
normalization nodes 0.3 to 1.05 times in both (docs/benchmarks). CUDNN_BATCHNORM_SPATIAL_PERSISTENT would be faster still
channels first, but is documented to overflow for some inputs: it is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_double
from dataclasses import dataclass
from typing import Any

from cudnnpy import raw
from cudnnpy._core.frozen import Frozen
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, in_layout, packed, packed_strides
from cudnnpy._core.validation import check_layout, check_number, check_option
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, Step, arranged, copy, described, scales
from cudnnpy._runtime.operands import is_large, logical, logical_like, logical_result, no_overlaps, packed_like, result
from cudnnpy.descriptors import ActivationDescriptor, TensorDescriptor
from cudnnpy.ops.batch_normalization_graphs import RUNNING, SAVED, backward_graph, inference_graph, training_graph
from cudnnpy.ops.parameters import (
    GRADIENTS,
    NAN,
    NUMBERS,
    both_or_neither,
    check_channels,
    fills,
    gradients,
    parameter_dtypes,
    scale_and_bias,
    slots,
    statistics_dtype,
    supplied,
    wants_bias,
)

MODES = ("spatial", "per_activation")
_RANKS = range(2, 6)


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
            BatchNormalization._training,
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
        inputs, prepare = (x, scale, bias, mean, variance), BatchNormalization._inference
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
            names, outs = _those_asked_for(names, outs, there)
        found = dispatch.run(
            "BatchNormalization.backward",
            self,
            BatchNormalization._backward,
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

    # Set-up

    @property
    def _kind(self) -> int:
        return int(raw.CUDNN_BATCHNORM_SPATIAL if self.mode == "spatial" else raw.CUDNN_BATCHNORM_PER_ACTIVATION)

    def _turned(self, x: TensorSpec) -> bool:
        return self.layout.endswith("C") and len(x.shape) > 2

    def _given(self, call: Call, name: str) -> TensorSpec:
        """x or dy, with its axes as (N, C, spatial...)."""
        ranks = range(1, 6) if call.specs[name].shape == (0,) else _RANKS  # which PyTorch takes, of no channels
        return logical(call, name, self.layout, ranks, empty=True)

    def _shape(self, x: TensorSpec) -> tuple[int, ...]:
        """The parameters' shape in the arrays' own axis order, for x in logical order."""
        if len(x.shape) == 1:
            return (0,)
        if self.mode == "spatial":
            return (x.shape[1],)
        return (*x.shape[2:], x.shape[1]) if self._turned(x) else x.shape[1:]

    def _parameters(self, call: Call, x: TensorSpec, *names: str) -> dict[str, TensorSpec]:
        """Parameters of a call by name; scale and bias where they are given."""
        found = scale_and_bias(call, x, self._shape(x), [name for name in names if name in NUMBERS])
        if self.mode == "spatial" or len(x.shape) == 1:
            check_channels(call, self._shape(x)[0])
        others = [name for name in names if name not in NUMBERS]
        return found | {name: packed_like(call, name, self._shape(x), *parameter_dtypes(x)) for name in others}

    def _saved(self, call: Call, x: TensorSpec) -> dict[str, TensorSpec]:
        """What training saved, by name, if it is given."""
        if not both_or_neither(call, *SAVED):
            return {}
        return {name: packed_like(call, name, self._shape(x), statistics_dtype(x)) for name in SAVED}

    def _wanted(self, x: TensorSpec, operands: Sequence[Operand], by_function: bool) -> list[TensorSpec]:
        """The operands as they are launched: parameters packed and of the statistics' type."""
        return [
            (self._known(operand.spec) if by_function else operand.spec)
            if operand.name in ("dy", "x", "out")
            else packed(operand.spec, statistics_dtype(x))
            for operand in operands
        ]

    def _flat(self, x: TensorSpec) -> TensorSpec:
        """A parameter as one row."""
        return TensorSpec((math.prod(self._shape(x)),), statistics_dtype(x), (1,))

    def _descriptor(self, x: TensorSpec) -> TensorDescriptor:
        rank = max(len(x.shape), 4)
        if self.mode == "spatial":
            return TensorDescriptor((1, x.shape[1], *(1,) * (rank - 2)), statistics_dtype(x))
        shape = (1, *x.shape[1:])
        return described(TensorSpec(shape, statistics_dtype(x), packed_strides(shape)))

    def _seen(self, x: TensorSpec, parameter: TensorSpec) -> TensorSpec:
        """A parameter with its axes as (1, C, spatial...), for per_activation; C takes these packed alone."""
        if self.mode == "spatial":
            return parameter
        shape = (1, *x.shape[1:])
        strides = channels_last_strides(shape) if self._turned(x) else packed_strides(shape)
        return parameter._replace(shape=shape, strides=strides)

    def _by_graph(self, *tensors: TensorSpec) -> bool:
        """Whether graphs are worth it, and take these tensors: large, packed in one memory order, 16 bits or 32."""
        x = tensors[0]
        wide = all(t.strides == packed_strides(t.shape) for t in tensors)
        last = all(t.strides == channels_last_strides(t.shape) for t in tensors)
        large = is_large(x) and x.dtype != "float64" and x.shape[0] * math.prod(x.shape[2:]) > 1
        aligned = all(t.alignment >= 16 for t in tensors)
        return self.mode == "spatial" and large and aligned and len(x.shape) in (4, 5) and (wide or last)

    def _training(
        self, call: Call, factor: float, activation: str | None, alpha: float, beta: float
    ) -> tuple[Program, list[TensorSpec]]:
        x = self._given(call, "x")
        check_number("average_factor", factor, finite=True)
        a, b = scales(alpha, beta, x.dtype)
        if activation is not None:
            check_option("activation", activation, ("relu",))
            if (alpha, beta) != (1.0, 0.0):
                raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
        parameters = self._parameters(call, x, "scale", "bias")
        running = both_or_neither(call, "running_mean", "running_variance")
        if running:
            parameters |= self._parameters(call, x, "running_mean", "running_variance")
            for name in ("running_mean", "running_variance"):
                dispatch.check_writable(name, call.arrays[name])
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        share = TensorSpec(self._shape(x), statistics_dtype(x), packed_strides(self._shape(x)))
        results = [in_layout(y, self._turned(x)), share, share]
        operands = [Operand("x", x)]
        for name, spec in parameters.items():
            operands.append(
                Operand(name, self._seen(x, spec), name.startswith("running"), (), name.startswith("running"))
            )
        operands += [Operand("out", y, True)]
        operands += [Operand(n, self._seen(x, share), True) for n in ("saved_mean", "saved_inverse_variance")]
        no_overlaps(call, operands)
        title = "batch normalization"
        if 0 in x.shape:
            nothing = {"saved_mean": 0.0, "saved_inverse_variance": NAN}
            return Program(title, call.device, operands, fills(operands, nothing)), results
        both = RUNNING if running else ()
        names = ["x", "scale", "bias", *both, "out", "saved_mean", "saved_inverse_variance"]
        places = slots(call, names, operands, self._flat(x))
        if (alpha, beta) == (1.0, 0.0) and self._by_graph(x, y):
            planned = training_graph(call.device, self.epsilon, x, y, factor, activation, running)
            if planned is not None:
                renewed = [places[names.index(name)] for name in both]  # in place
                executable = supplied(planned, [*places, *renewed], len(operands))
                return arranged(title, call.device, operands, executable, self._wanted(x, operands, False)), results
        at = {name: place for place, name in enumerate(names)}
        single = running and math.prod(x.shape) == math.prod(self._shape(x))  # running-variance-of-one-value
        means = (At(at["running_mean"]), At(at["running_variance"])) if running and not single else (None, None)
        one, two = described(self._known(x)), described(self._known(y))
        function = Function(
            "cudnnBatchNormalizationForwardTraining", self._kind, a, b, one, At(0), two, At(at["out"]),
            self._descriptor(x), At(1), At(2), c_double(factor).value, *means, self.epsilon,
            At(at["saved_mean"]), At(at["saved_inverse_variance"]),
        )  # fmt: skip
        executable = supplied(function, places, len(operands))
        wanted = self._wanted(x, operands, by_function=True)
        program = arranged(title, call.device, operands, executable, wanted, beta)
        steps = [*program.steps]
        there = {operand.name: place for place, operand in enumerate(operands)}
        if activation == "relu":
            relu, d = ActivationDescriptor("relu", propagate_nan=True), described(y)
            zero = scales(0.0, 0.0, x.dtype)[0]
            steps.append(Step(Function("cudnnActivationForward", relu, a, d, At(0), zero, d, At(0)), (there["out"],)))
        if single:
            kept = scales(1 - factor, 0.0, share.dtype)[0]
            mean, variance = (parameters[name] for name in both)
            scaled = Function("cudnnScaleTensor", described(variance), At(0), kept)
            steps.append(Step(copy(share, mean, factor, 1 - factor), (there["saved_mean"], there["running_mean"])))
            steps.append(Step(scaled, (there["running_variance"],)))
        return Program(title, call.device, operands, steps, program.scratch), results

    def _inference(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = self._given(call, "x")
        a, b = scales(alpha, beta, x.dtype)
        parameters = self._parameters(call, x, "scale", "bias", "mean", "variance")
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = [Operand("x", x), *(Operand(name, self._seen(x, spec)) for name, spec in parameters.items())]
        operands.append(Operand("out", y, True))
        no_overlaps(call, operands)
        title, results = "batch normalization", [in_layout(y, self._turned(x))]
        if 0 in x.shape:
            return Program(title, call.device, operands, []), results
        places = slots(call, ("x", "scale", "bias", "mean", "variance", "out"), operands, self._flat(x))
        last = x.strides == channels_last_strides(x.shape)
        if (alpha, beta) == (1.0, 0.0) and self._by_graph(x, y) and last:
            planned = inference_graph(call.device, self.epsilon, x, y)
            if planned is not None:
                executable, wanted = supplied(planned, places, len(operands)), self._wanted(x, operands, False)
                return arranged(title, call.device, operands, executable, wanted), results
        function = Function(
            "cudnnBatchNormalizationForwardInference", self._kind, a, b, described(self._known(x)), At(0),
            described(self._known(y)), At(5), self._descriptor(x), At(1), At(2), At(3), At(4), self.epsilon,
        )  # fmt: skip
        executable, wanted = supplied(function, places, len(operands)), self._wanted(x, operands, True)
        return arranged(title, call.device, operands, executable, wanted, beta), results

    def _backward(
        self,
        call: Call,
        alpha: float,
        beta: float,
        parameter_alpha: float,
        parameter_beta: float,
        with_bias: bool,
    ) -> tuple[Program, list[TensorSpec]]:
        data, parameter = (alpha, beta), (parameter_alpha, parameter_beta)
        dy = self._given(call, "dy")
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        parameters = self._parameters(call, x, "scale")
        kinds = (parameters["scale"].dtype,) if parameters else (x.dtype, *parameter_dtypes(x))
        saved = self._saved(call, x)
        parameters |= saved
        dx = logical_result(call, "out", x.shape, dy, self.layout, data[1])
        a, b = scales(*data, x.dtype)
        c, d = scales(*parameter, x.dtype)
        made: dict[str, TensorSpec] = {}
        for name in (f"out_{one[1:]}" for one in GRADIENTS["scale" in call.specs, with_bias]):
            if name in call.specs:
                made[name] = packed_like(call, name, self._shape(x), *kinds)
            else:
                made[name] = result(call, name, self._shape(x), kinds[0], None, parameter[1])
        operands = [Operand("dy", dy), Operand("x", x)]
        operands += [Operand(name, self._seen(x, spec)) for name, spec in parameters.items()]
        operands += [Operand("out", dx, True)]
        operands += [Operand(name, self._seen(x, spec), True) for name, spec in made.items()]
        no_overlaps(call, operands)
        title, results = "batch normalization gradient", [in_layout(dx, self._turned(x)), *made.values()]
        if 0 in x.shape:
            return Program(title, call.device, operands, _scaled(operands, d)), results
        names = ["dy", "x", "scale", *saved, "out", "out_scale", "out_bias"]
        places = slots(call, names, operands, self._flat(x))
        if saved and data == parameter == (1.0, 0.0) and self._by_graph(x, dy, dx):
            planned = backward_graph(call.device, dy, x, dx)
            if planned is not None:
                executable, wanted = supplied(planned, places, len(operands)), self._wanted(x, operands, False)
                return arranged(title, call.device, operands, executable, wanted), results
        at = {name: place for place, name in enumerate(names)}
        means_at = (At(3), At(4)) if saved else (None, None)
        tx, tdy, tdx = (described(self._known(spec)) for spec in (x, dy, dx))
        function = Function(
            "cudnnBatchNormalizationBackward", self._kind, a, b, c, d, tx, At(1), tdy, At(0), tdx, At(at["out"]),
            self._descriptor(x), At(2), At(at["out_scale"]), At(at["out_bias"]), self.epsilon, *means_at,
        )  # fmt: skip
        executable, wanted = supplied(function, places, len(operands)), self._wanted(x, operands, True)
        return arranged(title, call.device, operands, executable, wanted, data[1] or parameter[1]), results

    def _known(self, x: TensorSpec) -> TensorSpec:
        """What the functions take: dense tensors, channels first, or for "spatial" last."""
        if x.strides == packed_strides(x.shape):
            return x
        return x if self.mode == "spatial" and x.strides == channels_last_strides(x.shape) else packed(x)


def _those_asked_for(
    names: tuple[str, ...], outs: tuple[Any, ...], there: tuple[bool, bool]
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """A gradient's names and outs, less those of parameters that are not there. ValueError for an out of these."""
    kept = []
    for name, out, wanted in zip(names[5:], outs, (True, *there), strict=True):
        if not wanted and out is not None:
            raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
        if wanted:
            kept.append((name, out))
    return (*names[:5], *(name for name, _ in kept)), tuple(out for _, out in kept)


def _scaled(operands: Sequence[Operand], beta: Any) -> list[Step]:
    """Of a batch of none the gradients of parameters are beta * what they were: 0 with a beta of 0, whatever that was."""
    there = [(place, o) for place, o in enumerate(operands) if o.name in ("out_scale", "out_bias")]
    if not beta.value:
        return fills(operands, {"out_scale": 0.0, "out_bias": 0.0})
    return [
        Step(Function("cudnnScaleTensor", described(operand.spec), At(0), beta), (place,))
        for place, operand in there
        if 0 not in operand.spec.shape
    ]
