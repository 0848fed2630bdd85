"""A convolution followed by a scale, a bias, a residual and an activation, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import (
    TensorSpec,
    at_least_4d,
    channels_last_strides,
    extent,
    from_logical,
    per_channel,
    result_strides,
    same_memory,
    to_logical,
)
from cudnnpy._measuring.tuner import Tuner
from cudnnpy._options.arguments import check_activation
from cudnnpy._options.checks import check_shape
from cudnnpy._options.convolution import FusedOptions
from cudnnpy._planning.selection import plan_for
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program, Step, arranged, elsewhere
from cudnnpy._runtime.fills import zeros
from cudnnpy._runtime.operands import given, logical, logical_like, logical_result, no_overlaps, packed_like
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.problem import Options
from cudnnpy.graph.activations import activated
from cudnnpy.graph.graph import Graph
from cudnnpy.typing import Array, ArrayT, FusedActivation, Shape, Stream

ACTIVATIONS = ("relu", "sigmoid", "tanh", "elu", "swish")
DTYPES = ("float16", "bfloat16", "float32")
_NAMES = ("x", "w", "scale", "bias", "residual", "out")
_PARAMETERS = ("scale", "bias")


@dataclass(frozen=True, kw_only=True)
class FusedConvolution(FusedOptions, Identified):
    """activation(scale * convolution(x, w) + bias + residual) in one launch, on device arrays.

    Engines that fuse take float16 and bfloat16, and float32 as tf32, channels last in memory: tensors in another memory
    order are copied before and after.

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
    A batch of 0 gives an empty result; sums over 0 channels in x and w are 0.
    """

    follows_description = True  # the memory order of a result where x and w have both (dispatch.Owner)

    def _asked(self) -> Options:
        return Options(**{name: value for name, value in self._fields().items() if name in Options._fields})

    def output_shape(self, x_shape: Shape, w_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shapes of x and w, all in the arrays' axis order.

        Raises TypeError and ValueError for shapes that do not fit together.
        """
        options = self._asked()
        last = options.channels_last
        shapes = [to_logical(check_shape(n, s, low=0), last) for n, s in (("x_shape", x_shape), ("w_shape", w_shape))]
        return from_logical(ask.output_shape(options, *shapes), last)

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
            `out`, or a new array of x's library, dtype and memory order.

        Raises
        ------
        TypeError, ValueError
            Arguments do not fit.
        NoAlgorithmError
            No engine fuses this; the message has the table of candidates.
        """
        name, inputs = "FusedConvolution.forward", (x, w, scale, bias, residual)
        return dispatch.run(name, self, FusedConvolution._prepare, _NAMES, inputs, (out,), stream, activation)

    def _prepare(self, call: Call, activation: str | None) -> tuple[Program, list[TensorSpec]]:
        options = self._asked()
        check_activation(activation, ACTIVATIONS)
        operands = given_operands = self._operands(call, options)
        x, w, y = (operands[at].spec for at in (0, 1, -1))
        geometry = ask.geometry(options, x.shape[2:], w.shape[2:])
        results = [ask.result_in_layout(options, y, x, w, y)]
        if not extent(y):
            return Program("convolution without elements", call.device, operands, []), results
        has_channels = extent(x) > 0
        if not has_channels:  # zeros in scratch memory replace x and w
            x, w, geometry = ask.zeros_for(_last(y), x.dtype)
            operands = [Operand("x", x), Operand("w", w), *operands[2:]]
        wanted = [operand.spec if operand.name in _PARAMETERS else _last(operand.spec) for operand in operands]
        graph = self._graph(operands, wanted, geometry, activation)
        copies = [extent(spec) for o, spec in zip(operands, wanted, strict=True) if _is_copied(o, spec)]
        tuner = Tuner(call.device, call.stream)
        sizes = {} if has_channels else {0: extent(x), 1: extent(w)}
        cap = call.cap_beside(*copies, *sizes.values())
        plan = plan_for(graph.problem(call.device), graph.options, tuner, cap=cap, lists_candidates=False)
        program = arranged(plan.name, call.device, operands, plan.executable, wanted)
        if has_channels:
            return program, results
        steps, scratch, places = elsewhere(program.steps, len(operands), program.scratch, sizes)
        cleared = [Step(zeros(size), (places[at],)) for at, size in sizes.items()]
        return Program(plan.name, call.device, given_operands, [*cleared, *steps], scratch), results

    def _operands(self, call: Call, options: Options) -> list[Operand]:
        """Check the arrays of a call; return x, w, the others that are given, and out, in logical order."""
        x = logical(call, "x", self.layout, dtypes=DTYPES, empty=True)
        w = logical(call, "w", self.layout, dtypes=DTYPES, empty=True)
        if w.dtype != x.dtype:
            raise TypeError(f"w must be {x.dtype}, as x; got {w.dtype}")
        shape = ask.output_shape(options, x.shape, w.shape)
        order = TensorSpec(shape, x.dtype, result_strides(shape, x, w, last=call.last))
        y = logical_result(call, "out", shape, order, self.layout)
        operands = [Operand("x", x), Operand("w", w)]
        for name in _PARAMETERS:
            if name in call.specs:
                dtype = given(call, name, range(1, 2), tuple({x.dtype: 0, "float32": 0})).dtype
                operands.append(Operand(name, packed_like(call, name, (shape[1],), dtype)))
        if "residual" in call.specs:
            operands.append(Operand("residual", logical_like(call, "residual", self.layout, shape, x.dtype)))
        operands.append(Operand("out", y, True))
        no_overlaps(call, operands)
        return operands

    def _graph(
        self,
        operands: Sequence[Operand],
        wanted: Sequence[TensorSpec],
        geometry: ask.Geometry,
        activation: str | None,
    ) -> Graph:
        """The graph of the convolution and the operations after it, whose tensors are the operands as `wanted`."""
        x, y = operands[0].spec, operands[-1].spec
        graph = Graph(
            prefer=self.prefer,
            workspace_limit=self.workspace_limit,
            deterministic=self.deterministic,
            tf32=self.tf32,
            tune_seconds=self.tune_seconds,
        )
        tensors = {}
        for operand, spec in zip(operands[:-1], wanted, strict=False):
            like = per_channel(at_least_4d(y), spec.dtype) if operand.name in _PARAMETERS else at_least_4d(spec)
            tensors[operand.name] = graph.tensor(operand.name, like._replace(alignment=spec.alignment))
        rank = max(len(geometry.stride), 2)  # a single spatial axis is the width of an image of height 1
        pads = tuple(zip(geometry.pre_padding, geometry.post_padding, strict=True))
        top = graph.convolution(
            tensors["x"],
            tensors["w"],
            padding=((0, 0), *pads)[-rank:],
            stride=(1, *geometry.stride)[-rank:],
            dilation=(1, *geometry.dilation)[-rank:],
            mode=self.mode,
        )
        if "scale" in tensors:
            top = graph.pointwise("mul", top, tensors["scale"])
        for name in ("bias", "residual"):
            if name in tensors:
                top = graph.pointwise("add", top, tensors[name])
        if activation is not None:
            top = activated(graph, top, activation)
        if not graph.operations[1:]:
            top = graph.pointwise("identity", top)
        graph.output("out", top, x.dtype, at_least_4d(wanted[-1]).strides)
        return graph


def _last(spec: TensorSpec) -> TensorSpec:
    """The tensor channels last and aligned, as the engines take it."""
    return spec._replace(strides=channels_last_strides(spec.shape), alignment=max(spec.alignment, 16))


def _is_copied(operand: Operand, wanted: TensorSpec) -> bool:
    """Whether the engines cannot take an operand where it is."""
    return not same_memory(operand.spec, wanted) or operand.spec.alignment < wanted.alignment
