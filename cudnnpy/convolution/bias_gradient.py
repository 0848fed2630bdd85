"""backward_bias: dy summed over all axes but the channels.

cudnnConvolutionBackwardBias does it in one launch, but takes 6 to 19 times as long as it should on large tensors (an
H200 with cuDNN 9.19, docs/benchmarks). From 1 MiB on, packed tensors are summed by reductions of the graph API instead,
in float32: channels last in one; channels first in two, each picture's channels and then the batch. No engine reduces
channels first as they stand, so the first of the two is given the picture as the channel axis, whose stride is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import byref, c_double, c_float
from functools import partial
from typing import Any

from cudnnpy import raw
from cudnnpy.arrays import TensorSpec, packed_strides
from cudnnpy.backend import Descriptor
from cudnnpy.convolution import graph
from cudnnpy.convolution.epilogue import in_turn
from cudnnpy.convolution.problem import channels_last_strides
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.dtypes import dtype_of
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle
from cudnnpy.launching import Launch, Pointers

_SMALL = 1 << 20  # bytes of dy below which one slow launch is over before a fast one is compiled (0.2 to 0.5 s)


class BiasGradient:
    """The sum for one shape of dy (logical order, canonical strides), into (K,): out = alpha * sum + beta * out."""

    operands = ("dy", "db")
    replayable = True

    def __init__(self, dy: TensorSpec, alpha: float, beta: float, device: int) -> None:
        self.dy, self.alpha, self.beta, self.device = dy, alpha, beta, device
        self.name = "bias gradient"
        self.workspace_size = 0
        self._steps: list[graph.GraphExecutable] = []
        assert dy.strides is not None
        packed = dy.strides in (packed_strides(dy.shape), channels_last_strides(dy.shape))
        large = math.prod(dy.shape) * dtype_of(dy.dtype).itemsize >= _SMALL
        # the function knows no bfloat16, and the engines that reduce know no float64
        if packed and dy.dtype != "float64" and (large or dy.dtype == "bfloat16"):
            try:
                self._plan(graph.Target(Handle.default(device)))
            except StatusError:
                self._steps = []

    def _plan(self, target: graph.Target) -> None:
        n, k, *spatial = self.dy.shape
        size = math.prod(spatial)
        sums = TensorSpec((1, k, 1, 1), "float32", (k, 1, k, k))
        if self.dy.strides == channels_last_strides(self.dy.shape):
            views = [(TensorSpec((n * size, k, 1, 1), self.dy.dtype, (k, 1, k, k), self.dy.alignment), sums)]
        else:
            pictures = TensorSpec((n * k, size, 1, 1), self.dy.dtype, (size, 1, size, size), self.dy.alignment)
            of_pictures = TensorSpec((n * k, 1, 1, 1), "float32", (1, 1, 1, 1))
            views = [(pictures, of_pictures), (TensorSpec((n, k, 1, 1), "float32", (k, 1, k, k)), sums)]
        self._steps = [_reduction(x, y, target) for x, y in views]
        self._sizes = [4 * math.prod(y.shape) for _, y in views]
        self._scratch = [step.workspace_size for step in self._steps]
        self.workspace_size = sum(-(-size // 256) * 256 for size in (*self._sizes, *self._scratch))

    def bind(self, handle: Handle, pointers: Pointers) -> Launch:
        """The launch for dy, db and the workspace."""
        dy, db, space = pointers
        number = c_double if self.dy.dtype == "float64" else c_float
        alpha, beta = number(self.alpha), number(self.beta)
        rank = max(len(self.dy.shape), 4)
        result = TensorDescriptor((1, self.dy.shape[1], *(1,) * (rank - 2)), self.dy.dtype)
        if not self._steps:
            shape, strides = graph.with_height(self.dy)
            whole = TensorDescriptor(shape, self.dy.dtype, strides=strides)
            return _call("cudnnConvolutionBackwardBias", handle, alpha, whole, dy, beta, result, db)
        parts = []
        for size in (*self._sizes, *self._scratch):
            parts.append(space)
            space += -(-size // 256) * 256
        count = len(self._steps)
        sources = [dy, *parts[: count - 1]]
        launches = [
            step.bind(handle, (sources[i], parts[i]), parts[count + i] if self._scratch[i] else 0)
            for i, step in enumerate(self._steps)
        ]
        sums = TensorDescriptor((1, self.dy.shape[1], *(1,) * (rank - 2)), "float32")
        launches.append(_call("cudnnTransformTensor", handle, alpha, sums, parts[count - 1], beta, result, db))
        return in_turn(launches)


def _call(
    name: str, handle: Handle, alpha: Any, x: TensorDescriptor, a: int, beta: Any, y: TensorDescriptor, b: int
) -> Launch:
    launch = partial(raw.bound(name), handle.pointer, byref(alpha), x.pointer, a, byref(beta), y.pointer, b)
    launch.owners = (handle, alpha, beta, x, y)  # type: ignore[attr-defined]  # alive as long as the call
    return launch


def _reduction(x: TensorSpec, y: TensorSpec, target: graph.Target) -> graph.GraphExecutable:
    """A sum by the first engine that can do it, with its own knobs: the heuristics' first is up to 4 times slower."""
    how: dict[int, Any] = {
        raw.CUDNN_ATTR_REDUCTION_OPERATOR: raw.CUDNN_REDUCE_TENSOR_ADD,
        raw.CUDNN_ATTR_REDUCTION_COMP_TYPE: raw.CUDNN_DATA_FLOAT,
    }
    operation = Descriptor(
        raw.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_OPERATION_REDUCTION_XDESC: graph.tensor(graph.X, x),
            raw.CUDNN_ATTR_OPERATION_REDUCTION_YDESC: graph.tensor(graph.Y, y),
            raw.CUDNN_ATTR_OPERATION_REDUCTION_DESC: Descriptor(raw.CUDNN_BACKEND_REDUCTION_DESCRIPTOR, how),
        },
    )
    built = graph.graph_of([operation], target)
    reason: Exception | None = None
    for make in (*_each_engine(built, target), *(found.finalize for found in graph.heuristics(built, target))):
        try:
            return graph.GraphExecutable(make(), ("x", "y"))
        except StatusError as error:
            reason = error
    raise reason or raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "reduction")


def _each_engine(built: Descriptor, target: graph.Target) -> list[Callable[[], Descriptor]]:
    return [partial(_engine_plan, built, target, index) for index in range(graph.engine_count(built))]


def _engine_plan(built: Descriptor, target: graph.Target, index: int) -> Descriptor:
    return graph.engine(built, target, index).finalize()
