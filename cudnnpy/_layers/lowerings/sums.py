"""Sum over axes by a graph of reduction nodes (gradients of the bias, average pooling), or by cudnnReduceTensor.

Nodes reduce the rows or the columns of a matrix. So axes that are adjacent in memory are coalesced, and the reduced ones are
summed one after the other in float32, the fastest-varying first.

Graphs add in any order: the last bits of a float32 sum differ from call to call (an H200 with cuDNN 9.19), although the engine
has no note about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import byref, c_size_t

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    canonical_spec,
    has_same_layout,
    is_dense,
    normalize_unit_strides,
    packed_strides,
    packed_strides_like,
    stride_order,
    to_packed,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import FLOATS, check_no_overlaps, packed_like
from cudnnpy._launch.program import Operand, Program, StepBuilder, program_for_empty_input
from cudnnpy._launch.steps import (
    WORKSPACE,
    FunctionCall,
    OperandAddress,
    StepSequence,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._layers.arguments import logical_spec
from cudnnpy._layers.graph import Graph
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.plan import Plan
from cudnnpy.descriptors import ReduceTensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.typing import ElementName

_MIN_BYTES = 1 << 13  # of x, for which a graph is worth compiling
_MAX_ROW_ELEMENTS = 32_768  # of a row that is summed in one step: graphs of much longer rows take minutes to compile
_PART = 4096  # maximum of elements of a part of a longer row
# The heuristics' third proposal for columns: from so many rows of float32 on it takes 0.3 to 0.6 of the time of the first.
_ENGINE_OF_COLUMNS, _MANY_ROWS = Engine(1, {int(raw.CUDNN_KNOB_TYPE_KERNEL_CFG): 2}), 1024


def sum_by_graphs(
    call: Call, x: TensorSpec, y: TensorSpec, alpha: float, beta: float, tune_seconds: float | None = None
) -> StepSequence | None:
    """Return the steps of y = alpha * (the sum of x over the axes on which y has size 1) + beta * y.

    None if no engine supports a graph, if x is small, or if there is nothing to add up. Graphs sum dense tensors of 16 or 32
    bits at multiples of 16 bytes. With `tune_seconds` autotune chooses the engines.
    """
    if x.dtype == "float64" or x.alignment < 16 or not is_dense(x) or byte_extent(x) < _MIN_BYTES or x.shape == y.shape:
        return None
    sums = y._replace(strides=packed_strides_like(x, y.shape), dtype="float32", alignment=16)
    direct = (alpha, beta) == (1.0, 0.0) and has_same_layout(y, sums) and y.alignment >= 16
    axes = _coalesced_axes(x, y.shape)
    builder = StepBuilder({"x": x, "y": y})
    source, target = builder.operands["x"], builder.operands["y"]
    while any(is_reduced for _, is_reduced in axes):
        at = max(at for at, (_, is_reduced) in enumerate(axes) if is_reduced)
        size = axes[at][0]
        if at == len(axes) - 1 and size > _MAX_ROW_ELEMENTS:  # a long row is divided into parts
            part = next((n for n in range(_PART, 15, -1) if size % n == 0), None)
            if part is None:
                return None
            axes[at : at + 1] = [(size // part, True), (part, True)]
            at, size = at + 1, part
        outer, inner = (math.prod(size for size, _ in some) for some in (axes[:at], axes[at + 1 :]))
        if outer > 1 and inner > 1:  # no engine sums a middle axis: it is moved to the end
            order = TensorSpec((outer, size, inner), source.spec.dtype, (size * inner, inner, 1))
            moved = builder.scratch(order._replace(strides=(size * inner, 1, size)))
            builder.copy(source._replace(spec=order), moved)
            source, outer, inner = moved, outer * inner, 1
        del axes[at]
        if direct and not any(is_reduced for _, is_reduced in axes):
            plan = _plan(call, outer, size, inner, source.spec.dtype, y.dtype, tune_seconds)
            if plan is not None:
                builder.add(plan.executable, source, target)
                return builder.sequence()
        plan = _plan(call, outer, size, inner, source.spec.dtype, "float32", tune_seconds)
        if plan is None:
            return None
        partial = builder.scratch(TensorSpec((outer * inner,), "float32", (1,)))
        builder.add(plan.executable, source, partial)
        source = partial
    builder.copy(source._replace(spec=sums), target, alpha, beta)
    return builder.sequence()


def _coalesced_axes(x: TensorSpec, shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Return (size, is reduced) of each coalesced axis, the slowest-varying first.

    Axes are coalesced if they are adjacent in memory, and all or none of them are reduced.
    """
    assert x.strides is not None
    found: list[tuple[int, bool]] = []
    for axis in stride_order(x.strides):
        size, is_reduced = x.shape[axis], shape[axis] == 1
        if size == 1:
            continue
        if found and found[-1][1] == is_reduced:
            found[-1] = found[-1][0] * size, is_reduced
        else:
            found.append((size, is_reduced))
    return found


