"""The strides of axes of size 1 have no meaning: every description of a depthwise problem gets the engines for depthwise.

PyTorch, CuPy and JAX write different numbers there, and cuDNN goes by them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from planning import Planner, plan

__all__ = ["plan"]  # a fixture

N, C, H, W = 128, 144, 56, 56
LAST = [C * H * W, 1, C * W, C]
OPERATIONS = ["forward", "backward_data", "backward_filter"]
# cuDNN's engines for depthwise convolutions channels last: a device profile cannot plan them, but they are not unsupported
SPECIAL = {"forward": {5}, "backward_data": {6}, "backward_filter": {59, 60}}
UNSUPPORTED = "NOT_SUPPORTED (3000)"

# The filter (C, 1, 3, 3), channels last in memory:
FILTERS = {
    "contiguous": [9, 9, 3, 1],  # PyTorch, CuPy and JAX
    "to(memory_format=torch.channels_last), or transposed from (C, 3, 3, 1)": [9, 1, 3, 1],
    "newaxis": [9, 0, 3, 1],  # NumPy and CuPy: w[:, None]
    "a slice of one channel of 64": [9, 4096, 3, 1],
}
# Batches of one image, channels last in memory:
IMAGES = {
    "to(memory_format=torch.channels_last), x[:1], or transposed from (1, H, W, C)": [C * H * W, 1, C * W, C],
    "unsqueeze(0)": [C, 1, C * W, C],  # PyTorch's: the stride of the next axis times its size
    "newaxis": [0, 1, C * W, C],  # NumPy and CuPy: x[None]
}


def request(operation: str, dtype: str, x: Any, w: Any) -> dict[str, Any]:
    """A request of planner.py for one direction: x and w are [shape, strides]; y is described as x."""
    found: dict[str, Any] = {"operation": operation, "dtype": dtype, "options": {"groups": C, "padding": 1}}
    if operation == "backward_filter":
        return {**found, "first": x, "second": x, "shape": w[0], "out": w}
    found |= {"first": x, "second": w}
    return {**found, "shape": x[0]} if operation == "backward_data" else found


def candidates(plan: Planner, operation: str, dtype: str, x: Any, w: Any) -> list[tuple[str, str, str]]:
    rows = plan("survey", **request(operation, dtype, x, w))
    return [(one["source"], one["name"], one["refused"]) for one in rows]


def unsupported(rows: list[tuple[str, str, str]]) -> set[int]:
    """The engines that do not support the problem by cuDNN's answer, whatever the device."""
    found: set[int] = set()
    for _, name, refused in rows:
        match = re.fullmatch(r"engines? ([\d, -]+)", name)
        if match and UNSUPPORTED in refused:
            for part in match[1].split(","):
                first, _, end = part.strip().partition("-")
                found.update(range(int(first), int(end or first) + 1))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_description_of_a_depthwise_filter_gets_the_same_engines(
    plan: Planner, operation: str, dtype: str
) -> None:
    x = [[N, C, H, W], LAST]
    found = [candidates(plan, operation, dtype, x, [[C, 1, 3, 3], strides]) for strides in FILTERS.values()]
    assert len(found[0]) > 20
    assert found.count(found[0]) == len(found)
    assert not SPECIAL[operation] & unsupported(found[0])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_filter_in_another_order_has_other_engines(plan: Planner, operation: str) -> None:
    """So the special engines are told apart. A filter of two channels has only one order."""
    how = request(operation, "float16", [[N, C, H, W], LAST], [[C, 2, 3, 3], [18, 9, 3, 1]])
    rows = plan("survey", **{**how, "options": {"groups": C // 2, "padding": 1}})
    assert SPECIAL[operation] <= unsupported([(one["source"], one["name"], one["refused"]) for one in rows])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_description_of_one_image_gets_the_same_engines(plan: Planner, operation: str) -> None:
    w = [[C, 1, 3, 3], [9, 9, 3, 1]]
    found = [candidates(plan, operation, "float16", [[1, C, H, W], strides], w) for strides in IMAGES.values()]
    assert found.count(found[0]) == len(found)
    assert not SPECIAL[operation] & unsupported(found[0])
