"""Local response normalization across channels and its gradient: cudnnLRNCrossChannelForward and -Backward.

On an H200 the forward function takes 0.1 of PyTorch's time channels first, and 0.6 channels last (docs/benchmarks).
"""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, in_layout, is_dense, to_packed, with_strides_of
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_no_overlaps, logical, logical_like, logical_result
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress, scaling_arguments, tensor_descriptor
from cudnnpy._options.local_response import LocalResponseNormalizationBase
from cudnnpy.descriptors import LRNDescriptor

_MODE = raw.CUDNN_LRN_CROSS_CHANNEL_DIM1
_RANKS = range(3, 6)


class LocalResponseNormalization(LocalResponseNormalizationBase, DeviceOperation):
    def _descriptor(self) -> LRNDescriptor:
        return LRNDescriptor(self.size, self.alpha, self.beta, self.k)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
        a, b = scaling_arguments(alpha, beta, x.dtype)
        results = [in_layout(y, self.layout.endswith("C"))]
        if 0 in x.shape:
            return Program("local response", call.device, operands, []), results
        required_specs = _for_functions(x), _for_functions(y)
        how, one, two = self._descriptor(), *map(tensor_descriptor, required_specs)
        function = FunctionCall(
            "cudnnLRNCrossChannelForward", how, _MODE, a, one, OperandAddress(0), b, two, OperandAddress(1)
        )
        program = with_conversion_copies("local response", call.device, operands, function, required_specs, beta)
        return program, results

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, empty=True)
        x, y = (logical_like(call, name, self.layout, dy.shape, dy.dtype) for name in ("x", "y"))
        dx = logical_result(call, "out", dy.shape, dy, self.layout, beta)
        operands = check_no_overlaps(
            call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True))
        )
        a, b = scaling_arguments(alpha, beta, dy.dtype)
        results = [in_layout(dx, self.layout.endswith("C"))]
        if 0 in dy.shape:
            return Program("local response gradient", call.device, operands, []), results
        required_specs = (
            _for_functions(dy),
            with_strides_of(_for_functions(x), _for_functions(dy)),
            with_strides_of(_for_functions(y), _for_functions(dy)),
            with_strides_of(_for_functions(dx), _for_functions(dy)),
        )
        one, two, three, four = map(tensor_descriptor, required_specs)
        tensors = three, OperandAddress(2), one, OperandAddress(0), two, OperandAddress(1)
        function = FunctionCall(
            "cudnnLRNCrossChannelBackward", self._descriptor(), _MODE, a, *tensors, b, four, OperandAddress(3)
        )
        program = with_conversion_copies(
            "local response gradient", call.device, operands, function, required_specs, beta
        )
        return program, results


def _for_functions(spec: TensorSpec) -> TensorSpec:
    """A tensor as the functions take it: dense, not bfloat16, and packed if it has five axes."""
    if spec.dtype == "bfloat16" or len(spec.shape) == 5 or not is_dense(spec):
        return to_packed(spec, "float32" if spec.dtype == "bfloat16" else None)
    return spec
