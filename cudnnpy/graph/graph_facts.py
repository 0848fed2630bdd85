"""Properties of graphs, by name, that known issues of engines depend on (cudnnpy/_planning/known_issues.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, are_channels_last, is_format_ambiguous, strides_of
from cudnnpy.graph.attention_lowerings import PRODUCTS_OF_GRADIENT
from cudnnpy.graph.kinds import pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, each_uid

EIGHTS = ("float8_e4m3fn", "float8_e5m2")
HALVES = ("float16", "bfloat16")
VECTOR = 16  # the bytes that engines load at once
MAX_FLOAT8_HEAD_SIZE = 128  # of attention (attention-float8)
MANY_HEADS = 8  # with the same keys: engines mask more of one query wrong (attention-shared-keys)


def facts(graph: OperationGraph) -> frozenset[str]:
    """Return the names of the properties that a graph has."""
    return frozenset(name for name, has in FACTS.items() if has(graph))


def sizes(graph: OperationGraph) -> Iterator[tuple[str, set[int], set[int]]]:
    """Yield the kind, and the axes of more than one element of the smaller and of the larger tensor, for each operand."""
    specs = graph.specs
    for one in graph.operations:
        result = next(uid for _, uid in one.results)
        for _, uids in one.operands:
            for uid in each_uid(uids):
                small, large = sorted((long_axes(specs[at]) for at in (uid, result)), key=len)
                yield one.kind, small, large


def long_axes(spec: TensorSpec) -> set[int]:
    """Return the axes of more than one element."""
    return {axis for axis, size in enumerate(spec.shape) if size > 1}


def broadcasts_otherwise(graph: OperationGraph) -> bool:
    """Return whether a pointwise operand has neither all elements, nor one for each channel, for each position, or in all."""
    return any(
        kind == "pointwise" and small not in (set(), {1} & large, large - {1}, large)
        for kind, small, large in sizes(graph)
    )


def rows_are_aligned(spec: TensorSpec, inner: int = -1) -> bool:
    """Return whether each row along an axis starts at a multiple of 16 bytes."""
    others, strides = long_axes(spec) - {range(len(spec.shape))[inner]}, strides_of(spec)
    return all(strides[axis] * dtype_of(spec.dtype).itemsize % VECTOR == 0 for axis in others)


def of_kind(graph: OperationGraph, kind: str) -> list[tuple[Operation, dict[str, Any]]]:
    """Return the operations whose kind begins so, with their tensors."""
    return [(one, one.tensors) for one in graph.operations if one.kind.startswith(kind)]


def modes(graph: OperationGraph, begin: str = "", end: str = "") -> Iterator[tuple[Operation, dict[str, Any]]]:
    """Yield the pointwise operations whose mode begins and ends so, with their tensors."""
    for one, tensors in of_kind(graph, "pointwise"):
        name = pointwise_name(one.option("mode"))
        if name.startswith(begin) and name.endswith(end):
            yield one, tensors


def _virtual(graph: OperationGraph) -> set[int]:
    return {tensor.uid for tensor in graph.tensors if tensor.is_virtual}


def broadcasts_beside_convolution(graph: OperationGraph) -> bool:
    """beside a convolution, a pointwise operand that has neither all elements, nor one for each channel, for each position \
