"""The workers of this machine's GPUs: each problem gets a result, whatever becomes of the process that has it."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from made_up_entries import KIND, job
from process_groups import has_ended
from stand_in_tuning import gpus_of, worker

from cudnnpy.cli.tune import tune_problem
from cudnnpy.cli.tune.tune_problem import Job, LostPlace, Place, Result, TuningGpu, distribute, tune_on
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring.child_process import StartError
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker

HOW = "set aside after 3 tries: the process that measures ended: "
AT_START = "the process that measures and plans ended when it started: signal SIGKILL"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of the locks of GPUs


@contextmanager
def local_places(gpus: Sequence[TuningGpu], make: Callable[[str], Any]) -> Iterator[list[Place]]:
    """The places of GPUs whose workers `make` makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune_problem, "GpuWorker", make)
        with tune_problem.local_places(gpus) as places:
            yield places


def run(texts: Sequence[str], devices: int = 1, behaviour: str = "as_told") -> list[Result | LostPlace]:
    return distributed([job(text, 1.0) for text in texts], gpus_of(*[KIND] * devices), behaviour)


def distributed(jobs: Sequence[Job], gpus: Sequence[TuningGpu], behaviour: str = "as_told") -> list[Result | LostPlace]:
    with local_places(gpus, worker(behaviour)) as places:
        return list(distribute(jobs, lambda: places))


def reasons(reports: list[Result | LostPlace]) -> dict[str, str]:
    return {report.job.text: report.reason for report in reports if isinstance(report, Result)}


def processes(reports: list[Result | LostPlace]) -> list[int]:
    entries = [report.entry for report in reports if isinstance(report, Result) and report.entry]
    return [int(entry.made_with["process"]) for entry in entries]


def test_problems_are_tuned_on_all_devices_at_once_each_in_one_process() -> None:
    texts = [f"problem {number}" for number in range(20)]
    reports = run(texts, devices=2)
    entries = [report.entry for report in reports if isinstance(report, Result) and report.entry]
    assert sorted(entry.text for entry in entries) == sorted(texts)
    there = {(entry.made_with["device"], entry.made_with["process"]) for entry in entries}
    assert len(there) == len({process for _, process in there})
    assert {device for device, _ in there} <= {"0", "1"}
    assert all(map(has_ended, processes(reports)))
    assert [report.place for report in reports if isinstance(report, Result)] == [
        f"GPU {entry.made_with['device']}" for entry in entries
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("crash", f"{HOW}signal SIGSEGV"),
        ("exit", f"{HOW}exit status 3"),
        ("hang", f"{HOW}it was ended at the limit"),
        ("nonsense", f"{HOW}it answered nonsense: Expecting value: line 1 column 1 (char 0)"),
        ("bad", "text must be a problem; got 'bad'"),
        ("another", "GPU 0 must send an entry with gpu 'NVIDIA H200'; got 'another GPU'"),
    ],
)
def test_a_problem_that_fails_is_set_aside_and_the_others_go_on(text: str, reason: str) -> None:
    reports = run(["one", text, "two", "three"])
    assert reasons(reports) == {"one": "", text: reason, "two": "", "three": ""}
    assert all((report.entry is None) == bool(report.reason) for report in reports if isinstance(report, Result))


@pytest.mark.parametrize("what", ["crash", "exit"])
def test_a_problem_gets_a_second_try_in_a_new_process(tmp_path: Path, what: str) -> None:
    text = f"once {tmp_path / 'tried'} {what}"
    reports = run(["before", text, "after"])
    assert reasons(reports) == {"before": "", text: "", "after": ""}
    before, after, now = processes(reports)
    assert before != after == now


class StoppableWorker(GpuWorker):
    """The worker of a GPU that refuses the problem "first" at once, and any other when it is stopped."""

    def __init__(self, uuid: str) -> None:
        super().__init__(uuid)
        self._stopped = threading.Event()

    def measure(self, text: str, *_arguments: object, **_options: object) -> Measurement:
        if text != "first":
            self._stopped.wait()
        raise ValueError("nothing is measured")

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("chosen", range(1, 150))
def test_ctrl_c_at_any_moment_ends_the_distribution(chosen: int) -> None:
    """Press Ctrl-C at some event after the first report: a call, a line or a return, also in Python's own modules."""
    jobs, events = [job(text, 1.0) for text in ("first", "second", "third")], itertools.count(1)

    def trace(*_event: object) -> Any:
        if next(events) == chosen:
            signal.raise_signal(signal.SIGINT)
        return trace

    with pytest.raises(KeyboardInterrupt), local_places(gpus_of(KIND, KIND), StoppableWorker) as places:
        reports = distribute(jobs, lambda: places)
        next(reports)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            next(reports)
        finally:
            sys.settrace(before)
    assert next(events) > chosen


def test_what_no_process_can_help_is_not_tried_again(tmp_path: Path) -> None:
    text = f"once {tmp_path / 'tried'} bad"
    reports = run(["before", text, "after"])
    assert reasons(reports)[text]
    before, after = processes(reports)
    assert before == after


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("all_but_one", "this GPU"),
        ("crash_at_start", AT_START),
    ],
)
def test_a_device_that_cannot_be_used_is_left_out(behaviour: str, reason: str) -> None:
    texts = [f"problem {number}" for number in range(6)]
    reports = run(texts, devices=2, behaviour=behaviour)
    assert [report for report in reports if isinstance(report, LostPlace)] == [LostPlace("GPU 1", reason)]
    assert reasons(reports) == dict.fromkeys(texts, "")


def test_without_a_device_that_can_be_used_every_problem_says_so() -> None:
    lost, *reports = distributed([job("one", 1.0), job("two", 1.0)], [TuningGpu("GPU-1", 1, KIND)], "all_but_one")
    assert isinstance(lost, LostPlace)
    assert reasons(reports) == dict.fromkeys(["one", "two"], "no GPU is left to tune it on")


def test_a_problem_is_tuned_on_a_device_of_its_kind() -> None:
    old, new, none = (KIND._replace(name=name) for name in ("old", "new", "none"))
    jobs = [job(f"problem {number}", 1.0, kind) for number in range(3) for kind in (old, new, none)]
    reports = distributed(jobs, gpus_of(old, new, old))
    places = Counter((report.job.kind.name, report.place) for report in reports if isinstance(report, Result))
    assert places.keys() <= {("old", "GPU 0"), ("old", "GPU 2"), ("new", "GPU 1"), ("none", "")}
    assert sum(places.values()) == 9
    assert places["none", ""] == 3


def test_processes_end_when_nobody_asks_for_further_results() -> None:
    with local_places(gpus_of(KIND, KIND), worker("as_told")) as places:
        first = next(distribute([job("one", 1.0), job("hang", 60.0), job("hang 2", 60.0)], lambda: places))
        begin = time.monotonic()
    assert isinstance(first, Result)
    assert all(map(has_ended, processes([first])))
    assert time.monotonic() - begin < 60.0


def test_a_worker_that_is_stopped_does_not_wait_for_its_turn() -> None:
    there = GpuWorker("GPU-0")
    with there.turn(time.monotonic()):
        threading.Timer(0.1, there.stop).start()
        with pytest.raises(StartError, match="stopped"):
            tune_on(there, job("a", 1.0))
