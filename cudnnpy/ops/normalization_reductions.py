"""Layer and RMS normalization as reductions and elementwise graphs, for rows that no fast engine takes.

The fast engines of the normalization nodes take rows whose length is a multiple of 64. For others one engine is left. On an
H200 it takes 1.3 to 3.0 times as long as PyTorch for many short rows, and 1.5 to 28 times in the gradient; these graphs take
0.5 to 1.5 times (docs/benchmarks). Each graph reads x once. Statistics and sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.program import Operand
from cudnnpy._launch.steps import Executable, Step, StepSequence, copy
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.nodes import Node
from cudnnpy.ops.composed_normalization import Shapes

_MULTIPLE = 64  # of the lengths that the fast engines take
_SHORT = 1024  # elements of a row
_MANY = 4096  # rows from which on several launches pay off


def forward_is_faster(x: TensorSpec, shapes: Shapes) -> bool:
    """Return whether the graphs of the forward operation are faster than the normalization node."""
    count, length = shapes.x[:2]
    return _odd(x, length) and length <= _SHORT and count >= _MANY


def backward_is_faster(x: TensorSpec, shapes: Shapes) -> bool:
    """Return whether the graphs of the gradient are faster than the normalization node."""
    count, length = shapes.x[:2]
    return _odd(x, length) and count >= _MANY


def _odd(x: TensorSpec, length: int) -> bool:
    return x.dtype != "float64" and length % _MULTIPLE != 0


class _Unsupported(Exception):
    """No engine supports one of the graphs."""


class _Value(NamedTuple):
    """A tensor of the steps: the index of its address, and its spec."""

    place: int
    spec: TensorSpec


class _Rows:
    """Steps on packed operands, which are rows (rows, length, 1, 1), or one number for each row or column of them."""

    def __init__(self, device: int, operands: Sequence[Operand], shapes: Shapes) -> None:
        self.device, self.shapes = device, shapes
        self.steps: list[Step] = []
        self.scratch: list[int] = []
        self._count = len(operands)
        of = {"x": shapes.x, "dy": shapes.x, "out": shapes.x}
        of |= dict.fromkeys(("scale", "bias", "dscale", "dbias"), shapes.row)
        self.values = {
            operand.name: _Value(place, self.spec(of.get(operand.name, shapes.mean), operand))
            for place, operand in enumerate(operands)
        }

    def spec(self, shape: tuple[int, ...], like: Operand | None = None) -> TensorSpec:
        """The spec of a tensor of one of the shapes, with an operand's dtype or float32."""
        width = shape[1]
        return TensorSpec(shape, like.spec.dtype if like else "float32", (width, 1, width, width))

    def graph(
        self, inputs: Sequence[str], result: str, shape: tuple[int, ...], make: Callable[[Graph, dict[str, Node]], Node]
    ) -> None:
        """Add a graph of named inputs. Its result is the operand of a name, or a new float32 tensor.

        Reductions are float32: a result of 16 bits is a copy.
        """
        there = self.values.get(result)
        direct = there is not None and (shape == self.shapes.x or there.spec.dtype == "float32")
        target = there if direct and there is not None else self._new(shape)
        graph = Graph()
        nodes = {name: graph.tensor(name, self.values[name].spec) for name in inputs if name in self.values}
        graph.output("result", make(graph, nodes), target.spec.dtype, target.spec.strides)
        places = (*(self.values[name].place for name in nodes), target.place)
        self._add(graph.executable(self.device), places)
        if there is None:
            self.values[result] = target
        elif not direct:
            self.steps.append(Step(copy(target.spec, there.spec), (target.place, there.place)))

    def _new(self, shape: tuple[int, ...]) -> _Value:
        self.scratch.append(4 * shape[0] * shape[1])
        return _Value(self._count + len(self.scratch) - 1, self.spec(shape))

    def _add(self, planned: Executable | None, places: tuple[int, ...]) -> None:
        if planned is None:
            raise _Unsupported
        self.steps.append(Step(planned, places))

    def inverse_root(self, squares: str, result: str, share: float, epsilon: float) -> None:
        """Add a graph: result = 1 / sqrt(share * squares + epsilon), of one number for each row."""
        count = self.shapes.x[0]
        target = self.values.get(result) or self._new(self.shapes.mean)
        self.values[result] = target
        flat = TensorSpec((1, count, 1, 1), "float32", (count, 1, count, count))
        graph = Graph()
        scaled = graph.pointwise("mul", graph.tensor("squares", flat), graph.number(share))
        root = graph.pointwise("rsqrt", graph.pointwise("add", scaled, graph.number(epsilon)))
        graph.output("result", root, "float32", flat.strides)
        self._add(graph.executable(self.device), (self.values[squares].place, target.place))


def _centred(graph: Graph, nodes: dict[str, Node]) -> Node:
    return graph.pointwise("sub", nodes["x"], nodes["mean"]) if "mean" in nodes else nodes["x"]


def forward(
    device: int, operands: Sequence[Operand], shapes: Shapes, epsilon: float, centred: bool
) -> Executable | None:
    """Return the forward operation on packed operands, each in its own dtype; None if no engine supports it."""
    made, share = _Rows(device, operands, shapes), 1 / shapes.x[1]
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
            made.graph(["x"], "mean", shapes.mean, mean)
        made.graph(["x", "mean"], "squares", shapes.mean, squares)
        made.inverse_root("squares", inverse, share, epsilon)
        made.graph(["x", "mean", inverse, "scale", "bias"], "out", shapes.x, result)
    except _Unsupported:
        return None
    return StepSequence(made.steps, made.scratch)


def backward(device: int, operands: Sequence[Operand], shapes: Shapes, centred: bool) -> Executable | None:
    """Return the gradients on packed operands, each in its own dtype; None if no engine supports it.

    With n = (x - mean) * inverse and g = dy * scale, dx = (g - mean(g) - n * mean(g * n)) * inverse, dscale is the sum of
    dy * n and dbias the sum of dy.
    """
    made, share = _Rows(device, operands, shapes), 1 / shapes.x[1]
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
        if "dscale" in made.values:
            made.graph(["dy", "x", *statistics], "dscale", shapes.row, dscale)
        if "dbias" in made.values:
            made.graph(["dy"], "dbias", shapes.row, lambda graph, nodes: graph.reduction("add", nodes["dy"], (0,)))
        if centred:
            made.graph(["dy", "scale"], "mean of g", shapes.mean, mean)
        made.graph(["dy", "x", "scale", *statistics], "mean of g * n", shapes.mean, product)
        sums = ["mean of g", "mean of g * n"] if centred else ["mean of g * n"]
        made.graph(["dy", "x", "scale", *statistics, *sums], "out", shapes.x, result)
    except _Unsupported:
        return None
    return StepSequence(made.steps, made.scratch)
