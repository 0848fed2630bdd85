"""Graphs that known issues of engines are about, and the nearest that the engines are right for, by the issue."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy's bfloat16 and float8)
import numpy as np

from cudnnpy import Graph, TensorSpec
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._layers.graph import Node

Shape = tuple[int, ...]
Make = Callable[[Graph], None]
N, C, K, H, W = 3, 24, 32, 8, 5
Y = (N, K, H, W)


def image(g: Graph, name: str, shape: Shape, dtype: Any = "float16", last: bool = True) -> Node:
    strides = channels_last_strides(shape) if last else packed_strides(shape)
    return g.tensor(name, TensorSpec(shape, dtype, strides))


def convolved(g: Graph, tap: int = 3, last: bool = True) -> Node:
    """A convolution, with the result Y."""
    x, w = image(g, "x", (N, C, H, W), last=last), image(g, "w", (K, C, tap, tap), last=last)
    return g.convolution(x, w, padding=tap // 2)


def ended(g: Graph, y: Node, dtype: Any = "float16", last: bool = True) -> None:
    g.output("y", y, dtype, channels_last_strides(y.shape) if last else packed_strides(y.shape))


def with_operand(g: Graph, shape: Shape, kind: str = "forward") -> None:
    if kind == "forward":
        y = convolved(g)
    else:
        y = g.convolution_backward_data(image(g, "dy", Y), image(g, "w", (K, K, 3, 3)), Y, padding=1)
    ended(g, g.pointwise("mul", y, image(g, "b", shape)))


def summed(g: Graph, tap: int, last: bool) -> None:
    y = convolved(g, tap, last)
    ended(g, y, last=last)
    g.output("sums", g.reduction("add", y, (0, 2, 3)), "float32")


def scaled_before(g: Graph, filters: int, last: bool) -> None:
    """A scale and a bias before a convolution, and the least of the filters' results."""
    x = image(g, "x", (N, 16, 3, 2), last=last)
    x = g.pointwise("mul", x, image(g, "scale", (1, 16, 1, 1)))
    x = g.pointwise("add", x, image(g, "bias", (1, 16, 1, 1)), dtype="float16")
    y = g.convolution(x, image(g, "w", (filters, 16, 1, 1), last=last), padding=1)
    least = image(g, "least", (N, 1, 5, 4), last=last)
    y = g.pointwise("binary_select", y, g.number(0.0), g.pointwise("cmp_le", y, least))
    g.output("y", g.reduction("min", y, (1,)), "float32")


def in_formats(g: Graph, operand: bool, output: bool) -> None:
    """Whether the operand and the output are channels last."""
    y = g.pointwise("gelu_bwd", convolved(g), image(g, "b", Y, last=operand))
    ended(g, y, last=output)


def statistics(g: Graph, last: bool) -> None:
    """The gradient of batch normalization before a relu and a convolution; whether x is channels last."""
    n, c, size = 2, 8, 8
    shape = (n, c, size, size)
    x = image(g, "x", shape, last=last)
    mean, invstd, scale, bias = (
        image(g, name, (1, c, 1, 1), "float32") for name in ("mean", "invstd", "scale", "bias")
    )
    dx = g.convolution_backward_data(
        image(g, "dy", (n, 16, size, size)), image(g, "w", (16, c, 3, 3)), shape, padding=1
    )
    normalized = g.pointwise("mul", g.pointwise("sub", x, mean), invstd)
    activated = g.pointwise("add", g.pointwise("mul", normalized, scale), bias)
    dx = g.output("dx", g.pointwise("relu_bwd", dx, activated), "float16")
    made = g.add("bn_bwd_weights", x=x, dy=dx, mean=mean, invstd=invstd, bn_scale=scale)
    for name, one in made.items():
        g.output(name, one, "float32")


def activation_gradient(g: Graph, mode: str, of_result: bool) -> None:
    y, other = convolved(g), image(g, "b", Y)
    ended(g, g.pointwise(mode, *((other, y) if of_result else (y, other))))


def compared(g: Graph, shape: Shape, operand: Shape, is_factor: bool) -> None:
    x, flag = image(g, "x", shape), g.pointwise("cmp_ge", image(g, "b", operand), g.number(0.0))
    ended(g, g.pointwise("mul", x, flag) if is_factor else g.pointwise("binary_select", x, g.number(0.0), flag))


