"""The rules that the error of a graph begins with, with the real libcudnn and a device profile, and the rejected graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import sample_graphs
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile, Graph, TensorSpec, raw
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._planning import problem_notation
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.graph.broken_rules import broken_rule
from cudnnpy.graph.operation_graph import Operation, OperationGraph
from cudnnpy.graph.operation_graph import Tensor as GraphTensor

X = sample_graphs.channels_last(sample_graphs.X)


def softmax(g: Graph) -> Graph:
    x = g.tensor("x", TensorSpec((4, 128, 64), "float32"))
    weights = g.pointwise("exp", g.pointwise("sub", x, g.reduction("max", x, (2,))))
    g.output("y", g.pointwise("div", weights, g.reduction("add", weights, (2,))))
    return g


def product(*shape: int) -> Callable[[Graph], Graph]:
    def made(g: Graph) -> Graph:
        a, b = (g.tensor(name, TensorSpec(shape, "float16")) for name in "ab")
        g.output("c", g.matmul(a, b))
        return g

    return made


def product_with_float32(g: Graph) -> Graph:
    a, b = (g.tensor(name, TensorSpec((2, 64, 64), "float16")) for name in "ab")
    g.output("c", g.matmul(g.pointwise("exp", a), b))
    return g


def attention_for_inference(g: Graph) -> Graph:
    return sample_graphs.attention(g, has_statistics=False)


def bilinear(g: Graph) -> Graph:
    g.output("y", g.resample("bilinear", g.tensor("x", X), 2))
    return g


def mean(g: Graph) -> Graph:
    g.output("y", g.reduction("avg", g.tensor("x", X), (0, 2, 3)))
    return g


def relu_of_a_matrix(g: Graph) -> Graph:
    g.output("y", g.pointwise("relu_fwd", g.tensor("x", TensorSpec((64, 64), "float16"))))
    return g


REFUSED = [
    (sample_graphs.product_in_float64, "no engine takes float64, except for convolutions"),
    (softmax, "no engine computes a softmax alone"),
    (product(64, 64), "a matmul must have three axes, (batch, M, K) by (batch, K, N)"),
    (product(2, 4, 64, 64), "a matmul must have three axes"),
    (product_with_float32, "a matmul must have operands of one data type: the operation that makes one"),
    (attention_for_inference, "attention must have its statistics as an output"),
    (bilinear, "no engine resamples by bilinear"),
    (mean, "no engine reduces by another operation than add"),
    (relu_of_a_matrix, "tensors of pointwise operations must have four axes"),
]


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_the_error_of_a_graph_that_no_engine_computes_begins_with_the_rule() -> None:
    h200 = DeviceProfile.load("h200")
    for make, begin in REFUSED:
        if make is relu_of_a_matrix and raw.version() < 92000:
            continue  # 9.19 computes it
        with pytest.raises(NoAlgorithmError) as caught:
            make(Graph()).plan(h200)
        rule, title, *_ = str(caught.value).splitlines()
        assert rule.startswith(begin)
        assert title.startswith("no algorithm for graph of ")
        assert "channels last" not in str(caught.value)  # which is no remedy while the rule is broken


@pytest.mark.parametrize("kind", ["concat", "reshape", "rng", "slice", "softmax", "transpose"])
def test_kinds_that_no_engine_computes_alone(kind: str) -> None:
    spec = TensorSpec((4, 64, 64), "float16", (4096, 64, 1))
    alone = OperationGraph(
        (GraphTensor(1, spec), GraphTensor(2, spec)), (Operation(kind, (), (("x", 1),), (("y", 2),)),)
    )
    assert broken_rule(alone).startswith("no engine computes a ")
    product = Operation("matmul", (), (("a", 2), ("b", 1)), (("c", 3),))
    assert broken_rule(OperationGraph((*alone.tensors, GraphTensor(3, spec)), (*alone.operations, product))) == ""


def test_graphs_that_are_planned_break_none() -> None:
    for make in {*sample_graphs.GRAPHS.values(), sample_graphs.attention} - {sample_graphs.product_in_float64}:
        assert sample_graphs.as_graph(make(Graph())).broken_rule == ""


# Rejected graphs

B, H, S, D = 2, 4, 128, 64
ROW, COLUMN = (
    (H * S * D, S * D, D, 1),
    (H * S * D, S * D, 1, S),
)  # strides of (B, H, S, D); the second one is transposed
LENGTHS = TensorSpec((B, 1, S, 1), "int32", (1, 1, 0, 1))
SHAPES = {**dict.fromkeys(("q", "k", "v", "o", "do"), (B, H, S, D)), **dict.fromkeys(("kt", "vt"), (B, H, D, S))}


def attention(
    change: Callable[[Graph, Any], Any] = lambda g, x: x, dtype: Any = "float16", **strides: tuple[int, ...]
) -> Graph:
    """`change` adds operations to the scores."""
    g = Graph()
    q, kt, v = (heads(g, name, strides, dtype) for name in ("q", "kt", "v"))
    scores = change(g, g.matmul(q, kt))
    largest = g.reduction("max", scores, (3,))
    weights = g.pointwise("exp", g.pointwise("sub", scores, largest))
    total = g.reduction("add", weights, (3,))
    g.output("stats", g.pointwise("add", largest, g.pointwise("log", total)), "float32")
    g.output("o", g.matmul(g.pointwise("div", weights, total, dtype=dtype), v), strides=strides.get("o"))
    return g


def attention_gradient(
    change: Callable[[Graph, Any], Any] = lambda g, x: x, summed: Any = None, **strides: tuple[int, ...]
) -> Graph:
    """The heads of dk are summed if `summed`, the dtype of them, is given."""
    g = Graph()
    q, k, vt, o, do = (heads(g, name, strides) for name in ("q", "k", "vt", "o", "do"))
    *outer, row, element = k.spec.strides
    turn = {"shape": (B, H, D, S), "strides": (*outer, element, row)}
    kt = heads(g, "kt", strides) if "kt" in strides else g.add("reshape", x=k, **turn)["y"]
    stats, one = g.tensor("stats", TensorSpec((B, H, S, 1), "float32")), g.number(1.0)
    sums = g.output("sums", g.pointwise("mul", g.reduction("add", g.pointwise("mul", do, o), (3,)), one))
    p = g.pointwise("exp", g.pointwise("sub", change(g, g.matmul(q, kt)), stats))
    ds = g.pointwise("mul", g.pointwise("mul", g.pointwise("sub", g.matmul(do, vt), sums), p), one, dtype="float16")
    p = g.pointwise("mul", p, one, dtype="float16")
    turned, pt = (g.add("reshape", x=x, shape=(B, H, S, S), strides=(H * S * S, S * S, 1, S))["y"] for x in (ds, p))
    dk = g.matmul(turned, q, dtype=summed)
    if summed:
        dk = g.add("reduction", op="add", x=dk, shape=(B, 1, S, D))["y"]
    for name, result in (("dv", g.matmul(pt, do)), ("dq", g.matmul(ds, k)), ("dk", dk)):
        g.output(name, result, "float16", strides.get(name))
    return g


def heads(g: Graph, name: str, strides: dict[str, tuple[int, ...]], dtype: Any = "float16") -> Any:
    usual = ROW if SHAPES[name][3] == D else (H * S * D, S * D, 1, D)
    return g.tensor(name, TensorSpec(SHAPES[name], dtype, strides.get(name, usual)))


@pytest.mark.parametrize(
    ("make", "name", "strides", "axis"),
    [
        *((attention, name, COLUMN, 3) for name in ("q", "v", "o")),
        (attention, "kt", (H * S * D, S * D, S, 1), 2),
        *((attention_gradient, name, COLUMN, 3) for name in ("q", "do", "dk", "dv")),
        (attention_gradient, "k", COLUMN, 2),  # as it is transposed
        (attention_gradient, "vt", (2 * H * S * D, 2 * S * D, 2, 2 * D), 2),
    ],
)
def test_attention_of_heads_that_are_not_contiguous_is_rejected_by_name(
    make: Callable[..., Graph], name: str, strides: tuple[int, ...], axis: int
) -> None:
    g = make(**{name: strides})
    with pytest.raises(
        ValueError, match=f"^{name}( transposed)? must have stride 1 on axis {axis} within attention; got"
    ):
        g.plan(DeviceProfile.load("h200"))
    problem = sample_graphs.as_graph(g)
    with pytest.raises(ValueError, match="must have stride 1 on axis"):
        problem_notation.parse(problem_notation.text_of(problem))


@pytest.mark.parametrize("name", ["o", "dq"])
def test_other_tensors_of_attentions_gradient_must_have_the_head_size_last(name: str) -> None:
    """cuDNN plans them, and reads other elements."""
    with pytest.raises(ValueError, match=f"^{name} must have stride 1 on axis 3 within attention; got .* misreads it$"):
        attention_gradient(**{name: COLUMN}).problem()


def test_heads_beside_each_other_and_heads_of_one_element_are_planned() -> None:
    beside = (S * H * D, D, H * D, 1)
    attention_gradient(q=beside, k=beside, do=beside).problem()
    attention(v=beside).problem()


@pytest.mark.parametrize("shares", [False, True])
def test_masks_by_lengths_have_indices_of_their_own(shares: bool) -> None:
    g = Graph()
    q, kt, v = (heads(g, name, {}) for name in ("q", "kt", "v"))
    rows, columns = (g.tensor(name, LENGTHS) for name in ("rows", "columns"))
    first = scores = g.matmul(q, kt)
    for axis, lengths in ((2, rows), (3, columns)):
        index = g.pointwise("gen_index", first if shares else scores, axis=axis)
        scores = g.pointwise("binary_select", scores, g.number(-1e30), g.pointwise("cmp_lt", index, lengths))
    weights = g.pointwise("exp", g.pointwise("sub", scores, g.reduction("max", scores, (3,))))
    g.output("o", g.matmul(g.pointwise("div", weights, g.reduction("add", weights, (3,)), dtype="float16"), v))
    if not shares:
        g.problem()
        return
    with pytest.raises(ValueError, match=r"^columns must have indices of the scores that it masks, where lengths have"):
        g.problem()


def rejected(g: Graph, name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)} must have {re.escape(expected)}.*; got shape"):
        g.problem()


def biased(spec: TensorSpec) -> Callable[[Graph, Any], Any]:
    return lambda g, scores: g.pointwise("add", scores, g.tensor("bias", spec))


@pytest.mark.parametrize("make", [attention, attention_gradient])
def test_rows_of_attention_start_at_multiples_of_16_bytes(make: Callable[..., Graph]) -> None:
    uneven = (H * S * (D + 1), S * (D + 1), D + 1, 1)
    rejected(
        make(q=uneven),
        "q",
        "rows that start at multiples of 16 bytes within attention, strides that are multiples of 8",
    )
    make(q=(H * S * (D + 8), S * (D + 8), D + 8, 1)).problem()
    for dtype, each, even in (("float16", 8, 136), ("float32", 4, 132)):
        for row in (S + 1, even - each // 2):
            rejected(
                make(biased(TensorSpec((1, 1, S, S), dtype, (S * row, S * row, row, 1)))), "bias", "rows that start at"
            )
        make(biased(TensorSpec((1, 1, S, S), dtype, (S * even, S * even, even, 1)))).problem()
        spec = TensorSpec((1, 1, S, S), dtype, None, 8)
        rejected(make(biased(spec)), "bias", "an alignment of 16 bytes within attention, not of 8")


@pytest.mark.parametrize("make", [attention, attention_gradient])
def test_operands_of_attentions_scores_have_all_queries(make: Callable[..., Graph]) -> None:
    expected = f"size {S} on axis 2 within attention, by stride 0 where all queries share it"
    rejected(make(biased(TensorSpec((1, 1, 1, S), "float16"))), "bias", expected)
    make(biased(TensorSpec((1, 1, S, S), "float16", (S, S, 0, 1)))).problem()

    def masked(lengths: TensorSpec) -> Callable[[Graph, Any], Any]:
        def change(g: Graph, scores: Any) -> Any:
            flags = g.pointwise("cmp_lt", g.pointwise("gen_index", scores, axis=3), g.tensor("lengths", lengths))
            return g.pointwise("binary_select", scores, g.number(-1e30), flags)

        return change

    rejected(make(masked(TensorSpec((B, 1, 1, 1), "int32"))), "lengths", expected)
    make(masked(LENGTHS)).problem()
    scale = TensorSpec((1, 1, 1, 1), "float32")
    make(lambda g, scores: g.pointwise("mul", scores, g.tensor("scale", scale))).problem()


@pytest.mark.parametrize("make", [attention, attention_gradient])
def test_operands_of_attentions_scores_have_all_keys(make: Callable[..., Graph]) -> None:
    rejected(make(biased(TensorSpec((1, 1, S, 1), "float16"))), "bias", f"size {S} on axis 3 within attention")


@pytest.mark.parametrize("masks", [("cmp_lt",), ("cmp_ge",), ("cmp_lt", "cmp_ge")])
def test_lengths_of_one_query_need_a_diagonal(masks: tuple[str, ...]) -> None:
    g = Graph()
    q = g.tensor("q", TensorSpec((B, H, 1, D), "float16"))
    scores = g.matmul(q, heads(g, "kt", {}))
    lengths = g.tensor("lengths", TensorSpec((B, 1, 1, 1), "int32"))

    def masked(x: Any, mode: str, *compared: Any) -> Any:
        return g.pointwise("binary_select", x, g.number(-1e30), g.pointwise(mode, *compared))

    if "cmp_lt" in masks:
        scores = masked(scores, "cmp_lt", g.pointwise("gen_index", scores, axis=3), lengths)
    if "cmp_ge" in masks:
        query, key = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        last = g.pointwise(
            "sub", g.pointwise("add", query, lengths, dtype="int32"), g.number(1, dtype="int32"), dtype="int32"
        )
        scores = masked(scores, "cmp_ge", last, key)
    stats = g.add("softmax", x=scores, results=("stats",))
    g.output("stats", stats["stats"], "float32")
    stats["y"].spec = stats["y"].spec._replace(dtype="float16")
    g.output("o", g.matmul(stats["y"], heads(g, "v", {})))
    needed = {
        "cmp_lt": "the index of the query + lengths - 1 >= those of the keys",
        "cmp_ge": "the index of the keys < lengths",
    }
    if len(masks) == 1:
        rejected(g, "lengths", f"beside it a selection where {needed[masks[0]]}")
    else:
        g.problem()


@pytest.mark.parametrize("is_beside", [False, True])
def test_the_operation_of_attention_needs_both_lengths(is_beside: bool) -> None:
    g = Graph()
    names = ("seq_len_kv", "seq_len_q") if is_beside else ("seq_len_kv",)
    lengths = {name: g.tensor(name, TensorSpec((B, 1, 1, 1), "int32")) for name in names}
    q, k, v = (heads(g, name, {}) for name in "qkv")
    g.output("o", g.add("sdpa_fwd", q=q, k=k, v=v, **lengths)["o"])
    if is_beside:
        g.problem()
    else:
        rejected(g, "seq_len_kv", "seq_len_q beside it")


@pytest.mark.parametrize("make", [attention, attention_gradient])
@pytest.mark.parametrize("mode", ["logical_and", "logical_or"])
def test_flags_of_attention_are_not_combined(make: Callable[..., Graph], mode: str) -> None:
    def change(g: Graph, scores: Any) -> Any:
        rows, columns = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        flags = (g.pointwise("cmp_ge", rows, columns), g.pointwise("cmp_gt", columns, g.number(5.0)))
        return g.pointwise("binary_select", scores, g.number(-1e30), g.pointwise(mode, *flags))

    rejected(make(change), "an intermediate result", "no conjunction within attention")


def test_attention_of_float8_has_few_masks() -> None:
    """cuDNN 9.19 gives NaN, faults or does not end for others."""

    def selected(g: Graph, scores: Any, flags: Any) -> Any:
        return g.pointwise("binary_select", scores, g.number(-math.inf), flags)

    def of_a_window(g: Graph, scores: Any) -> Any:
        rows, columns = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        return selected(g, scores, g.pointwise("cmp_gt", g.pointwise("add", columns, g.number(5.0)), rows))

    def causal(g: Graph, scores: Any) -> Any:
        rows, columns = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        return selected(g, scores, g.pointwise("cmp_ge", rows, columns))

    def reversed_(g: Graph, scores: Any) -> Any:
        rows, columns = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        return selected(g, scores, g.pointwise("cmp_ge", columns, rows))

    def of_lengths(g: Graph, scores: Any) -> Any:
        lengths = [g.tensor(name, TensorSpec((B, 1, S, 1), "int32", (1, 1, 0, 1))) for name in ("rows", "columns")]
        pairs = zip((2, 3), lengths, strict=True)
        flags = [g.pointwise("cmp_lt", g.pointwise("gen_index", scores, axis=axis), one) for axis, one in pairs]
        return selected(g, scores, g.pointwise("logical_and", *flags))

    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        attention(dtype=dtype).problem()
        attention(causal, dtype=dtype).problem()
        rejected(
            attention(biased(TensorSpec((1, 1, S, S), "float32")), dtype=dtype),
            "bias",
            "no place in a sum within attention of float8",
        )
        for change in (of_a_window, reversed_, of_lengths):  # without the valid sizes of the products
            rejected(
                attention(change, dtype=dtype),
                "an intermediate result",
                "a comparison of queries >= keys by their indices, or of both",
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(SHAPES, "v", (B, H, S, 144))
            wide = attention(dtype=dtype, v=(H * S * 144, S * 144, 144, 1))
        rejected(wide, "v", "a head size of 128 or less within attention of float8")


@pytest.mark.parametrize("is_composed", [False, True])
def test_the_weights_of_attention_are_not_selected(is_composed: bool) -> None:
    g = Graph()
    q, kt, v = (heads(g, name, {}) for name in ("q", "kt", "v"))
    scores = g.pointwise("div", g.matmul(q, kt), g.number(8.0))
    flags = g.pointwise("cmp_gt", scores, g.number(0.0))
    scores = g.pointwise("binary_select", scores, g.number(-1e30), flags)
    if is_composed:
        e = g.pointwise("exp", g.pointwise("sub", scores, g.reduction("max", scores, (3,))))
        weights = g.pointwise("div", e, g.reduction("add", e, (3,)))
    else:
        weights = g.add("softmax", x=scores)["y"]
    weights = g.pointwise("mul", weights, g.number(2.0))
    g.output("o", g.matmul(g.pointwise("binary_select", weights, g.number(0.0), flags, dtype="float16"), v))
    rejected(g, "an intermediate result", "its selection before the softmax within attention")


def test_the_gradient_of_attention_reads_k_once() -> None:
    turned = attention_gradient(kt=(H * S * D, S * D, 1, D))
    rejected(turned, "k", "its transpose from a reshape of itself, not from another input")
    attention_gradient().problem()


@pytest.mark.parametrize(("dtype", "is_right"), [("float16", True), ("bfloat16", True), ("float32", False)])
def test_heads_of_attentions_gradient_are_summed_in_16_bits(dtype: Any, is_right: bool) -> None:
    g = attention_gradient(summed=dtype)
    if is_right:
        g.problem()
    else:
        rejected(
            g, "an intermediate result", "the dtype float16 or bfloat16 where heads of attention's gradient are summed"
        )


@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
def test_attention_in_one_operation_has_the_head_size_last(name: str) -> None:
    def made(strides: Any) -> Graph:
        g = Graph()
        q, k, v = (g.tensor(n, TensorSpec((B, H, S, D), "float16", strides if n == name else None)) for n in "qkv")
        o = g.add("sdpa_fwd", q=q, k=k, v=v, scale=0.125)["o"]
        g.output("o", o, strides=strides if name == "o" else None)
        return g

    rejected(made(COLUMN), name, "stride 1 on axis 3 within attention")
    made((S * H * D, D, H * D, 1)).problem()


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_numbers_of_valid_rows_are_for_attention_alone(name: str) -> None:
    g = Graph()
    a, b = (g.tensor(one, TensorSpec((2, 64, 64), "float16")) for one in "ab")
    g.output("c", g.matmul(a, b, **{name: g.tensor("rows", TensorSpec((2, 1, 1), "int32"))}))
    rejected(g, "rows", "a product within attention")


def test_the_places_of_maxima_are_for_tensors_that_are_channels_last() -> None:
    def made(strides: Callable[..., Any]) -> Graph:
        g, shape = Graph(), (2, 16, 8, 8)
        options: dict[str, Any] = {"mode": "maxpool", "spatial_dims": 2, "padding_mode": "neg_inf_pad"}
        options |= dict.fromkeys(("pre_padding", "post_padding"), (0, 0)) | dict.fromkeys(("stride", "window"), (2, 2))
        x = g.tensor("x", TensorSpec(shape, "float16", strides(shape)))
        for name, node in g.add("resample_fwd", x=x, results=("index",), **options).items():
            g.output(name, node)
        return g

    rejected(made(packed_strides), "x", "channels-last strides where `index` is a result")
    made(channels_last_strides).problem()


def test_the_gradient_of_a_maximum_channels_last_needs_the_indices() -> None:
    g = Graph()
    small, large = sample_graphs.channels_last((2, 16, 4, 4)), sample_graphs.channels_last((2, 16, 8, 8))
    dy, x, y = g.tensor("dy", small), g.tensor("x", large), g.tensor("y", small)
    g.output("dx", g.resample_backward("maxpool", dy, large.shape, 2, x=x, y=y))
    with pytest.raises(
        ValueError, match=r"^dy must have packed strides for the gradient of maxpool without `index`; got"
    ):
        g.problem()
    with_index = Graph()
    dy, index = with_index.tensor("dy", small), with_index.tensor("index", small._replace(dtype="int8"))
    with_index.output("dx", with_index.resample_backward("maxpool", dy, large.shape, 2, index=index))
    with_index.problem()


@pytest.mark.parametrize("given", ["", "x", "y"])
def test_a_gradient_of_resampling_channels_first_needs_x_and_y(given: str) -> None:
    """cuDNN plans it, and cudnnBackendExecute then returns CUDNN_STATUS_BAD_PARAM."""

    def made(names: str, strides: Callable[..., Any]) -> Graph:
        g = Graph()
        shapes = {"dy": (2, 16, 4, 4), "x": (2, 16, 8, 8), "y": (2, 16, 4, 4)}
        nodes = {
            name: g.tensor(name, TensorSpec(shape, "float16", strides(shape)))
            for name, shape in shapes.items()
            if name in ("dy", *names)
        }
        g.output("dx", g.resample_backward("avgpool_include_padding", nodes.pop("dy"), shapes["x"], 2, **nodes))
        return g

    with pytest.raises(
        ValueError, match=r"^dy must have channels-last strides for a gradient of .* without x and y; got"
    ):
        made(given, packed_strides).problem()
    made("xy", packed_strides).problem()
    made(given, channels_last_strides).problem()


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_a_layer_norm_of_three_axes_and_its_gradient_are_planned_under_the_callers_names() -> None:
    h200, tokens = DeviceProfile.load("h200"), TensorSpec((8, 128, 768), "float16")
    for rows in ((1, 1, 768), (1, 128, 768)):
        g = Graph()
        x, scale, bias = (
            g.tensor("tokens", tokens),
            g.tensor("weight", TensorSpec(rows)),
            g.tensor("shift", TensorSpec(rows)),
        )
        for name, node in zip(
            ("y", "mean", "inverse"), g.normalization("layer_norm", x, scale, bias, 1e-5), strict=True
        ):
            g.output(name, node)
        statistics = "(8, 128, 1)" if rows[1] == 1 else "(8, 1, 1)"
        assert [(node.spec.dtype, str(node.shape)) for node in g.outputs[1:]] == [("float32", statistics)] * 2
        assert "tokens float16[8, 128, 768], weight float32" in repr(g.plan(h200))
        gradient = Graph()
        nodes = [gradient.tensor(name, tokens) for name in ("dy", "tokens")]
        nodes.append(gradient.tensor("weight", TensorSpec(rows)))
        nodes += [gradient.tensor(node.name, node.spec) for node in g.outputs[1:]]
        for name, node in zip(("dx", "dw", "db"), gradient.normalization_backward("layer_norm", *nodes), strict=True):
            gradient.output(name, node)
        assert [node.spec.dtype for node in gradient.outputs] == ["float16", "float32", "float32"]  # as weight
        assert "inverse float32" in repr(gradient.plan(h200))


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_a_graph_without_an_engine_or_a_known_rule_names_the_page() -> None:
    g = Graph()
    g.output("c", g.matmul(*(g.tensor(name, TensorSpec((8, 64, 64), "int8")) for name in ("left", "right"))))
    with pytest.raises(NoAlgorithmError, match=r"(?s)left int8.*docs/graphs.md lists what engines require$"):
        g.plan(DeviceProfile.load("h200"))


def test_a_graph_prints_its_tensors_and_a_node_has_no_operators() -> None:
    g = Graph()
    x = g.tensor("x", TensorSpec((1, 2, 3, 3)))
    assert repr(g) == "<Graph of no operation: x float32[1, 2, 3, 3]>"
    with pytest.raises(TypeError, match=r'Type g.pointwise\("add", a, b\)'):
        2 * x
    with pytest.raises(ValueError, match=r"scale must have shape \(1, 2, 1, 1\)"):
        g.normalization("instance_norm", x, x, None, 1e-5)
