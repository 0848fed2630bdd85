"""Calls handled by cudnnpy, and fallbacks to PyTorch's kernels by reason."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from cudnnpy._process.module_state import declare

# Reasons of fallbacks to PyTorch's kernels.
CUDNN_OFF = "torch.backends.cudnn.enabled is False"
EMPTY = "empty tensor"
HOST = "tensors on the CPU"
LARGE = "2**31 elements or more"
DATA_TYPE = "data type"
ARGUMENTS = "invalid arguments"
DEPTHWISE = "PyTorch's own depthwise kernel is faster"
ATTENTION = "PyTorch's own attention is faster"
DROPOUT = "dropout in attention"
HEAD_SIZE = "head size of attention"
BIAS_GRADIENT = "gradient of attention's bias"
CAPTURE = "a CUDA graph is being captured, and the call was not planned before"
MEMORY = "out of memory"
NO_ALGORITHM = "no algorithm"
FAILED = "cuDNN failed"
TURNED_OFF = "turned off by another thread"

# In an interpreter with the GIL no other thread runs within `HANDLED[name] += 1`.
CONVOLUTIONS = dict.fromkeys(("forward", "backward_data", "backward_filter"), 0)
HANDLED = Counter(CONVOLUTIONS)
FALLBACKS: Counter[str] = Counter()

declare(__name__, "HANDLED", "FALLBACKS")


class Stats(NamedTuple):
    """Numbers of calls, which `stats` returns.

    Attributes
    ----------
    handled : dict of str to int
        The number of operations that ran on cudnnpy: "forward", "backward_data" (gradients with respect to the input) and
        "backward_filter" (gradients with respect to the filter), of convolutions and of transposed convolutions. After calls
        of attention also "attention" and "attention_backward".
    fallbacks : dict of str to int
        The number of calls that PyTorch's own kernels ran, in whole or in part, by reason.

    Examples
    --------
    >>> import cudnnpy.torch
    >>> stats = cudnnpy.torch.Stats(handled={"forward": 3}, fallbacks={"empty tensor": 1})
    >>> stats.fallbacks["empty tensor"]
    1
    """

    handled: dict[str, int]
    fallbacks: dict[str, int]


def stats() -> Stats:
    """Return the number of operations that ran on cudnnpy, and of fallbacks to PyTorch's kernels by reason.

    The numbers count the calls of the process since its start or the last `reset_stats`.

    Examples
    --------
    >>> # on a GPU, with torch
    >>> import torch
    >>> import cudnnpy.torch
    >>> before = cudnnpy.torch.stats().handled["forward"]
    >>> with cudnnpy.torch.enable():
    ...     y = torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda"))
    >>> cudnnpy.torch.stats().handled["forward"] - before
    1
    """
    return Stats(dict(HANDLED), dict(FALLBACKS))


def reset_stats() -> None:
    """Set the numbers that `stats` returns to 0.

    Examples
    --------
    >>> import cudnnpy.torch
    >>> cudnnpy.torch.reset_stats()
    >>> cudnnpy.torch.stats()
    Stats(handled={'forward': 0, 'backward_data': 0, 'backward_filter': 0}, fallbacks={})
    """
    HANDLED.clear()
    HANDLED.update(CONVOLUTIONS)
    FALLBACKS.clear()
