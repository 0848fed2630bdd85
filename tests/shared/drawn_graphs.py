"""Graphs that a seed draws, of the families that cuDNN's engines take: 2 to 12 operations, and up to 22 for attention.

`drawn(number)` is always the same graph. SEED and FAMILIES were fixed before the first comparison on a GPU; they change only
with a reason. By the weights most of the graphs plan: rarely is an operand broadcast or an axis reduced as no engine can. Some
families, those in ALONE, have graphs of one operation, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from cudnnpy import Graph, TensorSpec
from cudnnpy._core.layouts import channels_last_strides, packed_strides
from cudnnpy._layers.graph import Node
from cudnnpy.graph.operation_graph import Operation, canonical_graph
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.reference.graph import run
from cudnnpy.tuning.measuring.bench_buffers import numbers

SEED = 20261128

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
EIGHTS = ("float8_e4m3fn", "float8_e5m2")
Shape = tuple[int, ...]


def drawn(number: int, seed: int | str = SEED) -> tuple[str, Graph]:
    """The family and the graph of a number."""
    return draw(Random(f"{seed}/{number}"))


def draw(random: Random) -> tuple[str, Graph]:
    """A family and a graph of it."""
    family = random.choice(list(FAMILIES))
    while True:
        drawing = Drawing(random)
        FAMILIES[family](drawing)
        if family in ALONE or len(drawing.g.operations) > 1:
            return family, drawing.g


def operands_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the inputs by name: random numbers, with valid lengths, indices, flags and maxima."""
    canonical, uids = canonical_graph(graph._operation_graph({}))
    problem = GraphProblem(canonical, 0)
    ranges = dict(zip(canonical.in_memory, problem.value_ranges, strict=True))
    arrays = {
        node.name: np.resize(numbers(node.spec.dtype, seed + node.uid, ranges[uids[node.uid]]), node.shape)
        for node in graph.inputs
    }
    names = {node.uid: node.name for node in graph.inputs}
    for one in graph._operations:
        if one.kind == "resample_bwd" and {"x", "y"} <= one.tensors.keys():  # y is the result for x
            x, y = (names[one.tensors[name]] for name in "xy")
            arrays[y] = resampled(one, arrays[x]).astype(arrays[y].dtype)
    return arrays


def resampled(gradient: Operation, x: np.ndarray) -> np.ndarray:
    """The result of resampling whose gradient is given."""
    g = Graph()
    options = {name: value for name, value in gradient.options if name != "shape"}
    made = g.add("resample_fwd", x=g.tensor("x", TensorSpec(x.shape, x.dtype.name)), **options)
    g.output("y", made["y"])
    return run(g, {"x": x})["y"]


