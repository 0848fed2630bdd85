"""cudnnpy.record: the problems that a program plans, as texts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from made_up_engines import LOTS, Cudnn, Made, MadeUp
from stand_in_device import Array, StandInDevice

import cudnnpy
from cudnnpy import Engine
from cudnnpy._launch.plan_cache import plan_cache
from cudnnpy._planning import selection
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.tuning import problem_file


def planned(name: str, **options: Any) -> None:
    selection.plan_for(MadeUp(name), PlanningOptions()._replace(**options))


def test_problems_are_recorded_once_in_order_with_their_options(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2))
    planned("before")
    with cudnnpy.record() as recording:
        for name in ("second", "first", "second"):
            planned(name)
        planned("first", prefer="autotune", deterministic=True)
        planned("forced", algorithm=Engine(1))
        thread = threading.Thread(target=planned, args=["of a thread"])
        thread.start()
        thread.join()
    planned("after")
    assert recording.problems == (
        "made_up problem_second",
        "made_up problem_first",
        "made_up problem_first prefer=autotune deterministic",
        "made_up problem_of a thread",
    )


def test_what_cannot_be_planned_is_not_recorded(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1, size=lambda knobs: LOTS + 1))
    monkeypatch.setattr(MadeUp, "functions", lambda *_: iter(()))
    with cudnnpy.record() as recording, pytest.raises(NoAlgorithmError):
        planned("sums")
    assert recording.problems == ()


def test_recordings_overlap_and_end_once(cudnn: Cudnn) -> None:
    cudnn.add(Made(1))
    outer = cudnnpy.record()
    with cudnnpy.record() as inner:
        planned("both")
    planned("outer")
    outer.end()
    outer.end()
    planned("none")
    assert (inner.problems, outer.problems) == (
        ("made_up problem_both",),
        ("made_up problem_both", "made_up problem_outer"),
    )


def test_a_recording_starts_with_an_empty_plan_cache() -> None:
    plan_cache().insert_planned("a signature", "its plan")
    with cudnnpy.record():
        assert not plan_cache()


def test_operations_are_recorded_as_a_file_that_can_be_read(stand_in: StandInDevice, tmp_path: Path) -> None:
    x, w, y = Array(2, 4, 6, 6), Array(8, 4, 3, 3), Array(2, 8, 6, 6)
    conv = cudnnpy.Convolution(padding=1, prefer="autotune", workspace_limit=1 << 20)
    with cudnnpy.record() as recording:
        conv.forward(x, w, out=y)
        conv.forward(x, w, out=y)
        conv.backward_data(y, w, out=x)
        conv.backward_bias(y)  # a graph inside, which is not chosen by these options
    file = tmp_path / "PROBLEMS.txt"
    recording.save(file)
    found = problem_file.read(file)
    assert [one.text for one in found] == list(recording.problems)
    assert [one.problem.operation for one in found] == ["forward", "backward_data"]
    assert {one.options.workspace_limit for one in found} == {1 << 20}
