"""Graphs of one's own that are planned for a described device, by name: each takes an empty Graph and fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cudnnpy import Graph
from cudnnpy._core.layouts import TensorSpec
from cudnnpy.graph.operation_graph import canonical_graph
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.typing import ElementName

X, W, Y = (8, 64, 28, 28), (64, 64, 3, 3), (8, 64, 28, 28)


def as_graph(g: Graph) -> GraphProblem:
    """The problem of a graph as one, also if it is a convolution."""
    return GraphProblem(canonical_graph(g._operation_graph({}))[0], 0)


def channels_last(shape: tuple[int, ...], dtype: ElementName = "float16") -> TensorSpec:
    """Channels last in memory."""
    n, c, h, w = shape
    return TensorSpec((n, c, h, w), dtype, (c * h * w, 1, w * c, c))


def convolution_bias_relu(g: Graph) -> Graph:
    x, w, bias = (
        g.tensor("x", channels_last(X)),
        g.tensor("w", channels_last(W)),
        g.tensor("bias", channels_last((1, 64, 1, 1))),
    )
    g.output("y", g.pointwise("relu_fwd", g.pointwise("add", g.convolution(x, w, padding=1), bias)))
    return g


def convolution_bias_tanh(g: Graph) -> Graph:
    """Packed channels first, for which engines without tensor cores fuse."""
    x, w, bias = (g.tensor(n, TensorSpec(s, "float32")) for n, s in (("x", X), ("w", W), ("bias", (1, 64, 1, 1))))
    g.output("y", g.pointwise("tanh_fwd", g.pointwise("add", g.convolution(x, w, padding=1), bias)))
    return g


def one_position_beside_channels_first(g: Graph) -> Graph:
    """Of which engines that are compiled at run time write one picture's result over another's."""
    x, w = (g.tensor(n, TensorSpec(s, "float16")) for n, s in (("x", (8, 64, 3, 3)), ("w", W)))
    g.output("y", g.pointwise("relu_fwd", g.convolution(x, w)))
    return g


def one_position_channels_last(g: Graph) -> Graph:
    """The same without others; x lies channels last, and the filter's strides are spelled as they are packed."""
    x, w = g.tensor("x", channels_last((8, 64, 1, 1))), g.tensor("w", TensorSpec((64, 64, 1, 1), "float16"))
    g.output("y", g.pointwise("relu_fwd", g.convolution(x, w)))
    return g


def convolution_alone(g: Graph) -> Graph:
    x, w = g.tensor("x", channels_last(X, "float32")), g.tensor("w", channels_last(W, "float32"))
    g.output("y", g.convolution(x, w, padding=1))
    return g


def depthwise(g: Graph, w: Sequence[int], bias: Sequence[int] | None, dtype: ElementName) -> Graph:
    """A depthwise convolution channels last, with a bias or without; w and bias are the strides of these."""
    x, filters = g.tensor("x", channels_last(X, dtype)), g.tensor("w", TensorSpec((64, 1, 3, 3), dtype, tuple(w)))
    top = g.convolution(x, filters, padding=1, groups=64)
    if bias:
        top = g.pointwise("add", top, g.tensor("bias", TensorSpec((1, 64, 1, 1), dtype, tuple(bias))))
    g.output("y", top)
    return g


def averages_of_one_channel(g: Graph, x: Sequence[int], y: Sequence[int]) -> Graph:
    """A pooling, whose tensors have some strides."""
    pooled = g.resample(
        "avgpool_include_padding", g.tensor("x", TensorSpec((8, 1, 28, 28), "float16", tuple(x))), 2, stride=2
    )
    g.output("y", pooled, strides=tuple(y))
    return g


def scaled(g: Graph) -> Graph:
    """By a number that is fixed with the graph."""
    x = g.tensor("x", channels_last(X))
    g.output("y", g.pointwise("mul", x, g.number(0.5)))
    return g


def column_sums(g: Graph) -> Graph:
    x = g.tensor("x", TensorSpec((4096, 64, 1, 1), "float16", (64, 1, 64, 64)))
    g.output("y", g.reduction("add", x, (0,)), "float32")
    return g


