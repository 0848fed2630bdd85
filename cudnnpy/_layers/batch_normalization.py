"""Batch normalization and its gradients: the normalization nodes of graphs, else cuDNN's functions for batch normalization.

For training and gradients on an H200, as multiples of PyTorch's time:

- Channels last, the functions take 3 to 180 times, and the nodes 0.2 to 1.1. Where no engine takes a node (3 and 20 channels),
  the functions get copies that are channels first.
- Channels first, the functions take 0.1 to 1.1 times. For few long channels, each of which gets one block of the GPU, they take
  more (on copies up to 20), and the nodes 0.25 to 1.0.

CUDNN_BATCHNORM_SPATIAL_PERSISTENT is faster still channels first, but is documented to overflow for some inputs, so it is not
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_double
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, get_args

from cudnnpy import raw
from cudnnpy._arrays.array_libraries import check_writable
from cudnnpy._checks.call_arguments import should_compute_bias
from cudnnpy._checks.option_values import check_layout, check_number, check_option
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.layouts import (
    TensorSpec,
    are_channels_last,
    byte_extent,
    channels_last_strides,
    in_layout,
    packed_strides,
    per_channel,
    to_packed,
)
from cudnnpy._launch.array_operation import ArrayOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.implicit_operands import ConstantBuffer, OperandSources, scratch_buffer, with_implicit_operands
from cudnnpy._launch.operands import (
    check_no_overlaps,
    logical,
    logical_like,
    logical_result,
    packed_like,
    resolve_output,
)
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import (
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    in_parts,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._layers.arguments.normalization import (
    GRADIENTS,
    check_both_or_neither,
    check_channels,
    check_epsilon,
    parameter_dtypes,
    statistics_dtype,
    unpack_gradients,
)
from cudnnpy._layers.graph import Graph
from cudnnpy.descriptors import ActivationDescriptor, TensorDescriptor
from cudnnpy.typing import Array, ArrayT, ElementName, Layout, NormalizationActivation, NormalizationMode, Stream

_RANKS = range(2, 6)
_NAN = float("nan")
_DEFAULT_PARAMETERS = {"scale": 1.0, "bias": 0.0}
RUNNING = ("running_mean", "running_variance")
SAVED = ("saved_mean", "saved_inverse_variance")

# Channels first, graphs are faster for few long channels: the maximum of channels, and the minimum of elements in each.
_MAX_FEW_CHANNELS, _MIN_LONG_CHANNEL = 128, 1 << 16
_MIN_LAST_BYTES = 1 << 14  # of x, from which on graphs are worth compiling channels last

NORMALIZATION_MODES: tuple[NormalizationMode, ...] = get_args(NormalizationMode)


@with_suggestions
@dataclass(frozen=True)
class BatchNormalization(ArrayOperation):
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

    # Set-up, once for each call signature

    def _forward_training(
        self, call: Call, factor: float, activation: str | None, alpha: float, beta: float
    ) -> tuple[Program, list[TensorSpec]]:
        x = self._logical(call, "x")
        check_number("average_factor", factor, finite=True)
        scaling_arguments(alpha, beta, x.dtype)
        if activation is not None:
            check_option("activation", activation, ("relu",))
            if (alpha, beta) != (1.0, 0.0):
                raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
        normalized = self._normalized(x)
        parameters = _parameters(call, normalized, "scale", "bias")
        if check_both_or_neither(call.specs, *RUNNING):
            parameters |= _parameters(call, normalized, *RUNNING)
            for name in RUNNING:
                check_writable(name, call.arrays[name])
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = [Operand("x", x)]
        for name, spec in parameters.items():
            updated = name in RUNNING
            operands.append(Operand(name, normalized.logical(spec), is_result=updated, is_read=updated))
        operands.append(Operand("out", y, True))
        operands += [Operand(name, normalized.logical(normalized.statistics), True) for name in SAVED]
        check_no_overlaps(call, operands)
        results = [in_layout(y, normalized.channels_last), normalized.statistics, normalized.statistics]
        if 0 in x.shape:
            steps = _fill_steps(operands, {"saved_mean": 0.0, "saved_inverse_variance": _NAN})
            return Program("batch normalization", call.device, operands, steps), results
        prepared = _Training(call, self.epsilon, normalized, y, parameters, operands, factor, activation)
        return prepared.program(alpha, beta), results

    def _forward_inference(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = self._logical(call, "x")
        a, b = scaling_arguments(alpha, beta, x.dtype)
        normalized = self._normalized(x)
        names = ("scale", "bias", "mean", "variance")
        parameters = _parameters(call, normalized, *names)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = [Operand("x", x), *(Operand(name, normalized.logical(spec)) for name, spec in parameters.items())]
        operands.append(Operand("out", y, True))
        check_no_overlaps(call, operands)
        title, results = "batch normalization", [in_layout(y, normalized.channels_last)]
        if 0 in x.shape:
            return Program(title, call.device, operands, []), results
        sources = _operand_sources(call, ("x", "out", *names), operands, normalized.flat)

        def function(x: TensorSpec, y: TensorSpec) -> FunctionCall:
            one, two = tensor_descriptor(x), tensor_descriptor(y)
            values = [OperandAddress(index) for index in range(2, 6)]
            return FunctionCall(
                "cudnnBatchNormalizationForwardInference", normalized.kind, a, b, one, OperandAddress(0),
                two, OperandAddress(1), normalized.descriptor(), *values, self.epsilon,
            )  # fmt: skip

        executable = in_parts(function, *map(normalized.in_either_format, (x, y)), whole=len(names))
        specs = normalized.required_specs(operands, normalized.in_either_format)
        return _program(title, call, operands, executable, sources, specs, beta), results

    def _backward(
        self, call: Call, alpha: float, beta: float, parameter_alpha: float, parameter_beta: float, with_bias: bool
    ) -> tuple[Program, list[TensorSpec]]:
        """`with_bias`: dbias is a result; dscale is one if there is a scale."""
        data, parameter = (alpha, beta), (parameter_alpha, parameter_beta)
        dy = self._logical(call, "dy")
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        normalized = self._normalized(x)
        parameters = _parameters(call, normalized, "scale")
        saved = _saved(call, normalized)
        dx = logical_result(call, "out", x.shape, dy, self.layout, beta)
        a, b = scaling_arguments(*data, x.dtype)
        c, d = scaling_arguments(*parameter, x.dtype)
        dtypes = (parameters["scale"].dtype,) if parameters else (x.dtype, *parameter_dtypes(x.dtype))
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
        sources = _operand_sources(call, names, operands, normalized.flat)
        for memory_format in normalized.faster_formats(dy, dx) if saved and data == parameter == (1.0, 0.0) else ():
            planned = backward_graph(call.device, *map(memory_format, (dy, x, dx)))
            if planned is not None:
                specs = normalized.required_specs(operands, memory_format)
                program = _program(title, call, operands, planned, sources, specs)
                if call.allows(program.workspace_size):
                    return program, results
        at = {name: OperandAddress(place) for place, name in enumerate(names)}
        statistics = [at[name] for name in SAVED] if saved else [None, None]
        memory_format = normalized.format_of_function(call)
        tx, tdy, tdx = (tensor_descriptor(memory_format(spec)) for spec in (x, dy, dx))
        function = FunctionCall(
            "cudnnBatchNormalizationBackward", normalized.kind, a, b, c, d, tx, at["x"], tdy, at["dy"], tdx, at["out"],
            normalized.descriptor(), at["scale"], at["out_scale"], at["out_bias"], self.epsilon, *statistics,
        )  # fmt: skip
        specs = normalized.required_specs(operands, memory_format)
        return _program(title, call, operands, function, sources, specs, beta or parameter_beta), results

    def _logical(self, call: Call, name: str) -> TensorSpec:
        """Check x or dy; its axes as (N, C, spatial...)."""
        # An array of shape (0,) has one axis and no channels: PyTorch accepts it.
        ranks = range(1, 6) if call.specs[name].shape == (0,) else _RANKS
        return logical(call, name, self.layout, ranks, empty=True)

    def _normalized(self, x: TensorSpec) -> Normalized:
        return Normalized(x, self.mode == "spatial", self.layout.endswith("C") and len(x.shape) > 2)


# Memory formats, and the shapes of parameters


def as_channels_first(spec: TensorSpec) -> TensorSpec:
    """The tensor packed channels first, or a copy that is."""
    return spec if spec.strides == packed_strides(spec.shape) else to_packed(spec)


def as_channels_last(spec: TensorSpec) -> TensorSpec:
    """A tensor that is channels last in memory, with these strides for axes of size 1, too."""
    return spec._replace(strides=channels_last_strides(spec.shape))


class Normalized(NamedTuple):
    """The x of a call, with its axes as (N, C, spatial...), and the shapes and descriptors of its parameters."""

    x: TensorSpec
    spatial: bool  # the mode
    channels_last: bool  # the layout of the arrays themselves

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameters' shape, in the arrays' own layout."""
        if len(self.x.shape) == 1:
            return (0,)
        if self.spatial:
            return (self.x.shape[1],)
        return (*self.x.shape[2:], self.x.shape[1]) if self.channels_last else self.x.shape[1:]

    @property
    def statistics(self) -> TensorSpec:
        """A packed parameter of the statistics' dtype."""
        return TensorSpec(self.shape, statistics_dtype(self.x.dtype), packed_strides(self.shape))

    @property
    def flat(self) -> TensorSpec:
        """The same as one row."""
        return TensorSpec((math.prod(self.shape),), statistics_dtype(self.x.dtype), (1,))

    @property
    def kind(self) -> int:
        """The mode as the functions take it."""
        return int(raw.CUDNN_BATCHNORM_SPATIAL if self.spatial else raw.CUDNN_BATCHNORM_PER_ACTIVATION)

    def descriptor(self) -> TensorDescriptor:
        """The parameters' descriptor."""
        if self.spatial:
            rank = max(len(self.x.shape), 4)
            return TensorDescriptor((1, self.x.shape[1], *(1,) * (rank - 2)), statistics_dtype(self.x.dtype))
        shape = (1, *self.x.shape[1:])
        return tensor_descriptor(TensorSpec(shape, statistics_dtype(self.x.dtype), packed_strides(shape)))

    def logical(self, parameter: TensorSpec) -> TensorSpec:
        """A parameter for per_activation with its axes as (1, C, spatial...): the functions take these packed only."""
        if self.spatial:
            return parameter
        shape = (1, *self.x.shape[1:])
        strides = channels_last_strides(shape) if self.channels_last else packed_strides(shape)
        return parameter._replace(shape=shape, strides=strides)

    def in_either_format(self, spec: TensorSpec) -> TensorSpec:
        """An x or y as the functions support it: packed channels first, or, in mode "spatial", channels last."""
        return spec if self.spatial and spec.strides == channels_last_strides(spec.shape) else as_channels_first(spec)

    def format_of_function(self, call: Call) -> Callable[[TensorSpec], TensorSpec]:
        """The memory format in which the functions for training and the gradient get x, y and gradients.

        Channels first is the faster one. Without memory for copies, tensors that are channels last stay so.
        """
        return as_channels_first if call.memory_limit is None else self.in_either_format

    def required_specs(self, operands: Sequence[Operand], data: Callable[[TensorSpec], TensorSpec]) -> list[TensorSpec]:
        """Return the required specs of the operands: x, y and gradients converted by `data`, and packed parameters.

        The parameters have the dtype of the statistics.
        """
        return [
            data(operand.spec)
            if operand.name in ("dy", "x", "out")
            else to_packed(operand.spec, statistics_dtype(self.x.dtype))
            for operand in operands
        ]

    def faster_formats(self, *others: TensorSpec) -> list[Callable[[TensorSpec], TensorSpec]]:
        """The memory formats in which the node of a graph is faster than the function, the fastest first.

        These are channels last, which the function is slow in, and channels first, if necessary on copies, for few long
        channels. Images of one position are channels last. The nodes take aligned tensors of 16 or 32 bits.
        """
        x, tensors = self.x, (self.x, *others)
        count = x.shape[0] * math.prod(x.shape[2:])  # values for each channel
        aligned = all(t.alignment >= 16 for t in tensors)
        if not self.spatial or x.dtype == "float64" or count == 1 or not aligned or len(x.shape) not in (4, 5):
            return []
        last = are_channels_last(*tensors) and byte_extent(x) >= _MIN_LAST_BYTES
        first = all(t.strides == packed_strides(t.shape) for t in tensors)
        few = x.shape[1] <= _MAX_FEW_CHANNELS and count >= _MIN_LONG_CHANNEL
        return [
            *([as_channels_last] if last else []),
            *([as_channels_first] if few and (first or last) else []),
        ]


