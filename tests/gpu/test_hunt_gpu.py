"""The hunt for faults on the GPU: its children run the engines of drawn problems, whatever they find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.hunt import report

ROOT = Path(__file__).resolve().parents[2]


def test_children_run_the_engines_of_drawn_problems(tmp_path: Path) -> None:
    file = tmp_path / "faults.jsonl"
    options = ["--problems", "4", "--processes", "2", "--seconds", "120", "-o", str(file)]
    command = [sys.executable, "-m", "tools.hunt", "--only", "odd", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert not done.returncode, done.stderr[-2000:]
    findings = report.read(file)
    assert findings is not None
    rows = list(findings.done.values())
    assert [row["error"] for row in rows] == [""] * 4, json.dumps(rows)
    assert sum(row["runs"] for row in rows) > 20
    assert any(row["ms"] for row in rows)
    assert "4 problems (4 odd)" in done.stdout
