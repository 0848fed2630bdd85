"""Clocks and statistics: contenders in turns, by host and GPU, on tensors in rotation, so that none is in the L2 cache."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import repeat
from statistics import median, quantiles
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

# Calls between two synchronisations on the host's clock: the GPU's launch queue (1,024 entries) never fills.
HOST_BATCH = 64
REPETITION_MS = 2.0  # the GPU time that one contender takes in one repetition, at least
HOST_WARM_UP = 8  # calls before, which bring the contender's own code and data into the processor's caches


class Budget:
    """The remaining seconds of a total."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds, 0 or more."""
        return max(self._end - time.perf_counter(), 0.0)


def interleaved(
    timers: Mapping[str, Callable[[], float]], most: int, least: int, budget: Budget
) -> dict[str, list[float]]:
    """Run every timer once in each repetition, in an order drawn anew, so that no timer always follows the same one.

    There are at most `most` repetitions, and no more than `least` once the budget is spent.
    """
    names = list(timers)
    times: dict[str, list[float]] = {name: [] for name in timers}
    order = random.Random(0)
    for repetition in range(most):
        if repetition >= least and not budget.left:
            break
        order.shuffle(names)
        for name in names:
            times[name].append(timers[name]())
    return times


def summary(times: list[float]) -> dict[str, float]:
    """The median, the quartiles and the number of repetitions."""
    low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"median": median(times), "low": low, "high": high, "runs": len(times)}


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside, as in timeit."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def within(around: Callable[[], AbstractContextManager[Any]], call: Callable[[], ResultT]) -> ResultT:
    """Call a timer within a context manager, which is outside its clock."""
    with around():
        return call()


def host_timer(call: Callable[[], object], synchronize: Callable[[], object]) -> Callable[[], float]:
    """Microseconds of the host for one call, over HOST_BATCH calls; the GPU is idle before and waited for outside."""

    def timed() -> float:
        for _ in range(HOST_WARM_UP):
            call()
        synchronize()
        begin = time.perf_counter()
        for _ in repeat(None, HOST_BATCH):
            call()
        end = time.perf_counter()
        synchronize()
        return (end - begin) / HOST_BATCH * 1e6

    return timed


def device_timer(torch: Any, calls: list[Callable[[], object]], count: int, host_us: int = 30) -> Callable[[], float]:
    """Milliseconds of the GPU for one call, by events around `count` calls that take turns through `calls`.

    The GPU spins first for as long as the host needs to queue the calls, `host_us` for each, so that the host is never
    measured.
    """
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    cycles = 100_000 + 2_000 * host_us * count  # at 2 GHz: 50 us, and the time for each call

    def timed() -> float:
        torch.cuda._sleep(cycles)
        start.record()
        for index in range(count):
            calls[index % len(calls)]()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / count

    return timed


def rotation(torch: Any, moved_bytes: int, most: int = 16) -> int:
    """How many sets of tensors are four times the L2 cache together, so that no call finds its inputs there."""
    cache = int(torch.cuda.get_device_properties(0).L2_cache_size)
    return min(max(math.ceil(4 * cache / moved_bytes), 1), most)


def times_in_turns(
    torch: Any,
    contenders: Mapping[str, list[Callable[[], object]]],
    most: int,
    least: int,
    budget: Budget,
    host_us: int = 30,
) -> dict[str, list[float]]:
    """Milliseconds of the GPU for each contender, whose calls take turns, and once more for "torch" ("torch, again").

    Everything runs before anything is timed, and each contender is called as often as fills a repetition.
    """
    timers: dict[str, Callable[[], float]] = {}
    for name, calls in contenders.items():
        for call in calls:
            call()
        once = device_timer(torch, calls, 1, host_us)()
        count = min(max(math.ceil(REPETITION_MS / once), 1), 50)
        timers[name] = device_timer(torch, calls, count, host_us)
    if "torch" in timers:
        timers["torch, again"] = timers["torch"]
    for timer in timers.values():
        timer()
    return interleaved(timers, most, least, budget)
