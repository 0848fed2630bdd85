"""The operations of docs/porting/cudnn-frontend.md in both libraries: cudnn-frontend's calls, the same here, and the results.

tests/index builds cudnn-frontend's graphs without a GPU and compares the shapes; tests/gpu runs both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import cudnnpy
from cudnnpy import reference

Arrays = dict[str, Any]


class Operation(NamedTuple):
    inputs: dict[str, np.ndarray]
    theirs: Callable[[Any, Any, Arrays], list[Any]]  # (the module cudnn, a pygraph, its tensors) -> its outputs
    ours: Callable[[Arrays], list[Any]]  # arrays on a GPU -> results
    expected: list[np.ndarray]
    infers_shapes: bool = True  # whether cudnn-frontend computes the shapes of the outputs


def spec(array: np.ndarray) -> cudnnpy.TensorSpec:
    return cudnnpy.TensorSpec(
        array.shape, array.dtype.name, tuple(stride // array.itemsize for stride in array.strides)
    )


def tensor(cudnn: Any, graph: Any, name: str, array: np.ndarray) -> Any:
    """An input of a pygraph, by value if it is one number."""
    kind = {"float16": cudnn.data_type.HALF, "float32": cudnn.data_type.FLOAT}[array.dtype.name]
    described = spec(array)
    return graph.tensor(
        name=name,
        dim=list(described.shape),
        stride=list(described.strides or ()),
        data_type=kind,
        is_pass_by_value=array.size == 1,
    )


def built(cudnn: Any, operation: Operation, **options: Any) -> tuple[Any, Arrays, list[Any]]:
    """A pygraph of an operation, checked, with its inputs and outputs."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **options,
    )
    tensors = {name: tensor(cudnn, graph, name, array) for name, array in operation.inputs.items()}
    outputs = operation.theirs(cudnn, graph, tensors)
    for output, expected in zip(outputs, operation.expected, strict=True):
        output.set_output(True)
        if not operation.infers_shapes:
            output.set_dim(list(expected.shape)).set_stride(list(spec(expected).strides or ()))
        if expected.dtype == np.float32:
            output.set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    return graph, tensors, outputs


def images(seed: int, *shape: int, dtype: Any = np.float16) -> np.ndarray:
    """Numbers near 0, channels last in memory."""
    n, c, *spatial = shape
    values = np.random.default_rng(seed).standard_normal((n, *spatial, c)) / 8
    return np.moveaxis(values.astype(dtype), -1, 1)


def last(array: np.ndarray, dtype: Any = np.float16) -> np.ndarray:
    """The same numbers, channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(np.asarray(array, dtype), 1, -1)), -1, 1)


SAME = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
X, W, DY = images(0, 4, 32, 16, 16), images(1, 64, 32, 3, 3), images(2, 4, 64, 16, 16)
SCALE, BIAS = images(3, 1, 32, 1, 1), images(4, 1, 32, 1, 1)
TOKENS, WEIGHT, SHIFT = images(5, 64, 256, 1, 1), images(6, 1, 256, 1, 1), images(7, 1, 256, 1, 1)
LEFT = (np.random.default_rng(8).standard_normal((8, 64, 32)) / 8).astype(np.float16)
RIGHT = (np.random.default_rng(9).standard_normal((8, 32, 128)) / 8).astype(np.float16)
EPSILON, MOMENTUM = (np.full((1, 1, 1, 1), value, np.float32) for value in (1e-5, 0.1))
CHANNELS = {
    name: images(seed, 1, 32, 1, 1, dtype=np.float32) for name, seed in (("scale", 10), ("bias", 11), ("mean", 12))
} | {"variance": np.ones((1, 32, 1, 1), np.float32)}
CONVOLUTION = reference.Convolution(padding=1)


def graph_of(arrays: Arrays, make: Callable[[cudnnpy.Graph, Arrays], list[tuple[Any, str | None]]]) -> list[Any]:
    """The results of a Graph on arrays; `make` returns its outputs, each with its data type."""
    g = cudnnpy.Graph()
    outputs = make(g, {name: g.tensor(name, array) for name, array in arrays.items()})
    for number, (node, dtype) in enumerate(outputs):
        g.output(f"y{number}", node, dtype)
    results = g.run(**arrays)
    return list(results) if isinstance(results, tuple) else [results]


def _batch_norm() -> list[np.ndarray]:
    mean, variance = (CHANNELS[name].ravel().copy() for name in ("mean", "variance"))
    scale, bias = (CHANNELS[name].ravel() for name in ("scale", "bias"))
    y, saved, inverse = reference.BatchNormalization().forward_training(
        X, scale, bias, running_mean=mean, running_variance=variance
    )
    return [last(y), *(values.reshape(1, 32, 1, 1) for values in (saved, inverse, mean, variance))]


def _our_batch_norm(arrays: Arrays) -> list[Any]:
    def make(g: cudnnpy.Graph, t: Arrays) -> list[tuple[Any, str | None]]:
        running = t["mean"], t["variance"]
        made = g.normalization("batch_norm", t["x"], t["scale"], t["bias"], 1e-5, running=running, average_factor=0.1)
        return [(made[0], None), *((node, "float32") for node in made[1:])]

    return graph_of({name: array for name, array in arrays.items() if name not in ("epsilon", "momentum")}, make)


def _their_batch_norm(cudnn: Any, graph: Any, t: Arrays) -> list[Any]:
    running = {"in_running_mean": t["mean"], "in_running_var": t["variance"]}
    numbers = {"epsilon": t["epsilon"], "momentum": t["momentum"]}
    return list(graph.batchnorm(input=t["x"], scale=t["scale"], bias=t["bias"], **running, **numbers))


def _norm(mode: str, name: str) -> Operation:
    """layernorm or rmsnorm of rows, with the statistics."""
    of_layer = mode == "layer_norm"
    tokens, scale, shift = (array.astype(np.float64) for array in (TOKENS, WEIGHT, SHIFT))
    mean = tokens.mean(1, keepdims=True) if of_layer else np.zeros((64, 1, 1, 1))
    inverse = (np.square(tokens - mean).mean(1, keepdims=True) + 1e-5) ** -0.5
    y = (tokens - mean) * inverse * scale + (shift if of_layer else 0.0)
    inputs = {"x": TOKENS, "scale": WEIGHT, **({"bias": SHIFT} if of_layer else {}), "epsilon": EPSILON}

    def theirs(cudnn: Any, graph: Any, t: Arrays) -> list[Any]:
        phase = cudnn.norm_forward_phase.TRAINING
        given = {
            "input": t["x"],
            "scale": t["scale"],
            "epsilon": t["epsilon"],
            **({"bias": t["bias"]} if of_layer else {}),
        }
        return list(getattr(graph, name)(norm_forward_phase=phase, **given))

    def ours(arrays: Arrays) -> list[Any]:
        def make(g: cudnnpy.Graph, t: Arrays) -> list[tuple[Any, str | None]]:
            made = g.normalization(mode, t["x"], t["scale"], t.get("bias"), 1e-5)
            return [(made[0], None), *((node, "float32") for node in made[1:])]

        return graph_of({key: array for key, array in arrays.items() if key != "epsilon"}, make)

    statistics = [mean, inverse] if of_layer else [inverse]
    expected = [y.astype(TOKENS.dtype), *(one.astype(np.float32) for one in statistics)]
    return Operation(inputs, theirs, ours, expected)


OPERATIONS: dict[str, Operation] = {
    "conv_fprop": Operation(
        {"x": X, "w": W},
        lambda cudnn, graph, t: [graph.conv_fprop(image=t["x"], weight=t["w"], **SAME)],
        lambda a: [cudnnpy.Convolution(padding=1).forward(a["x"], a["w"])],
        [last(CONVOLUTION.forward(X, W))],
    ),
    "conv_dgrad": Operation(
        {"dy": DY, "w": W},
        lambda cudnn, graph, t: [graph.conv_dgrad(loss=t["dy"], filter=t["w"], **SAME)],
        lambda a: [cudnnpy.Convolution(padding=1).backward_data(a["dy"], a["w"], X.shape)],
        [last(CONVOLUTION.backward_data(DY, W, X.shape))],
        infers_shapes=False,
    ),
    "conv_wgrad": Operation(
        {"x": X, "dy": DY},
        lambda cudnn, graph, t: [graph.conv_wgrad(image=t["x"], loss=t["dy"], **SAME)],
        lambda a: [cudnnpy.Convolution(padding=1).backward_filter(a["dy"], a["x"], W.shape)],
        [last(CONVOLUTION.backward_filter(DY, X, W.shape))],
        infers_shapes=False,
    ),
    "matmul": Operation(
        {"a": LEFT, "b": RIGHT},
        lambda cudnn, graph, t: [graph.matmul(A=t["a"], B=t["b"])],
        lambda a: graph_of(a, lambda g, t: [(g.matmul(t["a"], t["b"]), None)]),
        [(LEFT.astype(np.float32) @ RIGHT.astype(np.float32)).astype(np.float16)],
    ),
    "pointwise": Operation(
        {"x": X, "scale": SCALE, "bias": BIAS},
        lambda cudnn, graph, t: [
            graph.relu(input=graph.bias(input=graph.scale(input=t["x"], scale=t["scale"]), bias=t["bias"]))
        ],
        lambda a: graph_of(
            a,
            lambda g, t: [
                (g.pointwise("relu_fwd", g.pointwise("add", g.pointwise("mul", t["x"], t["scale"]), t["bias"])), None)
            ],
        ),
        [last(np.maximum(X.astype(np.float32) * SCALE + BIAS, 0))],
    ),
    "reduction": Operation(
        {"x": X},
        lambda cudnn, graph, t: [graph.reduction(input=t["x"], mode=cudnn.reduction_mode.ADD)],
        lambda a: graph_of(a, lambda g, t: [(g.reduction("add", t["x"], (0, 2, 3)), "float32")]),
        [X.astype(np.float64).sum((0, 2, 3), keepdims=True).astype(np.float32)],
        infers_shapes=False,
    ),
    "batchnorm": Operation(
        {"x": X, **CHANNELS, "epsilon": EPSILON, "momentum": MOMENTUM},
        _their_batch_norm,
        _our_batch_norm,
        _batch_norm(),
    ),
    "layernorm": _norm("layer_norm", "layernorm"),
    "rmsnorm": _norm("rms_norm", "rmsnorm"),
}
