"""The benchmark of attention: the problems that it draws, and the summary of made-up measurements."""

from __future__ import annotations

import math

from tools.benchmark import attention
from tools.benchmark.attention_cells import COUNT, KINDS, LONGEST, MOST_ELEMENTS, MOST_FLOP, drawn


def test_problems_are_drawn_by_the_seed_within_bounds() -> None:
    cells = drawn()
    assert (len(cells), drawn(count=10), {cell.kind for cell in cells}) == (COUNT, cells[:10], set(KINDS))
    assert drawn(seed=2) != cells
    for cell in drawn(count=500):
        assert cell.flop <= MOST_FLOP, cell.text
        assert cell.head_size in range(40, 257, 8), cell.text
        for name, spec in cell.specs().items():
            assert math.prod(spec.shape) <= (LONGEST**2 if name == "bias" else MOST_ELEMENTS), (name, cell.text)
            assert min(spec.shape) >= 1, (name, cell.text)


def test_nan_is_wrong() -> None:
    assert attention.wrong({"out": 1e-3}, "float16") == ""
    assert attention.wrong({"out": math.nan, "dq": 1e-3, "dk": 1.0}, "float16") == (
        "out is wrong by nan (allowed: 0.005); dk is wrong by 1 (allowed: 0.005)"
    )