def resampled(g: Graph, before: str = "", mode: str = "maxpool") -> None:
    x = image(g, "x", (2, 16, 8, 8))
    ended(g, g.resample(mode, g.pointwise(before, x) if before else x, 2))


def reduced(g: Graph, channels: int, dtype: str, is_gradient: bool, written: bool = False) -> None:
    """A reduction after resampling."""
    shape, half = (2, channels, 8, 8), (2, channels, 4, 4)
    if is_gradient:
        y = g.resample_backward("avgpool_include_padding", image(g, "dy", half, dtype), shape, 2)
    else:
        y = g.resample("maxpool", image(g, "x", shape, dtype), 2)
    if written:
        ended(g, y, dtype)
    g.output("r", g.reduction("amax", y, (0, 2, 3)), "float32")


def product(g: Graph, batch: int = 3, dtype: str = "float16") -> Node:
    a, b = (g.tensor(n, TensorSpec((batch, *s), dtype)) for n, s in (("a", (31, 16)), ("b", (16, 96))))
    return g.matmul(a, b)


def indexed(g: Graph, axis: int, batch: int = 3) -> None:
    c = product(g, batch)
    g.output("y", g.pointwise("add", c, g.pointwise("gen_index", c, axis=axis)), "float32")


def attention(g: Graph, heads: int = 4, kv_heads: int = 4, queries: int = 64, keys: int = 64, size: int = 32) -> None:
    """With a causal mask of several queries, whose indices engine 2 generates right. One query adds all values."""
    rows, head = kv_heads * keys * size, keys * size
    q = g.tensor("q", TensorSpec((2, heads, queries, size), "float16"))
    k = g.tensor("k", TensorSpec((2, kv_heads, size, keys), "float16", (rows, head, 1, size)))
    v = g.tensor("v", TensorSpec((2, kv_heads, keys, size), "float16"))
    scores = g.matmul(q, k)
    if queries > 1:
        row, column = (g.pointwise("gen_index", scores, axis=axis) for axis in (2, 3))
        scores = g.pointwise("binary_select", scores, g.number(-1e9), g.pointwise("cmp_ge", row, column))
    else:
        scores = g.pointwise("mul", scores, g.number(2.0**-6))
    attended(g, scores, v)


def attended(g: Graph, scores: Any, v: Any, there: Any = None) -> None:
    """The softmax of the scores, its statistics, and its product with v, of so many valid rows and columns."""
    most = g.reduction("max", scores, (3,))
    e = g.pointwise("exp", g.pointwise("sub", scores, most))
    total = g.reduction("add", e, (3,))
    g.output("statistics", g.pointwise("add", most, g.pointwise("log", total)), "float32")
    g.output("o", g.matmul(g.pointwise("div", e, total, dtype="float16"), v, m=there, k=there), "float16")


def attention_nodes(g: Graph, queries: int = 1, is_whole: bool = False) -> None:
    """With a node for the softmax, and for the mask of several queries, or as one node."""
    q = g.tensor("q", TensorSpec((2, 4, queries, 32), "float16"))
    k, v = (g.tensor(name, TensorSpec((2, 4, 600, 32), "float16")) for name in "kv")
    if is_whole:
        g.output("o", g.add("sdpa_fwd", q=q, k=k, v=v, scale=0.125)["o"])
        return
    turned = g.add("reshape", x=k, shape=(2, 4, 32, 600), strides=(4 * 19200, 19200, 1, 32))["y"]
    scores = g.pointwise("mul", g.matmul(q, turned), g.number(0.125))
    if queries > 1:
        scores = g.add("diagonal_band_mask", x=scores, b=-np.inf)["y"]
    g.output("o", g.matmul(g.add("softmax", x=scores, dtype="float16")["y"], v), "float16")


