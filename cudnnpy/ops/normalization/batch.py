"""Batch normalization and its gradients: graphs for large tensors, else cuDNN's functions for batch normalization.

On an H200 these functions take 0.1 to 1.1 of PyTorch's time channels first and 2 to 180 times its time channels last. The
normalization nodes of graphs take 0.2 to 1.1 of it channels last; channels first they take 0.25 to 1.0 for few long channels,
to each of which the functions give one block, and 0.5 to 3.3 for others (docs/benchmarks). Where no graph is supported
channels last, the functions get copies that are channels first. CUDNN_BATCHNORM_SPATIAL_PERSISTENT is faster still channels
first, but is documented to overflow for some inputs, so it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_double
from dataclasses import dataclass
from typing import Any, NamedTuple

from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, in_layout, per_channel
from cudnnpy._options.arguments import wants_bias
from cudnnpy._options.checks import check_number, check_option
from cudnnpy._options.operations import BatchNormalizationOptions
from cudnnpy._planning.engines import GraphExecutable
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, Step, arranged, copy, described, scales
from cudnnpy._runtime.operands import is_large, logical, logical_like, logical_result, no_overlaps, packed_like, result
from cudnnpy._runtime.substitutes import Slots, supplied
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.graph.graph import Graph
from cudnnpy.ops.normalization.batch_tensors import Normalized, spelled_last
from cudnnpy.ops.normalization.parameters import (
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
)
from cudnnpy.typing import Array, ArrayT, ElementName, NormalizationActivation, Stream

_RANKS = range(2, 6)
RUNNING = ("running_mean", "running_variance")
SAVED = ("saved_mean", "saved_inverse_variance")


@dataclass(frozen=True)
class BatchNormalization(BatchNormalizationOptions, Identified):
    """Batch normalization and its gradients, on device arrays of 2 to 5 axes.

    Parameters
    ----------
    mode : {"spatial", "per_activation"}
        "spatial" has statistics for each channel, over the batch and all positions; "per_activation" has statistics for each
        element of x.shape[1:], over the batch.
    epsilon : float
        Added to the variance; 0 or more.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. The order in memory is free.

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
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.

    References
    ----------
    Ioffe, Szegedy: Batch Normalization, 2015.
    """

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

        y = alpha * (scale * (x - mean) / sqrt(variance + epsilon) + bias) + beta * out.

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        scale, bias : array, optional
            Parameters.
        running_mean, running_variance : array, optional
            Both or neither; they are updated in place: (1 - average_factor) * running + average_factor * the batch's, with
            the unbiased variance.
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
            `out`, or a new array of x's library, shape, dtype and memory order.
        saved_mean, saved_inverse_variance : array
            What `backward` takes, of the parameters' shape; the latter is 1 / sqrt(biased variance + epsilon). For no
            elements they are 0 and NaN.
        """
        return dispatch.run(
            "BatchNormalization.forward_training",
            self,
            training,
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
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        name, names = "BatchNormalization.forward_inference", ("x", "scale", "bias", "mean", "variance", "out")
        inputs, prepare = (x, scale, bias, mean, variance), inference
        return dispatch.run(name, self, prepare, names, inputs, (out,), stream, alpha, beta)

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
            `out`, or a new array of dy's library, shape, dtype and memory order.
        dscale : array or None
            Of scale's dtype; None without a scale.
        dbias : array or None
            Of scale's dtype, or without a scale of out_bias's or x's; None if it is not computed.
        """
        computed = scale is not None, wants_bias(bias, scale)
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
        if computed != (True, True):
            names, outs = _wanted_results(names, outs, computed)
        found = dispatch.run(
            "BatchNormalization.backward",
            self,
            backward,
            names,
            (dy, x, scale, saved_mean, saved_inverse_variance),
            outs,
            stream,
            alpha,
            beta,
            parameter_alpha,
            parameter_beta,
            computed[1],
        )
        made: tuple[ArrayT, ArrayT | None, ArrayT | None] = gradients(found, *computed)
        return made


def _wanted_results(
    names: tuple[str, ...], outs: tuple[Any, ...], computed: tuple[bool, bool]
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The names and outs of a gradient without those that are not computed. Raises ValueError for an out of these."""
    kept = []
    for name, out, wanted in zip(names[5:], outs, (True, *computed), strict=True):
        if not wanted and out is not None:
            raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
        if wanted:
            kept.append((name, out))
    return (*names[:5], *(name for name, _ in kept)), tuple(out for _, out in kept)


# Checked arguments


def _logical(norm: BatchNormalizationOptions, call: Call, name: str) -> TensorSpec:
    """Check x or dy; its axes as (N, C, spatial...)."""
    ranks = range(1, 6) if call.specs[name].shape == (0,) else _RANKS  # one axis and no channels, as PyTorch accepts
    return logical(call, name, norm.layout, ranks, empty=True)


def _normalized(norm: BatchNormalizationOptions, x: TensorSpec) -> Normalized:
    return Normalized(x, norm.mode == "spatial", norm.layout.endswith("C") and len(x.shape) > 2)


def _parameters(call: Call, normalized: Normalized, *names: str) -> dict[str, TensorSpec]:
    """Check parameters of a call and return them by name. A missing scale or bias is omitted."""
    x, shape = normalized.x, normalized.shape
    found = scale_and_bias(call, x, shape, [name for name in names if name in NUMBERS])
    if normalized.spatial or len(x.shape) == 1:
        check_channels(call, shape[0])
    others = [name for name in names if name not in NUMBERS]
    return found | {name: packed_like(call, name, shape, *parameter_dtypes(x)) for name in others}


def _saved(call: Call, normalized: Normalized) -> dict[str, TensorSpec]:
    """Check the statistics that forward_training saved and return them by name; {} if they are not given."""
    if not both_or_neither(call, *SAVED):
        return {}
    return {name: packed_like(call, name, normalized.shape, statistics_dtype(normalized.x)) for name in SAVED}


# forward_training


class _Training(NamedTuple):
    """A call of forward_training, whose arguments are checked."""

    call: Call
    epsilon: float
    normalized: Normalized
    y: TensorSpec
    parameters: dict[str, TensorSpec]
    operands: list[Operand]
    factor: float
    activation: str | None

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the running statistics; () if they are not given."""
        return RUNNING if RUNNING[0] in self.parameters else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The operands' names in the order of the graph's and the function's addresses, with missing parameters."""
        return ("x", "scale", "bias", *self.running, "out", *SAVED)

    def program(self, alpha: float, beta: float) -> Program:
        """What is launched."""
        addresses = slots(self.call, self.names, self.operands, self.normalized.flat)
        for order in self.normalized.orders(self.y) if (alpha, beta) == (1.0, 0.0) else ():
            program = self._by_graph(addresses, order)
            if program is not None and self.call.allows(program.workspace_size):
                return program
        return self._by_function(addresses, alpha, beta)

    def _by_graph(self, addresses: Slots, order: Callable[[TensorSpec], TensorSpec]) -> Program | None:
        """The graph in a memory order; None where cuDNN has no engine for it."""
        x, y, running, device = order(self.normalized.x), order(self.y), bool(self.running), self.call.device
        planned = training_graph(device, self.epsilon, x, y, self.factor, self.activation, running)
        if planned is None:
            return None
        updated = [addresses[self.names.index(name)] for name in self.running]  # in place
        executable = supplied(planned, [*addresses, *updated], len(self.operands))
        wanted = self.normalized.wanted(self.operands, order)
        return arranged("batch normalization", device, self.operands, executable, wanted)

    def _by_function(self, addresses: Slots, alpha: float, beta: float) -> Program:
        """cudnnBatchNormalizationForwardTraining, then the activation, and running statistics that it does not update."""
        x, y = self.normalized.x, self.y
        at = {name: At(place) for place, name in enumerate(self.names)}
        # running-variance-of-one-value in docs/known-issues.md
        single = bool(self.running) and math.prod(x.shape) == math.prod(self.normalized.shape)
        running = (None, None) if single or not self.running else (at["running_mean"], at["running_variance"])
        a, b = scales(alpha, beta, x.dtype)
        order = self.normalized.order_of_function(self.call)
        one, two = (described(order(spec)) for spec in (x, y))
        function = Function(
            "cudnnBatchNormalizationForwardTraining", self.normalized.kind, a, b, one, at["x"], two, at["out"],
            self.normalized.descriptor(), at["scale"], at["bias"], c_double(self.factor).value, *running, self.epsilon,
            at["saved_mean"], at["saved_inverse_variance"],
        )  # fmt: skip
        executable = supplied(function, addresses, len(self.operands))
        wanted = self.normalized.wanted(self.operands, order)
        program = arranged("batch normalization", self.call.device, self.operands, executable, wanted, beta)
        steps = [*program.steps]
        if self.activation == "relu":
            relu, d = ActivationDescriptor("relu", propagate_nan=True), described(y)
            zero = scales(0.0, 0.0, x.dtype)[0]
            activated = Function("cudnnActivationForward", relu, a, d, At(0), zero, d, At(0))
            steps.append(Step(activated, (self._place("out"),)))
        if single:
            steps += self._updates_of_one_value()
        return Program(program.name, self.call.device, self.operands, steps, program.scratch)

    def _updates_of_one_value(self) -> list[Step]:
        """The updates of the running statistics by one value for each mean, whose variance is 0."""
        statistics, factor = self.normalized.statistics, self.factor
        mean, variance = (self.parameters[name] for name in RUNNING)
        kept = scales(1 - factor, 0.0, statistics.dtype)[0]
        scaled = Function("cudnnScaleTensor", described(variance), At(0), kept)
        moved = copy(statistics, mean, factor, 1 - factor)
        return [
            Step(moved, (self._place("saved_mean"), self._place("running_mean"))),
            Step(scaled, (self._place("running_variance"),)),
        ]

    def _place(self, name: str) -> int:
        return [operand.name for operand in self.operands].index(name)


def training(
    norm: BatchNormalizationOptions, call: Call, factor: float, activation: str | None, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    """Prepare forward_training."""
    x = _logical(norm, call, "x")
    check_number("average_factor", factor, finite=True)
    scales(alpha, beta, x.dtype)
    if activation is not None:
        check_option("activation", activation, ("relu",))
        if (alpha, beta) != (1.0, 0.0):
            raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
    normalized = _normalized(norm, x)
    parameters = _parameters(call, normalized, "scale", "bias")
    if both_or_neither(call, *RUNNING):
        parameters |= _parameters(call, normalized, *RUNNING)
        for name in RUNNING:
            dispatch.check_writable(name, call.arrays[name])
    y = logical_result(call, "out", x.shape, x, norm.layout, beta)
    operands = [Operand("x", x)]
    for name, spec in parameters.items():
        updated = name in RUNNING
        operands.append(Operand(name, normalized.logical(spec), is_result=updated, is_read=updated))
    operands.append(Operand("out", y, True))
    operands += [Operand(name, normalized.logical(normalized.statistics), True) for name in SAVED]
    no_overlaps(call, operands)
    results = [in_layout(y, normalized.channels_last), normalized.statistics, normalized.statistics]
    if 0 in x.shape:
        steps = fills(operands, {"saved_mean": 0.0, "saved_inverse_variance": NAN})
        return Program("batch normalization", call.device, operands, steps), results
    prepared = _Training(call, norm.epsilon, normalized, y, parameters, operands, factor, activation)
    return prepared.program(alpha, beta), results


# forward_inference


def inference(
    norm: BatchNormalizationOptions, call: Call, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    """Prepare forward_inference."""
    x = _logical(norm, call, "x")
    a, b = scales(alpha, beta, x.dtype)
    normalized = _normalized(norm, x)
    names = ("scale", "bias", "mean", "variance")
    parameters = _parameters(call, normalized, *names)
    y = logical_result(call, "out", x.shape, x, norm.layout, beta)
    operands = [Operand("x", x), *(Operand(name, normalized.logical(spec)) for name, spec in parameters.items())]
    operands.append(Operand("out", y, True))
    no_overlaps(call, operands)
    title, results = "batch normalization", [in_layout(y, normalized.channels_last)]
    if 0 in x.shape:
        return Program(title, call.device, operands, []), results
    addresses = slots(call, ("x", *names, "out"), operands, normalized.flat)
    last = all(spec.strides == channels_last_strides(spec.shape) for spec in (x, y))
    if (alpha, beta) == (1.0, 0.0) and normalized.takes_graph(y) and last and is_large(x):
        planned = inference_graph(call.device, norm.epsilon, x, y)
        if planned is not None:
            executable, wanted = supplied(planned, addresses, len(operands)), normalized.wanted(operands, spelled_last)
            return arranged(title, call.device, operands, executable, wanted), results
    one, two = (described(normalized.in_either_order(spec)) for spec in (x, y))
    function = Function(
        "cudnnBatchNormalizationForwardInference", normalized.kind, a, b, one, At(0), two, At(5),
        normalized.descriptor(), At(1), At(2), At(3), At(4), norm.epsilon,
    )  # fmt: skip
    executable, wanted = (
        supplied(function, addresses, len(operands)),
        normalized.wanted(operands, normalized.in_either_order),
    )
    return arranged(title, call.device, operands, executable, wanted, beta), results


# backward


def backward(
    norm: BatchNormalizationOptions,
    call: Call,
    alpha: float,
    beta: float,
    parameter_alpha: float,
    parameter_beta: float,
    with_bias: bool,
) -> tuple[Program, list[TensorSpec]]:
    """Prepare backward. `with_bias`: dbias is a result; dscale is one if there is a scale."""
    data, parameter = (alpha, beta), (parameter_alpha, parameter_beta)
    dy = _logical(norm, call, "dy")
    x = logical_like(call, "x", norm.layout, dy.shape, dy.dtype)
    normalized = _normalized(norm, x)
    parameters = _parameters(call, normalized, "scale")
    saved = _saved(call, normalized)
    dx = logical_result(call, "out", x.shape, dy, norm.layout, beta)
    a, b = scales(*data, x.dtype)
    c, d = scales(*parameter, x.dtype)
    dtypes = (parameters["scale"].dtype,) if parameters else (x.dtype, *parameter_dtypes(x))
    outs = [f"out_{name[1:]}" for name in GRADIENTS["scale" in call.specs, with_bias]]
    gradients = {name: _gradient(call, name, normalized.shape, dtypes, parameter_beta) for name in outs}
    operands = [Operand("dy", dy), Operand("x", x)]
    operands += [Operand(name, normalized.logical(spec)) for name, spec in (parameters | saved).items()]
    operands.append(Operand("out", dx, True))
    operands += [Operand(name, normalized.logical(spec), True) for name, spec in gradients.items()]
    no_overlaps(call, operands)
    title, results = "batch normalization gradient", [in_layout(dx, normalized.channels_last), *gradients.values()]
    if 0 in x.shape:
        return Program(title, call.device, operands, _scaled(operands, d)), results
    names = ("dy", "x", "scale", *saved, "out", "out_scale", "out_bias")
    addresses = slots(call, names, operands, normalized.flat)
    for order in normalized.orders(dy, dx) if saved and data == parameter == (1.0, 0.0) else ():
        planned = backward_graph(call.device, *map(order, (dy, x, dx)))
        if planned is not None:
            executable, wanted = supplied(planned, addresses, len(operands)), normalized.wanted(operands, order)
            program = arranged(title, call.device, operands, executable, wanted)
            if call.allows(program.workspace_size):
                return program, results
    at = {name: At(place) for place, name in enumerate(names)}
    statistics = [at[name] for name in SAVED] if saved else [None, None]
    order = normalized.order_of_function(call)
    tx, tdy, tdx = (described(order(spec)) for spec in (x, dy, dx))
    function = Function(
        "cudnnBatchNormalizationBackward", normalized.kind, a, b, c, d, tx, at["x"], tdy, at["dy"], tdx, at["out"],
        normalized.descriptor(), at["scale"], at["out_scale"], at["out_bias"], norm.epsilon, *statistics,
    )  # fmt: skip
    executable, wanted = supplied(function, addresses, len(operands)), normalized.wanted(operands, order)
    return arranged(title, call.device, operands, executable, wanted, beta or parameter_beta), results


def _gradient(
    call: Call, name: str, shape: tuple[int, ...], dtypes: tuple[ElementName, ...], beta: float
) -> TensorSpec:
    """A gradient with respect to a parameter: the array given for it, checked, or a new one of the first dtype."""
    if name in call.specs:
        return packed_like(call, name, shape, *dtypes)
    return result(call, name, shape, dtypes[0], None, beta)


def _scaled(operands: Sequence[Operand], beta: Any) -> list[Step]:
    """The gradients with respect to parameters for an empty batch: beta times the outs, or 0, unread, if beta is 0."""
    if not beta.value:
        return fills(operands, {"out_scale": 0.0, "out_bias": 0.0})
    return [
        Step(Function("cudnnScaleTensor", described(operand.spec), At(0), beta), (place,))
        for place, operand in enumerate(operands)
        if operand.name in ("out_scale", "out_bias") and 0 not in operand.spec.shape
    ]


# Operation graphs
#
# The addresses of a graph are those of its inputs, then those of its results, each in the order of the arguments of cuDNN's
# function; updated running statistics come last. The functions return None if cuDNN has no engine for the graph.


def training_graph(
    device: int, epsilon: float, x: TensorSpec, y: TensorSpec, factor: float, activation: str | None, running: bool
) -> GraphExecutable | None:
    """Inputs: x, scale, bias, and the running statistics if `running`. Results: y, the saved and the updated statistics."""
    graph = Graph()
    one, scale, bias = graph.tensor("x", x), graph.tensor("scale", per_channel(x)), graph.tensor("bias", per_channel(x))
    mean, variance = (graph.tensor(name, per_channel(x)) if running else None for name in RUNNING)
    both = (mean, variance) if mean is not None and variance is not None else None
    made = graph.normalization("batch_norm", one, scale, bias, epsilon, running=both, average_factor=factor)
    top = graph.pointwise("relu_fwd", made[0]) if activation else made[0]
    graph.output("out", top, strides=y.strides)
    names = [*SAVED, *(("new_mean", "new_variance") if running else ())]
    for name, node in zip(names, made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph.executable(device)


def inference_graph(device: int, epsilon: float, x: TensorSpec, y: TensorSpec) -> GraphExecutable | None:
    """Inputs: x, scale, bias, mean and variance. Result: y."""
    graph = Graph()
    one = graph.tensor("x", x)
    scale, bias, mean, variance = (graph.tensor(n, per_channel(x)) for n in ("scale", "bias", "mean", "variance"))
    inverse = graph.pointwise("rsqrt", graph.pointwise("add", variance, graph.number(epsilon, len(x.shape))))
    normalized = graph.pointwise("mul", graph.pointwise("sub", one, mean), inverse)
    top = graph.pointwise("add", graph.pointwise("mul", normalized, scale), bias)
    graph.output("out", top, None, y.strides)
    return graph.executable(device)


def backward_graph(device: int, dy: TensorSpec, x: TensorSpec, dx: TensorSpec) -> GraphExecutable | None:
    """Inputs: dy, x, scale and the saved statistics. Results: dx, dscale and dbias."""
    graph = Graph()
    one, two, scale = graph.tensor("dy", dy), graph.tensor("x", x), graph.tensor("scale", per_channel(x))
    mean, inverse = (graph.tensor(name, per_channel(x)) for name in SAVED)
    made = graph.normalization_backward("batch_norm", one, two, scale, mean, inverse)
    graph.output("out", made[0], None, dx.strides)
    for name, node in zip(("dscale", "dbias"), made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph.executable(device)
