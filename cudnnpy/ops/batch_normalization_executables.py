"""How batch normalization runs: by graphs for large tensors, else by cuDNN's functions for batch normalization.

On an H200 these functions take 0.1 to 1.1 of PyTorch's time channels first and 2 to 180 times its time channels last. The
normalization nodes of graphs take 0.2 to 1.1 of it channels last; channels first they take 0.25 to 1.0 for few long channels,
to each of which the functions give one block, and 0.5 to 3.3 for others (docs/benchmarks). Where no graph is supported
channels last, the functions get copies that are channels first. CUDNN_BATCHNORM_SPATIAL_PERSISTENT is faster still channels
first, but is documented to overflow for some inputs, so it is not used.

`training`, `inference` and `backward` prepare calls for dispatch: they check the arrays and return what to launch, and the
results' shapes and strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_double
from typing import Any, NamedTuple

from cudnnpy._core.layouts import (
    TensorSpec,
    channels_last_strides,
    in_layout,
)
from cudnnpy._launch import dispatch
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.implicit_operands import OperandSources, with_implicit_operands
from cudnnpy._launch.operands import (
    check_no_overlaps,
    is_large,
    logical,
    logical_like,
    logical_result,
    packed_like,
    resolve_output,
)
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, copy, scaling_arguments, tensor_descriptor
from cudnnpy._options.checks import check_number, check_option
from cudnnpy._options.operations import BatchNormalizationOptions
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.ops.batch_normalization_graphs import RUNNING, SAVED, backward_graph, inference_graph, training_graph
from cudnnpy.ops.batch_normalization_tensors import Normalized, spelled_last
from cudnnpy.ops.parameters import (
    GRADIENTS,
    NAN,
    NUMBERS,
    both_or_neither,
    check_channels,
    fills,
    parameter_dtypes,
    scale_and_bias,
    slots,
    statistics_dtype,
)
from cudnnpy.typing import ElementName

_RANKS = range(2, 6)


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

    def _by_graph(self, addresses: OperandSources, order: Callable[[TensorSpec], TensorSpec]) -> Program | None:
        """The graph in a memory order; None where cuDNN has no engine for it."""
        x, y, running, device = order(self.normalized.x), order(self.y), bool(self.running), self.call.device
        planned = training_graph(device, self.epsilon, x, y, self.factor, self.activation, running)
        if planned is None:
            return None
        updated = [addresses[self.names.index(name)] for name in self.running]  # in place
        executable = with_implicit_operands(planned, [*addresses, *updated], len(self.operands))
        wanted = self.normalized.wanted(self.operands, order)
        return with_conversion_copies("batch normalization", device, self.operands, executable, wanted)

    def _by_function(self, addresses: OperandSources, alpha: float, beta: float) -> Program:
        """cudnnBatchNormalizationForwardTraining, then the activation, and running statistics that it does not update."""
        x, y = self.normalized.x, self.y
        at = {name: OperandAddress(place) for place, name in enumerate(self.names)}
        # running-variance-of-one-value in docs/known-issues.md
        single = bool(self.running) and math.prod(x.shape) == math.prod(self.normalized.shape)
        running = (None, None) if single or not self.running else (at["running_mean"], at["running_variance"])
        a, b = scaling_arguments(alpha, beta, x.dtype)
        order = self.normalized.order_of_function(self.call)
        one, two = (tensor_descriptor(order(spec)) for spec in (x, y))
        function = FunctionCall(
            "cudnnBatchNormalizationForwardTraining", self.normalized.kind, a, b, one, at["x"], two, at["out"],
            self.normalized.descriptor(), at["scale"], at["bias"], c_double(self.factor).value, *running, self.epsilon,
            at["saved_mean"], at["saved_inverse_variance"],
        )  # fmt: skip
        executable = with_implicit_operands(function, addresses, len(self.operands))
        wanted = self.normalized.wanted(self.operands, order)
        program = with_conversion_copies(
            "batch normalization", self.call.device, self.operands, executable, wanted, beta
        )
        steps = [*program.steps]
        if self.activation == "relu":
            relu, d = ActivationDescriptor("relu", propagate_nan=True), tensor_descriptor(y)
            zero = scaling_arguments(0.0, 0.0, x.dtype)[0]
            activated = FunctionCall(
                "cudnnActivationForward", relu, a, d, OperandAddress(0), zero, d, OperandAddress(0)
            )
            steps.append(Step(activated, (self._place("out"),)))
        if single:
            steps += self._updates_of_one_value()
        return Program(program.name, self.call.device, self.operands, steps, program.scratch)

    def _updates_of_one_value(self) -> list[Step]:
        """The updates of the running statistics by one value for each mean, whose variance is 0."""
        statistics, factor = self.normalized.statistics, self.factor
        mean, variance = (self.parameters[name] for name in RUNNING)
        kept = scaling_arguments(1 - factor, 0.0, statistics.dtype)[0]
        scaled = FunctionCall("cudnnScaleTensor", tensor_descriptor(variance), OperandAddress(0), kept)
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
    scaling_arguments(alpha, beta, x.dtype)
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
    check_no_overlaps(call, operands)
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
    a, b = scaling_arguments(alpha, beta, x.dtype)
    normalized = _normalized(norm, x)
    names = ("scale", "bias", "mean", "variance")
    parameters = _parameters(call, normalized, *names)
    y = logical_result(call, "out", x.shape, x, norm.layout, beta)
    operands = [Operand("x", x), *(Operand(name, normalized.logical(spec)) for name, spec in parameters.items())]
    operands.append(Operand("out", y, True))
    check_no_overlaps(call, operands)
    title, results = "batch normalization", [in_layout(y, normalized.channels_last)]
    if 0 in x.shape:
        return Program(title, call.device, operands, []), results
    addresses = slots(call, ("x", *names, "out"), operands, normalized.flat)
    last = all(spec.strides == channels_last_strides(spec.shape) for spec in (x, y))
    if (alpha, beta) == (1.0, 0.0) and normalized.takes_graph(y) and last and is_large(x):
        planned = inference_graph(call.device, norm.epsilon, x, y)
        if planned is not None:
            executable, wanted = (
                with_implicit_operands(planned, addresses, len(operands)),
                normalized.wanted(operands, spelled_last),
            )
            return with_conversion_copies(title, call.device, operands, executable, wanted), results
    one, two = (tensor_descriptor(normalized.in_either_order(spec)) for spec in (x, y))
    function = FunctionCall(
        "cudnnBatchNormalizationForwardInference", normalized.kind, a, b, one, OperandAddress(0), two, OperandAddress(5),
        normalized.descriptor(), OperandAddress(1), OperandAddress(2), OperandAddress(3), OperandAddress(4), norm.epsilon,
    )  # fmt: skip
    executable, wanted = (
        with_implicit_operands(function, addresses, len(operands)),
        normalized.wanted(operands, normalized.in_either_order),
    )
    return with_conversion_copies(title, call.device, operands, executable, wanted, beta), results


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
    a, b = scaling_arguments(*data, x.dtype)
    c, d = scaling_arguments(*parameter, x.dtype)
    dtypes = (parameters["scale"].dtype,) if parameters else (x.dtype, *parameter_dtypes(x))
    outs = [f"out_{name[1:]}" for name in GRADIENTS["scale" in call.specs, with_bias]]
    gradients = {name: _gradient(call, name, normalized.shape, dtypes, parameter_beta) for name in outs}
    operands = [Operand("dy", dy), Operand("x", x)]
    operands += [Operand(name, normalized.logical(spec)) for name, spec in (parameters | saved).items()]
    operands.append(Operand("out", dx, True))
    operands += [Operand(name, normalized.logical(spec), True) for name, spec in gradients.items()]
    check_no_overlaps(call, operands)
    title, results = "batch normalization gradient", [in_layout(dx, normalized.channels_last), *gradients.values()]
    if 0 in x.shape:
        return Program(title, call.device, operands, _scaled(operands, d)), results
    names = ("dy", "x", "scale", *saved, "out", "out_scale", "out_bias")
    addresses = slots(call, names, operands, normalized.flat)
    for order in normalized.orders(dy, dx) if saved and data == parameter == (1.0, 0.0) else ():
        planned = backward_graph(call.device, *map(order, (dy, x, dx)))
        if planned is not None:
            executable, wanted = (
                with_implicit_operands(planned, addresses, len(operands)),
                normalized.wanted(operands, order),
            )
            program = with_conversion_copies(title, call.device, operands, executable, wanted)
            if call.allows(program.workspace_size):
                return program, results
    at = {name: OperandAddress(place) for place, name in enumerate(names)}
    statistics = [at[name] for name in SAVED] if saved else [None, None]
    order = normalized.order_of_function(call)
    tx, tdy, tdx = (tensor_descriptor(order(spec)) for spec in (x, dy, dx))
    function = FunctionCall(
        "cudnnBatchNormalizationBackward", normalized.kind, a, b, c, d, tx, at["x"], tdy, at["dy"], tdx, at["out"],
        normalized.descriptor(), at["scale"], at["out_scale"], at["out_bias"], norm.epsilon, *statistics,
    )  # fmt: skip
    executable, wanted = with_implicit_operands(function, addresses, len(operands)), normalized.wanted(operands, order)
    return with_conversion_copies(title, call.device, operands, executable, wanted, beta or parameter_beta), results


def _gradient(
    call: Call, name: str, shape: tuple[int, ...], dtypes: tuple[ElementName, ...], beta: float
) -> TensorSpec:
    """A gradient with respect to a parameter: the array given for it, checked, or a new one of the first dtype."""
    if name in call.specs:
        return packed_like(call, name, shape, *dtypes)
    return resolve_output(call, name, shape, dtypes[0], None, beta)


def _scaled(operands: Sequence[Operand], beta: Any) -> list[Step]:
    """The gradients with respect to parameters for an empty batch: beta times the outs, or 0, unread, if beta is 0."""
    if not beta.value:
        return fills(operands, {"out_scale": 0.0, "out_bias": 0.0})
    return [
        Step(FunctionCall("cudnnScaleTensor", tensor_descriptor(operand.spec), OperandAddress(0), beta), (place,))
        for place, operand in enumerate(operands)
        if operand.name in ("out_scale", "out_bias") and 0 not in operand.spec.shape
    ]