# Checked arguments, and implicit operands for missing ones


def _scale_and_bias(call: Call, x: TensorSpec, shape: tuple[int, ...], names: Sequence[str]) -> dict[str, TensorSpec]:
    """Return the scale and bias of a call, checked, by name. Raises TypeError if their dtypes differ."""
    parameters = {
        name: packed_like(call, name, shape, *parameter_dtypes(x.dtype)) for name in names if name in call.specs
    }
    if len({spec.dtype for spec in parameters.values()}) > 1:
        raise TypeError(f"bias must be {parameters['scale'].dtype}, as scale; got {parameters['bias'].dtype}")
    return parameters


def _operand_sources(
    call: Call, names: Sequence[str], operands: Sequence[Operand], parameter: TensorSpec
) -> OperandSources:
    """Return for each name the index of its operand, or the buffer of a missing one.

    A missing scale or bias is a constant buffer, and a missing result a scratch buffer.

    `parameter` is the spec of the missing ones.
    """
    places = {operand.name: place for place, operand in enumerate(operands)}
    return [
        places[name]
        if name in places
        else ConstantBuffer(parameter, _DEFAULT_PARAMETERS[name], call)
        if name in _DEFAULT_PARAMETERS
        else scratch_buffer(parameter)
        for name in names
    ]


