"""Softmax and its gradient: cudnnSoftmaxForward and cudnnSoftmaxBackward, and graphs for long rows (row_graphs.py).

Instances, and channels that are the fastest axis, are rows. The functions take rows as channels or as instances, with the
same result. On an H200 instances are faster: up to 2,048 elements of a forward pass the two are equal or channels take 0.8 of
the time, beyond that channels take up to 3 times and in the gradient 40 to 1,100 times as long (docs/benchmarks).

Channels first, 512 channels take up to 3 times and more than 1,000 up to 6 times PyTorch's time, and 0.05 to 0.5 times as rows,
with copies to channels last and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    channels_last_strides,
    in_layout,
    is_packed,
    to_packed,
    with_strides_of,
)
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_no_overlaps, logical, logical_like, logical_result
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._launch.steps import Executable, FunctionCall, OperandAddress, scaling_arguments
from cudnnpy._options.softmax import SoftmaxBase
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.names import short_names
from cudnnpy.ops.softmax.row_graphs import backward, backward_is_faster, forward, forward_is_faster
from cudnnpy.raw import cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t

_RANKS = range(2, 6)
_MAX_SHORT_ROW = 2048  # elements of a row up to which the forward function is as fast for channels as for instances
_MIN_MANY_CHANNELS = 512  # channels, channels first, from which on the functions are slow


class Softmax(SoftmaxBase, DeviceOperation):
    def _program(self, name: str, call: Call, operands: Sequence[Operand], alpha: float, beta: float) -> Program:
        """The fastest program, or the one that needs the least workspace if the fastest exceeds `call.memory_limit`."""
        factor, gradient = 1.0 if beta else alpha, len(operands) == 3
        specs = [operand.spec for operand in operands]
        required_specs = self._fast_specs(*specs)
        executable = self._executable(call, required_specs, factor, gradient)
        program = _with_beta(name, call, operands, executable, required_specs, alpha, beta)
        if call.allows(program.workspace_size):
            return program
        required_specs = self._in_one_order(*specs)
        executable = self._function(required_specs[0], self._rows(required_specs[0]), factor, gradient)
        return _with_beta(name, call, operands, executable, required_specs, alpha, beta)

    def _in_one_order(self, first: TensorSpec, *others: TensorSpec) -> list[TensorSpec]:
        """The tensors in one memory format: softmax-orders in docs/known-issues.md."""
        specs = [first, *(with_strides_of(other, first) for other in others)]
        return specs if is_packed(first) else [to_packed(spec) for spec in specs]

    def _fast_specs(self, *given: TensorSpec) -> list[TensorSpec]:
        """The tensors in one memory format, in which the functions are fast."""
        specs = self._in_one_order(*given)
        if self._rows(specs[0]) is None and specs[0].shape[1] >= _MIN_MANY_CHANNELS:
            return [to_packed(spec)._replace(strides=channels_last_strides(spec.shape)) for spec in specs]
        return specs

    def _rows(self, spec: TensorSpec) -> tuple[int, int] | None:
        """The number and the length of the rows that a packed tensor consists of; None if its channels are apart."""
        n, c, *spatial = spec.shape
        size = math.prod(spatial)
        if self.mode == "instance":
            return n, c * size
        return (n * size, c) if size == 1 or spec.strides == channels_last_strides(spec.shape) else None

    def _executable(self, call: Call, required_specs: Sequence[TensorSpec], alpha: float, gradient: bool) -> Executable:
        """The fastest executable on packed tensors of one memory format: x and y, or dy, y and dx."""
        spec, rows, log = required_specs[0], self._rows(required_specs[0]), self.algorithm == "log"
        plain = alpha == 1.0 and self.algorithm != "fast" and min(tensor.alignment for tensor in required_specs) >= 16
        planned: Executable | None = None
        if rows is not None and plain and gradient and backward_is_faster(*rows, spec.dtype, log):
            planned = backward(call.device, *rows, spec.dtype, log)
        elif rows is not None and plain and not gradient and forward_is_faster(rows[1], spec.dtype):
            planned = forward(call.device, *rows, spec.dtype, log)
        return planned or self._function(spec, rows, alpha, gradient)

    def _function(self, spec: TensorSpec, rows: tuple[int, int] | None, alpha: float, gradient: bool) -> FunctionCall:
        """The function, which takes the positions as one axis, or rows.

        For five axes channels last, the functions do not write most of the result (softmax-five-axes in
        docs/known-issues.md).
        """
        n, c, *spatial = spec.shape
        tensor = TensorDescriptor((*rows, 1, 1) if rows else (n, c, math.prod(spatial), 1), spec.dtype)
        as_instance = rows is not None and (gradient or rows[1] > _MAX_SHORT_ROW)
        mode = short_names(cudnnSoftmaxMode_t)["instance" if as_instance else "channel"]
        kind = short_names(cudnnSoftmaxAlgorithm_t)[self.algorithm], mode
        a, b = scaling_arguments(alpha, 0.0, spec.dtype)
        if gradient:
            tensors = tensor, OperandAddress(1), tensor, OperandAddress(0), b, tensor, OperandAddress(2)
            return FunctionCall("cudnnSoftmaxBackward", *kind, a, *tensors)
        return FunctionCall("cudnnSoftmaxForward", *kind, a, tensor, OperandAddress(0), b, tensor, OperandAddress(1))

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))
        scaling_arguments(alpha, beta, x.dtype)
        if not byte_extent(y):
            return Program("softmax", call.device, operands, []), [in_layout(y, self._channels_last(x))]
        return self._program("softmax", call, operands, alpha, beta), [in_layout(y, self._channels_last(x))]

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, empty=True)
        y = logical_like(call, "y", self.layout, dy.shape, dy.dtype)
        dx = logical_result(call, "out", dy.shape, dy, self.layout, beta)
        operands = check_no_overlaps(call, (Operand("dy", dy), Operand("y", y), Operand("out", dx, True, ("dy",))))
        scaling_arguments(alpha, beta, dy.dtype)
        if not byte_extent(dx):
            return Program("softmax gradient", call.device, operands, []), [in_layout(dx, self._channels_last(dy))]
        return self._program("softmax gradient", call, operands, alpha, beta), [in_layout(dx, self._channels_last(dy))]

    def _channels_last(self, spec: TensorSpec) -> bool:
        return self.layout.endswith("C") and len(spec.shape) > 2


def _with_beta(
    name: str,
    call: Call,
    operands: Sequence[Operand],
    executable: Executable,
    required_specs: list[TensorSpec],
    alpha: float,
    beta: float,
) -> Program:
    """The executable on its operands; with a beta, its result goes to scratch memory first.

    In place, the function would read its own results: softmax-in-place-beta in docs/known-issues.md.
    """
    if not beta:
        return with_conversion_copies(name, call.device, operands, executable, required_specs)
    *inputs, out = operands
    program = with_conversion_copies(
        name, call.device, [*inputs, out._replace(spec=required_specs[-1])], executable, required_specs
    )
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    *sources, target = builder.operands.values()
    result = builder.scratch(required_specs[-1])
    builder.add(program.executable, *sources, result)
    builder.copy(result, target, alpha, beta)
    return builder.program(name, call.device, operands)
