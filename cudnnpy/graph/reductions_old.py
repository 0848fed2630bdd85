"""Reduce tensors over axes by the fastest of several strategies: matrix products, poolings, graphs, or cudnnReduceTensor.

On an H200 cudnnReduceTensor takes 1.2 to 140 times as long as PyTorch, and reductions of graphs 0.3 to 1.5 times as long
(docs/benchmarks). Graphs reduce only certain axes. Therefore axes that are adjacent in memory are coalesced, and the reduced
ones of these are reduced in float32, one after the other, the fastest-varying first. Convolution.backward_bias is such a
reduction.

No graph reduces a middle axis. A sum over a middle axis is a matrix product (matmul_reduction.py) or an average pooling (1.0 to
1.4 times as long as PyTorch). For a maximum, the axis is first moved to the end in memory, since a pooling would give wrong
results (maximum-of-minus-infinity in docs/known-issues.md).

Graphs add in any order: the last bits of a float32 sum differ from call to call (an H200 with cuDNN 9.19), although the engine
has no note about it. With `deterministic`, sums use cudnnPoolingForward, or else cudnnReduceTensor, which are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from ctypes import byref, c_size_t
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    has_same_layout,
    is_dense,
    normalize_unit_strides,
    packed_strides_like,
    stride_order,
    to_packed,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import program_for_empty_input
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.step_builder import StepBuilder, Tensor
from cudnnpy._launch.steps import (
    WORKSPACE,
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    StepSequence,
    copy,
    op_tensor,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.descriptors import ReduceTensorDescriptor
from cudnnpy.graph.float64_reduction import reduce_float64
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.matmul_reduction import MatmulSum
from cudnnpy.graph.pooling_reduction import FULL, average_by_pooling
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator
from cudnnpy.typing import ElementName, TensorOperation

REDUCTIONS = ("add", "avg", "mul", "min", "max", "amax", "norm1", "norm2", "mul_no_zeros")
ALIASES = {"sum": "add", "mean": "avg"}
_MAX_ROW_ELEMENTS = 32_768  # maximum of elements of a row that is reduced in one step
_PART = 4096  # maximum of elements of a part of a longer row
_COLUMNS = 2  # for many rows of float32, the heuristics' third proposal takes 0.3 to 0.6 of the time of the first
_MANY = 1024  # rows up to which the first proposal is the fastest
_WHOLE = 1 << 21  # elements from which on, for a sum of all, the second proposal takes 0.5 to 0.8 of the first's time
_MIN_BYTES = 1 << 13  # for which other strategies are worth planning: cudnnReduceTensor takes up to 60 us there

# The spec of a tensor as a graph reduces it, the strides of the result, and the reduced axes.
View = tuple[TensorSpec, tuple[int, ...], tuple[int, ...]]

# op: (operation on each element, reduction of the graph)
_BY_GRAPH = {
    "add": (None, "add"),
    "avg": (None, "add"),
    "norm1": ("abs", "add"),
    "norm2": ("square", "add"),
    "max": (None, "max"),
    "min": (None, "min"),
    "amax": ("abs", "max"),
}


class _Task(NamedTuple):
    """Compute alpha * (x reduced by op to the shape of y) + beta * y on a device."""

    device: int
    x: TensorSpec
    y: TensorSpec
    op: str
    alpha: float
    beta: float
    deterministic: bool = False

    @property
    def result(self) -> TensorSpec:
        """y in the memory format of x, aligned."""
        return self.y._replace(strides=packed_strides_like(self.x, self.y.shape), alignment=16)

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """(outer, size, inner) if exactly one coalesced axis is reduced; None otherwise."""
        runs = _coalesced_axes(self.x, self.y.shape)
        reduced = [at for at, (_, is_reduced) in enumerate(runs) if is_reduced]
        if len(reduced) != 1:
            return None
        at = reduced[0]
        sizes = [size for size, _ in runs]
        return math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])


def reduction(
    name: str,
    device: int,
    operands: Sequence[Operand],
    op: str,
    alpha: float,
    beta: float,
    deterministic: bool,
    call: Call | None = None,
) -> Program:
    """Return the reduction of the first operand to the shape of the second, which has size 1 on each reduced axis.

    op is one of REDUCTIONS. Both operands have strides and the same dtype. Constants are filled on the stream of `call`;
    without it, the reduction needs none.
    """
    x, y = (operand.spec for operand in operands)
    if not byte_extent(x):
        value = {"avg": math.nan, "mul": alpha, "mul_no_zeros": alpha}.get(op, 0.0)
        return program_for_empty_input(name, device, operands, value, beta)
    task = _Task(device, x, y, op, alpha, beta, deterministic)
    steps = _first_that_fits(call, _strategies(task, call)) or _by_function(task)
    return Program(name, device, operands, steps.steps, steps.scratch)


def average(call: Call, operands: Sequence[Operand], alpha: float, beta: float) -> Program | None:
    """Return the average as `reduction` does, for a pooling, added up in any order; None if only cudnnReduceTensor remains."""
    x, y = (operand.spec for operand in operands)
    steps = _first_that_fits(call, _strategies(_Task(call.device, x, y, "avg", alpha, beta), call))
    return Program("pooling", call.device, operands, steps.steps, steps.scratch) if steps else None


def _first_that_fits(call: Call | None, strategies: Iterator[StepSequence | None]) -> StepSequence | None:
    """Return the steps of the first strategy that is supported and within `call.memory_limit`.

    None if there is none. Then only cudnnReduceTensor remains.
    """
    return next((steps for steps in strategies if steps and (call is None or call.allows(steps.workspace_size))), None)


def _strategies(task: _Task, call: Call | None) -> Iterator[StepSequence | None]:
    """Yield the strategies for a large dense tensor, fastest first, and None for each slow or unsupported one.

    Other tensors have no strategies. The order is: matrix products for sums of 16 bits, poolings for other sums over a middle
    axis, and graphs.
    """
    x, op = task.x, task.op
    if not is_dense(x) or byte_extent(x) < _MIN_BYTES:
        return
    is_sum, aligned = op in ("add", "avg"), x.alignment >= 16
    if is_sum and aligned and not task.deterministic and call is not None:
        yield _by_product(call, task)
    if is_sum:
        yield _by_pooling(task)
    graphs = op in _BY_GRAPH and not (task.deterministic and _BY_GRAPH[op][1] == "add")
    if graphs and aligned and x.dtype != "float64":
        yield _by_graphs(task)
    if x.dtype == "float64":
        yield _by_halves(task)


def _copied(executable: Executable, task: _Task, alpha: float, beta: float) -> StepSequence:
    """Return the steps of an executable whose result has x's memory format, and a copy: alpha * result + beta * y."""
    builder = StepBuilder({"x": task.x, "y": task.y})
    result = builder.scratch(task.result)
    builder.add(executable, builder.operands["x"], result)
    builder.copy(result, builder.operands["y"], alpha, beta)
    return builder.sequence()


