"""Rules of cuDNN's engines, and rejected graphs.

A graph that no engine computes breaks one of the rules; the error begins with it. Such a rule explains an error, and rejects no
graph. Some graphs are rejected before cuDNN sees them, since it ends the process that plans them, plans what it then cannot
run, or computes something else with every engine. They were tried with cuDNN 9.19 and 9.28 for the profile of an H200, and on
one with 9.19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import are_channels_last, strides_of
from cudnnpy.graph.attention_lowerings import PRODUCTS_OF_GRADIENT, with_views
from cudnnpy.graph.graph_facts import (
    EIGHTS,
    HALVES,
    MAX_FLOAT8_HEAD_SIZE,
    VECTOR,
    broadcasts_otherwise,
    long_axes,
    modes,
    of_kind,
    rows_are_aligned,
    sizes,
    with_sums,
)
from cudnnpy.graph.kinds import pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, each_uid

_NOT_ALONE = {"concat", "reshape", "rng", "slice", "transpose"}
_REDUCTIONS = {
    raw.CUDNN_REDUCE_TENSOR_ADD,
    raw.CUDNN_REDUCE_TENSOR_AMAX,
    raw.CUDNN_REDUCE_TENSOR_MAX,
    raw.CUDNN_REDUCE_TENSOR_MIN,
}
_SOFTMAX_REDUCTIONS = {raw.CUDNN_REDUCE_TENSOR_ADD, raw.CUDNN_REDUCE_TENSOR_MAX}
_INTERPOLATIONS = {raw.CUDNN_RESAMPLE_BILINEAR, raw.CUDNN_RESAMPLE_NEAREST}


def broken_rule(graph: OperationGraph) -> str:
    """Return the first rule that a graph breaks, as a sentence; "" if it breaks no known one."""
    return next((sentence for breaks, sentence in _RULES if breaks(graph)), "")


def _kinds(graph: OperationGraph) -> set[str]:
    return {operation.kind for operation in graph.operations}


def _options(graph: OperationGraph, kind: str, option: str) -> set[int]:
    """Return the values that operations of a kind have for an option."""
    return {operation.option(option) for operation in graph.operations if operation.kind == kind}


def _ranks(graph: OperationGraph, kind: str) -> set[int]:
    """Return the numbers of axes of the results of a kind."""
    specs, made = graph.specs, (one.results for one in graph.operations if one.kind == kind)
    return {len(specs[uid].shape) for results in made for _, uid in results}


def _is_fused_float64(graph: OperationGraph) -> bool:
    is_convolution = len(graph.operations) == 1 and graph.operations[0].kind.startswith("convolution")
    return not is_convolution and any(spec.dtype == "float64" for spec in graph.specs.values())


def _composes_softmax(graph: OperationGraph) -> bool:
    return _options(graph, "reduction", "op") == _SOFTMAX_REDUCTIONS and any(modes(graph, "exp"))


def _is_softmax(graph: OperationGraph) -> bool:
    kinds = _kinds(graph)
    return kinds == {"softmax"} or (kinds == {"pointwise", "reduction"} and _composes_softmax(graph))


def _has_matmul_of_other_axes(graph: OperationGraph) -> bool:
    is_attention = not _kinds(graph).isdisjoint(("reduction", "softmax"))
    return not _ranks(graph, "matmul") <= ({3, 4} if is_attention else {3})


def _has_matmul_of_two_dtypes(graph: OperationGraph) -> bool:
    specs, products = graph.specs, of_kind(graph, "matmul")
    return any(specs[tensors["a"]].dtype != specs[tensors["b"]].dtype for _, tensors in products)


def _is_attention_without_statistics(graph: OperationGraph) -> bool:
    is_attention = len(of_kind(graph, "matmul")) == 2 and _composes_softmax(graph)
    return is_attention and raw.CUDNN_POINTWISE_LOG not in _options(graph, "pointwise", "mode")


def _is_of_images(graph: OperationGraph) -> bool:
    return _kinds(graph) <= {"pointwise", "reduction"} and _ranks(graph, "pointwise") <= {4, 5}


def _is_broadcast_otherwise(graph: OperationGraph) -> bool:
    return _is_of_images(graph) and broadcasts_otherwise(graph)


def _reduces_other_axes(graph: OperationGraph) -> bool:
    return _is_of_images(graph) and any(
        kind == "reduction" and small not in (set(), {1} & large, large - {1}) for kind, small, large in sizes(graph)
    )


def _has_uncommon_modes(graph: OperationGraph) -> bool:
    flags = {uid for uid in graph.in_memory if graph.specs[uid].dtype == "bool"}
    logical = {uid for one, _ in modes(graph, "logical_") for _, uid in one.results}
    return not flags.isdisjoint(logical) or any(modes(graph, "floor_mod"))


_RULES: tuple[tuple[Callable[[OperationGraph], bool], str], ...] = (
    (_is_fused_float64, "no engine takes float64, except for convolutions, alone or with a bias and a relu"),
    (
        _is_softmax,
        "no engine computes a softmax alone, but one between the products of attention; cudnnpy.Softmax computes it",
    ),
    (
        lambda graph: _kinds(graph) <= _NOT_ALONE,
        "no engine computes a concat, reshape, rng, slice or transpose without an operation of another kind",
    ),
    (
        _has_matmul_of_other_axes,
        "a matmul must have three axes, (batch, M, K) by (batch, K, N), or four within attention",
    ),
    (
        _has_matmul_of_two_dtypes,
        "a matmul must have operands of one data type: the operation that makes one, such as a softmax, takes dtype=",
    ),
    (
        _is_attention_without_statistics,
        "attention must have its statistics as an output, the maxima plus the logarithms of the sums, or the kind softmax",
    ),
    (
        lambda graph: not _INTERPOLATIONS.isdisjoint(_options(graph, "resample_fwd", "mode")),
        "no engine resamples by bilinear or nearest: modes are maxpool, avgpool_include_padding and avgpool_exclude_padding",
    ),
    (
        lambda graph: not _options(graph, "reduction", "op") <= _REDUCTIONS,
        "no engine reduces by another operation than add, amax, max and min",
    ),
    (
        lambda graph: _kinds(graph) == {"pointwise"} and not _ranks(graph, "pointwise") <= {3, 4, 5},
        "tensors of pointwise operations must have four axes, or five for volumes: append axes of size 1",
    ),
    (
        _has_uncommon_modes,
        "no engine computes floor_mod, and none writes the result of a logical operation to memory as bool",
    ),
    (
        _is_broadcast_otherwise,
        "an operand of pointwise operations must have all elements, one for each channel, one for each position, or one",
    ),
    (
        _reduces_other_axes,
        "a reduction of images must be over all axes but the channels, over the channels, or over all",
    ),
)


# Rejected graphs: rules that yield the unique id of a tensor, and what it must have


def check_graph(graph: OperationGraph, names: Mapping[int, str]) -> None:
    """Raise ValueError for a graph that ends the process that plans it (docs/known-issues.md), that cannot run once planned,
    or that engines compute otherwise.

    `names` are the tensors'.
    """
    _, views = with_views(graph)
    for rule, effect in _REJECTIONS:
        for uid, expected in rule(graph):
            shape, _, strides, _ = graph.specs[uid]
            view = f"{names.get(views[uid])} transposed" if uid in views else "an intermediate result"
            name = names.get(uid, view)
            raise ValueError(
                f"{name} must have {expected}; got shape {shape} and strides {strides}, for which cuDNN {effect}"
            )


def _is_attention(graph: OperationGraph) -> bool:
    """Return whether a graph has the two products of attention with a softmax between them, or those of its gradient."""
    has_softmax = not _kinds(graph).isdisjoint(("reduction", "softmax"))
    return _is_gradient(graph) or (len(of_kind(graph, "matmul")) == 2 and has_softmax)


def _is_gradient(graph: OperationGraph) -> bool:
    return len(of_kind(graph, "matmul")) >= PRODUCTS_OF_GRADIENT


def _of_attention(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-strides
    """The axis of the head size must be contiguous in all tensors of the products but k and dq of the product for dq."""
    graph, _ = with_views(graph)
    if not _is_attention(graph):
        return
    is_gradient = _is_gradient(graph)
    in_memory, maker = graph.in_memory, {uid: one.kind for one in graph.operations for _, uid in one.results}
    for _, product in of_kind(graph, "matmul"):
        a, b, c = (product[name] for name in "abc")
        if a in in_memory and b in in_memory:
            axes = {a: -1, b: -2}
        elif not is_gradient or maker.get(a) in ("reshape", "transpose"):
            axes = {b: -1, c: -1}
        else:
            continue
        for uid, axis in axes.items():
            shape, strides = graph.specs[uid].shape, strides_of(graph.specs[uid])
            if uid in in_memory and len(shape) == 4 and strides[axis] != 1 and shape[axis] > 1:
                yield uid, f"stride 1 on axis {4 + axis} within attention"


def _of_lengths(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-lengths
    """The masks of the lengths of attention, one right after the other, must have indices of tensors of their own."""
    masks = _masks_of_lengths(graph)
    others = {tensors["x"] for _, tensors in modes(graph, "binary_select")}
    for masked, (scores, indexed_uid, lengths, _) in masks.items():
        before = masks.get(scores)
        if before is not None and before[:2] == (indexed_uid, indexed_uid) and masked not in others:
            yield lengths, "indices of the scores that it masks, where lengths have masked them before"


def _of_one_query(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-lengths-alone
    """The lengths of the keys of one query are read right beside a comparison of its index with theirs."""
    if not _is_attention(graph) or _is_gradient(graph):
        return
    made = {uid for one in graph.operations for _, uid in one.results}
    compared = (*modes(graph, "cmp_g"), *modes(graph, "cmp_l"))
    has_diagonal = any({tensors["x"], tensors["b"]} <= made for _, tensors in compared)
    for masked, (_, _, lengths, axis) in _masks_of_lengths(graph).items():
        *_, queries, keys = graph.specs[masked].shape
        if queries == 1 < keys and axis == 3 and not has_diagonal:
            yield lengths, "beside it a selection where the index of the query + lengths - 1 >= those of the keys"


def _of_diagonals(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-diagonal-alone
    """The sum of the index of one query and lengths of keys is compared right beside a mask by the lengths, or valid sizes."""
    is_masked = any(axis == 3 for *_, axis in _masks_of_lengths(graph).values())
    has_sizes = any("n_override" in tensors for _, tensors in of_kind(graph, "matmul"))
    if is_masked or has_sizes or not _is_attention(graph) or _is_gradient(graph):
        return
    added = {tensors["x"] for _, tensors in modes(graph)} | {tensors["b"] for _, tensors in modes(graph, "add")}
    for lengths in (uid for uid in graph.in_memory if uid in added and graph.specs[uid].dtype == "int32"):
        sums = with_sums(graph, {lengths}) - {lengths}
        for _, tensors in modes(graph, "cmp_"):
            *_, queries, keys = graph.specs[tensors["y"]].shape
            if queries == 1 < keys and not sums.isdisjoint((tensors["x"], tensors["b"])):
                yield lengths, "beside it a selection where the index of the keys < lengths"


def _of_nodes(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-node-lengths
    """`sdpa_fwd` reads the lengths of the keys right beside those of the queries."""
    for _, tensors in of_kind(graph, "sdpa_fwd"):
        if "seq_len_kv" in tensors and "seq_len_q" not in tensors:
            yield tensors["seq_len_kv"], "seq_len_q beside it"


def _masks_of_lengths(graph: OperationGraph) -> dict[int, tuple[int, int, int, int]]:
    """Return for masked scores the scores, the tensor whose indices are compared, the lengths, and the indices' axis."""
    maker = {uid: one for one in graph.operations for _, uid in one.results}
    masks: dict[int, tuple[int, int, int, int]] = {}
    for _, tensors in modes(graph, "binary_select"):
        flags = maker.get(tensors["t"])
        if flags is None or flags.option("mode") != raw.CUDNN_POINTWISE_CMP_LT:
            continue
        compared = flags.tensors
        index = maker.get(compared["x"])
        if index is not None and index.option("mode") == raw.CUDNN_POINTWISE_GEN_INDEX and compared["b"] not in maker:
            masks[tensors["y"]] = tensors["x"], index.tensors["x"], compared["b"], index.option("axis")
    return masks


