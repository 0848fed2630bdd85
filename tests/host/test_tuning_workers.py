"""Worker processes: each problem gets a result, whatever becomes of the process that has it."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import stand_in_tuning
from made_up_entries import job

from cudnnpy.cli.tuning_workers import LostDevice, Result, Workers


def run(
    texts: Sequence[str], devices: int = 1, patience: float = 60.0, start=stand_in_tuning.start
) -> list[Result | LostDevice]:
    workers = Workers([(number, "") for number in range(devices)], stand_in_tuning.work, start, patience)
    return list(workers.run([job(text, 0.0) for text in texts]))


def reasons(reports: list[Result | LostDevice]) -> dict[str, str]:
    return {report.job.text: report.reason for report in reports if isinstance(report, Result)}


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_problems_are_tuned_on_all_devices_at_once_each_in_one_process() -> None:
    texts = [f"problem {number}" for number in range(20)]
    reports = run(texts, devices=2)
    entries = [report.entry for report in reports if isinstance(report, Result) and report.entry]
    assert sorted(entry.text for entry in entries) == sorted(texts)
    processes = {(entry.made_with["device"], entry.made_with["process"]) for entry in entries}
    assert len(processes) == len({process for _, process in processes})
    assert {device for device, _ in processes} <= {"0", "1"}
    assert not any(alive(int(process)) for _, process in processes)
    assert [report.device for report in reports if isinstance(report, Result)] == [
        int(entry.made_with["device"]) for entry in entries
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("crash", "the worker was ended by SIGSEGV"),
        ("exit", "the worker ended with exit status 3"),
        ("error", "RuntimeError: an illegal memory access was encountered"),
        ("unreadable", "its answer cannot be read: ValueError: invalid literal for int() with base 10: 'no number'"),
        ("no candidate", "no candidate can be used: there is no candidate"),
        ("bad", "ValueError: text must be a problem; got 'bad'"),
    ],
)
def test_a_problem_that_fails_is_set_aside_and_the_others_go_on(text: str, reason: str) -> None:
    reports = run(["one", text, "two", "three"])
    assert reasons(reports) == {"one": "", text: reason, "two": "", "three": ""}
    assert all((report.entry is None) == bool(report.reason) for report in reports if isinstance(report, Result))


@pytest.mark.parametrize("what", ["crash", "exit", "error"])
def test_a_problem_gets_a_second_try_in_a_new_process(tmp_path: Path, what: str) -> None:
    text = f"once {tmp_path / 'tried'} {what}"
    reports = run(["before", text, "after"])
    assert reasons(reports) == {"before": "", text: "", "after": ""}
    made = [report.entry.made_with["process"] for report in reports if isinstance(report, Result) and report.entry]
    assert made[0] != made[1] == made[2]


@pytest.mark.parametrize("what", ["no candidate", "bad"])
def test_what_no_process_can_help_is_not_tried_again(tmp_path: Path, what: str) -> None:
    text = f"once {tmp_path / 'tried'} {what}"
    reports = run(["before", text, "after"])
    assert reasons(reports)[text]
    made = [report.entry.made_with["process"] for report in reports if isinstance(report, Result) and report.entry]
    assert made[0] == made[1]


def test_a_worker_that_does_not_answer_is_replaced() -> None:
    reports = run(["one", "hang", "two"], patience=2.0)
    assert reasons(reports) == {"one": "", "hang": "no answer after 2 s", "two": ""}


def test_a_job_that_may_take_long_is_given_the_time() -> None:
    workers = Workers([(0, "")], stand_in_tuning.work, stand_in_tuning.start, patience=0.5)
    (report,) = workers.run([job("hang", 0.1)])
    assert isinstance(report, Result)
    assert report.reason == "no answer after 1.5 s"


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (stand_in_tuning.start_all_but_one, "RuntimeError: this GPU has fallen off the bus"),
        (stand_in_tuning.crash_at_start, "the worker was ended by SIGKILL"),
    ],
)
def test_a_device_that_cannot_be_used_is_left_out(start, reason: str) -> None:
    texts = [f"problem {number}" for number in range(6)]
    reports = run(texts, devices=2, start=start)
    assert [report for report in reports if isinstance(report, LostDevice)] == [LostDevice(1, reason)]
    assert reasons(reports) == dict.fromkeys(texts, "")


def test_a_device_whose_process_cannot_be_started_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    start = SpawnProcess.start
    count = iter(range(9))

    def scarce(process: SpawnProcess) -> None:
        if next(count) == 0:
            raise OSError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", scarce)
    reports = run(["one", "two"], devices=2)
    (lost,) = (report for report in reports if isinstance(report, LostDevice))
    assert lost.reason == "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    assert reasons(reports) == {"one": "", "two": ""}


def test_without_a_device_that_can_be_used_every_problem_says_so() -> None:
    workers = Workers([(1, "")], stand_in_tuning.work, stand_in_tuning.start_all_but_one)
    lost, *reports = workers.run([job("one", 1.0), job("two", 1.0)])
    assert isinstance(lost, LostDevice)
    assert reasons(reports) == dict.fromkeys(["one", "two"], "no GPU is left to tune it on")


def test_a_problem_is_tuned_on_a_device_of_its_kind() -> None:
    workers = Workers([(0, "old"), (1, "new"), (2, "old")], stand_in_tuning.work, stand_in_tuning.start)
    jobs = [job(f"problem {number}", 0.0, kind) for number in range(3) for kind in ("old", "new", "none")]
    reports = list(workers.run(jobs))
    devices = Counter((report.job.kind, report.device) for report in reports if isinstance(report, Result))
    assert devices.keys() <= {("old", 0), ("old", 2), ("new", 1), ("none", None)}
    assert sum(devices.values()) == 9
    assert devices["none", None] == 3


def test_workers_do_not_see_ctrl_c() -> None:
    """A terminal sends it to them as well. It is the parent that ends them, without a word of theirs."""
    reports = run([f"interrupt {number}" for number in range(4)], devices=2)
    assert set(reasons(reports).values()) == {""}


def test_processes_end_when_nobody_asks_for_further_results() -> None:
    workers = Workers([(0, ""), (1, "")], stand_in_tuning.work, stand_in_tuning.start)
    reports = workers.run([job("one", 0.0), job("hang", 60.0), job("hang 2", 60.0)])
    first = next(reports)
    reports.close()
    assert isinstance(first, Result)
    assert first.entry is not None
    assert not alive(int(first.entry.made_with["process"]))
    assert multiprocessing.active_children() == []
