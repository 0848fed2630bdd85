"""Softmax and its gradient: cudnnSoftmaxForward and cudnnSoftmaxBackward.

On an H200 they take 0.1 to 1.0 of PyTorch's time over the channels, and 3 to 7 times its time over long instances, for
which cuDNN has no faster alternative (docs/benchmarks). A packed instance is passed to them as one row; as a channels-last
tensor it takes 13 to 21 times PyTorch's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import TensorSpec, as_lies, channels_last_strides, extent, in_layout, is_packed, packed
from cudnnpy._options.operations import SoftmaxOptions
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, Step, arranged, copy, elsewhere, scales
from cudnnpy._runtime.operands import logical, logical_like, logical_result, no_overlaps
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.names import short_names
from cudnnpy.raw import cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t
from cudnnpy.typing import Array, ArrayT, Stream, TensorFormat

_RANKS = range(2, 6)


@dataclass(frozen=True)
class Softmax(SoftmaxOptions, Identified):
    """The softmax exp(x) / sum(exp(x)) or its logarithm, and its gradient, on device arrays of 2 to 5 axes.

    Parameters
    ----------
    algorithm : {"accurate", "fast", "log"}
        "accurate" subtracts the maximum first, so that exp does not overflow; "fast" does not; "log" is the logarithm.
    mode : {"channel", "instance"}
        What is summed over: the channels, for each n and position; or channels and positions, for each n.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. The order in memory is free.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64; sizes may be 0. "fast" overflows for x above about 88 in float32.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.
    """

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * softmax(x) + beta * out (cudnnSoftmaxForward).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of x's shape and dtype; it may be x itself (in place).
        alpha, beta : float
            Factors of the softmax and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, shape, dtype and memory order.
        """
        return dispatch.run("Softmax.forward", self, Softmax._forward, ("x", "out"), (x,), (out,), stream, alpha, beta)

    def backward(
        self,
        dy: ArrayT,
        y: Array,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnSoftmaxBackward).

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        y : array
            forward's result, of dy's shape and dtype.
        out : array, optional
            The result, of dy's shape and dtype; it may be dy itself (in place).
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, shape, dtype and memory order.
        """
        name, names = "Softmax.backward", ("dy", "y", "out")
        return dispatch.run(name, self, Softmax._backward, names, (dy, y), (out,), stream, alpha, beta)

    def _kind(self) -> tuple[int, int]:
        algorithm = short_names(cudnnSoftmaxAlgorithm_t)[self.algorithm]
        return algorithm, short_names(cudnnSoftmaxMode_t)[self.mode]

    def _descriptors(self, *specs: TensorSpec) -> list[TensorDescriptor]:
        """The descriptors of tensors in one packed memory order: with positions as one axis, or an instance as one row.

        For five axes channels last, the functions do not write most of the result (softmax-five-axes in
        docs/known-issues.md).
        """
        first = specs[0]
        n, c, *spatial = first.shape
        size = math.prod(spatial)
        if self.mode == "instance":
            return [TensorDescriptor((n, c * size, 1, 1), spec.dtype) for spec in specs]
        order: TensorFormat = "nhwc" if first.strides == channels_last_strides(first.shape) else "nchw"
        return [TensorDescriptor((n, c, size, 1), spec.dtype, format=order) for spec in specs]

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = logical(call, "x", self.layout, _RANKS, empty=True)
        y = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))
        scales(alpha, beta, x.dtype)
        if not extent(y):
            return Program("softmax", call.device, operands, []), [in_layout(y, self._channels_last(x))]
        a, b = scales(*((1.0, 0.0) if beta else (alpha, 0.0)), x.dtype)
        wanted = [x, as_lies(y, x)]  # in one memory order: softmax-orders in docs/known-issues.md
        if not is_packed(x):
            wanted = [packed(spec) for spec in wanted]
        one, two = self._descriptors(*wanted)
        function = Function("cudnnSoftmaxForward", *self._kind(), a, one, At(0), b, two, At(1))
        program = _blended("softmax", call, operands, function, wanted, alpha, beta)
        return program, [in_layout(y, self._channels_last(x))]

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = logical(call, "dy", self.layout, _RANKS, empty=True)
        y = logical_like(call, "y", self.layout, dy.shape, dy.dtype)
        dx = logical_result(call, "out", dy.shape, dy, self.layout, beta)
        operands = no_overlaps(call, (Operand("dy", dy), Operand("y", y), Operand("out", dx, True, ("dy",))))
        scales(alpha, beta, dy.dtype)
        if not extent(dx):
            return Program("softmax gradient", call.device, operands, []), [in_layout(dx, self._channels_last(dy))]
        a, b = scales(*((1.0, 0.0) if beta else (alpha, 0.0)), dy.dtype)
        wanted = [dy, as_lies(y, dy), as_lies(dx, dy)]
        if not is_packed(dy):
            wanted = [packed(spec) for spec in wanted]
        one, two, three = self._descriptors(*wanted)
        function = Function("cudnnSoftmaxBackward", *self._kind(), a, two, At(1), one, At(0), b, three, At(2))
        program = _blended("softmax gradient", call, operands, function, wanted, alpha, beta)
        return program, [in_layout(dx, self._channels_last(dy))]

    def _channels_last(self, spec: TensorSpec) -> bool:
        return self.layout.endswith("C") and len(spec.shape) > 2


def _blended(
    name: str,
    call: Call,
    operands: Sequence[Operand],
    function: Function,
    wanted: list[TensorSpec],
    alpha: float,
    beta: float,
) -> Program:
    """The function on its operands; with a beta, its result goes to scratch memory first.

    In place, it would read what it has written: softmax-in-place-beta in docs/known-issues.md.
    """
    if not beta:
        return arranged(name, call.device, operands, function, wanted)
    *inputs, out = operands
    apart = wanted[-1]
    count, last = len(operands), len(inputs)
    program = arranged(name, call.device, [*inputs, out._replace(spec=apart)], function, wanted)
    steps, scratch, places = elsewhere(program.steps, count, program.scratch, {last: extent(apart)})
    steps.append(Step(copy(apart, out.spec, alpha, beta), (places[last], last)))
    return Program(name, call.device, operands, steps, scratch)