def _of_maximum_gradients(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # resample-gradient
    """Maxima of tensors that are channels last are found by their indices."""
    for one, tensors in of_kind(graph, "resample_bwd"):
        if one.option("mode") == raw.CUDNN_RESAMPLE_MAXPOOL and "index" not in tensors:
            dy = graph.specs[tensors["dy"]]
            if strides_of(dy)[1] == 1 and dy.shape[1] > 1:
                yield tensors["dy"], "packed strides for the gradient of maxpool without `index`"


def _of_first_gradients(graph: OperationGraph) -> Iterator[tuple[int, str]]:
    """The gradient of tensors that are not channels last takes x and y, in every mode (cuDNN's header)."""
    for _, tensors in of_kind(graph, "resample_bwd"):
        dy = graph.specs[tensors["dy"]]
        if not {"x", "y"} <= tensors.keys() and strides_of(dy)[1] != 1 and dy.shape[1] > 1:
            yield tensors["dy"], "channels-last strides for a gradient of resampling without x and y"


def _of_first_indices(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # resample-index
    """The places of maxima are written for tensors that are channels last alone."""
    for _, tensors in of_kind(graph, "resample_fwd"):
        if "index" in tensors and not are_channels_last(graph.specs[tensors["x"]]):
            yield tensors["x"], "channels-last strides where `index` is a result"


def _of_overrides(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # product-sizes
    """Numbers of valid rows are read within attention alone (cuDNN's header)."""
    if _is_attention(graph):
        return
    for _, tensors in of_kind(graph, "matmul"):
        for name in ("m_override", "n_override", "k_override"):
            if name in tensors:
                yield tensors[name], "a product within attention; zeros in the operands take its place elsewhere"


def _of_rows(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-rows
    """Within attention, rows of 16 bytes are loaded at multiples of 16 bytes. k transposed is its memory."""
    viewed, _ = with_views(graph)
    if not _is_attention(viewed) and _kinds(viewed).isdisjoint(("sdpa_fwd", "sdpa_bwd")):
        return
    in_memory, outputs = viewed.in_memory, set(viewed.outputs)
    # (batch, heads, head size, keys), of products with another tensor in memory
    transposed = {t["b"] for _, t in of_kind(viewed, "matmul") if {t["a"], t["b"]} <= {*in_memory}}
    loaded = {uid for one, _ in of_kind(viewed, "paged_cache_load") for _, uid in one.operands}
    for uid in in_memory:
        spec = viewed.specs[uid]
        is_loaded = spec.dtype in (*HALVES, *EIGHTS) or (spec.dtype == "float32" and uid not in outputs)
        if len(spec.shape) != 4 or not is_loaded:
            continue
        inner = 2 if uid in transposed else 3
        if spec.alignment < VECTOR:
            yield uid, f"an alignment of {VECTOR} bytes within attention, not of {spec.alignment}"
        if spec.shape[inner] == 1 or uid in loaded:
            continue
        if strides_of(spec)[inner] != 1:
            yield uid, f"stride 1 on axis {inner} within attention"
        if not rows_are_aligned(spec, inner):
            each = VECTOR // dtype_of(spec.dtype).itemsize
            yield (
                uid,
                f"rows that start at multiples of {VECTOR} bytes within attention, strides that are multiples of {each}",
            )


def _of_two_keys(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-keys
    """Engine 6 reads k transposed, for both products."""
    viewed, views = with_views(graph)
    if not _is_gradient(viewed):
        return
    maker = {uid: one.kind for one in viewed.operations for _, uid in one.results}
    for _, tensors in of_kind(viewed, "matmul"):
        is_of_dq = maker.get(tensors["a"]) == "pointwise" and tensors["b"] not in maker
        if is_of_dq and tensors["b"] not in views.values():
            yield (
                tensors["b"],
                "its transpose from a reshape of itself, not from another input, within attention's gradient",
            )


def _of_sums_of_heads(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-heads
    """Products whose heads are summed are read as numbers of 16 bits."""
    if not _is_gradient(graph):
        return
    products = {tensors["c"] for _, tensors in of_kind(graph, "matmul")}
    for one, tensors in of_kind(graph, "reduction"):
        x = tensors["x"]
        if one.option("shape") and x in products and graph.specs[x].dtype not in HALVES:
            yield x, "the dtype float16 or bfloat16 where heads of attention's gradient are summed"


def _of_selections(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-masks
    """Masks are selections from the scores, each by one comparison."""
    if not _is_attention(graph):
        return
    is_float8 = _is_attention_of_float8(graph)
    reduced = {tensors["y"] for _, tensors in of_kind(graph, "reduction")}
    weights: set[int] = set()
    for one in graph.operations:
        tensors, mode = one.tensors, one.option("mode")
        (_, result), *_ = one.results
        if one.kind == "softmax":
            weights.add(tensors["y"])
        if one.kind != "pointwise":
            continue
        is_of_weights = not weights.isdisjoint(uid for _, uids in one.operands for uid in each_uid(uids))
        if mode in (raw.CUDNN_POINTWISE_LOGICAL_AND, raw.CUDNN_POINTWISE_LOGICAL_OR) and not is_float8:
            yield result, "no conjunction within attention, but a selection for each of the flags"
        if mode == raw.CUDNN_POINTWISE_BINARY_SELECT and is_of_weights:
            yield result, "its selection before the softmax within attention"
        if is_of_weights or (mode == raw.CUDNN_POINTWISE_DIV and tensors.get("b") in reduced):
            weights.add(result)


def _is_attention_of_float8(graph: OperationGraph) -> bool:
    return _is_attention(graph) and any(graph.specs[t["b"]].dtype in EIGHTS for _, t in of_kind(graph, "matmul"))


def _of_float8(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-float8
    """Masks of float8 are a causal one and both lengths, and head sizes at most 128. There are no sums, and no offsets."""
    if not _is_attention_of_float8(graph):
        return
    made, products = {uid for one in graph.operations for _, uid in one.results}, of_kind(graph, "matmul")
    for _, tensors in products:
        uid = tensors["b" if tensors["a"] in made else "a"]  # v, q
        if graph.specs[uid].shape[-1] > MAX_FLOAT8_HEAD_SIZE:
            yield uid, f"a head size of {MAX_FLOAT8_HEAD_SIZE} or less within attention of float8"
    axis = {tensors["y"]: one.option("axis") for one, tensors in modes(graph, "gen_index")}
    combined = {uid for _, tensors in modes(graph, "logical_and") for uid in (tensors["x"], tensors["b"])}
    have_sizes = all({"k_override", "n_override"} & tensors.keys() for _, tensors in products)
    masks = (
        "a comparison of queries >= keys by their indices, or of both with lengths in a conjunction, beside the valid"
    )
    for one, tensors in modes(graph, "cmp_"):
        compared = pointwise_name(one.option("mode")), axis.get(tensors["x"]), axis.get(tensors["b"])
        if compared != ("cmp_ge", 2, 3) and not (have_sizes and tensors["y"] in combined):
            yield tensors["y"], f"{masks} sizes of both products, within attention of float8"
    for _, tensors in modes(graph, "add"):
        for uid in {*graph.in_memory} & {tensors["x"], tensors["b"]}:
            yield uid, "no place in a sum within attention of float8"
    for tensor in graph.tensors:
        if tensor.ragged:
            yield tensor.uid, "no offsets within attention of float8"


def _of_queries(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-queries
    """Operands that are broadcast along the queries are read right in the first row alone."""
    for one, uid, queries in _broadcast_in_attention(graph, 2):
        if one.option("mode") != raw.CUDNN_POINTWISE_MUL or long_axes(graph.specs[uid]):
            yield uid, f"size {queries} on axis 2 within attention, by stride 0 where all queries share it"


def _of_keys(graph: OperationGraph) -> Iterator[tuple[int, str]]:  # attention-bias
    """Sums with an operand that is broadcast along the keys are wrong for one query, and in the gradient of q."""
    for one, uid, keys in _broadcast_in_attention(graph, 3):
        is_index = graph.specs[uid].dtype == "int32"  # lengths are added to indices
        if one.option("mode") == raw.CUDNN_POINTWISE_ADD and not is_index:
            yield uid, f"size {keys} on axis 3 within attention"


def _broadcast_in_attention(graph: OperationGraph, axis: int) -> Iterator[tuple[Operation, int, int]]:
    """Yield elementwise operations of attention, their operands in memory that are broadcast along an axis, and its size."""
    if not _is_attention(graph):
        return
    specs, in_memory = graph.specs, graph.in_memory
    for one, _ in of_kind(graph, "pointwise"):
        ((_, result),) = one.results
        size = specs[result].shape[axis : axis + 1]
        for _, uid in one.operands:
            assert isinstance(uid, int)
            if uid in in_memory and specs[uid].shape[axis : axis + 1] == (1,) != size:
                yield one, uid, size[0]


_REJECTIONS: tuple[tuple[Callable[[OperationGraph], Iterator[tuple[int, str]]], str], ...] = (
    (_of_attention, "ends the process"),
    (_of_lengths, "ends the process"),
    (_of_maximum_gradients, "ends the process"),
    (_of_first_gradients, "has no engine"),
    (_of_first_indices, "leaves the indices unwritten"),
    (_of_overrides, "computes all rows"),
    (_of_rows, "misreads it"),
    (_of_two_keys, "reads one of them for both"),
    (_of_sums_of_heads, "reads other numbers"),
    (_of_selections, "ignores it"),
    (_of_float8, "gives NaN or faults"),
    (_of_queries, "reads only the first row right"),
    (_of_keys, "misreads it"),
    (_of_one_query, "reads it in steps of 128 keys"),
    (_of_diagonals, "ignores it"),
    (_of_nodes, "ignores it, but for lengths of 0"),
)
