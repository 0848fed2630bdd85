"""A child process that answers, dies, hangs or talks nonsense. The children are short scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cudnnpy import __version__
from cudnnpy.tuning.measuring import child_process, gpus
from cudnnpy.tuning.measuring.child import Service
from cudnnpy.tuning.measuring.child_process import Ended, StartError, WorkerProcess

# Answers the opening, and then does with each request what it says.
SCRIPT = f"""
import json, os, signal, sys, threading, time
{Path(child_process.__file__).with_name("end_with_parent.py").read_text().partition("from __future__ import annotations")[2]}
end_with_parent(0)
def say(message): print(json.dumps(message), flush=True)
opened = json.loads(sys.stdin.readline())
say({{"answer": opened.get("reply", "{__version__}")}})
for line in sys.stdin:
    request = json.loads(line)
    exec(request["code"])
"""


def child(code: str = SCRIPT, **opening: Any) -> WorkerProcess:
    made = WorkerProcess(opening, command=[sys.executable, "-c", code])
    made.open()
    return made


def asked(worker: WorkerProcess, code: str, seconds: float = 60.0, note: Any = None) -> Any:
    return worker.ask({"code": code}, time.monotonic() + seconds, note)


@pytest.fixture
def worker() -> Any:
    found = child()
    yield found
    found.end()


def test_answers_come_after_the_messages_on_their_way(worker: WorkerProcess) -> None:
    seen: list[Any] = []
    code = "say({'begin': 'a', 'seconds': 5}); say({'measured': 1}); say({'answer': 2})"
    assert asked(worker, code, note=seen.append) == {"answer": 2}
    assert seen == [{"measured": 1}]
    assert asked(worker, "say({'error': 'no', 'kind': 'ValueError'})") == {"error": "no", "kind": "ValueError"}
    assert asked(worker, f"say({{'answer': len({'x' * 300_000!r})}})") == {"answer": 300_000}


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.abort()", "signal SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("print('last words', file=sys.stderr); os._exit(3)", "exit status 3, last words"),
        ("print('no JSON', flush=True)", "it answered nonsense"),
        ("say([1])", "it answered nonsense: a message must be an object; got list"),
        ("say({'begin': 'b', 'seconds': 'long'})", "it answered nonsense"),
        ("say({'begin': 'b', 'seconds': 10**400})", "it answered nonsense"),
        ("print('[' * 10**5, flush=True)", "it answered nonsense: it is nested too deep"),
        ("say({'answer': 1, 'error': 'no'})", "it answered nonsense: a request must have one answer; got more"),
        (
            'print(\'{"answer": 1}\\n{"answer": 2}\', flush=True)',
            "it answered nonsense: a request must have one answer; got more",
        ),
    ],
)
def test_a_process_that_ends_names_what_had_begun(code: str, how: str) -> None:
    worker = child()
    ended = asked(worker, f"say({{'begin': 'engine 3', 'seconds': 30, 'engine': [3]}}); {code}")
    assert isinstance(ended, Ended)
    assert ended.cause == "ended"
    assert ended.how.startswith(how)
    assert ended.begun == ("b" if "'b'" in code else "engine 3")
    assert "'b'" in code or ended.step["engine"] == [3]
    assert not worker.is_alive
    assert asked(worker, "").cause == "ended"


def test_the_last_words_are_no_part_of_a_line(worker: WorkerProcess) -> None:
    """What cuDNN prints about a stub driver is left out, also where it is cut."""
    ended = asked(worker, "[print('Could not load', 'x' * 99, file=sys.stderr) for _ in range(99)]; os._exit(3)")
    assert ended.how == "exit status 3"


def test_an_answer_to_no_request_is_not_taken(worker: WorkerProcess) -> None:
    assert asked(worker, "say({'answer': 1}); time.sleep(0.1); say({'answer': 2})") == {"answer": 1}
    time.sleep(0.5)
    assert asked(worker, "say({'answer': 3})").how == "it answered nonsense: a request must have one answer; got more"


def test_an_answer_that_cannot_be_parsed_is_nonsense(worker: WorkerProcess) -> None:
    assert worker.ask({"code": "say({'answer': '7'})"}, parse=int) == {"answer": 7}
    ended = worker.ask({"code": "say({'answer': 'seven'})"}, parse=int)
    assert isinstance(ended, Ended)
    assert ended.how.startswith("it answered nonsense: invalid literal")


def test_the_standard_error_is_read_and_its_end_alone_held(worker: WorkerProcess) -> None:
    """As with cuDNN's log at its highest level, which has some MB for a plan."""
    noise = "sys.stderr.write('x' * 99 + chr(10)) if n < 10**5 else say({'answer': 1})"
    assert asked(worker, f"[{noise} for n in range(10**5 + 1)]") == {"answer": 1}
    assert len(worker._errors) <= child_process._MAX_LAST_WORDS_BYTES
    assert asked(worker, "print('last words', file=sys.stderr); os._exit(3)").how == "exit status 3, last words"


