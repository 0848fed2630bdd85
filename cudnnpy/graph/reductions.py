"""Reductions over axes by matrix products, poolings, graphs, halves (in the order of `_strategies`) or cudnnReduceTensor.

On an H200 cudnnReduceTensor takes 1.2 to 140 times as long as PyTorch, and reductions of graphs 0.3 to 1.5 times as long
(docs/benchmarks). Graphs reduce only certain axes. Therefore axes that are adjacent in memory are merged into runs, and
the reduced runs are reduced in float32, one after the other, the fastest-varying first. Convolution.backward_bias is such
a reduction.

No graph reduces a run between two others. A sum over such a run is a matrix product (matmul_reduction.py) or the average over
the windows of a pooling (1.0 to 1.4 times as long as PyTorch). For a maximum, the run is brought to the end in memory first:
a pooling would not do (maximum-of-minus-infinity in docs/known-issues.md).

Graphs add in any order: the last bits of a float32 sum differ from call to call (an H200 with cuDNN 9.19; no note of the
engine says so). With `deterministic`, sums use cudnnPoolingForward, or else cudnnReduceTensor: their results do not differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from ctypes import byref, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    extent,
    in_one_order,
    is_dense,
    memory_order,
    packed_as,
    packed_strides,
    same_memory,
)
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import (
    WORKSPACE,
    At,
    Executable,
    Function,
    Operand,
    Program,
    Step,
    Steps,
    copy,
    described,
    elsewhere,
    scales,
)
from cudnnpy._runtime.fills import of_nothing
from cudnnpy.descriptors import OpTensorDescriptor, ReduceTensorDescriptor
from cudnnpy.graph.float64_reduction import reduce_float64
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.matmul_reduction import MatmulSum
from cudnnpy.graph.pooling_reduction import FULL, average_by_pooling
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator
from cudnnpy.typing import ElementName

REDUCTIONS = ("add", "avg", "mul", "min", "max", "amax", "norm1", "norm2", "mul_no_zeros")
ALIASES = {"sum": "add", "mean": "avg"}
_LONGEST = 32_768  # the most elements of a row that is reduced in one step
_PART = 4096  # the most elements of a part of a longer row
_COLUMNS = 2  # for many rows of float32, the heuristics' third proposal takes 0.3 to 0.6 of the time of the first
_MANY = 1024  # rows up to which the first proposal is the fastest
_WHOLE = 1 << 21  # elements from which on, for a sum of all, the second proposal takes 0.5 to 0.8 of the first's time
_LARGE = 1 << 13  # bytes from which on the other roads are worth planning: cudnnReduceTensor takes up to 60 us there

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
    if not extent(x):
        value = {"avg": math.nan, "mul": alpha, "mul_no_zeros": alpha}.get(op, 0.0)
        return of_nothing(name, device, operands, value, beta)
    found = _first_that_fits(call, _strategies(device, x, y, op, alpha, beta, deterministic, call))
    steps, scratch = found or _by_function(device, x, y, op, alpha, beta)
    return Program(name, device, operands, steps, scratch)


def average(name: str, call: Call, operands: Sequence[Operand], alpha: float, beta: float) -> Program | None:
    """Return the average as `reduction` does, added up in any order; None if only cudnnReduceTensor is left."""
    x, y = (operand.spec for operand in operands)
    found = _first_that_fits(call, _strategies(call.device, x, y, "avg", alpha, beta, False, call))
    return Program(name, call.device, operands, *found) if found else None


def _first_that_fits(
    call: Call | None, roads: Iterator[tuple[list[Step], list[int]] | None]
) -> tuple[list[Step], list[int]] | None:
    """Return the first road that is supported and within `call.cap`: its steps, and their scratch memory.

    None if there is none. Then cudnnReduceTensor alone is left.
    """
    return next(
        (found for found in roads if found and (call is None or call.allows(Steps(*found).workspace_size))), None
    )


def _strategies(
    device: int,
    x: TensorSpec,
    y: TensorSpec,
    op: str,
    alpha: float,
    beta: float,
    deterministic: bool,
    call: Call | None,
) -> Iterator[tuple[list[Step], list[int]] | None]:
    """Yield the roads of a large dense tensor, the fastest first; None for one that is slow or not supported.

    Other tensors have none. Sums of 16 bits are matrix products if these are fast; other sums over a run between two others
    are poolings; and what graphs reduce, they do.
    """
    if not is_dense(x) or extent(x) < _LARGE:
        return
    is_sum, aligned = op in ("add", "avg"), x.alignment >= 16
    if is_sum and aligned and not deterministic and call is not None:
        yield _by_product(call, x, y, op, alpha, beta)
    if is_sum:
        yield _by_pooling(device, x, y, op, alpha, beta, deterministic)
    graphs = op in _BY_GRAPH and not (deterministic and _BY_GRAPH[op][1] == "add")
    if graphs and aligned and x.dtype != "float64":
        yield _by_graphs(device, x, y, op, alpha, beta)
    if x.dtype == "float64":
        yield _by_halves(device, x, y, op, alpha, beta)


def _as_outer_size_inner(runs: Sequence[tuple[int, bool]]) -> tuple[int, int, int] | None:
    """Return (outer, size, inner) if one run is reduced, which has a run before and after it or not; None otherwise."""
    reduced = [at for at, (_, is_reduced) in enumerate(runs) if is_reduced]
    if len(reduced) != 1:
        return None
    at = reduced[0]
    sizes = [size for size, _ in runs]
    return math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])


def _written(
    executable: Executable, x: TensorSpec, y: TensorSpec, beta: float, direct: bool
) -> tuple[list[Step], list[int]]:
    """Return the step from x to y, which adds beta * y itself if `direct`, or by way of scratch memory in x's order."""
    if direct:
        return [Step(executable, (0, 1))], []
    result = y._replace(strides=packed_as(x, y.shape), alignment=16)
    return [Step(executable, (0, 2)), Step(copy(result, y, 1.0, beta), (2, 1))], [extent(result)]


