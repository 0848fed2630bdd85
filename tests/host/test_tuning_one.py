"""What a worker does with one problem: it measures what the store does not have, and returns what stands there."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in_tuning import KINDS, tuned

from cudnnpy import store as stores
from cudnnpy._planning.engines import Target
from cudnnpy._planning.notation import ProblemTextError, parse
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.usable import Measurement
from cudnnpy.cli import tuning
from cudnnpy.store import Entry

TEXT = "forward 1x8x9x9 16x8x3x3 pad=1 float16 channels_last prefer=fastest tune_seconds=9"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, PlanningOptions]]]:
    """A GPU of KINDS[0], a store in memory, and what was called: "plan_for" as a process does, or "measure"."""
    found: list[tuple[str, PlanningOptions]] = []

    def plan_for(problem: Any, options: PlanningOptions, tuner: Any) -> None:
        found.append(("plan_for", options))
        stores.default().put(tuned(TEXT, 0, options.tune_seconds))

    def measure(problem: Any, options: PlanningOptions, *_: Any) -> Measurement:
        found.append(("measure", options))
        return Measurement(tuned(TEXT, 0, options.tune_seconds), lacked_memory=tuning.KINDS is None)

    stand_ins = {
        "on_device": lambda device: nullcontext(),
        "Handle": SimpleNamespace(default=lambda device: None),
        "Target": lambda handle, kind=KINDS[0]: Target(None, kind),
        "LocalMeasurer": lambda *_: SimpleNamespace(measure=measure),
        "workspace": SimpleNamespace(free_bytes=lambda device: 1 << 30),
        "plan_for": plan_for,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(tuning, name, stand_in)
    stores.use("")
    yield found
    stores.use(None)


def test_a_problem_is_tuned_as_a_process_would_and_its_entry_returned(calls: list[tuple[str, PlanningOptions]]) -> None:
    found = tuning.tune_one(TEXT, 0, 1.5)
    ((name, options),) = calls
    assert (name, options.prefer, options.tune_seconds) == ("plan_for", "autotune", 1.5)
    assert found == stores.default().get(found.key)
    assert found.tune_seconds == 1.5


def test_a_choice_that_was_not_kept_is_an_error(
    calls: list[tuple[str, PlanningOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "plan_for", lambda *_: None)
    with pytest.raises(RuntimeError, match=r"^the choice for forward .* was not kept: "):
        tuning.tune_one(TEXT, 0, 1.5)
    assert not calls


def test_what_was_planned_without_a_gpu_is_measured(calls: list[tuple[str, PlanningOptions]]) -> None:
    planned = tuned(TEXT, 0, 0.0, milliseconds=None, complete=False)
    stores.default().put(planned)
    assert stores.default().get(planned.key) == planned
    found = tuning.tune_one(TEXT, 0, 1.5)
    ((name, options),) = calls
    assert (name, options.prefer, options.tune_seconds) == ("measure", "autotune", 1.5)
    assert found.milliseconds is not None
    assert stores.default().get(planned.key) == found


def test_a_choice_for_want_of_memory_does_not_replace_a_plan(
    calls: list[tuple[str, PlanningOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = tuned(TEXT, 0, 0.0, milliseconds=None, complete=False)
    stores.default().put(planned)
    monkeypatch.setattr(tuning, "KINDS", None)  # which the stand-in takes for a shortage of memory
    assert tuning.tune_one(TEXT, 0, 1.5) == planned
    assert [name for name, _ in calls] == ["measure"]


def test_what_was_measured_is_left_to_the_store(calls: list[tuple[str, PlanningOptions]]) -> None:
    earlier = tuned(TEXT, 0, 4.0, made_with={"device": "earlier"})
    stores.default().put(earlier)
    assert tuning.tune_one(TEXT, 0, 1.5) == earlier
    assert [name for name, _ in calls] == ["plan_for"]


@pytest.mark.parametrize(("prefer", "limit"), [("no_workspace", 0), ("limited_workspace", 1 << 30), ("fastest", None)])
def test_a_preference_is_the_limit_that_it_means(prefer: str, limit: int | None) -> None:
    _, options = parse(TEXT.replace("prefer=fastest", f"prefer={prefer}"))
    made = tuning.options_to_tune(options, 1.5)
    assert (made.prefer, made.workspace_limit, made.tune_seconds) == ("autotune", limit, 1.5)


@pytest.mark.usefixtures("calls")
def test_a_text_that_is_no_problem_is_refused() -> None:
    with pytest.raises(ProblemTextError, match="column 26"):
        tuning.tune_one("forward 1x8x9x9 16x8x3x3 pud=1", 0, 1.0)


def test_it_can_be_sent_to_another_machine() -> None:
    assert pickle.loads(pickle.dumps(tuning.tune_one)) is tuning.tune_one
    entry = tuned(TEXT, 0, 1.0)
    assert isinstance(pickle.loads(pickle.dumps(entry)), Entry)
