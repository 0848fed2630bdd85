"""The child process of tests/gpu/test_known_issues.py is tested itself: right results pass it, planted faults do not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cudnnpy._planning.known_issues import ISSUES

GPU = Path(__file__).resolve().parents[2] / "gpu"


def loaded(name: str) -> ModuleType:
    """A module of tests/gpu."""
    sys.path.insert(0, str(GPU))
    try:
        spec = importlib.util.spec_from_file_location(f"gpu_{name}", GPU / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(GPU))
    return module


problems, judge = loaded("known_issue_problems"), loaded("test_known_issues")
FIRST = {name: trials[0] for name, trials in problems.TRIALS.items() if isinstance(trials[0], problems.Convolved)}
# Its batch of 32 takes the host 20 seconds, and the comparison does not depend on it.
FIRST["depthwise-endless"] = replace(FIRST["depthwise-endless"], x_shape=(1, 48, 160, 160))


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.id)
def test_every_problem_is_one_that_its_issue_is_about(issue: Any) -> None:
    assert problems.TRIALS[issue.id]
    for trial in problems.TRIALS[issue.id]:
        asked = trial.graph if isinstance(trial, problems.Summed) else trial.problem
        assert issue.condition(asked.traits), trial
        assert asked.traits.operation in issue.operations or issue.id == "graph-orders"
    assert set(problems.TRIALS) == {issue.id for issue in ISSUES}


# The comparison, on a device that is none


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, np.ndarray[Any, Any]]]:
    """Device memory on the host, by the addresses where it begins."""
    memory: dict[int, np.ndarray[Any, Any]] = {}
    addresses = count(1 << 20, 1 << 24)

    def to_device(array: np.ndarray[Any, Any]) -> Any:
        pointer = next(addresses)
        memory[pointer] = array.copy()
        return SimpleNamespace(pointer=pointer)

    stand_in = SimpleNamespace(to_device=to_device, to_numpy=lambda array: memory[array.pointer])
    monkeypatch.setattr(problems, "GraphExecutable", lambda plan, uids: SimpleNamespace(workspace_size=0))
    with monkeypatch.context() as patch:
        for name, function in vars(stand_in).items():
            patch.setattr(problems.cudnnpy, name, function)
        yield memory


def computing(trial: Any, memory: dict[int, np.ndarray[Any, Any]], spoil: Callable[[Any], Any]) -> Callable[..., str]:
    """In place of a launch: the right result of what lies at the addresses, spoilt."""

    def launched(executable: Any, addresses: list[int], handle: Any) -> str:
        views = []
        for address, spec in zip(addresses, trial.problem.specs, strict=True):
            start = max(first for first in memory if first <= address)
            assert address % spec.alignment == 0
            strides = [stride * np.dtype(spec.dtype).itemsize for stride in spec.strides or (1,)]
            views.append(np.ndarray(spec.shape, spec.dtype, memory[start].data, address - start, strides))
        *inputs, out = views
        before = out.astype(np.float64) if trial.beta else np.zeros(out.shape)
        right = problems.expected(trial, [view.astype(np.float64) for view in inputs], before)
        out[...] = spoil(right).astype(out.dtype)
        return ""

    return launched


def one_missing(right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """With the largest element as if nothing had been added."""
    spoilt = right.copy()
    spoilt[np.unravel_index(np.argmax(np.abs(right)), right.shape)] = 0.0
    return spoilt


def shifted(right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """With each channel in the place of the next."""
    return np.roll(right, 1, axis=1)


@pytest.mark.parametrize("name", FIRST)
def test_a_right_result_is_right_and_a_planted_fault_is_found(
    name: str, device: dict[int, np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, found, handle = FIRST[name], SimpleNamespace(finalize=lambda: None), SimpleNamespace()
    for spoil, wrong in ((lambda right: right, False), (one_missing, True), (shifted, True)):
        monkeypatch.setattr(problems, "launched", computing(trial, device, spoil))
        assert bool(problems.convolved(trial, found, handle)) == wrong, (name, wrong)


def test_what_is_not_written_is_found(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "launched", lambda *_: "")
    wrong = problems.convolved(FIRST["data-gradient-unwritten"], SimpleNamespace(finalize=lambda: None), None)
    assert "156 of 156 elements are wrong: nan" in wrong


def test_what_the_device_says_is_found(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "launched", lambda *_: "status 0, the device says CUDA_ERROR_MISALIGNED_ADDRESS")
    wrong = problems.convolved(FIRST["weight-gradient-misaligned"], SimpleNamespace(finalize=lambda: None), None)
    assert wrong == "status 0, the device says CUDA_ERROR_MISALIGNED_ADDRESS"


# What the test makes of what the child said


RUNNING, FAULT, END = {"running": "engine 70: a"}, {"fault": "engine 70: NaN"}, {"ran": 3}


@pytest.mark.parametrize(
    ("lines", "status", "release", "outcome"),
    [
        ([RUNNING, FAULT], 0, 91900, "seen, engine 70: NaN"),
        ([RUNNING, FAULT], 0, 92800, "seen, engine 70: NaN"),
        ([RUNNING], -11, 91900, "seen, engine 70: a: the process ended by signal 11"),
        ([RUNNING, END], 0, 92800, "not seen in 3 runs; the entry can be narrowed"),
        ([RUNNING, END], 0, 91900, AssertionError),
        ([RUNNING], 1, 91900, AssertionError),  # a mistake of the child's own
        ([], -11, 91900, AssertionError),
    ],
)
def test_a_fault_counts_where_it_was_measured_and_a_mistake_of_the_child_never(
    lines: list[Any], status: int, release: int, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(stdout="".join(f"{json.dumps(line)}\n" for line in lines), stderr="", returncode=status)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(judge, "device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(judge.raw, "version", lambda: release)
    if outcome is AssertionError:
        with pytest.raises(AssertionError):
            judge.report(ISSUES[0])
    else:
        assert judge.report(ISSUES[0]).endswith(outcome)
