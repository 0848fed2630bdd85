"""Many call signatures and many addresses, drawn anew: memory is flat, and goes with the plans.

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

import cudnnpy

LAUNCHES = int(os.environ.get("CUDNNPY_SOAK", "50000"))
SIGNATURES = min(10_000, max(200, LAUNCHES // 100))
BLOCKS = 16 << 20  # bytes: the driver takes memory in blocks
OF_HOST = 48 << 20  # bytes: what the allocators of the host take in blocks


@pytest.fixture
def empty_cache(direct_launches: None) -> Iterator[None]:
    before = cudnnpy.cache_info()
    yield
    cudnnpy.set_cache_limit(before.limit)


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
        assert info.size <= info.limit
        assert info.direct_launches <= info.size


@pytest.mark.usefixtures("empty_cache")
def test_memory_is_flat() -> None:
    work = Work()
    begin = time.perf_counter()
    for shape in work.shapes:
        work.run(shape, 3)
    torch.cuda.synchronize()
    planned = time.perf_counter()
    memory = []
    for _ in range(8):
        work.run_drawn(LAUNCHES // 8)
        gc.collect()
        memory.append((used_by_host(), used_on_device()))
    ended = time.perf_counter()
    info = cudnnpy.cache_info()
    print(
        f"{work.launches} launches, {info.size} plans, planned in {planned - begin:.0f} s, launched in {ended - planned:.0f} s;"
        f" host and device, MiB: {[(host >> 20, device >> 20) for host, device in memory]}; {info}"
    )
    # the first quarter is the warm-up
    host, device = memory[1]
    assert max(later for later, _ in memory[2:]) - host <= OF_HOST
    assert max(later for _, later in memory[2:]) - device <= BLOCKS
    assert info.direct_launches > info.size // 2

    hot, left = [work.draw.choice(work.shapes) for _ in range(256)], []
    for _ in range(3):
        for shape in hot:
            work.run(shape, 10)
        assert cudnnpy.cache_info().direct_launches > 0
        cudnnpy.clear_cache()
        gc.collect()
        info = cudnnpy.cache_info()
        assert (info.size, info.direct_launches) == (0, 0)
        left.append((used_by_host(), used_on_device()))
    print(f"after clear_cache(), MiB: {[(host >> 20, device >> 20) for host, device in left]}")
    assert left[-1][0] - left[0][0] <= OF_HOST
    assert left[-1][1] - left[0][1] <= BLOCKS

    x, w = work.part(0, 4, 8, 8, 8), work.filters[8]  # and a result is still right
    torch.testing.assert_close(
        work.conv.forward(x, w).float(),
        torch.nn.functional.conv2d(x.float(), w.float(), padding=1),
        rtol=1e-2,
        atol=1e-1,
    )


@pytest.mark.usefixtures("empty_cache")
def test_launches_of_many_addresses_take_no_device_memory() -> None:
    """300 address tuples of 40 call signatures: direct launches are memory of the host alone."""
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
    assert cudnnpy.cache_info().direct_launches > 0
    assert used_on_device() - before <= 2 << 20