def _fill_steps(operands: Sequence[Operand], values: dict[str, float]) -> list[Step]:
    """Return steps that fill the operands named in `values`, each with its value. Empty operands are omitted."""
    return [
        Step(fill(operand.spec, values[operand.name]), (place,))
        for place, operand in enumerate(operands)
        if operand.name in values and 0 not in operand.spec.shape
    ]


def _parameters(call: Call, normalized: Normalized, *names: str) -> dict[str, TensorSpec]:
    """Check parameters of a call and return them by name. A missing scale or bias is omitted."""
    x, shape = normalized.x, normalized.shape
    found = _scale_and_bias(call, x, shape, [name for name in names if name in _DEFAULT_PARAMETERS])
    if normalized.spatial or len(x.shape) == 1:
        check_channels(call.specs, shape[0])
    others = [name for name in names if name not in _DEFAULT_PARAMETERS]
    return found | {name: packed_like(call, name, shape, *parameter_dtypes(x.dtype)) for name in others}


def _saved(call: Call, normalized: Normalized) -> dict[str, TensorSpec]:
    """Check the statistics that forward_training saved and return them by name; {} if they are not given."""
    if not check_both_or_neither(call.specs, *SAVED):
        return {}
    return {name: packed_like(call, name, normalized.shape, statistics_dtype(normalized.x.dtype)) for name in SAVED}


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
        return _fill_steps(operands, {"out_scale": 0.0, "out_bias": 0.0})
    return [
        Step(FunctionCall("cudnnScaleTensor", tensor_descriptor(operand.spec), OperandAddress(0), beta), (place,))
        for place, operand in enumerate(operands)
        if operand.name in ("out_scale", "out_bias") and 0 not in operand.spec.shape
    ]


