"""prefer="autotune": what it may touch, what it refuses, how long it takes, and that the fastest wins."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from ctypes import byref, c_float
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from planted import Planted, W, X, Y, arguments, tune
from whole_numbers import assert_same, exact_result, whole_numbers

import cudnnpy
from cudnnpy import Candidate, Convolution, TensorSpec, raw
from cudnnpy._measuring import bench_buffers
from cudnnpy._measuring.float64_check import Arbiter
from cudnnpy._measuring.result_comparison import tolerance
from cudnnpy._measuring.search import Search
from cudnnpy._planning import usable
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.handle import Handle

OPERATIONS = ("forward", "backward_data", "backward_filter")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    cudnnpy.clear_cache()


class Record:
    """What the tuner was given, and what it chose."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.candidates: list[Candidate] = []
        self.chosen: Candidate | None = None
        self.runs = 0
        tune = Search.__call__

        def recorded(
            tuner: Search, problem: Any, options: Any, target: Any, given: Iterable[Candidate], limit: int
        ) -> Any:
            self.runs += 1
            self.candidates = []
            self.chosen = tune(tuner, problem, options, target, self.noted(given), limit)
            return self.chosen

        monkeypatch.setattr(Search, "__call__", recorded)

    def noted(self, given: Iterable[Candidate]) -> Iterator[Candidate]:
        for candidate in given:
            self.candidates.append(candidate)
            yield candidate


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    return Record(monkeypatch)


# What is the caller's stays as it is


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_first_call_accumulates_once(operation: str, beta: float) -> None:
    """A result between bands and with gaps: only its own elements change, and by one run alone."""
    given = arguments(operation)
    right = exact_result(operation, *given, padding=1)
    whole_size = (right.shape[0], right.shape[1] + 3, *right.shape[2:])
    buffer = whole_numbers(*whole_size, seed=6)
    out = buffer[:, 1:-2]
    before, inputs = buffer.clone(), [t.clone() for t in given[:2]]
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=2.0)
    getattr(conv, operation)(*given, out=out, beta=beta)
    assert_same(out, right + beta * before[:, 1:-2].cpu().double().numpy())
    assert torch.equal(buffer[:, :1], before[:, :1])
    assert torch.equal(buffer[:, -2:], before[:, -2:])
    assert all(torch.equal(a, b) for a, b in zip(given, inputs, strict=False))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_planning_alone_changes_nothing(operation: str) -> None:
    given = arguments(operation)
    out = torch.full(exact_result(operation, *given, padding=1).shape, 5.0, device="cuda")
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=1.0)
    plan = conv.plan(operation, *given, out=out, beta=1.0)
    torch.cuda.synchronize()
    assert bool((out == 5).all())
    assert plan.milliseconds is not None
    assert plan.milliseconds > 0


def test_specs_are_tuned_on_data_of_its_own() -> None:
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=1.0)
    plan = conv.plan("forward", TensorSpec(X, "float16"), TensorSpec(W, "float16"))
    assert plan.milliseconds is not None


def test_tuning_happens_on_the_callers_stream() -> None:
    """Inputs that are still being made there: the choice waits for them, as the result does."""
    side = torch.cuda.Stream()
    x, w = arguments("forward")
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        y = Convolution(padding=1, prefer="autotune", tune_seconds=1.0).forward(late, w)
    side.synchronize()
    assert_same(y, exact_result("forward", x, w, padding=1))


# The choice


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_fastest_that_was_measured_wins_and_is_remembered(operation: str, record: Record) -> None:
    given = arguments(operation)
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=5.0)
    assert_same(getattr(conv, operation)(*given), exact_result(operation, *given, padding=1))
    measured = [c for c in record.candidates if c.milliseconds is not None]
    assert len(measured) >= 3
    assert record.chosen is not None
    assert record.chosen.milliseconds is not None
    # those close to the fastest are timed again, when other tests may use the GPU
    assert record.chosen.milliseconds <= 1.5 * min(c.milliseconds or 1e9 for c in measured)
    assert all(c.refused or c.milliseconds for c in record.candidates)
    for _ in range(3):
        getattr(conv, operation)(*given)
    assert record.runs == 1
    assert {c.source for c in record.candidates} >= {"heuristics", "engines"}


