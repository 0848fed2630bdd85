"""Reductions of a tensor over axes: by graphs or a pooling for large dense tensors, else by cudnnReduceTensor.

On an H200 cudnnReduceTensor takes 1.2 to 22 times as long as PyTorch, and reductions of graphs 0.3 to 1.3 times as long
(docs/benchmarks). Graphs reduce only certain axes. Therefore axes that are adjacent in memory are merged into runs, and
the reduced runs are reduced in float32, one after the other, the fastest-varying first. Convolution.backward_bias is such
a reduction.

No graph reduces a run between two others. A sum over such a run is computed as an average over windows by
cudnnPoolingForward (1.2 to 1.4 times as long as PyTorch). A maximum is not: maximum-of-minus-infinity in
docs/known-issues.md.

Graphs add in any order: the last bits of a float32 sum differ from call to call (an H200 with cuDNN 9.19; no note of the
engine says so). With `deterministic`, sums use the functions, whose results do not differ and which take 6 times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from cudnnpy._runtime.executables import (
    WORKSPACE,
    At,
    Executable,
    Function,
    Operand,
    Program,
    Step,
    copy,
    described,
    scales,
)
from cudnnpy._runtime.fills import of_nothing
from cudnnpy._runtime.operands import is_large
from cudnnpy.descriptors import OpTensorDescriptor, PoolingDescriptor, ReduceTensorDescriptor, TensorDescriptor
from cudnnpy.graph.graph import Graph
from cudnnpy.handle import Handle
from cudnnpy.names import enumerator
from cudnnpy.typing import ElementName

REDUCTIONS = ("add", "avg", "mul", "min", "max", "amax", "norm1", "norm2", "mul_no_zeros")
ALIASES = {"sum": "add", "mean": "avg"}
_LONGEST = 4096  # the most elements of a row that is reduced in one step
_LAST = 16_384  # the same for a single row, which holds the results of earlier steps
_COLUMNS = 2  # for columns, the heuristics' third proposal takes 0.3 of the time of the first

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
    name: str, device: int, operands: Sequence[Operand], op: str, alpha: float, beta: float, deterministic: bool
) -> Program:
    """Return the reduction of the first operand to the shape of the second, which has size 1 on each reduced axis.

    op is one of REDUCTIONS. Both operands have strides and the same dtype.
    """
    x, y = (operand.spec for operand in operands)
    if not extent(x):
        value = {"avg": math.nan, "mul": alpha, "mul_no_zeros": alpha}.get(op, 0.0)
        return of_nothing(name, device, operands, value, beta)
    found = None
    if is_dense(x) and is_large(x):
        found = _by_pooling(x, y, op, alpha, beta)
        graphs = op in _BY_GRAPH and not (deterministic and _BY_GRAPH[op][1] == "add")
        if not found and graphs and x.dtype != "float64" and x.alignment >= 16:
            found = _by_graphs(device, x, y, op, alpha, beta)
    steps, scratch = found or _by_function(device, x, y, op, alpha, beta)
    return Program(name, device, operands, steps, scratch)


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
    x: TensorSpec, y: TensorSpec, op: str, alpha: float, beta: float
) -> tuple[list[Step], list[int]] | None:
    """Return the steps of a sum or mean over one run between two others, as a pooling; None for other reductions.

    The outer run is the batch and the inner run the channels of images of one column, channels last.
    """
    runs = _runs(x, y.shape)
    reduced = [at for at, (_, is_reduced) in enumerate(runs) if is_reduced]
    if op not in ("add", "avg") or len(reduced) != 1 or not 0 < reduced[0] < len(runs) - 1:
        return None
    (outer, _), (size, _), (inner, _) = runs
    if size > _LONGEST:  # the pooling adds them one after the other
        return None
    window = PoolingDescriptor("average_include_padding", (size, 1), propagate_nan=True)
    whole, means = (TensorDescriptor((outer, inner, n, 1), x.dtype, format="nhwc") for n in (size, 1))
    result = y._replace(strides=packed_as(x, y.shape))
    direct = same_memory(y, result)
    a, b = scales(alpha * (size if op == "add" else 1), beta if direct else 0.0, x.dtype)
    function = Function("cudnnPoolingForward", window, a, whole, At(0), b, means, At(1))
    if direct:
        return [Step(function, (0, 1))], []
    return [Step(function, (0, 2)), Step(copy(result, y, 1.0, beta), (2, 1))], [extent(result)]


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
    runs = _runs(x, y.shape)
    steps: list[Step] = []
    scratch: list[int] = []
    dtype, place = x.dtype, 0
    while any(is_reduced for _, is_reduced in runs):
        at = max(at for at, (_, is_reduced) in enumerate(runs) if is_reduced)
        if at == len(runs) - 1 and runs[at][0] > (_LAST if at == 0 else _LONGEST):  # a long row is divided
            length = next((n for n in range(_LONGEST, 15, -1) if runs[at][0] % n == 0), None)
            if length is None:
                return None
            runs[at : at + 1] = [(runs[at][0] // length, True), (length, True)]
            at += 1
        outer, inner = math.prod(size for size, _ in runs[:at]), math.prod(size for size, _ in runs[at + 1 :])
        view = _view(outer, runs[at][0], inner, dtype, x.alignment if not steps else 16)
        if view is None:
            return None
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
    if op == "norm2":
        root = OpTensorDescriptor("sqrt", compute_dtype="float32", propagate_nan=True)
        one, zero = scales(1.0, 0.0, "float32")
        d = described(sums)
        steps.append(Step(Function("cudnnOpTensor", root, one, d, At(0), zero, d, At(0), zero, d, At(0)), (place,)))
    steps.append(Step(copy(sums, y, alpha * share, beta), (place, 1)))
    return steps, scratch


def _reduced(
    device: int, view: tuple[TensorSpec, tuple[int, ...], int], before: str | None, kind: str, dtype: ElementName
) -> Executable | None:
    """Return the executable of a graph that reduces a view to a result of a dtype; None if no engine supports it."""
    spec, target, axis = view
    graph = Graph()
    node = graph.tensor("x", spec)
    if before == "abs":
        node = graph.pointwise("abs", node)
    elif before == "square":
        node = graph.pointwise("mul", node, node)
    made = graph.reduction(enumerator(raw.cudnnReduceTensorOp_t, kind, "op"), node, (axis,))
    graph.output("y", made, dtype, target)
    return graph.executable(device, _COLUMNS if axis == 0 else 0)


def _runs(x: TensorSpec, shape: tuple[int, ...]) -> list[tuple[int, bool]]:
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


def _view(
    outer: int, size: int, inner: int, dtype: ElementName, alignment: int
) -> tuple[TensorSpec, tuple[int, ...], int] | None:
    """Return the spec of (outer, size, inner) for a graph, the strides of its reduction over size, and the reduced axis.

    Return None if neither outer nor inner is 1, since no engine reduces an axis between two others.
    """
    if inner == 1:
        return TensorSpec((outer, size, 1, 1), dtype, (size, 1, size, size), alignment), (1, 1, 1, 1), 1
    if outer == 1:
        return TensorSpec((size, inner, 1, 1), dtype, (inner, 1, inner, inner), alignment), (inner, 1, inner, inner), 0
    return None
