"""Programs of layer, RMS and instance normalization: normalization nodes of graphs, else compositions of functions.

Rows of lengths for which the nodes have no fast engine are normalized by reductions (row_reductions.py).

The nodes take x packed, as rows of elements that are normalized together. An x in another memory format is copied in and
out; on an H200 this is still faster than cuDNN's function for instances channels last (0.7 of PyTorch's time instead of 3;
docs/benchmarks).

Operands are named as the calls' arrays. scale, bias, dscale and dbias may be missing; statistics are results of
forward_training only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cudnnpy._core.layouts import TensorSpec, to_packed
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.implicit_operands import (
    ConstantBuffer,
    OperandSources,
    WithImplicitOperands,
    scratch_buffer,
    with_implicit_operands,
)
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import Executable
from cudnnpy._options.normalization import statistics_dtype
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.nodes import Node
from cudnnpy.ops.normalization import row_reductions
from cudnnpy.ops.normalization.composed import Shapes, composed_backward, composed_forward
from cudnnpy.ops.normalization.parameters import DEFAULT_PARAMETERS, NAN, fill_steps
from cudnnpy.typing import ElementName, GraphNormalization

STATISTICS = ("mean", "inverse_variance", "inverse_rms")
# Elements of a row up to which scale and bias are applied in the graph of the node. On an H200 with cuDNN 9.19, such a graph
# of 100,003 elements is planned within a second, and one of 2**20 was not within a minute.
_MAX_FUSED_LENGTH = 1 << 17
EMPTY_STATISTICS = {"mean": 0.0, "inverse_variance": NAN, "inverse_rms": NAN}  # as in PyTorch


class Views(NamedTuple):
    """x, its parameters and its statistics as a graph takes them."""

    x: TensorSpec
    row: TensorSpec
    mean: TensorSpec

    @property
    def shapes(self) -> Shapes:
        """Their shapes, for a composition of functions."""
        return Shapes(self.x.shape, self.mean.shape, self.row.shape)


def forward_program(
    call: Call, mode: GraphNormalization, epsilon: float, operands: Sequence[Operand], views: Views
) -> Program:
    """The program of a forward operation. The operands are x, scale, bias, out and statistics; some may be missing."""
    check_no_overlaps(call, operands)
    x = operands[0].spec
    if 0 in x.shape:
        return Program(mode, call.device, operands, fill_steps(operands, EMPTY_STATISTICS))
    centred = mode != "rms_norm"
    if mode != "instance_norm" and row_reductions.forward_is_faster(x, views.shapes):
        planned = row_reductions.forward(call.device, operands, views.shapes, epsilon, centred)
        if planned is not None:
            return with_conversion_copies(mode, call.device, operands, planned, _packed(operands, None))
    for kind, after in _variants(mode, operands, views.x.shape[1]):
        planned = _forward_graph(call, mode, epsilon, operands, views, kind, after)
        if planned is not None:
            return with_conversion_copies(
                mode, call.device, operands, planned, _packed(operands, None if after else kind)
            )
    dtype, names = statistics_dtype(x.dtype), [operand.name for operand in operands]
    composed = composed_forward(call.device, dtype, views.shapes, names, epsilon, centred=centred)
    return with_conversion_copies(
        mode, call.device, operands, composed, [to_packed(operand.spec, dtype) for operand in operands]
    )


def backward_program(call: Call, mode: GraphNormalization, operands: Sequence[Operand], views: Views) -> Program:
    """The program of a gradient. The operands are dy, x, statistics, out, and optionally scale, dscale and dbias."""
    check_no_overlaps(call, operands)
    name, x = f"{mode} gradient", operands[0].spec
    if 0 in x.shape:
        return Program(name, call.device, operands, fill_steps(operands, {"dscale": 0.0, "dbias": 0.0}))
    centred = mode != "rms_norm"
    if mode != "instance_norm" and row_reductions.backward_is_faster(x, views.shapes):
        planned = row_reductions.backward(call.device, operands, views.shapes, centred)
        if planned is not None:
            return with_conversion_copies(name, call.device, operands, planned, _packed(operands, None))
    planned = _backward_graph(call, mode, operands, views) if x.dtype != "float64" else None
    if planned is not None:
        return with_conversion_copies(name, call.device, operands, planned, _packed(operands, "float32"))
    dtype, names = statistics_dtype(x.dtype), [operand.name for operand in operands]
    composed = composed_backward(call.device, dtype, views.shapes, names, centred=centred)
    return with_conversion_copies(
        name, call.device, operands, composed, [to_packed(operand.spec, dtype) for operand in operands]
    )


def _variants(mode: GraphNormalization, operands: Sequence[Operand], length: int) -> Iterator[tuple[ElementName, bool]]:
    """The dtypes in which a graph may take scale and bias, the fastest first, and whether they are applied after the node.

    No fast engine for rows takes a scale of another dtype than x's. With a float32 scale for an x of 16 bits, the node
    gets ones and zeros of x's dtype, and scale and bias are applied to its result.
    """
    x = operands[0].spec.dtype
    given = next((operand.spec.dtype for operand in operands if operand.name in DEFAULT_PARAMETERS), None)
    if x == "float64":
        return
    if x != "float32":
        if mode == "instance_norm":
            if given == x:
                yield x, False
        elif given != "float32" or length <= _MAX_FUSED_LENGTH:
            yield x, given == "float32"
    yield "float32", False


def _packed(operands: Sequence[Operand], kind: ElementName | None) -> list[TensorSpec]:
    """The operands as graphs take them: packed, with parameters of dtype `kind`, or of their own dtype if it is None."""
    parameters = "scale", "bias", "dscale", "dbias"
    return [to_packed(operand.spec, kind if operand.name in parameters else None) for operand in operands]


def _forward_graph(
    call: Call,
    mode: GraphNormalization,
    epsilon: float,
    operands: Sequence[Operand],
    views: Views,
    kind: ElementName,
    after: bool,
) -> Executable | None:
    graph = Graph()
    inputs = [operand.name for operand in operands if not operand.is_result]
    x, *given = (
        graph.tensor(name, views.x if name == "x" else views.row._replace(dtype="float32" if after else kind))
        for name in inputs
    )
    here = dict(zip(inputs[1:], given, strict=True))
    constants: list[tuple[TensorSpec, float]] = []

    def parameter(name: str) -> Node:
        if name in here and not after:
            return here[name]
        constants.append((views.row._replace(dtype=kind), DEFAULT_PARAMETERS[name]))
        return graph.tensor(f"no {name}", constants[-1][0])

    training = any(operand.name in STATISTICS for operand in operands)
    scale, bias = parameter("scale"), parameter("bias") if mode != "rms_norm" else None
    top, *statistics = graph.normalization(mode, x, scale, bias, epsilon, training=training)
    if after and "scale" in here:
        top = graph.pointwise("mul", top, here["scale"])
    if after and "bias" in here:
        top = graph.pointwise("add", top, here["bias"])
    results = [operand.name for operand in operands if operand.is_result]
    for name, node in zip(results, (top, *statistics), strict=True):
        view = views.x if name == "out" else views.mean
        graph.output(name, node, view.dtype, view.strides)
    planned = graph.executable(call.device)
    if planned is None or not constants:
        return planned
    made = [ConstantBuffer(spec, number, call) for spec, number in constants]
    return WithImplicitOperands(planned, [*range(len(inputs)), *made, *range(len(inputs), len(operands))])


def _backward_graph(
    call: Call, mode: GraphNormalization, operands: Sequence[Operand], views: Views
) -> Executable | None:
    """The graph of a gradient, which takes scale and returns dscale and dbias in float32."""
    graph = Graph()
    seen = {"dy": views.x, "x": views.x, "scale": views.row, **dict.fromkeys(STATISTICS, views.mean)}
    inputs = [operand.name for operand in operands if not operand.is_result]
    here = {name: graph.tensor(name, seen[name]) for name in inputs}
    scale = here.get("scale") or graph.tensor("no scale", views.row)
    inverse = here.get("inverse_variance") or here["inverse_rms"]
    made = graph.normalization_backward(
        mode, here["dy"], here["x"], scale, here.get("mean"), inverse, bias=mode != "rms_norm"
    )
    places = {operand.name: place for place, operand in enumerate(operands)}
    results: OperandSources = []
    for name, node in zip(("out", "dscale", "dbias"), made, strict=False):
        view = views.x if name == "out" else views.row
        graph.output(name, node, view.dtype, view.strides)
        results.append(places[name] if name in places else scratch_buffer(view))
    planned = graph.executable(call.device)
    if planned is None:
        return None
    constants = [] if "scale" in here else [ConstantBuffer(views.row, DEFAULT_PARAMETERS["scale"], call)]
    return with_implicit_operands(planned, [*range(len(inputs)), *constants, *results], len(operands))
