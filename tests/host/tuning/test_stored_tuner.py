"""Stored choices: a problem of the store is not measured again. The engines and their times are made up."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_engines import LOTS, TARGET, Cudnn, Executable, Made, MadeUp, plan_with, tuner
from stored import changed

from cudnnpy import Engine, Plan, candidates_table, raw
from cudnnpy._arrays import workspace
from cudnnpy._planning import known_issues, problem_notation, selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice, GpuKind
from cudnnpy._planning.chooser import chooser_of
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.tuning import chooser, stored_choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.store import levels
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.store.store import Store

SUMS = MadeUp()


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_choice, "driver", lambda: "13.0")


@pytest.fixture
def new_process(tmp_path: Path) -> Callable[[], None]:
    """What a process has that starts now, with the store of the others."""

    def start() -> None:
        levels.use(str(tmp_path / "store.jsonl"))

    start()
    return start


def planned(
    problem: MadeUp = SUMS, memory_limit: int | None = None, before: Engine | None = None, **options: Any
) -> Plan:
    asked = PlanningOptions(prefer="autotune")._replace(**options)
    return selection.plan_for(problem, asked, preferred_engine=before, memory_limit=memory_limit)


def standing(problem: MadeUp = SUMS, **options: Any) -> Entry:
    found = levels.current().get(stored_choice.key_of(problem, PlanningOptions(**options), gpu_kind(TARGET)))
    assert found is not None
    return found.entry


def put(entry: Entry) -> None:
    levels.current().writable.put(entry, replace=True)


class Child:
    """A measurer with answers of its own: an entry, or none, and what it says of a stored choice."""

    def __init__(self, measurement: Measurement | None = None, said: str | None = "") -> None:
        self.measurement, self.said = measurement or Measurement(None, "no second process may use the GPU"), said
        self.asked: list[tuple[str, float, int, dict[str, str]]] = []
        self.confirmed: list[tuple[str | None, int]] = []

    def measure(
        self, problem: Problem, options: PlanningOptions, limit: int, left_out: Mapping[str, str]
    ) -> Measurement:
        self.asked.append((str(getattr(problem, "name", "")), options.tune_seconds, limit, dict(left_out)))
        return self.measurement

    def confirm(self, problem: Problem, options: PlanningOptions, choice: Choice, limit: int) -> str | None:
        self.confirmed.append((choice.name, limit))
        return self.said


def measured(child: Child, problem: MadeUp = SUMS, **options: Any) -> Plan:
    """A plan that is measured by the child."""
    asked = PlanningOptions(prefer="autotune")._replace(**options)
    return plan_with(child, problem, asked)


def faults() -> list[tuple[str, str, str, str]]:
    return [(one.candidate, one.symptom, one.detail, one.driver) for one in levels.current().user.faults()]


def add_fault(candidate: str, problem: MadeUp = SUMS) -> str:
    """Store a fault of a candidate; return the rejection reason for it."""
    key = stored_choice.key_of(problem, PlanningOptions(), gpu_kind(TARGET))
    levels.current().add_faults(key, "its text", [(candidate, "access outside", "reads beyond x", "13.0")])
    return f"access outside on {levels.current().user.faults()[0].made_at[:10]}: reads beyond x"


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cudnnpy")
    monkeypatch.setattr(sys.modules[__name__], "logged", lambda: caplog.records)


def logged() -> list[logging.LogRecord]:
    """The records of the test."""
    raise AssertionError


def reasons() -> list[str]:
    """Why stored choices are not used, each reason once."""
    messages = [record.getMessage() for record in logged() if "a stored choice is not used" in record.msg]
    return [*dict.fromkeys(message.split(": ", 3)[3] for message in messages)]


@pytest.mark.parametrize("loads", [True, False])
def test_the_plan_that_the_child_compiled_is_loaded_or_else_compiled_here(
    cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry = standing()
    levels.use("")
    loaded: list[str] = []

    def load_plan(text: str, target: Any) -> Any:
        loaded.append(text)
        if not loads:
            raise raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize")
        return Executable(cudnn.engines[2], {})

    monkeypatch.setattr(chooser, "load_plan", load_plan)
    cudnn.clock = 0.0
    cudnn.engines[2].plans_in = 5.0
    plan = measured(Child(Measurement(entry, compiled={"engine 2": "its plan", "engine 9": "another"})))
    assert (plan.name, loaded, cudnn.clock) == ("engine 2", ["its plan"], 0.0 if loads else 5.0)


# A problem is measured once


def test_the_heuristics_and_the_engines_are_not_asked_for_a_stored_choice(
    cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()

    def never(*_: Any) -> Any:
        raise AssertionError("the set-up of a stored choice takes no longer than a guess")

    for name in ("proposed_candidates", "engines", "functions"):
        monkeypatch.setattr(MadeUp, name, never)
    assert planned().name == "engine 2"


def test_all_that_was_considered_is_listed_again(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(
        Made(1), Made(2, lambda knobs: 1.0), Made(4, size=lambda knobs: LOTS + 1), Made(5, notes=("tensor_core",))
    )
    first = planned(tf32=False)
    new_process()
    again = planned(tf32=False)
    assert candidates_table(again.candidates) == candidates_table(first.candidates)
    assert "uses tf32" in candidates_table(again.candidates)
    with pytest.raises(ValueError, match="must come from candidates"):
        again.candidates[0].make()
    kept = selection.plan_for(SUMS, PlanningOptions(prefer="autotune", tf32=False), lists_candidates=False)
    assert (kept.name, kept.candidates) == (again.name, [])


def test_the_key_has_the_gpu_and_the_release(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    with monkeypatch.context() as patch:
        for module in (chooser, stored_choice):
            patch.setattr(module, "gpu_kind", lambda target: GpuKind("another", "", 1))
        assert planned().store_layer == ""
    assert planned().store_layer == "user"
    monkeypatch.setattr(raw, "version", lambda: 99999)
    assert planned().store_layer == ""


def test_a_profile_has_the_key_of_its_gpu(cudnn: Cudnn) -> None:
    text = json.dumps({"deviceName": "NVIDIA H200", "deviceVer": 900, "multiProcessorCount": 132})
    target = Target(profile=text)
    key = stored_choice.key_of(SUMS, PlanningOptions(workspace_limit=7), gpu_kind(target))
    assert key[2:] == ("NVIDIA H200", "9.0", 132, raw.version())
    assert key.problem == problem_notation.text_of(SUMS)
    assert json.loads(key.options) == {"deterministic": False, "tf32": True, "workspace_limit": 7}


def test_a_c_function_is_not_kept(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, size=lambda knobs: LOTS + 1))
    assert planned().name == "plain"
    assert len(levels.current().user) == 0


# More time, less memory


def test_more_time_improves_what_was_cut_short(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(Made(1, lambda knobs: 5.0, runs_for=1.0), Made(2, lambda knobs: 9.0), Made(3, lambda knobs: 1.0))
    assert planned(tune_seconds=0.5).name == "engine 1"
    assert not standing().complete
    cudnn.measured.clear()
    assert (planned(tune_seconds=0.5).name, planned(tune_seconds=0.2).name, cudnn.measured) == ("engine 1",) * 2 + ([],)
    assert (planned(tune_seconds=9.0).name, cudnn.measured[0]) == ("engine 3", "engine 1")
    assert (standing().complete, standing().tune_seconds) == (True, 9.0)
    new_process()
    cudnn.measured.clear()
    assert (planned(tune_seconds=99.0).name, cudnn.measured) == ("engine 3", [])


def test_a_choice_that_is_too_large_now_is_left_to_others(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500), Made(3, lambda knobs: 3.0))
    assert planned().name == "engine 2"
    before = standing()
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "free_bytes", lambda device: 499)
        assert planned().name == "engine 3"
    cudnn.measured.clear()
    assert (planned(memory_limit=499).name, cudnn.measured) == (
        "engine 1",
        [],
    )  # out of memory in the caller: nothing is measured
    assert (planned(memory_limit=500).name, standing(), reasons()) == ("engine 2", before, [])
    assert planned().name == "engine 2"


def test_a_choice_that_says_it_needs_less_than_it_does_is_left_alone(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500))
    planned(workspace_limit=600)
    entry = standing(workspace_limit=600)
    other = stored_choice.key_of(SUMS, PlanningOptions(workspace_limit=400), gpu_kind(TARGET))
    put(changed(entry, key=other, workspace_size=0))
    assert planned(workspace_limit=400).name == "engine 1"
    assert (standing(workspace_limit=400).choice.workspace_size, reasons()) == (0, [])


# Without an entry


def test_a_problem_without_a_candidate_has_the_reasons_in_one_line(cudnn: Cudnn) -> None:
    """The most frequent first."""
    cudnn.add(Made(1), *(Made(number, size=lambda knobs: 500) for number in (2, 3, 4)))
    left_out = {f"engine 1{suffix}": "access outside:\nx" for suffix in ("", " + blocks")} | {"plain": "slow"}
    found = tuner().measure(SUMS, PlanningOptions(prefer="autotune"), 499, left_out)
    assert (found.entry, found.rejected) == (None, {})
    assert found.reason.startswith(
        "no candidate can be used: needs 500 bytes, the limit is 499 bytes; access outside: x; not supported here"
    )


def test_without_a_measurer_a_stored_choice_is_taken_and_nothing_else_happens(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    assert plan_with(None, SUMS, AUTOTUNE).name == "engine 1"
    planned()
    put(elsewhere(standing()))
    assert plan_with(None, SUMS, AUTOTUNE).name == "engine 2"
    assert cudnn.confirmed == []


def entry_that_does_not_load(cudnn: Cudnn) -> Entry:
    """Choose engine 2, and return its entry. It refuses every graph from then on, and the user's store is another one."""
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry = standing()
    levels.use("")
    cudnn.engines[2].refuses = lambda knobs: True
    cudnn.proposed.pop()
    return entry


