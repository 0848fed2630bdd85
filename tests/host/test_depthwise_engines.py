"""The strides of axes of size 1 mean nothing: every spelling of a depthwise problem gets the engines for depthwise.

PyTorch, CuPy and JAX write other numbers there; cuDNN goes by them.
"""

from __future__ import annotations

from typing import Any

import pytest
from planning import Planner, plan

__all__ = ["plan"]  # a fixture

N, C, H, W = 128, 144, 56, 56
LAST = [C * H * W, 1, C * W, C]
# a filter (C, 1, 3, 3) in C order, as PyTorch makes it channels last, and with strides that count on nothing
SPELLINGS = [[9, 9, 3, 1], [9, 1, 3, 1], [9, 0, 3, 1], [9, 4096, 3, 1]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_every_spelling_of_a_depthwise_filter_gets_the_same_engines(plan: Planner, operation: str, dtype: str) -> None:
    found = []
    for strides in SPELLINGS:
        request: dict[str, Any] = {"operation": operation, "dtype": dtype, "options": {"groups": C, "padding": 1}}
        x, w = [[N, C, H, W], LAST], [[C, 1, 3, 3], strides]
        if operation == "backward_filter":
            request |= {"first": x, "second": x, "shape": [C, 1, 3, 3], "out": w}
        else:
            request |= {"first": x, "second": w}
            if operation == "backward_data":
                request["shape"] = [N, C, H, W]
        # engines that need a GPU are among those that are not supported here, with another reason than the rest
        found.append([(one["source"], one["name"], one["refused"]) for one in plan("survey", **request)])
    assert len(found[0]) > 20
    assert found.count(found[0]) == len(found)
