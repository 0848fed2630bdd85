"""Batch normalization: graphs for large tensors, else cudnnBatchNormalizationForwardTraining, -ForwardInference, -Backward.

On an H200 these functions take 1.0 of PyTorch's time channels first, and 35 to 70 times it channels last; the graph's
normalization nodes 0.3 to 1.05 times in both (docs/benchmarks). CUDNN_BATCHNORM_SPATIAL_PERSISTENT would be faster still
channels first, but is documented to overflow for some inputs: it is left alone.
"""

from __future__ import annotations

import math
from ctypes import c_double
from dataclasses import dataclass
from typing import Any

from cudnnpy import calling, raw
from cudnnpy.calling import Call
from cudnnpy.checks import check_layout, check_number, check_option
from cudnnpy.descriptors import ActivationDescriptor, TensorDescriptor
from cudnnpy.frozen import Frozen
from cudnnpy.functions import (
    is_large,
    like,
    logical,
    logical_like,
    logical_result,
    no_overlaps,
    result,
)
from cudnnpy.graph import Graph
from cudnnpy.layouts import TensorSpec, channels_last_strides, in_layout, packed, packed_strides
from cudnnpy.programs import At, Function, Operand, Program, Step, arranged, copy, described, scales

MODES = ("spatial", "per_activation")
_RANKS = range(2, 6)


