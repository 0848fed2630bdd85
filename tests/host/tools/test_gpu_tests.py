"""tools/gpu_tests.py: every GPU test is in a part, and a part that fails or takes too long is told."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tools import gpu_tests
from tools.gpu_tests import PARTS, Part

ROOT = Path(__file__).resolve().parents[3]


def test_every_file_is_in_one_part() -> None:
    files = Counter(file for name, part in PARTS.items() if not part.arguments for file in gpu_tests.files_of(name))
    assert files == Counter(f"tests/gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py"))


def test_commands() -> None:
    words = gpu_tests.command("opinfo")[1:]
    options = "-q -rsf -p no:cacheprovider -p no:benchmark -n 4"
    assert " ".join(words) == f"-m pytest {options} tests/gpu/test_opinfo_gpu.py"
    checked = gpu_tests.command("memcheck")
    assert checked[:3] == ["compute-sanitizer", "--tool", "memcheck"]
    assert checked[-3:] == ["-k", "smoke", "tests/gpu"]


def made_up(monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Parts that run programs in the place of pytest."""
    monkeypatch.setattr(gpu_tests, "PARTS", dict.fromkeys(programs, Part(("test_threads",))))
    monkeypatch.setattr(gpu_tests, "command", lambda name: [sys.executable, "-c", programs[name]])
    monkeypatch.setattr(gpu_tests, "gpus", list)


@pytest.mark.parametrize("at_once", ["1", "3"])
def test_results_are_told_and_logs_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at_once: str
) -> None:
    made_up(
        monkeypatch,
        good="print('...'); print('=== 3 passed, 1 skipped in 0.10s ===')",
        bad="import sys; print('1 failed, 2 passed in 9s'); sys.exit(1)",
        soak="import os; print(os.environ['CUDNNPY_REQUIRE_GPU'], 'and no results')",
    )
    assert gpu_tests.main(["--out", str(tmp_path / "logs"), "--at-once", at_once]) == 1
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[3]) for line in lines] == [
        ("good", "passed         3 passed, 1 skipped in 0.10s"),
        ("bad", "exit status 1  1 failed, 2 passed in 9s"),
        ("soak", "passed         1 and no results"),
    ]
    assert (tmp_path / "logs" / "good.log").read_text().startswith("...\n===")


def test_a_part_that_is_not_done_in_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processes are, too."""
    child = f"import time, pathlib; time.sleep(2.5); pathlib.Path({str(tmp_path / 'later')!r}).touch()"
    made_up(monkeypatch, long=f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])")
    assert gpu_tests.main(["--out", str(tmp_path), "--seconds", "1"]) == 1
    assert " ended " in capsys.readouterr().out
    time.sleep(2)
    assert not (tmp_path / "later").exists()


def test_a_part_that_is_ended_prints_its_failures_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(
        monkeypatch,
        long="""
import time
print('running', flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print('FAILED tests/gpu/test_it.py::test_this')
""",
    )
    assert gpu_tests.main(["--out", str(tmp_path), "--seconds", "1"]) == 1
    assert "FAILED tests/gpu/test_it.py::test_this" in (tmp_path / "long.log").read_text()


def test_the_sanitizers_errors_are_told() -> None:
    log = "172 passed in 60.00s\n========= ERROR SUMMARY: 0 errors\n"
    assert gpu_tests.summary(log) == "172 passed in 60.00s; ERROR SUMMARY: 0 errors"


@pytest.mark.parametrize("bad", [["nothing"], ["--at-once", "0"], ["--seconds", "-1"]])
def test_other_arguments_are_refused(tmp_path: Path, bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_tests.main(["--out", str(tmp_path / "logs"), *bad])
    assert "must be" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def test_the_gpus_are_those_that_the_caller_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert gpu_tests.gpus() == ["2", "3"]