def _by_product(
    call: Call, x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float
) -> tuple[list[Step], list[int]] | None:
    """Return the steps of a sum or mean over one run as a matrix product; None if it is slow or not supported."""
    found = _as_outer_size_inner(_coalesced_axes(x, y.shape))
    if found is None:
        return None
    outer, size, inner = found
    sums = MatmulSum(outer, size, inner, x.dtype, alpha / size if op == "avg" else alpha)
    executable = sums.executable(call) if sums.is_faster() else None
    if executable is None:
        return None
    direct = beta == 0.0 and y.alignment >= 16 and same_memory(y, y._replace(strides=packed_as(x, y.shape)))
    return _written(executable, x, y, beta, direct)


def _by_function(
    device: int, x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float
) -> tuple[list[Step], list[int]]:
    """Return the steps of cudnnReduceTensor, on float32 copies for bfloat16, which it does not support."""
    kind: ElementName = "float64" if x.dtype == "float64" else "float32"
    how = ReduceTensorDescriptor(
        enumerator(raw.cudnnReduceTensorOp_t, op, "op"), compute_dtype=kind, propagate_nan=True
    )
    steps: list[Step] = []
    scratch: list[int] = []
    source, target, places = x, y, (0, 1)
    if x.dtype == "bfloat16":
        source = x._replace(dtype="float32", strides=packed_strides(x.shape))
        target = y._replace(dtype="float32", strides=packed_strides(y.shape))
        scratch = [4 * math.prod(x.shape), 4 * math.prod(y.shape)]
        steps, places = [Step(copy(x, source), (0, 2))], (2, 3)
    plain = not scratch
    a, b = scales(alpha if plain else 1.0, beta if plain else 0.0, kind)
    if source.shape == target.shape:  # reduction-of-one-shape in docs/known-issues.md
        absolute = op in ("norm1", "norm2", "amax")
        steps.append(Step(_element_by_element(source, target, absolute, a, b), places))
    else:
        one, two = map(described, in_one_order(source, target))
        size = c_size_t()
        raw.call("cudnnGetReductionWorkspaceSize", Handle.default(device), how, one, two, byref(size))
        function = Function(
            "cudnnReduceTensor",
            how,
            None,
            0,
            WORKSPACE,
            size.value,
            a,
            one,
            At(0),
            b,
            two,
            At(1),
            workspace_size=size.value,
        )
        steps.append(Step(function, places))
    if not plain:
        steps.append(Step(copy(target, y, alpha, beta), (3, 1)))
    return steps, scratch