def test_a_warning_of_children_is_given_once(worker: WorkerProcess) -> None:
    with pytest.warns(RuntimeWarning, match="the model is damaged") as warned:
        assert (
            asked(worker, "[say({'warning': 'the model is damaged'}) for _ in '12']; say({'answer': 1})")["answer"] == 1
        )
    assert len(warned) == 1


def test_another_thread_ends_a_request(worker: WorkerProcess) -> None:
    threading.Timer(0.3, worker.kill).start()
    assert asked(worker, "time.sleep(600)") == Ended("ended", "signal SIGKILL")


def test_a_step_may_take_as_long_as_it_says(worker: WorkerProcess) -> None:
    code = "say({'begin': 'slow', 'seconds': 30}); time.sleep(0.3); say({'answer': 1})"
    assert asked(worker, code) == {"answer": 1}
    ended = asked(worker, "say({'begin': 'endless', 'seconds': 0.2}); time.sleep(600)", seconds=3)
    assert (ended.cause, ended.begun) == ("limit", "endless")
    assert not worker.is_alive


def test_the_deadline_ends_what_has_time_left() -> None:
    ended = asked(child(), "say({'begin': 'x', 'seconds': 600}); time.sleep(600)", seconds=0.3)
    assert (ended.cause, ended.begun) == ("deadline", "x")
    ended = asked(child(), "say({'answer': 1})", seconds=-1.0)  # it has passed before the request
    assert ended.cause == "deadline"


DEAF = f"""
import os, sys, time
sys.stdin.readline()
print('{{"answer": "{__version__}"}}', flush=True)
"""


@pytest.mark.parametrize("size", [1, 8 << 20])
@pytest.mark.parametrize(
    ("reads", "cause"), [("", "deadline"), ("os.read(0, 10)", "deadline"), ("os.read(0, 10); os._exit(3)", "ended")]
)
def test_a_process_that_stops_reading_is_ended(reads: str, cause: str, size: int) -> None:
    """Whether or not the request is longer than a socket holds."""
    worker, before = child(f"{DEAF}{reads}\ntime.sleep(600)"), time.monotonic()
    ended = worker.ask({"rest": "x" * size}, before + 0.5)
    assert isinstance(ended, Ended)
    assert (ended.cause, ended.how) == (cause, "exit status 3" if cause == "ended" else "it was ended at the deadline")
    assert time.monotonic() - before < 10
    assert not worker.is_alive


