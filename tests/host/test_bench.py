"""What of autotune's measuring needs no GPU: the first run's time, what is rejected, and the final comparison."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cudnnpy import TensorSpec
from cudnnpy._planning.bench import Bench
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.convolution import problem
from cudnnpy.convolution.candidates import ConvolutionProblem


def asked(*given: Any) -> ConvolutionProblem:
    return ConvolutionProblem(*problem.make_problem(*given))


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


# What results are compared with


class NoMemory:
    """In place of the memory that candidates run in."""

    def __init__(self, results: Any) -> None:
        self.results, self.scratch, self.kept = results, [0], [0]
        self.has_random_inputs = False

    def reset(self) -> None: ...

    def copy_inputs(self) -> None: ...

    def keep(self) -> None: ...

    def use_random_inputs(self) -> None:
        self.has_random_inputs = True


class Sketch(Bench):
    """A bench whose GPU is told: `largest` of a candidate's result, and of its difference from the anchor's."""

    def __init__(self, asked: Any, largest: dict[str, float], difference: dict[str, float], made_up: dict[str, float]):
        self.problem, self.options = asked, PlanningOptions()
        self.memory = NoMemory(asked.specs[-1:])  # type: ignore[assignment]
        self._largest = self.told  # type: ignore[assignment]
        self.anchor = []
        self.unconfirmed = None
        self.best = math.inf
        self.largest, self.difference, self.made_up = largest, difference, made_up
        self.now = ""

    def _bind(self, candidate: Candidate) -> Any:
        self.now = candidate.name
        return [lambda: 0]

    def _first(self, launch: Any) -> float:
        return 1.0

    def _time(self, launches: Any) -> float:
        return {"slow": 100.0, "fast": 1.0}.get(self.now, 10.0)

    def told(self, spec: Any, address: int, size: int, minus: int | None = None) -> float:
        if minus is not None:
            return self.difference.get(self.now, 0.0)
        return (self.made_up if self.memory.has_random_inputs else self.largest)[self.now]


def convolution(dtype: str = "float32", result: str | None = None) -> ConvolutionProblem:
    options = problem.checked(problem.Options())
    x, w = TensorSpec((1, 8, 4, 4), dtype), TensorSpec((4, 8, 3, 3), dtype)
    return asked(options, "forward", x, w, TensorSpec((1, 4, 2, 2), result or dtype))


def candidate(name: str) -> Candidate:
    made = Candidate("engines", name, (), True, lambda: None)  # type: ignore[arg-type, return-value]
    made.executable = object()  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("first", [math.nan, math.inf, 0.0], ids=["no numbers", "infinite", "zeros"])
def test_data_that_tell_nothing_are_replaced_by_random_numbers(first: float) -> None:
    """As empty memory holds in a warm-up: else the first candidate would win, however slow, or wrong ones pass."""
    bench = Sketch(convolution(), {"slow": first, "fast": first}, {"wrong": 2.0}, {"slow": 3.0, "fast": 3.0})
    slow, fast, wrong = candidate("slow"), candidate("fast"), candidate("wrong")
    assert bench.measure(slow)
    assert bench.memory.has_random_inputs
    assert bench.measure(fast)
    assert not bench.measure(wrong)
    assert "off by 2 from another candidate" in wrong.refused
    assert min((slow, fast), key=lambda c: c.milliseconds or 0) is fast


def test_good_data_stay() -> None:
    bench = Sketch(convolution(), {"slow": 3.0}, {}, {})
    assert bench.measure(candidate("slow"))
    assert not bench.memory.has_random_inputs


def test_a_candidate_that_leaves_results_unwritten_is_no_anchor() -> None:
    bench = Sketch(convolution(), {"bad": math.nan}, {}, {"bad": math.nan, "slow": 3.0})
    bad, slow = candidate("bad"), candidate("slow")
    assert not bench.measure(bad)
    assert bad.refused == "wrong result: infinite or no number for random numbers"
    assert bench.measure(slow)
    assert bench.anchor == [3.0]


def test_a_plain_candidate_takes_the_place_of_a_wrong_guess() -> None:
    bench = Sketch(convolution(), {"guess": 4.0, "slow": 3.0, "fast": 3.0}, {"slow": 1.0}, {})
    guess, slow, fast = candidate("guess"), candidate("slow"), candidate("fast")
    guess.notes = ("winograd",)
    assert bench.measure(guess)
    assert bench.measure(slow)
    assert guess.refused.startswith("wrong result: off by 1")
    assert guess.executable is None
    assert bench.anchor == [3.0]
    assert bench.measure(fast)
    assert bench.best == 1.0


def test_a_plain_candidate_confirms_a_right_guess() -> None:
    bench = Sketch(convolution(), {"guess": 4.0, "slow": 3.0, "wrong": 3.0}, {"wrong": 1.0}, {})
    guess, wrong = candidate("guess"), candidate("wrong")
    guess.notes = ("winograd",)
    assert bench.measure(guess)
    assert bench.measure(candidate("slow"))
    assert not bench.measure(wrong)
    assert not guess.refused


# The final comparison


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the candidates in the order in which a Sketch times them; `again` are the times then."""
    seen: list[str] = []

    def run(bench: Any, launches: Any, count: int) -> float:
        seen.append(launches)
        return float(bench.again[launches])

    monkeypatch.setattr(Sketch, "_run", run)
    monkeypatch.setattr(Sketch, "_bind", lambda bench, candidate: candidate.name)
    return seen


