"""The set-up of a call with a new signature: its plans, or the reason why PyTorch's own kernel runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import OutOfMemoryError

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.dispatch import Call, check_not_capturing, specs_of
from cudnnpy._launch.launcher import Launcher
from cudnnpy._launch.plan_cache import plan_cache
from cudnnpy._memory.arrays import library_of, read
from cudnnpy.convolution.convolution import Convolution
from cudnnpy.convolution.operation import Operation
from cudnnpy.convolution.transpose import ConvolutionTranspose
from cudnnpy.errors import CaptureError, NoAlgorithmError, StatusError
from cudnnpy.handle import on_device
from cudnnpy.torch import counts
from cudnnpy.torch.native import Order, order_of
from cudnnpy.torch.parts import Backward, Forward, Part, WorkspaceError
from cudnnpy.torch.settings import ACTIVE, Settings

_MOST_ELEMENTS = (1 << 31) - 1  # beyond which PyTorch splits the batch
_LARGE_VOLUMES = 1 << 18  # elements of x, below which the time of a launch counts
_FLOATS = ("float16", "bfloat16", "float32", "float64")

# PyTorch's flags for a call: benchmark, deterministic, enabled, allow_tf32.
Flags: TypeAlias = tuple[bool, bool, bool, bool]


# Reasons


class Left(NamedTuple):
    """What is remembered of a signature that PyTorch's own kernel runs."""

    reason: str


class NotTaken(Exception):
    """A call that cudnnpy does not take, with the reason that is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# What planning or a launch may raise, and the reason that is counted for it, the more special ones first. Errors of a
# libcudnn that cannot be used are not among them: they are raised.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (CaptureError, counts.CAPTURE),
    (NoAlgorithmError, counts.NO_ALGORITHM),
    (MemoryError, counts.MEMORY),
    (OutOfMemoryError, counts.MEMORY),
    (StatusError, counts.FAILED),
    (TypeError, counts.ARGUMENTS),
    (ValueError, counts.ARGUMENTS),
    (RuntimeError, counts.ARGUMENTS),  # PyTorch's check of the shapes
)
_PLANNING_ERRORS: tuple[type[Exception], ...] = (NotTaken, *(kind for kind, _ in _REASONS))
LAUNCH_ERRORS = (MemoryError, OutOfMemoryError, StatusError)


def reason_of(error: Exception) -> str:
    """Return the reason that is counted for an exception."""
    if isinstance(error, NotTaken):
        return error.reason
    return next(reason for kind, reason in _REASONS if isinstance(error, kind))


def remembered(key: tuple[Any, ...], plan: Callable[..., Any], tensors: tuple[Any, ...], *rest: Any) -> Any:
    """Plan a signature, and remember the result of `plan(settings, tensors, *rest)`, or why there is none.

    A call during the capture of a CUDA graph is planned later.
    """
    settings = ACTIVE.settings
    if settings is None or key[0] is not settings._identity:  # another thread has changed them
        return Left(counts.TURNED_OFF)
    try:
        ready = plan(settings, tensors, *rest)
    except _PLANNING_ERRORS as error:
        ready = Left(reason_of(error))
    if not (isinstance(ready, Left) and ready.reason == counts.CAPTURE):
        plan_cache().insert_planned(key, ready)
    return ready


def given_up(key: tuple[Any, ...], error: Exception) -> str:
    """Return the reason that is counted for a launch that failed.

    A signature without memory for its workspace is left from then on: at each attempt PyTorch's allocator would release
    all that it keeps.
    """
    reason = reason_of(error)
    if isinstance(error, WorkspaceError):
        plan_cache().insert_planned(key, Left(reason))
    return reason


# Plans


class Geometry(NamedTuple):
    """The arguments of aten::convolution after the bias, with one element for each spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    is_transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, given: Sequence[Any], rank: int) -> Geometry:
        """Return the arguments for `rank` spatial axes. PyTorch takes a single element for all of them."""
        stride, padding, dilation, is_transposed, output_padding, groups = given
        each = (tuple(one) * (rank if len(one) == 1 else 1) for one in (stride, padding, dilation, output_padding))
        strides, pads, spreads, extra = each
        return cls(strides, pads, spreads, is_transposed, extra, groups)


