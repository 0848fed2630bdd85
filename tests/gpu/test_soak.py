"""Many signatures and many addresses, drawn anew: what is kept stays within its limits, and memory is flat.

CUDNNPY_SOAK is the number of launches (50,000 by default); the signatures are one for each 100 launches, at most 10,000.
The soak for a release is CUDNNPY_SOAK=1000000, which takes about two minutes.
"""

from __future__ import annotations

import gc
import math
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cuda.bindings import driver

import cudnnpy

LAUNCHES = int(os.environ.get("CUDNNPY_SOAK", "50000"))
SIGNATURES = min(10_000, max(200, LAUNCHES // 100))
BLOCKS = 16 << 20  # bytes: the driver takes memory in blocks
OF_HOST = 48 << 20  # bytes: what the allocators of the host take in blocks


@pytest.fixture
def empty_cache() -> Iterator[None]:
    before = cudnnpy.cache_info()
    cudnnpy.clear_cache()
    yield
    cudnnpy.set_cache_limit(before.limit, replays=before.replay_limit)
    cudnnpy.clear_cache()


def used_by_host() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def used_on_device() -> int:
    """Bytes of device memory in use beyond what PyTorch's allocator holds, whose pool is of one size here."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


class Work:
    """Launches of convolutions of many signatures, each at operands somewhere in a pool; some addresses are used again."""

    def __init__(self) -> None:
        self.draw, self.conv, self.launches = random.Random(7), cudnnpy.Convolution(padding=1), 0
        self.pool = torch.empty(64 << 20, dtype=torch.float16, device="cuda").normal_()  # its first half is for inputs
        self.half = self.pool.numel() // 2
        self.shapes = [(1 + at % 16, 8 * (1 + at // 16 % 25), 4 + at // 400) for at in range(SIGNATURES)]
        self.filters = {
            channels: torch.randn(8, channels, 3, 3, device="cuda").half() for _, channels, _ in self.shapes
        }

    def part(self, start: int, *shape: int) -> torch.Tensor:
        """A tensor somewhere in the half of the pool that begins at `start`."""
        size = math.prod(shape)
        strides = (size // shape[0], shape[2] * shape[3], shape[3], 1)
        start += 64 * int(self.draw.random() * ((self.half - size) // 64))
        return self.pool.as_strided(shape, strides, start)

    def run(self, shape: tuple[int, int, int], times: int) -> None:
        batch, channels, length = shape
        x, y = self.part(0, batch, channels, length, length), self.part(self.half, batch, 8, length, length)
        forward, w = self.conv.forward, self.filters[channels]
        for _ in range(times):
            forward(x, w, out=y)
        self.launches += times

    def run_drawn(self, launches: int) -> None:
        """Run drawn signatures at drawn addresses."""
        choice, end = self.draw.choice, self.launches + launches
        while self.launches < end:
            self.run(choice(self.shapes), choice((1, 1, 1, 2, 6)))
        torch.cuda.synchronize()
        info = cudnnpy.cache_info()
        assert info.launches <= info.launch_limit
        assert info.direct_launches <= info.launch_limit
        assert info.replays <= info.replay_limit
        assert info.replay_bytes <= info.replay_bytes_limit


@pytest.mark.usefixtures("empty_cache")
def test_memory_is_flat_and_what_is_kept_is_bounded() -> None:
    work = Work()
    begin = time.perf_counter()
    cudnnpy.set_cache_limit(replays=0)
    for shape in work.shapes:
        work.run(shape, 2)
    limit = 256
    without_graphs = used_on_device()
    cudnnpy.set_cache_limit(replays=limit)
    planned = time.perf_counter()
    memory = []
    for _ in range(8):
        work.run_drawn(LAUNCHES // 8)
        gc.collect()
        memory.append((used_by_host(), used_on_device()))
    hot = [work.draw.choice(work.shapes) for _ in range(limit)]
    for shape in hot:  # so that all graphs are taken
        for _ in range(4):
            work.run(shape, 150)
    ended = time.perf_counter()
    info, with_graphs = cudnnpy.cache_info(), used_on_device()
    print(
        f"{work.launches} launches, {info.size} plans, planned in {planned - begin:.0f} s, launched in {ended - planned:.0f} s;"
        f" host and device, MiB: {[(host >> 20, device >> 20) for host, device in memory]}; {info}"
    )
    # the first quarter is the warm-up, in which what is bounded fills up
    host, device = memory[1]
    assert max(later for later, _ in memory[2:]) - host <= OF_HOST
    assert max(later for _, later in memory[2:]) - device <= BLOCKS
    assert info.replays == limit
    assert with_graphs - without_graphs <= info.replay_bytes_limit

    left = []
    for _ in range(3):
        for shape in hot:
            for _ in range(4):
                work.run(shape, 150)
        assert cudnnpy.cache_info().replays > limit // 2
        cudnnpy.clear_cache()
        gc.collect()
        info = cudnnpy.cache_info()
        assert (info.size, info.launches, info.replays, info.replay_bytes, info.direct_launches) == (0, 0, 0, 0, 0)
        left.append(used_on_device() - without_graphs)
    graphs = with_graphs - without_graphs
    driver.cuDeviceGraphMemTrim(0)
    trimmed = used_on_device() - without_graphs
    print(
        f"of {graphs >> 10} KiB for graphs, left after clear_cache(): {[one >> 10 for one in left]} KiB, "
        f"and after cuDeviceGraphMemTrim: {trimmed >> 10} KiB"
    )
    # The driver keeps what graphs had at most at one time, and uses it again: later graphs take nothing more.
    assert max(left) <= graphs + BLOCKS // 2
    assert left[-1] <= left[0]

    x, w = work.part(0, 4, 8, 8, 8), work.filters[8]  # and a result is still right
    torch.testing.assert_close(
        work.conv.forward(x, w).float(),
        torch.nn.functional.conv2d(x.float(), w.float(), padding=1),
        rtol=1e-2,
        atol=1e-1,
    )


@pytest.mark.usefixtures("empty_cache")
def test_graphs_of_many_addresses_stay_within_the_limit_on_the_device() -> None:
    """300 address tuples of 40 signatures, each used often enough for a graph, before and after clear_cache()."""
    conv = cudnnpy.Convolution(padding=1)
    pool = torch.zeros(32 << 20, dtype=torch.float16, device="cuda")
    w = torch.zeros(8, 8, 3, 3, dtype=torch.float16, device="cuda")
    half = pool.numel() // 2

    def run(length: int, tuples: int) -> None:
        size = 8 * length * length
        for at in range(tuples):
            x = pool[64 * at : 64 * at + size].view(1, 8, length, length)
            y = pool[half + 64 * at : half + 64 * at + size].view(1, 8, length, length)
            for _ in range(30):
                conv.forward(x, w, out=y)

    for length in range(4, 44):
        run(length, 1)
    before = used_on_device()
    for length in range(4, 44):
        run(length, 300)
    info = cudnnpy.cache_info()
    assert 0 < info.replays <= info.replay_limit
    with_graphs = used_on_device()
    assert with_graphs - before <= 64 << 20
    cudnnpy.clear_cache()
    assert cudnnpy.cache_info().replays == 0
    assert used_on_device() <= with_graphs  # the driver keeps their memory for later graphs, which need no more:
    for length in range(4, 44):
        run(length, 300)
    assert cudnnpy.cache_info().replays > 0
    assert used_on_device() - with_graphs <= 8 << 20