def _element_by_element(x: TensorSpec, y: TensorSpec, absolute: bool, a: Any, b: Any) -> Function:
    """Return a reduction of single elements: a copy, or their absolute values as max(x, -x)."""
    if not absolute:
        return copy(x, y, a.value, b.value)
    kind: ElementName = "float64" if x.dtype == "float64" else "float32"
    # alpha * max(x, -x) = max(alpha * x, -alpha * x), or the minimum for a negative alpha: inputs are scaled first
    larger = OpTensorDescriptor("max" if a.value >= 0 else "min", compute_dtype=kind, propagate_nan=True)
    minus = type(a)(-a.value)
    d = described(x)
    return Function("cudnnOpTensor", larger, a, d, At(0), minus, d, At(0), b, described(y), At(1))


def _by_pooling(
    device: int, x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float, deterministic: bool
) -> tuple[list[Step], list[int]] | None:
    """Return the steps of a sum or mean over one run as poolings; None for other reductions, and if these are slow.

    They are fast for a run between two others, and elsewhere faster than cudnnReduceTensor.
    """
    found = _as_outer_size_inner(_coalesced_axes(x, y.shape))
    if found is None or found[1] == 1:
        return None
    outer, size, inner = found
    if 1 in (outer, inner) and not (x.dtype in FULL and (deterministic or x.dtype == "float64")):
        return None
    factor = alpha * (size if op == "add" else 1)
    result = y._replace(strides=packed_as(x, y.shape))
    direct = same_memory(y, result)
    by_graph = min(x.alignment, y.alignment if direct else 16) >= 16 and not deterministic
    made = average_by_pooling(device, found, x.dtype, factor, beta if direct else 0.0, by_graph)
    if made is None or direct:
        return made
    steps, scratch, places = elsewhere(made[0], 2, made[1], {1: extent(result)})
    return [*steps, Step(copy(result, y, 1.0, beta), (places[1], 1))], list(scratch)


def _by_halves(
    device: int, x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float
) -> tuple[list[Step], list[int]] | None:
    """Return the steps of a maximum, minimum or norm of float64 over one long run; None for others."""
    sizes = _as_outer_size_inner(_coalesced_axes(x, y.shape))
    made = None if sizes is None else reduce_float64(device, sizes, op)
    result = y._replace(strides=packed_as(x, y.shape))
    if made is None or ((alpha, beta) == (1.0, 0.0) and same_memory(y, result)):
        return made
    steps, scratch, places = elsewhere(made[0], 2, made[1], {1: extent(result)})
    return [*steps, Step(copy(result, y, alpha, beta), (places[1], 1))], list(scratch)