def test_the_limit_is_never_exceeded(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    given = arguments("backward_filter")
    everything = Convolution(padding=1).candidates("backward_filter", *given)
    sizes = sorted({c.workspace_size for c in everything if not c.refused and c.workspace_size})
    assert len(sizes) >= 2
    limit = sizes[len(sizes) // 2]
    taken: list[int] = []
    take = bench_buffers.take

    def counted(size: int, *where: Any) -> Any:
        if sys._getframe(1).f_code.co_name == "workspace":  # not the memory of operands
            taken.append(size)
        return take(size, *where)

    monkeypatch.setattr(bench_buffers, "take", counted)
    conv = Convolution(padding=1, prefer="autotune", workspace_limit=limit)
    assert_same(conv.backward_filter(*given), exact_result("backward_filter", *given, padding=1))
    assert taken
    assert max(taken) <= limit
    too_large = [c for c in record.candidates if (c.workspace_size or 0) > limit]
    assert too_large
    assert all(", the limit is " in c.refused for c in too_large)


def measured(record: Record) -> list[Candidate]:
    return [c for c in record.candidates if c.milliseconds and not c.refused]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0, 3e38], ids=["nan", "infinity", "zeros", "overflow"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_data_that_tell_nothing_do_not_decide(operation: str, value: float, record: Record) -> None:
    """A warm-up on empty memory, say: candidates are compared on other numbers, and the fastest wins as ever."""
    given = arguments(operation)
    given[0].fill_(value)
    conv = Convolution(padding=1, prefer="autotune", tune_seconds=2.0)
    getattr(conv, operation)(*given)
    assert len(measured(record)) > 3
    assert record.chosen is not None
    assert record.chosen.milliseconds is not None  # those close to the fastest are timed again
    assert record.chosen.milliseconds <= 1.5 * min(c.milliseconds or 1e9 for c in measured(record))
    given = arguments(operation)
    assert_same(getattr(conv, operation)(*given), exact_result(operation, *given, padding=1))
    assert record.runs == 1


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("int8", "int32"), ("int8", "float32"), ("int8", "int8"), ("float8_e4m3fn", None), ("float8_e5m2", "float16")],
)
def test_eight_bits_are_tuned_too(dtype: str, result: str | None, record: Record) -> None:
    if dtype.startswith("float8") and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no float8")
    x, w = (
        whole_numbers(2, 32, 9, 8, dtype=dtype, last=True),
        whole_numbers(16, 32, 3, 3, dtype=dtype, last=True, seed=1),
    )
    right = exact_result("forward", x, w)
    out = None if result is None else whole_numbers(2, 16, 7, 6, dtype=result, last=True)
    y = Convolution(prefer="autotune").forward(x, w, out=out)
    assert_same(y, right.clip(-128, 127) if result == "int8" else right)
    print(cudnnpy.candidates_table(record.candidates))
    assert measured(record)


def test_memory_to_tune_in_comes_from_the_allocator() -> None:
    taken: list[int] = []

    def allocate(size: int, device: int, stream: int) -> torch.Tensor:
        taken.append(size)
        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")

    cudnnpy.set_allocator(allocate)
    try:
        given = arguments("forward")
        right = exact_result("forward", *given, padding=1)
        assert_same(Convolution(padding=1, prefer="autotune", tune_seconds=0.5).forward(*given), right)
    finally:
        cudnnpy.set_allocator(None)
    assert len(taken) >= 2


@pytest.mark.parametrize("limit", [0, 1], ids=["none at all", "after the first"])
def test_without_memory_to_tune_in_the_best_guess_is_taken(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = bench_buffers.take

    def scarce(size: int, *where: Any) -> Any:
        taken.append(size)
        if len(taken) > limit:
            raise MemoryError("no more")
        return take(size, *where)

    monkeypatch.setattr(bench_buffers, "take", scarce)
    given = arguments("forward")
    assert_same(Convolution(padding=1, prefer="autotune").forward(*given), exact_result("forward", *given, padding=1))
    assert len(taken) > limit


@pytest.mark.parametrize("seconds", [0.001, 0.5])
def test_tuning_ends_in_time(seconds: float, record: Record) -> None:
    """With the best so far; one candidate is always measured. Planning one engine can take some seconds by itself."""
    given = arguments("forward")
    begin = time.monotonic()
    plan = Convolution(padding=1, prefer="autotune", tune_seconds=seconds).plan("forward", *given)
    assert time.monotonic() - begin < seconds + 3
    assert plan.milliseconds is not None
    skipped = [c for c in record.candidates if c.refused == f"not measured: tune_seconds={seconds} were used up"]
    assert skipped or seconds > 0.1


def test_a_result_with_gaps_is_tuned_too(record: Record) -> None:
    """What lies in the gaps is no part of the comparison."""
    x, w = arguments("forward")
    out = torch.full((Y[0], Y[1] + 4, *Y[2:]), torch.nan, device="cuda")[:, 2:-2]
    Convolution(padding=1, prefer="autotune").forward(x, w, out=out)
    assert_same(out, exact_result("forward", x, w, padding=1))
    assert not [c.refused for c in record.candidates if c.refused.startswith("wrong result")]


def test_nothing_usable_is_an_error_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "rejection", lambda candidate, *_: "ruled out by this test")
    with pytest.raises(cudnnpy.NoAlgorithmError, match=r"prefer='autotune'[\s\S]*left out because") as caught:
        Convolution(padding=1, prefer="autotune").forward(*arguments("forward"))
    assert {c.source for c in caught.value.candidates} >= {"heuristics", "engines", "legacy"}


