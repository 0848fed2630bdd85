"""Pooling and its gradient: cudnnPoolingForward and cudnnPoolingBackward.

The resample nodes of graphs are not used: resample-bfloat16 and resample-gradient in docs/known-issues.md. The functions return
the lowest finite value as the maximum of all-`-inf` windows: maximum-of-minus-infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, get_args

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._checks.option_values import (
    check_layout,
    check_option,
    check_per_axis,
    check_shape,
    expand_per_axis,
    in_array_order,
)
from cudnnpy._checks.suggestions import with_suggestions
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    from_logical,
    in_layout,
    is_dense,
    is_packed,
    is_too_large,
    to_logical,
    to_packed,
    with_strides_of,
)
from cudnnpy._launch.dispatch import ArrayOperation, Call
from cudnnpy._launch.operands import check_input, check_like, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, scaling_arguments, tensor_descriptor
from cudnnpy._layers.activation import function_in_parts
from cudnnpy._layers.lowerings.sums import sum_by_graphs
from cudnnpy.descriptors import PoolingDescriptor
from cudnnpy.names import enumerator
from cudnnpy.typing import Array, ArrayT, CudnnPoolingMode, Layout, PerAxis, PoolingMode, Shape, Stream

# Averages over whole images are sums by a graph from these sizes on. The function, which adds up each result in one thread,
# takes up to 7 times as long as PyTorch on an H200; a sum takes 0.6 channels first, and 0.7 to 3.7 channels last, on a copy.
_MIN_SUM_BYTES = 1 << 20  # of x, for which a graph is worth compiling
_MIN_SUM_POSITIONS = 256

_RANKS = range(3, 6)
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
THEANO_POOLING: dict[str, CudnnPoolingMode] = {
    "average_inc_pad": "average_include_padding",
    "average_exc_pad": "average_exclude_padding",
}
Each = tuple[int, ...]


@with_suggestions
@dataclass(frozen=True)
class Pooling(ArrayOperation):
    """Pooling over 1, 2 or 3 spatial axes and its gradient.

    Parameters
    ----------
    mode : {"max", "max_deterministic", "average_include_padding", "average_exclude_padding"}
        The result of a window: its maximum; the sum divided by the size of the window; or the sum divided by the number of
        elements that are not padding. Theano's names "average_inc_pad" and "average_exc_pad" are aliases of the averages.
    window : int or tuple of ints
        An int, or one int for each spatial axis.
    padding : int or tuple of ints
        The padding on both sides, less than the window. It counts as 0, and as -infinity for a maximum.
    stride : int or tuple of ints, optional
        By default the window.
    layout : {"NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"}
        The order of the axes of the arrays. "NCHW" is (N, C, spatial...) and "NHWC" is (N, spatial..., C) for any number of
        spatial axes; the other names are checked against the number of axes. Any memory format is accepted.

    Raises
    ------
    TypeError, ValueError
        An option is of another type, or out of range.

    Notes
    -----
    Arrays are float16, bfloat16, float32 or float64. A batch of 0 gives an empty result; other sizes are 1 or more. The
    maximum of a window with a NaN is NaN; for all-`-inf` windows, cuDNN returns the lowest finite value.
    On a GPU, large averages over whole images are sums in any order, whose last bits may differ from call to call.
    Operations raise TypeError and ValueError for arguments that do not fit, and NotSupportedError for unsupported ones. Work
    is queued on `stream`, by default the library's current stream. `cudnnpy.reference` ignores it, computes in float64 and
    rounds once.

    Examples
    --------
    >>> import numpy as np
    >>> from cudnnpy import reference
    >>> x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    >>> reference.Pooling("max", 2).forward(x).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    mode: PoolingMode = "max"
    window: PerAxis = 2
    _: KW_ONLY
    padding: PerAxis = 0
    stride: PerAxis | None = None
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        mode = check_option("mode", self.mode, POOLING_MODES)
        check_layout(self.layout)
        window, padding = check_per_axis("window", self.window, 1), check_per_axis("padding", self.padding, 0)
        stride = None if self.stride is None else check_per_axis("stride", self.stride, 1)
        ranks = {len(value) for value in (window, padding, stride) if isinstance(value, tuple)}
        _each(window, padding, stride, next(iter(ranks), 1))
        return {"mode": THEANO_POOLING.get(mode, mode), "window": window, "padding": padding, "stride": stride}

    def _each(self, rank: int) -> tuple[Each, Each, Each]:
        """Window, padding and stride of every spatial axis."""
        return _each(self.window, self.padding, self.stride, rank)

    def output_shape(self, x_shape: Shape) -> tuple[int, ...]:
        """The shape of forward's result for the shape of x, both in the arrays' axis order.

        Each spatial size is floor((size + 2 * padding - window) / stride) + 1. Raises TypeError and ValueError for a shape
        that does not fit the options.
        """
        shape = to_logical(check_shape("x_shape", x_shape, low=0), self._channels_last)
        return from_logical(self._pooled(shape), self._channels_last)

    def forward(
        self,
        x: ArrayT,
        out: ArrayT | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream | None = None,
    ) -> ArrayT:
        """Compute alpha * pooling(x) + beta * out (cudnnPoolingForward).

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
            `out`, or a new array of x's library, dtype and memory format.
        """
        implementation, names = type(self)._forward, ("x", "out")
        return self._run("Pooling.forward", self, implementation, names, (x,), (out,), stream, alpha, beta)

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

        Each element of dy goes to the maximum of its window, or is divided among the elements that were averaged. Of equal
        maxima, or of NaNs, it goes to the first in `cudnnpy.reference`.

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
            `out`, or a new array of dy's library, of x's shape, dtype and memory format.
        """
        implementation, names = type(self)._backward, ("dy", "x", "y", "out")
        return self._run("Pooling.backward", self, implementation, names, (dy, x, y), (out,), stream, alpha, beta)

    # Set-up, once for each call signature

    @property
    def _channels_last(self) -> bool:
        return self.layout.endswith("C")

    def _logical(self, call: Call, name: str) -> TensorSpec:
        return check_input(call, name, _RANKS, empty=True, layout=self.layout)

    def _pooled(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The logical shape of forward's result. Raises ValueError for a shape of x that does not fit the options."""
        rank = len(shape)
        if rank not in (3, 4, 5):
            raise ValueError(f"x must have 3, 4 or 5 axes; got shape {shape}")
        if 0 in shape[1:]:
            shape = in_array_order(shape, self.layout)
            raise ValueError(f"x must have sizes of 1 or more, except for a batch of 0; got shape {shape}")
        found = list(shape[:2])
        for size, window, pad, step in zip(shape[2:], *self._each(rank - 2), strict=True):
            if window > size + 2 * pad:
                raise ValueError(f"window must be at most {size + 2 * pad}, the padded size of x; got {window}")
            found.append((size + 2 * pad - window) // step + 1)
        return tuple(found)

    def _descriptor(self, rank: int) -> PoolingDescriptor:
        """The pooling of tensors of a rank. A single spatial axis becomes the width of an image of height 1."""
        window, padding, stride = self._each(rank - 2)
        if rank == 3:
            window, padding, stride = (1, *window), (0, *padding), (1, *stride)
        mode = enumerator(raw.cudnnPoolingMode_t, self.mode, "mode")
        return PoolingDescriptor(mode, window, padding=padding, stride=stride, propagate_nan=True)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        operands = self._forward_operands(call, alpha, beta)
        x, y = (operand.spec for operand in operands)
        results = [in_layout(y, self._channels_last)]
        if not byte_extent(y):
            return Program("pooling", call.device, operands, []), results
        count = math.prod(x.shape[2:])
        if self._averages_whole_images(x) and count > _MIN_SUM_POSITIONS and byte_extent(x) >= _MIN_SUM_BYTES:
            sums = None if is_too_large(x) else sum_by_graphs(call, x, y, alpha / count, beta)
            if sums is not None and call.allows(sums.workspace_size):
                return Program("pooling", call.device, operands, sums.steps, sums.scratch), results
        how = self._descriptor(len(x.shape))
        executable = function_in_parts("cudnnPoolingForward", how, alpha, beta, x, y)
        return Program("pooling", call.device, operands, [Step(executable, (0, 1))]), results

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        operands = self._backward_operands(call, alpha, beta)
        dy, x, y, dx = (operand.spec for operand in operands)
        results = [in_layout(dx, self._channels_last)]
        name = "pooling gradient"
        if not byte_extent(dx):
            return Program(name, call.device, operands, []), results
        if self._averages_whole_images(x) and len(x.shape) == 4 and is_packed(dx) and is_packed(dy):
            # The same for all elements of an image: a broadcast. cudnnPoolingBackward takes up to 5.9 times as long as
            # PyTorch on an H200, and cudnnAddTensor 0.03 to 1.4 times.
            each, b = scaling_arguments(alpha / math.prod(x.shape[2:]), beta, x.dtype)
            one, two = tensor_descriptor(dy), tensor_descriptor(dx)
            broadcast = FunctionCall("cudnnAddTensor", each, one, OperandAddress(0), b, two, OperandAddress(1))
            return Program(name, call.device, operands, [Step(broadcast, (0, 3))]), results
        required_specs = [dy, with_strides_of(x, dx), with_strides_of(y, dy), dx]
        if not (is_dense(dx) and is_dense(dy)):
            required_specs = [to_packed(spec) for spec in required_specs]
        how = self._descriptor(len(x.shape))
        executable = function_in_parts("cudnnPoolingBackward", how, alpha, beta, *required_specs)
        return with_conversion_copies(name, call.device, operands, executable, required_specs, beta), results

    def _forward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        x = self._logical(call, "x")
        check_scales(alpha, beta, out=call.specs.get("out"))
        y = resolve_output(call, "out", self._pooled(x.shape), x.dtype, x, self.layout)
        return check_no_overlaps(call, (Operand("x", x), Operand("out", y, True)))

    def _backward_operands(self, call: Call, alpha: float, beta: float) -> Sequence[Operand]:
        x = self._logical(call, "x")
        check_scales(alpha, beta, out=call.specs.get("out"))
        shape = self._pooled(x.shape)
        dy, y = (check_like(call, name, shape, x.dtype, self.layout) for name in ("dy", "y"))
        dx = resolve_output(call, "out", x.shape, x.dtype, x, self.layout)
        return check_no_overlaps(call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True)))

    def _averages_whole_images(self, x: TensorSpec) -> bool:
        """Whether the only window is the whole image, and its elements are averaged."""
        spatial = x.shape[2:]
        window, padding, _ = self._each(len(spatial))
        return self.mode.startswith("average") and window == spatial and not any(padding)


def _each(window: Any, padding: Any, stride: Any, rank: int) -> tuple[Each, Each, Each]:
    """Window, padding and stride of every spatial axis. Raises ValueError for padding of the window's size or more."""
    window, padding = expand_per_axis("window", window, rank), expand_per_axis("padding", padding, rank)
    for pad, size in zip(padding, window, strict=True):
        if pad >= size:
            raise ValueError(f"padding must be less than the window, {window}; got {padding}")
    return window, padding, window if stride is None else expand_per_axis("stride", stride, rank)
