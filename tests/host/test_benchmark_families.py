"""The families of the benchmark's operations: their problems, and the figures, the page and the command of their rows."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from network_rows import network_writer

from tools.benchmark import __main__ as program
from tools.benchmark.families import page, problems
from tools.benchmark.families.problems import in_order


def _row(name: str, ours: float, torch: float = 0.1, error: str | None = None) -> dict[str, Any]:
    operation, shape, kind = name.split(" | ")
    times = {"torch": torch, "torch, again": torch, "cudnnpy": ours}
    return {
        "key": f"operations | {name}",
        "run": "r1",
        "part": "operations",
        "name": name,
        "error": error,
        "operation": operation,
        "shape": tuple(map(int, shape.split("x"))),
        "kind": kind,
        "unit": "ms",
        "bytes": 1 << 20,
        "memory_ms": 0.05,
        "ms": {who: {"median": value} for who, value in times.items()},
    }


ROWS = [
    _row("softmax | 16x64 | fp32", 0.05),
    _row("softmax | 16x128 | fp32", 0.2),
    _row("relu | 8x64x7x7 | fp16 NHWC", 0.001, torch=0.001),
    _row("scale | 8x64x7x7 | fp64 NCHW", 9.0, error="cudnnpy: differs from torch by nan"),
]

# --- the problems


def test_the_order_is_the_seeds_and_has_every_problem_once() -> None:
    first, again, other = in_order(3), in_order(3), in_order(4)
    assert [one.key for one in first] == [one.key for one in again] != [one.key for one in other]
    assert {one.key for one in first} == {one.key for one in other}
    assert len({one.key for one in first}) == len(first) == sum(map(len, problems.problems().values()))


def test_the_operations_take_turns() -> None:
    names = list(problems.problems())
    start = in_order(0)[: 2 * len(names)]
    turns = [problems.operation(one.case.name, one.shape) for one in start]
    assert sorted(turns[: len(names)]) == sorted(turns[len(names) :]) == sorted(names)


def test_the_families_reach_from_end_to_end() -> None:
    found = in_order(0)
    rows, images = ([one for one in found if len(one.shape) == rank] for rank in (2, 4))
    assert {one.shape[1] for one in rows} >= {64, 50257, 131072}
    assert {one.shape[1] for one in images} >= {1, 3, 4096}
    assert {one.shape[2] for one in images} >= {1, 7, 56, 256}
    for some, kinds in ((rows, 4), (images, 8)):
        assert len({one.kind.name for one in some}) == kinds
    assert all(problems.FEWEST <= math.prod(one.shape) <= problems.MOST for one in found)
    assert all(min(one.shape[2:]) > 1 for one in images if "pooling" in one.case.name or "instance" in one.case.name)


# --- the figures and the page


def test_the_figures_count_every_row_that_ran() -> None:
    mean, share, worst = page.figures(ROWS)
    assert (mean.reached, share.reached, worst.reached) == (
        pytest.approx(1.0),
        pytest.approx(1 / 3),
        pytest.approx(2.0),
    )
    assert [figure.reach for figure in (mean, share, worst)] == [0.80, 0.12, 1.50]
    assert {figure.why for figure in page.figures([])} == {"no row"}
    assert {figure.why for figure in page.figures(ROWS[3:])} == {"no row ran"}


def test_the_page_has_ratios_the_slowest_and_what_memory_would_take() -> None:
    text = page.markdown(ROWS, [{"run": "r1", "GPU": "NVIDIA H200", "seed": 2}], 46832)
    assert "# Operations over families of shapes on NVIDIA H200" in text
    assert "4 of 46,832 rows" in text
    assert "| softmax (rows) | 2 | 1.000 | 50 % | 2.000 | 2 | 1.000 | 2.000 |" in text
    assert "| relu | 1 | 1.000 | 0 % | 1.000 | 0 |  |  |" in text  # no long row
    assert "| softmax, 16x128, fp32 | 2.000 | 0.1000 | 0.2000 | 4.000 |" in text
    assert "- operations, scale | 8x64x7x7 | fp64 NCHW: cudnnpy: differs from torch by nan" in text
    assert "| seed | 2 |" in text
    assert page.summary_lines(ROWS)[3] == "slowest against torch: 2.000 softmax | 16x128 | fp32"


@pytest.mark.parametrize("failing", [True, False])
def test_rows_are_merged_without_a_gpu(
    failing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    files = []
    rows = ROWS if failing else ROWS[:3]
    for number, some in enumerate((rows[:2], rows[2:])):
        files.append(tmp_path / f"{number}.jsonl")
        writer = network_writer(files[-1], f"r{number}", f"2026-01-0{number + 1}")
        for row in some:
            writer.row(row["key"], {name: value for name, value in row.items() if name not in ("key", "run")})
        writer.close()
    out = tmp_path / "out"
    status = program.main(["--only", "operations", "--merge", *map(str, files), "--out", str(out)])
    assert status == (1 if failing else 0)
    assert [file.name for file in out.iterdir()] == ["nvidia-h200-operations.md"]
    assert f"{len(rows)} of " in (out / "nvidia-h200-operations.md").read_text()
    assert ("FAILED operations" in capsys.readouterr().out) is failing
