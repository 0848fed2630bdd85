"""Pooling and its gradient: cudnnPoolingForward and cudnnPoolingBackward, and graphs for averages channels last.

On an H200 the functions take 0.2 to 1.05 of PyTorch's time, except for averages channels last (1.0 to 1.1; the resample
node of graphs takes 0.2 to 0.7) and gradients of 2x2 maxima channels last (2.0 to 2.8; docs/benchmarks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cudnnpy._core.frozen import Frozen
from cudnnpy._core.layouts import (
    TensorSpec,
    as_lies,
    channels_last_strides,
    extent,
    from_logical,
    in_layout,
    is_dense,
    packed,
    packed_strides,
    to_logical,
)
from cudnnpy._core.validation import check_flag, check_layout, check_option, check_per_axis, check_shape, for_each_axis
from cudnnpy._runtime import dispatch
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Function, Operand, Program, Step, arranged, described, scales
from cudnnpy._runtime.operands import is_large, logical, logical_like, logical_result, no_overlaps
from cudnnpy.graph.graph import Graph
from cudnnpy.ops.ceil_pooling import Axis, descriptor, forward_steps, gradient, output_size

MODES = ("max", "max_deterministic", "average_include_padding", "average_exclude_padding")
THEANO = {"average_inc_pad": "average_include_padding", "average_exc_pad": "average_exclude_padding"}
_SECOND = 1  # for averages, the heuristics' second proposal takes 0.4 to 1.0 of the time of the first


@dataclass(frozen=True)
class Pooling(Frozen):
    """Pooling over 1, 2 or 3 spatial dimensions, and its gradient, on device arrays.

    mode: "max", "max_deterministic", "average_include_padding" or "average_exclude_padding" (Theano's names
    "average_inc_pad" and "average_exc_pad" mean these two). window, padding, stride: an int, or one for each spatial
    axis; stride None is the window; padding is less than the window. layout: "NCHW", or "NHWC" for arrays whose axis
    order is (N, spatial..., C); the spelled-out names are checked against the rank. ceil_mode: whether a last window may
    reach beyond the padding, as long as it starts before it, so that sizes are rounded up; what lies beyond the padding
    counts for nothing, in no average. (By C functions, on parts of x; the gradient takes copies.) A batch of 0 is taken;
    other sizes are 1 or more.

    Arrays are float16, bfloat16, float32 or float64. The maximum of a window with a NaN is NaN. Raises TypeError and
    ValueError for options and arrays that do not fit, NotSupportedError for what cuDNN lacks.
    """

    mode: str = "max"
    window: Any = 2
    padding: Any = 0
    stride: Any = None
    layout: str = "NCHW"
    ceil_mode: bool = False

    def _checked(self) -> dict[str, Any]:
        check_option("mode", self.mode, (*MODES, *THEANO))
        check_layout(self.layout)
        check_flag("ceil_mode", self.ceil_mode)
        options: dict[str, Any] = {"mode": THEANO.get(self.mode, self.mode)}
        options["window"] = check_per_axis("window", self.window, 1)
        options["padding"] = check_per_axis("padding", self.padding, 0)
        options["stride"] = None if self.stride is None else check_per_axis("stride", self.stride, 1)
        ranks = {len(value) for value in options.values() if isinstance(value, tuple)}
        _each(options["window"], options["padding"], options["stride"], next(iter(ranks), 1))
        return options

    def output_shape(self, x_shape: Any) -> tuple[int, ...]:
        """The shape of forward's result, in the layout's axis order: floor((size + 2 padding - window) / stride) + 1.

        In ceil mode it is rounded up, and 1 less if the last window would start at size + padding or later.
        """
        shape = to_logical(check_shape("x_shape", x_shape, low=0), self._channels_last)
        return from_logical(_pooled(shape, self._axes(shape)), self._channels_last)

    def forward(self, x: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0, stream: Any = None) -> Any:
        """alpha * (x pooled) + beta * out, in `out` or a new array of x's library, dtype and memory order."""
        return dispatch.run("Pooling.forward", self, Pooling._forward, ("x", "out"), (x,), (out,), stream, alpha, beta)

    def backward(
        self, dy: Any, x: Any, y: Any, out: Any = None, alpha: float = 1.0, beta: float = 0.0, stream: Any = None
    ) -> Any:
        """alpha * (gradient in x) + beta * out, for forward's x, its result y and the gradient dy in y.

        Each element of dy goes to the maximum of its window, or is spread over the elements that were averaged.
        """
        name, names = "Pooling.backward", ("dy", "x", "y", "out")
        return dispatch.run(name, self, Pooling._backward, names, (dy, x, y), (out,), stream, alpha, beta)

    @property
    def _channels_last(self) -> bool:
        return self.layout.endswith("C")

    def _logical(self, call: Call, name: str) -> TensorSpec:
        return logical(call, name, self.layout, empty=True)

    def _each(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Window, padding and stride of every spatial axis."""
        return _each(self.window, self.padding, self.stride, rank)

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
        if any(axis.missing for axis in axes):
            steps = forward_steps(self.mode, axes, x, y, alpha, beta)
            return Program("pooling", call.device, operands, steps), results
        step = None
        last = x.strides == channels_last_strides(x.shape) and y.strides == channels_last_strides(y.shape)
        if self.mode.startswith("average") and last and is_large(x) and (alpha, beta) == (1.0, 0.0):
            step = self._resample(call, x, y)
        if step is None:
            how = descriptor(self.mode, axes)
            step = Step(Function("cudnnPoolingForward", how, a, described(x), At(0), b, described(y), At(1)), (0, 1))
        return Program("pooling", call.device, operands, [step]), results

    def _resample(self, call: Call, x: TensorSpec, y: TensorSpec) -> Step | None:
        if x.dtype == "float64" or len(x.shape) != 4 or min(x.alignment, y.alignment) < 16:
            return None
        window, padding, stride = self._each(2)
        graph = Graph()
        mode = "avgpool_" + self.mode.removeprefix("average_")
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
        if any(axis.missing for axis in axes):
            return gradient(self.mode, axes, call.device, operands, alpha, beta), results
        wanted = [dy, as_lies(x, dx), as_lies(y, dy), dx]
        if self._better_packed(x) or not (is_dense(dx) and is_dense(dy)):
            wanted = [packed(spec) for spec in wanted]
        how = descriptor(self.mode, axes)
        one, two, three, four = map(described, wanted)
        # A graph is not used: resample-gradient in docs/known-issues.md.
        function = Function("cudnnPoolingBackward", how, a, three, At(2), one, At(0), two, At(1), b, four, At(3))
        program = arranged("pooling gradient", call.device, operands, function, wanted, beta)
        return program, results

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


def _each(
    window: Any, padding: Any, stride: Any, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Window, padding and stride of every spatial axis. Raises ValueError for padding of the window's size or more."""
    window, padding = for_each_axis("window", window, rank), for_each_axis("padding", padding, rank)
    for pad, size in zip(padding, window, strict=True):
        if pad >= size:
            raise ValueError(f"padding must be less than the window, {window}; got {padding}")
    return window, padding, window if stride is None else for_each_axis("stride", stride, rank)


def _pooled(shape: tuple[int, ...], axes: Sequence[Axis]) -> tuple[int, ...]:
    """The logical shape of forward's result."""
    return (*shape[:2], *(axis.output for axis in axes))
