"""Each known issue of cuDNN's engines, run on purpose: whether the loaded release has it on this GPU.

A release and a GPU in which an issue was measured must show it. Where others do not, the test passes and says that the
entry of cudnnpy/_planning/known_issues.json can be narrowed (`assumed`). An issue that others reported was measured nowhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from known_issue_problems import TRIALS

from cudnnpy import raw
from cudnnpy._planning.known_issues import ISSUES, Issue

HERE = Path(__file__).resolve().parent
SECONDS = 300.0
LIMITS = {"depthwise-endless": 60.0}  # for an engine that does not end; each of the problems takes a second otherwise


def lines_of(text: str) -> list[dict[str, Any]]:
    """The messages of the child."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def device_name() -> str:
    from cuda.core import Device

    return str(Device(0).name)


def observed(issue: Issue) -> tuple[str, int, list[str]]:
    """What a child process found: the fault, "" for none; how many runs there were; and what was run."""
    command = [sys.executable, str(HERE / "known_issue_problems.py"), issue.id]
    paths = str(HERE.parents[1]), str(HERE.parent / "shared")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    seconds = LIMITS.get(issue.id, SECONDS)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        assert issue.id in LIMITS
        *_, last_begun = lines_of((late.stdout or b"").decode())
        return f"{last_begun['running']}: no end within {seconds:.0f} s", 1, [last_begun["running"]]
    lines = lines_of(done.stdout)
    runs = [line["running"] for line in lines if "running" in line]
    last = lines[-1] if lines else {}
    if "fault" in last:
        return last["fault"], len(runs), runs
    if "ran" in last:
        return "", last["ran"], runs
    # ended by a signal while an engine ran: the fault itself
    assert runs, f"{issue.id}: the child ended with {done.returncode} before anything ran:\n{done.stderr[-2000:]}"
    assert done.returncode < 0, f"{issue.id}: the child failed at {runs[-1]}:\n{done.stderr[-2000:]}"
    return f"{runs[-1]}: the process ended by signal {-done.returncode}", len(runs), runs


def report(issue: Issue) -> str:
    """What is to be said of an issue here. AssertionError where it was measured and is not seen."""
    assert TRIALS[issue.id]
    release, device = raw.version(), device_name()
    where = f"{issue.id}, cuDNN {raw.version_text(release)} on an {device}"
    fault, ran, runs = observed(issue)
    if fault:
        return f"{where}: seen, {fault}"
    measured = any(number == release and name in device for number, name in issue.measured)
    # what is accepted changes no candidate: the tolerance of the tests allows it, and it may stay unseen
    accepted = issue.remedy == "accepted"
    assert accepted or not measured, f"{where}: measured there, and not seen in {ran} runs:\n" + "\n".join(runs)
    narrowed = "; the entry can be narrowed" if issue.is_in(release) else ", in a release that is not said to have it"
    return f"{where}: not seen in {ran} runs{narrowed}"


@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.id)
def test_an_issue_is_seen(issue: Issue, capsys: pytest.CaptureFixture[str]) -> None:
    """In every release and on every GPU in which it was measured; elsewhere the test says what it found."""
    text = report(issue)
    with capsys.disabled():
        print(f"\n{text}")
