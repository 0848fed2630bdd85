"""Tuning while candidates crash, hang and read outside their operands: the caller's process goes on, with right results."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_runs import execute

import cudnnpy
from cudnnpy import store
from cudnnpy._planning.engines import EngineConfiguration
from cudnnpy._process.module_state import reset
from cudnnpy.tuning.measuring import gpu_worker
from cudnnpy.tuning.measuring.child_process import WorkerProcess
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker

FAULTY = Path(__file__).with_name("faulty_worker.py")
SYMPTOMS = {
    "abort": "process ended",
    "endless": "limit exceeded",
    "past_the_end": "access outside",
    "lost": "context lost",
    "waits": "limit exceeded",
}
NAMES = {fault: f"engine {900 + at}" for at, fault in enumerate(SYMPTOMS)}


@pytest.fixture
def new_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[store.Store]:
    def end_processes() -> None:
        gpu_worker.end_processes()
        reset("cudnnpy.tuning.measuring.gpu_worker")
        reset("cudnnpy.tuning.measuring.child_process")

    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "store.jsonl"))
    end_processes()
    yield store.default()
    end_processes()


def plant(monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
    command = [sys.executable, str(FAULTY), ",".join(faults)]
    monkeypatch.setattr(gpu_worker, "GpuWorker", partial(GpuWorker, start=partial(WorkerProcess, command=command)))


def operands(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(size)
    return torch.randn(4, 16, size, size, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")


def check(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    exact = torch.nn.functional.conv2d(x.double().cpu(), w.double().cpu(), padding=1)
    torch.testing.assert_close(y.double().cpu(), exact, atol=1e-4, rtol=1e-4)


def tuned(size: int, seconds: float = 2.0) -> float:
    """Tune a convolution of a size and check its result; return the seconds of the call."""
    x, w = operands(size)
    torch.cuda.synchronize()
    conv = cudnnpy.Convolution(padding=1, prefer="autotune", tf32=False, tune_seconds=seconds)
    begin = time.monotonic()
    y = conv.forward(x, w)
    spent = time.monotonic() - begin
    check(y, x, w)
    torch.cuda.synchronize()
    return spent


@pytest.mark.parametrize("fault", [*SYMPTOMS])
def test_a_fault_costs_the_candidate_and_is_stored(
    fault: str, new_store: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, fault)
    seconds = 9.0 if fault == "waits" else 4.0  # a launch that does not return is waited for as one that compiles
    assert tuned(14 + list(SYMPTOMS).index(fault), seconds) < 2 * seconds + 3.5
    (found,) = new_store.faults()
    assert (found.candidate, found.symptom) == (NAMES[fault], SYMPTOMS[fault])
    (entry,) = new_store
    (row,) = [candidate for candidate in entry.candidates if candidate.name == NAMES[fault]]
    assert row.rejection_reason.startswith("not measured: ")
    assert entry.choice.milliseconds is not None


def test_the_plan_that_a_child_compiled_is_not_compiled_again(
    new_store: store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depthwise convolutions: the engines that win are compiled at run time."""
    compiled: list[str] = []
    finalize = EngineConfiguration.finalize

    def noted(configuration: EngineConfiguration) -> Any:
        if "runtime_compilation" in configuration.behavior_notes:
            compiled.append(configuration.name)
        return finalize(configuration)

    monkeypatch.setattr(EngineConfiguration, "finalize", noted)
    x = torch.randn(16, 64, 40, 40, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = torch.randn(64, 1, 3, 3, device="cuda", dtype=torch.float16)
    conv = cudnnpy.Convolution(padding=1, groups=64, prefer="autotune")
    plan = conv.plan("forward", x, w)
    assert plan.milliseconds is not None
    assert compiled == []
    y = torch.full_like(x, torch.nan)
    execute(plan, x, w, y)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1, groups=64)
    assert (y.double() - expected).abs().max() < 0.02


def test_many_faults_at_once_end_within_the_deadline(new_store: store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "endless", "past_the_end", "lost", "abort")
    assert tuned(21, 1.0) < 2 * 1.0 + 3.5
    tuned(21, 1.0)  # what was not stored is chosen as "fastest" would


def test_torch_that_holds_most_of_the_memory_still_gets_its_result(new_store: store.Store) -> None:
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(int(0.95 * free), dtype=torch.uint8, device="cuda")
    assert tuned(22) < 2 * 2.0 + 3.5
    del held
    torch.cuda.empty_cache()
    tuned(23)


def test_no_memory_for_a_second_context_is_said_once(new_store: store.Store) -> None:
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (192 << 20), dtype=torch.uint8, device="cuda")
    with pytest.warns(RuntimeWarning, match="autotune measures nothing"):
        tuned(24)
    tuned(25)
    del held
    torch.cuda.empty_cache()
    assert list(new_store) == []


PROGRAM = """
import time, torch, cudnnpy
torch.manual_seed(0)
for size in range(30, 36):
    x, w = torch.randn(4, 16, size, size, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")
    conv = cudnnpy.Convolution(padding=1, prefer="autotune", tf32=False, tune_seconds=1.0)
    begin = time.monotonic()
    y = conv.forward(x, w)
    assert time.monotonic() - begin < 5.5, time.monotonic() - begin
    exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    assert (y.double() - exact).abs().max() < 1e-3
"""


def test_eight_programs_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "store.jsonl"))
    programs = [subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE) for _ in range(8)]
    errors = [program.communicate()[1].decode() for program in programs]
    assert [program.returncode for program in programs] == [0] * 8, errors