def test_what_fastest_chooses_is_measured_first(record: Record) -> None:
    given = arguments("backward_filter")
    guess = Convolution(padding=1).plan("backward_filter", *given)
    plan = Convolution(padding=1, prefer="autotune", tune_seconds=0.001).plan("backward_filter", *given)
    assert record.candidates[0].name == guess.name
    assert record.candidates[0].milliseconds is not None
    assert plan.name == guess.name


# Candidates that are no good


def scaled_by(factor: float) -> Callable[[Handle, int], int]:
    tensor, scale = TensorDescriptor(Y, "float32"), c_float(factor)

    def spoil(handle: Handle, address: int) -> int:
        return int(raw.cudnnScaleTensor(handle, tensor, address, byref(scale)))

    return spoil


def set_to(value: float) -> Callable[[Handle, int], int]:
    tensor, number = TensorDescriptor(Y, "float32"), c_float(value)

    def spoil(handle: Handle, address: int) -> int:
        return int(raw.cudnnSetTensor(handle, tensor, address, byref(number)))

    return spoil


@pytest.mark.parametrize("value", [1.0, 0.0, float("nan"), float("inf")])
def test_a_wrong_result_is_refused_however_fast(value: float) -> None:
    chosen, bad, real = tune(lambda executable: Planted(executable, set_to(value), run=False))
    assert bad.refused.startswith("wrong result: off by ")
    assert bad.executable is None
    assert chosen is not bad
    assert not any(c.refused for c in real)


@pytest.mark.parametrize("factor", [1.01, -1.0, 1e20])
def test_a_wrong_guess_is_refused_and_the_others_are_not(factor: float) -> None:
    """The exact elements tell: the guess says of itself that its arithmetic is plain."""
    chosen, bad, real = tune(lambda executable: Planted(executable, scaled_by(factor)), guess=True)
    assert bad.refused.startswith("wrong result")
    assert chosen is not bad
    assert not any(c.refused for c in real)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_exact_elements_tell_right_from_wrong(operation: str, last: bool, dtype: str) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    given = [
        a.to(getattr(torch, dtype), memory_format=form) if isinstance(a, torch.Tensor) else a
        for a in arguments(operation)
    ]
    conv = Convolution(padding=1, tf32=False)
    right = getattr(conv, operation)(*given)
    wrong = right.clone(memory_format=torch.preserve_format)
    wrong[-1, -1, -1, -1] += 2 * right.abs().max()
    problem = conv.plan(operation, *given).problem
    stream = torch.cuda.current_stream().cuda_stream
    handle = Handle.default(0)
    handle.set_stream(stream)
    memory: Any = SimpleNamespace(inputs=tuple(a.data_ptr() for a in given[:2]), start=None)
    found = Arbiter(problem, memory, handle, stream).errors(right.data_ptr(), wrong.data_ptr())
    assert found is not None
    assert found[0] <= tolerance(problem, tf32=False)
    assert found[1] > 0.5


def test_a_result_that_is_not_written_is_refused_however_fast() -> None:
    chosen, bad, real = tune(lambda executable: Planted(executable, None, run=False))
    assert bad.refused.startswith("wrong result")
    assert chosen in real


def test_a_right_result_is_not_refused() -> None:
    """The planted one itself is no reason."""
    _, good, real = tune(lambda executable: Planted(executable, scaled_by(1.0)))
    assert not good.refused
    assert good.milliseconds
    assert all(c.milliseconds for c in real)


def test_a_candidate_that_fails_is_recorded_and_passed_over() -> None:
    failing = Planted(None, None)
    failing.bind = lambda *_: lambda: int(raw.CUDNN_STATUS_EXECUTION_FAILED)  # type: ignore[method-assign]
    chosen, bad, real = tune(lambda _: failing)
    assert bad.refused.startswith("failed when run: ")
    assert "CUDNN_STATUS_EXECUTION_FAILED" in bad.refused
    assert chosen in real


def test_a_candidate_beyond_the_devices_memory_is_recorded_and_passed_over() -> None:
    chosen, bad, real = tune(lambda executable: Planted(executable, None, size=1 << 44), limit=1 << 50)
    assert bad.refused.startswith("out of memory: ")
    assert str(1 << 44) in bad.refused
    assert chosen in real


def test_a_candidate_beyond_the_limit_is_recorded_and_passed_over() -> None:
    chosen, bad, real = tune(lambda executable: Planted(executable, None, size=1 << 44), limit=1 << 20)
    assert bad.refused == "needs 1.638e+04 GiB, the limit is 1 MiB"
    assert chosen in real