(of each image), or in all"""
    return bool(of_kind(graph, "convolution")) and broadcasts_otherwise(graph)


def compares_narrow(graph: OperationGraph) -> bool:
    """a comparison with a result that other pointwise operations broadcast, outside attention"""
    results = [long_axes(graph.specs[uid]) for one, _ in modes(graph) for _, uid in one.results]
    return len(of_kind(graph, "matmul")) < 2 and any(
        long_axes(graph.specs[tensors["y"]]) < other for _, tensors in modes(graph, "cmp_") for other in results
    )


def has_two_formats(graph: OperationGraph) -> bool:
    """images in memory of which some are channels last and others are not; no matrix product"""
    images = (graph.specs[uid] for uid in graph.in_memory if len(graph.specs[uid].shape) > 3)
    formats = {are_channels_last(spec) for spec in images if not is_format_ambiguous(spec)}
    return not of_kind(graph, "matmul") and not of_kind(graph, "sdpa") and len(formats) > 1


def computes_first_operand(graph: OperationGraph) -> bool:
    """operations before a convolution, and an image in memory that is not channels last"""
    operands = {uid for one, _ in of_kind(graph, "convolution") for _, uids in one.operands for uid in each_uid(uids)}
    images = (graph.specs[uid] for uid in graph.in_memory if len(graph.specs[uid].shape) > 3)
    return not operands.isdisjoint(_virtual(graph)) and not all(map(are_channels_last, images))


def has_gradient_of_result(graph: OperationGraph) -> bool:
    """the gradient of an activation whose x is a result that is not in memory, with a convolution"""
    virtual = _virtual(graph)
    return bool(of_kind(graph, "convolution")) and any(t["x"] in virtual for _, t in modes(graph, end="_bwd"))


def _resampled(graph: OperationGraph) -> list[int]:
    """Return the unique ids of what is resampled, or of the gradients of results of it."""
    return [tensors["dy"] if "dy" in tensors else tensors["x"] for _, tensors in of_kind(graph, "resample")]


def resamples_result(graph: OperationGraph) -> bool:
    """resampling, or its gradient, of a result that is not in memory"""
    return not _virtual(graph).isdisjoint(_resampled(graph))


def only_reduces_uneven_channels(graph: OperationGraph) -> bool:
    """reductions as the only outputs after resampling or its gradient, and channels that do not fill a multiple of 16 bytes"""
    given = [graph.specs[uid] for uid in _resampled(graph)]
    reduced = {tensors["y"] for _, tensors in of_kind(graph, "reduction")}
    is_uneven = any(spec.shape[1] * dtype_of(spec.dtype).itemsize % VECTOR for spec in given)
    return is_uneven and reduced.issuperset(graph.outputs)


def indexes_rows_of_batches(graph: OperationGraph) -> bool:
    """gen_index of another axis than the last beside a matrix product with three axes and several batches"""
    indices = ((graph.specs[t["y"]].shape, one.option("axis")) for one, t in modes(graph, "gen_index"))
    return bool(of_kind(graph, "matmul")) and any(
        len(s) == 3 and s[0] > 1 and axis not in (2, -1) for s, axis in indices
    )


def has_index(graph: OperationGraph) -> bool:
    """gen_index without two products, as attention has them"""
    return len(of_kind(graph, "matmul")) < 2 and any(modes(graph, "gen_index"))


def with_sums(graph: OperationGraph, uids: set[int]) -> set[int]:
    """Return the unique ids of tensors, and of all sums and differences that these tensors are terms of."""
    found = set(uids)
    for one, tensors in modes(graph):
        if pointwise_name(one.option("mode")) in ("add", "sub") and not found.isdisjoint((tensors["x"], tensors["b"])):
            found.add(tensors["y"])
    return found


def selects_by_numbers(graph: OperationGraph) -> bool:
    """the gradient of attention with a selection by a comparison of other numbers than indices"""
    indices = with_sums(graph, {tensors["y"] for _, tensors in modes(graph, "gen_index")})
    compared = ({tensors["x"], tensors["b"]} for _, tensors in modes(graph, "cmp_"))
    return len(of_kind(graph, "matmul")) >= PRODUCTS_OF_GRADIENT and any(indices.isdisjoint(pair) for pair in compared)


def scales_float8_otherwise(graph: OperationGraph) -> bool:
    """a matrix product of float8 with a number by value, or with a result of another type than float8"""
    specs = graph.specs
    factors = {specs[tensors[name]].dtype for _, tensors in of_kind(graph, "matmul") for name in "ab"}
    results = {specs[uid].dtype for uid in graph.outputs if long_axes(specs[uid])}
    return not factors.isdisjoint(EIGHTS) and (bool(graph.numbers) or not results <= set(EIGHTS))


def converts_uneven_int8(graph: OperationGraph) -> bool:
    """operations before a matrix product, and an int8 input with rows or an address that are no multiples of 16 bytes"""
    specs, products = graph.specs, of_kind(graph, "matmul")
    is_converted = not _virtual(graph).isdisjoint(tensors[name] for _, tensors in products for name in "ab")
    inputs = [specs[uid] for uid in graph.in_memory if specs[uid].dtype == "int8" and uid not in graph.outputs]
    return is_converted and not all(_is_even(spec) for spec in inputs)


def _is_even(spec: TensorSpec) -> bool:
    inner = min(long_axes(spec), key=strides_of(spec).__getitem__, default=-1)
    return spec.alignment >= VECTOR and rows_are_aligned(spec, inner)


def has_signed_block_scales(graph: OperationGraph) -> bool:
    """scales of blocks in a type with a sign, any but float8_e8m0fnu"""
    found = of_kind(graph, "block_scale_dequantize")
    return any(graph.specs[tensors["scale"]].dtype != "float8_e8m0fnu" for _, tensors in found)


class AttentionSizes(NamedTuple):
    """The sizes of attention, or of its gradient."""

    rows: int  #: heads of all sequences
    heads: int  #: of a sequence
    queries: int
    keys: int
    head_size: int
    value_size: int
    is_gradient: bool
    sharing: int  #: heads that share a head of k


def attention_sizes(graph: OperationGraph) -> AttentionSizes | None:
    """Return the sizes of attention whose products are operations, with a softmax between; None for another graph."""
    products, specs = [tensors for _, tensors in of_kind(graph, "matmul")], graph.specs
    maker = {uid: one for one in graph.operations for _, uid in one.results}
    differences = [one for one, _ in modes(graph, "sub")]
    powers = [tensors["x"] for _, tensors in (*of_kind(graph, "softmax"), *modes(graph, "exp"))]
    before, is_softmax = maker.get(powers[0]) if powers else None, bool(of_kind(graph, "softmax"))
    while before is not None and before.kind in ("pointwise", "diagonal_band_mask"):
        is_softmax = is_softmax or before in differences
        before = maker.get(before.tensors["x"])
    if not is_softmax or before is None or before.kind != "matmul" or len(products) not in (2, PRODUCTS_OF_GRADIENT):
        return None
    scores = before.tensors
    (*rows, queries, size), keys = specs[scores["a"]].shape, specs[scores["b"]].shape[-1]
    others = [one for one in products if one != scores]
    if is_gradient := len(others) > 1:  # dout @ transpose(v) is the one with no result as its first factor
        others = [{"b": one["a"]} for one in others if one["a"] not in maker]
    value_size, sharing = specs[others[0]["b"]].shape[-1], rows[-1] // specs[scores["b"]].shape[-3]
    return AttentionSizes(prod(rows), rows[-1], queries, keys, size, value_size, is_gradient, sharing)


def attends_one_query(graph: OperationGraph) -> bool:
    """attention of one query"""
    sizes, nodes = attention_sizes(graph), of_kind(graph, "sdpa_fwd")
    is_one = sizes is not None and sizes.queries == 1 and not sizes.is_gradient
    return is_one or any(graph.specs[tensors["q"]].shape[2] == 1 for _, tensors in nodes)


def masks_one_query_of_many_heads(graph: OperationGraph) -> bool:
    """attention of one query whose keys more than 8 heads share, with pages, or with a comparison of the query's index and \
lengths, but for keys up to a diagonal"""
    sizes = attention_sizes(graph)
    if sizes is None or sizes.is_gradient or sizes.queries > 1 or sizes.sharing <= MANY_HEADS:
        return False
    lengths = with_sums(graph, {uid for uid in graph.in_memory if graph.specs[uid].dtype == "int32"})
    indices = with_sums(graph, {t["y"] for one, t in modes(graph, "gen_index") if one.option("axis") in (2, -2)})
    # cmp_ge is right: another mask leaves only the keys before the diagonal
    compared = [{t["x"], t["b"]} for one, t in modes(graph, "cmp_") if pointwise_name(one.option("mode")) != "cmp_ge"]
    is_masked = any(not pair.isdisjoint(indices) and not pair.isdisjoint(lengths) for pair in compared)
    return is_masked or bool(of_kind(graph, "paged_cache_load"))