def _program(
    name: str,
    call: Call,
    operands: Sequence[Operand],
    executable: Executable,
    sources: OperandSources,
    specs: Sequence[TensorSpec],
    beta: float = 0.0,
) -> Program:
    """Return the program of an executable on addresses from `sources`, whose operands need the memory formats of `specs`."""
    return with_conversion_copies(
        name, call.device, operands, with_implicit_operands(executable, sources, len(operands)), specs, beta
    )


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
        """Return the fastest program within the memory of the call."""
        sources = _operand_sources(self.call, self.names, self.operands, self.normalized.flat)
        for memory_format in self.normalized.faster_formats(self.y) if (alpha, beta) == (1.0, 0.0) else ():
            program = self._by_graph(sources, memory_format)
            if program is not None and self.call.allows(program.workspace_size):
                return program
        return self._by_function(sources, alpha, beta)

    def _by_graph(self, sources: OperandSources, memory_format: Callable[[TensorSpec], TensorSpec]) -> Program | None:
        """The graph in a memory format; None where cuDNN has no engine for it."""
        x, y, running, device = (
            memory_format(self.normalized.x),
            memory_format(self.y),
            bool(self.running),
            self.call.device,
        )
        planned = training_graph(device, self.epsilon, x, y, self.factor, self.activation, running)
        if planned is None:
            return None
        updated = [sources[self.names.index(name)] for name in self.running]  # in place
        specs = self.normalized.required_specs(self.operands, memory_format)
        return _program("batch normalization", self.call, self.operands, planned, [*sources, *updated], specs)

    def _by_function(self, sources: OperandSources, alpha: float, beta: float) -> Program:
        """cudnnBatchNormalizationForwardTraining, then the activation, and running statistics that it does not update."""
        x, y = self.normalized.x, self.y
        at = {name: OperandAddress(place) for place, name in enumerate(self.names)}
        # running-variance-of-one-value in docs/known-issues.md
        single = bool(self.running) and math.prod(x.shape) == math.prod(self.normalized.shape)
        running = (None, None) if single or not self.running else (at["running_mean"], at["running_variance"])
        a, b = scaling_arguments(alpha, beta, x.dtype)
        memory_format = self.normalized.format_of_function(self.call)
        one, two = (tensor_descriptor(memory_format(spec)) for spec in (x, y))
        function = FunctionCall(
            "cudnnBatchNormalizationForwardTraining", self.normalized.kind, a, b, one, at["x"], two, at["out"],
            self.normalized.descriptor(), at["scale"], at["bias"], c_double(self.factor).value, *running, self.epsilon,
            at["saved_mean"], at["saved_inverse_variance"],
        )  # fmt: skip
        specs = self.normalized.required_specs(self.operands, memory_format)
        program = _program("batch normalization", self.call, self.operands, function, sources, specs, beta)
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
        share = scaling_arguments(1 - factor, 0.0, statistics.dtype)[0]
        new_mean = copy(statistics, mean, factor, 1 - factor)
        new_variance = FunctionCall("cudnnScaleTensor", tensor_descriptor(variance), OperandAddress(0), share)
        return [
            Step(new_mean, (self._place("saved_mean"), self._place("running_mean"))),
            Step(new_variance, (self._place("running_variance"),)),
        ]

    def _place(self, name: str) -> int:
        return [operand.name for operand in self.operands].index(name)