def attention_to_lengths(g: Graph, heads: int = 12, is_paged: bool = False, left: int | None = None) -> None:
    """One query, whose heads share a head of k, with the keys of a length, or the last ones of them."""
    integers: dict[str, Any] = {"dtype": "int32", "compute_dtype": "int32"}
    q = g.tensor("q", TensorSpec((2, heads, 1, 64), "float16"))
    lengths, there = g.tensor("lengths", TensorSpec((2, 1, 1, 1), "int32")), None
    shape, turned = (2, 1, 128, 64), {"shape": (2, 1, 64, 128), "strides": (8192, 8192, 1, 64)}
    if is_paged:
        table = g.tensor("page_table", TensorSpec((2, 1, 8, 1), "int32"))
        part: dict[str, Any] = {"start": (0, 0, 0, 0), "limit": (2, 1, 1, 1), "stride": (1, 1, 1, 1)}
        there = g.add("slice", x=lengths, **part)["y"]
        load: dict[str, Any] = {"sequence": there, "page_table": table}
        containers = (g.tensor(name, TensorSpec((8, 1, 16, 64), "float16")) for name in "kv")
        ways: tuple[dict[str, Any], ...] = (turned, {"shape": shape, "strides": (8192, 8192, 64, 1)})
        k, v = (
            g.add("paged_cache_load", container=one, **load, **way)["y"]
            for one, way in zip(containers, ways, strict=True)
        )
    else:
        k, v = g.tensor("k", TensorSpec(dtype="float16", **turned)), g.tensor("v", TensorSpec(shape, "float16"))
    scores = g.pointwise("mul", g.matmul(q, k, m=there, n=there), g.number(0.125))

    def selected(x: Any, mode: str, a: Any, b: Any) -> Any:
        return g.pointwise("binary_select", x, g.number(-math.inf), g.pointwise(mode, a, b))

    def index(x: Any, axis: int) -> Any:
        return g.pointwise("gen_index", x, axis=axis)

    def diagonal(x: Any) -> Any:
        return g.pointwise(
            "sub", g.pointwise("add", index(x, 2), lengths, **integers), g.number(1, dtype="int32"), **integers
        )

    scores = selected(scores, "cmp_lt", index(scores, 3), lengths)
    scores = selected(scores, "cmp_ge", diagonal(scores), index(scores, 3))
    if left is not None:
        column = g.pointwise("add", index(scores, 3), g.number(left + 1, dtype="int32"), **integers)
        scores = selected(scores, "cmp_gt", column, diagonal(scores))
    attended(g, scores, v, there)


def summed_axis(g: Graph, shape: tuple[int, int], axis: int) -> None:
    rows, columns = shape
    x = g.tensor("x", TensorSpec((rows, columns, 1, 1), "float32", (columns, 1, columns, columns)))
    g.output("y", g.reduction("add", x, (axis,)))


def attention_gradient(
    g: Graph,
    has_bias: bool = False,
    is_selected: bool = False,
    is_causal: bool = True,
    size: int = 32,
    value_size: int = 32,
) -> None:
    turned = {"shape": (2, 4, 128, 128), "strides": (65536, 16384, 1, 128)}
    columns: dict[int, dict[str, Any]] = {
        n: {"shape": (2, 4, n, 128), "strides": (512 * n, 128 * n, 1, n)} for n in (size, value_size)
    }
    q, k = (g.tensor(name, TensorSpec((2, 4, 128, size), "float16")) for name in ("q", "k"))
    o, do = (g.tensor(name, TensorSpec((2, 4, 128, value_size), "float16")) for name in ("o", "do"))
    kt = g.add("reshape", x=k, **columns[size])["y"]
    vt = g.tensor("vt", TensorSpec(dtype="float16", **columns[value_size]))
    one, scale = g.number(1.0), g.number(0.125)
    sums = g.pointwise("mul", g.reduction("add", g.pointwise("mul", do, o), (3,)), one)
    s = g.pointwise("mul", g.matmul(q, kt), scale)
    if has_bias:
        s = g.pointwise("add", s, g.tensor("bias", TensorSpec((2, 4, 128, 128), "float16")))
    if is_causal:
        row, column = (g.pointwise("gen_index", s, axis=axis) for axis in (2, 3))
        s = g.pointwise("binary_select", s, g.number(-math.inf), g.pointwise("cmp_ge", row, column))
    differences = g.pointwise("sub", s, g.tensor("statistics", TensorSpec((2, 4, 128, 1), "float32")))
    if is_selected:
        lowest = g.number(-(2.0**100))
        differences = g.pointwise("binary_select", differences, lowest, g.pointwise("cmp_ge", differences, lowest))
    p = g.pointwise("exp", differences)
    ds = g.pointwise("mul", g.pointwise("sub", g.matmul(do, vt), sums), p)
    small, scaled = g.pointwise("mul", p, one, dtype="float16"), g.pointwise("mul", ds, scale, dtype="float16")
    g.output("dq", g.matmul(scaled, k))
    g.output("dk", g.matmul(g.add("reshape", x=scaled, **turned)["y"], q))
    g.output("dv", g.matmul(g.add("reshape", x=small, **turned)["y"], do))


