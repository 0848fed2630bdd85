"""How the host cost of a call grows with the number of signatures that the plan cache holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cudnnpy
from tools.benchmark.timing import Budget, host_timer, interleaved, quiet, summary

COUNTS = (1, 100, 10_000)
CHANNELS = 8
SIDE = 100  # signatures are heights and widths from 3 to 102
TAKEN_IN_TURN = 64
MOST, LEAST = 100, 15


def shapes() -> list[tuple[int, int, int, int]]:
    """COUNTS[-1] different shapes of x, in an order that mixes their sizes."""
    every = [(1, CHANNELS, 3 + height, 3 + width) for height in range(SIDE) for width in range(SIDE)]
    random.Random(0).shuffle(every)
    return every


@contextmanager
def _room_for(signatures: int) -> Iterator[None]:
    """The cache's limit raised for the block, and an empty cache before and after it."""
    before = cudnnpy.cache_info().limit
    cudnnpy.clear_cache()
    cudnnpy.set_cache_limit(max(signatures, before))
    try:
        yield
    finally:
        cudnnpy.clear_cache()
        cudnnpy.set_cache_limit(before)


def measure(torch: Any, budget: Budget) -> Iterator[dict[str, Any]]:
    """One row for each count: microseconds of conv.forward(x, w, out=) for one signature, and for many in turn.

    `signatures` is below `wanted` where the budget ended first; at most 0.9 of it goes to filling the cache.
    """
    fill = budget.part(0.9)
    every = shapes()
    conv = cudnnpy.Convolution(padding=1)
    size = CHANNELS * (SIDE + 2) ** 2
    x = torch.randn(size, device="cuda", dtype=torch.float16)
    y = torch.empty_like(x)
    w = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)

    def call_for(shape: tuple[int, int, int, int]) -> Callable[[], object]:
        elements = CHANNELS * shape[2] * shape[3]
        memory = (1, shape[2], shape[3], CHANNELS)
        given, out = (flat[:elements].view(memory).permute(0, 3, 1, 2) for flat in (x, y))
        return lambda: conv.forward(given, w, out=out)

    with torch.no_grad(), _room_for(COUNTS[-1] + 1):
        calls: list[Callable[[], object]] = []
        for wanted in COUNTS:
            row: dict[str, Any] = {
                "wanted": wanted,
                "signatures": None,
                "us": None,
                "torch_us": None,
                "in_turn_us": None,
            }
            row["error"] = None
            try:
                for shape in every[len(calls) : wanted]:
                    if len(calls) >= COUNTS[1] and not fill.left:
                        break
                    calls.append(call_for(shape))
                    calls[-1]()
                row["signatures"] = len(calls)
                _time(torch, calls, row, budget.part(0.1))
                row["cached"] = cudnnpy.cache_info().size
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"
            yield row


def _time(torch: Any, calls: list[Callable[[], object]], row: dict[str, Any], budget: Budget) -> None:
    step = max(len(calls) // TAKEN_IN_TURN, 1)
    turns = calls[::step]
    at = 0

    def in_turn() -> object:
        nonlocal at
        at = (at + 1) % len(turns)
        return turns[at]()

    x = torch.randn(CHANNELS * 64, device="cuda", dtype=torch.float16).view(1, CHANNELS, 8, 8)
    w = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda", dtype=torch.float16)
    timers = {
        "us": host_timer(calls[0], torch.cuda.synchronize),
        # the machine's own drift between the rows: the same call of torch's beside each
        "torch_us": host_timer(lambda: torch.nn.functional.conv2d(x, w, padding=1), torch.cuda.synchronize),
        "in_turn_us": host_timer(in_turn, torch.cuda.synchronize),
    }
    for timer in timers.values():
        timer()
        timer()
    with quiet():
        for name, times in interleaved(timers, MOST, LEAST, budget).items():
            row[name] = summary(times)