def _by_graphs(
    device: int, x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float
) -> tuple[list[Step], list[int]] | None:
    """Return the steps of a reduction by graphs; None if they do not support it."""
    if x.shape == y.shape:  # no axis is reduced
        return None
    before, kind = _BY_GRAPH[op]
    share = math.prod(y.shape) / math.prod(x.shape) if op == "avg" else 1.0
    sums = y._replace(dtype="float32", strides=packed_as(x, y.shape))
    direct = op != "norm2" and alpha * share == 1.0 and beta == 0.0 and same_memory(y, sums) and y.alignment >= 16
    runs = _coalesced_axes(x, y.shape)
    steps: list[Step] = []
    scratch: list[int] = []
    dtype, place = x.dtype, 0
    if len(runs) == 1 and (planned := _all_reduced(device, runs[0][0], x, before, kind)) is not None:
        if direct and y.dtype == "float32":
            return [Step(planned, (0, 1))], []
        steps, scratch, place, runs = [Step(planned, (0, 2))], [4], 2, []
    while any(is_reduced for _, is_reduced in runs):
        at = max(at for at, (_, is_reduced) in enumerate(runs) if is_reduced)
        if at == len(runs) - 1 and runs[at][0] > _LONGEST:  # a long row is divided
            length = _divisor(runs[at][0])
            if length is None:
                return None
            runs[at : at + 1] = [(runs[at][0] // length, True), (length, True)]
            at += 1
        outer, inner = math.prod(size for size, _ in runs[:at]), math.prod(size for size, _ in runs[at + 1 :])
        size = runs[at][0]
        if outer > 1 and inner > 1:  # no engine reduces an axis between two others: it is brought to the end
            order = TensorSpec((outer, size, inner), dtype, (size * inner, inner, 1))
            turned = order._replace(strides=(size * inner, 1, size))
            scratch.append(extent(turned))
            steps.append(Step(copy(order, turned), (place, 1 + len(scratch))))
            place, outer, inner = 1 + len(scratch), outer * inner, 1
        view = _view(outer, size, inner, dtype, x.alignment if not steps else 16)
        del runs[at]
        if direct and not any(is_reduced for _, is_reduced in runs):  # written to the result, if an engine supports it
            planned = _reduced(device, view, before, kind, y.dtype)
            if planned is not None:
                return [*steps, Step(planned, (place, 1))], scratch
        planned = _reduced(device, view, before, kind, "float32")
        if planned is None:
            return None
        scratch.append(4 * outer * inner)
        steps.append(Step(planned, (place, 1 + len(scratch))))
        dtype, place, before = "float32", 1 + len(scratch), None
    steps += _scaled(op, place, sums, y, alpha * share, beta)
    return steps, scratch


def _scaled(op: str, place: int, sums: TensorSpec, y: TensorSpec, alpha: float, beta: float) -> list[Step]:
    """Return the steps from float32 sums at a place to y: the root for a norm2, the factors, and y's dtype and strides."""
    if op != "norm2":
        return [Step(copy(sums, y, alpha, beta), (place, 1))]
    root = OpTensorDescriptor("sqrt", compute_dtype="float32", propagate_nan=True)
    one, zero = scales(1.0, 0.0, "float32")
    direct = y.dtype == "float32" and (alpha, beta) == (1.0, 0.0)
    d, to = described(sums), described(y if direct else sums)
    function = Function("cudnnOpTensor", root, one, d, At(0), zero, d, At(0), zero, to, At(1))
    if direct:
        return [Step(function, (place, 1))]
    return [Step(function, (place, place)), Step(copy(sums, y, alpha, beta), (place, 1))]


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
    device: int,
    view: View,
    before: str | None,
    kind: str,
    dtype: ElementName,
    pick: int = 0,
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
    """Return (size, is reduced) of each run of axes that are adjacent in memory, the slowest-varying first."""
    strides = x.strides
    assert strides is not None
    runs: list[tuple[int, bool]] = []
    for axis in memory_order(strides):
        size, is_reduced = x.shape[axis], shape[axis] == 1
        if size == 1:
            continue
        if runs and runs[-1][1] == is_reduced:
            runs[-1] = runs[-1][0] * size, is_reduced
        else:
            runs.append((size, is_reduced))
    return runs


def _view(outer: int, size: int, inner: int, dtype: ElementName, alignment: int) -> View:
    """Return the view of (outer, size, inner), of which outer or inner is 1, for a reduction over size."""
    assert 1 in (outer, inner)
    if inner == 1:
        return TensorSpec((outer, size, 1, 1), dtype, (size, 1, size, size), alignment), (1, 1, 1, 1), (1,)
    return TensorSpec((size, inner, 1, 1), dtype, (inner, 1, inner, inner), alignment), (inner, 1, inner, inner), (0,)