def test_a_measured_choice_that_does_not_load_here_is_not_stored_and_fastest_chooses(cudnn: Cudnn) -> None:
    entry = entry_that_does_not_load(cudnn)
    plan = measured(Child(Measurement(entry)))
    assert (plan.name, plan.milliseconds, len(reasons()), len(levels.current().user)) == ("engine 1", None, 1, 0)


def test_candidates_that_failed_when_they_were_measured_are_not_chosen_now(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2))
    child = Child(Measurement(None, "no candidate could be run", rejected={"engine 1": "failed when run: no"}))
    assert measured(child).name == "engine 2"
    child.measurement = child.measurement._replace(rejected=dict.fromkeys(EVERY, "failed when run: no"))
    with pytest.raises(NoAlgorithmError, match="failed when run: no"):
        measured(child)


EVERY = ["engine 1", "engine 1 + blocks", "engine 2", "engine 2 + blocks", "plain"]


def test_more_time_that_leads_to_a_slower_choice_leaves_the_faster_one(cudnn: Cudnn) -> None:
    """The measuring process did not come to it again."""
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, runs_for=1.0), Made(3, lambda knobs: 5.0))
    assert planned(tune_seconds=0.5).name == "engine 2"
    before = standing()
    rows = (before.candidates[0]._replace(name="engine 1", milliseconds=10.0),)
    slower = before._replace(tune_seconds=9.0, complete=True, candidates=rows)
    slower = changed(slower, engine=Engine(1), name="engine 1", milliseconds=10.0)
    for child in (Child(Measurement(slower)), Child()):
        assert (measured(child, tune_seconds=9.0).name, len(child.asked)) == (
            "engine 2",
            child.measurement.entry is not None,
        )
    assert (standing().choice.milliseconds, standing().tune_seconds, standing().complete) == (1.0, 9.0, True)


