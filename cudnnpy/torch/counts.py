"""What ran on cudnnpy, and what was left to PyTorch's kernels and why."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

# Why a call is left to PyTorch's kernels.
CUDNN_OFF = "torch.backends.cudnn.enabled is False"
EMPTY = "no elements"
LARGE = "2**31 elements or more"
ELEMENT_TYPE = "element type"
ARGUMENTS = "arguments that do not fit"
VOLUMES = "depthwise with three spatial axes, for which PyTorch's kernel is faster"
CAPTURE = "a CUDA graph is being captured, and the call was not planned before"
MEMORY = "out of memory"
NO_ALGORITHM = "no algorithm"
FAILED = "cuDNN failed"
TURNED_OFF = "turned off by another thread"

# In an interpreter with the GIL no other thread runs within `TAKEN[name] += 1`.
TAKEN = dict.fromkeys(("forward", "backward_data", "backward_filter"), 0)
LEFT: Counter[str] = Counter()


class Stats(NamedTuple):
    """What `stats` returns.

    Attributes
    ----------
    taken : dict of str to int
        The number of operations that ran on cudnnpy: "forward", "backward_data" (gradients with respect to the input) and
        "backward_filter" (gradients with respect to the filter), of convolutions and of transposed convolutions.
    left : dict of str to int
        The number of calls that PyTorch's own kernels ran, in whole or in part, by reason.
    """

    taken: dict[str, int]
    left: dict[str, int]


def stats() -> Stats:
    """Return how many operations ran on cudnnpy, and how many calls were left to PyTorch's kernels, by reason.

    The numbers are those of the process, since its start or the last `reset_stats`.
    """
    return Stats(dict(TAKEN), dict(LEFT))


def reset_stats() -> None:
    """Set the numbers that `stats` returns to 0."""
    TAKEN.update(dict.fromkeys(TAKEN, 0))
    LEFT.clear()
