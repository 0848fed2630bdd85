"""The search of one problem over several child processes, some of which end. The processes are stand-ins."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_entries import entry

from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import child_process
from cudnnpy.tuning.measuring.child_process import Ended, StartError
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker

ENTRY = entry("forward 1x1x8x8 1x1x3x3")
ROW = {"name": "engine 1", "milliseconds": 1.0}
CHOSEN = Measurement(ENTRY, compiled={"engine 5": "a\nplan"})
BEST = CHOSEN.plain()
CRASH = "exit status 1, CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"
Answer = Callable[[Mapping[str, Any], Callable[[Any], object]], Any]


def died(name: str, how: str = CRASH, cause: Any = "ended") -> Answer:
    return lambda request, note: Ended(cause, how, {"begin": name, "choice": {"name": name}})


def done(request: Mapping[str, Any], note: Callable[[Any], object]) -> Any:
    return {"answer": BEST}


class Processes:
    """Starts processes, each of which gives the next answers until one of them is its end."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Mapping[str, Any]] = []
        self.started = 0
        self.running = 0
        self.may_start = threading.Event()
        self.may_start.set()

    def __call__(self, opening: Mapping[str, Any]) -> Any:
        assert opening == {"gpu": "GPU-1"}
        if self.started == 99:
            raise StartError("no memory")
        self.started += 1
        self.running += 1
        return Process(self)


class Process:
    def __init__(self, there: Processes) -> None:
        self.there, self.is_alive = there, True

    def open(self, deadline: float) -> bool:
        return self.there.may_start.wait(max(deadline - time.monotonic(), 0.0) if deadline < math.inf else 60.0)

    def ask(self, request: Mapping[str, Any], deadline: float, note: Any = None, parse: Any = None) -> Any:
        self.there.requests.append(dict(request))
        answer = self.there.answers.pop(0)(request, note)
        if isinstance(answer, Ended):
            self.is_alive = False
        elif "answer" in answer and parse is not None:
            return {"answer": parse(answer["answer"])}
        return answer

    def end(self) -> None:
        self.is_alive = False
        self.there.running -= 1


def measured(there: Processes, **options: Any) -> Any:
    worker = GpuWorker("GPU-1", start=there)
    try:
        return worker.measure("forward 1x1x8x8 1x1x3x3", 2.0, **options)
    finally:
        worker.close()
        assert there.running == 0


def test_a_problem_without_faults_takes_one_process() -> None:
    there = Processes(done, done)
    worker = GpuWorker("GPU-1", start=there)
    assert worker.measure("a", 2.0, limit=10, left_out={"engine 9": "a fault"}).entry == ENTRY
    assert worker.measure("b", 4.0) == CHOSEN._replace(entry=ENTRY._replace(tune_seconds=4.0))
    assert there.started == 1
    assert there.requests[0]["left_out"] == {"engine 9": "a fault"}
    assert (there.requests[0]["limit"], there.requests[1]["limit"]) == (10, None)
    assert 1.9 < there.requests[0]["seconds"] <= 2.0


def test_the_next_process_goes_on_without_the_candidate_that_ended_the_last() -> None:
    def begun(request: Mapping[str, Any], note: Callable[[Any], object]) -> Any:
        note({"measured": ROW})
        return died("engine 67")(request, note)

    there = Processes(begun, done, died("engine 67"))
    found = measured(there)
    assert found.entry.choice == ENTRY.choice
    assert found.entry.candidates[-1].rejection_reason == f"not measured: access outside ({CRASH})"
    assert [(fault.candidate, fault.symptom, fault.detail) for fault in found.faults] == [
        ("engine 67", "access outside", CRASH)
    ]
    assert there.requests[1]["known"] == [ROW]
    assert there.requests[1]["left_out"] == {"engine 67": f"not measured: access outside ({CRASH})"}
    assert there.requests[2]["do"] == "confirm"
    assert there.requests[2]["choice"] == {"name": "engine 67"}
    assert there.started == 3  # the fault is repeated alone in a fresh process


@pytest.mark.parametrize("answer", [{"answer": ""}, {"error": "out of memory", "kind": "MemoryError"}])
def test_a_fault_that_does_not_repeat_alone_is_not_reported(answer: Any) -> None:
    found = measured(Processes(died("engine 30", "it was ended", "limit"), done, lambda request, note: answer))
    assert found.entry.choice == ENTRY.choice
    assert found.faults == ()


@pytest.mark.parametrize(
    ("how", "cause", "symptom"),
    [
        ("it was ended at the limit", "limit", "limit exceeded"),
        (CRASH, "ended", "access outside"),
        ("exit status 1, CUDA_ERROR_LAUNCH_FAILED", "ended", "context lost"),
        ("signal SIGSEGV", "ended", "process ended"),
    ],
)
def test_the_symptom_is_told_by_the_end_of_the_process(how: str, cause: str, symptom: str) -> None:
    found = measured(Processes(died("engine 3", how, cause), done, died("engine 3", how, cause)))
    assert [fault.symptom for fault in found.faults] == [symptom]


