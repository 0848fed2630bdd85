"""Measure problems on a GPU in child processes, so that a candidate that crashes or hangs ends only its process.

GpuWorker measures a problem over as many processes as it takes. Tuner does so during a call with prefer="autotune", within the
time limit of the call. If no child process is possible nothing is measured, and one warning has the reason.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cudnnpy._arrays import workspace
from cudnnpy._checks.option_values import printable
from cudnnpy._core.atomic_file import make_private_folder
from cudnnpy._core.driver import is_stream_idle
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._process.module_state import declare
from cudnnpy.handle import on_device
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.measuring import child_process, gpus
from cudnnpy.tuning.measuring.child_process import Ended, StartError, Worker, WorkerProcess
from cudnnpy.tuning.stored_choice import choice_text, driver

_CONFIRM_SECONDS = 30.0  # for one candidate in a process of its own
_EXTRA_SECONDS = 3.0  # for the start of a process, for a candidate that is ended at its limit, and for planning
_PLANNING_SECONDS = 1.0  # of them, for planning the choice in this process
_RETRY_SECONDS = 60.0  # until the next try after no process could be started
_SAY_SECONDS = 2.0  # of tuning in a program, after which a line explains how to tune ahead
_STREAM_POLL_SECONDS, _LOCK_POLL_SECONDS = 0.001, 0.02


class GpuWorker(Worker):
    """Measures problems on one GPU, one at a time and in one thread at a time (`turn`).

    `uuid` is the UUID of the GPU or MIG instance, as CUDA_VISIBLE_DEVICES takes it. `start` starts a process with an opening
    request.
    """

    def __init__(self, uuid: str, start: Callable[[Mapping[str, Any]], WorkerProcess] = WorkerProcess) -> None:
        # until the fault is repeated
        super().__init__(partial(start, {"gpu": uuid}), lambda end: f"not measured: {symptom_of(end)} ({end.how})")
        self.uuid, self.lock = uuid, threading.Lock()
        #: when a process may be tried again that did not start, and why it did not
        self.retry_at, self.reason = 0.0, ""

    @contextmanager
    def turn(self, until: float) -> Iterator[bool]:
        """Wait until no other thread and no other process of the user measures on the GPU; yield whether none does.

        The wait ends at a time of time.monotonic().
        """
        if not self.lock.acquire(timeout=min(max(until - time.monotonic(), 0.0), threading.TIMEOUT_MAX)):
            yield False
            return
        try:
            with gpu_lock(self.uuid, until) as is_held:
                yield is_held
        finally:
            self.lock.release()

    def measure(
        self,
        text: str,
        seconds: float,
        *,
        limit: int | None = None,
        left_out: Mapping[str, str] | None = None,
        deadline: float = math.inf,
        thorough: bool = False,
    ) -> Measurement:
        """Measure a problem, and return its choice, or the reason why there is none, and the faults that were found.

        `text` is the problem in the notation, with the options that the choice depends on. `seconds` is the time limit of the
        search, and at the `deadline`, a time of time.monotonic(), the best candidate so far is returned. `left_out` has the
        rejection reasons of candidates that are not to run, by name. `limit` is the largest workspace in bytes. If a process
        ends, its current candidate is rejected, and the next process continues.

        Raises ValueError if cuDNN rejects the problem or no candidate can be used, and StartError.
        """
        end, rejected = time.monotonic() + seconds, dict(left_out or {})
        rows: list[dict[str, Any]] = []
        best: Measurement | None = None

        def request() -> dict[str, Any]:
            left = max(end - time.monotonic(), 0.01)
            asked = {"do": "measure", "text": text, "seconds": left, "limit": limit, "thorough": thorough}
            return {**asked, "known": rows}

        def note(message: dict[str, Any]) -> None:
            nonlocal best
            if "measured" in message:
                rows.append(message["measured"])
            elif "best" in message:
                best = Measurement.of(message["best"])

        answer, ends = self.ask_on(request, rejected, deadline, note=note, parse=Measurement.of)
        if isinstance(answer, Ended):
            found = best or Measurement(None, f"the process that measures ended: {answer.how}")
        elif "error" in answer:
            if best is None:
                raise ValueError(answer["error"])
            found = best
        else:
            found = answer["answer"]
            if found.entry is None and best is not None:
                found = found._replace(entry=best.entry, compiled=best.compiled)
        if found.entry is not None:  # each candidate that ended a process is listed with the reason
            reasons = {ended.begun: printable(rejected[ended.begun]) for ended in ends}
            others = [row for row in found.entry.candidates if row.name not in reasons]
            listed = (*others, *(Choice(name, "", rejection_reason=reason) for name, reason in reasons.items()))
            # the last process had a part of the seconds
            found = found._replace(entry=found.entry._replace(candidates=listed, tune_seconds=seconds))
        return found._replace(faults=tuple(self._repeated(ends, text, limit, deadline)))

    def _repeated(self, ends: list[Ended], text: str, limit: int | None, deadline: float) -> Iterator[FoundFault]:
        """Yield the faults that repeat in a new process that runs only this candidate, before the deadline.

        Another program on the GPU, a debugger or a full machine can look like a candidate that hangs.
        """
        for ended in ends:
            if time.monotonic() > deadline:
                break
            self.close()
            request = {"do": "confirm", "text": text, "choice": ended.step.get("choice"), "limit": limit}
            try:
                answer = self.ask(request, min(deadline, time.monotonic() + _CONFIRM_SECONDS))
            except StartError:
                break
            if isinstance(answer, Ended) and answer.cause != "deadline":
                yield FoundFault(ended.begun, symptom_of(answer), printable(answer.how), driver())

    def confirm(self, text: str, choice: Choice, limit: int, deadline: float) -> str | None:
        """Return why the result of a choice is wrong on this GPU; "" if it is right, None if it could not be run."""
        request = {"do": "confirm", "text": text, "choice": choice.plain(), "limit": limit}
        answer = self.ask(request, deadline, parse=lambda given: None if given is None else str(given))
        if isinstance(answer, Ended):
            return None if answer.cause == "deadline" else f"{symptom_of(answer)}: {answer.how}"
        return answer.get("answer")  # None also for an error


def symptom_of(ended: Ended) -> str:
    """Return the symptom of a candidate at which a process ended."""
    if ended.cause != "ended":
        return "limit exceeded"
    if "CUDA_ERROR_ILLEGAL_ADDRESS" in ended.how:
        return "access outside"
    return "context lost" if "CUDA_ERROR" in ended.how else "process ended"


# Turns on a GPU: only one process of a user measures there at a time, so that times are not disturbed


@contextmanager
def gpu_lock(uuid: str, until: float) -> Iterator[bool]:
    """Wait for the lock of a GPU until a time of time.monotonic(), and yield whether the block holds it.

    The operating system releases it with the process. Where no file can be locked, as in a home folder that cannot be written
    or without platformdirs, it counts as held.
    """
    try:
        file = os.open(_path(uuid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (OSError, ImportError):
        yield True
        return
    with os.fdopen(file, "w"):
        yield _is_locked(file, until)


def _is_locked(file: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError:  # a file system without locks
            return True
        else:
            return True


def _path(uuid: str) -> Path:
    from platformdirs import user_cache_path

    folder = user_cache_path("cudnnpy", appauthor=False)
    make_private_folder(folder)
    return folder / f"{uuid}.lock"


# The workers of this program


_by_uuid: dict[str, GpuWorker] = {}
_tuned: list[float] = []  # the seconds that each of the first problems took

declare(__name__, "_by_uuid", in_child=True)  # a forked process starts processes of its own
declare(__name__, "_tuned")


def worker_of(uuid: str) -> GpuWorker:
    """Return the worker of a GPU that the calls of this program share."""
    return _by_uuid.get(uuid) or _by_uuid.setdefault(uuid, GpuWorker(uuid))


def end_processes() -> None:
    """End idle processes, which frees their memory. The next call starts new ones."""
    for worker in list(_by_uuid.values()):
        if worker.lock.acquire(blocking=False):
            try:
                worker.close()
            finally:
                worker.lock.release()


workspace.call_when_short(end_processes)


# Calls of this program with prefer="autotune"


class _NotMeasuredError(Exception):
    """Nothing can be measured now. The message is the reason."""


class Tuner:
    """Measures problems for the calls of a program on a device and a stream.

    A call takes at most 2 * tune_seconds + 3 s. It waits for the work on the stream first. A call measures nothing if it has to
    wait too long for the stream, or for another call that measures on the GPU.
    """

    def __init__(self, device: int, stream: int = 0) -> None:
        self._device, self._stream = device, stream

    def measure(
        self, problem: Problem, options: PlanningOptions, limit: int, left_out: Mapping[str, str]
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit.

        `left_out` has the names of candidates that are not run, each with the rejection reason.
        """
        begin = time.monotonic()
        end = begin + 2 * options.tune_seconds
        deadline = end + _EXTRA_SECONDS - _PLANNING_SECONDS
        try:
            with self._turn(begin + options.tune_seconds) as worker:
                seconds = min(options.tune_seconds, max(end - time.monotonic(), 0.0))
                text = choice_text(problem, options)
                measurement = worker.measure(text, seconds, limit=limit, left_out=left_out, deadline=deadline)
        except (_NotMeasuredError, ValueError) as error:  # ValueError: also a number that the notation cannot write
            return Measurement(None, str(error))
        if measurement.entry is not None:
            _note_tuned(time.monotonic() - begin)
        return measurement

    def confirm(self, problem: Problem, options: PlanningOptions, choice: Choice, limit: int) -> str | None:
        """Return why the result of a choice is wrong here; "" if it is right; None if it could not be run."""
        deadline = time.monotonic() + 2 * options.tune_seconds + _EXTRA_SECONDS - _PLANNING_SECONDS
        try:
            with self._turn(deadline) as worker:
                return worker.confirm(choice_text(problem, options), choice, limit, deadline)
        except (_NotMeasuredError, ValueError):
            return None

    @contextmanager
    def _turn(self, until: float) -> Iterator[GpuWorker]:
        """Yield the worker of the GPU, on which no other call measures in the block.

        Raises _NotMeasuredError if the GPU is not free until a time, or if no process can measure.
        """
        why = child_process.why_no_interpreter() or gpus.why_not_measured(self._device)
        if why:
            raise _not_measured(why)
        worker = worker_of(gpus.uuid_of(self._device))
        with on_device(self._device):
            while not is_stream_idle(self._stream):
                if time.monotonic() >= until:
                    raise _NotMeasuredError("other work on the GPU did not end in time")
                time.sleep(_STREAM_POLL_SECONDS)
        with worker.turn(until) as has_turn:
            if not has_turn:
                raise _NotMeasuredError("another call or process measured on the GPU for too long")
            if time.monotonic() < worker.retry_at:
                raise _NotMeasuredError(worker.reason)
            try:
                yield worker
            except StartError as error:
                worker.retry_at, worker.reason = time.monotonic() + _RETRY_SECONDS, str(error)
                raise _not_measured(str(error)) from None


def _not_measured(why: str) -> _NotMeasuredError:
    """Return the error for a reason, and warn of it once."""
    child_process.warn_once(
        f'autotune measures nothing, and uses stored choices or chooses as "fastest" does: {why}. '
        "Tune ahead where a process can measure: cudnnpy tune PROBLEMS"
    )
    return _NotMeasuredError(why)


def _note_tuned(seconds: float) -> None:
    """Count a tuned problem. When the total time exceeds a few seconds, log one line about it."""
    if sum(_tuned) < _SAY_SECONDS:
        _tuned.append(seconds)
        if sum(_tuned) >= _SAY_SECONDS:
            logging.getLogger("cudnnpy").warning(
                "%d problem%s tuned in %.1f s, and more may follow. To tune ahead: cudnnpy tune --record PROGRAM.py",
                len(_tuned),
                " was" if len(_tuned) == 1 else "s were",
                sum(_tuned),
            )
