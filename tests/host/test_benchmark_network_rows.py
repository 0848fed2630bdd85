"""The rows of networks in files, and runs that add to them, without a GPU and without torch."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from network_rows import network_writer

from tools.benchmark import resumable
from tools.benchmark.networks import command
from tools.benchmark.networks.command import PARTS
from tools.benchmark.resumable import Task, failures
from tools.benchmark.store import Rows

# --- rows in files


def _row(**more: Any) -> dict[str, Any]:
    return {"part": "layers", "name": "a cell", "error": None, **more}


def test_rows_are_in_the_file_as_soon_as_they_are_done(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = network_writer(file, "r1")
    writer.begin("layers | a")
    writer.row("layers | a", _row(value=1))
    found = Rows.read([file])
    assert found.is_done("layers | a")
    assert not found.is_done("layers | b")
    assert found.rows["layers | a"] == {"key": "layers | a", "run": "r1", **_row(value=1)}
    assert found.runs["r1"]["GPU"] == "NVIDIA H200"
    writer.close()


def test_a_line_that_was_cut_off_is_passed_over_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = network_writer(file, "r1")
    writer.row("layers | a", _row())
    writer.close()
    with file.open("a") as stream:
        stream.write('{"key": "layers | b", "ru')
    assert set(Rows.read([file]).rows) == {"layers | a"}
    writer = network_writer(file, "r2", "2026-01-02")
    writer.row("layers | b", _row())
    writer.close()
    assert set(Rows.read([file]).rows) == {"layers | a", "layers | b"}


def test_the_union_of_files_takes_the_newest_run_whatever_their_order(tmp_path: Path) -> None:
    files = [tmp_path / "old.jsonl", tmp_path / "new.jsonl"]
    for number, file in enumerate(files, 1):
        writer = network_writer(file, f"r{number}", f"2026-01-0{number}")
        writer.row("layers | both", _row(value=number))
        writer.row(f"layers | only {number}", _row())
        writer.close()
    for order in (files, files[::-1]):
        found = Rows.read(order)
        assert set(found.rows) == {"layers | both", "layers | only 1", "layers | only 2"}
        assert found.rows["layers | both"]["value"] == 2
        assert set(found.runs) == {"r1", "r2"}


def test_a_row_that_ends_its_process_twice_is_a_failed_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for run in ("r1", "r2"):
        assert not (file.exists() and Rows.read([file]).is_done("layers | bad"))
        writer = network_writer(file, run)
        writer.begin("layers | bad")
        writer.close()
    found = Rows.read([file])
    assert found.is_done("layers | bad")
    assert not found.is_done("layers | bad", again=True)
    assert failures(found.all()) == ["layers, bad: the process ended while this was measured, 2 times"]


def test_a_row_that_was_given_up_is_measured_later(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = network_writer(file, "r1")
    for _ in range(3):
        writer.begin("layers | a")
        writer.stop("layers | a")
    writer.close()
    found = Rows.read([file])
    assert not found.is_done("layers | a")
    assert found.all() == []


def test_a_failed_row_is_done_unless_it_is_wanted_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    writer = network_writer(file, "r1")
    writer.row("layers | a", _row(error="wrong"))
    writer.close()
    assert Rows.read([file]).is_done("layers | a")
    assert not Rows.read([file]).is_done("layers | a", again=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not JSON\n", "line 1: a row must be JSON"),
        ('{"layers": 1}\n', "line 1: a row must be one that"),
        ('{"key": "layers | a", "run": "r1", "part": "layers", "name": "a", "error": null}\n', "got none for run 'r1'"),
        ('{"run": "r1"}\n{"key": "layers | a", "run": "r1"}\n', "line 2: a row must have its part"),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=expected):
        Rows.read([file])


# --- measuring, with a GPU that is none


def _gpu(fails_after: int = 10**9) -> Any:
    calls = []

    def synchronize() -> None:
        calls.append(1)
        if len(calls) > fails_after:
            raise RuntimeError("an illegal memory access was encountered")

    return SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize, empty_cache=lambda: None))


def _tasks(count: int, measure: Any, part: str = "layers") -> list[Task]:
    def task(number: int) -> Task:
        return Task(part, f"{part} | {number}", str(number), lambda row: measure(number, row))

    return [task(number) for number in range(count)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("tools.benchmark.resumable.Budget.__init__.__defaults__", (found,))
    monkeypatch.setattr("tools.benchmark.resumable.gc.collect", lambda: 0)  # after each row, which takes long here
    return found


def test_a_run_ends_before_its_time_and_the_next_goes_on(clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"

    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 7.0

    for run, total in (("r1", 4), ("r2", 8), ("r3", 10), ("r4", 10)):
        rows = Rows.read([file] if file.exists() else [])
        writer = network_writer(file, run)
        begin = clock.now
        assert resumable.measure(_gpu(), _tasks(10, measure), rows, writer, 30.0, PARTS) == ""
        writer.close()
        assert clock.now - begin <= 30
        assert len(rows.rows) == len(Rows.read([file]).rows) == total
    assert [row["run"] for row in Rows.read([file]).rows.values()] == ["r1"] * 4 + ["r2"] * 4 + ["r3"] * 2


def test_a_run_says_which_rows_it_had_no_time_for(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 60.0

    writer = network_writer(tmp_path / "a.jsonl", "r1")
    resumable.measure(_gpu(), _tasks(4, measure, "training"), Rows(), writer, 90.0, PARTS)
    ended = "30 s are left, the next may take 60 s: raise --budget, or go on later"
    assert capsys.readouterr().out == f"training: measured 1 of 4 rows; {ended}\n"
    rows = Rows()
    resumable.measure(_gpu(), _tasks(4, measure, "training"), rows, writer, 250.0, PARTS)
    writer.close()
    assert len(rows.rows) == 4
    assert capsys.readouterr().out == "training: measured 4 of 4 rows\n"


def test_parts_share_the_time_and_a_part_that_is_done_leaves_its_own(clock: Clock, tmp_path: Path) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 10.0

    tasks = _tasks(100, measure, "inference") + _tasks(100, measure, "layers")
    rows = Rows()
    writer = network_writer(tmp_path / "a.jsonl", "r1")
    resumable.measure(_gpu(), tasks, rows, writer, 850.0, PARTS)
    counts = Counter(row["part"] for row in rows.rows.values())
    assert counts == {"inference": 25, "layers": 60}
    rows = Rows()
    resumable.measure(_gpu(), tasks[90:], rows, writer, 850.0, PARTS)
    writer.close()
    assert Counter(row["part"] for row in rows.rows.values()) == {"inference": 10, "layers": 75}


def test_what_a_part_needs_first_is_done_in_its_time_and_once(clock: Clock, tmp_path: Path) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        clock.now += 10.0

    def ahead(tasks: Any, seconds: float) -> None:
        asked.append((len(tasks), seconds))
        clock.now += 50.0

    asked: list[tuple[int, float]] = []
    rows = Rows()
    writer = network_writer(tmp_path / "a.jsonl", "r1")
    tasks = _tasks(30, measure, "inference") + _tasks(30, measure)
    assert resumable.measure(_gpu(), tasks, rows, writer, 340.0, PARTS, False, {"inference": ahead}) == ""
    writer.close()
    assert asked == [(30, 100.0)]
    assert Counter(row["part"] for row in rows.rows.values()) == {"inference": 5, "layers": 24}


def test_torch_compiles_ahead_what_more_than_one_row_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], float]] = []

    def compile_ahead(programs: Any, seconds: float) -> int:
        asked.append(([program.name for program in programs], seconds))
        return 1

    monkeypatch.setattr(command, "compile_ahead", compile_ahead)
    tasks = command._tasks(None, [], None)["inference"]
    for some, seconds in ((tasks[:1], 100.0), (tasks[2:4], 100.0), (tasks[2:4], 500.0)):
        command._compile_ahead(some, seconds)
    names = ["mobilenet_v2 | batch 1", "mobilenet_v2 | batch 64"]
    assert asked == [(names, 50.0), (names, command.COMPILE_SECONDS)]


def test_a_row_that_raises_is_a_failed_row_and_the_others_follow(tmp_path: Path) -> None:
    def measure(number: int, row: dict[str, Any]) -> None:
        row["flop"] = number
        if number == 1:
            raise MemoryError("too large")

    rows = Rows()
    writer = network_writer(tmp_path / "a.jsonl", "r1")
    assert resumable.measure(_gpu(), _tasks(3, measure), rows, writer, 60.0, PARTS) == ""
    writer.close()
    assert [row["error"] for row in rows.rows.values()] == [None, "MemoryError: too large", None]
    assert rows.rows["layers | 1"]["flop"] == 1


def test_a_lost_gpu_ends_the_run_after_the_row_that_lost_it(tmp_path: Path) -> None:
    rows = Rows()
    file = tmp_path / "a.jsonl"
    writer = network_writer(file, "r1")
    why = resumable.measure(_gpu(fails_after=2), _tasks(9, lambda number, row: None), rows, writer, 60.0, PARTS)
    writer.close()
    assert "illegal memory access" in why
    assert len(Rows.read([file]).rows) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_keeps_its_rows_and_gives_up_the_one_it_was_at(number: int, tmp_path: Path) -> None:
    def measure(at: int, row: dict[str, Any]) -> None:
        if at == 2:
            signal.raise_signal(number)

    before = signal.getsignal(signal.SIGTERM)
    file = tmp_path / "a.jsonl"
    writer = network_writer(file, "r1")
    assert resumable.measure(_gpu(), _tasks(9, measure), Rows(), writer, 60.0, PARTS).startswith("stopped")
    writer.close()
    assert set(Rows.read([file]).rows) == {"layers | 0", "layers | 1"}
    assert json.loads(file.read_text().splitlines()[-1]) == {"stopped": "layers | 2", "run": "r1"}
    assert signal.getsignal(signal.SIGTERM) == before