def test_at_the_deadline_the_best_so_far_is_the_choice() -> None:
    def late(request: Mapping[str, Any], note: Callable[[Any], object]) -> Any:
        note({"best": BEST})
        return died("engine 5", "it was ended at the deadline", "deadline")(request, note)

    assert measured(Processes(late)) == CHOSEN
    there = Processes(died("engine 5", "it was ended at the deadline", "deadline"))
    found = measured(there)
    assert found.entry is None
    assert found.reason == "the process that measures ended: it was ended at the deadline"


def test_no_process_is_started_after_the_deadline() -> None:
    there = Processes(died("engine 5", "it was ended at the limit", "limit"))
    found = measured(there, deadline=time.monotonic() - 1.0)
    assert (found.entry, found.faults, there.started) == (None, (), 1)


def test_a_candidate_that_ends_its_process_though_left_out_is_tried_no_more() -> None:
    there = Processes(died("engine 3"), died("engine 3"), lambda request, note: {"answer": ""})
    assert measured(there).entry is None
    assert [request["do"] for request in there.requests] == ["measure", "measure", "confirm"]


def test_an_end_at_no_candidate_ends_the_search() -> None:
    found = measured(Processes(died("", "signal SIGABRT")))
    assert found == Measurement(None, "the process that measures ended: signal SIGABRT")


def test_errors_are_those_of_the_problem_or_of_memory() -> None:
    with pytest.raises(ValueError, match="no engine"):
        measured(Processes(lambda request, note: {"error": "no engine", "kind": "NoAlgorithmError"}))
    late = {"answer": Measurement(None, "no more", True).plain()}
    found = measured(Processes(lambda request, note: late))
    assert found == Measurement(None, "no more", True)


def test_where_no_process_starts_an_error_says_so_but_what_was_found_stays() -> None:
    there = Processes()
    there.started = 99
    with pytest.raises(StartError, match="no memory"):
        measured(there)

    def late(request: Mapping[str, Any], note: Callable[[Any], object]) -> Any:
        note({"best": BEST})
        there.started = 99
        return died("engine 5")(request, note)

    there = Processes(late)
    assert measured(there).entry.choice == ENTRY.choice


def test_a_process_that_starts_too_late_serves_the_next_request_or_is_ended() -> None:
    there = Processes(done)
    there.may_start.clear()
    worker = GpuWorker("GPU-1", start=there)
    late = worker.measure("a", 2.0, deadline=time.monotonic() + 0.05)
    assert late == Measurement(None, "the process that measures ended: it had not started in time")
    worker.close()
    assert (there.started, there.running) == (1, 0)
    worker.measure("a", 2.0, deadline=time.monotonic() + 0.05)
    there.may_start.set()
    assert worker.measure("a", 2.0).entry == ENTRY
    assert there.started == 2
    worker.close()


@pytest.mark.parametrize("field", [{"entry": {}}, {"rejected": {"engine 1": 1}}, {"was_memory_limited": "no"}])
def test_a_measurement_has_the_fields_of_one(field: Any) -> None:
    with pytest.raises(ValueError, match=r"must"):
        measured(Processes(lambda request, note: {"answer": {**BEST, **field}}))


def test_no_problem_ends_more_processes_than_a_limit() -> None:
    there = Processes(*(died(f"engine {number}") for number in range(50)))
    found = measured(there, deadline=time.monotonic() + 60)
    assert found.entry is None
    assert sum(request["do"] == "measure" for request in there.requests) == child_process._MAX_ENDS + 1


def test_a_turn_may_be_waited_for_longer_than_a_lock_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with GpuWorker("GPU-1", start=Processes()).turn(time.monotonic() + 1e300) as has_turn:
        assert has_turn


def test_a_stored_choice_is_confirmed_in_the_process() -> None:
    answers: list[tuple[Answer, str | None]] = [
        (lambda request, note: {"answer": ""}, ""),
        (lambda request, note: {"answer": "wrong result"}, "wrong result"),
        (lambda request, note: {"error": "no more", "kind": "MemoryError"}, None),
        (died("engine 1", "it was ended at the deadline", "deadline"), None),
        (died("engine 1"), f"access outside: {CRASH}"),
    ]
    for answer, expected in answers:
        there = Processes(answer)
        worker = GpuWorker("GPU-1", start=there)
        assert worker.confirm("a", ENTRY.choice, 10, time.monotonic() + 9) == expected
        assert there.requests == [{"do": "confirm", "text": "a", "choice": ENTRY.choice.plain(), "limit": 10}]
