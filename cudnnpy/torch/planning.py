"""The plans of a new call signature, or the reason why it falls back to PyTorch's own kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torch import OutOfMemoryError

from cudnnpy._arrays.array_libraries import ArrayMetadata, library_of, read
from cudnnpy._convolution.specification import INPUTS
from cudnnpy._core.driver import check_not_capturing
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.dispatch import Call, specs_of
from cudnnpy._launch.launcher import Launcher
from cudnnpy._launch.plan_cache import plan_cache
from cudnnpy._layers.arguments import OperationRequest, problem_of_call
from cudnnpy._layers.convolution import Convolution
from cudnnpy._layers.transpose import INPUT_NAMES, ConvolutionTranspose
from cudnnpy.errors import CaptureError, NoAlgorithmError, StatusError
from cudnnpy.handle import on_device
from cudnnpy.torch import fallback_stats, pytorch_kernels
from cudnnpy.torch.fallback_stats import HANDLED
from cudnnpy.torch.planned_operations import Backward, Forward, PlannedOperation, WorkspaceError
from cudnnpy.torch.pytorch_kernels import ConvolutionFormat, format_of
from cudnnpy.torch.settings import ACTIVE, Settings
from cudnnpy.tuning import recording

_MAX_ELEMENTS = (1 << 31) - 1  # PyTorch splits the batch of larger tensors
# Depthwise convolutions for which PyTorch has a kernel of its own, which is faster (H200, cuDNN 9.19):
# - With three spatial axes and an x of this many elements or more: cuDNN takes 1.5 to 2.2 times as long, in all directions.
#   Below, the host's time of a launch dominates.
# - With two and a filter of more elements than this. In 26 % of 614 drawn convolutions cuDNN took more than 1.1 times as long,
#   forward, and 13 times in the worst; with this limit, in 6 %. For gradients with respect to x: 16 %, and 6 %.
_MIN_VOLUME_ELEMENTS = 1 << 18
_MAX_FILTER_ELEMENTS = 80
_ALIGNMENT = 16  # bytes: of tensors on the meta device
_FLOATS = ("float16", "bfloat16", "float32", "float64")

# PyTorch's flags for a call: benchmark, deterministic, enabled, allow_tf32.
Flags: TypeAlias = tuple[bool, bool, bool, bool]


# Reasons


class FallbackError(Exception):
    """A call must fall back to PyTorch's kernel. The message is the reason, which is counted."""


# The reason that is counted for an exception of planning or of a launch, subclasses first. Errors of a libcudnn that cannot be
# used have no reason: they are raised.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (CaptureError, fallback_stats.CAPTURE),
    (NoAlgorithmError, fallback_stats.NO_ALGORITHM),
    (MemoryError, fallback_stats.MEMORY),
    (OutOfMemoryError, fallback_stats.MEMORY),
    (StatusError, fallback_stats.FAILED),
    (TypeError, fallback_stats.ARGUMENTS),
    (ValueError, fallback_stats.ARGUMENTS),
    (RuntimeError, fallback_stats.ARGUMENTS),  # PyTorch's check of the shapes
)
PLANNING_ERRORS: tuple[type[Exception], ...] = (FallbackError, *(kind for kind, _ in _REASONS))
LAUNCH_ERRORS = (MemoryError, OutOfMemoryError, StatusError)


def reason_of(error: Exception) -> str:
    """Return the reason that is counted for an exception."""
    if isinstance(error, FallbackError):
        return str(error)
    return next(reason for kind, reason in _REASONS if isinstance(error, kind))


def plan_and_cache(key: tuple[Any, ...], plan: Callable[..., Any], tensors: tuple[Any, ...], *rest: Any) -> Any:
    """Insert the result of `plan(settings, tensors, *rest)`, or the reason of a fallback, into the plan cache and return it.

    A call during a stream capture inserts nothing: a later call plans.
    """
    settings = ACTIVE.settings
    if settings is None or key[0] is not settings.token:  # another thread has changed the settings
        return fallback_stats.TURNED_OFF
    try:
        cached = plan(settings, tensors, *rest)
    except PLANNING_ERRORS as error:
        cached = reason_of(error)
    if cached != fallback_stats.CAPTURE:
        plan_cache().insert_planned(key, cached)
    return cached