def test_a_process_that_closes_its_output_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, or at the limit where a thread of it still waits for the end of its parent."""
    monkeypatch.setattr(child_process, "_END_SECONDS", 1.0)
    close = "os.close(0); os.close(1); time.sleep(600)"
    assert asked(child(f"{DEAF}{close}"), "") == Ended("ended", "signal SIGKILL")
    ended = asked(child(), f"say({{'begin': 'engine 3', 'seconds': 0.3}}); {close}")
    assert (ended.cause, ended.begun) == ("limit", "engine 3")


def test_half_a_message_is_waited_for_as_long_as_a_whole_one() -> None:
    half = "sys.stdout.write('{\"answer\": '); sys.stdout.flush()"
    ended = asked(child(), f"say({{'begin': 'engine 3', 'seconds': 0.3}}); {half}; time.sleep(600)")
    assert (ended.cause, ended.begun) == ("limit", "engine 3")
    assert asked(child(), f"{half}; time.sleep(600)", seconds=0.3).cause == "deadline"
    for seconds in (0.01, 0.0):
        drip = f"while True: sys.stdout.write(' '); sys.stdout.flush(); time.sleep({seconds})"
        before = time.monotonic()
        assert asked(child(), drip, seconds=0.5).cause == "deadline"
        assert time.monotonic() - before < 10
    assert asked(child(), f"{half}; time.sleep(0.1); print(7, end='}}\\n', flush=True)") == {"answer": 7}
    assert asked(child(), f"{half}; os._exit(3)").how == "exit status 3"


def test_a_message_has_a_greatest_length() -> None:
    before = time.monotonic()
    ended = asked(child(), "print('x' * (60 << 20), end='', flush=True); time.sleep(600)")
    assert (ended.cause, ended.how) == (
        "ended",
        "it answered nonsense: a line must have at most 16777216 bytes; got more",
    )
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no GPU')", "ended when it started: exit status 1, no GPU"),
        ('print(\'{"answer": "0.0.0"}\')', "is of version '0.0.0'"),
        ("print('{\"answer\": null}')", "is of version 'None'"),
        ('print(\'{"error": "no memory", "kind": "MemoryError"}\')', "no memory"),
        ("print('Hello')", "it answered nonsense"),
    ],
)
def test_a_process_that_does_not_start_says_why(code: str, said: str) -> None:
    with pytest.raises(StartError, match=r".") as caught:
        child(f"import sys; sys.stdin.readline(); {code}")
    assert said in str(caught.value)
    assert caught.value.kind == ("MemoryError" if "memory" in said else "")


def test_a_program_that_is_missing_is_an_error_of_starting() -> None:
    with pytest.raises(StartError, match=r"no process could be started: .*nowhere"):
        WorkerProcess({}, command=["/nowhere/python"])


@pytest.mark.parametrize(
    ("name", "value", "said"), [("frozen", True, "frozen"), ("executable", "/usr/bin/blender", "blender")]
)
def test_without_an_interpreter_nothing_is_started(
    name: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert child_process.why_no_interpreter() == ""
    monkeypatch.setattr(sys, name, value, raising=False)
    assert said in child_process.why_no_interpreter()
    with pytest.raises(StartError, match=said):
        WorkerProcess({})


def test_the_child_finds_this_package_and_library_and_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("CUDNNPY_STORE", "/of/the/caller")
    monkeypatch.setattr(sys, "path", [*sys.path, "/of/the/program"])
    worker = child(gpu="GPU-7")
    names = ["CUDA_VISIBLE_DEVICES", "CUDNNPY_STORE", "CUDNNPY_LIBRARY", "PYTHONPATH"]
    gpu, store, library, path = asked(worker, f"say({{'answer': [os.environ[n] for n in {names}]}})")["answer"]
    worker.end()
    assert (gpu, store) == ("GPU-7", "")
    assert Path(library).name.startswith("libcudnn.so")
    assert path.split(os.pathsep)[-1] == "/of/the/program"
    assert str(Path(child_process.__file__).parents[3]) in path.split(os.pathsep)


PARENT = f"""
import sys, time
from cudnnpy.tuning.measuring.child_process import WorkerProcess
worker = WorkerProcess({{}}, command=[sys.executable, "-c", {SCRIPT!r}])
print(worker._process.pid, flush=True)
worker.ask({{"code": "time.sleep(600)"}})
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_process_is_left_of_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(pid)


def test_a_forked_process_leaves_the_child_to_its_parent(worker: WorkerProcess) -> None:
    pid = os.fork()
    if not pid:  # in the fork
        status = 1
        try:
            status = 0 if isinstance(asked(worker, ""), Ended) and not worker.is_alive else 1
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert asked(worker, "say({'answer': 7})") == {"answer": 7}


def test_ctrl_c_ends_a_request_whose_answer_would_be_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = child()

    def stop(message: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(worker, "say({'measured': 1}); time.sleep(600)", note=stop)
    assert not worker.is_alive


def test_ctrl_c_behind_the_answer_to_the_opening_costs_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request does not wait for another answer to it."""
    worker, ask = WorkerProcess({}, command=[sys.executable, "-c", SCRIPT]), WorkerProcess.ask

    def stop(*arguments: Any) -> None:
        ask(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(WorkerProcess, "ask", stop)
        worker.open()
    assert asked(worker, "say({'answer': 1})", seconds=10) == {"answer": 1}
    worker.end()


def test_ctrl_c_as_a_process_is_killed_leaves_it_to_be_ended(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker._process, "kill", stop)
        worker.end()
    worker.end()
    assert worker._process.returncode == -signal.SIGKILL


def test_no_process_measures_where_its_faults_would_end_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of parent starts such processes: one that has no context of its own may be the only user of the GPU."""
    monkeypatch.setattr(gpus, "why_not_safe", lambda device: "CUDA MPS runs")
    answer = Service(print).answer({"do": "open", "version": __version__, "libraries": [], "gpu": "GPU-1"})
    assert answer == {"error": "CUDA MPS runs", "kind": "CudnnError"}
