"""Activations and their gradients: cudnnActivationForward and cudnnActivationBackward."""

from __future__ import annotations

import math

from cudnnpy._core.layouts import TensorSpec, byte_extent, has_same_layout, is_dense, is_too_large, with_strides_of
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_input, check_like, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import (
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    in_parts,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._options.activation import ActivationBase
from cudnnpy.descriptors import ActivationDescriptor


class Activation(ActivationBase, DeviceOperation):
    def _descriptor(self, coefficient: float) -> ActivationDescriptor:
        swish = coefficient if self.mode == "swish" else None
        return ActivationDescriptor(self.mode, coefficient=coefficient, propagate_nan=True, swish_beta=swish)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = check_input(call, "x", empty=True)
        y = resolve_output(call, "out", x.shape, x.dtype, x, beta)
        operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))
        a, b = scaling_arguments(alpha, beta, x.dtype)
        if not byte_extent(y):
            return Program("activation", call.device, operands, []), [y]
        if self.mode == "identity":  # cuDNN rejects IDENTITY
            return Program("activation", call.device, operands, [Step(copy(x, y, alpha, beta), (0, 1))]), [y]
        how = self._descriptor(self.coefficient)

        def function(x: TensorSpec, y: TensorSpec) -> FunctionCall:
            dx, dy = tensor_descriptor(x), tensor_descriptor(y)
            return FunctionCall("cudnnActivationForward", how, a, dx, OperandAddress(0), b, dy, OperandAddress(1))

        step = Step(in_parts(function, *_flattened(x, y)), (0, 1))
        return Program("activation", call.device, operands, [step]), [y]

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = check_input(call, "dy", empty=True)
        x, y = (check_like(call, name, dy.shape, dy.dtype) for name in ("x", "y"))
        dx = resolve_output(call, "out", dy.shape, dy.dtype, dy, beta)
        operands = check_no_overlaps(
            call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True, ("dy",)))
        )
        a, b = scaling_arguments(alpha, beta, dy.dtype)
        name = "activation gradient"
        if not byte_extent(dx):
            return Program(name, call.device, operands, []), [dx]
        if self.mode == "identity":
            return Program(name, call.device, operands, [Step(copy(dy, dx, alpha, beta), (0, 3))]), [dx]
        clipped = self.mode == "clipped_relu"
        how = self._descriptor(_below(self.coefficient, dy.dtype) if clipped else self.coefficient)

        def function(*specs: TensorSpec) -> FunctionCall:
            one, two, three, four = map(tensor_descriptor, specs)
            tensors = three, OperandAddress(2), one, OperandAddress(0), two, OperandAddress(1)
            return FunctionCall("cudnnActivationBackward", how, a, *tensors, b, four, OperandAddress(3))

        # For tanh, cuDNN compares the strides of axes of size 1, too.
        alike = with_strides_of(dx, dy) if has_same_layout(dx, dy) else dx
        required_specs = dy, with_strides_of(x, alike), with_strides_of(y, dy), alike
        executable = in_parts(function, *_flattened(*required_specs))
        return with_conversion_copies(name, call.device, operands, executable, required_specs, beta), [dx]


def _flattened(*specs: TensorSpec) -> tuple[TensorSpec, ...]:
    """The tensors; with one axis if they exceed a descriptor and are dense in one memory format, to be cut anywhere."""
    first = specs[0]
    if not is_too_large(first) or not is_dense(first) or not all(has_same_layout(first, spec) for spec in specs):
        return specs
    return tuple(spec._replace(shape=(math.prod(spec.shape),), strides=(1,)) for spec in specs)


def _below(ceiling: float, dtype: str) -> float:
    """The largest number of a dtype below a ceiling.

    The gradient of cudnnActivationBackward at the ceiling itself is dy: clipped-relu-ceiling in docs/known-issues.md.
    """
    import numpy as np

    if ceiling <= 0.0:  # the gradient is 0 everywhere
        return ceiling
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":  # the upper half of a float32
            bits = int(np.float32(ceiling).view(np.uint32)) >> 16
            near = np.array([bits, max(bits - 1, 0)], np.uint32) << 16
            lower, lowest = map(float, near.view(np.float32))
        else:
            nearest = np.dtype(dtype).type(ceiling)
            lower, lowest = float(nearest), float(np.nextafter(nearest, np.dtype(dtype).type(0.0)))
    return lower if lower < ceiling else lowest