def timed(name: str, milliseconds: float) -> Candidate:
    made = candidate(name)
    made.milliseconds, made.workspace_size = milliseconds, 0
    return made


def test_the_fastest_and_the_guess_are_timed_again_in_alternation(turns: list[str]) -> None:
    bench = Sketch(convolution(), {}, {}, {})
    bench.again = {"guess": 1.0, "first": 1.2, "second": 1.1}  # type: ignore[attr-defined]
    guess, first, second, slow = timed("guess", 1.4), timed("first", 1.0), timed("second", 1.05), timed("slow", 1.3)
    found = bench.finalists([guess, first, second, slow], guess)
    assert {c.name: c.milliseconds for c in found} == bench.again  # type: ignore[attr-defined]
    assert turns[:6] == ["first", "second", "guess"] * 2
    assert slow.milliseconds == 1.3


def test_a_guess_that_is_much_slower_is_not_timed_again(turns: list[str]) -> None:
    bench = Sketch(convolution(), {}, {}, {})
    guess, first = timed("guess", 9.0), timed("first", 1.0)
    assert bench.finalists([guess, first], guess) == [first]
    assert turns == []


def test_a_final_comparison_that_fails_leaves_the_times_from_before(
    turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scarce(bench: Any, candidate: Candidate) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(Sketch, "_bind", scarce)
    bench = Sketch(convolution(), {}, {}, {})
    guess, first = timed("guess", 1.05), timed("first", 1.0)
    assert bench.finalists([guess, first], guess) == [first, guess]
    assert (guess.milliseconds, first.milliseconds) == (1.05, 1.0)


def test_a_result_may_be_0_whatever_the_numbers() -> None:
    """With alpha 0, say."""
    bench = Sketch(convolution(), {"slow": 0.0, "fast": 0.0}, {"wrong": 1.0}, {"slow": 0.0, "fast": 0.0})
    assert bench.measure(candidate("slow"))
    assert bench.memory.has_random_inputs
    assert bench.measure(candidate("fast"))
    assert not bench.measure(candidate("wrong"))


@pytest.mark.parametrize("difference", [math.nan, math.inf])
def test_a_result_that_is_partly_unwritten_is_wrong(difference: float) -> None:
    bench = Sketch(convolution(), {"slow": 3.0, "bad": 3.0}, {"bad": difference}, {})
    bad = candidate("bad")
    assert bench.measure(candidate("slow"))
    assert not bench.measure(bad)
    assert bad.refused.startswith("wrong result: off by ")
    assert bad.executable is None


def test_a_candidate_for_which_there_is_no_memory_leaves_the_others_their_turn() -> None:
    class Scarce(Sketch):
        def _bind(self, candidate: Candidate) -> Any:
            if candidate.name == "hungry":
                raise MemoryError("no more")
            return super()._bind(candidate)

    bench = Scarce(convolution(), {"slow": 3.0, "hungry": 3.0}, {}, {})
    hungry = candidate("hungry")
    assert not bench.measure(hungry)
    assert "out of memory" in hungry.refused
    assert bench.measure(candidate("slow"))


def test_what_a_graph_makes_need_not_be_finite() -> None:
    specs = convolution().specs
    asked: Any = SimpleNamespace(
        specs=specs, is_finite=False, compute_dtype="float32", reduction_length=9
    )  # no convolution's
    numbers = {"slow": math.nan, "fast": math.nan}
    bench = Sketch(asked, numbers, {"fast": math.nan}, numbers)
    assert bench.measure(candidate("slow"))
    assert bench.measure(candidate("fast"))


@pytest.mark.parametrize(("result", "passes"), [("int8", True), ("int32", False)])
def test_whole_numbers_may_be_rounded_up_or_down(result: str, passes: bool) -> None:
    bench = Sketch(convolution("int8", result), {"slow": 3.0}, {"fast": 1.0}, {})
    assert bench.measure(candidate("slow"))
    assert bench.measure(candidate("fast")) == passes
