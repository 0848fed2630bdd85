"""What of autotune's measuring needs no GPU: the first run's time, and how far results may differ."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from cudnnpy import TensorSpec
from cudnnpy.convolution import problem
from cudnnpy.convolution.bench import Bench, tolerance


@pytest.mark.parametrize(("whole", "expected"), [(1042.0, 1022.0), (5.0, 0.0)])
def test_a_first_run_is_timed_without_what_the_host_spends(
    monkeypatch: pytest.MonkeyPatch, whole: float, expected: float
) -> None:
    """20 ms in the launch, of which the events between which it is timed see all, or only the end."""
    clock = iter([0.5, 0.52])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    launched: list[int] = []

    def run(launches: Any, count: int) -> float:
        assert count == len(launches) == 1
        assert launches[0]() == 0
        return whole

    bench = Bench.__new__(Bench)
    monkeypatch.setattr(bench, "_run", run)
    assert math.isclose(bench._first(lambda: launched.append(1) or 0), expected, abs_tol=1e-6)
    assert launched == [1]


def test_a_first_run_that_fails_is_told_to_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.__new__(Bench)
    seen: list[int] = []
    monkeypatch.setattr(bench, "_run", lambda launches, count: seen.append(launches[0]()) or 1.0)
    bench._first(lambda: 3000)
    assert seen == [3000]


def test_tolerance_grows_with_the_sum_and_with_coarser_types() -> None:
    def of(dtype: str, channels: int, tf32: bool = True) -> float:
        options = problem.checked(problem.Options())
        x, w = TensorSpec((1, channels, 4, 4), dtype), TensorSpec((1, channels, 3, 3), dtype)
        y = TensorSpec((1, 1, 2, 2), dtype)
        return tolerance(problem.make_problem(options, "forward", x, w, y), tf32)

    assert of("float64", 8) < of("float32", 8, tf32=False) < of("float32", 8) <= of("float16", 8) < of("bfloat16", 8)
    assert of("float32", 8, tf32=False) < of("float32", 800, tf32=False) < 1e-2
    assert of("bfloat16", 8) < 0.25