def product(g: Graph) -> Graph:
    a = g.tensor("a", TensorSpec((4, 128, 64), "float16"))
    b = g.tensor("b", TensorSpec((4, 64, 32), "float16"))
    g.output("c", g.matmul(a, b))
    return g


def product_in_float64(g: Graph) -> Graph:
    """For which no engine is."""
    a, b = (g.tensor(name, TensorSpec((4, 64, 64), "float64")) for name in "ab")
    g.output("c", g.matmul(a, b))
    return g


def attention(g: Graph, has_statistics: bool = True) -> Graph:
    """With the statistics for training, without which cuDNN 9.28 has no engine for it."""
    q, v = (g.tensor(name, TensorSpec((2, 4, 128, 64), "float16")) for name in "qv")
    k = g.tensor("k", TensorSpec((2, 4, 64, 128), "float16", (32768, 8192, 1, 64)))
    scores = g.pointwise("mul", g.matmul(q, k), g.number(0.125))
    largest = g.reduction("max", scores, (3,))
    weights = g.pointwise("exp", g.pointwise("sub", scores, largest))
    total = g.reduction("add", weights, (3,))
    if has_statistics:
        g.output("stats", g.pointwise("add", largest, g.pointwise("log", total)), "float32")
    weights = g.pointwise("div", weights, total)
    weights.spec = weights.spec._replace(dtype="float16")
    g.output("o", g.matmul(weights, v))
    return g


def layer_norm(g: Graph) -> Graph:
    x = g.tensor("x", TensorSpec((512, 256, 1, 1), "float32", (256, 1, 256, 256)))
    scale, bias = (g.tensor(n, TensorSpec((1, 256, 1, 1), "float32", (256, 1, 256, 256))) for n in ("scale", "bias"))
    for name, node in zip(("y", "mean", "inverse"), g.normalization("layer_norm", x, scale, bias, 1e-5), strict=True):
        g.output(name, node, "float32", (256, 1, 256, 256) if name == "y" else (1, 1, 1, 1))
    return g


def averages(g: Graph) -> Graph:
    g.output("y", g.resample("avgpool_include_padding", g.tensor("x", channels_last(X)), 2))
    return g


def scaled_convolution(g: Graph) -> Graph:
    """A number that is fixed with the graph, after another operation."""
    x, w = g.tensor("x", channels_last(X)), g.tensor("w", channels_last(W))
    g.output("y", g.pointwise("mul", g.convolution(x, w, padding=1), g.number(0.5)))
    return g


def normalization_gradient(g: Graph) -> Graph:
    dy, x = (g.tensor(name, channels_last(X)) for name in ("dy", "x"))
    scale, mean, inverse = (g.tensor(n, channels_last((1, 64, 1, 1), "float32")) for n in ("scale", "mean", "inverse"))
    made = g.normalization_backward("batch_norm", dy, x, scale, mean, inverse)
    for name, node in zip(("dx", "dscale", "dbias"), made, strict=True):
        g.output(name, node, "float16" if name == "dx" else "float32")
    return g


def nothing_that_cudnn_takes(g: Graph) -> Graph:
    """A result that is smaller than the convolution's."""
    y = convolution_alone(g).outputs[0]
    y.spec = channels_last((8, 64, 27, 27), "float32")
    return g


DESCRIBED: dict[str, Callable[..., Graph]] = {f.__name__: f for f in (depthwise, averages_of_one_channel)}
FUSED = (convolution_bias_relu, convolution_alone)  # whose engines need no GPU to be planned
OTHERS = (
    scaled_convolution,
    scaled,
    column_sums,
    product,
    layer_norm,
    normalization_gradient,
    averages,
    convolution_bias_tanh,
    one_position_channels_last,
)
GRAPHS: dict[str, Callable[[Graph], Graph]] = {
    function.__name__: function
    for function in (*FUSED, *OTHERS, one_position_beside_channels_first, nothing_that_cudnn_takes, product_in_float64)
}
