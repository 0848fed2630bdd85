"""Measuring without a GPU: the first run's time, checks and rejections, and the final comparison."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_candidates import made_up

from cudnnpy import TensorSpec
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.tuning.measuring.bench import Bench
from cudnnpy.tuning.measuring.bench_buffers import FIRST, Fills
from cudnnpy.tuning.measuring.timing import SILENT, Timer


def asked(*given: Any) -> ConvolutionProblem:
    return ConvolutionProblem(*specification.make_problem(*given))


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

    timer = Timer.__new__(Timer)
    monkeypatch.setattr(timer, "run", run)
    found = timer.first(lambda: launched.append(1) or 0, lambda: launched.append(2))
    assert math.isclose(found, expected, abs_tol=1e-6)
    assert launched == [1, 2]


@pytest.mark.parametrize(
    ("count", "first", "expected", "busy"),
    [
        (10, (0.05, 0.11), 0.005, [0.12]),  # the GPU was kept busy for longer than the host needed
        (10, (0.2, 0.2), 0.005, [0.12, 0.3]),  # the GPU may have waited for the host
        (10, (4.0, 0.2), 0.4, [0.12]),  # the GPU took much longer
        (1, (0.2, 0.2), 0.2, [0.012]),  # a single run is timed without what the host spends
    ],
)
def test_runs_that_the_gpu_may_have_waited_for_are_timed_again(
    monkeypatch: pytest.MonkeyPatch, count: int, first: tuple[float, float], expected: float, busy: list[float]
) -> None:
    timer, seen = Timer.__new__(Timer), list[float]()

    def run_after(busy: float, launches: Any, count: int) -> tuple[float, float]:
        seen.append(busy)
        return first if len(seen) == 1 else (0.05, 0.2)

    monkeypatch.setattr(timer, "_run_after", run_after)
    assert timer.run([], count) == pytest.approx(expected)
    assert seen == pytest.approx(busy)


@pytest.mark.parametrize(
    ("queued", "expected"),
    [
        ((12.0, 11.0), 1.1),  # the host takes longer than the GPU
        ((12.0, 0.9), 0.5),  # it was interrupted
        ((0.9, 0.9), 0.5),
        ((4.0, 4.0), 0.5),
    ],
)
def test_the_time_of_the_host_counts_for_dozens_of_kernels(
    monkeypatch: pytest.MonkeyPatch, queued: tuple[float, float], expected: float
) -> None:
    """64 kernels of a grouped convolution took the GPU 0.5 ms, and the host 1.2."""
    timer, left = Timer.__new__(Timer), iter(queued)
    monkeypatch.setattr(timer, "_run_after", lambda busy, launches, count: (5.0, next(left)))
    assert timer.run([], 10) == pytest.approx(expected)


# A bench whose GPU computes one number: a candidate's result


class Memory:
    """In place of the memory that candidates run in: the number that the last run left, and the one that is kept."""

    has_copies = is_at_end = True

    def __init__(self, results: Any) -> None:
        self.results, self.scratch, self.kept, self.compared = results, [0], [0], [0]
        self.number = self.kept_number = math.nan

    def copy_results(self, to: Any) -> None:
        if to is self.kept:
            self.kept_number = self.number

    def have_gaps_changed(self) -> bool:
        return False


class Sketch(Bench):
    """A bench that is told each candidate's result, its time, and the right result, which an arbiter may know."""

    def __init__(self, results: dict[str, float], times: dict[str, float] | None = None, given: Any = None) -> None:
        self.problem, self.options, self._watch = given or convolution(), PlanningOptions(), SILENT
        self.memory: Any = Memory(self.problem.specs[-1:])
        self.timer: Any = SimpleNamespace(running=None, run=self.run, first_queued_ms=0.0)
        self._max_abs = self.largest  # type: ignore[assignment]
        self._checker: Any = SimpleNamespace(errors=self.errors)
        self.baseline, self.baseline_of, self.verified, self.best, self._ran = [], None, {}, math.inf, None
        self.results, self.times = results, times or {}
        self.others: dict[str, float] = {}  # the results of second runs, if they differ
        self.truth: float | None = None
        self.firsts: dict[str, float] = {}  # first runs that take longer
        self.guarded: list[str] = []  # the names of the candidates of first and second runs
        self.runs: list[str] = []  # those of the candidates of timed rounds, and the numbers of their runs
        self.counts: list[int] = []

    def _timed_launches(self, candidate: Candidate) -> Any:
        return [candidate.name]

    def _run_guarded(self, candidate: Candidate, fills: Fills = FIRST) -> float:
        name = candidate.name
        self.guarded.append(name)
        self._ran = candidate if fills == FIRST else None
        self.memory.number = self.results[name] if fills == FIRST else self.others.get(name, self.results[name])
        return self.firsts.get(name, self.times.get(name, 1.0))

    def run(self, launches: Any, count: int) -> float:
        self.runs.append(launches[0])
        self.counts.append(count)
        return self.times.get(launches[0], 1.0)

    def largest(self, spec: Any, address: int, size: int, minus: int | None = None) -> float:
        if minus is None:
            return abs(self.memory.number)
        return abs(self.memory.number - self.memory.kept_number)

    def errors(self, one: int, other: int) -> list[float] | None:
        if self.truth is None:
            return None
        return [abs(self.memory.number - self.truth), abs(self.memory.kept_number - self.truth)]

    def tuned(self, *candidates: Candidate) -> list[str]:
        """The names of the finalists, where the first candidate is the default choice."""
        ran = [candidate for candidate in candidates if self.measure(candidate)]
        return [candidate.name for candidate in self.finalists(ran, candidates[0])]


