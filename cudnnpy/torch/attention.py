"""The kernels of PyTorch's fused attention, forward and backward: scaled_dot_product_attention calls one of three pairs.

The pairs differ in their arguments, and in how statistics and gradients lie in memory. The statistics mean the same in all, and
in cudnnpy.Attention, so that forward and backward may run on different sides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from cudnnpy._arrays.array_libraries import read
from cudnnpy._core.layouts import TensorSpec, packed_strides
from cudnnpy._launch.dispatch import Call, specs_of
from cudnnpy._launch.plan_cache import lookup
from cudnnpy._layers.attention import DTYPES, HEAD_SIZES, Attention
from cudnnpy.torch import fallback_stats, planning
from cudnnpy.torch.fallback_stats import FALLBACKS
from cudnnpy.torch.planned_operations import PlannedOperation
from cudnnpy.torch.planning import LAUNCH_ERRORS, FallbackError, plan_and_cache, record_launch_failure
from cudnnpy.torch.pytorch_kernels import flags
from cudnnpy.torch.settings import ACTIVE, Flags, Settings

ROADS = ("flash", "efficient", "cudnn")
_INPUTS = {
    "attention": ("q", "k", "v", "bias"),
    "attention_backward": ("dout", "q", "k", "v", "out", "statistics", "bias"),
}
_LSE_ALIGNMENT = 32  # efficient attention has statistics for a multiple of so many queries
_DEFAULTS: tuple[Any, ...] = (0.0, False, False)  # dropout_p, is_causal, return_debug_mask


class _Given(NamedTuple):
    """What a call says besides its tensors. `reason`: why PyTorch's own kernel must run."""

    operation: str
    road: str
    is_causal: bool
    scale: float | None
    has_statistics: bool
    reason: str


def register(library: Any, key: str) -> None:
    """Register the kernels. Those of PyTorch that they replace are called where a call cannot be planned."""
    for road in ROADS:
        for kernel, name in ((_forward, f"{road}_attention"), (_backward, f"{road}_attention_backward")):
            name = f"_scaled_dot_product_{name}"
            library.impl(name, partial(kernel, road, original_kernel(f"aten::{name}", key)), key)


