"""The plans of a new call signature and what adds the bias, or the reason why it falls back to PyTorch's own kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, TypeAlias

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
from cudnnpy.torch.pytorch_kernels import format_of
from cudnnpy.torch.settings import ACTIVE, Flags, Settings
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
Run: TypeAlias = Callable[[], object]  # runs an operation
_FLOATS = ("float16", "bfloat16", "float32", "float64")


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


class Planner:
    """Plans the operations of a convolution for one geometry, set of options and memory format."""

    def __init__(self, settings: Settings, x: Any, w: Any, bias: Any, given: Sequence[Any], now: Flags) -> None:
        stride, padding, dilation, self.is_transposed, output_padding, self.groups = given
        self.format, self._options = format_of(x, w, bias, given), settings.options(now)

        def each(elements: Sequence[int]) -> tuple[int, ...]:  # PyTorch takes a single element for all axes
            return tuple(elements) * (w.dim() - 2 if len(elements) == 1 else 1)

        arguments: dict[str, Any] = {"stride": each(stride), "padding": each(padding), "dilation": each(dilation)}
        arguments |= {"groups": self.groups, **self._options}
        self._layer: Convolution | ConvolutionTranspose
        if self.is_transposed:
            self._layer = ConvolutionTranspose(**arguments, output_padding=each(output_padding))
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
        strides = self.format.strides(shape)
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
        if not self.format.is_depthwise or len(w_shape) == 3:
            return False
        if len(w_shape) == 5:
            return math.prod(x_shape) >= _MIN_VOLUME_ELEMENTS
        is_large = math.prod(w_shape[2:]) > _MAX_FILTER_ELEMENTS
        return is_large and name != "backward_filter" and not _are_timed(self._options)

    def check_speed(self, x: Any, name: str, planned: Run, kernel: Run) -> None:
        """Raise FallbackError if PyTorch's own depthwise kernel is faster than a plan."""
        if self.format.is_depthwise:
            check_speed(self._options, x, name, planned, kernel, fallback_stats.DEPTHWISE)


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
    makers = [maker(spec) for spec in ((made,) if isinstance(made, TensorSpec) else made)]
    make_result = makers[0] if isinstance(made, TensorSpec) else lambda: tuple([make() for make in makers])
    return PlannedOperation(name, launcher, make_result, make_workspace, library.current_stream)


def _are_timed(options: dict[str, Any]) -> bool:
    """Return whether plans are timed beside PyTorch's kernels. Times, and so results, differ between processes."""
    return options["prefer"] == "autotune" and not options["deterministic"]


def check_speed(options: dict[str, Any], x: Any, name: str, planned: Run, kernel: Run, reason: str) -> None:
    """Time a plan and PyTorch's own kernel, with options for it. Raises FallbackError with a reason if the kernel is faster."""
    if not _are_timed(options):
        return
    is_slower = pytorch_kernels.is_faster(kernel, planned, x)
    HANDLED[name] -= pytorch_kernels.COMPARISON_RUNS
    if is_slower:
        raise FallbackError(reason)


def _read(tensor: Any, argument: str) -> tuple[int, ArrayMetadata]:
    """Return the address and the metadata of a tensor; of one on the meta device as if it were on the first GPU."""
    if tensor.is_meta:
        return _ALIGNMENT, (tensor.shape, tensor.stride(), tensor.dtype, 0)
    return read(tensor, argument)


def check(now: Flags, *tensors: Any) -> None:
    """Raise FallbackError unless cuDNN is enabled, and the tensors are not empty, on one device and of one supported type."""
    if not now[2]:
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
    check(now, *(tensor for tensor in tensors if tensor is not None))
    planner = Planner(settings, x, w, bias, given, now)
    formats = planner.format.conversion(x), planner.format.conversion(w, is_filter=True)
    inputs, bias_shape = _copies((x, w), formats), None
    if bias is not None and bias.is_contiguous() and _fuses_bias(planner):
        inputs.append(bias)
    elif bias is not None:
        bias_shape = (1, bias.numel(), *(1,) * (w.dim() - 2))
    planned = Forward(planner.plan("forward", tuple(x.shape), tuple(w.shape), *inputs), *formats, bias_shape)
    run = partial(planned.run, x, w, bias, x.data_ptr(), w.data_ptr())
    planner.check_speed(x, "forward", run, partial(pytorch_kernels.convolution, None, x, w, bias, *given, *now))
    return planned


def _fuses_bias(planner: Planner) -> bool:
    """Return whether the plan adds the bias. Otherwise PyTorch adds it to the result, as its own kernel does.

    Measured on an H200 with cuDNN 9.19, for 18 problems in each of six combinations of data type and memory format: channels
    last, a fused bias saves a pass over the result; channels first, fused plans of 1x1 filters take up to twice as long,
    and fused plans with groups take up to 13 times as long in both formats.
    """
    return planner.groups == 1 and planner.format.is_channels_last


def plan_backward(
    settings: Settings, tensors: tuple[Any, Any, Any], given: Sequence[Any], now: Flags, mask: list[bool]
) -> Backward:
    """Plan aten::convolution_backward for dy, x and w: the gradients of `mask`.

    A gradient that cannot be planned falls back to PyTorch's kernel. Raises FallbackError if no gradient can be planned.
    """
    dy, x, w = tensors
    check(now, dy, x, w)
    planner = Planner(settings, x, w, None, given, now)
    conversion = planner.format.conversion
    formats = conversion(dy), conversion(x), conversion(w, is_filter=True)
    dy, x, w = _copies(tensors, formats)
    inputs = {"backward_data": (dy, w), "backward_filter": (x, dy) if planner.is_transposed else (dy, x)}
    operations: dict[str, PlannedOperation] = {}
    reasons: dict[str, str] = {}
    for name in compress(inputs, mask):
        only = [name == "backward_data", name == "backward_filter", False]
        kernel = partial(pytorch_kernels.convolution_backward, None, *tensors, None, *given, only)
        try:
            planned = planner.plan(name, tuple(x.shape), tuple(w.shape), *inputs[name])
            planner.check_speed(x, name, partial(planned.run, *(one.data_ptr() for one in inputs[name])), kernel)
            operations[name] = planned
        except PLANNING_ERRORS as error:
            reasons[name] = reason_of(error)
    reason = next(iter(reasons.values()), "")
    if reason and not operations:
        raise FallbackError(reason)
    dx, dw = map(operations.get, inputs)
    axes = (0, *range(2, w.dim())) if mask[2] else None
    fallback_mask = [*(name in reasons for name in inputs), False] if reason else None
    return Backward(dx, dw, axes, *formats, planner.is_transposed, fallback_mask, reason)