@dataclass(frozen=True)
class BatchNormalization(Frozen):
    """Batch normalization and its gradient, on device arrays of 2 to 5 axes.

    mode: "spatial" (a mean for each channel) or "per_activation" (one for each element of x.shape[1:]). epsilon: added
    to variances; 0 or more. layout: "NCHW", or "NHWC" for arrays whose axis order is (N, spatial..., C).

    x is float16, bfloat16, float32 or float64. Parameters (scale, bias, means, variances) are packed, of shape (C,), or
    x.shape[1:] for per_activation, in float32, or float64 for float64 x. Raises TypeError and ValueError for options and
    arrays that do not fit, NotSupportedError for what cuDNN lacks. Ioffe, Szegedy: Batch Normalization, 2015.
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
        scale: Any,
        bias: Any,
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
        fused (then alpha is 1 and beta 0).
        """
        return calling.run(
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
        return calling.run(name, self, prepare, names, inputs, (out,), stream, alpha, beta)

    def backward(
        self,
        dy: Any,
        x: Any,
        scale: Any,
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
    ) -> Any:
        """(dx, dscale, dbias) for forward_training's x and the gradient dy in its result.

        dx = alpha * ... + beta * out; dscale and dbias = parameter_alpha * ... + parameter_beta * out_scale, out_bias.
        saved_mean and saved_inverse_variance are forward_training's, both or neither (then they are computed again).
        """
        return calling.run(
            "BatchNormalization.backward",
            self,
            BatchNormalization._backward,
            ("dy", "x", "scale", "saved_mean", "saved_inverse_variance", "out", "out_scale", "out_bias"),
            (dy, x, scale, saved_mean, saved_inverse_variance),
            (out, out_scale, out_bias),
            stream,
            (alpha, beta),
            (parameter_alpha, parameter_beta),
        )

    # Set-up

    @property
    def _kind(self) -> int:
        return int(raw.CUDNN_BATCHNORM_SPATIAL if self.mode == "spatial" else raw.CUDNN_BATCHNORM_PER_ACTIVATION)

    def _turned(self, x: TensorSpec) -> bool:
        return self.layout.endswith("C") and len(x.shape) > 2

    def _shape(self, x: TensorSpec) -> tuple[int, ...]:
        """The parameters' shape in the arrays' own axis order, for x in logical order."""
        if self.mode == "spatial":
            return (x.shape[1],)
        return (*x.shape[2:], x.shape[1]) if self._turned(x) else x.shape[1:]

    def _parameters(self, call: Call, x: TensorSpec, *names: str) -> list[TensorSpec]:
        return [packed_like(call, name, self._shape(x), parameter_dtype(x)) for name in names]

    def _descriptor(self, x: TensorSpec) -> TensorDescriptor:
        rank = max(len(x.shape), 4)
        if self.mode == "spatial":
            return TensorDescriptor((1, x.shape[1], *(1,) * (rank - 2)), parameter_dtype(x))
        shape = (1, *x.shape[1:])
        return described(TensorSpec(shape, parameter_dtype(x), packed_strides(shape)))

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
        x = logical(call, "x", self.layout, _RANKS)
        check_number("average_factor", factor, 0.0, 1.0)
        a, b = scales(alpha, beta, x.dtype)
        if activation is not None:
            check_option("activation", activation, ("relu",))
            if (alpha, beta) != (1.0, 0.0):
                raise ValueError(f"alpha, beta: {alpha}, {beta} given with an activation; expected 1 and 0")
        parameters = self._parameters(call, x, "scale", "bias")
        running = both_or_neither(call, "running_mean", "running_variance")
        if running:
            parameters += self._parameters(call, x, "running_mean", "running_variance")
            for name in ("running_mean", "running_variance"):
                calling.check_writable(name, call.arrays[name])
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        saved = [TensorSpec(self._shape(x), parameter_dtype(x), packed_strides(self._shape(x)))] * 2
        names = ["scale", "bias", *(("running_mean", "running_variance") if running else ())]
        operands = [Operand("x", x)]
        seen = [self._seen(x, p) for p in parameters]
        operands += [
            Operand(n, p, n.startswith("running"), (), n.startswith("running"))
            for n, p in zip(names, seen, strict=True)
        ]
        operands += [Operand("out", y, True)]
        means_seen = [self._seen(x, s) for s in saved]
        operands += [
            Operand(n, s, True) for n, s in zip(("saved_mean", "saved_inverse_variance"), means_seen, strict=True)
        ]
        no_overlaps(call, operands)
        at = {operand.name: place for place, operand in enumerate(operands)}
        steps = None
        if (alpha, beta) == (1.0, 0.0) and self._by_graph(x, y):
            steps = self._training_by_graph(call.device, x, y, factor, activation, at)
        if steps is not None:
            program = Program("batch normalization", call.device, operands, steps)
            return program, [in_layout(y, self._turned(x)), *saved]
        single = running and math.prod(x.shape) == math.prod(self._shape(x))  # no unbiased variance: C would give NaN
        means = (At(at["running_mean"]), At(at["running_variance"])) if running and not single else (None, None)
        wanted = [self._known(x), *map(packed, seen), self._known(y), *map(packed, means_seen)]
        one, two = described(wanted[0]), described(wanted[at["out"]])
        function = Function(
            "cudnnBatchNormalizationForwardTraining", self._kind, a, b, one, At(0), two, At(at["out"]),
            self._descriptor(x), At(1), At(2), c_double(factor).value, *means, self.epsilon,
            At(at["saved_mean"]), At(at["saved_inverse_variance"]),
        )  # fmt: skip
        program = arranged("batch normalization", call.device, operands, function, wanted, beta)
        steps = [*program.steps]
        if activation == "relu":
            relu, d = ActivationDescriptor("relu", propagate_nan=True), described(y)
            zero = scales(0.0, 0.0, x.dtype)[0]
            steps.append(Step(Function("cudnnActivationForward", relu, a, d, At(0), zero, d, At(0)), (at["out"],)))
        if single:
            share = saved[0]
            steps.append(Step(copy(share, share, factor, 1 - factor), (at["saved_mean"], at["running_mean"])))
            kept = scales(1 - factor, 0.0, share.dtype)[0]
            steps.append(Step(Function("cudnnScaleTensor", described(share), At(0), kept), (at["running_variance"],)))
        program = Program("batch normalization", call.device, operands, steps, program.scratch)
        return program, [in_layout(y, self._turned(x)), *saved]

    def _training_by_graph(
        self, device: int, x: TensorSpec, y: TensorSpec, factor: float, activation: str | None, at: dict[str, int]
    ) -> list[Step] | None:
        graph = Graph()
        one = graph.tensor("x", x)
        inputs = {name: graph.tensor(name, channels(x)) for name in at if name in _CHANNELS}
        running = (inputs["running_mean"], inputs["running_variance"]) if "running_mean" in inputs else None
        made = graph.normalization(
            "batch_norm", one, inputs["scale"], inputs["bias"], self.epsilon, running=running, average_factor=factor
        )
        top = graph.pointwise("relu_fwd", made[0]) if activation else made[0]
        graph.output("out", top, strides=y.strides)
        names = ["saved_mean", "saved_inverse_variance", *(("new_mean", "new_variance") if running else ())]
        for name, node in zip(names, made[1:], strict=True):
            graph.output(name, node, "float32", channels(x).strides)
        planned = graph.executable(device)
        if planned is None:
            return None
        places = [at[node.name] for node in graph.inputs]
        places += [at[name] for name in ("out", "saved_mean", "saved_inverse_variance")]
        places += [at[name] for name in ("running_mean", "running_variance") if running]  # in place
        return [Step(planned, tuple(places))]

    def _inference(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS)
        a, b = scales(alpha, beta, x.dtype)
        names = "scale", "bias", "mean", "variance"
        parameters = self._parameters(call, x, *names)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        seen = [self._seen(x, p) for p in parameters]
        operands = [Operand("x", x), *(Operand(n, p) for n, p in zip(names, seen, strict=True))]
        operands.append(Operand("out", y, True))
        no_overlaps(call, operands)
        step = None
        last = x.strides == channels_last_strides(x.shape)
        if (alpha, beta) == (1.0, 0.0) and self._by_graph(x, y) and last:
            graph = Graph()
            one = graph.tensor("x", x)
            scale, bias, mean, variance = (graph.tensor(name, channels(x)) for name in names)
            rank = len(x.shape)
            inverse = graph.pointwise("rsqrt", graph.pointwise("add", variance, graph.number(self.epsilon, rank)))
            normalized = graph.pointwise("mul", graph.pointwise("sub", one, mean), inverse)
            graph.output(
                "out", graph.pointwise("add", graph.pointwise("mul", normalized, scale), bias), None, y.strides
            )
            planned = graph.executable(call.device)
            step = Step(planned, tuple(range(6))) if planned else None
        if step is not None:
            program = Program("batch normalization", call.device, operands, [step])
            return program, [in_layout(y, self._turned(x))]
        wanted = [self._known(x), *map(packed, seen), self._known(y)]
        read, written = described(wanted[0]), described(wanted[5])
        function = Function(
            "cudnnBatchNormalizationForwardInference", self._kind, a, b, read, At(0), written, At(5),
            self._descriptor(x), At(1), At(2), At(3), At(4), self.epsilon,
        )  # fmt: skip
        program = arranged("batch normalization", call.device, operands, function, wanted, beta)
        return program, [in_layout(y, self._turned(x))]

    def _backward(
        self, call: Call, data: tuple[float, float], parameter: tuple[float, float]
    ) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS)
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        saved = both_or_neither(call, "saved_mean", "saved_inverse_variance")
        names = ["scale", *(("saved_mean", "saved_inverse_variance") if saved else ())]
        parameters = self._parameters(call, x, *names)
        dx = logical_result(call, "out", x.shape, dy, self.layout, data[1])
        gradients = []
        for name in ("out_scale", "out_bias"):
            if name in call.specs:
                gradients += self._parameters(call, x, name)
            else:
                gradients.append(result(call, name, self._shape(x), parameter_dtype(x), None, parameter[1]))
        operands = [Operand("dy", dy), Operand("x", x)]
        seen = [self._seen(x, p) for p in parameters]
        results_seen = [self._seen(x, g) for g in gradients]
        operands += [Operand(n, p) for n, p in zip(names, seen, strict=True)]
        operands += [Operand("out", dx, True)]
        operands += [Operand(n, g, True) for n, g in zip(("out_scale", "out_bias"), results_seen, strict=True)]
        no_overlaps(call, operands)
        at = {operand.name: place for place, operand in enumerate(operands)}
        step = None
        if saved and data == parameter == (1.0, 0.0) and self._by_graph(x, dy, dx):
            graph = Graph()
            one, two = graph.tensor("dy", dy), graph.tensor("x", x)
            means = [graph.tensor(name, channels(x)) for name in names]
            made = graph.normalization_backward("batch_norm", one, two, *means)
            graph.output("out", made[0], None, dx.strides)
            for name, node in zip(("out_scale", "out_bias"), made[1:], strict=True):
                graph.output(name, node, "float32", channels(x).strides)
            planned = graph.executable(call.device)
            step = Step(planned, tuple(range(len(operands)))) if planned else None
        if step is not None:
            program = Program("batch normalization gradient", call.device, operands, [step])
            return program, [in_layout(dx, self._turned(x)), *gradients]
        a, b = scales(*data, x.dtype)
        c, d = scales(*parameter, x.dtype)
        means_at = (At(3), At(4)) if saved else (None, None)
        wanted = [self._known(dy), self._known(x), *map(packed, seen), self._known(dx), *map(packed, results_seen)]
        tensors = described(wanted[1]), At(1), described(wanted[0]), At(0), described(wanted[at["out"]]), At(at["out"])
        function = Function(
            "cudnnBatchNormalizationBackward", self._kind, a, b, c, d, *tensors,
            self._descriptor(x), At(2), At(at["out_scale"]), At(at["out_bias"]), self.epsilon, *means_at,
        )  # fmt: skip
        program = arranged(
            "batch normalization gradient", call.device, operands, function, wanted, data[1] or parameter[1]
        )
        return program, [in_layout(dx, self._turned(x)), *gradients]

    def _known(self, x: TensorSpec) -> TensorSpec:
        """What the functions take: dense tensors, channels first, or for "spatial" last."""
        if x.strides == packed_strides(x.shape):
            return x
        return x if self.mode == "spatial" and x.strides == channels_last_strides(x.shape) else packed(x)