def record_launch_failure(key: tuple[Any, ...], error: Exception) -> str:
    """Return the reason for a failed launch, and make the fallback permanent if its workspace could not be allocated.

    At each retry PyTorch's allocator would release all cached memory.
    """
    reason = reason_of(error)
    if isinstance(error, WorkspaceError):
        plan_cache().insert_planned(key, reason)
    return reason


# Plans


class ConvolutionArguments(NamedTuple):
    """The arguments of aten::convolution after the bias, with one element for each spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    is_transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, given: Sequence[Any], rank: int) -> ConvolutionArguments:
        """Return the arguments for `rank` spatial axes. PyTorch takes a single element for all of them."""
        stride, padding, dilation, is_transposed, output_padding, groups = given
        each = (tuple(one) * (rank if len(one) == 1 else 1) for one in (stride, padding, dilation, output_padding))
        strides, pads, spreads, extra = each
        return cls(strides, pads, spreads, is_transposed, extra, groups)


class Planner:
    """Plans the operations of a convolution for one geometry, set of options and memory format."""

    def __init__(
        self, geometry: ConvolutionArguments, options: dict[str, Any], memory_format: ConvolutionFormat
    ) -> None:
        self._format = memory_format
        is_timed = options["prefer"] == "autotune" and not options["deterministic"]  # times differ between processes
        self._compares = is_timed and memory_format.is_depthwise
        self._layer: Convolution | ConvolutionTranspose
        arguments = {name: getattr(geometry, name) for name in ("stride", "padding", "dilation", "groups")} | options
        if geometry.is_transposed:
            self._layer = ConvolutionTranspose(**arguments, output_padding=geometry.output_padding)
        else:
            self._layer = Convolution(**arguments)

    def plan(self, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], *inputs: Any) -> PlannedOperation:
        """Plan "forward", "backward_data" or "backward_filter" on its inputs. Raises what planning raises.

        On the meta device the problem is recorded, and FallbackError raised.
        """
        if self._is_known_slower(name, x_shape, w_shape):
            raise FallbackError(fallback_stats.DEPTHWISE)
        layer = self._layer
        if isinstance(layer, ConvolutionTranspose):
            operation = {"forward": "backward_data", "backward_data": "forward"}.get(name, name)
            convolution, names = layer._transposed(w_shape), INPUT_NAMES[operation]
        else:
            operation, convolution, names = name, layer, INPUTS[name]
        shape = layer.output_shape(x_shape, w_shape)
        shape = {"forward": shape, "backward_data": x_shape, "backward_filter": w_shape}[name]
        arrays = dict(zip((*names, "bias"), inputs, strict=False))
        operands = {argument: _read(array, argument) for argument, array in arrays.items()}
        device: int = operands[names[0]][1][3]
        specs = specs_of(operands, device, names[0])
        strides = self._format.strides(shape)
        out = specs["out"] = TensorSpec(shape, specs[names[0]].dtype, strides)
        if max(math.prod(spec.shape) for spec in specs.values()) > _MAX_ELEMENTS:
            raise FallbackError(fallback_stats.LARGE)
        call = Call(specs, {argument: address for argument, (address, _) in operands.items()}, device, 0, arrays)
        if inputs[0].is_meta:
            given = None if operation == "forward" else shape
            problem = problem_of_call(convolution, OperationRequest(call, operation, names, shape=given))
            recording.note(problem, convolution._planning)
            raise FallbackError("nothing is computed on the meta device")  # never counted
        arguments = (None, 1.0, 0.0) if name == "forward" else (1.0, 0.0, *shape)
        return planned_operation(name, call, lambda call: getattr(layer, f"_{name}")(call, *arguments), inputs[0], out)

    def _is_known_slower(self, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> bool:
        """Return whether PyTorch's own depthwise kernel is known to be faster; large filters are measured with "autotune"."""
        if self._format.is_depthwise_3d:
            return math.prod(x_shape) >= _MIN_VOLUME_ELEMENTS
        is_large = len(w_shape) == 4 and math.prod(w_shape[2:]) > _MAX_FILTER_ELEMENTS
        return self._format.is_depthwise and is_large and name != "backward_filter" and not self._compares

    def check_speed(self, x: Any, name: str, planned: Callable[[], object], kernel: Callable[[], object]) -> None:
        """Raise FallbackError if PyTorch's own depthwise kernel is faster than a plan. With "autotune", both are timed."""
        if self._compares:
            check_speed(x, name, planned, kernel, fallback_stats.DEPTHWISE)


