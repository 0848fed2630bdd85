"""The graphs that engines take in place of attention and its gradient: with transposed inputs, and sums in float32.

The gradient needs k and v as they are and transposed. Engines take no transposition of an input, but the same memory as two
tensors. For dq they have two forms: they write the gradients of all scores to the workspace, b * h * sq * skv * 2 bytes, or
they add parts of dq in any order to a buffer in float32, b * h * sq * d * 4 bytes, which engines before 9.6 do not clear. With
the buffer they leave sums for a bias unwritten (cuDNN 9.19), so that it is not used then.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, packed_strides, strides_of
from cudnnpy.graph.kinds import KINDS
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Tensor, each_uid

PRODUCTS_OF_GRADIENT = 5


class Part(NamedTuple):
    """The graph that an engine computes for a problem."""

    graph: OperationGraph
    views: dict[int, int]  #: for tensors that share the memory of an input of the problem, the input, by unique ids
    buffer: int = 0  #: the unique id of the buffer of dq; 0 without one
    sums: tuple[int, ...] = ()  #: results that engines may add to in any order, which are cleared before
    #: results that engines may leave unwritten, and what they are filled with before
    filled: tuple[tuple[int, float], ...] = ()


def parts(graph: OperationGraph) -> list[Part]:
    """Return the graph for engines, and for the gradient of attention also the form with a buffer, the smaller one first."""
    viewed, views = with_views(graph)
    products = [one for one in viewed.operations if one.kind == "matmul"]
    if len(products) < PRODUCTS_OF_GRADIENT:
        return [Part(viewed, views, filled=_unwritten(viewed, products[-1]) if products else ())]
    outputs = set(viewed.outputs)
    maker: dict[Any, str] = {uid: one.kind for one in viewed.operations for _, uid in one.results}
    sums = tuple(
        uid
        for one in viewed.operations
        if one.kind == "reduction" and maker.get(one.operands[0][1]) != "matmul"  # sums of heads go to the workspace
        for _, uid in one.results
        if uid in outputs
    )
    found, specs = [Part(viewed, views, 0, sums, _unwritten(viewed, products[-1], sums))], viewed.specs
    for product in products:
        tensors = product.tensors
        a, spec = tensors["a"], specs[tensors["c"]]
        is_of_dq = not sums and tensors["c"] in outputs and tensors["b"] not in maker and maker.get(a) == "pointwise"
        if is_of_dq and len(spec.shape) == 4 and spec.dtype in ("float16", "bfloat16"):
            summed = _with_buffer(found[0], product)
            is_smaller = 4 * math.prod(spec.shape) <= 2 * math.prod(specs[a].shape)
            return [summed, *found] if is_smaller else [*found, summed]
    return found


def _unwritten(
    graph: OperationGraph, product: Operation, sums: tuple[int, ...] | None = None
) -> tuple[tuple[int, float], ...]:
    """Return the results of attention with valid sizes, and what they are for a sequence without queries or keys.

    Engines leave them unwritten (cuDNN 9.19), but for one query of forward. `sums` are the results of a gradient that are
    cleared anyway, None for forward. A graph does not tell how much memory a ragged tensor has.
    """
    ((_, out),), specs = product.results, graph.specs
    is_ragged = any(one.ragged for one in graph.tensors)
    if "m_override" not in product.tensors or out not in graph.outputs or is_ragged:
        return ()
    if sums is not None:
        return tuple((uid, 0.0) for uid in graph.outputs if uid not in sums)
    if specs[out].shape[2] == 1:
        return ()
    statistics = ((uid, -math.inf) for uid in graph.outputs if uid != out and specs[uid].dtype == "float32")
    return ((out, 0.0), *statistics)


def with_views(graph: OperationGraph) -> tuple[OperationGraph, dict[int, int]]:
    """Return the graph with tensors in memory for transposed inputs, and these inputs by the tensors' unique ids.

    An element of an axis that an input is broadcast along, a slice, is also the input's memory.
    """
    inputs, specs = set(graph.in_memory) - set(graph.outputs), graph.specs
    virtual = {tensor.uid for tensor in graph.tensors if tensor.is_virtual}
    views: dict[int, int] = {}
    for one in graph.operations:
        x, y = one.tensors.get("x"), one.tensors.get("y")
        if (
            one.kind not in ("reshape", "slice")
            or one.option("mode") is not None
            or x not in inputs
            or y not in virtual
        ):
            continue
        axes = [(t, n) for t, n in _axes(specs[x]) if t or one.kind == "reshape"]
        if axes == _axes(specs[y]):
            views[y] = x
    if not views:
        return graph, {}
    operations = tuple(one for one in graph.operations if views.keys().isdisjoint(uid for _, uid in one.results))
    used = {uid for one in operations for uids in one.tensors.values() for uid in each_uid(uids)}
    offsets = {one.uid: one.ragged for one in graph.tensors}
    used |= {offsets[views.get(uid, uid)] for uid in used}
    tensors = tuple(
        one._replace(
            is_virtual=False,
            spec=one.spec._replace(alignment=specs[views[one.uid]].alignment),
            ragged=offsets[views[one.uid]],
        )
        if one.uid in views
        else one
        for one in graph.tensors
        if one.uid in used
    )
    return graph._replace(tensors=tensors, operations=operations), views


def _axes(spec: TensorSpec) -> list[tuple[int, int]]:
    """Return the strides and sizes of the axes of more than one element, which are equal for a transposed tensor."""
    return sorted((t, n) for n, t in zip(spec.shape, strides_of(spec), strict=True) if n > 1)


def _with_buffer(part: Part, product: Operation) -> Part:
    """Return the part in which a product goes to a buffer, which is then rounded to the product's tensor."""
    graph, ((_, c),) = part.graph, product.results
    buffer, shape = 1 + max(tensor.uid for tensor in graph.tensors), graph.specs[c].shape
    summed = Tensor(buffer, TensorSpec(shape, "float32", packed_strides(shape)), reordering="f16x16")
    options = KINDS["pointwise"].complete({"mode": raw.CUDNN_POINTWISE_IDENTITY, "compute_dtype": "float32"})
    rounding = Operation("pointwise", tuple(options.items()), (("x", buffer),), (("y", c),))
    operations = [
        new
        for one in graph.operations
        for new in ((one._replace(results=(("c", buffer),)), rounding) if one is product else (one,))
    ]
    changed = graph._replace(tensors=(*graph.tensors, summed), operations=tuple(operations))
    return part._replace(graph=changed, buffer=buffer)
