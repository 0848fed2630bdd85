"""Pooling and its gradient: cudnnPoolingForward and cudnnPoolingBackward, and graphs for averages channels last.

On an H200 the functions take 0.2 to 1.05 of PyTorch's time, except for averages channels last (1.0 to 1.1; the resample
node of graphs takes 0.2 to 0.7) and gradients of 2x2 maxima channels last (2.0 to 2.8; docs/benchmarks).

An average over whole images is a reduction (1.0 to 1.4 channels last, where the functions take up to 7 times as long and the
resample node 16). Its gradient is the same for all elements of an image: a broadcast by cudnnAddTensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cudnnpy import raw
from cudnnpy._core.identity import Identified
from cudnnpy._core.layouts import (
    TensorSpec,
    as_lies,
    channels_last_strides,
    extent,
    from_logical,
    in_layout,
    in_one_order,
    is_dense,
    is_packed,
    packed,
    packed_strides,
    to_logical,
)
from cudnnpy._options.checks import check_shape
from cudnnpy._options.operations import PoolingOptions
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, Step, arranged, described, scales
from cudnnpy._runtime.operands import is_large, logical, logical_like, logical_result, no_overlaps
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.reductions import average
from cudnnpy.names import enumerator
from cudnnpy.ops.pooling.ceil_mode import Axis, descriptor, forward_steps, gradient, output_size
from cudnnpy.typing import Array, ArrayT, Shape, Stream

_REDUCED = 1 << 16  # bytes of images, channels last, from which on a reduction is worth its plan
_MOST_CHANNELS = (1 << 16) - 1  # of one image: the blocks of a CUDA grid along its second axis
_SMALL_IMAGE = 256  # elements of an image, channels first, which the function averages faster than a reduction
_SECOND = 1  # for averages, the heuristics' second proposal takes 0.4 to 1.0 of the time of the first


@dataclass(frozen=True)
class Pooling(PoolingOptions, Identified):
    """Pooling over 1, 2 or 3 spatial axes and its gradient, on device arrays.

    Parameters
    ----------
    mode : {"max", "max_deterministic", "average_include_padding", "average_exclude_padding"}
        What a window gives: its maximum; the sum divided by the size of the window; or the sum divided by the number of
        elements that are not padding. Theano's names "average_inc_pad" and "average_exc_pad" are aliases of the averages.
    window : int or tuple of ints
        An int, or one int for each spatial axis.
    padding : int or tuple of ints
        The padding on both sides, less than the window.
    stride : int or tuple of ints, optional
        By default the window.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. The order in memory is free.
    ceil_mode : bool
        Whether sizes are rounded up: the last window may reach beyond the padding if it starts before the end of the
        padding. Positions beyond the padding count in no average.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64. A batch of 0 gives an empty result; other sizes are 1 or more. The
    maximum of a window with a NaN is NaN; for all-`-inf` windows, cuDNN returns the lowest finite value.
    Averages over whole images are reductions, whose last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for what cuDNN lacks. Work
    is queued on `stream`, by default the library's current stream.
    """

    def output_shape(self, x_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shape of x, both in the arrays' axis order.

        Each spatial size is floor((size + 2 * padding - window) / stride) + 1. In ceil mode it is rounded up, and 1 less if
        the last window would start at size + padding or later. Raises TypeError and ValueError for a shape that does not
        fit the options.
        """
        shape = to_logical(check_shape("x_shape", x_shape, low=0), self._channels_last)
        return from_logical(_pooled(shape, self._axes(shape)), self._channels_last)

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * pooling(x) + beta * out (cudnnPoolingForward, or a graph for averages channels last).

        Parameters
        ----------
        x : array
            (N, C, spatial...), or (N, spatial..., C) with layout "NHWC".
        out : array, optional
            The result, of shape `output_shape` and x's dtype.
        alpha, beta : float
            Factors of the pooling and of `out`; out is not read if beta is 0.
        stream : stream, optional
            Where the work is queued.

        Returns
        -------
        array
            `out`, or a new array of x's library, dtype and memory order.
        """
        return dispatch.run("Pooling.forward", self, Pooling._forward, ("x", "out"), (x,), (out,), stream, alpha, beta)

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
        """Compute alpha * dx + beta * out, with the gradient dx with respect to x (cudnnPoolingBackward).

        Each element of dy goes to the maximum of its window, or is divided among the elements that were averaged.

        Parameters
        ----------
        dy : array
            The gradient with respect to y.
        x, y : array
            forward's input and result, of dy's dtype.
        out : array, optional
            The result, of x's shape and dtype.
        alpha, beta, stream
            As for `forward`.

        Returns
        -------
        array
            `out`, or a new array of dy's library, of x's shape, dtype and memory order.
        """
        name, names = "Pooling.backward", ("dy", "x", "y", "out")
        return dispatch.run(name, self, Pooling._backward, names, (dy, x, y), (out,), stream, alpha, beta)

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
        operands = no_overlaps(call, (Operand("x", x), Operand("out", y, True)))
        results = [in_layout(y, self._channels_last)]
        a, b = scales(alpha, beta, x.dtype)
        if not extent(y):
            return Program("pooling", call.device, operands, []), results
        if any(axis.overhang for axis in axes):
            steps = forward_steps(self.mode, axes, x, y, alpha, beta)
            return Program("pooling", call.device, operands, steps), results
        if self._averages_images(axes) and _is_reduction(x):
            program = average("pooling", call, operands, alpha, beta)
            if program is not None:
                return program, results
        step = None
        last = x.strides == channels_last_strides(x.shape) and y.strides == channels_last_strides(y.shape)
        if self.mode.startswith("average") and last and is_large(x) and (alpha, beta) == (1.0, 0.0):
            step = self._resample(call, x, y)
        if step is None:
            how = descriptor(self.mode, axes)
            # described as channels last, the maxima of one channel take half the time (an H200)
            one, two = map(described, in_one_order(x, y, last=True))
            step = Step(Function("cudnnPoolingForward", how, a, one, At(0), b, two, At(1)), (0, 1))
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
        planned = graph.executable(call.device, _SECOND)
        return Step(planned, (0, 1)) if planned else None

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = self._logical(call, "x")
        axes = self._axes(x.shape)
        shape = _pooled(x.shape, axes)
        dy, y = (logical_like(call, name, self.layout, shape, x.dtype) for name in ("dy", "y"))
        dx = logical_result(call, "out", x.shape, x, self.layout, beta)
        operands = no_overlaps(call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True)))
        results = [in_layout(dx, self._channels_last)]
        a, b = scales(alpha, beta, x.dtype)
        if not extent(dx):
            return Program("pooling gradient", call.device, operands, []), results
        if any(axis.overhang for axis in axes):
            return gradient(self.mode, axes, call.device, operands, alpha, beta), results
        if self._averages_images(axes) and len(x.shape) == 4 and is_packed(dx) and is_packed(dy):
            each = scales(alpha / math.prod(axis.size for axis in axes), beta, x.dtype)[0]
            function = Function("cudnnAddTensor", each, described(dy), At(0), b, described(dx), At(1))
            return Program("pooling gradient", call.device, operands, [Step(function, (0, 3))]), results
        wanted = [dy, as_lies(x, dx), as_lies(y, dy), dx]
        can_copy = call.cap is None  # otherwise memory does not suffice for the copies
        if (can_copy and self._better_packed(x)) or not (is_dense(dx) and is_dense(dy)):
            wanted = [packed(spec) for spec in wanted]
        how = descriptor(self.mode, axes)
        one, two, three, four = map(described, map(_in_one_batch, wanted))
        # A graph is not used: resample-gradient in docs/known-issues.md.
        function = Function("cudnnPoolingBackward", how, a, three, At(2), one, At(0), two, At(1), b, four, At(3))
        program = arranged("pooling gradient", call.device, operands, function, wanted, beta)
        return program, results

    def _averages_images(self, axes: Sequence[Axis]) -> bool:
        """Whether the only window is the whole image, and its elements are averaged."""
        whole = all((axis.output, axis.window, axis.padding) == (1, axis.size, 0) for axis in axes)
        return whole and self.mode.startswith("average")

    def _better_packed(self, x: TensorSpec) -> bool:
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
    if channels > 1 or count > _MOST_CHANNELS or spec.strides is None:
        return spec
    step, _, *steps = spec.strides
    return spec._replace(shape=(1, count, *sizes), strides=(count * step, step, *steps))


def _is_reduction(x: TensorSpec) -> bool:
    """Whether the average of each image is faster as a reduction: channels last, and for large images."""
    size = math.prod(x.shape[2:])
    if size == 1 or not is_dense(x) or x.alignment < 16 or x.dtype == "float64":
        return False
    if x.strides != packed_strides(x.shape):
        return extent(x) >= _REDUCED
    return is_large(x) and size > _SMALL_IMAGE


def _pooled(shape: tuple[int, ...], axes: Sequence[Axis]) -> tuple[int, ...]:
    """The logical shape of forward's result."""
    return (*shape[:2], *(axis.output for axis in axes))
