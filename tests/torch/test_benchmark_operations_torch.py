"""The benchmark's section "operations": its cases against torch, with cudnnpy's NumPy reference, and its rows."""

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
from tools.benchmark.cases import TINY, Case, Roads, Tensors
from tools.benchmark.families import command, problems
from tools.benchmark.figures import operation_ratio
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
    monkeypatch.setattr(cases, "SHAPE", TINY)
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


def _case(name: str, size: str = "") -> Case:
    return next(case for case in operations.CASES if (case.name, case.size) == (name, size))


# --- the cases

# torch has no average of three dimensions in float16 on the CPU, of which its local response norm is made
ON_THE_CPU = [
    pytest.param(case, kind, id=f"{kind.name}, {case.name} {case.size}".rstrip())
    for kind in operations.KINDS
    for case in operations.CASES
    if kind.channels_last in case.orders
    and not (kind.dtype == "float16" and case.name.startswith("local response norm"))
]


@pytest.mark.parametrize(("case", "kind"), ON_THE_CPU)
def test_every_case_on_the_gpu_has_torchs_result(case: Case, kind: operations.Kind) -> None:
    row: dict[str, Any] = {"error": None}
    operations.measure_device(torch, case, kind, Budget(0), row)
    assert row["error"] is None
    assert {"torch", "torch, again", "cudnnpy"} <= row["ms"].keys()


# torch's bfloat16 is none of NumPy's types
OF_FAMILIES = [
    pytest.param(problem, id=problem.name)
    for shape in ((1, 65), (20, 33), (1, 3, 1, 1), (2, 6, 3, 3))
    for case in (problems.of_images(shape) if len(shape) > 2 else problems.of_rows(shape))
    for kind in problems.KINDS
    if kind.channels_last in (case.orders if len(shape) > 2 else (False,)) and kind.dtype != "bfloat16"
    for problem in [problems.Problem(case, shape, kind)]
]


@pytest.mark.parametrize("problem", OF_FAMILIES)
def test_every_operation_of_the_families_has_torchs_result(
    problem: problems.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "copy_rate", lambda torch: 2.0)
    (task,) = command.tasks(torch, [problem])
    row: dict[str, Any] = {"error": None}
    task.measure(row)
    assert row["error"] is None
    assert operation_ratio(row, "cudnnpy") == 1.0
    assert row["memory_ms"] == pytest.approx(row["bytes"] / 2e6)
    assert row["bytes"] >= math.prod(problem.shape) * getattr(torch, problem.kind.dtype).itemsize


@pytest.mark.parametrize("case", [case for case in operations.CASES if case.host], ids=lambda case: case.name)
def test_every_case_on_the_host_has_torchs_result(case: Case) -> None:
    row: dict[str, Any] = {"error": None}
    operations._measure_host(torch, case, Budget(0), row)
    assert row["error"] is None
    assert ("cudnnpy, new" in row["us"]) == (case.name != "set")


def test_every_row_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_measure_host", "measure_device"):
        monkeypatch.setattr(operations, name, lambda *given: None)
    rows = list(operations.measure(torch, Budget(0)))
    assert len(rows) > 200
    assert len({(row["kind"], row["operation"]) for row in rows}) == len(rows)
    assert list(dict.fromkeys(row["kind"] for row in rows)) == [
        operations.HOST,
        *(kind.name for kind in operations.KINDS),
    ]


@pytest.mark.parametrize("case", [case for case in operations.CASES if "+" in case.name], ids=lambda case: case.name)
def test_what_is_fused_is_timed_beside_its_separate_calls(case: Case) -> None:
    row: dict[str, Any] = {}
    operations.measure_device(torch, case, operations.KINDS[1], Budget(0), row)
    assert row["ms"].keys() == {"torch", "torch, again", "cudnnpy", "separate"}


# --- rows that fail stay rows


def test_a_name_that_is_missing_fails_its_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "cudnnpy", SimpleNamespace(scale_tensor=OnTensors(reference).scale_tensor))
    monkeypatch.setattr(operations, "cudnnpy", SimpleNamespace())
    monkeypatch.setattr(operations, "CASES", (_case("softmax"), _case("scale")))
    rows = list(operations.measure(torch, Budget(0)))
    assert len(rows) == 2 * (1 + len(operations.KINDS))
    for row in rows:
        if row["operation"] == "scale":
            assert row["error"] is None
        else:
            assert row["error"].startswith("AttributeError")
            assert "Softmax" in row["error"]
            assert "ms" not in row


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
    def make(t: Tensors) -> Roads:
        x, y = t.random(), t.room()
        return Roads(lambda: (x, x), lambda: ours(x, y))

    row: dict[str, Any] = {}
    operations.measure_device(torch, Case("copy", make), operations.KINDS[0], Budget(0), row)
    assert row["error"].startswith(f"cudnnpy: {told}")
    assert "ms" not in row


def test_separate_calls_that_fail_leave_the_fused_time() -> None:
    def make(t: Tensors) -> Roads:
        x, y = t.random(), t.room()
        return Roads(lambda: x, lambda: y.copy_(x), separate=lambda: y)  # the room is emptied between

    row: dict[str, Any] = {"kind": "fp32 NCHW", "operation": "copy", "unit": "ms"}
    operations.measure_device(torch, Case("copy", make), operations.KINDS[0], Budget(0), row)
    assert row["error"].startswith("separate: differs from torch by nan")
    assert operation_ratio(row, "cudnnpy") == 1.0
    assert operation_ratio(row, "separate") is None


def test_dropouts_zeros_are_about_half(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropout:
        def __init__(self, probability: float, seed: int) -> None:
            pass

        def forward(self, x: Any, out: Any = None) -> Any:
            return x * 2, None

    monkeypatch.setattr(cases, "cudnnpy", SimpleNamespace(Dropout=Dropout))
    row: dict[str, Any] = {}
    operations.measure_device(torch, _case("dropout"), operations.KINDS[0], Budget(0), row)
    assert row["error"].startswith("cudnnpy: differs from torch by nan")


# --- tensors and time


@pytest.mark.parametrize(("cache", "sets"), [(1, 1), (300, 3), (10**9, operations.SETS)])
def test_the_sets_are_four_times_the_cache(cache: int, sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=cache))
    made = list(operations._sets(torch, _case("relu"), operations.KINDS[2], TINY))
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


def test_the_host_has_its_part_and_each_row_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, float]] = []
    monkeypatch.setattr(operations, "CASES", (_case("relu"), _case("relu, backward")))
    monkeypatch.setattr(operations, "_measure_host", lambda torch, case, budget, row: given.append(("us", budget.left)))
    monkeypatch.setattr(
        operations, "measure_device", lambda torch, case, kind, budget, row: given.append(("ms", budget.left))
    )
    list(operations.measure(torch, Budget(100, lambda: 5.0)))  # a clock that stands
    assert [unit for unit, _ in given] == ["us"] + ["ms"] * 8
    assert given[0][1] == pytest.approx(100 * operations.HOST_PART)
    assert [share for _, share in given[1:]] == pytest.approx([100 / left for left in range(8, 0, -1)])
