"""Tuning in a program: when a child process measures, and when nothing does. The worker and the GPU are stand-ins."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_entries import entry

from cudnnpy import TensorSpec
from cudnnpy._arrays import workspace
from cudnnpy._convolution import specification
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import gpu_worker, gpus
from cudnnpy.tuning.measuring.child_process import StartError
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker, Tuner

ENTRY = entry("forward 1x1x8x8 1x1x3x3")
OPTIONS = PlanningOptions(prefer="autotune", tune_seconds=0.2)
TOO_LONG = "another call or process measured on the GPU for too long"


class Worker(GpuWorker):
    """A GpuWorker without processes: notes what it is asked, and answers or raises what it is given."""

    answer: Any = Measurement(ENTRY)
    asked: list[tuple[Any, ...]]
    ended = 0

    def __init__(self, uuid: str) -> None:
        super().__init__(uuid)
        Worker.asked = []
        Worker.ended = 0

    def measure(self, text: str, seconds: float, **options: Any) -> Measurement:
        limit, left_out, deadline = (options[name] for name in ("limit", "left_out", "deadline"))
        Worker.asked.append((text, seconds, limit, left_out, deadline - time.monotonic()))
        if isinstance(Worker.answer, Exception):
            raise Worker.answer
        return Worker.answer

    def confirm(self, text: str, given: Any, limit: int, deadline: float) -> str | None:
        Worker.asked.append((text, given, limit))
        return "wrong"

    def close(self) -> None:
        Worker.ended += 1


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """One idle GPU, on which nothing forbids measuring."""
    there = SimpleNamespace(is_idle=True, why="", lock=tmp_path / "GPU-1.lock")
    monkeypatch.setattr(gpus, "uuid_of", lambda device: "GPU-1")
    monkeypatch.setattr(gpus, "why_not_measured", lambda device: there.why)
    monkeypatch.setattr(gpu_worker, "_path", lambda uuid: tmp_path / f"{uuid}.lock")
    monkeypatch.setattr(gpu_worker, "is_stream_idle", lambda stream: there.is_idle)
    monkeypatch.setattr(gpu_worker, "on_device", lambda device: threading.Lock())
    monkeypatch.setattr(gpu_worker, "GpuWorker", Worker)
    monkeypatch.setattr(Worker, "answer", Measurement(ENTRY))
    return there


def measured(options: PlanningOptions = OPTIONS, limit: int = 1 << 20, **left_out: str) -> Measurement:
    made = specification.make_problem(
        ConvolutionOptions(padding=1),
        "forward",
        *(TensorSpec(shape, "float32") for shape in ((2, 6, 7, 8), (4, 6, 3, 3), (2, 4, 7, 8))),
        device=0,
    )
    return Tuner(0, 7).measure(ConvolutionProblem(*made), options, limit, left_out)


def test_a_problem_is_measured_as_its_text_within_the_deadline() -> None:
    assert measured(engine="a fault") == Measurement(ENTRY)
    text, seconds, limit, left_out, left = Worker.asked[0]
    assert text == "forward 2x6x7x8 4x6x3x3 pad=1"
    assert (seconds, limit, left_out) == (0.2, 1 << 20, {"engine": "a fault"})
    assert 2.0 < left <= 2.4


@pytest.mark.parametrize("error", [ValueError("no engine"), StartError("no memory for a context")])
def test_what_cannot_be_measured_gives_a_reason(error: Exception) -> None:
    Worker.answer = error
    if isinstance(error, StartError):
        with pytest.warns(RuntimeWarning, match="measures nothing, .*: no memory for a context. Tune ahead"):
            assert measured() == Measurement(None, str(error))
    assert measured() == Measurement(None, str(error))
    assert len(Worker.asked) == 1  # no other start is tried at once


def test_a_gpu_that_no_second_process_may_use_is_left_alone(gpu: SimpleNamespace) -> None:
    gpu.why = "CUDA MPS runs"
    with pytest.warns(RuntimeWarning, match="CUDA MPS runs"):
        assert measured() == Measurement(None, "CUDA MPS runs")
    assert measured().reason == "CUDA MPS runs"  # it warns once: a second warning is an error in the tests
    assert gpu_worker._by_uuid == {}


def test_the_stream_is_waited_for_and_not_for_ever(gpu: SimpleNamespace) -> None:
    gpu.is_idle = False
    assert measured() == Measurement(None, "other work on the GPU did not end in time")
    threading.Timer(0.05, setattr, (gpu, "is_idle", True)).start()
    assert measured().entry == ENTRY


def test_another_thread_that_measures_is_waited_for_and_not_for_ever() -> None:
    assert measured().entry == ENTRY
    with gpu_worker.worker_of("GPU-1").turn(time.monotonic()) as has_turn:
        assert has_turn
        assert measured() == Measurement(None, TOO_LONG)
    assert measured().entry == ENTRY


def test_processes_of_a_user_take_turns(gpu: SimpleNamespace) -> None:
    with open(gpu.lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert measured() == Measurement(None, TOO_LONG)
    assert measured().entry == ENTRY
    assert Worker.asked[0][0].startswith("forward")


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path, gpu: SimpleNamespace) -> None:
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(gpu.lock)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert measured().entry is None
        other.kill()
    assert measured().entry == ENTRY


def test_without_a_file_to_lock_it_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_worker, "_path", lambda uuid: tmp_path / "missing" / "lock")
    assert measured().entry == ENTRY


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path, gpu: SimpleNamespace) -> None:
    (tmp_path / "target").write_text("mine")
    gpu.lock.symlink_to(tmp_path / "target")
    assert measured().entry == ENTRY
    assert (tmp_path / "target").read_text() == "mine"


def test_a_line_says_how_to_tune_ahead_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_worker, "_SAY_SECONDS", 1e-9)
    with caplog.at_level(logging.WARNING, "cudnnpy"):
        measured()
        measured()
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["1 problem was tuned"]


def test_memory_that_is_short_ends_idle_processes() -> None:
    measured()
    workspace.ask_for_memory()
    assert Worker.ended == 1
    with gpu_worker.worker_of("GPU-1").turn(time.monotonic()):
        workspace.ask_for_memory()
    assert Worker.ended == 1


def test_a_forked_process_starts_its_own() -> None:
    measured()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = int(bool(gpu_worker._by_uuid) or measured().entry != ENTRY)
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert "GPU-1" in gpu_worker._by_uuid


def test_a_stored_choice_is_confirmed_in_the_process() -> None:
    made = specification.make_problem(
        ConvolutionOptions(),
        "forward",
        *(TensorSpec((1, 1, 4, 4), "float32"),) * 2,
        TensorSpec((1, 1, 1, 1), "float32"),
        device=0,
    )
    assert Tuner(0).confirm(ConvolutionProblem(*made), OPTIONS, ENTRY.choice, 10) == "wrong"
