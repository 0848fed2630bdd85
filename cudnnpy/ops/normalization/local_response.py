"""Local response normalization across channels and its gradient: cudnnLRNCrossChannelForward and -Backward.

On an H200 the forward function takes 0.1 of PyTorch's time channels first, and 0.6 channels last (docs/benchmarks).
"""

from __future__ import annotations

from dataclasses import dataclass

from cudnnpy import raw
from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import TensorSpec, as_lies, in_layout, is_dense, packed
from cudnnpy._options.operations import LocalResponseOptions
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, arranged, described, scales
from cudnnpy._runtime.operands import logical, logical_like, logical_result, no_overlaps
from cudnnpy.descriptors import LRNDescriptor
from cudnnpy.typing import Array, ArrayT, Stream

_MODE = raw.CUDNN_LRN_CROSS_CHANNEL_DIM1
_RANKS = range(3, 6)


@dataclass(frozen=True)
class LocalResponseNormalization(LocalResponseOptions, Identified):
    """y = x / (k + alpha / size * s) ** beta and its gradient, where s is the sum of x * x over nearby channels.

    Parameters
    ----------
    size : int
        The number of channels that s sums over, 1 to 16: from c - (size - 1) // 2 to c + size // 2 for channel c.
    alpha, beta, k : float
        Finite numbers; beta is 0.01 or more, k is 1e-5 or more.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. The order in memory is free.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Device arrays are float16, bfloat16, float32 or float64 and have 3 to 5 axes; sizes may be 0.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.

    References
    ----------
    Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks, 2012, section 3.3.
    """

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * y + beta * out (cudnnLRNCrossChannelForward).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of x's shape and dtype.
        alpha, beta : float
            Factors of y and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        name, prepare = "LocalResponseNormalization.forward", LocalResponseNormalization._forward
        return dispatch.run(name, self, prepare, ("x", "out"), (x,), (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        x: Array,
        y: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnLRNCrossChannelBackward).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, y : array
            forward's input and result, of dy's shape and dtype.
        out : array, optional
            The result, of dy's shape and dtype.
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory order.
        """
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
