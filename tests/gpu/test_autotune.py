"""prefer="autotune": the memory that it touches, its errors, its time, and that the fastest candidate wins."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from planted import Planted, arguments, searched, specs, tune
from whole_numbers import assert_same, exact_result, whole_numbers

import cudnnpy
from cudnnpy import Candidate, Convolution, TensorSpec
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy.tuning.measuring.bench_buffers import GuardedMemory, drawn
from cudnnpy.tuning.measuring.result_comparison import Float64Checker, tolerance

OPERATIONS = ("forward", "backward_data", "backward_filter")


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


def measured(candidates: list[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.milliseconds and not c.rejection_reason]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_fastest_that_was_measured_wins(operation: str) -> None:
    chosen, tried = searched(operation, *specs(operation), tune_seconds=5.0)
    assert len(measured(tried)) >= 3
    assert chosen.milliseconds is not None
    # those close to the fastest are timed again, when other tests may use the GPU
    assert chosen.milliseconds <= 1.5 * min(c.milliseconds or 1e9 for c in measured(tried))
    assert all(c.rejection_reason or c.milliseconds for c in tried)
    assert {c.source for c in tried} >= {"ranking"}
    assert not [c.rejection_reason for c in tried if c.rejection_reason.startswith("wrong result")]


def test_the_limit_is_never_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    given = specs("backward_filter")
    everything = Convolution(padding=1).candidates("backward_filter", *given)
    sizes = sorted({c.workspace_size for c in everything if not c.rejection_reason and c.workspace_size})
    assert len(sizes) >= 2
    limit = sizes[len(sizes) // 2]
    taken: list[int] = []
    grown = GuardedMemory._grown

    def counted(memory: GuardedMemory, size: int) -> Any:
        taken.append(size)
        return grown(memory, size)

    monkeypatch.setattr(GuardedMemory, "_grown", counted)
    _, tried = searched("backward_filter", *given, workspace_limit=limit)
    assert taken
    assert max(taken) <= limit
    too_large = [c for c in tried if (c.workspace_size or 0) > limit]
    assert too_large
    assert all(", the limit is " in c.rejection_reason for c in too_large)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("int8", "int32"), ("int8", "float32"), ("int8", "int8"), ("float8_e4m3fn", None), ("float8_e5m2", "float16")],
)
def test_eight_bits_are_tuned_too(dtype: Any, result: Any) -> None:
    if dtype.startswith("float8") and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no float8")
    shapes = ((2, 32, 9, 8), (16, 32, 3, 3), (2, 16, 7, 6))
    x, w, y = (TensorSpec(shape, dtype, channels_last_strides(shape)) for shape in shapes)
    _, tried = searched("forward", x, w, out=y._replace(dtype=result or dtype), padding=0)
    print(cudnnpy.candidates_table(tried))
    assert measured(tried)
    assert not [c.rejection_reason for c in tried if c.rejection_reason.startswith("wrong result")]


def test_memory_to_time_in_comes_from_the_allocator() -> None:
    taken: list[int] = []

    def allocate(size: int, device: int, stream: int) -> torch.Tensor:
        taken.append(size)
        return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")

    cudnnpy.set_allocator(allocate)
    searched("forward", *specs("forward"), tune_seconds=0.5)
    assert taken


@pytest.mark.parametrize("seconds", [0.001, 0.5])
def test_tuning_ends_in_time(seconds: float) -> None:
    """With the best so far; one candidate is always measured. Planning one engine can take some seconds by itself."""
    begin = time.monotonic()
    chosen, tried = searched("forward", *specs("forward"), tune_seconds=seconds)
    assert time.monotonic() - begin < seconds + 3
    assert chosen.milliseconds is not None
    skipped = [c for c in tried if c.rejection_reason == f"not measured: tune_seconds={seconds} were used up"]
    assert skipped or seconds > 0.1


# Candidates that are no good


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
    problem = conv.plan(operation, *given).problem
    for at, tensor in enumerate(given[:2]):  # the checker knows the numbers of a measurement
        in_memory = np.resize(drawn(problem, at), tensor.numel()).view(np.uint8)
        tensor.copy_(torch.from_numpy(in_memory).view(tensor.dtype).as_strided(tensor.shape, tensor.stride()))
    right = getattr(conv, operation)(*given)
    wrong = right.clone(memory_format=torch.preserve_format)
    wrong[-1, -1, -1, -1] += 2 * right.abs().max()
    torch.cuda.synchronize()
    found = Float64Checker(problem).errors(right.data_ptr(), wrong.data_ptr())
    assert found is not None
    assert found[0] <= tolerance(problem, tf32=False)
    assert found[1] > 0.5


def test_a_candidate_beyond_the_devices_memory_is_recorded_and_passed_over() -> None:
    chosen, bad, real = tune(lambda executable: Planted(executable, None, size=1 << 44), limit=1 << 50)
    assert bad.rejection_reason.startswith("out of memory: ")
    assert chosen in real
