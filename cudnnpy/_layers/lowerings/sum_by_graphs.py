"""Sum over axes by a graph of reduction nodes (gradients of the bias, average pooling).

Nodes reduce the rows or the columns of a matrix. So axes that are adjacent in memory are coalesced, and the reduced ones are
summed one after the other in float32, the fastest-varying first.

Graphs add in any order: the last bits of a float32 sum differ from call to call (an H200 with cuDNN 9.19), although the engine
has no note about it.
"""

from __future__ import annotations

import math

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    has_same_layout,
    is_dense,
    packed_strides_like,
    stride_order,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.program import StepBuilder
from cudnnpy._launch.steps import StepSequence
from cudnnpy._layers.graph import Graph
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.plan import Plan
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
