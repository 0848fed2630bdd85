"""Kernels of aten::convolution and aten::convolution_backward for tensors on the CPU and on the meta device.

They count calls on the CPU as fallbacks, add the problems that the same calls would plan on a GPU to the open recordings, and
compute by PyTorch's own kernels. `enable` registers the ones of the meta device only while a recording is open. A transposed
convolution whose output_padding is the stride or more is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch._decomp import meta_table

from cudnnpy._core.caller_warning import warn
from cudnnpy._process.cuda_state import has_driver
from cudnnpy.torch.fallback_stats import FALLBACKS, HOST
from cudnnpy.torch.planning import PLANNING_ERRORS, plan_backward, plan_forward
from cudnnpy.torch.pytorch_kernels import KEY, flags
from cudnnpy.torch.settings import ACTIVE
from cudnnpy.tuning.recording import Recording

KEYS = ("CPU", "Meta")
_TENSORS = (torch.Tensor, torch.nn.Parameter)  # not the tensors with which torch.compile traces
_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default


def convolution(x: Any, w: Any, bias: Any, *geometry: Any) -> Any:
    """Run aten::convolution, and record the problem of cuDNN."""
    _record(plan_forward, (x, w, bias), geometry)
    return _run(_convolution, x, w, bias, *geometry)


def convolution_backward(dy: Any, x: Any, w: Any, bias_sizes: Any, *arguments: Any) -> Any:
    """Run aten::convolution_backward, and record the problems of the gradients."""
    *geometry, mask = arguments
    _record(plan_backward, (dy, x, w), geometry, mask)
    return _run(_convolution_backward, dy, x, w, bias_sizes, *arguments)


def _record(plan: Callable[..., Any], tensors: tuple[Any, ...], geometry: Any, *rest: Any) -> None:
    settings, given = ACTIVE.settings, [tensor for tensor in tensors if tensor is not None]
    if settings is None or not Recording.is_open() or not all(type(tensor) in _TENSORS for tensor in given):
        return
    like = [tensor if tensor is None else torch.empty_like(tensor, device="meta") for tensor in tensors]
    with suppress(*PLANNING_ERRORS):  # on a GPU such a call falls back to PyTorch's kernel
        plan(settings, tuple(like), geometry, flags(tensors[0].dtype), *rest)


def _run(operator: Any, tensor: Any, *arguments: Any) -> Any:
    """Run PyTorch's kernel of an operator for the device of its first tensor. Count calls on the CPU, and warn of the first."""
    if tensor.is_meta:
        return meta_table[operator](tensor, *arguments)
    FALLBACKS[HOST] += 1
    if FALLBACKS[HOST] == 1 and has_driver() and not Recording.is_open():  # without a driver, `enable` has warned
        warn(
            "PyTorch's own kernels compute the convolutions of tensors on the CPU, which cudnnpy.torch cannot serve: move "
            "the network and its inputs to a GPU. cudnnpy.torch.stats() counts such calls"
        )
    return operator._op_dk(KEY, tensor, *arguments)
