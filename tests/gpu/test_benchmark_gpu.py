"""The benchmark's commands on the GPU, each for a few seconds: every section measures rows, and few of them fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.benchmark.runs import Rows

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> str:
    assert torch.cuda.is_available()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert "Traceback" not in done.stdout, done.stdout[-3000:]
    assert done.returncode in (0, 1), (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--only", "host"),
        ("--only", "store"),
        ("--only", "operations"),
        ("--only", "networks", "--part", "layers", "--tune-seconds", "0.2"),
    ],
    ids=["host", "store", "operations", "layers"],
)
def test_a_section_measures_rows(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    printed = run("tools.benchmark", *words, "--budget", "25", "--rows", str(file))
    rows = list(Rows([file]).rows.values())
    failures = [f"{row['name']}: {row['error']}" for row in rows if row["error"]]
    assert len(rows) >= 2, printed
    assert len(failures) <= len(rows) / 20, failures
    assert not any(row.get("process_ended") for row in rows), failures


def test_tuning_is_summarized(tmp_path: Path) -> None:
    printed = run("tools.benchmark.tuning", "-o", str(tmp_path / "t.jsonl"), "--seconds", "25", "--tune-seconds", "0.3")
    assert "contexts lost: 0" in printed
    assert "processes that ended or did not return: 0" in printed
    assert Rows([tmp_path / "t.jsonl"]).rows


def test_a_survey_has_rows_that_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    assert "candidates" in run("tools.ranking.survey", "-o", str(file), "--seconds", "20", "--processes", "2")
    run("tools.ranking", "--pack", str(file), "-o", str(tmp_path / "r.jsonl.gz"))
    assert "| heuristics | " in run("tools.ranking", str(tmp_path / "r.jsonl.gz"), "--epochs", "0")