def _by_product(call: Call, task: _Task) -> StepSequence | None:
    """Return the steps of a sum or mean over one coalesced axis as a matrix product; None if it is slow or not supported."""
    y, sizes = task.y, task.sizes
    if sizes is None:
        return None
    outer, size, inner = sizes
    sums = MatmulSum(outer, size, inner, task.x.dtype, task.alpha / size if task.op == "avg" else task.alpha)
    executable = sums.executable(call) if sums.is_faster() else None
    if executable is None:
        return None
    direct = task.beta == 0.0 and y.alignment >= 16 and has_same_layout(y, task.result)
    return StepSequence([Step(executable, (0, 1))]) if direct else _copied(executable, task, 1.0, task.beta)


def _by_function(task: _Task) -> StepSequence:
    """Return the steps of cudnnReduceTensor, on float32 copies for bfloat16, which it does not support."""
    device, x, y, op, alpha, beta, _ = task
    kind: ElementName = "float64" if x.dtype == "float64" else "float32"
    how = ReduceTensorDescriptor(
        enumerator(raw.cudnnReduceTensorOp_t, op, "op"), compute_dtype=kind, propagate_nan=True
    )
    builder = StepBuilder({"x": x, "y": y})
    source, target = builder.operands["x"], builder.operands["y"]
    is_copied = x.dtype == "bfloat16"
    if is_copied:
        source, target = (builder.scratch(to_packed(spec, "float32")) for spec in (x, y))
        builder.copy(builder.operands["x"], source)
    factors = (1.0, 0.0) if is_copied else (alpha, beta)
    if x.shape == y.shape:  # reduction-of-one-shape in docs/known-issues.md
        absolute = op in ("norm1", "norm2", "amax")
        builder.add(_element_by_element(source.spec, target.spec, absolute, *factors), source, target)
    else:
        one, two = map(tensor_descriptor, normalize_unit_strides(source.spec, target.spec))
        size = c_size_t()
        raw.call("cudnnGetReductionWorkspaceSize", Handle.default(device), how, one, two, byref(size))
        a, b = scaling_arguments(*factors, kind)
        function = FunctionCall(
            "cudnnReduceTensor", how, None, 0, WORKSPACE, size.value, a, one, OperandAddress(0), b, two, OperandAddress(1),
            workspace_size=size.value,
        )  # fmt: skip
        builder.add(function, source, target)
    if is_copied:
        builder.copy(target, builder.operands["y"], alpha, beta)
    return builder.sequence()


