"""Softmax and its gradient: cudnnSoftmaxForward and cudnnSoftmaxBackward.

Instances, and channels that are the fastest axis, are rows, which the functions get as instances. On an H200 rows as channels
take up to 3 times as long from 2,048 elements on, and in the gradient 40 to 1,100 times. Channels first, more than 1,000
channels take up to 6 times PyTorch's time; they become rows by copies to channels last and back, with which they take 0.05
to 0.5 times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._checks.option_values import check_layout, check_option
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    channels_last_strides,
    in_layout,
    is_packed,
    packed_strides,
    to_packed,
    with_strides_of,
)
from cudnnpy._launch.dispatch import ArrayOperation, Call
from cudnnpy._launch.operands import check_input, check_like, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import (
    Executable,
    FunctionCall,
    OperandAddress,
    aligned_size,
    in_parts,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.names import short_names
from cudnnpy.raw import cudnnSoftmaxAlgorithm_t, cudnnSoftmaxMode_t
from cudnnpy.typing import Array, ArrayT, Layout, SoftmaxAlgorithm, SoftmaxMode, Stream

_RANKS = range(2, 6)
_MANY_CHANNELS = 1000

SOFTMAX_ALGORITHMS: tuple[SoftmaxAlgorithm, ...] = get_args(SoftmaxAlgorithm)
SOFTMAX_MODES: tuple[SoftmaxMode, ...] = get_args(SoftmaxMode)


@with_suggestions
@dataclass(frozen=True)
class Softmax(ArrayOperation):
    """The softmax exp(x) / sum(exp(x)) or its logarithm, and its gradient, on arrays of 2 to 5 axes.

    Parameters
    ----------
    algorithm : {"accurate", "fast", "log"}
        "accurate" subtracts the maximum first, so that exp does not overflow; "fast" does not; "log" is the logarithm.
    mode : {"channel", "instance"}
        The elements that are summed: the channels, for each n and position; or channels and positions, for each n.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64; sizes may be 0. "fast" overflows for x above about 88 in float32 (709 in
    float64), where the result is NaN. A NaN makes all results of its sum NaN, and so does infinity, except that in "fast" the
    other results of the sum are 0. The result for -infinity is 0, or -infinity in "log"; it is NaN if all x of a sum are
    -infinity.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.zeros((1, 4), np.float32)
    >>> reference.Softmax().forward(x).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    algorithm: SoftmaxAlgorithm = "accurate"
    mode: SoftmaxMode = "channel"
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_option("algorithm", self.algorithm, SOFTMAX_ALGORITHMS)
        check_option("mode", self.mode, SOFTMAX_MODES)
        check_layout(self.layout)
        return {}

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
            `out`, or a new array of x's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._forward, ("x", "out")
        return self._run("Softmax.forward", self, implementation, names, (x,), (out,), stream, alpha, beta)

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

        dx is y * (dy - sum(dy * y)), or dy - exp(y) * sum(dy) for "log", with the sums of forward.

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
            `out`, or a new array of dy's library, shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "y", "out")
        return self._run("Softmax.backward", self, implementation, names, (dy, y), (out,), stream, alpha, beta)

    # Set-up, once for each call signature

    def _program(
        self, name: str, call: Call, operands: Sequence[Operand], alpha: float, beta: float
    ) -> tuple[Program, list[TensorSpec]]:
        """The function on the operands; with a beta, its result goes to scratch memory first.

        In place, the function would read its own results: softmax-in-place-beta in docs/known-issues.md.
        """
        specs = [operand.spec for operand in operands]
        results = [in_layout(specs[-1], self.layout.endswith("C") and len(specs[-1].shape) > 2)]
        if not byte_extent(specs[-1]):
            return Program(name, call.device, operands, []), results
        required_specs = self._required_specs(call, *specs)
        executable = self._function(required_specs[0], 1.0 if beta else alpha, len(operands) == 3)
        scale = (alpha, beta) if beta else None
        return with_conversion_copies(name, call.device, operands, executable, required_specs, scale=scale), results

    def _required_specs(self, call: Call, first: TensorSpec, *others: TensorSpec) -> list[TensorSpec]:
        """The tensors in one memory format (softmax-orders in docs/known-issues.md): many channels become rows by copies.

        Without memory for copies, the channels stay apart.
        """
        specs = [first, *(with_strides_of(other, first) for other in others)]
        if not is_packed(first):
            specs = [to_packed(spec) for spec in specs]
        if self._rows(specs[0]) is None and first.shape[1] > _MANY_CHANNELS:
            copies = [to_packed(spec)._replace(strides=channels_last_strides(spec.shape)) for spec in specs]
            if call.allows(sum(aligned_size(byte_extent(spec)) for spec in copies)):
                return copies
        return specs

    def _rows(self, spec: TensorSpec) -> tuple[int, int] | None:
        """The number and the length of the rows that a packed tensor consists of; None if its channels are apart."""
        n, c, *spatial = spec.shape
        size = math.prod(spatial)
        if self.mode == "instance":
            return n, c * size
        return (n * size, c) if size == 1 or spec.strides == channels_last_strides(spec.shape) else None

    def _function(self, spec: TensorSpec, alpha: float, gradient: bool) -> Executable:
        """The function on packed tensors of one memory format: x and y, or dy, y and dx.

        It takes rows, or the positions as one axis: for five axes channels last, it does not write most of the result
        (softmax-five-axes in docs/known-issues.md).
        """
        n, c, *spatial = spec.shape
        rows = self._rows(spec)
        shape = (*rows, 1, 1) if rows else (n, c, math.prod(spatial), 1)
        mode = short_names(cudnnSoftmaxMode_t)["instance" if rows else "channel"]
        kind = short_names(cudnnSoftmaxAlgorithm_t)[self.algorithm], mode
        a, b = scaling_arguments(alpha, 0.0, spec.dtype)

        def function(part: TensorSpec, *_: TensorSpec) -> FunctionCall:
            tensor, (first, second, third) = tensor_descriptor(part), map(OperandAddress, range(3))
            if gradient:
                return FunctionCall("cudnnSoftmaxBackward", *kind, a, tensor, second, tensor, first, b, tensor, third)
            return FunctionCall("cudnnSoftmaxForward", *kind, a, tensor, first, b, tensor, second)

        whole = spec._replace(shape=shape, strides=packed_strides(shape))
        return in_parts(function, *[whole] * (3 if gradient else 2))

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        return self._program("softmax", call, self._forward_operands(call, alpha, beta), alpha, beta)

    def _forward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        x = check_input(call, "x", _RANKS, empty=True, layout=self.layout)
        check_scales(alpha, beta, out=call.specs.get("out"))
        y = resolve_output(call, "out", x.shape, x.dtype, x, self.layout)
        return check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        return self._program("softmax gradient", call, self._backward_operands(call, alpha, beta), alpha, beta)

    def _backward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        dy = check_input(call, "dy", _RANKS, empty=True, layout=self.layout)
        check_scales(alpha, beta, out=call.specs.get("out"))
        y = check_like(call, "y", dy.shape, dy.dtype, self.layout)
        dx = resolve_output(call, "out", dy.shape, dy.dtype, dy, self.layout)
        return check_no_overlaps(call, (Operand("dy", dy), Operand("y", y), Operand("out", dx, True, ("dy",))))
