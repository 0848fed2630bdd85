"""What of autotune's measuring needs no GPU: the first run's time, and how far results may differ."""

from __future__ import annotations

import ctypes
import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnnpy import TensorSpec
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._core.layouts import extent
from cudnnpy._planning import bench as bench_module
from cudnnpy._planning.bench import Bench, tolerance
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


def test_tolerance_grows_with_the_sum_and_with_coarser_types() -> None:
    def of(dtype: str, channels: int, tf32: bool = True) -> float:
        options = problem.checked(problem.Options())
        x, w = TensorSpec((1, channels, 4, 4), dtype), TensorSpec((1, channels, 3, 3), dtype)
        y = TensorSpec((1, 1, 2, 2), dtype)
        return tolerance(asked(options, "forward", x, w, y), tf32)

    assert of("float64", 8) < of("float32", 8, tf32=False) < of("float32", 8) <= of("float16", 8) < of("bfloat16", 8)
    assert of("float32", 8, tf32=False) < of("float32", 800, tf32=False) < 1e-2
    assert of("bfloat16", 8) < 0.25


# What candidates run on

STREAM, INPUTS, RESULT = 0x5000, (1 << 40, 2 << 40), 3 << 40


class Gpu:
    """Memory that is taken, and what the driver does with it."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int, int]] = []  # (to, from, size)
        self.filled: dict[int, int] = {}  # bytes by their first address

    def take(self, size: int, device: int, stream: int) -> tuple[int, int, Any]:
        assert (device, stream) == (0, STREAM)
        self.taken.append(((len(self.taken) + 1) << 32, size))
        return (*self.taken[-1], object())

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        assert stream == STREAM
        self.copies.append((to, source, size))

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        assert stream == STREAM
        self.filled[address] = byte

    def whose(self, address: int, size: int) -> tuple[int, int]:
        """The memory that holds these bytes."""
        (memory,) = [(start, length) for start, length in self.taken if start <= address < start + length]
        assert address + size <= sum(memory)
        return memory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(bench_module, "take", made.take)
    monkeypatch.setattr(bench_module, "_cache_size", lambda device: 1 << 12)
    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyDtoDAsync", made.copy)
    monkeypatch.setattr("cuda.bindings.driver.cuMemsetD8Async", made.fill)
    return made


class Planned:
    """An executable that keeps what it is bound to."""

    def __init__(self, workspace_size: int) -> None:
        self.workspace_size = workspace_size
        self.bound: list[tuple[tuple[int, ...], int]] = []

    def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Any:
        self.bound.append((pointers, workspace))
        return lambda: 0


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_candidates_read_the_callers_inputs_and_write_to_memory_of_their_own(gpu: Gpu, beta: float) -> None:
    asked = convolution()._replace(beta=beta)
    sizes = [extent(spec) for spec in asked.specs]
    bench = Bench(asked, problem.checked(problem.Options()), None, INPUTS, RESULT, STREAM)  # type: ignore[arg-type]
    spaces = set()
    for space in (100, 5000, 100):
        executable = Planned(space)
        one = candidate("one")
        one.executable = executable  # type: ignore[assignment]
        assert len(bench._bind(one)) == len(executable.bound) > 1
        first, *others = [pointers for pointers, _ in executable.bound]
        assert first[:2] == INPUTS
        for copies in others:
            assert {(*pair, size) for *pair, size in zip(copies, INPUTS, sizes, strict=False)} <= set(gpu.copies)
        places = [
            gpu.whose(address, size) for pointers in others for address, size in zip(pointers, sizes, strict=True)
        ]
        places.append(gpu.whose(first[2], sizes[2]))
        assert len(set(places)) == len(places)
        (workspace,) = {workspace for _, workspace in executable.bound}
        assert gpu.whose(workspace, space) not in places
        spaces.add(workspace)
    assert len(spaces) == 2  # the third has room in the second's
    bench._reset()
    if beta:
        assert (first[2], RESULT, sizes[2]) in gpu.copies
    else:
        assert gpu.filled[first[2]] == 0xFF  # NaN, so that an element that is not written shows
    assert not {to for to, *_ in gpu.copies} & {*INPUTS, RESULT}
    assert not gpu.filled.keys() & {*INPUTS, RESULT}


# What results are compared with


class Sketch(Bench):
    """A bench whose GPU is told: `largest` of a candidate's result, and of its difference from the anchor's."""

    def __init__(self, asked: Any, largest: dict[str, float], difference: dict[str, float], made_up: dict[str, float]):
        self.problem, self.options = asked, PlanningOptions()
        self.results = asked.specs[-1:]
        self.scratch: list[Any] = [(0, 0, None)]
        self.anchor = []
        self.unconfirmed = None
        self.has_random_inputs = False
        self.best = math.inf
        self.largest, self.difference, self.made_up = largest, difference, made_up
        self.now = ""

    def _bind(self, candidate: Candidate) -> Any:
        self.now = candidate.name
        return [lambda: 0]

    def _reset(self) -> None: ...

    def _make_buffers(self) -> None: ...

    def _use_random_inputs(self) -> None:
        self.has_random_inputs = True

    def _first(self, launch: Any) -> float:
        return 1.0

    def _time(self, launches: Any) -> float:
        return {"slow": 100.0, "fast": 1.0}.get(self.now, 10.0)

    def _keep(self, largest: list[float]) -> None:
        self.anchor = [((0, 0, None), largest[0])]

    def _largest(self, spec: Any, memory: Any, minus: int | None = None) -> float:
        if minus is not None:
            return self.difference.get(self.now, 0.0)
        return (self.made_up if self.has_random_inputs else self.largest)[self.now]


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
    assert bench.has_random_inputs
    assert bench.measure(fast)
    assert not bench.measure(wrong)
    assert "off by 2 from another candidate" in wrong.refused
    assert min((slow, fast), key=lambda c: c.milliseconds or 0) is fast


def test_good_data_stay() -> None:
    bench = Sketch(convolution(), {"slow": 3.0}, {}, {})
    assert bench.measure(candidate("slow"))
    assert not bench.has_random_inputs


def test_a_candidate_that_leaves_results_unwritten_is_no_anchor() -> None:
    bench = Sketch(convolution(), {"bad": math.nan}, {}, {"bad": math.nan, "slow": 3.0})
    bad, slow = candidate("bad"), candidate("slow")
    assert not bench.measure(bad)
    assert bad.refused == "wrong result: infinite or no number for random numbers"
    assert bench.measure(slow)
    assert bench.anchor[0][1] == 3.0


def test_a_plain_candidate_takes_the_place_of_a_wrong_guess() -> None:
    bench = Sketch(convolution(), {"guess": 4.0, "slow": 3.0, "fast": 3.0}, {"slow": 1.0}, {})
    guess, slow, fast = candidate("guess"), candidate("slow"), candidate("fast")
    guess.notes = ("winograd",)
    assert bench.measure(guess)
    assert bench.measure(slow)
    assert guess.refused.startswith("wrong result: off by 1")
    assert guess.executable is None
    assert bench.anchor[0][1] == 3.0
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
    assert bench.has_random_inputs
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


def test_made_up_tensors_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of x and dy alike a gradient to w sums squares, which overflow float16."""
    made: list[np.ndarray] = []

    def copy(to: int, at: int, size: int, stream: int) -> None:
        made.append(np.frombuffer((ctypes.c_char * size).from_address(at), np.float16).copy())

    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyHtoDAsync", copy)
    monkeypatch.setattr("cuda.bindings.driver.cuStreamSynchronize", lambda stream: None)
    monkeypatch.setattr(bench_module, "take", lambda size, device, stream: (0, size, None))
    options = problem.checked(problem.Options(padding=1))
    shape = (8, 64, 56, 56)
    x, w, y = (TensorSpec(s, "float16") for s in (shape, (64, 64, 3, 3), shape))
    bench = Bench.__new__(Bench)
    bench.problem = asked(options, "backward_filter", x, w, y)
    bench.results, bench.stream, bench._owners = bench.problem.specs[-1:], 0, []
    bench._use_random_inputs()
    half = len(made) // 2
    one, two = (np.concatenate(part).astype(np.float64) for part in (made[:half], made[half:]))
    assert one.size == two.size == math.prod(shape)
    assert abs(one @ two) < 1e-2 * (one @ one)
    assert -1 <= one.min() < -0.99 < 0.99 < one.max() <= 1


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


@pytest.mark.parametrize("dtype", ["int8", "int32", "float8_e4m3fn"])
def test_types_that_no_v7_function_adds_are_compared_by_numpy(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    kind = numpy_dtype(dtype)
    memory = {1: np.array([1, -4, 2, 3]).astype(kind), 2: np.array([1, 4, 2, 2]).astype(kind)}

    def read(to: int, at: int, size: int, stream: int) -> None:
        ctypes.memmove(to, memory[at].ctypes.data, size)

    monkeypatch.setattr("cuda.bindings.driver.cuMemcpyDtoHAsync", read)
    monkeypatch.setattr("cuda.bindings.driver.cuStreamSynchronize", lambda stream: None)
    bench = Bench.__new__(Bench)
    bench.stream = 0
    spec = TensorSpec((4,), dtype)
    assert bench._largest(spec, (1, memory[1].nbytes, None)) == 4.0
    assert bench._largest(spec, (1, memory[1].nbytes, None), minus=2) == 8.0
