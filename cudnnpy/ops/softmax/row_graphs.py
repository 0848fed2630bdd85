"""Softmax of long rows by graphs, where the functions are slow: each row's maximum, the sum of exponentials, and the result.

cudnnSoftmaxForward is fast while a row fits in the shared memory of a multiprocessor. On an H200 it takes 1.7 to 4.3 times as
long as PyTorch beyond, and graphs, which read x three times, 0.7 to 1.5 times; cudnnSoftmaxBackward takes 1.1 to 5.2 times as
long for long rows, and graphs 0.5 to 1.6 times (docs/benchmarks). Statistics are float32.
"""

from __future__ import annotations

from collections.abc import Callable

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import Executable, StepSequence
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.nodes import Node
from cudnnpy.typing import ElementName

_MIN_LARGE = 1 << 23  # elements from which on the heuristics' second proposals take 0.9 of the time of the first


def forward_is_faster(length: int, dtype: ElementName) -> bool:
    """Return whether graphs are faster than the function for rows of a length."""
    if dtype == "float64" or length % 8:  # rows that are not aligned are slow in graphs, too
        return False
    return length > (57_344 if dtype == "float32" else 16_384)


def backward_is_faster(count: int, length: int, dtype: ElementName, log: bool) -> bool:
    """Return whether graphs are faster than the function for the gradient of `count` rows of a length."""
    if log and dtype in ("float16", "bfloat16") and not length % 8 and length >= 1000 and count * length >= 1 << 22:
        return True  # the gradient of the logarithm is slower in the function
    if dtype == "float64" or length < 8192:
        return False
    if dtype == "float32":  # the function gives each row to one block
        return count <= 128
    return count <= 512 or not length % 8


def forward(device: int, count: int, length: int, dtype: ElementName, log: bool) -> StepSequence | None:
    """Return the executable that takes x and y, of `count` packed rows; None if no engine supports it."""
    spec, pick = _rows(count, length, dtype), 1 if count * length >= _MIN_LARGE else 0
    builder = StepBuilder({"x": spec, "y": spec})
    source, result = builder.operands["x"], builder.operands["y"]
    largest, total = builder.scratch(_statistics(count)), builder.scratch(_statistics(count))
    maximum = _reduced(device, pick, "max", spec)
    sums = _reduced(device, pick, "add", spec, lambda graph, x, m: graph.pointwise("exp", graph.pointwise("sub", x, m)))
    graph = Graph()
    x, m = graph.tensor("x", spec), graph.tensor("m", _statistics(count))
    top = graph.pointwise("sub", x, m)
    if not log:
        top = graph.pointwise("div", graph.pointwise("exp", top), graph.tensor("s", _statistics(count)))
    graph.output("y", top)
    last = graph.executable(device, pick)
    logarithms = _logarithms(device, count) if log else None
    if maximum is None or sums is None or last is None or (log and logarithms is None):
        return None
    builder.add(maximum, source, largest)
    builder.add(sums, source, largest, total)
    if logarithms is None:
        builder.add(last, source, largest, total, result)
    else:
        shift = builder.scratch(_statistics(count))
        builder.add(logarithms, largest, total, shift)
        builder.add(last, source, shift, result)
    return builder.sequence()


def backward(device: int, count: int, length: int, dtype: ElementName, log: bool) -> StepSequence | None:
    """Return the executable that takes dy, y and dx, of `count` packed rows; None if no engine supports it.

    dx = y * (dy - sum(dy * y)), or dy - exp(y) * sum(dy) for the logarithm.
    """
    spec = _rows(count, length, dtype)
    builder = StepBuilder({"dy": spec, "y": spec, "dx": spec})
    given_dy, given_y, result = builder.operands.values()
    total = builder.scratch(_statistics(count))
    graph = Graph()
    dy = graph.tensor("dy", spec)
    product = dy if log else graph.pointwise("mul", dy, graph.tensor("y", spec))
    graph.output("s", graph.reduction("add", product, (1,)), "float32", (1, 1, 1, 1))
    sums = graph.executable(device)
    graph = Graph()
    dy, y, s = graph.tensor("dy", spec), graph.tensor("y", spec), graph.tensor("s", _statistics(count))
    if log:
        top = graph.pointwise("sub", dy, graph.pointwise("mul", graph.pointwise("exp", y), s))
    else:
        top = graph.pointwise("mul", y, graph.pointwise("sub", dy, s))
    graph.output("dx", top)
    last = graph.executable(device)
    if sums is None or last is None:
        return None
    builder.add(sums, *((given_dy,) if log else (given_dy, given_y)), total)
    builder.add(last, given_dy, given_y, total, result)
    return builder.sequence()


def _rows(count: int, length: int, dtype: ElementName) -> TensorSpec:
    return TensorSpec((count, length, 1, 1), dtype, (length, 1, length, length))


def _statistics(count: int) -> TensorSpec:
    return TensorSpec((count, 1, 1, 1), "float32", (1, 1, 1, 1))


def _reduced(
    device: int, pick: int, op: str, spec: TensorSpec, before: Callable[[Graph, Node, Node], Node] | None = None
) -> Executable | None:
    """The reduction of rows, or of what `before` makes of them and of one number for each row."""
    graph = Graph()
    x = graph.tensor("x", spec)
    node = before(graph, x, graph.tensor("m", _statistics(spec.shape[0]))) if before else x
    graph.output("r", graph.reduction("max" if op == "max" else "add", node, (1,)), "float32", (1, 1, 1, 1))
    return graph.executable(device, pick)


def _logarithms(device: int, count: int) -> Executable | None:
    """m + log(s), in a graph of its own: broadcast-of-a-result in docs/known-issues.md."""
    flat = TensorSpec((1, count, 1, 1), "float32", (count, 1, count, count))
    graph = Graph()
    m, s = graph.tensor("m", flat), graph.tensor("s", flat)
    graph.output("l", graph.pointwise("add", m, graph.pointwise("log", s)))
    return graph.executable(device)
