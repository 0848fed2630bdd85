"""Runs of the benchmark: rows in files, children that end, and the time of the parts. No GPU, no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from network_rows import write_rows

from tools import rows
from tools.benchmark import runs
from tools.benchmark.runs import LOST, Part, Rows, Task
from tools.rows import FileError, Writer

ROOT = Path(__file__).resolve().parents[3]
PARTS = {"whole": Part(0.4), "inference": Part(0.4, 20.0), "layers": Part(0.6, 5.0)}


def row(key: str, **more: Any) -> dict[str, Any]:
    part, _, name = key.partition(" | ")
    return {"key": key, "part": part, "name": name, "error": None, **more}


# Files


def test_an_incomplete_last_line_is_ignored_and_replaced(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", "r1", row("layers | a"))
    with file.open("a") as stream:
        stream.write('{"key": "layers | b", "ru')
    assert set(Rows([file]).rows) == {"layers | a"}
    writer = Writer(file)
    writer.add({**row("layers | b"), "run": "r1"})
    writer.close()
    assert set(Rows([file]).rows) == {"layers | a", "layers | b"}
    assert Rows([tmp_path / "none"]).rows == {}


def test_the_last_of_several_rows_counts_and_failed_ones_are_done_unless_wanted_again(tmp_path: Path) -> None:
    old = write_rows(tmp_path / "old.jsonl", "r1", row("layers | a", value=1), row("layers | b", error="wrong"))
    new = write_rows(tmp_path / "new.jsonl", "r2", row("layers | a", value=2), {"begin": "layers | c"})
    found = Rows([old, new])
    assert found.rows["layers | a"]["value"] == 2
    assert set(found.runs) == {"r1", "r2"}
    assert [found.is_done(f"layers | {name}") for name in "abc"] == [True, True, False]
    assert not found.is_done("layers | b", again=True)
    lost = write_rows(tmp_path / "lost.jsonl", "r3", row("layers | d", error="lost", context_lost=True))
    assert Rows([lost]).is_done("layers | d", again=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("not JSON\n", "line 1: a row must be a JSON object; got 'not JSON'"),
        ("[]\n", "line 1: a row must be a JSON object"),
        ('{"key": "layers | a", "run": "r1"}\n', "a row must have run, part, name and error; got 'layers | a'"),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    with pytest.raises(FileError) as caught:
        Rows([file])
    assert expected in str(caught.value)


# Measuring


def gpu(fails_after: int = 10**9) -> Any:
    calls: list[None] = []

    def synchronize() -> None:
        calls.append(None)
        if len(calls) > fails_after:
            raise RuntimeError("an illegal memory access was encountered")

    return SimpleNamespace(cuda=SimpleNamespace(synchronize=synchronize, empty_cache=lambda: None))


def tasks(count: int, measure: Any, part: str = "layers") -> list[Task]:
    return [Task(part, str(n), lambda row, budget, n=n: measure(n, row, budget)) for n in range(count)]  # type: ignore[misc]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tools.benchmark.timing.Budget.__init__.__defaults__", (clock,))
    return clock


def measured(file: Path, todo: list[Task], seconds: float, torch: Any = None) -> Rows:
    run = {"run": f"r{len(Rows([file]).runs)}", "seconds": seconds}
    runs.measure(torch or gpu(), todo, PARTS, Rows([file]), file, run, again=False)
    return Rows([file])


def test_a_run_ends_before_its_time_and_the_next_continues(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(n: int, row: dict[str, Any], budget: Any) -> None:
        clock.now += 7.0

    for total in (4, 8, 10, 10):
        begin = clock.now
        assert len(measured(tmp_path / "rows.jsonl", tasks(10, measure), 30.0).rows) == total
        assert clock.now - begin <= 30
    ended = "2 s are left and the next may take 7 s: raise --budget, or continue later"
    assert capsys.readouterr().out.splitlines()[0] == f"layers: measured 4 of 10 rows, {ended}"


def test_parts_share_the_time_and_a_part_that_is_done_leaves_its_own(clock: Clock, tmp_path: Path) -> None:
    def measure(n: int, row: dict[str, Any], budget: Any) -> None:
        clock.now += 10.0

    todo = tasks(100, measure, "inference") + tasks(100, measure)
    found = measured(tmp_path / "a.jsonl", todo, 1000.0)
    assert Counter(row["part"] for row in found.rows.values()) == {"inference": 40, "layers": 60}
    found = measured(tmp_path / "b.jsonl", todo[90:], 1000.0)
    assert Counter(row["part"] for row in found.rows.values()) == {"inference": 10, "layers": 90}


def test_the_time_of_a_part_that_is_measured_whole_limits_each_row_alone(clock: Clock, tmp_path: Path) -> None:
    budgets: list[float] = []

    def measure(n: int, row: dict[str, Any], budget: Any) -> None:
        budgets.append(budget.left)
        clock.now += 40.0

    assert len(measured(tmp_path / "a.jsonl", tasks(4, measure, "whole"), 100.0).rows) == 4
    assert budgets == [25.0, 20.0, 10.0, 0.0]


def test_a_row_that_raises_is_a_failed_row_and_the_others_follow(tmp_path: Path) -> None:
    def measure(n: int, row: dict[str, Any], budget: Any) -> None:
        row["flop"] = n
        if n == 1:
            raise MemoryError("too large")

    found = measured(tmp_path / "a.jsonl", tasks(3, measure), 60.0)
    assert [row["error"] for row in found.rows.values()] == [None, "MemoryError: too large", None]
    assert found.rows["layers | 1"]["flop"] == 1


def test_a_lost_gpu_ends_the_child_after_the_row_that_lost_it(tmp_path: Path) -> None:
    file, todo = tmp_path / "a.jsonl", tasks(9, lambda *given: None)
    run = {"run": "r1", "seconds": 60.0}
    assert runs.measure(gpu(fails_after=2), todo, PARTS, Rows(), file, run, again=False) == LOST
    *_, last = Rows([file]).rows.values()
    assert (len(Rows([file]).rows), last["context_lost"]) == (3, True)
    assert last["error"] == "RuntimeError: an illegal memory access was encountered"


# Children

CHILD = """
import os, sys, time
from pathlib import Path
from tools.rows import Writer, read
file = Path(sys.argv[1])
done = sum("key" in row for row in read(file))
writer = Writer(file)
writer.add({"run": str(os.getpid())})
for number in range(done, 4):
    key = f"layers | {number}"
    writer.add({"begin": key, "run": str(os.getpid())})
    if number == 1:
        os._exit(9)
    if number == 2:
        time.sleep(600)
    writer.add({"key": key, "run": "r", "part": "layers", "name": str(number), "error": None})