def _plan(
    call: Call,
    outer: int,
    size: int,
    inner: int,
    dtype: ElementName,
    result: ElementName,
    tune_seconds: float | None,
) -> Plan | None:
    """Return the plan that sums (outer, size, inner) over size; outer or inner is 1. None if no engine supports it.

    No engine takes a reduction whose dimension 1 does not have stride 1. So dimension 1 is the fastest axis: size, or inner.
    """
    rows, columns = (outer, size) if inner == 1 else (size, inner)
    strides = (1, 1, 1, 1) if inner == 1 else (columns, 1, columns, columns)
    graph = Graph() if tune_seconds is None else Graph(prefer="autotune", tune_seconds=tune_seconds)
    x = graph.tensor("x", TensorSpec((rows, columns, 1, 1), dtype, (columns, 1, columns, columns)))
    graph.output("y", graph.reduction("add", x, (1,) if inner == 1 else (0,)), result, strides)
    is_slow = inner > 1 and dtype == "float32" and rows > _MANY_ROWS and columns % 8 == 0
    return graph._plan_if_supported(call, _ENGINE_OF_COLUMNS if is_slow and tune_seconds is None else None)


def bias_gradient(
    options: ConvolutionOptions, call: Call, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    """Return the sum of dy by reduction nodes of graphs or by cudnnReduceTensor, and the spec of the result.

    Nodes take channels last in one graph, and channels first in two. cudnnReduceTensor takes the rest: small tensors, which
    are not worth compiling a graph, float64, gaps, misaligned addresses, and deterministic sums.

    cudnnConvolutionBackwardBias is not used: on an H200 with cuDNN 9.19 it takes 6 to 19 times as long as the memory bandwidth
    allows on large tensors, and it faults on misaligned addresses (bias-gradient-misaligned in docs/known-issues.md).
    """
    operands = bias_operands(options, call, alpha, beta)
    spec, sums = (operand.spec for operand in operands)
    name, results = "bias gradient", [TensorSpec((spec.shape[1],), spec.dtype)]
    if not byte_extent(spec):
        return program_for_empty_input(name, call.device, operands, beta), results
    alpha, beta = float(alpha), float(beta)
    seconds = options.tune_seconds if options.prefer == "autotune" else None
    steps = None if options.deterministic else sum_by_graphs(call, spec, sums, alpha, beta, seconds)
    if steps is None or not call.allows(steps.workspace_size):
        steps = _sum_by_function(call.device, spec, sums, alpha, beta)
    return Program(name, call.device, operands, steps.steps, steps.scratch), results


def bias_operands(options: ConvolutionOptions, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
    """Check a call for the gradient of the bias; return dy in logical order, and the result with as many axes."""
    spec = canonical_spec(logical_spec(call.specs["dy"], "dy", options.layout), "dy")
    if spec.dtype not in FLOATS:
        raise TypeError(f"dy must be float16, bfloat16, float32 or float64; got {spec.dtype}")
    if 0 in spec.shape[1:]:
        shape = call.specs["dy"].shape
        raise ValueError(f"dy must have sizes of 1 or more, except for a batch of 0; got shape {shape}")
    check_scales(alpha, beta, out=call.specs.get("out"))
    if "out" in call.specs:
        packed_like(call, "out", (spec.shape[1],), spec.dtype)
    row = (1, spec.shape[1], *(1 for _ in spec.shape[2:]))
    sums = TensorSpec(row, spec.dtype, packed_strides(row))  # the same memory as (K,)
    return check_no_overlaps(call, (Operand("dy", spec), Operand("out", sums, True)))


def _sum_by_function(device: int, x: TensorSpec, y: TensorSpec, alpha: float, beta: float) -> StepSequence:
    """Return the steps of cudnnReduceTensor, on float32 copies for bfloat16, which it does not support."""
    builder = StepBuilder({"x": x, "y": y})
    source, target = builder.operands["x"], builder.operands["y"]
    if x.shape == y.shape:  # nothing to add up: reduction-of-one-shape in docs/known-issues.md
        builder.copy(source, target, alpha, beta)
        return builder.sequence()
    is_copied = x.dtype == "bfloat16"
    if is_copied:
        source, target = (builder.scratch(to_packed(spec, "float32")) for spec in (x, y))
        builder.copy(builder.operands["x"], source)
    dtype: ElementName = "float64" if x.dtype == "float64" else "float32"
    how = ReduceTensorDescriptor("add", compute_dtype=dtype, propagate_nan=True)
    one, two = map(tensor_descriptor, normalize_unit_strides(source.spec, target.spec))
    size = c_size_t()
    raw.call("cudnnGetReductionWorkspaceSize", Handle.default(device), how, one, two, byref(size))
    a, b = scaling_arguments(1.0 if is_copied else alpha, 0.0 if is_copied else beta, dtype)
    function = FunctionCall(
        "cudnnReduceTensor", how, None, 0, WORKSPACE, size.value, a, one, OperandAddress(0), b, two, OperandAddress(1),
        workspace_size=size.value,
    )  # fmt: skip
    builder.add(function, source, target)
    if is_copied:
        builder.copy(target, builder.operands["y"], alpha, beta)
    return builder.sequence()