_CHANNELS = ("scale", "bias", "running_mean", "running_variance")


def channels(x: TensorSpec, dtype: str = "float32") -> TensorSpec:
    """A value for each channel of x, as a tensor of a graph."""
    c = x.shape[1]
    rest = len(x.shape) - 2
    return TensorSpec((1, c, *(1,) * rest), dtype, (c, 1, *(c,) * rest))


def parameter_dtype(x: TensorSpec) -> str:
    """The dtype of scales, biases, means and variances."""
    return "float64" if x.dtype == "float64" else "float32"


def packed_like(call: Call, name: str, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """A parameter of a call: packed, of a shape and dtype."""
    spec = like(call, name, shape, dtype)
    if any(n > 1 and s != t for n, s, t in zip(shape, spec.strides or (), packed_strides(shape), strict=True)):
        raise ValueError(f"{name}: strides {spec.strides} given; expected it packed, {packed_strides(shape)}")
    return spec._replace(strides=packed_strides(shape))


def both_or_neither(call: Call, first: str, second: str) -> bool:
    """Whether two arrays were given that belong together; TypeError for one alone."""
    if (first in call.specs) != (second in call.specs):
        missing = second if first in call.specs else first
        raise ValueError(f"{missing}: None given; expected both {first} and {second}, or neither")
    return first in call.specs