def channels(g: Graph, has_index: bool) -> None:
    c = convolved(g)
    ended(g, g.pointwise("add", c, g.pointwise("gen_index", c, axis=1) if has_index else g.number(1.0)), "float32")


def eighths(g: Graph, by_value: bool, dtype: str = "float8_e4m3fn") -> None:
    kind = "float8_e4m3fn"
    a = g.tensor("a", TensorSpec((2, 64, 64), kind))
    y = g.matmul(a, g.tensor("b", TensorSpec((2, 64, 64), kind, (4096, 1, 64))))
    for name in ("scale_a", "scale_b"):
        y = g.pointwise("mul", y, g.tensor(name, TensorSpec((1, 1, 1), "float32")))
    g.output("amax", g.reduction("amax", y, (0, 1, 2)), "float32")
    factor = g.number(0.25, 3) if by_value else g.tensor("factor", TensorSpec((1, 1, 1), "float32"))
    g.output("y", g.pointwise("mul", y, factor), dtype)


def converted(g: Graph, columns: int, is_relu: bool = False, dtype: str = "int8", alignment: int = 16) -> None:
    a = g.tensor("a", TensorSpec((4, 32, 64), "float16"))
    b = g.tensor("b", TensorSpec((4, 64, columns), dtype, alignment=alignment))
    a = g.pointwise("relu_fwd", a, dtype="float16") if is_relu else a
    g.output("y", g.matmul(a, g.pointwise("identity", b, dtype="float16")), "float16")


def scaled_blocks(g: Graph, scale: str, size: int) -> None:
    rows, columns, k, kind = 64, 64, 128, "float8_e4m3fn"
    blocks = k // size
    a, b = g.tensor("a", TensorSpec((1, rows, k), kind)), g.tensor("b", TensorSpec((1, k, columns), kind, (8192, 1, k)))
    sa = g.tensor("scale_a", TensorSpec((1, rows, blocks), scale))
    sb = g.tensor("scale_b", TensorSpec((1, blocks, columns), scale, (columns * blocks, 1, blocks)))
    x = g.add("block_scale_dequantize", x=a, scale=sa, block_size=(1, size))["y"]
    y = g.add("block_scale_dequantize", x=b, scale=sb, block_size=(size, 1))["y"]
    g.output("c", g.matmul(x, y), "float32")


def random_arrays(g: Graph) -> dict[str, Any]:
    """Random numbers for the inputs, by name. Lengths and numbers of pages are 1 to 7."""
    random = np.random.default_rng(1)
    return {
        node.name: random.integers(1, 8, node.shape, np.int32)
        if node.spec.dtype == "int32"
        else (2 * random.standard_normal(node.shape)).astype(np.dtype(node.spec.dtype))
        for node in g.inputs
    }


def _plain_product(g: Graph) -> None:
    c = product(g)
    g.output("y", g.pointwise("mul", c, g.tensor("row", TensorSpec((1, 31, 1), "float16"))))


BROADCAST = (
    (N, 1, 1, 1),
    (1, 1, H, 1),
    (1, 1, 1, W),
    (N, K, 1, 1),
    (1, 1, H, W),
    (1, K, H, W),
    (1, K, H, 1),
    (N, K, H, 1),
)
MODES = ("relu", "tanh", "sigmoid", "elu", "gelu", "softplus", "swish", "gelu_approx_tanh")
POOLINGS = ("maxpool", "avgpool_include_padding", "avgpool_exclude_padding")

