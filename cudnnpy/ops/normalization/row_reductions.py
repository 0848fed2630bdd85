"""Layer and RMS normalization as reductions and elementwise graphs, for rows that no fast engine takes.

The fast engines of the normalization nodes take rows whose length is a multiple of 64. For others one engine is left. On an
H200 it takes 1.3 to 3.0 times as long as PyTorch for many short rows, and 1.5 to 28 times in the gradient; these graphs take
0.5 to 1.5 times (docs/benchmarks). Each graph reads x once. Statistics and sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.program import Operand
from cudnnpy._launch.step_builder import StepBuilder, Tensor
from cudnnpy._launch.steps import Executable
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.nodes import Node
from cudnnpy.ops.normalization.composed import Shape, Shapes
from cudnnpy.typing import ElementName

MakeNode: TypeAlias = Callable[[Graph, dict[str, Node]], Node]

_FAST_MULTIPLE = 64  # of the lengths that the fast engines take
_MAX_LENGTH = 1024  # elements of a row
_MIN_ROWS = 4096  # rows from which on several launches pay off


def forward_is_faster(x: TensorSpec, shapes: Shapes) -> bool:
    """Return whether the graphs of the forward operation are faster than the normalization node."""
    count, length = shapes.x[:2]
    return _has_slow_row_length(x, length) and length <= _MAX_LENGTH and count >= _MIN_ROWS


def backward_is_faster(x: TensorSpec, shapes: Shapes) -> bool:
    """Return whether the graphs of the gradient are faster than the normalization node."""
    count, length = shapes.x[:2]
    return _has_slow_row_length(x, length) and count >= _MIN_ROWS


def _has_slow_row_length(x: TensorSpec, length: int) -> bool:
    return x.dtype != "float64" and length % _FAST_MULTIPLE != 0


class _Unsupported(Exception):
    """No engine supports one of the graphs."""


class _RowBuilder(StepBuilder):
    """Steps on packed operands, which are rows (rows, length, 1, 1), or one number for each row or column of them.

    `tensors` are the operands and the named results of the steps.
    """

    def __init__(self, device: int, operands: Sequence[Operand], shapes: Shapes) -> None:
        dtypes = {operand.name: operand.spec.dtype for operand in operands}
        super().__init__({name: _spec(shape, dtypes[name]) for name, shape in shapes.of([*dtypes])})
        self.device, self.shapes = device, shapes
        self.tensors = dict(self.operands)

    def graph(self, inputs: Sequence[str], result: str, shape: Shape, make: MakeNode) -> None:
        """Add a graph of named inputs; some may be missing. Its result is an operand or a new float32 tensor.

        Reductions are float32: a result of 16 bits is a copy.
        """
        operand = self.operands.get(result)
        direct = operand is not None and (shape == self.shapes.x or operand.spec.dtype == "float32")
        target = operand if operand is not None and direct else self.scratch(_spec(shape))
        graph = Graph()
        nodes = {name: graph.tensor(name, self.tensors[name].spec) for name in inputs if name in self.tensors}
        graph.output("result", make(graph, nodes), target.spec.dtype, target.spec.strides)
        self._add_graph(graph, *(self.tensors[name] for name in nodes), target)
        if operand is None:
            self.tensors[result] = target
        elif not direct:
            self.copy(target, operand)

    def inverse_root(self, squares: str, result: str, share: float, epsilon: float) -> None:
        """Add a graph: result = 1 / sqrt(share * squares + epsilon), of one number for each row."""
        count = self.shapes.x[0]
        target = self.operands.get(result) or self.scratch(_spec(self.shapes.mean))
        self.tensors[result] = target
        flat = TensorSpec((1, count, 1, 1), "float32", (count, 1, count, count))
        graph = Graph()
        scaled = graph.pointwise("mul", graph.tensor("squares", flat), graph.number(share))
        root = graph.pointwise("rsqrt", graph.pointwise("add", scaled, graph.number(epsilon)))
        graph.output("result", root, "float32", flat.strides)
        self._add_graph(graph, self.tensors[squares], target)

    def _add_graph(self, graph: Graph, *tensors: Tensor) -> None:
        planned = graph.executable(self.device)
        if planned is None:
            raise _Unsupported
        self.add(planned, *tensors)


def _spec(shape: Shape, dtype: ElementName = "float32") -> TensorSpec:
    length = shape[1]
    return TensorSpec(shape, dtype, (length, 1, length, length))


def _centred(graph: Graph, nodes: dict[str, Node]) -> Node:
    return graph.pointwise("sub", nodes["x"], nodes["mean"]) if "mean" in nodes else nodes["x"]


def forward(
    device: int, operands: Sequence[Operand], shapes: Shapes, epsilon: float, centred: bool
) -> Executable | None:
    """Return the forward operation on packed operands, each in its own dtype; None if no engine supports it."""
    builder, share = _RowBuilder(device, operands, shapes), 1 / shapes.x[1]
    inverse = "inverse_variance" if centred else "inverse_rms"

    def mean(graph: Graph, nodes: dict[str, Node]) -> Node:
        return graph.reduction("add", graph.pointwise("mul", nodes["x"], graph.number(share)), (1,))

    def squares(graph: Graph, nodes: dict[str, Node]) -> Node:
        apart = _centred(graph, nodes)
        return graph.reduction("add", graph.pointwise("mul", apart, apart), (1,))

    def result(graph: Graph, nodes: dict[str, Node]) -> Node:
        top = graph.pointwise("mul", _centred(graph, nodes), nodes[inverse])
        top = graph.pointwise("mul", top, nodes["scale"]) if "scale" in nodes else top
        return graph.pointwise("add", top, nodes["bias"]) if "bias" in nodes else top

    try:
        if centred:
            builder.graph(["x"], "mean", shapes.mean, mean)
        builder.graph(["x", "mean"], "squares", shapes.mean, squares)
        builder.inverse_root("squares", inverse, share, epsilon)
        builder.graph(["x", "mean", inverse, "scale", "bias"], "out", shapes.x, result)
    except _Unsupported:
        return None
    return builder.sequence()


def backward(device: int, operands: Sequence[Operand], shapes: Shapes, centred: bool) -> Executable | None:
    """Return the gradients on packed operands, each in its own dtype; None if no engine supports it.

    With n = (x - mean) * inverse and g = dy * scale, dx = (g - mean(g) - n * mean(g * n)) * inverse, dscale is the sum of
    dy * n and dbias the sum of dy.
    """
    builder, share = _RowBuilder(device, operands, shapes), 1 / shapes.x[1]
    inverse = "inverse_variance" if centred else "inverse_rms"
    statistics = ["mean", inverse] if centred else [inverse]

    def normalized(graph: Graph, nodes: dict[str, Node]) -> Node:
        return graph.pointwise("mul", _centred(graph, nodes), nodes[inverse])

    def scaled(graph: Graph, nodes: dict[str, Node]) -> Node:
        return graph.pointwise("mul", nodes["dy"], nodes["scale"]) if "scale" in nodes else nodes["dy"]

    def mean(graph: Graph, nodes: dict[str, Node]) -> Node:
        return graph.reduction("add", graph.pointwise("mul", scaled(graph, nodes), graph.number(share)), (1,))

    def product(graph: Graph, nodes: dict[str, Node]) -> Node:
        both = graph.pointwise("mul", scaled(graph, nodes), normalized(graph, nodes))
        return graph.reduction("add", graph.pointwise("mul", both, graph.number(share)), (1,))

    def result(graph: Graph, nodes: dict[str, Node]) -> Node:
        top = scaled(graph, nodes)
        if "mean of g" in nodes:
            top = graph.pointwise("sub", top, nodes["mean of g"])
        along = graph.pointwise("mul", normalized(graph, nodes), nodes["mean of g * n"])
        return graph.pointwise("mul", graph.pointwise("sub", top, along), nodes[inverse])

    def dscale(graph: Graph, nodes: dict[str, Node]) -> Node:
        return graph.reduction("add", graph.pointwise("mul", nodes["dy"], normalized(graph, nodes)), (0,))

    try:
        if "dscale" in builder.operands:
            builder.graph(["dy", "x", *statistics], "dscale", shapes.row, dscale)
        if "dbias" in builder.operands:
            builder.graph(["dy"], "dbias", shapes.row, lambda graph, nodes: graph.reduction("add", nodes["dy"], (0,)))
        if centred:
            builder.graph(["dy", "scale"], "mean of g", shapes.mean, mean)
        builder.graph(["dy", "x", "scale", *statistics], "mean of g * n", shapes.mean, product)
        sums = ["mean of g", "mean of g * n"] if centred else ["mean of g * n"]
        builder.graph(["dy", "x", "scale", *statistics, *sums], "out", shapes.x, result)
    except _Unsupported:
        return None
    return builder.sequence()
