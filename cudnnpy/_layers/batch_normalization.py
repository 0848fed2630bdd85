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
from collections.abc import Callable, Container, Iterable, Sequence
from ctypes import c_double
from dataclasses import KW_ONLY, dataclass
from itertools import compress
from typing import Any, NamedTuple, TypeAlias, cast, get_args

from cudnnpy import raw
from cudnnpy._arrays.array_libraries import check_writable
from cudnnpy._checks.call_arguments import check_scales, should_compute_bias
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
from cudnnpy._launch.dispatch import ArrayOperation, Call
from cudnnpy._launch.operands import (
    check_input,
    check_like,
    check_no_overlaps,
    packed_like,
    resolve_output,
)
from cudnnpy._launch.program import Operand, Program, StepBuilder, with_conversion_copies
from cudnnpy._launch.steps import (
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    fill,
    fill_or_scale,
    in_parts,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._layers.graph import Graph
from cudnnpy._planning.plan import Plan
from cudnnpy.descriptors import ActivationDescriptor, TensorDescriptor
from cudnnpy.typing import Array, ArrayT, ElementName, Layout, NormalizationActivation, NormalizationMode, Stream

_RANKS = range(2, 6)
_DEFAULT_PARAMETERS = {"scale": 1.0, "bias": 0.0}
RUNNING = ("running_mean", "running_variance")
SAVED = ("saved_mean", "saved_inverse_variance")
GRADIENTS = ("out_scale", "out_bias")

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
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(
        self,
        x: ArrayT,
        scale: Array | None = None,
        bias: Array | None = None,
        running_mean: Array | None = None,
        running_variance: Array | None = None,
        *,
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
            Both or neither. PyTorch's batch_norm has them before scale and bias: give them by name. They are updated in place:
            (1 - average_factor) * running + average_factor * the batch's, with the unbiased variance (the biased one of a
            single value). An empty x leaves them unchanged.
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
        name, names = "BatchNormalization.forward_training", ("x", "scale", "bias", *RUNNING, "out", *SAVED)
        inputs, outs = (x, scale, bias, running_mean, running_variance), (out, None, None)
        factors = average_factor, activation, alpha, beta
        return self._run(name, self, type(self)._forward_training, names, inputs, outs, stream, *factors)

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
            Parameters, such as the running ones; by name, as for `forward_training`.
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
        results: dict[str, Any] = {"out": out}
        wanted = ("out_scale", out_scale, scale is not None), ("out_bias", out_bias, should_compute_bias(bias, scale))
        for name, array, is_computed in wanted:
            if is_computed:
                results[name] = array
            elif array is not None:
                raise ValueError(f"{name} must be None where there is no {name[4:]}; got an array")
        name, names = "BatchNormalization.backward", ("dy", "x", "scale", *SAVED, *results)
        inputs, outs = (dy, x, scale, saved_mean, saved_inverse_variance), tuple(results.values())
        factors = alpha, beta, parameter_alpha, parameter_beta, "out_bias" in results
        found = self._run(name, self, type(self)._backward, names, inputs, outs, stream, *factors)
        made = dict(zip(results, found if len(results) > 1 else (found,), strict=True))
        return made["out"], made.get("out_scale"), made.get("out_bias")

    # Set-up, once for each call signature

    def _forward_training(
        self, call: Call, factor: float, activation: str | None, alpha: float, beta: float
    ) -> tuple[Program, list[TensorSpec]]:
        normalized, operands = self._training_operands(call, factor, activation, alpha, beta)
        x, y = normalized.x, next(operand.spec for operand in operands if operand.name == "out")
        running = RUNNING if RUNNING[0] in call.specs else ()
        for name in running:
            check_writable(name, call.arrays[name])
        a, b = scaling_arguments(alpha, beta, x.dtype)
        results = [in_layout(y, normalized.channels_last), normalized.statistics, normalized.statistics]
        prepared = _Prepared("batch normalization", call, normalized, operands)
        if 0 in x.shape:
            return prepared.without_elements({"saved_mean": 0.0, "saved_inverse_variance": math.nan}), results
        names = ("x", "scale", "bias", *running, "out", *SAVED)
        if (alpha, beta) == (1.0, 0.0):
            graphs = (
                (data, _training_graph(self.epsilon, data(x), data(y), factor, activation, bool(running)))
                for data in normalized.faster_formats(y)
            )
            if (program := prepared.by_graph((*names, *running), graphs)) is not None:
                return program, results
        data = normalized.format_of_function(call)
        one, two = tensor_descriptor(data(x)), tensor_descriptor(data(y))
        # running-variance-of-one-value in docs/known-issues.md
        is_single = bool(running) and math.prod(x.shape) == math.prod(normalized.shape)
        at = {name: OperandAddress(place) for place, name in enumerate(names)}
        in_place = [at[name] for name in running] if running and not is_single else [None, None]
        function = FunctionCall(
            "cudnnBatchNormalizationForwardTraining", normalized.kind, a, b, one, at["x"], two, at["out"],
            normalized.descriptor(), at["scale"], at["bias"], c_double(factor).value, *in_place, self.epsilon,
            at["saved_mean"], at["saved_inverse_variance"],
        )  # fmt: skip
        steps: list[_NamedStep] = [(function, names)]
        if activation == "relu":
            relu, zero = ActivationDescriptor("relu", propagate_nan=True), scaling_arguments(0.0, 0.0, x.dtype)[0]
            here = OperandAddress(0)
            steps.append((FunctionCall("cudnnActivationForward", relu, a, two, here, zero, two, here), ("out",)))
        if is_single:  # the only value is the mean, and its variance is 0
            flat = normalized.flat
            share = scaling_arguments(1 - factor, 0.0, flat.dtype)[0]
            scaled = FunctionCall("cudnnScaleTensor", tensor_descriptor(flat), OperandAddress(0), share)
            steps += [
                (copy(flat, flat, factor, 1 - factor), ("saved_mean", "running_mean")),
                (scaled, ("running_variance",)),
            ]
        return prepared.program(steps, data, beta), results

    def _forward_inference(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        normalized, operands = self._inference_operands(call, alpha, beta)
        x, y, names = normalized.x, operands[-1].spec, ("scale", "bias", "mean", "variance")
        a, b = scaling_arguments(alpha, beta, x.dtype)
        results = [in_layout(y, normalized.channels_last)]
        prepared = _Prepared("batch normalization", call, normalized, operands)
        if 0 in x.shape:
            return prepared.without_elements({}), results

        def function(x: TensorSpec, y: TensorSpec) -> FunctionCall:
            one, two = tensor_descriptor(x), tensor_descriptor(y)
            values = [OperandAddress(index) for index in range(2, 6)]
            return FunctionCall(
                "cudnnBatchNormalizationForwardInference", normalized.kind, a, b, one, OperandAddress(0),
                two, OperandAddress(1), normalized.descriptor(), *values, self.epsilon,
            )  # fmt: skip

        executable = in_parts(function, *map(normalized.in_either_format, (x, y)), whole=len(names))
        return prepared.program([(executable, ("x", "out", *names))], normalized.in_either_format, beta), results

    def _backward(
        self, call: Call, alpha: float, beta: float, parameter_alpha: float, parameter_beta: float, with_bias: bool
    ) -> tuple[Program, list[TensorSpec]]:
        """`with_bias`: dbias is a result; dscale is one if there is a scale."""
        factors = (alpha, beta), (parameter_alpha, parameter_beta)
        normalized, operands = self._backward_operands(call, *factors[0], *factors[1], with_bias)
        tensors = {operand.name: operand.spec for operand in operands}
        x, dy, dx = (tensors[name] for name in ("x", "dy", "out"))
        (a, b), (c, d) = (scaling_arguments(*pair, x.dtype) for pair in factors)
        packed = normalized.statistics
        gradients = [packed._replace(dtype=tensors[name].dtype) for name in GRADIENTS if name in tensors]
        results = [in_layout(dx, normalized.channels_last), *gradients]
        saved = SAVED if SAVED[0] in call.specs else ()
        prepared = _Prepared("batch normalization gradient", call, normalized, operands)
        if 0 in x.shape:
            return prepared.without_elements(dict.fromkeys(GRADIENTS, 0.0), parameter_beta), results
        names = ("dy", "x", "scale", *saved, "out", *GRADIENTS)
        if saved and factors == ((1.0, 0.0), (1.0, 0.0)):
            graphs = (
                (data, _backward_graph(data(dy), data(x), data(dx))) for data in normalized.faster_formats(dy, dx)
            )
            if (program := prepared.by_graph(names, graphs)) is not None:
                return program, results
        at = {name: OperandAddress(place) for place, name in enumerate(names)}
        statistics = [at[name] for name in SAVED] if saved else [None, None]
        data = normalized.format_of_function(call)
        tx, tdy, tdx = (tensor_descriptor(data(spec)) for spec in (x, dy, dx))
        function = FunctionCall(
            "cudnnBatchNormalizationBackward", normalized.kind, a, b, c, d, tx, at["x"], tdy, at["dy"], tdx, at["out"],
            normalized.descriptor(), at["scale"], at["out_scale"], at["out_bias"], self.epsilon, *statistics,
        )  # fmt: skip
        return prepared.program([(function, names)], data, beta or parameter_beta), results

    # The arrays of a call, checked, with their axes as (N, C, spatial...)

    def _training_operands(
        self, call: Call, factor: float, activation: str | None, alpha: float, beta: float
    ) -> tuple[Normalized, Sequence[Operand]]:
        x = self._logical(call, "x")
        check_number("average_factor", factor, finite=True)
        check_scales(alpha, beta, out=call.specs.get("out"))
        if activation is not None:
            check_option("activation", activation, ("relu",))
            if (alpha, beta) != (1.0, 0.0):
                raise ValueError(f"alpha and beta must be 1 and 0 with an activation; got {alpha} and {beta}")
        normalized = self._normalized(x)
        parameters = _parameters(call, normalized, "scale", "bias")
        if check_both_or_neither(call.specs, *RUNNING):
            parameters |= _parameters(call, normalized, *RUNNING)
        y = resolve_output(call, "out", x.shape, x.dtype, x, self.layout)
        operands = [Operand("x", x)]
        for name, spec in parameters.items():
            updated = name in RUNNING
            operands.append(Operand(name, normalized.logical(spec), is_result=updated, is_read=updated))
        operands.append(Operand("out", y, True))
        operands += [Operand(name, normalized.logical(normalized.statistics), True) for name in SAVED]
        return normalized, check_no_overlaps(call, operands)

    def _inference_operands(self, call: Call, alpha: float, beta: float) -> tuple[Normalized, Sequence[Operand]]:
        x = self._logical(call, "x")
        check_scales(alpha, beta, out=call.specs.get("out"))
        normalized = self._normalized(x)
        parameters = _parameters(call, normalized, "scale", "bias", "mean", "variance")
        y = resolve_output(call, "out", x.shape, x.dtype, x, self.layout)
        others = (Operand(name, normalized.logical(spec)) for name, spec in parameters.items())
        return normalized, check_no_overlaps(call, [Operand("x", x), *others, Operand("out", y, True)])

    def _backward_operands(
        self, call: Call, alpha: float, beta: float, parameter_alpha: float, parameter_beta: float, with_bias: bool
    ) -> tuple[Normalized, Sequence[Operand]]:
        outs = tuple(compress(GRADIENTS, ("scale" in call.specs, with_bias)))
        check_scales(alpha, beta, out=call.specs.get("out"))
        check_scales(parameter_alpha, parameter_beta, prefix="parameter_", **{n: call.specs.get(n) for n in outs})
        dy = self._logical(call, "dy")
        x = check_like(call, "x", dy.shape, dy.dtype, self.layout)
        normalized = self._normalized(x)
        parameters = _parameters(call, normalized, "scale")
        saved = _saved(call, normalized)
        dx = resolve_output(call, "out", x.shape, dy.dtype, dy, self.layout)
        dtypes = (parameters["scale"].dtype,) if parameters else (x.dtype, *parameter_dtypes(x.dtype))
        gradients = {name: _gradient(call, name, normalized.shape, dtypes) for name in outs}
        operands = [Operand("dy", dy), Operand("x", x)]
        operands += [Operand(name, normalized.logical(spec)) for name, spec in (parameters | saved).items()]
        operands.append(Operand("out", dx, True))
        operands += [Operand(name, normalized.logical(spec), True) for name, spec in gradients.items()]
        return normalized, check_no_overlaps(call, operands)

    def _logical(self, call: Call, name: str) -> TensorSpec:
        """Check x or dy; its axes as (N, C, spatial...)."""
        # An array of shape (0,) has one axis and no channels: PyTorch accepts it.
        ranks = range(1, 6) if call.specs[name].shape == (0,) else _RANKS
        return check_input(call, name, ranks, empty=True, layout=self.layout)

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
        _, channels, *spatial = self.x.shape
        shape = (1, channels, *(1 if self.spatial else size for size in spatial))
        return tensor_descriptor(TensorSpec(shape, self.flat.dtype, packed_strides(shape)))

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


_NamedStep: TypeAlias = tuple[Executable, tuple[str, ...]]  # an executable and the names of its operands


class _Prepared(NamedTuple):
    """A call whose arguments are checked, with its operands."""

    title: str
    call: Call
    normalized: Normalized
    operands: Sequence[Operand]

    def program(
        self,
        steps: Sequence[_NamedStep],
        data: Callable[[TensorSpec], TensorSpec],
        beta: float = 0.0,
        plan: Plan | None = None,
    ) -> Program:
        """Return the program of steps on x, y and gradients in a memory format, and on packed parameters.

        The parameters have the dtype of the statistics. A missing scale is 1, a missing bias 0, and a missing result is
        dropped: they are in scratch memory.
        """
        flat = self.normalized.flat
        wanted = [
            data(operand.spec) if operand.name in ("dy", "x", "out") else to_packed(operand.spec, flat.dtype)
            for operand in self.operands
        ]
        builder = StepBuilder({operand.name: spec for operand, spec in zip(self.operands, wanted, strict=True)})
        tensors = dict(builder.operands)
        for executable, names in steps:
            for name in names:
                if name not in tensors:
                    tensors[name] = builder.scratch(flat)
                    if name in _DEFAULT_PARAMETERS:
                        builder.add(fill(flat, _DEFAULT_PARAMETERS[name]), tensors[name])
            builder.add(executable, *map(tensors.__getitem__, names))
        return with_conversion_copies(
            self.title, self.call.device, self.operands, builder.sequence(), wanted, beta, plan
        )

    def by_graph(
        self, names: tuple[str, ...], graphs: Iterable[tuple[Callable[[TensorSpec], TensorSpec], Graph]]
    ) -> Program | None:
        """Return the program of the first graph that an engine runs within the memory of the call; None if there is none.

        `graphs` are in the memory formats beside them. `names` are the operands of their inputs, then of their outputs.
        """
        for data, graph in graphs:
            plan = graph._plan_if_supported(self.call)
            if plan is not None:
                program = self.program([(plan.executable, names)], data, plan=plan)
                if self.call.allows(program.workspace_size):
                    return program
        return None

    def without_elements(self, values: dict[str, float], beta: float = 0.0) -> Program:
        """Return the program for an empty x: the operands named in `values` become these, or themselves times beta."""
        steps = [
            Step(fill_or_scale(operand.spec, values[operand.name], beta), (at,))
            for at, operand in enumerate(self.operands)
            if operand.name in values and 0 not in operand.spec.shape
        ]
        return Program(self.title, self.call.device, self.operands, steps)


# Checked arguments


def _parameters(call: Call, normalized: Normalized, *names: str) -> dict[str, TensorSpec]:
    """Check parameters of a call and return them by name. A missing scale or bias is omitted."""
    x, shape = normalized.x, normalized.shape
    found = {
        name: packed_like(call, name, shape, *parameter_dtypes(x.dtype))
        for name in names
        if name in call.specs or name not in _DEFAULT_PARAMETERS
    }
    if len({spec.dtype for name, spec in found.items() if name in _DEFAULT_PARAMETERS}) > 1:
        raise TypeError(f"bias must be {found['scale'].dtype}, as scale; got {found['bias'].dtype}")
    if normalized.spatial or len(x.shape) == 1:
        check_channels(call.specs, shape[0])
    return found


def _saved(call: Call, normalized: Normalized) -> dict[str, TensorSpec]:
    """Check the statistics that forward_training saved and return them by name; {} if they are not given."""
    if not check_both_or_neither(call.specs, *SAVED):
        return {}
    return {name: packed_like(call, name, normalized.shape, statistics_dtype(normalized.x.dtype)) for name in SAVED}


def _gradient(call: Call, name: str, shape: tuple[int, ...], dtypes: tuple[ElementName, ...]) -> TensorSpec:
    """A gradient with respect to a parameter: the array given for it, checked, or a new one of the first dtype."""
    if name in call.specs:
        return packed_like(call, name, shape, *dtypes)
    return resolve_output(call, name, shape, dtypes[0])


def statistics_dtype(dtype: str) -> ElementName:
    """Return the dtype of the statistics of an x of this dtype: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def parameter_dtypes(dtype: str) -> tuple[ElementName, ...]:
    """Return the dtypes allowed for scale and bias of an x of this dtype: the same, and float32 for 16 bits."""
    own = cast(ElementName, dtype)
    return (own,) if own in ("float32", "float64") else ("float32", own)


def check_both_or_neither(given: Container[str], first: str, second: str) -> bool:
    """Return whether two arrays that belong together are among the given names; ValueError for one without the other."""
    if (first in given) != (second in given):
        present, missing = (first, second) if first in given else (second, first)
        raise ValueError(f"{present} and {missing} must be passed together; got None for {missing}")
    return first in given


def check_channels(given: Container[str], count: int) -> None:
    """Raise ValueError for a scale or bias where x has 0 channels, as PyTorch does."""
    for name in ("scale", "bias"):
        if not count and name in given:
            raise ValueError(f"{name} must be None for an x of 0 channels; got an array")


# Operation graphs
#
# The operands of a graph are its inputs, then its results, each in the order of the arguments of cuDNN's function; updated
# running statistics come last.


def _training_graph(
    epsilon: float, x: TensorSpec, y: TensorSpec, factor: float, activation: str | None, running: bool
) -> Graph:
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
    return graph


def _backward_graph(dy: TensorSpec, x: TensorSpec, dx: TensorSpec) -> Graph:
    """Inputs: dy, x, scale and the saved statistics. Results: dx, dscale and dbias."""
    graph = Graph()
    one, two, scale = graph.tensor("dy", dy), graph.tensor("x", x), graph.tensor("scale", per_channel(x))
    mean, inverse = (graph.tensor(name, per_channel(x)) for name in SAVED)
    made = graph.normalization_backward("batch_norm", one, two, scale, mean, inverse)
    graph.output("out", made[0], None, dx.strides)
    for name, node in zip(("dscale", "dbias"), made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph
