"""Layer, RMS and instance normalization and their gradients, by the graph API's normalization nodes.

The nodes want x packed: rows of what is normalized together. An x that lies otherwise is copied in and out; on an H200
that still beats what cuDNN offers for instances of channels last (0.7 of PyTorch's time against 3; docs/benchmarks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cudnnpy import calling, raw
from cudnnpy import workspace as memory
from cudnnpy.arrays import synchronize
from cudnnpy.calling import Call
from cudnnpy.checks import check_layout, check_number
from cudnnpy.dtypes import dtype_of
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.frozen import Frozen
from cudnnpy.functions import (
    given,
    like,
    logical,
    logical_like,
    logical_result,
    no_overlaps,
    result,
)
from cudnnpy.graph import Graph
from cudnnpy.graph_nodes import Node
from cudnnpy.handle import Handle
from cudnnpy.layouts import TensorSpec, at_least_4d, in_layout, packed, packed_strides
from cudnnpy.normalization import channels, packed_like
from cudnnpy.programs import Executable, Operand, Program, arranged, in_turn
from cudnnpy.tensors import Fill

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class LayerNormalization(Frozen):
    """Normalization over the last axes of x, those of scale.shape, and its gradient, on device arrays of 2 to 5 axes.

    epsilon: added to variances; 0 or more. x is float16, bfloat16 or float32; scale, bias and the statistics are packed
    float32. Raises TypeError and ValueError for options and arrays that do not fit, NoAlgorithmError where cuDNN has no
    engine. Ba, Kiros, Hinton: Layer Normalization, 2016.
    """

    epsilon: float = 1e-5

    def _checked(self) -> dict[str, Any]:
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(self, x: Any, scale: Any, bias: Any, out: Any = None, stream: Any = None) -> Any:
        """(y, mean, inverse_variance): y = scale * (x - mean) * inverse_variance + bias.

        mean and inverse_variance = 1 / sqrt(variance + epsilon) are float32, of x's shape without the normalized axes.
        """
        name, names = "LayerNormalization.forward_training", ("x", "scale", "bias", "out", "mean", "inverse_variance")
        return calling.run(name, self, _rows_forward, names, (x, scale, bias), (out, None, None), stream, True, True)

    def forward_inference(self, x: Any, scale: Any, bias: Any, out: Any = None, stream: Any = None) -> Any:
        """The same y alone."""
        name, names = "LayerNormalization.forward_inference", ("x", "scale", "bias", "out")
        return calling.run(name, self, _rows_forward, names, (x, scale, bias), (out,), stream, False, True)

    def backward(
        self, dy: Any, x: Any, scale: Any, mean: Any, inverse_variance: Any, out: Any = None, stream: Any = None
    ) -> Any:
        """(dx, dscale, dbias) for forward_training's x and statistics, and the gradient dy in y."""
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", "dscale", "dbias"
        inputs, outs = (dy, x, scale, mean, inverse_variance), (out, None, None)
        return calling.run("LayerNormalization.backward", self, _rows_backward, names, inputs, outs, stream, True)


@dataclass(frozen=True)
class RMSNormalization(Frozen):
    """x / sqrt(mean(x * x) + epsilon) * scale over the last axes of x, and its gradient; the rest is as LayerNormalization.

    Zhang, Sennrich: Root Mean Square Layer Normalization, 2019.
    """

    epsilon: float = 1e-5

    def _checked(self) -> dict[str, Any]:
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(self, x: Any, scale: Any, out: Any = None, stream: Any = None) -> Any:
        """(y, inverse_rms): y = scale * x * inverse_rms, inverse_rms = 1 / sqrt(mean(x * x) + epsilon) in float32."""
        name, names = "RMSNormalization.forward_training", ("x", "scale", "out", "inverse_rms")
        return calling.run(name, self, _rows_forward, names, (x, scale), (out, None), stream, True, False)

    def forward_inference(self, x: Any, scale: Any, out: Any = None, stream: Any = None) -> Any:
        """The same y alone."""
        name, names = "RMSNormalization.forward_inference", ("x", "scale", "out")
        return calling.run(name, self, _rows_forward, names, (x, scale), (out,), stream, False, False)

    def backward(self, dy: Any, x: Any, scale: Any, inverse_rms: Any, out: Any = None, stream: Any = None) -> Any:
        """(dx, dscale) for forward_training's x and inverse_rms, and the gradient dy in y."""
        names = "dy", "x", "scale", "inverse_rms", "out", "dscale"
        inputs, outs = (dy, x, scale, inverse_rms), (out, None)
        return calling.run("RMSNormalization.backward", self, _rows_backward, names, inputs, outs, stream, False)


@dataclass(frozen=True)
class InstanceNormalization(Frozen):
    """Normalization of each channel of each n over its spatial axes, and its gradient, on device arrays of 3 to 5 axes.

    scale and bias are (C,), the statistics (N, C), in packed float32. layout: "NCHW", or "NHWC" for arrays whose axis
    order is (N, spatial..., C). The rest is as LayerNormalization. Ulyanov, Vedaldi, Lempitsky: Instance Normalization,
    2016.
    """

    epsilon: float = 1e-5
    layout: str = "NCHW"

    def _checked(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {"epsilon": check_number("epsilon", self.epsilon, 0.0, finite=True)}

    def forward_training(self, x: Any, scale: Any, bias: Any, out: Any = None, stream: Any = None) -> Any:
        """(y, mean, inverse_variance): y = scale * (x - mean) * inverse_variance + bias."""
        name, prepare = "InstanceNormalization.forward_training", InstanceNormalization._forward
        names = "x", "scale", "bias", "out", "mean", "inverse_variance"
        return calling.run(name, self, prepare, names, (x, scale, bias), (out, None, None), stream, True)

    def forward_inference(self, x: Any, scale: Any, bias: Any, out: Any = None, stream: Any = None) -> Any:
        """The same y alone."""
        name, prepare = "InstanceNormalization.forward_inference", InstanceNormalization._forward
        names = "x", "scale", "bias", "out"
        return calling.run(name, self, prepare, names, (x, scale, bias), (out,), stream, False)

    def backward(
        self, dy: Any, x: Any, scale: Any, mean: Any, inverse_variance: Any, out: Any = None, stream: Any = None
    ) -> Any:
        """(dx, dscale, dbias) for forward_training's x and statistics, and the gradient dy in y."""
        name, prepare = "InstanceNormalization.backward", InstanceNormalization._backward
        names = "dy", "x", "scale", "mean", "inverse_variance", "out", "dscale", "dbias"
        return calling.run(
            name, self, prepare, names, (dy, x, scale, mean, inverse_variance), (out, None, None), stream
        )

    def _forward(self, call: Call, training: bool) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, dtypes=DTYPES)
        y = logical_result(call, "out", x.shape, x, self.layout)
        parameters = [packed_like(call, name, (x.shape[1],), "float32") for name in ("scale", "bias")]
        means = [TensorSpec(x.shape[:2], "float32", packed_strides(x.shape[:2]))] * 2 if training else []
        wide = _packed(x)
        views = [wide, channels(wide), channels(wide), wide, *(_picture_means(wide) for _ in means)]
        operands = [Operand("x", x)]
        operands += [Operand(name, spec) for name, spec in zip(("scale", "bias"), parameters, strict=True)]
        operands += [Operand("out", y, True), *_results(("mean", "inverse_variance")[: len(means)], means)]
        program = _forward(call, "instance_norm", self.epsilon, training, operands, views)
        return program, [in_layout(y, self.layout.endswith("C")), *means]

    def _backward(self, call: Call) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, dtypes=DTYPES)
        x = logical_like(call, "x", self.layout, dy.shape, dy.dtype)
        dx = logical_result(call, "out", x.shape, dy, self.layout)
        scale = packed_like(call, "scale", (x.shape[1],), "float32")
        means = [packed_like(call, name, x.shape[:2], "float32") for name in ("mean", "inverse_variance")]
        wide = _packed(x)
        row, mean = channels(wide), _picture_means(wide)
        operands = [Operand("dy", dy), Operand("x", x), Operand("scale", scale), Operand("mean", means[0])]
        operands += [Operand("inverse_variance", means[1]), Operand("out", dx, True)]
        operands += _results(("dscale", "dbias"), [scale, scale])
        program = _backward(call, "instance_norm", operands, [wide, wide, row, mean, mean, wide, row, row])
        return program, [in_layout(dx, self.layout.endswith("C")), scale, scale]


# What is normalized together as a row: layer and RMS normalization, which is the one without a bias


def _rows_forward(
    how: LayerNormalization | RMSNormalization, call: Call, training: bool, layer: bool
) -> tuple[Program, list[TensorSpec]]:
    x = given(call, "x", range(2, 6), DTYPES)
    kept = _kept_axes(call, x)
    y = result(call, "out", x.shape, x.dtype, x)
    names = ["scale", *(["bias"] if layer else [])]
    parameters = [packed_like(call, name, x.shape[kept:], "float32") for name in names]
    statistics = (["mean", "inverse_variance"] if layer else ["inverse_rms"]) if training else []
    means = [TensorSpec(x.shape[:kept], "float32", packed_strides(x.shape[:kept])) for _ in statistics]
    wide, row, mean = _row_views(x, kept)
    operands = [Operand("x", x), *(Operand(n, p) for n, p in zip(names, parameters, strict=True))]
    operands += [Operand("out", y, True), *_results(statistics, means)]
    views = [wide, *(row for _ in names), wide, *(mean for _ in means)]
    mode = "layer_norm" if layer else "rms_norm"
    return _forward(call, mode, how.epsilon, training, operands, views), [y, *means]


def _rows_backward(
    how: LayerNormalization | RMSNormalization, call: Call, layer: bool
) -> tuple[Program, list[TensorSpec]]:
    dy = given(call, "dy", range(2, 6), DTYPES)
    x = like(call, "x", dy.shape, dy.dtype)
    kept = _kept_axes(call, x)
    scale = packed_like(call, "scale", x.shape[kept:], "float32")
    names = ["mean", "inverse_variance"] if layer else ["inverse_rms"]
    means = [packed_like(call, name, x.shape[:kept], "float32") for name in names]
    dx = result(call, "out", x.shape, x.dtype, dy)
    wide, row, mean = _row_views(x, kept)
    operands = [Operand("dy", dy), Operand("x", x), Operand("scale", scale)]
    operands += [Operand(n, m) for n, m in zip(names, means, strict=True)]
    gradients = ["dscale", *(["dbias"] if layer else [])]
    operands += [Operand("out", dx, True), *_results(gradients, [scale for _ in gradients])]
    views = [wide, wide, row, *(mean for _ in means), wide, *(row for _ in gradients)]
    mode = "layer_norm" if layer else "rms_norm"
    return _backward(call, mode, operands, views), [dx, *(scale for _ in gradients)]


def _kept_axes(call: Call, x: TensorSpec) -> int:
    """How many of x's first axes are kept; ValueError where scale's shape is not that of the others."""
    shape = tuple(call.specs["scale"].shape)
    kept = len(x.shape) - len(shape)
    if not shape or kept < 1 or x.shape[kept:] != shape:
        raise ValueError(f"scale: shape {shape} given; expected that of the last axes of x, {x.shape}, less its first")
    return kept


def _row_views(x: TensorSpec, kept: int) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """x, its parameters and its statistics as a graph takes them: (rows, length, 1, 1), and packed."""
    count, length = math.prod(x.shape[:kept]), math.prod(x.shape[kept:])
    strides = length, 1, length, length
    return (
        TensorSpec((count, length, 1, 1), x.dtype, strides),
        TensorSpec((1, length, 1, 1), "float32", strides),
        TensorSpec((count, 1, 1, 1), "float32", (1, 1, 1, 1)),
    )


# What all three share


def _packed(x: TensorSpec) -> TensorSpec:
    return at_least_4d(x._replace(strides=packed_strides(x.shape), alignment=16))


def _picture_means(x: TensorSpec) -> TensorSpec:
    """A value for each channel of each n."""
    n, c, *spatial = x.shape
    return TensorSpec((n, c, *(1 for _ in spatial)), "float32", (c, 1, *(c for _ in spatial)))


def _results(names: Sequence[str], specs: Sequence[TensorSpec]) -> list[Operand]:
    return [Operand(name, spec, True) for name, spec in zip(names, specs, strict=True)]


def _forward(
    call: Call, mode: str, epsilon: float, training: bool, operands: list[Operand], views: list[TensorSpec]
) -> Program:
    no_overlaps(call, operands)
    graph = Graph()
    inputs = [graph.tensor(o.name, v) for o, v in zip(operands, views, strict=True) if not o.is_result]
    x, scale, *bias = inputs
    if x.spec.dtype != "float32" and mode != "instance_norm":
        try:
            return _scaled_after(call, mode, epsilon, training, operands, views)
        except NoAlgorithmError:  # sizes that the fast engines do not take
            pass
    made = graph.normalization(mode, x, scale, bias[0] if bias else None, epsilon, training=training)
    return _program(call.device, graph, made, mode, operands, views)


def _scaled_after(
    call: Call, mode: str, epsilon: float, training: bool, operands: list[Operand], views: list[TensorSpec]
) -> Program:
    """No fast engine takes a scale of another type than x: it gets ones and zeros, and the float32 scale comes after it."""
    graph = Graph()
    x, scale, *bias = (graph.tensor(o.name, v) for o, v in zip(operands, views, strict=True) if not o.is_result)
    row = views[1]._replace(dtype=x.spec.dtype)
    ones = graph.tensor("ones", row)
    zeros = graph.tensor("zeros", row) if bias else None
    made = graph.normalization(mode, x, ones, zeros, epsilon, training=training)
    top = graph.pointwise("mul", made[0], scale)
    top = graph.pointwise("add", top, bias[0]) if bias else top
    constants = [Constant(row, 1.0, call), *([Constant(row, 0.0, call)] if bias else [])]
    return _program(call.device, graph, (top, *made[1:]), mode, operands, views, constants)


def _backward(call: Call, mode: str, operands: list[Operand], views: list[TensorSpec]) -> Program:
    no_overlaps(call, operands)
    graph = Graph()
    dy, x, scale, *means = (graph.tensor(o.name, v) for o, v in zip(operands, views, strict=True) if not o.is_result)
    mean = means[0] if len(means) > 1 else None
    made = graph.normalization_backward(mode, dy, x, scale, mean, means[-1], bias=mode != "rms_norm")
    return _program(call.device, graph, made, f"{mode} gradient", operands, views)


def _program(
    device: int,
    graph: Graph,
    made: tuple[Node, ...],
    name: str,
    operands: list[Operand],
    views: list[TensorSpec],
    constants: Sequence[Constant] = (),
) -> Program:
    """The graph's plan, with copies of the tensors that do not lie as their views do."""
    targets = [(o, v) for o, v in zip(operands, views, strict=True) if o.is_result]
    for node, (operand, view) in zip(made, targets, strict=True):
        graph.output(operand.name, node, view.dtype, view.strides)
    planned: Executable | None = graph.executable(device)
    if planned is None:
        raise NoAlgorithmError(f"{name} of {operands[0].spec.dtype} {operands[0].spec.shape}", "any engine", "", [])
    if constants:
        planned = WithConstants(planned, len(operands) - len(targets), constants)
    return arranged(name, device, operands, planned, [packed(operand.spec) for operand in operands])


class Constant:
    """Device memory full of one number, for as long as the object lives."""

    def __init__(self, spec: TensorSpec, value: float, call: Call) -> None:
        size = math.prod(spec.shape) * dtype_of(spec.dtype).itemsize
        self._memory = memory.allocate(size, call.device, call.stream)
        handle = Handle.default(call.device)
        handle.set_stream(call.stream)
        raw.check(Fill(spec, value).bind(handle, (self._memory[0],), 0)(), "fill")
        synchronize(call.stream, call.device)  # other streams will read it
        self.address = self._memory[0]


class WithConstants:
    """A plan whose last inputs are constants: they follow `count` addresses that are given."""

    def __init__(self, planned: Executable, count: int, constants: Sequence[Constant]) -> None:
        self._planned, self._count, self._constants = planned, count, constants
        self.workspace_size = planned.workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The plan on these addresses and the constants'."""
        between = tuple(constant.address for constant in self._constants)
        launch = self._planned.bind(handle, (*pointers[: self._count], *between, *pointers[self._count :]), workspace)
        return in_turn([launch], (self,))