class Drawing:
    """A graph that is drawn, and the choices that hold for all of it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.g = Graph(compute_dtype="float32", tf32=random.random() < 0.8)
        self.dtype: Any = self.one_of(FLOATS, (3, 2, 2))
        self.last = random.random() < 0.8
        self.alignment = 16 if random.random() < 0.9 else None  # None: of one element

    def one_of(self, choices: Sequence[Any], weights: Sequence[int] | None = None) -> Any:
        return self.random.choices(choices, weights)[0]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def channels(self) -> int:
        return int(self.one_of((8, 16, 32, 64, 24, 1, 3, 7, 13), (4, 4, 4, 3, 2, 1, 1, 1, 1)))

    def size(self) -> int:
        return int(self.one_of((1, 2, 3, 4, 5, 7, 8, 11, 14, 16)))

    def rows(self) -> int:
        """A size of a matrix."""
        return int(self.one_of((8, 16, 32, 64, 96, 128, 1, 7, 31, 61), (3, 3, 4, 4, 2, 2, 1, 1, 1, 1)))

    # Tensors

    def tensor(self, shape: Shape, dtype: Any = None, strides: Shape | None = None) -> Node:
        kind = self.dtype if dtype is None else dtype
        spec = TensorSpec(shape, kind, packed_strides(shape) if strides is None else strides)
        if self.alignment is None and kind in FLOATS:
            spec = spec._replace(alignment=np.dtype(np.float32).itemsize if kind == "float32" else 2)
        return self.g.tensor(f"in{len(self.g.inputs)}", spec)

    def image(self, shape: Shape, dtype: Any = None) -> Node:
        """A tensor in the memory format of the graph, or seldom in the other one."""
        is_last = self.last if not self.chance(0.03) else not self.last
        return self.tensor(shape, dtype, channels_last_strides(shape) if is_last else packed_strides(shape))

    def channel(self, node: Node, dtype: Any = "float32") -> Node:
        """A tensor with an element for each channel."""
        shape = (1, node.shape[1], *(1,) * (len(node.shape) - 2))
        return self.tensor(shape, dtype, channels_last_strides(shape) if self.last else packed_strides(shape))

    def output(self, node: Node, dtype: Any = None, **layout: Any) -> Node:
        if not node.virtual:
            return node
        return self.g.output(f"out{len(self.g.outputs)}", node, dtype, **layout)

    def how(self, dtype: Any = None) -> dict[str, Any]:
        """A data type and a compute type of an operation, at times."""
        options: dict[str, Any] = {}
        if self.chance(0.2):
            options["dtype"] = "float32" if dtype is None or self.chance(0.5) else dtype
        if self.chance(0.2):
            options["compute_dtype"] = "float32"
        return options

    # Elementwise operations

    def other(self, node: Node) -> Node:
        """An operand that broadcasts to a node: of its shape, with axes of 1, one element, or a number."""
        rank, way = len(node.shape), self.random.random()
        dtype = self.dtype if self.chance(0.8) else self.one_of(FLOATS)
        if way < 0.25:
            return self.g.number(self.one_of((0.5, -1.25, 2.0, 0.1)), rank)
        if way < 0.3 and (rank == 3 or self.chance(0.2)):
            shape = tuple(1 if self.chance(0.6) else size for size in node.shape)
        elif way < 0.75:
            axes = self.one_of(((1,), (0, *range(2, rank)), ()) if rank > 3 else ((2,), (1,), (0,), (0, 2), ()))
            shape = tuple(size if at in axes else 1 for at, size in enumerate(node.shape))
        else:
            shape = node.shape
        return self.image(shape, dtype) if rank > 3 else self.tensor(shape, dtype)

    def step(self, node: Node) -> Node:
        """An elementwise operation on a node."""
        g, mode = self.g, self.one_of(("unary", "binary", "domain", "flags", "gradient"), (4, 5, 2, 2, 1))
        options = self.how(self.dtype)
        if mode == "unary":
            name = self.one_of(UNARY)
            numbers = {}
            if name == "relu_fwd" and self.chance(0.4):
                numbers = self.one_of(({"relu_upper_clip": 6.0}, {"relu_lower_clip_slope": 0.125}))
            if name in WITH_NUMBER and self.chance(0.4):
                numbers = {WITH_NUMBER[name]: 0.75}
            return g.pointwise(name, node, how=numbers, **options)
        if mode == "binary":
            return g.pointwise(self.one_of(BINARY), node, self.other(node), **options)
        if mode == "domain":  # functions of positive numbers, and divisions by them
            positive = g.pointwise("sigmoid_fwd", node)
            name = (
                "floor_mod"
                if self.chance(0.02)
                else self.one_of(("log", "sqrt", "rsqrt", "reciprocal", "exp", "tan", "pow", *DIVISIONS))
            )
            if name in (*DIVISIONS, "floor_mod"):
                return g.pointwise(name, self.other(node) if self.chance(0.5) else node, positive)
            exponent = g.number(self.one_of((2.0, 0.5, 3.0)), len(node.shape)) if name == "pow" else None
            return g.pointwise(name, positive, exponent, **options)
        if mode == "flags":
            return self.selection(node)
        name = self.one_of(GRADIENTS)
        dy = self.image(node.shape) if len(node.shape) > 3 else self.tensor(node.shape)
        return g.pointwise(name, dy, node) if self.chance(0.5) else g.pointwise(name, node, dy)

    def selection(self, node: Node) -> Node:
        """One of two values by a comparison, or by indices."""
        g, rank = self.g, len(node.shape)
        compare = self.one_of(("cmp_gt", "cmp_ge", "cmp_lt", "cmp_le", "cmp_eq", "cmp_neq"))
        if self.chance(0.5):
            index = g.pointwise("gen_index", node, axis=self.random.randrange(rank))
            bound = g.number(self.random.randrange(5), rank, "int32")
            flag = g.pointwise(compare, index, bound)
        else:
            flag = g.pointwise(compare, node, self.other(node))
        if self.chance(0.03):
            flag = g.pointwise("logical_not", flag)
        return g.pointwise("binary_select", node, g.number(self.one_of((0.0, -3.0)), rank), flag)

    def chain(self, node: Node, most: int) -> Node:
        """Some elementwise operations, one after the other."""
        for _ in range(self.random.randrange(most + 1)):
            node = self.step(node)
        return node

    def end(self, node: Node, most: int = 3) -> None:
        """Operations after the main one, and the outputs."""
        node = self.chain(node, most)
        if self.chance(0.25) and len(self.g.operations) < 11:  # also a result before the last
            if self.chance(0.5):
                self.output(node)
            made = self.g.reduction(self.one_of(("add", "max", "min", "amax")), node, self.axes(node))
            self.output(made, "float32")
            return
        if node.virtual:
            self.output(node, self.one_of((self.dtype, "float32", "float16"), (6, 2, 1)))
        else:
            self.output(self.g.pointwise("identity", node))

    def axes(self, node: Node) -> Shape:
        """The axes of a reduction."""
        if len(node.shape) > 3:
            rest = tuple(range(2, len(node.shape)))
            return self.one_of(((0, *rest), (0, 1, *rest), (1,), rest), (10, 6, 4, 1))
        return self.one_of(((0, 1, 2), (1,), (2,), (1, 2)))


UNARY = (
    *(
        "relu_fwd",
        "tanh_fwd",
        "sigmoid_fwd",
        "elu_fwd",
        "gelu_fwd",
        "softplus_fwd",
        "swish_fwd",
        "gelu_approx_tanh_fwd",
    ),
    *("abs", "neg", "identity", "erf", "sin", "cos", "ceil", "floor"),
)
WITH_NUMBER = {"elu_fwd": "elu_alpha", "softplus_fwd": "softplus_beta", "swish_fwd": "swish_beta"}
BINARY = ("add", "add", "mul", "mul", "sub", "max", "min", "add_square")
DIVISIONS = ("div", "div", "mod", "atan2")
GRADIENTS = (
    *("relu_bwd", "tanh_bwd", "sigmoid_bwd", "elu_bwd", "gelu_bwd", "softplus_bwd", "swish_bwd"),
    "gelu_approx_tanh_bwd",
)


# Convolutions


def _geometry(d: Drawing) -> tuple[Shape, Shape, Shape, dict[str, Any]]:
    """The shapes of x, w and y, and the options."""
    rank = 3 if d.chance(0.1) else 2
    n, c, k = d.one_of((1, 2, 3, 4)), d.channels(), d.channels()
    taps = (
        tuple(d.one_of((1, 3, 2, 5), (4, 5, 1, 1)) for _ in range(rank))
        if d.chance(0.3)
        else (d.one_of((1, 3)),) * rank
    )
    options: dict[str, Any] = {
        "padding": d.one_of((0, 1, 2), (3, 4, 1)),
        "stride": d.one_of((1, 2), (4, 1)),
        "dilation": d.one_of((1, 2), (6, 1)),
    }
    groups = d.one_of((1, 2, c), (10, 1, 1)) if c == k else 1
    groups = groups if c % groups == 0 and k % groups == 0 else 1
    if groups > 1:
        options["groups"] = groups
    reach = [options["dilation"] * (tap - 1) + 1 for tap in taps]
    space = tuple(max(d.size() if rank == 2 else min(d.size(), 7), size) for size in reach)
    y = tuple(
        (size + 2 * options["padding"] - one) // options["stride"] + 1 for size, one in zip(space, reach, strict=True)
    )
    return (n, c, *space), (k, c // groups, *taps), (n, k, *y), options


def _prologue(d: Drawing, x: Node) -> Node:
    """Operations before a product: a scale and a bias of each channel, and a relu."""
    g = d.g
    if d.chance(0.7):
        return x
    y = g.pointwise("mul", x, d.channel(x, d.dtype), **d.how(d.dtype))
    if d.chance(0.8):
        y = g.pointwise("add", y, d.channel(x, d.dtype))
    if d.chance(0.8):
        y = g.pointwise("relu_fwd", y)
    y.spec = y.spec._replace(dtype=d.dtype)
    return y


def _epilogue(d: Drawing, y: Node) -> None:
    """A bias, a residual and an activation, or statistics, or any operations."""
    g, way = d.g, d.random.random()
    if way < 0.3:
        y = g.pointwise("add", y, d.channel(y, d.dtype))
        if d.chance(0.4):
            y = g.pointwise("add", y, d.image(y.shape))
        d.output(g.pointwise(d.one_of(UNARY[:8]), y))
    elif way < 0.45:
        if d.chance(0.5):
            y.spec = y.spec._replace(dtype=d.dtype)
            d.output(y, d.dtype)
        for one in g.add("gen_stats", x=y).values():
            d.output(one, "float32")
    else:
        d.end(y)


def convolution(d: Drawing) -> None:
    x, w, _, options = _geometry(d)
    kind = d.one_of((None, "int8", *EIGHTS), (12, 1, 1, 1))
    inputs = d.image(x, kind), d.image(w, kind)
    compute = {"compute_dtype": "int32", "dtype": "int32"} if kind == "int8" and d.chance(0.5) else {}
    _epilogue(d, d.g.convolution(inputs[0] if kind else _prologue(d, inputs[0]), inputs[1], **options, **compute))


def convolution_data_gradient(d: Drawing) -> None:
    x, w, y, options = _geometry(d)
    dx = d.g.convolution_backward_data(_prologue(d, d.image(y)), d.image(w), x, **options)
    if d.chance(0.5):
        dx = d.g.pointwise(d.one_of(GRADIENTS), dx, d.image(x))
    d.end(dx, 2)


def convolution_filter_gradient(d: Drawing) -> None:
    x, w, y, options = _geometry(d)
    dw = d.g.convolution_backward_filter(d.image(y), _prologue(d, d.image(x)), w, **options)
    if d.chance(0.1):  # no engine takes operations after it
        d.end(dw, 2)
    else:
        d.output(dw, d.dtype)


# Matrix products


def _factors(d: Drawing, b: int, m: int, k: int, n: int) -> tuple[Node, Node]:
    kind = d.one_of((None, "int8", *EIGHTS), (10, 1, 2, 1))
    first = (b if d.chance(0.85) else 1, m, k)
    second = (b if d.chance(0.8) else 1, k, n)
    is_row = d.chance(0.85)
    is_column = d.chance(0.5) or kind is not None
    a = d.tensor(first, kind, None if is_row else (m * k, 1, m))
    w = d.tensor(second, kind, (k * n, 1, k) if is_column else None)
    if kind is None and d.chance(0.15):  # whole numbers as one factor
        w.spec = w.spec._replace(dtype="int8")
    return a, w


def _cast(d: Drawing, node: Node, other: Node) -> Node:
    """Operations before a product: none, a conversion, or an elementwise operation in the type of the factor."""
    if node.spec.dtype == "int8" and other.spec.dtype != "int8":
        return d.g.pointwise("identity", node, dtype=other.spec.dtype)
    if node.spec.dtype in FLOATS and d.chance(0.25):
        return d.g.pointwise(d.one_of(("relu_fwd", "abs", "gelu_fwd", "identity")), node, dtype=node.spec.dtype)
    if node.spec.dtype in FLOATS and d.chance(0.1):
        return d.g.pointwise("mul", node, d.g.number(0.5, 3), dtype=node.spec.dtype)
    return node


def product(d: Drawing) -> None:
    b, m, k, n = d.one_of((1, 2, 3, 4, 7)), d.rows(), d.rows(), d.rows()
    a, w = _factors(d, b, m, k, n)
    compute = {"compute_dtype": "int32", "dtype": "int32"} if a.spec.dtype == "int8" and d.chance(0.5) else {}
    if not compute and d.chance(0.02):  # rejected
        batch = max(a.shape[0], w.shape[0])
        compute = {name: d.tensor((batch, 1, 1), "int32") for name in "mnk" if d.chance(0.5)}
    y = d.g.matmul(_cast(d, a, w), _cast(d, w, a), **compute)
    if a.spec.dtype in EIGHTS and d.chance(0.7):  # scales, and the largest absolute value
        y = d.g.pointwise("mul", y, d.tensor((1, 1, 1), "float32"))
        y = d.g.pointwise("mul", y, d.tensor((1, 1, 1), "float32"))
        if d.chance(0.5):
            d.output(d.g.reduction("amax", y, (0, 1, 2)), "float32")
        d.output(d.g.pointwise("mul", y, d.g.number(0.25, 3)), d.one_of((*EIGHTS, "float16", "bfloat16")))
        return
    d.end(y, 4)


def gated_product(d: Drawing) -> None:
    """Two products of one tensor, of which one is the gate of the other."""
    b, m, k, n = d.one_of((1, 2, 3)), d.rows(), d.rows(), d.rows()
    a = d.tensor((b, m, k))
    one, two = (d.tensor((b, k, n), None, (k * n, 1, k) if d.chance(0.5) else None) for _ in range(2))
    gate = d.g.pointwise(d.one_of(("swish_fwd", "gelu_fwd", "sigmoid_fwd", "relu_fwd")), d.g.matmul(a, one))
    d.output(d.g.pointwise("mul", gate, d.g.matmul(a, two)), d.dtype)


def product_of_slices(d: Drawing) -> None:
    b, m, k, n = d.one_of((1, 2, 4)), d.one_of((32, 64)), d.one_of((32, 64)), d.one_of((32, 64))
    start = d.one_of((0, m, 16))
    a = _part(d, d.tensor((b, 2 * m, k)), start, m)
    w = _part(d, d.tensor((b, 2 * k, n)), 0, k) if d.chance(0.3) else d.tensor((b, k, n))
    d.end(d.g.matmul(a, w), 3)


def _part(d: Drawing, x: Node, start: int, size: int) -> Node:
    """Some rows of the matrices."""
    batch, _, columns = x.shape
    limit = (batch, start + size, columns)
    return d.g.add("slice", x=x, start=(0, start, 0), limit=limit, stride=(1, 1, 1))["y"]


def product_of_blocks(d: Drawing) -> None:
    """Factors with scales of blocks; at times the result is quantized."""
    g, kind = d.g, d.one_of(EIGHTS, (3, 1))
    b, m, n, k = d.one_of((1, 2)), d.one_of((128, 64)), d.one_of((128, 64)), 128
    is_wide = d.chance(0.3)
    size, scale = (128, "float32") if is_wide else (32, d.one_of(("float8_e8m0fnu", "float32"), (6, 1)))
    a, w = d.tensor((b, m, k), kind), d.tensor((b, k, n), kind, (k * n, 1, k))
    scale_a = d.tensor((b, m, k // size), scale)
    if is_wide and d.chance(0.5):
        scale_w, block = d.tensor((b, k // 128, n // min(n, 128)), scale), (128, min(n, 128))
    else:
        scale_w, block = d.tensor((b, k // size, n), scale, (k // size * n, 1, k // size)), (size, 1)
    blocks = (1, size) if d.chance(0.7) else (size,), block if d.chance(0.7) else (size,)
    y = g.matmul(
        *(
            g.add("block_scale_dequantize", x=x, scale=scale, block_size=size)["y"]
            for x, scale, size in zip((a, w), (scale_a, scale_w), blocks, strict=True)
        )
    )
    if d.chance(0.15):
        made = g.add("block_scale_quantize", x=y, block_size=(32,))
        d.output(made["y"], "float8_e4m3fn")
        d.output(made["scale"], "float8_e8m0fnu")
    else:
        d.end(y, 2)


def experts(d: Drawing) -> None:
    """The products of a mixture of experts, or the gradient of their matrices."""
    count, tokens = d.one_of((1, 2, 4, 7), (1, 6, 8, 6)), d.one_of((64, 128, 96, 61))
    k, n = d.one_of((32, 64, 128)), d.one_of((32, 64, 96))
    d.dtype = d.one_of(HALVES)
    token, first = d.tensor((1, tokens, k)), d.tensor((count, 1, 1), "int32")
    is_gradient = d.chance(0.3)
    if is_gradient:
        dy = d.tensor((1, tokens, n))
        y = d.g.add("moe_grouped_matmul_bwd", doutput=dy, token=token, first_token_offset=first)["dweight"]
    else:
        weight = d.tensor((count, k, n), None, (k * n, 1, k))
        y = d.g.add("moe_grouped_matmul", token=token, weight=weight, first_token_offset=first)["output"]
    if d.chance(0.05 if is_gradient else 0.5):
        y.spec = y.spec._replace(dtype="float32")
        y = d.g.pointwise(d.one_of(("relu_fwd", "swish_fwd")), y)
    d.output(y, d.dtype)


# Elementwise operations, reductions, resampling


def _image_shape(d: Drawing) -> Shape:
    if d.chance(0.1):
        return (d.one_of((1, 2)), d.channels(), 3, 4, d.size())
    return (d.one_of((1, 2, 3, 4)), d.channels(), d.size(), d.size())


def elementwise(d: Drawing) -> None:
    shape = _image_shape(d)
    node: Node = d.image(shape, d.one_of((None, "int8", "float8_e4m3fn"), (12, 1, 1)))
    for _ in range(d.random.randrange(1, 6)):
        node = d.step(node)
    if d.chance(0.03):
        flag = d.g.pointwise("cmp_gt", node, d.g.number(0.1, len(shape)))
        other = d.g.pointwise("cmp_lt", node, d.g.number(2.0, len(shape)))
        d.output(d.g.pointwise(d.one_of(("logical_and", "logical_or")), flag, other), d.one_of((None, "float32")))
        return
    d.output(node, d.one_of((d.dtype, "float32", "float8_e4m3fn"), (6, 2, 1)))


def sums(d: Drawing) -> None:
    """Reductions, with elementwise operations before and after."""
    node = d.chain(d.image(_image_shape(d)), 3)
    op = d.one_of(("add", "max", "min", "amax", "mul", "avg", "norm2"), (40, 20, 20, 20, 1, 1, 1))
    made = d.g.reduction(op, node, d.axes(node), deterministic=True if d.chance(0.2) else None)
    if d.chance(0.05):
        made = d.g.pointwise("mul", made, d.g.number(0.125, len(made.shape)))
    if node.virtual and d.chance(0.3):
        d.output(node, d.dtype)
    d.output(made, "float32")


def resampling(d: Drawing) -> None:
    n, c = d.one_of((1, 2, 3)), d.channels()
    space, window = (d.one_of((4, 7, 8, 13)), d.one_of((4, 8, 9))), d.one_of((2, 3, (2, 3)))
    x = d.image((n, c, *space), d.one_of((None, "int8"), (12, 1)))
    mode = d.one_of(("maxpool", "avgpool_include_padding", "avgpool_exclude_padding"))
    options = {"padding": d.one_of((0, 1)), "stride": d.one_of((1, 2, None))}
    before = d.chain(x, 1) if d.chance(0.05) else x  # no engine is right after another operation
    d.end(d.g.resample(mode, before, window, **options), 2)


def _resample_options(mode: str, window: Shape, stride: Shape, padding: Shape) -> dict[str, Any]:
    is_maximum = mode == "maxpool"
    return {
        "mode": mode,
        "spatial_dims": 2,
        "padding_mode": "neg_inf_pad" if is_maximum else "zero_pad",
        "pre_padding": padding,
        "post_padding": padding,
        "stride": stride,
        "window": window,
    }


def resampling_with_index(d: Drawing) -> None:
    """The maxima with their places, or the gradient by the places."""
    shape = n, c, _, _ = (d.one_of((1, 2)), d.one_of((8, 16, 32, 3)), d.one_of((4, 8)), d.one_of((4, 8)))
    options = _resample_options("maxpool", (2, 2), (2, 2), (0, 0))
    if d.chance(0.5):
        made = d.g.add("resample_fwd", x=d.image(shape), results=("index",), **options)
        d.output(made["y"])
        d.output(made["index"], "int8")
        return
    small = (n, c, shape[2] // 2, shape[3] // 2)
    index = d.image(small, "int8")
    dx = d.g.add("resample_bwd", dy=d.image(small), index=index, shape=shape, **options)["dx"]
    d.end(dx, 1)


def resampling_gradient(d: Drawing) -> None:
    n, c, size = d.one_of((1, 2)), d.one_of((8, 16, 32, 3)), d.one_of((4, 8))
    mode = d.one_of(("avgpool_include_padding", "avgpool_exclude_padding", "maxpool"), (3, 3, 1))
    small = (n, c, size // 2, size // 2)
    inputs = {"x": d.image((n, c, size, size)), "y": d.image(small)} if mode == "maxpool" else {}
    dx = d.g.resample_backward(mode, d.image(small), (n, c, size, size), 2, **inputs)
    d.end(dx, 1)


# Normalizations


def _normalized(d: Drawing) -> tuple[str, Shape, Shape]:
    """A mode, and the shapes of x and of the scale."""
    mode = d.one_of(("batch_norm", "layer_norm", "instance_norm", "rms_norm"))
    c = d.one_of((8, 16, 32, 64, 7), (3, 3, 3, 3, 1))
    if mode in ("layer_norm", "rms_norm"):
        c = d.one_of((64, 128, 256, 96, 31))
        x = (d.one_of((1, 4, 16, 33)), c, 1, 1) if d.chance(0.95) else (d.one_of((1, 3)), c, 2, 4)
        return mode, x, (1, *x[1:])
    x = (d.one_of((1, 2, 4)), c, d.size(), d.size())
    return mode, x, (1, c, 1, 1)


def normalization(d: Drawing) -> None:
    g = d.g
    mode, shape, parameters = _normalized(d)
    x, scale = d.image(shape), d.image(parameters, "float32")
    bias = d.image(parameters, "float32") if mode != "rms_norm" or d.chance(0.5) else None
    is_trained = d.chance(0.7)
    running = None
    if mode == "batch_norm" and is_trained and d.chance(0.5):
        running = d.image(parameters, "float32"), d.image(parameters, "float32")
    y, *statistics = g.normalization(
        mode, x, scale, bias, 1e-5, training=is_trained, running=running, average_factor=0.25
    )
    for one in statistics:
        d.output(one, "float32")
    if d.chance(0.5 if mode in ("batch_norm", "instance_norm") else 0.1):
        if d.chance(0.4):
            y = g.pointwise("add", y, d.image(shape))
        y = g.pointwise("relu_fwd", y)
    d.output(y, d.dtype)


def normalization_gradient(d: Drawing) -> None:
    g = d.g
    mode, shape, parameters = _normalized(d)
    means = {"batch_norm": parameters, "instance_norm": (*shape[:2], 1, 1)}.get(mode, (shape[0], 1, 1, 1))
    dy, x, scale = d.image(shape), d.image(shape), d.image(parameters, "float32")
    if d.chance(0.25):  # the gradient of a relu before
        dy = g.pointwise("relu_bwd", dy, d.image(shape))
        dy.spec = dy.spec._replace(dtype=d.one_of((d.dtype, "float32")))
    mean = None if mode == "rms_norm" else d.image(means, "float32")
    inverse = d.image(means, "float32")
    dx, *others = g.normalization_backward(mode, dy, x, scale, mean, inverse, bias=mode != "rms_norm" or d.chance(0.5))
    if d.chance(0.25):
        dx = g.pointwise("add", dx, d.image(shape))
    d.output(dx, d.dtype)
    for one in others:
        d.output(one, "float32")


def statistics_of_sums(d: Drawing) -> None:
    """The statistics of batch normalization from sums."""
    g, c = d.g, d.one_of((8, 16, 64, 7))
    shape = (1, c, 1, 1)
    names = ["y_sum", "y_sq_sum", "scale", "bias"]
    wanted = ["saved_mean", "saved_inv_std"]
    arguments: dict[str, Any] = {"epsilon": 1e-3, "accum_count": 32}
    if d.chance(0.95):
        names += ["prev_running_mean", "prev_running_var"]
        wanted += ["updated_running_mean", "updated_running_var"]
        arguments["exp_average_factor"] = 0.5
    arguments |= {name: d.image(shape, "float32") for name in names}
    for one in g.add("bn_finalize", results=wanted, **arguments).values():
        d.output(one, "float32")


def statistics_gradient(d: Drawing) -> None:
    """A gradient of a convolution through a relu to the batch normalization before it."""
    g, c, k, size = d.g, d.one_of((8, 16, 32, 64)), d.one_of((8, 16, 32, 64)), d.size()
    shape, tap = (d.one_of((1, 2, 3)), c, size, size), d.one_of((1, 3))
    x, mean, invstd, scale, bias = d.image(shape), *(d.image((1, c, 1, 1), "float32") for _ in range(4))
    dy, w = d.image((shape[0], k, size, size)), d.image((k, c, tap, tap))
    dx = g.convolution_backward_data(dy, w, shape, padding=tap // 2)
    normalized = g.pointwise("mul", g.pointwise("sub", x, mean), invstd)
    activated = g.pointwise("add", g.pointwise("mul", normalized, scale), bias)
    dx = d.output(g.pointwise("relu_bwd", dx, activated), d.dtype)
    for one in g.add("bn_bwd_weights", x=x, dy=dx, mean=mean, invstd=invstd, bn_scale=scale).values():
        d.output(one, "float32")


# Attention


class Heads:
    """The sizes of attention, with its tensors. Heads of grouped attention share keys and values."""

    def __init__(self, d: Drawing, is_grouped: bool = False) -> None:
        d.dtype, d.alignment, self.d = d.one_of(HALVES), 16, d
        self.batch, self.heads = d.one_of((1, 2)), d.one_of((1, 2, 3, 4))
        self.shared = self.heads // (self.random_divisor() if is_grouped else 1)
        self.rows = d.one_of((64, 128, 32, 61), (4, 4, 1, 1))
        self.columns = self.rows if d.chance(0.7) else d.one_of((64, 128, 16, 67))
        self.size = d.one_of((64, 32, 128, 40))

    def random_divisor(self) -> int:
        return int(self.d.one_of([number for number in (1, 2, 3, 4) if self.heads % number == 0]))

    def q(self) -> Node:
        return self._sequence(self.rows, self.heads)

    def k(self) -> Node:
        return self._sequence(self.columns, self.shared)

    def _sequence(self, length: int, h: int) -> Node:
        """A tensor (B, H, S, D): packed, or with the heads after the positions in memory."""
        size = self.size
        orders = (h * length * size, length * size, size, 1), (length * h * size, size, h * size, 1)
        return self.d.tensor((self.batch, h, length, size), None, self.d.one_of(orders))

    def transposed(self) -> Node:
        """The keys or values as (B, H, D, S)."""
        h, size, columns = self.shared, self.size, self.columns
        return self.d.tensor((self.batch, h, size, columns), None, (h * columns * size, columns * size, 1, size))

    @property
    def scores(self) -> Shape:
        return self.batch, self.heads, self.rows, self.columns

    def masked(self, s: Node) -> Node:
        """The scores with a bias, a mask, or both."""
        d, g = self.d, self.d.g
        outside = g.number(d.one_of((-math.inf, -1e9)))
        if d.chance(0.2):
            h, m, n = d.one_of((1, self.heads)), self.rows, self.columns
            row = -(-n // 8) * 8  # rows start at multiples of 16 bytes
            s = g.pointwise("add", s, d.tensor((1, h, m, n), None, (h * m * row, m * row, row, 1)))
        way = d.one_of(("none", "indices", "band", "lengths"), (3, 2, 2, 1))
        if way == "indices":
            rows, columns = (g.pointwise("gen_index", s, axis=axis) for axis in (2, 3))
            s = g.pointwise("binary_select", s, outside, g.pointwise("cmp_ge", rows, columns))
        elif way == "band":
            s = g.add("diagonal_band_mask", x=s, b=outside, comparison_mode="cmp_ge")["y"]
        elif way == "lengths":
            columns = g.pointwise("gen_index", s, axis=3)
            lengths = d.tensor((self.batch, 1, self.rows, 1), "int32", (1, 1, 0, 1))  # each for all queries
            flag = g.pointwise("cmp_lt", columns, lengths)
            s = g.pointwise("binary_select", s, outside, flag)
        return s

    def dropped(self, p: Node) -> Node:
        g, (seed, offset) = self.d.g, (self.d.tensor((1, 1, 1, 1), "int64") for _ in range(2))
        how = {"shape": self.scores, "distribution": "bernoulli", "probability": 0.75}
        random = g.add("rng", seed=seed, offset=offset, **how)["y"]
        self.d.output(random, "float32")  # the evaluator takes the mask from it
        return g.pointwise("mul", g.pointwise("mul", p, random), g.number(1 / 0.75))


def attention(d: Drawing) -> None:
    """The composition of products and a softmax, which is one operation at times."""
    g, heads = d.g, Heads(d, is_grouped=d.chance(0.3))
    s = heads.masked(g.pointwise("mul", g.matmul(heads.q(), heads.transposed()), g.number(0.125)))
    if d.chance(0.25):
        made = g.add("softmax", x=s, results=("stats",) if d.chance(0.5) else (), dtype=d.dtype)
        if "stats" in made:
            d.output(made["stats"], "float32")
        p = made["y"]
    else:
        most = g.reduction("max", s, (3,))
        e = g.pointwise("exp", g.pointwise("sub", s, most))
        total = g.reduction("add", e, (3,))
        if d.chance(0.9):
            d.output(g.pointwise("add", most, g.pointwise("log", total)), "float32")
        p = g.pointwise("div", e, total)
        p = heads.dropped(p) if d.chance(0.2) else p
        p.spec = p.spec._replace(dtype=d.dtype)
    d.output(g.matmul(p, heads.k()), d.dtype)


def attention_gradient(d: Drawing) -> None:
    g, heads = d.g, Heads(d)
    heads.columns = heads.rows if d.chance(0.8) else heads.columns
    q, k, values = heads.q(), heads.k(), heads.transposed()
    _, _, columns, size = k.shape
    (*outer, row, element) = k.spec.strides or packed_strides(k.shape)
    keys = g.add("reshape", x=k, shape=(*k.shape[:2], size, columns), strides=(*outer, element, row))["y"]
    o, do, statistics = heads.q(), heads.q(), d.tensor((*heads.scores[:3], 1), "float32")
    one, scale = g.number(1.0), g.number(0.125)
    sums = g.pointwise("mul", g.reduction("add", g.pointwise("mul", do, o), (3,)), one)
    d.output(sums, "float32")
    s = g.pointwise("mul", g.matmul(q, keys), scale)
    if d.chance(0.4):
        rows, columns = (g.pointwise("gen_index", s, axis=axis) for axis in (2, 3))
        s = g.pointwise("binary_select", s, g.number(-math.inf), g.pointwise("cmp_ge", rows, columns))
    p = g.pointwise("exp", g.pointwise("sub", s, statistics))
    b, h, m, n = heads.scores
    turned = {"shape": (b, h, n, m), "strides": (h * m * n, m * n, 1, n)}
    small = g.pointwise("mul", p, one, dtype=d.dtype)
    d.output(g.matmul(g.add("reshape", x=small, **turned)["y"], do), d.dtype)
    ds = g.pointwise("mul", g.pointwise("sub", g.matmul(do, values), sums), p)
    ds = g.pointwise("mul", ds, scale, dtype=d.dtype)
    if d.chance(0.4):
        added = d.output(g.matmul(ds, k), "float32", reordering="f16x16")
        d.output(g.pointwise("identity", added), d.dtype)
    else:
        d.output(g.matmul(ds, k), d.dtype)
    d.output(g.matmul(g.add("reshape", x=ds, **turned)["y"], q), d.dtype)


def attention_in_one(d: Drawing) -> None:
    """The operation of attention, or of its gradient."""
    g, heads = d.g, Heads(d, is_grouped=d.chance(0.3))
    given: dict[str, Any] = {"q": heads.q(), "k": heads.k(), "v": heads.k(), "scale": 0.125}
    if d.chance(0.4):
        given |= {name: d.tensor((heads.batch, 1, 1, 1), "int32") for name in ("seq_len_q", "seq_len_kv")}
    if d.chance(0.5):
        made = g.add("sdpa_fwd", results=("stats",) if d.chance(0.6) else (), **given)
    else:
        given |= {"o": heads.q(), "do": heads.q(), "stats": d.tensor((*heads.scores[:3], 1), "float32")}
        made = g.add("sdpa_bwd", **given)
    for name, node in made.items():
        d.output(node, "float32" if name == "stats" else d.dtype)


FAMILIES: dict[str, Callable[[Drawing], None]] = {
    function.__name__: function
    for function in (
        *(convolution, convolution_data_gradient, convolution_filter_gradient),
        *(product, gated_product, product_of_slices, product_of_blocks, experts),
        *(elementwise, sums, resampling, resampling_with_index, resampling_gradient),
        *(normalization, normalization_gradient, statistics_of_sums, statistics_gradient),
        *(attention, attention_gradient, attention_in_one),
    )
}
ALONE = frozenset(
    {
        *("experts", "resampling_with_index", "resampling_gradient", "attention_in_one"),
        *("normalization", "normalization_gradient", "statistics_of_sums"),
    }
)
