"""Batch normalization as operation graphs: training, inference and the gradient, planned for a device.

The addresses of a graph are those of its inputs, then those of its results, each in the order of the arguments of cuDNN's
function; updated running statistics come last. The functions return None if cuDNN has no engine for the graph.
"""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, per_channel
from cudnnpy._planning.engines import GraphExecutable
from cudnnpy.graph.graph import Graph

RUNNING = ("running_mean", "running_variance")
SAVED = ("saved_mean", "saved_inverse_variance")


def training_graph(
    device: int, epsilon: float, x: TensorSpec, y: TensorSpec, factor: float, activation: str | None, running: bool
) -> GraphExecutable | None:
    """Inputs: x, scale, bias, and the running statistics if `running`. Results: y, the saved and the updated statistics."""
    graph = Graph()
    one, scale, bias = graph.tensor("x", x), graph.tensor("scale", per_channel(x)), graph.tensor("bias", per_channel(x))
    mean, variance = (graph.tensor(name, per_channel(x)) if running else None for name in RUNNING)
    both = (mean, variance) if mean is not None and variance is not None else None
    made = graph.normalization("batch_norm", one, scale, bias, epsilon, running=both, average_factor=factor)
    top = graph.pointwise("relu_fwd", made[0]) if activation else made[0]
    graph.output("out", top, strides=y.strides)
    names = [*SAVED, *(("new_mean", "new_variance") if running else ())]
    for name, node in zip(names, made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph.executable(device)


def inference_graph(device: int, epsilon: float, x: TensorSpec, y: TensorSpec) -> GraphExecutable | None:
    """Inputs: x, scale, bias, mean and variance. Result: y."""
    graph = Graph()
    one = graph.tensor("x", x)
    scale, bias, mean, variance = (graph.tensor(n, per_channel(x)) for n in ("scale", "bias", "mean", "variance"))
    inverse = graph.pointwise("rsqrt", graph.pointwise("add", variance, graph.number(epsilon, len(x.shape))))
    normalized = graph.pointwise("mul", graph.pointwise("sub", one, mean), inverse)
    top = graph.pointwise("add", graph.pointwise("mul", normalized, scale), bias)
    graph.output("out", top, None, y.strides)
    return graph.executable(device)


def backward_graph(device: int, dy: TensorSpec, x: TensorSpec, dx: TensorSpec) -> GraphExecutable | None:
    """Inputs: dy, x, scale and the saved statistics. Results: dx, dscale and dbias."""
    graph = Graph()
    one, two, scale = graph.tensor("dy", dy), graph.tensor("x", x), graph.tensor("scale", per_channel(x))
    mean, inverse = (graph.tensor(name, per_channel(x)) for name in SAVED)
    made = graph.normalization_backward("batch_norm", one, two, scale, mean, inverse)
    graph.output("out", made[0], None, dx.strides)
    for name, node in zip(("dscale", "dbias"), made[1:], strict=True):
        graph.output(name, node, "float32", per_channel(x).strides)
    return graph.executable(device)