def planned_operation(
    name: str, call: Call, set_up: Callable[[Call], Any], tensor: Any, made: TensorSpec | tuple[TensorSpec, ...]
) -> PlannedOperation:
    """Plan a call by a layer's function, on the current stream of a tensor's device; `made` are the new results."""
    library, device = library_of(tensor), call.device
    stream = library.current_stream(device)
    check_not_capturing(name, stream)
    with on_device(device):
        planned, _ = set_up(call._replace(stream=stream))
        launcher = Launcher(planned)

    def maker(spec: TensorSpec) -> Callable[[], Any]:
        assert spec.strides is not None
        return library.maker(spec.shape, spec.strides, dtype_of(spec.dtype), device)

    size = planned.workspace_size
    make_workspace = maker(TensorSpec((size,), "uint8", (1,))) if size else None
    if isinstance(made, TensorSpec):
        return PlannedOperation(name, launcher, maker(made), make_workspace, library.current_stream)
    makers = [maker(spec) for spec in made]
    return PlannedOperation(
        name, launcher, lambda: tuple([make() for make in makers]), make_workspace, library.current_stream
    )


def check_speed(x: Any, name: str, planned: Callable[[], object], kernel: Callable[[], object], reason: str) -> None:
    """Time a plan and PyTorch's own kernel. Raises FallbackError with a reason if the kernel is faster."""
    is_slower = pytorch_kernels.is_faster(kernel, planned, x)
    HANDLED[name] -= pytorch_kernels.COMPARISON_RUNS
    if is_slower:
        raise FallbackError(reason)


def _read(tensor: Any, argument: str) -> tuple[int, ArrayMetadata]:
    """Return the address and the metadata of a tensor; of one on the meta device as if it were on the first GPU."""
    if tensor.is_meta:
        return _ALIGNMENT, (tensor.shape, tensor.stride(), tensor.dtype, 0)
    return read(tensor, argument)


def check(enabled: bool, *tensors: Any) -> None:
    """Raise FallbackError unless cuDNN is enabled, and the tensors are not empty, on one device and of one supported type."""
    if not enabled:
        raise FallbackError(fallback_stats.CUDNN_OFF)
    dtype, device = tensors[0].dtype, tensors[0].device
    if str(dtype).removeprefix("torch.") not in _FLOATS:
        raise FallbackError(fallback_stats.DATA_TYPE)
    if any(tensor.dtype is not dtype or tensor.device != device for tensor in tensors):
        raise FallbackError(fallback_stats.ARGUMENTS)
    if not all(tensor.numel() for tensor in tensors):
        raise FallbackError(fallback_stats.EMPTY)


def _copies(tensors: tuple[Any, ...], formats: tuple[Any, ...]) -> list[Any]:
    """Return the tensors in memory formats; None means no conversion."""
    return [
        tensor if memory_format is None else tensor.contiguous(memory_format=memory_format)
        for tensor, memory_format in zip(tensors, formats, strict=True)
    ]


