"""How the host cost of a call grows with the number of signatures that the plan cache holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import cudnnpy
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary

COUNTS = (1, 100, 10_000)
CHANNELS = 8
SIDE = 100  # signatures are heights and widths from 3 to 102
IN_TURN = 64  # signatures that are called in turn
MOST, LEAST = 100, 15  # repetitions


def shapes() -> list[tuple[int, int, int, int]]:
    """COUNTS[-1] different shapes of x, in an order that mixes their sizes."""
    every = [(1, CHANNELS, 3 + height, 3 + width) for height in range(SIDE) for width in range(SIDE)]
    random.Random(0).shuffle(every)
    return every


@contextmanager
def _cache_limit(signatures: int) -> Iterator[None]:
    """An empty plan cache with a raised limit."""
    before = cudnnpy.cache_info().limit
    cudnnpy.clear_cache()
    cudnnpy.set_cache_limit(max(signatures, before))
    try:
        yield
    finally:
        cudnnpy.clear_cache()
        cudnnpy.set_cache_limit(before)


def measure(torch: Any, row: dict[str, Any], budget: Budget) -> None:
    """Time conv.forward(x, w, out=) of one signature, and of many in turn, with each number of cached signatures.

    At most 0.9 of the budget goes to filling the cache, so the last number may be smaller. PyTorch's call beside each shows
    the drift of the machine.
    """
    fill = budget.part(0.9)
    conv = cudnnpy.Convolution(padding=1)
    x = torch.randn(CHANNELS * (SIDE + 2) ** 2, device="cuda", dtype=torch.float16)
    y = torch.empty_like(x)
    w = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)

    def call_for(shape: tuple[int, int, int, int]) -> Callable[[], object]:
        elements = CHANNELS * shape[2] * shape[3]
        memory = (1, shape[2], shape[3], CHANNELS)
        image, out = (flat[:elements].view(memory).permute(0, 3, 1, 2) for flat in (x, y))
        return lambda: conv.forward(image, w, out=out)

    row |= {"signatures": [], "us": {}}
    calls: list[Callable[[], object]] = []
    every = shapes()
    with torch.no_grad(), _cache_limit(COUNTS[-1] + 1):
        for count in COUNTS:
            for shape in every[len(calls) : count]:
                if len(calls) >= COUNTS[1] and not fill.left:
                    break
                calls.append(call_for(shape))
                calls[-1]()
            row["signatures"].append(len(calls))
            for name, times in _times(torch, calls, budget.part(0.1)).items():
                row["us"][f"{name}, {len(calls)}"] = summary(times)


def _times(torch: Any, calls: list[Callable[[], object]], budget: Budget) -> dict[str, list[float]]:
    following = cycle(calls[:: max(len(calls) // IN_TURN, 1)]).__next__
    x = torch.randn(CHANNELS * 64, device="cuda", dtype=torch.float16).view(1, CHANNELS, 8, 8)
    w = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda", dtype=torch.float16)
    timers = {
        "one": host_timer(calls[0], torch.cuda.synchronize),
        "torch": host_timer(lambda: torch.nn.functional.conv2d(x, w, padding=1), torch.cuda.synchronize),
        "in turn": host_timer(lambda: following()(), torch.cuda.synchronize),
    }
    for timer in timers.values():
        timer()
        timer()
    with quiet():
        return interleaved(timers, MOST, LEAST, budget)
