"""PyTorch's own kernels, timed against a plan where they may be faster; its flags, and the memory formats of its kernels.

The kernels stay registered for the key CompositeExplicitAutograd, where they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from cudnnpy.torch.fallback_stats import FALLBACKS
from cudnnpy.torch.settings import Flags

KEY = torch._C.DispatchKey.CompositeExplicitAutograd


# A plan that takes up to this many times as long is used, since times of small kernels vary.
_CLEARLY_SLOWER = 1.1
_ROUNDS, _RUNS = 2, 4
COMPARISON_RUNS = _ROUNDS * (1 + _RUNS)  #: the runs of each side in a comparison


def _call(operator: Any, reason: str | None, tensor: Any, *arguments: Any) -> Any:
    """Call PyTorch's kernel of an operator, and count the reason; None counts nothing."""
    if reason is not None:
        FALLBACKS[reason] += 1
    with torch.cuda.device_of(tensor):
        return operator._op_dk(KEY, tensor, *arguments)


convolution = partial(_call, torch.ops.aten._convolution.default)
convolution_backward = partial(_call, torch.ops.aten.convolution_backward.default)


def is_faster(kernel: Callable[[], object], planned: Callable[[], object], x: Any) -> bool:
    """Return whether a kernel of PyTorch's takes clearly less time than a plan, both on the current stream of x's device.

    They are timed in alternation, COMPARISON_RUNS times each. The first run of each round is not timed.
    """
    with torch.cuda.device_of(x):
        rounds = [(_milliseconds(planned), _milliseconds(kernel)) for _ in range(_ROUNDS)]
    ours, theirs = map(min, zip(*rounds, strict=True))
    return bool(ours > _CLEARLY_SLOWER * theirs)


def _milliseconds(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(_RUNS):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


# Flags, which aten::convolution_backward reads itself

_precision: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
_benchmark, _deterministic = torch._C._get_cudnn_benchmark, torch._C._get_cudnn_deterministic
_deterministic_algorithms = torch._C._get_deterministic_algorithms
_enabled, _allow_tf32 = torch._C._get_cudnn_enabled, torch._C._get_cudnn_allow_tf32
_float32 = torch.float32


def flags(dtype: Any) -> Flags:
    """Return PyTorch's flags as aten::_convolution gets them: benchmark, deterministic, enabled, allow_tf32."""
    if dtype is not _float32:
        tf32 = True
    elif _precision is not None:  # the other getter raises an error if convolutions and RNNs have different settings
        tf32 = _precision("cuda", "conv") == "tf32"
    else:
        tf32 = _allow_tf32()
    return _benchmark(), _deterministic() or _deterministic_algorithms(), _enabled(), tf32


# Memory format


class ConvolutionFormat(NamedTuple):
    """The memory format of a convolution's tensors with two or three spatial axes.

    PyTorch computes one spatial axis as two; the first one then has size 1.
    """

    memory_format: Any
    has_one_axis: bool
    backend: Any  #: of PyTorch

    @property
    def is_channels_last(self) -> bool:
        """Whether results are channels last."""
        return self.memory_format in (torch.channels_last, torch.channels_last_3d)

    @property
    def is_depthwise(self) -> bool:
        """Whether PyTorch has a depthwise kernel of its own for it, and does not call cuDNN."""
        return self.backend in (torch._C._ConvBackend.CudaDepthwise2d, torch._C._ConvBackend.CudaDepthwise3d)

    def conversion(self, tensor: Any, is_filter: bool = False) -> Any:
        """Return the memory format that PyTorch's kernels copy a tensor to, or None if it has that format.

        With one spatial axis inputs are made contiguous, and filters are not changed.
        """
        if self.has_one_axis and is_filter:
            return None
        required = torch.contiguous_format if self.has_one_axis else self.memory_format
        return None if tensor.is_contiguous(memory_format=required) else required

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of a result."""
        if not self.has_one_axis:
            return tuple(torch.empty(tuple(shape), memory_format=self.memory_format, device="meta").stride())
        wide = (*shape[:2], 1, *shape[2:])
        strides = torch.empty(wide, memory_format=self.memory_format, device="meta").stride()
        return (*strides[:2], *strides[3:])


def format_of(x: Any, w: Any, bias: Any, geometry: Sequence[Any]) -> ConvolutionFormat:
    """Return the memory format that PyTorch's kernels work in. Raises RuntimeError for invalid shapes.

    `geometry` are the arguments of aten::convolution after the bias. Tensors on the meta device have the format of cuDNN.
    """
    backend = torch._C._ConvBackend.Cudnn if x.is_meta else torch._C._select_conv_backend(x, w, bias, *geometry)
    has_one_axis = w.dim() == 3
    if has_one_axis:
        x, w = x.contiguous().unsqueeze(2), w.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(x, w, backend)
    return ConvolutionFormat(memory_format, has_one_axis, backend)