# The other preferences


def test_only_what_was_measured_or_confirmed_with_this_driver_is_taken_without_running_it(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    own = standing()
    for entry in (elsewhere(own), changed(own, milliseconds=None, complete=False)):
        put(entry)
        child = Child()
        assert (measured(child, prefer="fastest").name, child.confirmed, child.asked) == ("engine 1", [], [])
        assert standing() == entry
    child = Child()
    measured(child)
    assert child.confirmed == [("engine 2", LOTS)]
    assert measured(child, prefer="fastest").name == "engine 2"


def test_a_stored_choice_that_fails_is_passed_over_without_a_change_of_the_store(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(before := changed(standing(), lowering="in half"))
    assert (planned(prefer="fastest").name, standing(), faults()) == ("engine 1", before, [])


def test_a_forced_engine_and_that_of_the_first_shape_come_before_the_store(
    cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    for prefer in ("autotune", "fastest"):
        assert planned(prefer=prefer, before=Engine(1)).name == "engine 1"
        assert planned(prefer=prefer, before=Engine(9)).name == "engine 2"  # which does not take it
    add_fault("engine 1")
    assert planned(before=Engine(1)).name == "engine 2"
    for name in ("entries", "faults_of"):
        monkeypatch.setattr(levels.Layers, name, lambda *_, **__: pytest.fail("the store was read"))
    assert planned(algorithm=Engine(1)).name == "engine 1"  # in spite of its fault


@pytest.mark.filterwarnings("error")
def test_the_faults_and_choices_of_a_read_only_store_count_and_new_ones_stay_in_memory(
    cudnn: Cudnn, tmp_path: Path
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0), Made(3))
    levels.use(str(tmp_path / "store.jsonl"))
    planned()
    add_fault("engine 1", problem=MadeUp("others"))
    before = (tmp_path / "store.jsonl").read_bytes()
    levels.use(Store(tmp_path / "store.jsonl", read_only=True))
    assert (planned(prefer="fastest").store_layer, planned().store_layer) == ("user", "user")
    found = FoundFault("engine 2", "process ended", "signal 6", "13.0")
    assert measured(Child(Measurement(None, faults=(found,))), MadeUp("others")).name == "engine 3"
    assert planned(MadeUp("others"), prefer="fastest").name == "engine 3"
    assert (tmp_path / "store.jsonl").read_bytes() == before


@pytest.mark.parametrize("variable", ["CUDNNPY_STORE", "CUDNNPY_STORE_LAYERS"])
def test_a_variable_that_names_no_store_costs_one_warning(
    cudnn: Cudnn, tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn.add(Made(1), Made(2))
    (tmp_path / "notes").write_text("hello\n" * 100)
    monkeypatch.setenv("CUDNNPY_STORE", "")
    monkeypatch.setenv(variable, str(tmp_path / "notes"))
    levels.use(None)
    with pytest.warns(RuntimeWarning, match=f"{variable} must name a store.*notes.*Its choices are not used") as caught:
        names = [measured(Child(), prefer=prefer).name for prefer in ("fastest", "autotune")]  # type: ignore[arg-type]
    assert (names, len(caught)) == (["engine 1"] * 2, 1)


# Faults


@pytest.mark.parametrize("prefer", ["fastest", "limited_workspace", "no_workspace", "autotune"])
def test_a_candidate_with_a_fault_is_rejected_with_every_preference(cudnn: Cudnn, prefer: Any) -> None:
    cudnn.add(Made(1), Made(2), Made(3))
    reason = add_fault("engine 1")
    child = Child()
    plan = measured(child, prefer=prefer)
    assert plan.name == "engine 2"
    assert (plan.candidates[0].name, plan.candidates[0].rejection_reason) == ("engine 1", reason)
    assert [asked[3] for asked in child.asked] == [{"engine 1": reason}] * (prefer == "autotune")
    assert measured(child, MadeUp("others"), prefer=prefer).name == "engine 1"
    listed = {
        one.name: one.rejection_reason
        for one in selection.survey(chooser_of(selection.request_for(SUMS, PlanningOptions())))
    }
    assert (listed["engine 1"], listed["engine 2"]) == (reason, "")


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_a_stored_choice_with_a_fault_is_not_taken(cudnn: Cudnn, prefer: Any) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    reason = add_fault("engine 2")
    plan = planned(prefer=prefer)
    assert (plan.name, "engine 2" in cudnn.measured[4:]) == (
        ("engine 2 + blocks", False) if prefer == "autotune" else ("engine 1", False)
    )
    assert reasons() == [reason]


def test_a_candidate_with_a_fault_is_better_than_none(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of candidates has it twice: rejected with its fault, and chosen."""
    cudnn.add(Made(1), Made(2, size=lambda knobs: 9))
    monkeypatch.setattr(MadeUp, "functions", lambda *_: iter(()))
    reason = add_fault("engine 1")
    add_fault("engine 1 + blocks")
    for prefer in ("no_workspace", "autotune"):
        plan = measured(Child(), prefer=prefer, workspace_limit=0)
        assert plan.name == "engine 1"
        assert [one.rejection_reason for one in plan.candidates if one.name == "engine 1"] == [reason, ""]


@pytest.mark.parametrize("has_entry", [False, True])
def test_the_faults_that_measuring_finds_are_stored_and_applied_at_once(cudnn: Cudnn, has_entry: bool) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry = standing()
    levels.use("")
    found = FoundFault("engine 1", "limit exceeded", "no end after 2 s", "13.0")
    measurement = Measurement(entry if has_entry else None, "the limit of a call was reached", faults=(found,))
    plan = measured(Child(measurement))
    assert (plan.name, plan.milliseconds) == ("engine 2", 1.0 if has_entry else None)
    assert faults() == [tuple(found)]
    assert planned(prefer="fastest", tf32=False).name == "engine 2"
    (stored,) = levels.current().user.faults()
    assert (stored.text, stored.key.options) == ("made_up problem_sums", "{}")


# Untrusted text, and choices that fail


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lowering": "in half"}, "its lowering is not one of"),
        ({"engine": Engine(9), "name": "engine 9"}, "NOT_SUPPORTED"),
        ({"engine": Engine(1)}, "its name must be 'engine 1'"),
        ({"engine": Engine(2, space_to_depth=True)}, "its engine must be Engine(2)"),
        ({"engine": None}, "algorithm must be an Engine"),
        ({"strict": True}, "its strict must be False"),
        ({"source": "rumour"}, "its source is 'rumour'"),
    ],
)
def test_a_plan_that_is_not_of_the_problem_is_replaced_and_the_reason_logged(
    cudnn: Cudnn, changes: dict[str, Any], reason: str
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(changed(standing(), **changes))
    cudnn.measured.clear()
    assert (planned().name, planned().store_layer) == ("engine 2", "user")
    assert cudnn.measured
    (said,) = reasons()
    assert reason in said


def test_options_and_known_issues_hold_for_a_stored_choice(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1, notes=("tensor_core", "nondeterministic")), Made(2, lambda knobs: 20.0))
    planned()
    other = standing()
    for options in ({"tf32": False}, {"deterministic": True}):
        assert planned(**options).name == "engine 2"
        put(other._replace(key=standing(**options).key))
        assert planned(**options).name == "engine 2"
    assert sorted(reasons()) == ["not deterministic", "uses tf32"]
    monkeypatch.setattr(
        known_issues, "rejection_by_issues", lambda facts, engine, notes: "is wrong" if engine == 1 else ""
    )
    assert planned().name == "engine 2"
    assert "is wrong" in reasons()


def test_an_engine_that_may_be_wrong_unless_it_is_proposed(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry = standing()
    monkeypatch.setattr(known_issues, "requires_heuristics_proposal", lambda facts, engine, notes: engine == 2)
    assert planned().store_layer == "user"  # the heuristics proposed it
    put(changed(entry, source="engines"))
    assert planned().store_layer == ""
    assert "may be wrong" in reasons()[0]


# The first run of a choice that was not measured here


def elsewhere(entry: Entry) -> Entry:
    return entry._replace(made_with={**entry.made_with, "driver": "12.0"})


@pytest.mark.parametrize("entry", ["of another driver", "only planned"])
def test_what_was_not_measured_here_is_run_and_checked_once(
    cudnn: Cudnn, new_process: Callable[[], None], entry: str
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    own = standing()
    put(elsewhere(own) if entry == "of another driver" else changed(own, milliseconds=None, complete=False))
    cudnn.measured.clear()
    assert (planned().name, cudnn.confirmed) == ("engine 2", ["engine 2"])
    new_process()
    assert (planned(tune_seconds=99.0).name, planned().store_layer) == ("engine 2", "user")
    assert (cudnn.confirmed, cudnn.measured) == (["engine 2"], [])


def test_a_wrong_choice_has_a_fault_and_another_is_measured(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(elsewhere(standing()))
    cudnn.wrong, cudnn.engines[2].time = {"engine 2"}, lambda knobs: 99.0
    assert (planned().name, planned().store_layer) == ("engine 1", "user")
    assert reasons()[0] == "wrong result: off by 1 of float64"
    assert faults() == [("engine 2", "not confirmed", "wrong result: off by 1 of float64", "13.0")]
    new_process()
    cudnn.confirmed.clear()
    assert (planned().name, planned().store_layer, cudnn.confirmed) == ("engine 1", "user", [])


def test_without_memory_for_the_check_a_choice_is_used_and_checked_later(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(elsewhere(standing()))
    cudnn.scarce = lambda candidate: True
    plan = planned()
    assert (plan.name, plan.store_layer, reasons()) == ("engine 2", "user", [])
    cudnn.scarce = lambda candidate: False
    planned(), planned()
    assert cudnn.confirmed == ["engine 2", "engine 2"]


def test_a_wrong_choice_of_an_application_is_not_taken_again(cudnn: Cudnn, tmp_path: Path) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    application = tmp_path / "application.jsonl"
    levels.use(str(application))
    planned()
    put(elsewhere(standing()))
    user = Store(tmp_path / "user.jsonl")
    shipped = levels.Layers(user, [Store(application, read_only=True)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudnnpy.tuning.chooser.current", lambda **_: shipped)
        assert planned().store_layer == f"application {application}"
        cudnn.wrong, cudnn.engines[2].time = {"engine 2"}, lambda knobs: 99.0
        other = levels.Layers(Store(tmp_path / "other.jsonl"), [Store(application, read_only=True)])
        patch.setattr("cudnnpy.tuning.chooser.current", lambda **_: other)
        assert (planned().name, planned().store_layer) == ("engine 1", "user")


def test_a_confirmed_choice_of_an_application_is_stored_as_the_users(cudnn: Cudnn, tmp_path: Path) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    application = tmp_path / "application.jsonl"
    levels.use(str(application))
    planned()
    put(elsewhere(standing()))
    shipped, before = standing(), application.read_bytes()
    levels.use(str(tmp_path / "user.jsonl"))
    levels.add(Store(application, read_only=True))
    layers = [planned().store_layer, planned().store_layer, planned(prefer="fastest").store_layer]
    assert (layers, cudnn.confirmed) == ([f"application {application}", "user", "user"], ["engine 2"])
    assert standing() == shipped._replace(made_with={**shipped.made_with, "confirmed_with_driver": "13.0"})
    assert application.read_bytes() == before


# Several at once


def test_the_choice_of_another_process_that_was_first_is_taken(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0), Made(3, lambda knobs: 2.0))
    planned()
    first = standing()
    levels.use("")
    cudnn.engines[2].time = lambda knobs: 3.0  # as a busy GPU would have it

    def meanwhile(candidate: Candidate) -> bool:
        levels.current().writable.put(first)
        return False

    cudnn.scarce = meanwhile
    plan = planned()
    assert (plan.name, plan.milliseconds, plan.store_layer) == ("engine 2", 1.0, "user")


def test_threads_that_need_one_choice_measure_it_once(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    entered = threading.Event()

    def slowly(candidate: Candidate) -> bool:
        entered.set()
        others[0].join(0.2)  # time for the other thread to come to the lock
        return False

    cudnn.scarce = slowly
    found: list[Plan] = []
    others = [threading.Thread(target=lambda: (entered.wait(), found.append(planned())))]
    others[0].start()
    found.append(planned())
    others[0].join()
    assert sorted(plan.store_layer for plan in found) == ["", "user"]
    assert len(cudnn.measured) == len(set(cudnn.measured))


AUTOTUNE = PlanningOptions(prefer="autotune")