def _element_by_element(x: TensorSpec, y: TensorSpec, absolute: bool, alpha: float, beta: float) -> FunctionCall:
    """Return the reduction over axes of size 1: a copy, or absolute values as max(x, -x)."""
    if not absolute:
        return copy(x, y, alpha, beta)
    kind: ElementName = "float64" if x.dtype == "float64" else "float32"
    # alpha * max(x, -x) = max(alpha * x, -alpha * x), or the minimum for a negative alpha: inputs are scaled first
    op: TensorOperation = "max" if alpha >= 0 else "min"
    return op_tensor(op, kind, (x, 0), (x, 0), (y, 1), factors=(alpha, -alpha, beta))


def _by_pooling(task: _Task) -> StepSequence | None:
    """Return the steps of a sum or mean over one coalesced axis as poolings; None for other reductions, and if slow.

    They are fast for a middle axis, and for other axes faster than cudnnReduceTensor.
    """
    x, y, sizes, deterministic = task.x, task.y, task.sizes, task.deterministic
    if sizes is None or sizes[1] == 1:
        return None
    outer, size, inner = sizes
    if 1 in (outer, inner) and not (x.dtype in FULL and (deterministic or x.dtype == "float64")):
        return None
    factor = task.alpha * (size if task.op == "add" else 1)
    direct = has_same_layout(y, task.result)
    by_graph = min(x.alignment, y.alignment if direct else 16) >= 16 and not deterministic
    averages = average_by_pooling(task.device, sizes, x.dtype, factor, task.beta if direct else 0.0, by_graph)
    return averages if averages is None or direct else _copied(averages, task, 1.0, task.beta)


def _by_halves(task: _Task) -> StepSequence | None:
    """Return the steps of a maximum, minimum or norm of float64 over one long coalesced axis; None for others."""
    sizes = task.sizes
    steps = None if sizes is None else reduce_float64(task.device, sizes, task.op)
    direct = (task.alpha, task.beta) == (1.0, 0.0) and has_same_layout(task.y, task.result)
    return steps if steps is None or direct else _copied(steps, task, task.alpha, task.beta)