"""


def child(tmp_path: Path, code: str = CHILD) -> list[str]:
    program = tmp_path / "child.py"
    program.write_text(code)
    return [str(program), str(tmp_path / "rows.jsonl")]


@pytest.fixture
def _path(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_path")
def test_rows_that_end_or_block_their_process_fail_and_the_others_follow(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    assert runs.supervise(file, 60.0, 2.0, child(tmp_path)) == ""
    found = Rows([file])
    assert len(found.runs) == 3
    assert [found.rows[f"layers | {number}"]["error"] for number in range(4)] == [
        None,
        "the process ended while this was measured: exit status 9",
        "the process ended while this was measured: no return within 2 s",
        None,
    ]
    assert 'child.py", line 15 in <module>' in capfd.readouterr().err  # where it hangs


@pytest.mark.usefixtures("_path")
def test_a_child_that_measures_nothing_ends_the_run(tmp_path: Path) -> None:
    assert runs.supervise(tmp_path / "rows.jsonl", 60.0, 5.0, child(tmp_path, "raise SystemExit(1)")) == "exit status 1"
    assert not (tmp_path / "rows.jsonl").exists()


STOPPED = """
import sys
from pathlib import Path
from tools.benchmark import runs
print(runs.supervise(Path(sys.argv[2]), 600.0, 600.0, sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("_path")
def test_a_run_that_is_stopped_ends_its_child_and_fails_no_row(number: signal.Signals, tmp_path: Path) -> None:
    words = child(tmp_path, CHILD.replace("number == 1", "False"))
    file = Path(words[1])
    command = [sys.executable, "-c", STOPPED, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        end = time.monotonic() + 30
        while time.monotonic() < end and not (file.exists() and file.read_bytes().count(b"\n") >= 6):
            time.sleep(0.05)
        os.kill(process.pid, number)
        printed, _ = process.communicate(timeout=30)
    assert printed == "stopped; the same command continues\n"
    lines = rows.read(file)
    assert json.loads(json.dumps(lines[-1]))["begin"] == "layers | 2"
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines[-1]["run"]), 0)