def convolution(dtype: str = "float32", result: str | None = None) -> ConvolutionProblem:
    options = ConvolutionOptions()
    x, w = TensorSpec((1, 8, 4, 4), dtype), TensorSpec((4, 8, 3, 3), dtype)
    return asked(options, "forward", x, w, TensorSpec((1, 4, 2, 2), result or dtype))


def candidate(name: str, *notes: str) -> Candidate:
    made = made_up(name, "engines", notes=notes)
    made.executable = object()  # type: ignore[assignment]
    return made


# The baseline


def test_a_result_may_be_0_whatever_the_numbers() -> None:
    """With alpha 0, say."""
    bench = Sketch({"slow": 0.0, "fast": 0.0, "wrong": 1.0}, {"slow": 9.0, "wrong": 0.5})
    assert bench.tuned(candidate("slow"), candidate("fast"), candidate("wrong")) == ["fast"]


def test_what_a_graph_makes_need_not_be_finite() -> None:
    specs = convolution().specs
    given: Any = SimpleNamespace(
        specs=specs, has_finite_results=False, compute_dtype="float32", reduction_length=9
    )  # no convolution's
    bench = Sketch({"slow": math.nan, "fast": math.nan}, {"slow": 9.0}, given)
    assert bench.tuned(candidate("slow"), candidate("fast")) == ["fast"]


# Wrong results


def test_agreement_with_the_same_engine_confirms_nothing() -> None:
    """Its other knobs are as wrong; they are rejected with it, though their check had passed."""
    bench = Sketch(
        {"default": 4.0, "alike": 4.0, "fast": 3.0, "other": 3.0},
        {"default": 20.0, "alike": 0.5, "fast": 1.0, "other": 9.0},
    )
    bench.truth = 3.0
    default, alike = candidate("default"), candidate("alike")
    default.engine, alike.engine = Engine(7), Engine(7, {1: 2})
    assert bench.tuned(default, alike, candidate("fast"), candidate("other")) == ["fast"]
    assert default.rejection_reason
    assert alike.rejection_reason


@pytest.mark.parametrize("huge", [1e30, 4.0])
def test_the_first_plain_candidate_is_not_right_by_definition(huge: float) -> None:
    bench = Sketch({"default": huge, "fast": 3.0}, {"default": 4.0})
    bench.truth = 3.0
    default = candidate("default")
    assert bench.tuned(default, candidate("fast", "tensor_core", "winograd")) == ["fast"]
    assert default.rejection_reason


# How long candidates are timed


def test_one_run_tells_that_a_candidate_is_hopeless() -> None:
    bench = Sketch(dict.fromkeys(("default", "slow", "fair"), 3.0), {"default": 1.0, "fair": 1.5})
    bench.firsts = {"slow": 4.2, "fair": 4.0}
    slow, fair = candidate("slow"), candidate("fair")
    assert all(map(bench.measure, (candidate("default"), slow, fair)))
    assert "slow" not in bench.runs
    assert (slow.milliseconds, fair.milliseconds) == (4.2, 1.5)


def test_long_runs_are_single_runs() -> None:
    bench = Sketch({"default": 3.0, "long": 3.0}, {"default": 30.0, "long": 31.0})
    assert bench.measure(candidate("default"))
    assert bench.measure(candidate("long"))
    assert bench.runs == ["default", "long"]
    assert bench.counts == [1, 1]


# The final comparison


def test_the_final_comparison_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))  # a second for each round
    bench = Sketch({})
    ran = [timed(name, 100.0, bench) for name in ("default", "first")]
    bench.finalists(ran, ran[0])
    assert bench.runs == ["default", "first"]


def timed(name: str, milliseconds: float, bench: Sketch) -> Candidate:
    made = candidate(name)
    made.milliseconds, made.workspace_size = milliseconds, 0
    bench.verified[name] = name
    return made


def test_the_fastest_and_the_default_are_timed_again_in_alternation() -> None:
    bench = Sketch({}, {"default": 1.0, "first": 1.2, "second": 1.1})
    times = {"default": 1.4, "first": 1.0, "second": 1.05, "slow": 1.3}
    default, first, second, slow = (timed(name, ms, bench) for name, ms in times.items())
    found = bench.finalists([default, first, second, slow], default)
    assert {c.name: c.milliseconds for c in found} == bench.times
    assert bench.runs[:6] == ["first", "second", "default"] * 2
    assert slow.milliseconds == 1.3


@pytest.mark.parametrize("is_default", [False, True])
def test_a_second_run_must_agree(is_default: bool) -> None:
    """At other addresses, with other content in memory before: also that of the default choice, alone."""
    bench = Sketch(dict.fromkeys(("bad", "right"), 3.0), {"bad": 0.1})
    bench.others = {"bad": 4.0}
    bad, right = candidate("bad"), candidate("right")
    assert bench.tuned(*((bad, right) if is_default else (right, bad))) == ["right"]
    assert bad.rejection_reason.startswith("wrong result: off by 1 ")
    assert bench.best == 1.0
