"""Runs of a plan at addresses drawn anew for each run, between bytes that no run may change."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tools.benchmark.networks.cells import Kind
from tools.benchmark.networks.tensors import Difference
from tools.benchmark.timing import Budget

ALIGNMENT = 16  # bytes, of every address, the workspace's too
LARGEST_GAP = 1 << 16  # bytes between two arrays
FILL = 255  # in every byte: NaN in all floating-point types


def draw_offsets(sizes: Sequence[int], draw: random.Random) -> tuple[list[int], list[tuple[int, int]]]:
    """Offsets of arrays in one buffer, in an order and with gaps drawn anew; and the gaps, each as (start, end)."""
    order = list(range(len(sizes)))
    draw.shuffle(order)
    offsets, gaps, end = [0] * len(sizes), [], 0
    for index in order:
        start = -(-end // ALIGNMENT) * ALIGNMENT + ALIGNMENT * draw.randint(1, LARGEST_GAP // ALIGNMENT)
        gaps.append((end, start))
        offsets[index], end = start, start + sizes[index]
    gaps.append((end, end + ALIGNMENT * draw.randint(1, LARGEST_GAP // ALIGNMENT)))
    return offsets, gaps


def buffer_size(sizes: Sequence[int]) -> int:
    """Bytes that are enough for any offsets."""
    return sum(sizes) + (len(sizes) + 1) * (LARGEST_GAP + ALIGNMENT)


def run(
    torch: Any,
    plan: Any,
    inputs: Sequence[Any],
    out: Any,
    compare: Callable[[Any], Difference],
    kind: Kind,
    draw: random.Random,
    count: int,
    budget: Budget,
) -> dict[str, Any]:
    """Run a plan `count` times and return how many runs there were, how many were wrong or changed other bytes.

    Inputs, result and workspace are in one buffer. The gaps, the result and the workspace are NaN before each run. At least
    ten runs take place; a spent budget saves the others.
    """
    arrays = [*inputs, out]
    sizes = [array.nbytes for array in arrays] + [plan.workspace_size] * bool(plan.workspace_size)
    memory = torch.empty(buffer_size(sizes), device=out.device, dtype=torch.uint8)
    stream = torch.cuda.current_stream().cuda_stream
    found: dict[str, Any] = {"count": 0, "wrong": 0, "changed": 0, "largest": 0.0}
    for number in range(count):
        if number >= 10 and not budget.left:
            break
        offsets, gaps = draw_offsets(sizes, draw)
        memory[: gaps[-1][1]].fill_(FILL)
        views = [view(memory, offset, array) for array, offset in zip(arrays, offsets, strict=False)]
        for placed, array in zip(views, inputs, strict=False):
            placed.copy_(array)
        addresses = [memory.data_ptr() + offset for offset in offsets] + [0] * (not plan.workspace_size)
        plan.execute(*addresses, stream)
        torch.cuda.synchronize()
        changed = sum((memory[start:end] != FILL).any() for start, end in gaps)
        changed += sum((placed != array).any() for placed, array in zip(views, inputs, strict=False))
        difference = compare(views[-1])
        found["count"] += 1
        found["changed"] += bool(changed)
        found["wrong"] += not difference.within(kind.tolerance)
        found["largest"] = max(found["largest"], difference.relative)
    return found


def view(memory: Any, offset: int, array: Any) -> Any:
    """A tensor with the dtype, shape and strides of an array, at an offset of a buffer of bytes."""
    part = memory[offset : offset + array.nbytes].view(array.dtype)
    return part.as_strided(array.shape, array.stride(), part.storage_offset())