def original_kernel(name: str, key: str) -> Callable[..., Any]:
    """Return PyTorch's own kernel of an operator."""
    kernel = torch.library.get_kernel(name, key)
    return partial(kernel.call_boxed, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def _forward(road: str, original: Callable[..., Any], q: Any, k: Any, v: Any, *rest: Any, scale: Any = None) -> Any:
    """Run aten::_scaled_dot_product_{road}_attention."""
    bias, has_statistics, *numbers = [None, True, *rest] if road == "flash" else list(rest)
    dropout, is_causal, debug = (*numbers, *_DEFAULTS[len(numbers) :])
    reason = fallback_stats.DROPOUT if dropout or debug else ""
    given = _Given("attention", road, is_causal, scale, has_statistics or road == "cudnn", reason)
    kernel = partial(original, q, k, v, *rest, scale=scale)
    if (results := _run(given, (q, k, v, _without_copies(bias)), kernel)) is None:
        return kernel()
    out, *made = results
    if road == "efficient":
        return (
            out,
            _padded(made[0]) if made else q.new_empty((*q.shape[:2], 0), dtype=torch.float32),
            *_empty(q, torch.int64, (), ()),
        )
    lengths = None, None, q.shape[2], k.shape[2]
    if road == "cudnn":
        return out, made[0], *lengths, *_empty(q, torch.int64, (), ()), None
    return out, made[0].squeeze(3), *lengths, *_empty(q, torch.uint64, (2,), ()), *_empty(q, q.dtype, (0,))


def _backward(road: str, original: Callable[..., Any], *given: Any, scale: Any = None) -> Any:
    """Run aten::_scaled_dot_product_{road}_attention_backward. The gradient of a bias is left to PyTorch."""
    dout, q, k, v, *rest = given
    bias, has_dbias = None, False
    if road == "efficient":
        bias, out, statistics, _, _, dropout, mask, *causal = rest
        has_dbias, is_causal = bias is not None and mask[3], bool(causal and causal[0])
    elif road == "cudnn":
        out, statistics, _, _, bias, *_, dropout, is_causal = rest
    else:
        out, statistics, *_, dropout, is_causal, _, _ = rest
    reason = fallback_stats.DROPOUT if dropout else fallback_stats.BIAS_GRADIENT if has_dbias else ""
    call = _Given("attention_backward", road, is_causal, scale, True, reason)
    kernel = partial(original, *given, scale=scale)
    statistics = statistics.reshape(*q.shape[:2], -1)[..., : q.shape[2]].contiguous().unsqueeze(3)
    if 0 in dout.stride():  # such as the gradient of a sum
        dout = dout.contiguous()
    gradients = _run(call, (dout, q, k, v, out, statistics, _without_copies(bias)), kernel)
    if gradients is None:
        return kernel()
    return (*gradients, None) if road == "efficient" else gradients


def _run(given: _Given, tensors: tuple[Any, ...], kernel: Callable[[], Any]) -> tuple[Any, ...] | None:
    """Launch the plan of a call and return the results. None after counting the reason why PyTorch's kernel must run."""
    now = flags(tensors[0].dtype)
    key = (ACTIVE.identity, given, now, *map(_signature, tensors))
    cached: PlannedOperation | str | None = lookup(key)
    if cached is None:
        cached = plan_and_cache(key, plan_attention, tensors, given, now, kernel)
    if not isinstance(cached, str):
        try:
            return _launch(cached, tensors)
        except LAUNCH_ERRORS as error:
            cached = record_launch_failure(key, error)
    FALLBACKS[cached] += 1
    return None


def _launch(planned: PlannedOperation, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    results: tuple[Any, ...] = planned.make_result()
    addresses = tuple([tensor.data_ptr() for tensor in (*tensors, *results) if tensor is not None])
    planned.launch(addresses, all(addresses))
    return results


def plan_attention(
    settings: Settings, tensors: tuple[Any, ...], given: _Given, now: Flags, kernel: Callable[[], Any]
) -> PlannedOperation:
    """Plan attention, or its gradients. Raises FallbackError, or what planning raises."""
    arrays = {
        name: tensor for name, tensor in zip(_INPUTS[given.operation], tensors, strict=True) if tensor is not None
    }
    q, k, v = (arrays[name] for name in "qkv")
    planning.check(now, q, k, v)
    dtype = str(q.dtype).removeprefix("torch.")
    if given.reason:
        raise FallbackError(given.reason)
    if dtype not in DTYPES:
        raise FallbackError(fallback_stats.DATA_TYPE)
    if q.shape[-1] not in HEAD_SIZES or v.shape[-1] != q.shape[-1]:
        raise FallbackError(fallback_stats.HEAD_SIZE)
    if given.operation == "attention":
        name, made, has_last = "_forward", {"out": q}, given.has_statistics
    else:
        name, made, has_last = "_backward", {"dq": q, "dk": k, "dv": v}, False
    results = {
        result: TensorSpec(tuple(like.shape), dtype, _strides(given.road, like)) for result, like in made.items()
    }
    operands = {argument: read(array, argument) for argument, array in arrays.items()}
    device = operands["q"][1][3]
    specs = specs_of(operands, device, "q")
    specs.update(results)
    if has_last:
        shape = (*q.shape[:3], 1)
        results["statistics"] = TensorSpec(shape, "float32", packed_strides(shape))
    # causal: flash has the last query at the last key, the others the first query at the first key
    causal: Any = "bottom_right" if given.is_causal and given.road == "flash" else given.is_causal
    options = settings.options(now)
    layer = Attention(causal=causal, scale=given.scale, **options)
    addresses = {argument: address for argument, (address, _) in operands.items()}
    call = Call(specs, addresses, device, 0, arrays)
    planned = planning.planned_operation(
        given.operation, call, lambda call: getattr(layer, name)(call, has_last), q, tuple(results.values())
    )
    run = partial(_launch, planned, tensors)
    planning.check_speed(options, q, given.operation, run, kernel, fallback_stats.ATTENTION)
    return planned


# Memory


def _signature(tensor: Any) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    address = tensor.data_ptr()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), min(address & -address, 16)


def _strides(road: str, like: Any) -> tuple[int, ...]:
    """Return the strides of the result of the shape of q, k or v, as PyTorch's kernels and meta functions have them."""
    if road != "efficient":
        return tuple(torch.empty_like(like, device="meta").stride())
    _, heads, length, size = like.shape
    return length * heads * size, size, heads * size, 1


def _without_copies(bias: Any) -> Any:
    """Return a bias with size 1 on the axes along which it is expanded."""
    for axis, stride in enumerate(() if bias is None else bias.stride()):
        if stride == 0:
            bias = bias.narrow(axis, 0, 1)
    return bias


def _padded(statistics: Any) -> Any:
    """Return statistics as efficient attention has them; infinity gives queries that do not exist the weight 0."""
    statistics = statistics.squeeze(3)
    count = -statistics.shape[2] % _LSE_ALIGNMENT
    return torch.nn.functional.pad(statistics, (0, count), value=torch.inf) if count else statistics


def _empty(q: Any, dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Return results that nothing reads without dropout."""
    return [q.new_empty(shape, dtype=dtype) for shape in shapes]
