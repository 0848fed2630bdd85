"""Local response normalization across channels and its gradient: cudnnLRNCrossChannelForward and -Backward.

On an H200 the forward function takes 0.1 of PyTorch's time channels first, and 0.6 channels last (docs/benchmarks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudnnpy import raw
from cudnnpy._core.frozen import Frozen
from cudnnpy._core.layouts import TensorSpec, as_lies, in_layout, is_dense, packed
from cudnnpy._core.validation import check_integer, check_layout, check_number
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, arranged, described, scales
from cudnnpy._runtime.operands import logical, logical_like, logical_result, no_overlaps
from cudnnpy.descriptors import LRNDescriptor

_MODE = raw.CUDNN_LRN_CROSS_CHANNEL_DIM1
_RANKS = range(3, 6)


@dataclass(frozen=True)
class LocalResponseNormalization(Frozen):
    """y = x / (k + alpha / size * s) ** beta and its gradient, on device arrays; s sums x * x over nearby channels.

    size: how many channels s sums over, from c - (size - 1) // 2 to c + size // 2; 1 to 16. beta: at least 0.01. k: at
    least 1e-5. layout: "NCHW", or "NHWC" for arrays whose axis order is (N, spatial..., C); 3 to 5 axes.
    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.3.

    Arrays are float16, bfloat16, float32 or float64; sizes may be 0. Raises TypeError and ValueError for options and
    arrays that do not fit, NotSupportedError for what cuDNN lacks.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: str = "NCHW"

    def _checked(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {
            "size": check_integer("size", self.size, raw.CUDNN_LRN_MIN_N, raw.CUDNN_LRN_MAX_N),
            "alpha": check_number("alpha", self.alpha, finite=True),
            "beta": check_number("beta", self.beta, raw.CUDNN_LRN_MIN_BETA, finite=True),
            "k": check_number("k", self.k, raw.CUDNN_LRN_MIN_K, finite=True),
        }

    def forward(self, x: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0, stream: Any = None) -> Any:
        """alpha * (x normalized) + beta * out, in `out` or a new array like x."""
        name, prepare = "LocalResponseNormalization.forward", LocalResponseNormalization._forward
        return dispatch.run(name, self, prepare, ("x", "out"), (x,), (out,), stream, alpha, beta)

    def backward(
        self, dy: Any, x: Any, y: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0, stream: Any = None
    ) -> Any:
        """alpha * (gradient in x) + beta * out, for forward's x, its result y and the gradient dy in y."""
        name, prepare = "LocalResponseNormalization.backward", LocalResponseNormalization._backward
        return dispatch.run(name, self, prepare, ("dy", "x", "y", "out"), (dy, x, y), (out,), stream, alpha, beta)

    def _descriptor(self) -> LRNDescriptor:
        return LRNDescriptor(self.size, self.alpha, self.beta, self.k)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
        a, b = scales(alpha, beta, x.dtype)
        results = [in_layout(y, self.layout.endswith("C"))]
        if 0 in x.shape:
            return Program("local response", call.device, operands, []), results
        wanted = _for_functions(x), _for_functions(y)
        one, two = map(described, wanted)
        function = Function("cudnnLRNCrossChannelForward", self._descriptor(), _MODE, a, one, At(0), b, two, At(1))
        program = arranged("local response", call.device, operands, function, wanted, beta)
        return program, results

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, empty=True)
        x, y = (logical_like(call, name, self.layout, dy.shape, dy.dtype) for name in ("x", "y"))
        dx = logical_result(call, "out", dy.shape, dy, self.layout, beta)
        operands = no_overlaps(call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True)))
        a, b = scales(alpha, beta, dy.dtype)
        results = [in_layout(dx, self.layout.endswith("C"))]
        if 0 in dy.shape:
            return Program("local response gradient", call.device, operands, []), results
        wanted = (
            _for_functions(dy),
            as_lies(_for_functions(x), _for_functions(dy)),
            as_lies(_for_functions(y), _for_functions(dy)),
            as_lies(_for_functions(dx), _for_functions(dy)),
        )
        one, two, three, four = map(described, wanted)
        tensors = three, At(2), one, At(0), two, At(1)
        function = Function("cudnnLRNCrossChannelBackward", self._descriptor(), _MODE, a, *tensors, b, four, At(3))
        program = arranged("local response gradient", call.device, operands, function, wanted, beta)
        return program, results


def _for_functions(spec: TensorSpec) -> TensorSpec:
    """A tensor as the functions take it: dense, not bfloat16, and packed if it has five axes."""
    if spec.dtype == "bfloat16" or len(spec.shape) == 5 or not is_dense(spec):
        return packed(spec, "float32" if spec.dtype == "bfloat16" else None)
    return spec
