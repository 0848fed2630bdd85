"""The benchmark's operations against torch, with cudnnpy's NumPy reference, and their rows."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cudnnpy import reference
from tools.benchmark import cases, operations
from tools.benchmark.cases import Case, CaseCalls, Tensors
from tools.benchmark.operations import KINDS, TINY, Problem, cases_of, kinds_of
from tools.benchmark.summary import ratio
from tools.benchmark.timing import Budget


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, tuple):
        return tuple(map(_to_torch, value))
    return OnTensors(value)


def _to_numpy(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, torch.Tensor) else value


class OnTensors:
    """The NumPy reference for torch's tensors on the CPU, whose memory it shares, so that results are written to `out`."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return OnTensors(getattr(self.wrapped, name))

    def __call__(self, *given: Any, **options: Any) -> Any:
        return _to_torch(
            self.wrapped(*map(_to_numpy, given), **{name: _to_numpy(value) for name, value in options.items()})
        )


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run tiny cases on the CPU, with the reference in place of the library and without a clock."""
    for module in (cases, operations):
        monkeypatch.setattr(module, "cudnnpy", OnTensors(reference))
    monkeypatch.setattr(cases, "DEVICE", "cpu")
    monkeypatch.setattr(operations, "HOST_MOST", 1)
    monkeypatch.setattr(operations, "host_timer", lambda call, synchronize: lambda: float(call() is not None))
    monkeypatch.setattr(operations, "times_in_turns", _no_clock)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    with torch.no_grad():
        torch.manual_seed(0)
        yield


def _no_clock(torch: Any, contenders: dict[str, list[Callable[[], Any]]], *_given: Any) -> dict[str, list[float]]:
    for calls in contenders.values():
        for call in calls:
            call()
    return {name: [1.0] for name in [*contenders, "torch, again"]}


def _problem(name: str, kind: int = 0, shape: tuple[int, ...] = TINY) -> Problem:
    return Problem(next(case for case in cases_of(shape) if case.name == name), shape, KINDS[kind])


def _measured(make: Callable[[Tensors], CaseCalls]) -> dict[str, Any]:
    row: dict[str, Any] = {"error": None}
    operations.measure(torch, Problem(Case("copy", make), TINY, KINDS[0]), row, Budget(0))
    return row


# The operations

# torch's bfloat16 is none of NumPy's types; torch has no average of three dimensions in float16 on the CPU, of which its
# local response norm is made
ON_THE_CPU = [
    pytest.param(Problem(case, shape, kind), id=Problem(case, shape, kind).name)
    for shape in ((1, 65), (20, 33), (1, 3, 1, 1), (2, 8, 3, 3))
    for case in cases_of(shape)
    for kind in kinds_of(case, shape)
    if kind.dtype != "bfloat16" and not (kind.dtype == "float16" and case.name.startswith("local response norm"))
]


@pytest.mark.parametrize("problem", ON_THE_CPU)
def test_every_operation_has_torchs_result(problem: Problem) -> None:
    row: dict[str, Any] = {"error": None}
    operations.measure(torch, problem, row, Budget(0))
    assert row["error"] is None
    assert ratio(row, "cudnnpy") == 1.0
    assert row["bytes"] >= math.prod(problem.shape) * getattr(torch, problem.kind.dtype).itemsize


@pytest.mark.parametrize("task", list(operations.host_tasks(torch)), ids=lambda task: task.name)
def test_every_operation_on_the_host_has_torchs_result(task: Any) -> None:
    row: dict[str, Any] = {"error": None}
    task.measure(row, Budget(0))
    assert row["error"] is None
    assert ("cudnnpy, new" in row["us"]) == (not task.name.startswith("set"))


@pytest.mark.parametrize("name", ["batch norm + relu, training", "convolution * scale + bias"])
def test_what_is_fused_is_timed_beside_its_separate_calls(name: str) -> None:
    row: dict[str, Any] = {"error": None}
    operations.measure(torch, _problem(name, 1), row, Budget(0))
    assert row["ms"].keys() == {"torch", "torch, again", "cudnnpy", "separate"}


# Rows that fail


def test_a_name_that_is_missing_fails_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "cudnnpy", SimpleNamespace(scale_tensor=OnTensors(reference).scale_tensor))
    monkeypatch.setattr(operations, "cudnnpy", SimpleNamespace())
    row: dict[str, Any] = {"error": None}
    operations.measure(torch, _problem("scale"), row, Budget(0))
    assert row["error"] is None
    with pytest.raises(AttributeError, match="Softmax"):
        operations.measure(torch, _problem("softmax over channels"), row, Budget(0))


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (lambda x, out: out, "differs from torch by nan"),  # nothing is written
        (lambda x, out: out.copy_(x).mul_(1.001), "differs from torch by 0.001, more than 0.0001"),
        (lambda x, out: (out.copy_(x), x * 1.1), "differs from torch by 0.1, more than 0.0001"),
        (lambda x, out: out[:1].copy_(x[:1]), "ValueError: the result must have shape (2, "),
    ],
)
def test_a_result_that_is_not_torchs_fails_its_row(ours: Callable[[Any, Any], Any], told: str) -> None:
    def make(t: Tensors) -> CaseCalls:
        x, y = t.random(), t.room()
        return CaseCalls(lambda: (x, x), lambda: ours(x, y))

    row = _measured(make)
    assert row["error"].startswith(f"cudnnpy: {told}")
    assert "ms" not in row


def test_separate_calls_that_fail_leave_the_fused_time() -> None:
    def make(t: Tensors) -> CaseCalls:
        x, y = t.random(), t.room()
        return CaseCalls(lambda: x, lambda: y.copy_(x), separate=lambda: y)  # the room is emptied between

    row = _measured(make)
    assert row["error"].startswith("separate: differs from torch by nan")
    assert row["ms"].keys() == {"torch", "torch, again", "cudnnpy"}


def test_dropouts_zeros_are_about_half(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropout:
        def __init__(self, probability: float, seed: int) -> None:
            pass

        def forward(self, x: Any, out: Any = None) -> Any:
            return x * 2, None

    monkeypatch.setattr(cases, "cudnnpy", SimpleNamespace(Dropout=Dropout))
    row: dict[str, Any] = {}
    operations.measure(torch, _problem("dropout"), row, Budget(0))
    assert row["error"].startswith("cudnnpy: differs from torch by nan")


# --- tensors and time


@pytest.mark.parametrize(("cache", "sets"), [(1, 1), (300, 3), (10**9, operations.SETS)])
def test_the_sets_are_four_times_the_cache(cache: int, sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=cache))
    made = list(operations._sets(torch, _problem("relu", 2)))
    assert made[0][0].bytes == 2 * 2 * math.prod(TINY)  # x and y in float16
    assert len(made) == sets
    assert len({tensors.rooms[0].data_ptr() for tensors, _ in made}) == sets


def test_a_call_keeps_its_newest_result() -> None:
    made: list[weakref.ref[set[int]]] = []

    def call() -> set[int]:
        result: set[int] = set()
        made.append(weakref.ref(result))
        return result

    kept = operations._keeping(call)
    for _ in range(3):
        kept()
        assert [reference() is not None for reference in made] == [False] * (len(made) - 1) + [True]