def _by_graphs(task: _Task) -> StepSequence | None:
    """Return the steps of a reduction by graphs; None if they do not support it."""
    device, x, y, op, alpha, beta, _ = task
    if x.shape == y.shape:  # no axis is reduced
        return None
    before, kind = _BY_GRAPH[op]
    share = math.prod(y.shape) / math.prod(x.shape) if op == "avg" else 1.0
    sums = task.result._replace(dtype="float32")
    direct = op != "norm2" and alpha * share == 1.0 and beta == 0.0 and has_same_layout(y, sums) and y.alignment >= 16
    runs = _coalesced_axes(x, y.shape)
    builder = StepBuilder({"x": x, "y": y})
    source, target = builder.operands["x"], builder.operands["y"]
    if len(runs) == 1 and (planned := _all_reduced(device, runs[0][0], x, before, kind)) is not None:
        if direct and y.dtype == "float32":
            builder.add(planned, source, target)
            return builder.sequence()
        total = builder.scratch(sums)
        builder.add(planned, source, total)
        source, runs = total, []
    while any(is_reduced for _, is_reduced in runs):
        at = max(at for at, (_, is_reduced) in enumerate(runs) if is_reduced)
        if at == len(runs) - 1 and runs[at][0] > _MAX_ROW_ELEMENTS:  # a long row is divided into parts
            length = _divisor(runs[at][0])
            if length is None:
                return None
            runs[at : at + 1] = [(runs[at][0] // length, True), (length, True)]
            at += 1
        outer, inner = math.prod(size for size, _ in runs[:at]), math.prod(size for size, _ in runs[at + 1 :])
        size = runs[at][0]
        if outer > 1 and inner > 1:  # no engine reduces a middle axis: it is moved to the end
            order = TensorSpec((outer, size, inner), source.spec.dtype, (size * inner, inner, 1))
            turned = builder.scratch(order._replace(strides=(size * inner, 1, size)))
            builder.copy(source._replace(spec=order), turned)
            source, outer, inner = turned, outer * inner, 1
        view = _view(outer, size, inner, source.spec.dtype, source.spec.alignment)
        del runs[at]
        if direct and not any(is_reduced for _, is_reduced in runs):  # written to the result, if an engine supports it
            planned = _reduced(device, view, before, kind, y.dtype)
            if planned is not None:
                builder.add(planned, source, target)
                return builder.sequence()
        planned = _reduced(device, view, before, kind, "float32")
        if planned is None:
            return None
        partial = builder.scratch(TensorSpec((outer * inner,), "float32", (1,)))
        builder.add(planned, source, partial)
        source, before = partial, None
    _add_scaling(builder, op, source._replace(spec=sums), target, alpha * share, beta)
    return builder.sequence()


def _add_scaling(builder: StepBuilder, op: str, sums: Tensor, y: Tensor, alpha: float, beta: float) -> None:
    """Add the steps from float32 sums to y: the root for a norm2, the factors, and y's dtype and strides."""
    if op == "norm2":
        direct = y.spec.dtype == "float32" and (alpha, beta) == (1.0, 0.0)
        result = y if direct else sums
        root = op_tensor("sqrt", "float32", (sums.spec, 0), (sums.spec, 0), (result.spec, 1), factors=(1.0, 0.0, 0.0))
        builder.add(root, sums, result)
        if direct:
            return
    builder.copy(sums, y, alpha, beta)


def _divisor(size: int) -> int | None:
    """Return the longest part into which rows of a size are divided; None if there is no part of 16 to _PART elements."""
    return next((n for n in range(_PART, 15, -1) if size % n == 0), None)


def _all_reduced(device: int, count: int, x: TensorSpec, before: str | None, kind: str) -> Executable | None:
    """Return the executable of a graph that reduces all elements at once to a float32; None if no engine supports it."""
    length = _divisor(count)
    if length is None:
        return None
    view = _view(count // length, length, 1, x.dtype, x.alignment)[0], (1, 1, 1, 1), (0, 1)
    return _reduced(device, view, before, kind, "float32", 1 if count >= _WHOLE else 0)


def _reduced(
    device: int, view: View, before: str | None, kind: str, dtype: ElementName, pick: int = 0
) -> Executable | None:
    """Return the executable of a graph that reduces a view to a result of a dtype; None if no engine supports it."""
    spec, target, axes = view
    graph = Graph()
    node = graph.tensor("x", spec)
    if before == "abs":
        node = graph.pointwise("abs", node)
    elif before == "square":
        node = graph.pointwise("mul", node, node)
    made = graph.reduction(enumerator(raw.cudnnReduceTensorOp_t, kind, "op"), node, axes)
    graph.output("y", made, dtype, target)
    if axes == (0,):
        count, columns = spec.shape[:2]
        pick = _COLUMNS if spec.dtype == "float32" and count > _MANY and columns % 8 == 0 else 0
    return graph.executable(device, pick)


def _coalesced_axes(x: TensorSpec, shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Return (size, is reduced) of each coalesced axis, the slowest-varying first.

    Axes are coalesced if they are adjacent in memory, and all or none of them are reduced.
    """
    strides = x.strides
    assert strides is not None
    runs: list[tuple[int, bool]] = []
    for axis in stride_order(strides):
        size, is_reduced = x.shape[axis], shape[axis] == 1
        if size == 1:
            continue
        if runs and runs[-1][1] == is_reduced:
            runs[-1] = runs[-1][0] * size, is_reduced
        else:
            runs.append((size, is_reduced))
    return runs


def _view(outer: int, size: int, inner: int, dtype: ElementName, alignment: int) -> View:
    """Return the view of (outer, size, inner) for a reduction over size, where outer or inner is 1."""
    assert 1 in (outer, inner)
    if inner == 1:
        return TensorSpec((outer, size, 1, 1), dtype, (size, 1, size, size), alignment), (1, 1, 1, 1), (1,)
    return TensorSpec((size, inner, 1, 1), dtype, (inner, 1, inner, inner), alignment), (inner, 1, inner, inner), (0,)
