"""FusedConvolution: a convolution followed by a scale, a bias, a residual and an activation, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudnnpy import raw
from cudnnpy._arrays.device_array import current_device
from cudnnpy._checks.call_arguments import check_activation
from cudnnpy._checks.option_values import in_array_order
from cudnnpy._convolution.options import FusedOptions
from cudnnpy._convolution.sizes import Geometry, geometry, output_shape, output_shape_in_layout
from cudnnpy._convolution.specification import result_in_layout
from cudnnpy._core.layouts import (
    TensorSpec,
    at_least_4d,
    byte_extent,
    channels_last_strides,
    per_channel,
    result_strides,
)
from cudnnpy._launch.dispatch import ArrayOperation, Call, Specs
from cudnnpy._launch.operands import check_input, check_like, check_no_overlaps, packed_like, resolve_output
from cudnnpy._launch.program import Operand, Program, is_converted, with_conversion_copies
from cudnnpy._layers.arguments import specs_and_device
from cudnnpy._layers.convolution import program_on_zeros, zeros_for
from cudnnpy._layers.graph import Graph
from cudnnpy._planning.chooser import OtherGpu
from cudnnpy._planning.plan import Plan
from cudnnpy.names import enumerator
from cudnnpy.typing import Array, ArrayT, FusedActivation, Shape, Stream

if TYPE_CHECKING:
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile

ACTIVATIONS = ("relu", "sigmoid", "tanh", "elu", "swish")
DTYPES = ("float16", "bfloat16", "float32")
_RANKS = range(3, 6)
_PARAMETERS = ("scale", "bias")
_COEFFICIENTS = {"elu": {"elu_alpha": 1.0}, "swish": {"swish_beta": 1.0}}
_NAMES = ("x", "w", *_PARAMETERS, "residual", "out")


class FusedConvolution(FusedOptions, ArrayOperation):
    """activation(scale * convolution(x, w) + bias + residual) in one launch.

    On a GPU, engines that fuse take float16 and bfloat16, and float32 as tf32, channels last in memory. Tensors in another
    memory format are copied before and after.

    Parameters
    ----------
    padding, stride, dilation, groups, mode, layout, prefer, workspace_limit, deterministic, tf32, tune_seconds
        As for `Convolution`.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays, streams and errors are as for `Convolution`. A batch of 0 gives an empty result; sums over 0 channels in x and w
    are 0. `cudnnpy.reference` computes in float64 and rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x, w = np.ones((8, 32, 16, 16), np.float16), np.ones((64, 32, 3, 3), np.float16)
    >>> fused = reference.FusedConvolution(padding=1)
    >>> fused.forward(x, w, bias=np.full(64, -1, np.float16), activation="relu").shape
    (8, 64, 16, 16)
    """

    uses_suggested_format = True  # for a result, if the memory formats of x and w are ambiguous (dispatch.Owner)

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        return output_shape_in_layout(self, x_shape, w_shape)

    def forward(
        self,
        x: ArrayT,
        w: Array,
        scale: Array | None = None,
        bias: Array | None = None,
        residual: Array | None = None,
        activation: FusedActivation | None = "relu",
        out: ArrayT | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute activation(scale * convolution(x, w) + bias + residual) (cudnnBackendExecute).

        Parameters
        ----------
        x : array
            (N, C, spatial...), in float16, bfloat16 or float32.
        w : array
            (K, C / groups, spatial...), of x's dtype.
        scale, bias : array, optional
            (K,), packed, of x's dtype or float32.
        residual : array, optional
            Of the result's shape and x's dtype.
        activation : {"relu", "sigmoid", "tanh", "elu", "swish"} or None
            The activation.
        out : array, optional
            The result, (N, K, spatial...), of x's dtype.
        stream : stream, optional
            Where the work is queued; by default the library's current stream.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory format.
        """
        name, inputs = "FusedConvolution.forward", (x, w, scale, bias, residual)
        return self._run(name, self, type(self)._forward, _NAMES, inputs, (out,), stream, activation)

    def plan(
        self,
        x: Array | TensorSpec,
        w: Array | TensorSpec,
        scale: Array | TensorSpec | None = None,
        bias: Array | TensorSpec | None = None,
        residual: Array | TensorSpec | None = None,
        activation: FusedActivation | None = "relu",
        out: Array | TensorSpec | None = None,
        *,
        device: int | DeviceProfile | None = None,
    ) -> Plan:
        """Choose the plan of a forward, to be executed with raw addresses. Each call plans again.

        Parameters
        ----------
        x, w, scale, bias, residual, out : array or TensorSpec
            As for `forward`, but channels last in memory and aligned to 16 bytes, since a plan makes no copies.
        activation : {"relu", "sigmoid", "tanh", "elu", "swish"} or None
            The activation.
        device : int or DeviceProfile, optional
            As for `Convolution.plan`.

        Returns
        -------
        Plan
            The plan, whose operands are the given tensors in the order above.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit, a tensor is not channels last, or one is empty.
        NoAlgorithmError
            No engine can run; the message has the table of candidates.
        """
        given = dict(zip(_NAMES, (x, w, scale, bias, residual, out), strict=True))
        specs, ordinal = specs_and_device(given, device)
        check_activation(activation, ACTIVATIONS)
        operands = self._operands(Call(Specs(specs), {}, ordinal or 0, 0, {}))
        if empty := [operand.name for operand in operands if not byte_extent(operand.spec)]:
            raise ValueError(f"a planned problem must have elements; got none in {', '.join(empty)}")
        wanted = _specs_of_engines(operands)
        for operand, spec in zip(operands, wanted, strict=True):
            if is_converted(operand.spec, spec):
                assert operand.spec.strides is not None
                raise ValueError(
                    f"{operand.name} must be channels last and aligned to 16 bytes, since a plan makes no copies; got strides "
                    f"{in_array_order(operand.spec.strides, self.layout)} and an alignment of {operand.spec.alignment}. Pass "
                    "strides, or use layout='NHWC'"
                )
        spatial = geometry(self, operands[0].spec.shape[2:], operands[1].spec.shape[2:])
        graph = self._graph(operands, wanted, spatial, activation)
        if isinstance(device, OtherGpu):
            return graph.plan(device)
        return graph.plan(current_device() if ordinal is None else ordinal)

    def _forward(self, call: Call, activation: str | None) -> tuple[Program, list[TensorSpec]]:
        check_activation(activation, ACTIVATIONS)
        operands = given_operands = self._operands(call)
        x, w, y = (operands[at].spec for at in (0, 1, -1))
        spatial = geometry(self, x.shape[2:], w.shape[2:])
        results = [result_in_layout(self, y, x, w, y)]
        if not byte_extent(y):
            return Program("convolution of empty tensors", call.device, operands, []), results
        has_channels = byte_extent(x) > 0
        if not has_channels:  # zeros in scratch memory replace x and w
            x, w, spatial = zeros_for(_last(y), x.dtype)
            operands = [Operand("x", x), Operand("w", w), *operands[2:]]
        wanted = _specs_of_engines(operands)
        graph = self._graph(operands, wanted, spatial, activation)
        copies = [byte_extent(spec) for o, spec in zip(operands, wanted, strict=True) if is_converted(o.spec, spec)]
        zeros = () if has_channels else (byte_extent(x), byte_extent(w))
        plan = graph._plan_in(call, *copies, *zeros)
        program = with_conversion_copies(plan.name, call.device, operands, plan.executable, wanted, plan=plan)
        if has_channels:
            return program, results
        return program_on_zeros(plan.name, call.device, given_operands, (x, w), program.executable, plan), results

    def _operands(self, call: Call) -> Sequence[Operand]:
        """Check the arrays of a call; return x, w, the optional ones and out, in logical order."""
        x = check_input(call, "x", _RANKS, DTYPES, empty=True, layout=self.layout)
        w = check_input(call, "w", _RANKS, DTYPES, empty=True, layout=self.layout)
        if w.dtype != x.dtype:
            raise TypeError(f"w must be {x.dtype}, as x; got {w.dtype}")
        shape = output_shape(self, x.shape, w.shape)
        order = TensorSpec(shape, x.dtype, result_strides(shape, x, w, last=call.suggests_channels_last))
        y = resolve_output(call, "out", shape, order.dtype, order, self.layout)
        operands = [Operand("x", x), Operand("w", w)]
        for name in _PARAMETERS:
            if name in call.specs:
                dtype = check_input(call, name, range(1, 2), tuple({x.dtype: 0, "float32": 0})).dtype
                operands.append(Operand(name, packed_like(call, name, (shape[1],), dtype)))
        if "residual" in call.specs:
            operands.append(Operand("residual", check_like(call, "residual", shape, x.dtype, self.layout)))
        return check_no_overlaps(call, [*operands, Operand("out", y, True)])

    def _graph(
        self, operands: Sequence[Operand], wanted: Sequence[TensorSpec], spatial: Geometry, activation: str | None
    ) -> Graph:
        """Return the graph of the convolution and the operations after it, on the tensors `wanted`."""
        x, y = operands[0].spec, operands[-1].spec
        graph = Graph(**self._preferences())
        tensors = {}
        for operand, spec in zip(operands[:-1], wanted, strict=False):
            like = per_channel(at_least_4d(y), spec.dtype) if operand.name in _PARAMETERS else at_least_4d(spec)
            tensors[operand.name] = graph.tensor(operand.name, like._replace(alignment=spec.alignment))
        rank = max(len(spatial.stride), 2)  # a single spatial axis is the width of an image of height 1
        pads = tuple(zip(spatial.pre_padding, spatial.post_padding, strict=True))
        top = graph.convolution(
            tensors["x"],
            tensors["w"],
            padding=((0, 0), *pads)[-rank:],
            stride=(1, *spatial.stride)[-rank:],
            dilation=(1, *spatial.dilation)[-rank:],
            groups=self.groups,
            mode=self.mode,
        )
        if "scale" in tensors:
            top = graph.pointwise("mul", top, tensors["scale"])
        for name in ("bias", "residual"):
            if name in tensors:
                top = graph.pointwise("add", top, tensors[name])
        if activation is not None:
            mode = enumerator(raw.cudnnPointwiseMode_t, f"{activation}_fwd", "mode")
            top = graph.pointwise(mode, top, how=_COEFFICIENTS.get(activation))
        if not graph.operations[1:]:
            top = graph.pointwise("identity", top)
        graph.output("out", top, x.dtype, at_least_4d(wanted[-1]).strides)
        return graph


def _specs_of_engines(operands: Sequence[Operand]) -> list[TensorSpec]:
    """Return the tensors that the engines take in place of operands."""
    return [operand.spec if operand.name in _PARAMETERS else _last(operand.spec) for operand in operands]


def _last(spec: TensorSpec) -> TensorSpec:
    """Return the tensor channels last and aligned, as the engines require it."""
    return spec._replace(strides=channels_last_strides(spec.shape), alignment=max(spec.alignment, 16))
