"""The kernels of aten::_convolution and aten::convolution_backward: from PyTorch's arguments to launched plans.

Each looks up its call signature in the thread's plan cache. A signature that cannot be planned has an entry, too, and falls
back to PyTorch's own kernel.
"""

from __future__ import annotations

from typing import Any

from cudnnpy._launch.plan_cache import lookup
from cudnnpy.torch import pytorch_kernels
from cudnnpy.torch.planned_operations import Backward, Forward
from cudnnpy.torch.planning import LAUNCH_ERRORS, plan_and_cache, plan_backward, plan_forward, record_launch_failure
from cudnnpy.torch.pytorch_kernels import flags
from cudnnpy.torch.settings import ACTIVE


def convolution(x: Any, w: Any, bias: Any, *given: Any) -> Any:
    """Run aten::_convolution: a convolution or a transposed convolution, with a bias or without (None)."""
    stride, padding, dilation, transposed, output_padding, groups, benchmark, deterministic, enabled, tf32 = given
    at_x, at_w = x.data_ptr(), w.data_ptr()
    bits = at_x | at_w
    # one flat tuple is the fastest to make and to hash, in every call
    key: tuple[Any, ...] = (
        ACTIVE.identity, x.shape, x.stride(), x.dtype, x.get_device(), w.shape, w.stride(), w.dtype, w.get_device(),
        tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups,
        benchmark, deterministic, enabled, tf32,
    )  # fmt: skip
    if bias is not None:
        key += (bias.shape, bias.stride(), bias.dtype, bias.get_device())
        bits |= bias.data_ptr()
    if bits & 15:  # rare: misaligned tensors have plans of their own
        key += (_alignments(x, w, bias),)
    cached: Forward | str | None = lookup(key)
    if cached is None:
        cached = plan_and_cache(key, plan_forward, (x, w, bias), given[:-4], given[-4:])
    if isinstance(cached, Forward):
        try:
            return cached.run(x, w, bias, at_x, at_w)
        except LAUNCH_ERRORS as error:
            cached = record_launch_failure(key, error)
    return pytorch_kernels.convolution(cached, x, w, bias, *given)


def convolution_backward(dy: Any, x: Any, w: Any, bias_sizes: list[int] | None, *given: Any) -> Any:
    """Run aten::convolution_backward: the gradients with respect to input, filter and bias that the mask selects."""
    stride, padding, dilation, transposed, output_padding, groups, mask = given
    at_dy, at_x, at_w = dy.data_ptr(), x.data_ptr(), w.data_ptr()
    now = flags(x.dtype)
    key: tuple[Any, ...] = (
        ACTIVE.identity, dy.shape, dy.stride(), dy.dtype, dy.get_device(),
        x.shape, x.stride(), x.dtype, x.get_device(), w.shape, w.stride(), w.dtype, w.get_device(),
        tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups, tuple(mask), now,
    )  # fmt: skip
    if (at_dy | at_x | at_w) & 15:
        key += (_alignments(dy, x, w),)
    cached: Backward | str | None = lookup(key)
    if cached is None:
        cached = plan_and_cache(key, plan_backward, (dy, x, w), given[:-1], now, mask)
    if isinstance(cached, Backward):
        try:
            return cached.run(dy, x, w, at_dy, at_x, at_w, bias_sizes, given[:-1])
        except LAUNCH_ERRORS as error:
            cached = record_launch_failure(key, error)
    return pytorch_kernels.convolution_backward(cached, dy, x, w, bias_sizes, *given)


def _alignments(*tensors: Any) -> tuple[int, ...]:
    pointers = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    return tuple(min(pointer & -pointer, 16) for pointer in pointers)
