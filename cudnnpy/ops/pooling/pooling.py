"""Pooling and its gradient: cudnnPoolingForward and cudnnPoolingBackward, and graphs for averages channels last.

On an H200 the functions take 0.2 to 1.05 of PyTorch's time, except for averages channels last (1.0 to 1.1; the resample
node of graphs takes 0.2 to 0.7) and gradients of 2x2 maxima channels last (2.0 to 2.8; docs/benchmarks).

An average over whole images is a reduction (1.0 to 1.4 channels last, where the functions take up to 7 times as long and the
resample node 16). Its gradient is the same for all elements of an image: a broadcast by cudnnAddTensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudnnpy import raw
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    channels_last_strides,
    from_logical,
    in_layout,
    is_dense,
    is_packed,
    normalize_unit_strides,
    packed_strides,
    to_logical,
    to_packed,
    with_strides_of,
)
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_no_overlaps, is_large, logical, logical_like, logical_result
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, scaling_arguments, tensor_descriptor
from cudnnpy._options.pooling import PoolingBase
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.reductions import average
from cudnnpy.names import enumerator
from cudnnpy.ops.pooling.ceil_mode import Axis, descriptor, forward_steps, gradient, output_size

_MIN_REDUCED_BYTES = 1 << 16  # bytes of images, channels last, from which on a reduction is worth its plan
_MAX_CHANNELS = (1 << 16) - 1  # of one image: the blocks of a CUDA grid along its second axis
_MAX_SMALL_IMAGE = 256  # elements of an image, channels first, which the function averages faster than a reduction
_SECOND_PROPOSAL = 1  # for averages, the heuristics' second proposal takes 0.4 to 1.0 of the time of the first


class Pooling(PoolingBase, DeviceOperation):
    def _output_shape(self, x_shape: tuple[int, ...]) -> tuple[int, ...]:
        shape = to_logical(x_shape, self._channels_last)
        return from_logical(_pooled(shape, self._axes(shape)), self._channels_last)

    @property
    def _channels_last(self) -> bool:
        return self.layout.endswith("C")

    def _logical(self, call: Call, name: str) -> TensorSpec:
        return logical(call, name, self.layout, empty=True)

    def _axes(self, shape: tuple[int, ...]) -> list[Axis]:
        """The spatial axes of a logical shape. Raises ValueError for a shape that does not fit the options."""
        rank = len(shape)
        if rank not in (3, 4, 5):
            raise ValueError(f"x must have 3, 4 or 5 axes; got shape {shape}")
        if 0 in shape[1:]:
            raise ValueError(
                f"x must have sizes of 1 or more, except for a batch of 0; got shape {shape} (logical order)"
            )
        found = []
        for size, window, pad, step in zip(shape[2:], *self._each(rank - 2), strict=True):
            output = output_size(size, window, pad, step, self.ceil_mode)
            if output < 1:
                raise ValueError(f"window must be at most {size + 2 * pad}, the padded size of x; got {window}")
            found.append(Axis(size, output, window, pad, step))
        return found

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = self._logical(call, "x")
        axes = self._axes(x.shape)
        y = logical_result(call, "out", _pooled(x.shape, axes), x, self.layout, beta)
        operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
        results = [in_layout(y, self._channels_last)]
        a, b = scaling_arguments(alpha, beta, x.dtype)
        if not byte_extent(y):
            return Program("pooling", call.device, operands, []), results
        if any(axis.overhang for axis in axes):
            steps = forward_steps(self.mode, axes, x, y, alpha, beta)
            return Program("pooling", call.device, operands, steps), results
        if self._averages_whole_images(axes) and _is_reduction(x):
            program = average(call, operands, alpha, beta)
            if program is not None:
                return program, results
        step = None
        last = x.strides == channels_last_strides(x.shape) and y.strides == channels_last_strides(y.shape)
        if self.mode.startswith("average") and last and is_large(x) and (alpha, beta) == (1.0, 0.0):
            step = self._resample(call, x, y)
        if step is None:
            how = descriptor(self.mode, axes)
            # described as channels last, the maxima of one channel take half the time (an H200)
            one, two = map(tensor_descriptor, normalize_unit_strides(x, y, last=True))
            step = Step(
                FunctionCall("cudnnPoolingForward", how, a, one, OperandAddress(0), b, two, OperandAddress(1)), (0, 1)
            )
        return Program("pooling", call.device, operands, [step]), results

    def _resample(self, call: Call, x: TensorSpec, y: TensorSpec) -> Step | None:
        # Not for bfloat16: resample-bfloat16 in docs/known-issues.md.
        if x.dtype not in ("float16", "float32") or len(x.shape) != 4 or min(x.alignment, y.alignment) < 16:
            return None
        window, padding, stride = self._each(2)
        graph = Graph()
        mode = enumerator(raw.cudnnResampleMode_t, "avgpool_" + self.mode.removeprefix("average_"), "mode")
        node = graph.resample(mode, graph.tensor("x", x), window, padding=padding, stride=stride)
        graph.output("y", node, strides=y.strides)
        planned = graph.executable(call.device, _SECOND_PROPOSAL)
        return Step(planned, (0, 1)) if planned else None

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = self._logical(call, "x")
        axes = self._axes(x.shape)
        shape = _pooled(x.shape, axes)
        dy, y = (logical_like(call, name, self.layout, shape, x.dtype) for name in ("dy", "y"))
        dx = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = check_no_overlaps(
            call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True))
        )
        results = [in_layout(dx, self._channels_last)]
        a, b = scaling_arguments(alpha, beta, x.dtype)
        if not byte_extent(dx):
            return Program("pooling gradient", call.device, operands, []), results
        if any(axis.overhang for axis in axes):
            return gradient(self.mode, axes, call.device, operands, alpha, beta), results
        if self._averages_whole_images(axes) and len(x.shape) == 4 and is_packed(dx) and is_packed(dy):
            each = scaling_arguments(alpha / math.prod(axis.size for axis in axes), beta, x.dtype)[0]
            one, two = tensor_descriptor(dy), tensor_descriptor(dx)
            function = FunctionCall("cudnnAddTensor", each, one, OperandAddress(0), b, two, OperandAddress(1))
            return Program("pooling gradient", call.device, operands, [Step(function, (0, 3))]), results
        required_specs = [dy, with_strides_of(x, dx), with_strides_of(y, dy), dx]
        can_copy = call.memory_limit is None  # otherwise memory does not suffice for the copies
        if (can_copy and self._is_faster_packed(x)) or not (is_dense(dx) and is_dense(dy)):
            required_specs = [to_packed(spec) for spec in required_specs]
        how = descriptor(self.mode, axes)
        one, two, three, four = map(tensor_descriptor, map(_in_one_batch, required_specs))
        # A graph is not used: resample-gradient in docs/known-issues.md.
        tensors = three, OperandAddress(2), one, OperandAddress(0), two, OperandAddress(1)
        function = FunctionCall("cudnnPoolingBackward", how, a, *tensors, b, four, OperandAddress(3))
        program = with_conversion_copies("pooling gradient", call.device, operands, function, required_specs, beta)
        return program, results

    def _averages_whole_images(self, axes: Sequence[Axis]) -> bool:
        """Whether the only window is the whole image, and its elements are averaged."""
        whole = all((axis.output, axis.window, axis.padding) == (1, axis.size, 0) for axis in axes)
        return whole and self.mode.startswith("average")

    def _is_faster_packed(self, x: TensorSpec) -> bool:
        """Whether the gradient of a maximum channels last is faster on copies that are channels first.

        This is so if windows do not overlap, where cudnnPoolingBackward takes 2.0 to 2.8 of PyTorch's time channels
        last (docs/benchmarks).
        """
        if len(x.shape) == 3 or x.strides == packed_strides(x.shape) or not is_large(x):
            return False
        if not self.mode.startswith("max"):
            return False
        window, _, stride = self._each(len(x.shape) - 2)
        return all(size <= step for size, step in zip(window, stride, strict=True))


def _in_one_batch(spec: TensorSpec) -> TensorSpec:
    """Images of one channel as the channels of one image, which is the same memory.

    On an H200, cudnnPoolingBackward takes 4 to 19 times as long for a batch of images of one channel.
    """
    count, channels, *sizes = spec.shape
    if channels > 1 or count > _MAX_CHANNELS or spec.strides is None:
        return spec
    step, _, *steps = spec.strides
    return spec._replace(shape=(1, count, *sizes), strides=(count * step, step, *steps))


def _is_reduction(x: TensorSpec) -> bool:
    """Whether the average of each image is faster as a reduction: channels last, and for large images."""
    size = math.prod(x.shape[2:])
    if size == 1 or not is_dense(x) or x.alignment < 16 or x.dtype == "float64":
        return False
    if x.strides != packed_strides(x.shape):
        return byte_extent(x) >= _MIN_REDUCED_BYTES
    return is_large(x) and size > _MAX_SMALL_IMAGE


def _pooled(shape: tuple[int, ...], axes: Sequence[Axis]) -> tuple[int, ...]:
    """The logical shape of forward's result."""
    return (*shape[:2], *(axis.output for axis in axes))
