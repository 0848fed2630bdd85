"""Choices that outlast a process: what the store has is not measured again. The engines and their times are made up."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_engines import LOTS, TARGET, Cudnn, Made, MadeUp, tuner

from cudnnpy import Engine, Plan, candidates_table, raw
from cudnnpy._memory import workspace
from cudnnpy._planning import known_issues, plan_text, remembered, selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._store import layers
from cudnnpy._store.database import Store
from cudnnpy._store.entry import Entry

SUMS = MadeUp()


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "driver", lambda: "13.0")


@pytest.fixture
def new_process(tmp_path: Path) -> Callable[[], None]:
    """What a process has that starts now, with the store of the others."""

    def start() -> None:
        layers.use(str(tmp_path / "store.sqlite"))

    start()
    return start


def planned(problem: MadeUp = SUMS, cap: int | None = None, before: Engine | None = None, **options: Any) -> Plan:
    asked = PlanningOptions(prefer="autotune")._replace(**options)
    return selection.plan_for(problem, asked, tuner(), before, cap)


def standing(problem: MadeUp = SUMS, **options: Any) -> Entry:
    found = layers.current().get(remembered.key_of(problem, PlanningOptions(**options), TARGET))
    assert found is not None
    return found.entry


def put(entry: Entry) -> None:
    layers.current().put(entry, replace=True)


def reasons() -> list[str]:
    return [one.reason for one in layers.current().user.forgotten()]


# A problem is measured once


def test_a_second_process_measures_nothing_and_plans_the_same(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 64, notes=("tensor_core",)), Made(3))
    first = planned()
    assert (first.name, first.remembered) == ("engine 2", "")
    new_process()
    cudnn.measured.clear()
    cudnn.proposed.clear()  # the heuristics are not asked
    again = planned()
    facts = ("name", "source", "engine", "workspace_size", "milliseconds", "notes", "deterministic")
    assert [getattr(again, fact) for fact in facts] == [getattr(first, fact) for fact in facts]
    assert again.remembered == "user"
    assert again.to_json() == first.to_json()
    assert (cudnn.measured, cudnn.confirmed) == ([], [])


def test_the_heuristics_and_the_engines_are_not_asked_for_a_stored_choice(
    cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()

    def never(*_: Any) -> Any:
        raise AssertionError("the set-up of a stored choice takes no longer than a guess")

    for name in ("likely", "engines", "functions"):
        monkeypatch.setattr(MadeUp, name, never)
    assert planned().name == "engine 2"


def test_without_a_file_a_process_remembers_for_itself(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    assert layers.current().user.path == ""
    planned()
    cudnn.measured.clear()
    assert (planned().name, planned().remembered, cudnn.measured) == ("engine 2", "user", [])


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
    kept = selection.plan_to_keep(SUMS, PlanningOptions(prefer="autotune", tf32=False), tuner())
    assert (kept.name, kept.candidates) == (again.name, [])


@pytest.mark.parametrize(
    "other",
    [{"deterministic": True}, {"tf32": False}, {"workspace_limit": 99}, {"problem": MadeUp("others")}],
    ids=lambda other: next(iter(other)),
)
def test_what_changes_the_choice_is_measured_for_itself(cudnn: Cudnn, other: dict[str, Any]) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    cudnn.measured.clear()
    assert planned(**other).remembered == ""
    assert cudnn.measured


def test_the_key_has_the_gpu_and_the_release(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "_gpu", lambda target: ("another", 1))
        assert planned().remembered == ""
    assert planned().remembered == "user"
    monkeypatch.setattr(raw, "version", lambda: 99999)
    assert planned().remembered == ""


def test_a_profile_has_the_key_of_its_gpu() -> None:
    text = json.dumps({"deviceName": "NVIDIA H200", "deviceVer": 900, "multiProcessorCount": 132})
    target = remembered.Target(profile=text)
    key = remembered.key_of(SUMS, PlanningOptions(workspace_limit=7), target)
    assert key[2:] == ("NVIDIA H200", "9.0", 132, raw.version())
    assert json.loads(key.problem) == {"kind": "made up", "problem": SUMS.plain()}
    assert json.loads(key.options) == {"deterministic": False, "tf32": True, "workspace_limit": 7}


def test_other_preferences_and_forced_engines_leave_the_store_alone(
    cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    monkeypatch.setattr(layers.Layers, "get", lambda *_: pytest.fail("the store was asked"))
    assert planned(prefer="fastest").name == planned(algorithm=Engine(1)).name == "engine 1"
    assert planned(before=Engine(1)).name == "engine 1"
    assert len(layers.current().user) == 0


def test_a_c_function_is_not_kept(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, size=lambda knobs: LOTS + 1))
    assert planned().name == "plain"
    assert len(layers.current().user) == 0


def test_what_an_entry_says(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 64))
    plan = planned(tune_seconds=3.0)
    entry = standing()
    assert Plan.from_json(entry.plan).name == plan.name == "engine 2"
    assert (entry.milliseconds, entry.workspace_size, entry.tune_seconds, entry.complete) == (1.0, 64, 3.0, True)
    assert (entry.made_with["driver"], entry.text) == ("13.0", "made up sums")  # no `prefer` and no `tune_seconds`
    assert {one.name: one.milliseconds for one in entry.candidates}["engine 1"] == 10.0
    assert Plan.from_json(entry.plan).to_json() == plan.to_json()


def test_an_entry_is_read_with_or_without_its_candidates(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry, user = standing(), layers.current().user
    assert entry.candidates
    assert user.get(entry.key, brief=True) == entry._replace(candidates=())


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


def test_a_choice_that_was_cut_short_is_never_replaced_by_a_slower_one(cudnn: Cudnn) -> None:
    cudnn.add(*(Made(number, lambda knobs: 5.0, runs_for=1.0) for number in (3, 4)), Made(2, lambda knobs: 1.0))
    assert planned(tune_seconds=2.5).name == "engine 2"
    cudnn.engines[2].runs_for = 9.0  # longer than all the time that is allowed next
    assert not standing().complete
    assert planned(tune_seconds=4.0).name == "engine 2"
    assert cudnn.measured[-1] == "engine 2"


def test_without_memory_to_measure_again_the_choice_stays(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, lambda knobs: 5.0), Made(2, lambda knobs: 1.0, runs_for=1.0), Made(3))
    assert planned(tune_seconds=1.0).name == "engine 2"
    before = standing()
    cudnn.scarce = lambda candidate: True
    assert (planned(tune_seconds=9.0).name, standing()) == ("engine 2", before)
    cudnn.no_memory = True
    assert (planned(tune_seconds=9.0).name, standing()) == ("engine 2", before)


def test_a_choice_that_is_too_large_now_is_left_to_others(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500), Made(3, lambda knobs: 3.0))
    assert planned().name == "engine 2"
    before = standing()
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "free_bytes", lambda device: 499)
        assert planned().name == "engine 3"
    assert planned(cap=499).name == "engine 3"
    assert (standing(), reasons()) == (before, [])
    assert planned().name == "engine 2"


def test_a_choice_that_says_it_needs_less_than_it_does_is_left_alone(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500))
    planned(workspace_limit=600)
    entry = standing(workspace_limit=600)
    other = remembered.key_of(SUMS, PlanningOptions(workspace_limit=400), TARGET)
    put(entry._replace(key=other, workspace_size=0))
    assert planned(workspace_limit=400).name == "engine 1"
    assert (standing(workspace_limit=400).workspace_size, reasons()) == (0, [])


def test_what_is_chosen_for_a_shortage_is_not_kept(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500), Made(3))
    assert planned(cap=499).name == "engine 1"
    assert len(layers.current().user) == 0
    assert planned().name == "engine 2"


def test_a_search_that_found_too_little_memory_is_not_complete(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0, lambda knobs: 500), Made(3))
    monkeypatch.setattr(workspace, "free_bytes", lambda device: 499)
    planned()
    planned(workspace_limit=100)  # which is what was asked for
    planned(workspace_limit=600)
    complete = [standing(workspace_limit=limit).complete for limit in (None, 100, 600)]
    assert complete == [False, True, False]


@pytest.mark.parametrize("is_free", [False, True], ids=["by the driver's number", "when it is taken"])
def test_a_choice_for_want_of_memory_is_not_kept(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch, is_free: bool) -> None:
    """Only the guess could be measured, so that nothing was compared: a later process does that."""
    cudnn.add(Made(1), *(Made(number, lambda knobs: 1.0, lambda knobs: 500) for number in (2, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "free_bytes", lambda device: LOTS if is_free else 499)
        cudnn.scarce = lambda candidate: not candidate.name.startswith("engine 1")
        plan = planned()
        assert (plan.name, plan.milliseconds) == ("engine 1", 10.0)
        assert len(layers.current().user) == 0
    cudnn.scarce = lambda candidate: False
    assert planned().name == "engine 2"
    assert standing().complete


def test_a_choice_that_little_was_missing_for_is_kept(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 3.0), Made(3, lambda knobs: 1.0))
    cudnn.scarce = lambda candidate: candidate.name.startswith("engine 3")
    assert planned().name == "engine 2"
    assert (standing().complete, standing().milliseconds) == (False, 3.0)


def test_what_is_too_large_to_be_measured_is_not_missing(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), *(Made(number, lambda knobs: 1.0, lambda knobs: 500) for number in (2, 3)))
    cudnn.memory = 1999
    assert planned().name == "engine 1"
    assert standing().complete
    assert "workspace_limit= admits it" in candidates_table(planned().candidates)


# Untrusted text, and choices that fail


def tampered(entry: Entry, **changes: Any) -> Entry:
    """An entry whose plan was exchanged, with a right digest."""
    content = {**json.loads(entry.plan), **changes}
    del content["sha256"]
    return entry._replace(plan=json.dumps({**content, "sha256": plan_text.digest(content)}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problem": {"name": "others", "dtype": "float32"}}, "it is not a plan for"),
        ({"kind": "graph"}, "it is not a plan for"),
        ({"part": {"in blocks": 3}}, "its part is not one of the lowerings"),
        ({"engine": {"index": 9, "knobs": None, "in_blocks": False}, "name": "engine 9"}, "not supported here"),
        ({"engine": {"index": 9, "knobs": None, "in_blocks": False}}, "it describes engine 9 wrongly"),
        ({"engine": {"index": 1}}, "its engine has"),
        ({"engine": None}, "algorithm"),
        ({"source": "rumour"}, "its source is 'rumour'"),
        ({"strict": True}, "it describes engine 2 wrongly"),
        ({"cudnn": 90001}, "text must be a plan of the loaded cuDNN"),
        ({"milliseconds": -1.0}, "'milliseconds' is out of range"),
        ({"more": 1}, "it has an unknown key"),
    ],
)
def test_a_plan_that_is_not_of_the_problem_is_forgotten_with_the_reason(
    cudnn: Cudnn, changes: dict[str, Any], reason: str
) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(tampered(standing(), **changes))
    cudnn.measured.clear()
    assert (planned().name, planned().remembered) == ("engine 2", "user")
    assert cudnn.measured
    (said,) = reasons()
    assert reason in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 4}', "9" * 5000, "[" * 100_000, "NaN", '"' * 2])
def test_a_text_that_is_no_plan_is_forgotten(cudnn: Cudnn, text: str) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(standing()._replace(plan=text))
    assert planned().name == "engine 2"
    assert len(reasons()) == 1
    assert standing().plan != text


def test_options_and_known_issues_hold_for_a_stored_choice(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1, notes=("tensor_core", "nondeterministic")), Made(2, lambda knobs: 20.0))
    planned()
    other = standing()
    for options in ({"tf32": False}, {"deterministic": True}):
        assert planned(**options).name == "engine 2"
        put(other._replace(key=standing(**options).key))
        assert planned(**options).name == "engine 2"
    assert sorted(reasons()) == ["not deterministic", "uses tf32"]
    monkeypatch.setattr(known_issues, "rejection", lambda facts, engine, notes: "is wrong" if engine == 1 else "")
    assert planned().name == "engine 2"
    assert "is wrong" in reasons()


def test_an_engine_that_may_be_wrong_unless_it_is_proposed(cudnn: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    entry = standing()
    monkeypatch.setattr(known_issues, "is_only_proposed", lambda facts, engine, notes: engine == 2)
    assert planned().remembered == "user"  # the heuristics proposed it
    put(tampered(entry, source="engines"))
    assert planned().remembered == ""
    assert "may be wrong" in reasons()[0]


def test_a_choice_that_does_not_load_is_forgotten(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    cudnn.engines[2].refuses = lambda knobs: True
    cudnn.proposed.pop()
    assert planned().name == "engine 1"
    assert reasons()[0].startswith("not supported here")


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
    put(elsewhere(own) if entry == "of another driver" else own._replace(milliseconds=None, complete=False))
    cudnn.measured.clear()
    assert (planned().name, cudnn.confirmed) == ("engine 2", ["engine 2"])
    new_process()
    assert (planned(tune_seconds=99.0).name, planned().remembered) == ("engine 2", "user")
    assert (cudnn.confirmed, cudnn.measured) == (["engine 2"], [])


def test_a_wrong_choice_is_forgotten_and_another_is_measured(cudnn: Cudnn, new_process: Callable[[], None]) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(elsewhere(standing()))
    cudnn.wrong, cudnn.engines[2].time = {"engine 2"}, lambda knobs: 99.0
    assert (planned().name, planned().remembered) == ("engine 1", "user")
    assert reasons() == ["wrong result: off by 1 of float64"]
    new_process()
    assert planned().name == "engine 1"


def test_without_memory_for_the_check_a_choice_is_used_and_checked_later(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    put(elsewhere(standing()))
    cudnn.scarce = lambda candidate: True
    plan = planned()
    assert (plan.name, plan.remembered, reasons()) == ("engine 2", "user", [])
    cudnn.scarce = lambda candidate: False
    planned(), planned()
    assert cudnn.confirmed == ["engine 2", "engine 2"]


def test_a_wrong_choice_of_an_application_is_not_taken_again(cudnn: Cudnn, tmp_path: Path) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    application = tmp_path / "application.sqlite"
    layers.use(str(application))
    planned()
    put(elsewhere(standing()))
    user = Store(tmp_path / "user.sqlite")
    shipped = layers.Layers(user, [Store(application, read_only=True)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudnnpy._planning.recall.current", lambda: shipped)
        assert planned().remembered == f"application {application}"
        cudnn.wrong, cudnn.engines[2].time = {"engine 2"}, lambda knobs: 99.0
        user.prune(stale=False)
        other = layers.Layers(Store(tmp_path / "other.sqlite"), [Store(application, read_only=True)])
        patch.setattr("cudnnpy._planning.recall.current", lambda: other)
        assert (planned().name, planned().remembered) == ("engine 1", "user")


# Several at once


def test_the_choice_of_another_process_that_was_first_is_taken(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0), Made(3, lambda knobs: 2.0))
    planned()
    first = standing()
    layers.use("")
    cudnn.engines[2].time = lambda knobs: 3.0  # as a busy GPU would have it

    def meanwhile(candidate: Candidate) -> bool:
        layers.current().put(first)
        return False

    cudnn.scarce = meanwhile
    plan = planned()
    assert (plan.name, plan.milliseconds, plan.remembered) == ("engine 2", 1.0, "user")


def test_the_first_choice_is_replaced_where_it_does_not_load(cudnn: Cudnn) -> None:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    planned()
    first = standing()
    layers.use("")
    cudnn.engines[2].refuses = lambda knobs: True
    cudnn.proposed.pop()
    cudnn.scarce = lambda candidate: layers.current().put(first) is None
    assert planned().name == "engine 1"
    assert (standing().plan != first.plan, len(reasons())) == (True, 1)


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
    assert sorted(plan.remembered for plan in found) == ["", "user"]
    assert len(cudnn.measured) == len(set(cudnn.measured))


def _choose(number: int, path: str, start: Any, answers: Any) -> None:
    layers.use(path)
    start.wait()
    answers.put((number, planned().name, selection.plan_for(MadeUp("others"), AUTOTUNE, tuner()).name))


AUTOTUNE = PlanningOptions(prefer="autotune")


def test_processes_with_one_store_choose_alike(cudnn: Cudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the eight measures other times, and would choose another engine."""
    cudnn.add(*(Made(number) for number in range(8)))
    fork = multiprocessing.get_context("fork")
    start, answers = fork.Barrier(8), fork.SimpleQueue()
    processes = []
    for number in range(8):
        for index, made in cudnn.engines.items():
            made.time = lambda knobs, is_best=index == number: 1.0 if is_best else 10.0  # type: ignore[misc]
        path = str(tmp_path / "store.sqlite")
        processes.append(fork.Process(target=_choose, args=(number, path, start, answers)))
        processes[-1].start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert sorted(number for number, *_ in found) == list(range(8))
    assert len({names for _, *names in map(tuple, found) for names in [tuple(names)]}) == 1