def has_gradient_of_wide_heads(graph: OperationGraph) -> bool:
    """the gradient of attention with a head size of 136 to 192, and of v of 72 to 128, but for a causal mask with as many \
keys as queries or more"""
    sizes = attention_sizes(graph)
    if sizes is None or not sizes.is_gradient or not (128 < sizes.head_size <= 192 and 64 < sizes.value_size <= 128):
        return False
    axis = {tensors["y"]: one.option("axis") for one, tensors in modes(graph, "gen_index")}
    compared = [(axis.get(tensors["x"]), axis.get(tensors["b"])) for _, tensors in modes(graph, "cmp_ge")]
    return (2, 3) not in compared or sizes.keys < sizes.queries


#: The properties, whose docstrings are the column "when" of docs/known-issues.md, by their names, which known_issues.json has
FACTS: dict[str, Callable[[OperationGraph], bool]] = {
    has.__name__: has
    for has in (
        has_index,
        broadcasts_beside_convolution,
        compares_narrow,
        has_two_formats,
        computes_first_operand,
        has_gradient_of_result,
        resamples_result,
        only_reduces_uneven_channels,
        indexes_rows_of_batches,
        selects_by_numbers,
        attends_one_query,
        masks_one_query_of_many_heads,
        has_gradient_of_wide_heads,
        scales_float8_otherwise,
        converts_uneven_int8,
        has_signed_block_scales,
    )
}