class Planner:
    """Makes the plans of a convolution for one geometry, set of options and memory order."""

    def __init__(self, geometry: Geometry, options: dict[str, Any], order: Order) -> None:
        self._order = order
        self._layer: Convolution | ConvolutionTranspose
        given = {name: getattr(geometry, name) for name in ("stride", "padding", "dilation", "groups")} | options
        if geometry.is_transposed:
            self._layer = ConvolutionTranspose(**given, output_padding=geometry.output_padding)
        else:
            self._layer = Convolution(**given)

    def part(self, name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], *inputs: Any) -> Part:
        """Plan "forward", "backward_data" or "backward_filter" on its inputs. Raises what planning raises."""
        layer = self._layer
        if isinstance(layer, ConvolutionTranspose):
            operation, y_shape = layer._behind(x_shape, w_shape)
            does = {"forward": "backward_data", "backward_data": "forward"}.get(name, name)
        else:
            operation, y_shape, does = layer._operation, layer.output_shape(x_shape, w_shape), name
        shape = {"forward": y_shape, "backward_data": x_shape, "backward_filter": w_shape}[name]
        return _planned(name, operation, does, inputs, shape, self._order.strides(shape))


def _planned(
    name: str,
    operation: Operation,
    does: str,
    inputs: tuple[Any, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Part:
    """Plan what an operation does on tensors, for a result of a shape and strides."""
    library = library_of(inputs[0])
    arrays = dict(zip((*operation.inputs[does], "bias"), inputs, strict=False))
    found = {argument: read(array, argument) for argument, array in arrays.items()}
    first = operation.inputs[does][0]
    device: int = found[first][1][3]
    specs = specs_of(found, device, first)
    addresses = {argument: pointer for argument, (pointer, _) in found.items()}
    out = specs["out"] = TensorSpec(shape, specs[first].dtype, strides)
    if max(math.prod(spec.shape) for spec in specs.values()) > _MOST_ELEMENTS:
        raise NotTaken(counts.LARGE)
    stream = library.current_stream(device)
    check_not_capturing(name, stream)
    with on_device(device):
        call = Call(specs, addresses, device, stream, arrays)
        planned, _ = operation._prepare(call, does, None, 1.0, 0.0, *(() if does == "forward" else shape))
        launcher = Launcher(planned)
    size = planned.workspace_size
    return Part(
        name,
        launcher,
        library.maker(shape, strides, dtype_of(out.dtype), device),
        library.maker((size,), (1,), dtype_of("uint8"), device) if size else None,
        library.current_stream,
    )


def _check(enabled: bool, *tensors: Any) -> None:
    """Raise NotTaken unless cuDNN is enabled, and the tensors are on one device with elements of one type it takes."""
    if not enabled:
        raise NotTaken(counts.CUDNN_OFF)
    dtype, device = tensors[0].dtype, tensors[0].device
    if str(dtype).removeprefix("torch.") not in _FLOATS:
        raise NotTaken(counts.ELEMENT_TYPE)
    if any(tensor.dtype is not dtype or tensor.device != device for tensor in tensors):
        raise NotTaken(counts.ARGUMENTS)
    if not all(tensor.numel() for tensor in tensors):
        raise NotTaken(counts.EMPTY)


def _copies(tensors: tuple[Any, ...], formats: tuple[Any, ...]) -> list[Any]:
    """Return the tensors in memory formats, of which None leaves a tensor as it is."""
    return [
        tensor if wanted is None else tensor.contiguous(memory_format=wanted)
        for tensor, wanted in zip(tensors, formats, strict=True)
    ]


def _order(x: Any, w: Any, bias: Any, given: Sequence[Any]) -> Order:
    """Return the memory order of a convolution. Raises NotTaken for large depthwise ones with three spatial axes.

    On an H200 with cuDNN 9.19, cuDNN's engines take 1.5 to 2.2 times as long as PyTorch's kernels for them, in all three
    directions (7 problems of X3D, float16 and float32). PyTorch computes them channels first.
    """
    order = order_of(x, w, bias, given)
    if order.is_depthwise_of_volumes and x.numel() >= _LARGE_VOLUMES:
        raise NotTaken(counts.VOLUMES)
    return order


def plan_forward(settings: Settings, tensors: tuple[Any, Any, Any], given: Sequence[Any], now: Flags) -> Forward:
    """Plan aten::_convolution for x, w and bias. `given` are the arguments after them up to the flags."""
    x, w, bias = tensors
    benchmark, deterministic, enabled, tf32 = now
    _check(enabled, x, w, *(() if bias is None else (bias,)))
    order = _order(x, w, bias, given)
    formats = order.conversion(x), order.conversion(w, is_filter=True)
    geometry = Geometry.of(given, w.dim() - 2)
    planner = Planner(geometry, settings.options(benchmark, deterministic, tf32), order)
    inputs, bias_shape = _copies((x, w), formats), None
    if bias is not None and bias.is_contiguous() and _fuses_bias(geometry, order):
        inputs.append(bias)
    elif bias is not None:
        bias_shape = (1, bias.numel(), *(1,) * (w.dim() - 2))
    part = planner.part("forward", tuple(x.shape), tuple(w.shape), *inputs)
    return Forward(part, formats, bias_shape)


def _fuses_bias(geometry: Geometry, order: Order) -> bool:
    """Return whether the plan adds the bias. Otherwise PyTorch adds it to the result, as its own kernel does.

    Measured on an H200 with cuDNN 9.19, for 18 problems in each of six combinations of element type and order: channels
    last, a fused bias saves a pass over the result; channels first, fused plans of 1x1 filters take up to twice as long,
    and those of groups take up to 13 times as long in both orders.
    """
    return geometry.groups == 1 and order.is_channels_last


def plan_backward(
    settings: Settings, tensors: tuple[Any, Any, Any], given: Sequence[Any], now: Flags, mask: list[bool]
) -> Backward:
    """Plan aten::convolution_backward for dy, x and w: the gradients of `mask`.

    A gradient that cannot be planned is left to PyTorch's kernel. Raises NotTaken if there is no other.
    """
    dy, x, w = tensors
    benchmark, deterministic, enabled, tf32 = now
    _check(enabled, dy, x, w)
    order = _order(x, w, None, given)
    formats = order.conversion(dy), order.conversion(x), order.conversion(w, is_filter=True)
    dy, x, w = _copies(tensors, formats)
    geometry = Geometry.of(given, w.dim() - 2)
    planner = Planner(geometry, settings.options(benchmark, deterministic, tf32), order)
    of_filter = (x, dy) if geometry.is_transposed else (dy, x)
    parts: list[Part | None] = []
    reasons: list[str] = []
    for name, inputs, is_wanted in (("backward_data", (dy, w), mask[0]), ("backward_filter", of_filter, mask[1])):
        part, reason = None, ""
        if is_wanted:
            try:
                part = planner.part(name, tuple(x.shape), tuple(w.shape), *inputs)
            except _PLANNING_ERRORS as error:
                reason = reason_of(error)
        parts.append(part)
        reasons.append(reason)
    reason = next(filter(None, reasons), "")
    if reason and not any(parts):
        raise NotTaken(reason)
    dx, dw = parts
    axes = (0, *range(2, w.dim())) if mask[2] else None
    left = [*map(bool, reasons), False] if reason else None
    return Backward(dx, dw, axes, formats, geometry.is_transposed, left, reason)
