"""The benchmark of attention: the problems that it draws, and the summary of made-up measurements."""

from __future__ import annotations

import math
from typing import Any

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


def row(operation: str, kind: str, error: str | None = None, **ms: float) -> dict[str, Any]:
    """A row whose contenders took these times."""
    times = {name: {"median": value} for name, value in ms.items()}
    return {
        "key": f"{operation} | {kind} problem",
        "cell": f"{kind} problem",
        "kind": kind,
        "operation": operation,
        "plan_s": 0.5,
        "ms": times,
        "errors": {"cudnnpy": {"out": 0.001}},
        "error": error,
    }


def test_the_summary_has_means_by_kind_and_the_slow_cells() -> None:
    rows = [
        row("forward", "plain", cudnnpy=1.0, CUDNN_ATTENTION=1.0, FLASH_ATTENTION=2.0),
        row("backward", "plain", cudnnpy=1.0, EFFICIENT_ATTENTION=0.5),
        row("forward", "causal", cudnnpy=1.21, CUDNN_ATTENTION=1.0, FLASH_ATTENTION=1.1),
        row("forward", "bias", "out is wrong by nan (allowed: 0.04)", cudnnpy=0.1, CUDNN_ATTENTION=1.0),
        row("forward", "window", cudnnpy=1.0),
        {"key": "host", "error": None, "us": {"torch": {"median": 30.0}, "forward(q, k, v)": {"median": 15.0}}},
    ]
    found = list(attention.lines(rows))
    assert found[1:5] == [
        "plain problem | 1.0000 1.00 0.50    - 1e-03 | 1.0000    -    - 2.00 1e-03",
        "causal problem | 1.2100 1.21 1.10    - 1e-03 | ",
        "bias problem | FAILED | ",
        "window problem | 1.0000    -    -    - 1e-03 | ",
    ]
    for line in (
        "forward over CUDNN_ATTENTION, all: 2 rows, mean 1.100, worst 1.21, 1 (50%) above 1.08",
        "    1.21 causal problem",
        "forward over the best road, plain: 1 rows, mean 1.000, worst 1.00, 0 (0%) above 1.08",
        "backward over the best road, all: 1 rows, mean 2.000, worst 2.00, 1 (100%) above 1.08",
        "failed: 1",
        "    FAILED forward | bias problem: out is wrong by nan (allowed: 0.04)",
        "host: torch 1.000, forward(q, k, v) 0.500 of torch's 30.0 us",
    ):
        assert line in found, (line, found)


def test_nan_is_wrong() -> None:
    assert attention.wrong({"out": 1e-3}, "float16") == ""
    assert attention.wrong({"out": math.nan, "dq": 1e-3, "dk": 1.0}, "float16") == (
        "out is wrong by nan (allowed: 0.005); dk is wrong by 1 (allowed: 0.005)"
    )