def plan_forward(settings: Settings, tensors: tuple[Any, Any, Any], given: Sequence[Any], now: Flags) -> Forward:
    """Plan aten::_convolution for x, w and bias. `given` are the arguments after them up to the flags."""
    x, w, bias = tensors
    benchmark, deterministic, enabled, tf32 = now
    check(enabled, x, w, *(() if bias is None else (bias,)))
    memory_format = format_of(x, w, bias, given)
    formats = memory_format.conversion(x), memory_format.conversion(w, is_filter=True)
    geometry = ConvolutionArguments.of(given, w.dim() - 2)
    planner = Planner(geometry, settings.options(benchmark, deterministic, tf32), memory_format)
    inputs, bias_shape = _copies((x, w), formats), None
    if bias is not None and bias.is_contiguous() and _fuses_bias(geometry, memory_format):
        inputs.append(bias)
    elif bias is not None:
        bias_shape = (1, bias.numel(), *(1,) * (w.dim() - 2))
    planned = Forward(planner.plan("forward", tuple(x.shape), tuple(w.shape), *inputs), *formats, bias_shape)
    planner.check_speed(
        x,
        "forward",
        partial(planned.run, x, w, bias, x.data_ptr(), w.data_ptr()),
        partial(pytorch_kernels.convolution, None, x, w, bias, *given, *now),
    )
    return planned


def _fuses_bias(geometry: ConvolutionArguments, memory_format: ConvolutionFormat) -> bool:
    """Return whether the plan adds the bias. Otherwise PyTorch adds it to the result, as its own kernel does.

    Measured on an H200 with cuDNN 9.19, for 18 problems in each of six combinations of data type and memory format: channels
    last, a fused bias saves a pass over the result; channels first, fused plans of 1x1 filters take up to twice as long,
    and fused plans with groups take up to 13 times as long in both formats.
    """
    return geometry.groups == 1 and memory_format.is_channels_last


def plan_backward(
    settings: Settings, tensors: tuple[Any, Any, Any], given: Sequence[Any], now: Flags, mask: list[bool]
) -> Backward:
    """Plan aten::convolution_backward for dy, x and w: the gradients of `mask`.

    A gradient that cannot be planned falls back to PyTorch's kernel. Raises FallbackError if no gradient can be planned.
    """
    dy, x, w = tensors
    benchmark, deterministic, enabled, tf32 = now
    check(enabled, dy, x, w)
    memory_format = format_of(x, w, None, given)
    formats = memory_format.conversion(dy), memory_format.conversion(x), memory_format.conversion(w, is_filter=True)
    dy, x, w = _copies(tensors, formats)
    geometry = ConvolutionArguments.of(given, w.dim() - 2)
    planner = Planner(geometry, settings.options(benchmark, deterministic, tf32), memory_format)
    of_filter = (x, dy) if geometry.is_transposed else (dy, x)
    operations: list[PlannedOperation | None] = []
    reasons: list[str] = []
    for name, inputs, is_requested in (("backward_data", (dy, w), mask[0]), ("backward_filter", of_filter, mask[1])):
        operation, reason = None, ""
        if is_requested:
            only = [name == "backward_data", name == "backward_filter", False]
            kernel = partial(pytorch_kernels.convolution_backward, None, *tensors, None, *given, only)
            try:
                planned = planner.plan(name, tuple(x.shape), tuple(w.shape), *inputs)
                planner.check_speed(x, name, partial(planned.run, *(one.data_ptr() for one in inputs)), kernel)
                operation = planned
            except PLANNING_ERRORS as error:
                reason = reason_of(error)
        operations.append(operation)
        reasons.append(reason)
    reason = next(filter(None, reasons), "")
    if reason and not any(operations):
        raise FallbackError(reason)
    dx, dw = operations
    axes = (0, *range(2, w.dim())) if mask[2] else None
    fallback_mask = [*map(bool, reasons), False] if reason else None
    return Backward(dx, dw, axes, *formats, geometry.is_transposed, fallback_mask, reason)
