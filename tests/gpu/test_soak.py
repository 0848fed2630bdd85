"""Many signatures and many addresses, drawn anew: what is kept stays within its limits, and memory is flat.

CUDNNPY_SOAK is the number of calls (50,000 by default); the signatures are one for each 100 calls, at most 10,000. The
soak for a release is CUDNNPY_SOAK=1000000.
"""

from __future__ import annotations

import gc
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cudnnpy

CALLS = int(os.environ.get("CUDNNPY_SOAK", "50000"))
SIGNATURES = min(10_000, max(200, CALLS // 100))
GROWTH = 64 << 20  # bytes: the driver and the allocators take memory in blocks


@pytest.fixture
def empty_cache() -> Iterator[None]:
    limit = cudnnpy.cache_info().limit
    cudnnpy.clear_cache()
    yield
    cudnnpy.set_cache_limit(limit)
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


@pytest.mark.usefixtures("empty_cache")
def test_memory_is_flat_and_what_is_kept_is_bounded() -> None:
    draw = random.Random(7)
    conv = cudnnpy.Convolution(padding=1)
    pool = torch.empty(64 << 20, dtype=torch.float16, device="cuda").normal_()  # all operands are parts of it
    shapes = [(1 + number % 16, 8 * (1 + number // 16 % 25), 4 + number // 400) for number in range(SIGNATURES)]
    filters = {channels: torch.randn(8, channels, 3, 3, device="cuda").half() for _, channels, _ in shapes}

    def part(*shape: int) -> Any:
        """A tensor somewhere in the pool, its first half for inputs."""
        size = 1
        for length in shape:
            size *= length
        start = 64 * draw.randrange((pool.numel() // 2 - size) // 64)
        return pool[start : start + size].view(shape)

    def run(shape: tuple[int, int, int]) -> None:
        batch, channels, length = shape
        x, w = part(batch, channels, length, length), filters[channels]
        size = batch * 8 * length * length
        start = pool.numel() // 2 + 64 * draw.randrange((pool.numel() // 2 - size) // 64)
        y = pool[start : start + size].view(batch, 8, length, length)
        for _ in range(draw.choice((1, 1, 1, 2, 6))):  # some addresses are used again
            conv.forward(x, w, out=y)

    for shape in shapes:  # the warm-up: every signature is planned, and launched at several addresses
        run(shape)
        run(shape)
    gc.collect()
    host, device = used_by_host(), used_on_device()
    for number in range(CALLS):
        run(draw.choice(shapes))
        if number % 5000 == 4999:
            torch.cuda.synchronize()
            info = cudnnpy.cache_info()
            assert info.launches <= info.launch_limit
            assert info.replays <= info.replay_limit
            assert info.replay_bytes <= info.replay_bytes_limit
    gc.collect()
    # what may still fill up since the warm-up is what is bounded
    info = cudnnpy.cache_info()
    assert used_on_device() - device <= GROWTH + info.replay_bytes_limit
    assert used_by_host() - host <= GROWTH + 4096 * info.launch_limit
    with_graphs = used_on_device()
    cudnnpy.clear_cache()
    gc.collect()
    info = cudnnpy.cache_info()
    assert (info.size, info.launches, info.replays, info.replay_bytes) == (0, 0, 0, 0)
    assert used_on_device() <= with_graphs

    x, w = part(4, 8, 8, 8), filters[8]  # and a result is still right
    torch.testing.assert_close(
        conv.forward(x, w).float(), torch.nn.functional.conv2d(x.float(), w.float(), padding=1), rtol=1e-2, atol=1e-1
    )


@pytest.mark.usefixtures("empty_cache")
def test_clear_cache_gives_the_graphs_memory_back() -> None:
    """300 address tuples of 40 signatures, each used often enough for a graph: the limit holds on the device."""
    conv = cudnnpy.Convolution(padding=1)
    pool = torch.zeros(32 << 20, dtype=torch.float16, device="cuda")
    w = torch.zeros(8, 8, 3, 3, dtype=torch.float16, device="cuda")
    half = pool.numel() // 2

    def run(length: int, tuples: int) -> None:
        size = 8 * length * length
        for at in range(tuples):
            x = pool[64 * at : 64 * at + size].view(1, 8, length, length)
            y = pool[half + 64 * at : half + 64 * at + size].view(1, 8, length, length)
            for _ in range(6):
                conv.forward(x, w, out=y)

    for length in range(4, 44):
        run(length, 1)
    before = used_on_device()
    for length in range(4, 44):
        run(length, 300)
    info = cudnnpy.cache_info()
    assert 0 < info.replays <= info.replay_limit
    assert used_on_device() - before <= 64 << 20
    cudnnpy.clear_cache()
    assert cudnnpy.cache_info().replays == 0
    assert used_on_device() - before <= 16 << 20  # of the graphs' memory the driver keeps 8 MiB for later graphs
