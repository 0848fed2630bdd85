"""backward_bias: dy summed over all axes but the channels.

cudnnConvolutionBackwardBias is left alone: on an H200 with cuDNN 9.19 it takes 6 to 19 times as long as it should on
large tensors, and it faults on addresses that are no multiples of 16. From 1 MiB on, packed tensors are summed by
reductions of the graph API, in float32: channels last in one; channels first in two, each picture's channels and then
the batch. No engine reduces channels first as they stand, so the first of the two is given the picture as the channel
axis, whose stride is 1. Everything else goes through cudnnReduceTensor, which compiles nothing. (docs/benchmarks)
"""

from __future__ import annotations

import math
from contextlib import suppress
from ctypes import byref, c_double, c_float, c_size_t
from functools import partial
from itertools import chain
from typing import Any

from cudnnpy import engines, raw
from cudnnpy.backend import Descriptor
from cudnnpy.convolution.legacy import row_descriptor
from cudnnpy.descriptors import ReduceTensorDescriptor, TensorDescriptor
from cudnnpy.dtypes import dtype_of
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle
from cudnnpy.launching import Launch, Pointers
from cudnnpy.layouts import TensorSpec, channels_last_strides, extent, packed_strides
from cudnnpy.programs import described, in_turn, rounded

_SMALL = 1 << 20  # bytes of dy below which a slow reduction is over before a fast one is worth compiling (0.2 to 0.5 s)