# Operation graphs
#
# The operands of a graph are its inputs, then its results, each in the order of the arguments of cuDNN's function; updated
# running statistics come last. The functions return None if cuDNN has no engine for the graph.


def training_graph(
    device: int, epsilon: float, x: TensorSpec, y: TensorSpec, factor: float, activation: str | None, running: bool
) -> Executable | None:
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


def backward_graph(device: int, dy: TensorSpec, x: TensorSpec, dx: TensorSpec) -> Executable | None:
    """Inputs: dy, x, scale and the saved statistics. Results: dx, dscale and dbias."""
    graph = Graph()
    one, two, scale = graph.tensor("dy", dy), graph.tensor("x", x), graph.tensor("scale", per_channel(x))
    mean, inverse = (graph.tensor(name, per_channel(x)) for name in SAVED)
    made = graph.normalization_backward("batch_norm", one, two, scale, mean, inverse)
    graph.output("out", made[0], None, dx.strides)
    for name, node in zip(("dscale", "dbias"), made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph.executable(device)


def _computed_results(results: dict[str, Any], computed: tuple[bool, bool]) -> dict[str, Any]:
    """Return the results of a gradient that are computed; ValueError for an array for another one."""
    names = ["out"]
    for name, is_computed in zip(("out_scale", "out_bias"), computed, strict=True):
        if is_computed:
            names.append(name)
        elif results[name] is not None:
            raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
    return {name: results[name] for name in names}
