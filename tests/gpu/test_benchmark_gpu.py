"""The tools that measure on the GPU, each for a few seconds: rows are measured, and few of them fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from tools.benchmark.runs import measured

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> str:
    assert torch.cuda.is_available()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert "Traceback" not in done.stdout, done.stdout[-3000:]
    assert done.returncode in (0, 1), (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_the_host_cost_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    printed = run("tools.benchmark", "host", "--seconds", "50", "-o", str(file))
    rows = measured(file)
    assert rows.keys() == {"host | float16", "host | float32"}, printed
    assert [row["error"] for row in rows.values() if row["error"]] == []


def test_tuning_is_summarized(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    printed = run("tools.benchmark.tuning", "-o", str(file), "--seconds", "25", "--tune-seconds", "0.3")
    assert "contexts lost: 0" in printed
    assert "processes that ended or did not return: 0" in printed
    assert measured(file)


def test_attention_is_summarized(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    printed = run("tools.benchmark.attention", "-o", str(file), "--seconds", "40", "--shapes", "8")
    assert "forward over the best road, all: " in printed
    assert [row["error"] for row in measured(file).values() if row["error"]] == []


def test_graphs_are_summarized(tmp_path: Path) -> None:
    file = tmp_path / "g.jsonl"
    printed = run("tools.benchmark.graphs", "-o", str(file), "--seconds", "60", "--cases", "4", "--tune-seconds", "0.3")
    assert "all, autotune over torch.compile: " in printed
    assert [row["error"] for row in measured(file).values() if row["error"]] == []


def test_a_survey_has_rows_that_are_judged(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    assert "candidates" in run("tools.ranking.survey", "-o", str(file), "--seconds", "20", "--processes", "2")
    run("tools.ranking", "--pack", str(file), "-o", str(tmp_path / "r.jsonl.gz"))
    assert "| heuristics | " in run("tools.ranking", str(tmp_path / "r.jsonl.gz"), "--epochs", "0")