class BiasGradient:
    """The sum for one shape of dy (logical order, canonical strides), into (K,): out = alpha * sum + beta * out."""

    operands = ("dy", "db")
    replayable = True

    def __init__(self, dy: TensorSpec, alpha: float, beta: float, device: int) -> None:
        self.dy, self.alpha, self.beta, self.device = dy, alpha, beta, device
        self.name = "bias gradient"
        self.workspace_size = self._reduction_size = 0
        self._is_copy = all(length == 1 for length in (dy.shape[0], *dy.shape[2:]))  # nothing to add up
        self._wide: tuple[TensorDescriptor, TensorDescriptor, int] | None = None
        self._steps: list[engines.GraphExecutable] = []
        self._how = ReduceTensorDescriptor("add", compute_dtype="float64" if dy.dtype == "float64" else "float32")
        self._whole, self._result = described(dy), row_descriptor(dy, dy.dtype)
        assert dy.strides is not None
        packed = dy.strides in (packed_strides(dy.shape), channels_last_strides(dy.shape))
        large = math.prod(dy.shape) * dtype_of(dy.dtype).itemsize >= _SMALL
        # cudnnReduceTensor knows no bfloat16, and the engines that reduce know no float64
        if packed and not self._is_copy and dy.dtype != "float64" and (large or dy.dtype == "bfloat16"):
            with suppress(StatusError):
                self._plan(engines.Target(Handle.default(device)))
                return
        if self._is_copy:
            return
        handle, size = Handle.default(device), c_size_t()
        if dy.dtype == "bfloat16":  # with gaps: the engines take none, and cudnnReduceTensor no bfloat16
            floats = dy._replace(dtype="float32", strides=packed_strides(dy.shape))
            self._wide = described(floats), row_descriptor(dy, "float32"), rounded(4 * math.prod(dy.shape))
        whole, result = (self._whole, self._result) if self._wide is None else self._wide[:2]
        raw.call("cudnnGetReductionWorkspaceSize", handle, self._how, whole, result, byref(size))
        self._reduction_size = size.value
        self.workspace_size = size.value
        if self._wide is not None:
            self.workspace_size = self._wide[2] + rounded(4 * dy.shape[1]) + size.value

    def _plan(self, target: engines.Target) -> None:
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
        self.workspace_size = sum(rounded(size) for size in (*self._sizes, *self._scratch))

    def bind(self, handle: Handle, pointers: Pointers) -> Launch:
        """The launch for dy, db and the workspace."""
        dy, db, space = pointers
        if db < dy + extent(self.dy) and dy < db + self.dy.shape[1] * dtype_of(self.dy.dtype).itemsize:
            raise ValueError("db overlaps dy in memory; give a result of its own")
        number = c_double if self.dy.dtype == "float64" else c_float
        alpha, beta = number(self.alpha), number(self.beta)
        if self._is_copy:
            launch = partial(
                raw.bound("cudnnTransformTensor"), handle.pointer, byref(alpha), self._whole.pointer, dy, byref(beta),
                self._result.pointer, db,
            )  # fmt: skip
            launch.owners = (self, handle, alpha, beta)  # type: ignore[attr-defined]  # alive as long as the call
            return launch
        if not self._steps and self._wide is not None:
            return self._by_floats(handle, (dy, db, space), alpha, beta)
        if not self._steps:
            launch = partial(
                raw.bound("cudnnReduceTensor"), handle.pointer, self._how.pointer, None, 0, space or None, self._reduction_size,
                byref(alpha), self._whole.pointer, dy, byref(beta), self._result.pointer, db,
            )  # fmt: skip
            launch.owners = (self, handle, alpha, beta)  # type: ignore[attr-defined]  # alive as long as the call
            return launch
        parts = []
        for size in (*self._sizes, *self._scratch):
            parts.append(space)
            space += rounded(size)
        count = len(self._steps)
        sources = [dy, *parts[: count - 1]]
        launches: list[Launch] = [
            step.bind(handle, (sources[i], parts[i]), parts[count + i] if self._scratch[i] else 0)
            for i, step in enumerate(self._steps)
        ]
        sums = row_descriptor(self.dy, "float32")
        change = raw.bound("cudnnTransformTensor")
        launches.append(
            partial(
                change,
                handle.pointer,
                byref(alpha),
                sums.pointer,
                parts[count - 1],
                byref(beta),
                self._result.pointer,
                db,
            )
        )
        return in_turn(launches, (self, handle, alpha, beta, sums))

    def _by_floats(self, handle: Handle, pointers: Pointers, alpha: Any, beta: Any) -> Launch:
        """A float32 copy, its sum, and the sum in dy's type."""
        dy, db, space = pointers
        assert self._wide is not None
        floats, sums, size = self._wide
        row = space + size
        rest = row + rounded(4 * self.dy.shape[1])
        one, zero = c_float(1.0), c_float(0.0)
        change, add = raw.bound("cudnnTransformTensor"), raw.bound("cudnnReduceTensor")
        h = handle.pointer
        steps = [
            partial(change, h, byref(one), self._whole.pointer, dy, byref(zero), floats.pointer, space),
            partial(
                add, h, self._how.pointer, None, 0, rest, self._reduction_size, byref(one), floats.pointer, space,
                byref(zero), sums.pointer, row,
            ),
            partial(change, h, byref(alpha), sums.pointer, row, byref(beta), self._result.pointer, db),
        ]  # fmt: skip
        return in_turn(steps, (self, handle, alpha, beta, one, zero))


def _reduction(x: TensorSpec, y: TensorSpec, target: engines.Target) -> engines.GraphExecutable:
    """A sum by the first engine that can do it, with its own knobs: the heuristics' first is up to 4 times slower."""
    how: dict[int, Any] = {
        raw.CUDNN_ATTR_REDUCTION_OPERATOR: raw.CUDNN_REDUCE_TENSOR_ADD,
        raw.CUDNN_ATTR_REDUCTION_COMP_TYPE: raw.CUDNN_DATA_FLOAT,
    }
    operation = Descriptor(
        raw.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_OPERATION_REDUCTION_XDESC: engines.tensor(1, x),
            raw.CUDNN_ATTR_OPERATION_REDUCTION_YDESC: engines.tensor(2, y),
            raw.CUDNN_ATTR_OPERATION_REDUCTION_DESC: Descriptor(raw.CUDNN_BACKEND_REDUCTION_DESCRIPTOR, how),
        },
    )
    built = engines.graph_of([operation], target)
    reason: Exception | None = None
    for found in chain(engines.engines(built, target), engines.heuristics(built, target)):
        try:
            return engines.GraphExecutable(found.finalize(), (1, 2))
        except StatusError as error:
            reason = error
    raise reason or raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "reduction")