WRONG: dict[str, list[Make]] = {
    "graph-broadcast": [partial(with_operand, shape=s, kind=kind) for kind in ("forward", "data") for s in BROADCAST],
    "graph-first": [partial(summed, tap=tap, last=False) for tap in (1, 3)],
    "graph-first-operand": [partial(scaled_before, filters=7, last=False)],
    "graph-formats": [
        *(partial(in_formats, operand=a, output=b) for a, b in ((False, True), (True, False))),
        partial(statistics, last=False),
    ],
    "graph-activation-gradient": [partial(activation_gradient, mode=f"{mode}_bwd", of_result=True) for mode in MODES],
    "graph-comparison": [
        partial(compared, shape=shape, operand=operand, is_factor=is_factor)
        for shape, operand in (((64, 32, 1, 1), (64, 1, 1, 1)), ((1, 32, 64, 1), (1, 1, 64, 1)))
        for is_factor in (False, True)
    ],
    "graph-resampled-result": [partial(resampled, before="abs", mode=mode) for mode in POOLINGS],
    "graph-resampled-sums": [
        partial(reduced, channels=c, dtype=dtype, is_gradient=is_gradient)
        for c, dtype in ((12, "float16"), (20, "bfloat16"), (6, "float32"), (3, "float16"))
        for is_gradient in (False, True)
    ],
    "graph-index-rows": [partial(indexed, axis=axis) for axis in (0, 1)],
    "graph-index-columns": [partial(indexed, axis=2), partial(channels, has_index=True)],
    "attention-shared-keys": [
        *(partial(attention_to_lengths, heads=heads, is_paged=True) for heads in (9, 12, 16, 48)),
        *(partial(attention_to_lengths, heads=heads, left=2) for heads in (9, 12, 64)),
    ],
    "attention-gradient": [partial(attention_gradient, is_selected=True)],
    "attention-head-sizes": [
        partial(attention_gradient, is_causal=False, size=size, value_size=value_size)
        for size, value_size in ((160, 96), (192, 128), (136, 72))
    ]
    + [partial(attention_gradient, is_causal=False, is_selected=True, size=144, value_size=128)],
    "graph-float8-number": [partial(eighths, by_value=True), partial(eighths, by_value=False, dtype="float16")],
    "graph-int8-rows": [
        partial(converted, columns=n, is_relu=is_relu) for n in (7, 15, 31) for is_relu in (False, True)
    ],
    "graph-block-scales": [partial(scaled_blocks, scale="float32", size=size) for size in (32, 128)],
}
RIGHT: dict[str, list[Make]] = {
    "graph-broadcast": [
        *(partial(with_operand, shape=s) for s in (Y, (1, K, 1, 1), (N, 1, H, W), (1, 1, 1, 1))),
        _plain_product,
    ],
    "graph-first": [partial(summed, tap=tap, last=True) for tap in (1, 3)],
    "graph-first-operand": [partial(scaled_before, filters=7, last=True)],
    "graph-formats": [partial(in_formats, operand=True, output=True), partial(statistics, last=True)],
    "graph-activation-gradient": [partial(activation_gradient, mode=f"{mode}_bwd", of_result=False) for mode in MODES],
    "graph-comparison": [
        partial(compared, shape=s, operand=s, is_factor=False) for s in ((64, 32, 1, 1), (1, 32, 64, 1))
    ],
    "graph-resampled-result": [partial(resampled, mode=mode) for mode in POOLINGS],
    "graph-resampled-sums": [
        *(partial(reduced, channels=c, dtype=t, is_gradient=True) for c, t in ((24, "float16"), (4, "float32"))),
        partial(reduced, channels=3, dtype="float16", is_gradient=False, written=True),
    ],
    "graph-index-rows": [partial(indexed, axis=2), *(partial(indexed, axis=axis, batch=1) for axis in (0, 1))],
    "graph-index-columns": [partial(channels, has_index=False), _plain_product, attention],
    "attention-shared-keys": [
        *(partial(attention_to_lengths, heads=8, is_paged=is_paged, left=2) for is_paged in (False, True)),
        partial(attention_to_lengths, heads=48),
    ],
    "attention-gradient": [attention_gradient, partial(attention_gradient, has_bias=True)],
    "attention-head-sizes": [
        partial(attention_gradient, is_causal=False, size=size, value_size=value_size)
        for size, value_size in ((128, 96), (160, 136), (200, 128), (192, 64), (96, 160))
    ]
    + [partial(attention_gradient, size=192, value_size=128)],
    "graph-float8-number": [partial(eighths, by_value=False)],
    "graph-int8-rows": [partial(converted, columns=16), partial(converted, columns=31, dtype="float16")],
    "graph-block-scales": [partial(scaled_blocks, scale="float8_e8m0fnu", size=32)],
}
