"""Measure problems on one GPU in child processes, so that a candidate that crashes or hangs ends only its process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnnpy._checks.option_values import printable
from cudnnpy._planning.choice import Choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.measuring.child_process import Ended, Message, StartError, WorkerProcess
from cudnnpy.tuning.stored_choice import driver

_MAX_ENDS = 20  # of processes for one problem
_CONFIRM_SECONDS = 30.0  # for one candidate in a process of its own


class MeasureError(ValueError):
    """A problem cannot be measured on GPUs of this kind. The message is one line with cuDNN's reasons."""


class GpuWorker:
    """Measures problems on one GPU, one at a time and in one thread at a time.

    `uuid` is the UUID of the GPU or MIG instance, as CUDA_VISIBLE_DEVICES takes it. `start` starts a process with an opening
    request.
    """

    def __init__(self, uuid: str, start: Callable[[Mapping[str, Any]], WorkerProcess] = WorkerProcess) -> None:
        self.uuid, self._start = uuid, start
        self._process: WorkerProcess | None = None
        self.is_stopped = False

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
        rejection reasons of candidates that are not to run, by name. `limit` is the largest workspace in bytes.

        Raises MeasureError if cuDNN rejects the problem or no candidate can be used, and StartError.
        """
        end = time.monotonic() + seconds
        found = _Search(self, text, end, limit, dict(left_out or {}), deadline, thorough).run()
        if found.entry is None:
            return found
        return found._replace(entry=found.entry._replace(tune_seconds=seconds))  # the last process had a part of them

    def confirm(self, text: str, choice: Choice, limit: int, deadline: float) -> str | None:
        """Return why the result of a choice is wrong on this GPU; "" if it is right, None if it could not be run."""
        request = {"do": "confirm", "text": text, "choice": choice.plain(), "limit": limit}
        answer = self.ask(request, deadline, parse=_reason_of)
        if isinstance(answer, Ended):
            return None if answer.cause == "deadline" else f"{symptom_of(answer)}: {answer.how}"
        return answer.get("answer")  # None also for an error

    def ask(
        self,
        request: Mapping[str, Any],
        deadline: float,
        note: Callable[[Message], object] | None = None,
        parse: Callable[[Any], Any] | None = None,
    ) -> Message | Ended:
        """Send a request to the process, which is started if there is none. Raises StartError.

        A process that has not started before the deadline serves the next request.
        """
        if self._process is None or not self._process.is_alive:
            self.close()
            self._process = self._start({"gpu": self.uuid})
        if self.is_stopped:
            self.close()
            raise StartError("stopped")
        if not self._process.open(deadline):
            return Ended("deadline", "it had not started in time")
        return self._process.ask(request, deadline, note, parse)

    def close(self) -> None:
        """End the process, even if it is not ready yet. The next request starts another one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def stop(self) -> None:
        """End the process for good. Any thread may do this, which ends another thread's request."""
        self.is_stopped = True
        process = self._process
        if process is not None:
            process.kill()


def symptom_of(ended: Ended) -> str:
    """Return the symptom of a candidate at which a process ended."""
    if ended.cause != "ended":
        return "limit exceeded"
    if "CUDA_ERROR_ILLEGAL_ADDRESS" in ended.how:
        return "access outside"
    return "context lost" if "CUDA_ERROR" in ended.how else "process ended"


def _reason_of(given: object) -> str | None:
    """Return the reason of an answer. Raises ValueError for another type."""
    if not isinstance(given, str | None):
        raise ValueError(f"a reason must be a text or null; got {type(given).__name__}")
    return given


@dataclass
class _Search:
    """The search for the fastest candidate of one problem, with a new process after each that ended."""

    _worker: GpuWorker
    _text: str
    _end: float
    _limit: int | None
    _left_out: dict[str, str]
    _deadline: float
    _thorough: bool
    _rows: list[Message] = field(default_factory=list)
    _best: Measurement | None = None
    _suspects: list[Ended] = field(default_factory=list)

    def run(self) -> Measurement:
        """Return the choice. If a process ends, its current candidate is rejected, and the next process continues."""
        reason = f"more than {_MAX_ENDS} candidates ended their process"
        for _ in range(_MAX_ENDS):
            try:
                answer = self._worker.ask(self._request(), self._deadline, self._note, Measurement.of)
            except StartError as error:
                if not self._suspects:
                    raise
                reason = str(error)
                break
            if not isinstance(answer, Ended):
                return self._with_faults(self._answered(answer))
            reason = f"the process that measures ended: {answer.how}"
            if answer.cause == "deadline" or not answer.begun or answer.begun in self._left_out:
                break
            self._suspects.append(answer)
            self._left_out[answer.begun] = f"not measured: {symptom_of(answer)} ({answer.how})"
            if time.monotonic() > self._deadline:
                break
        return self._with_faults(self._best or Measurement(None, reason))

    def _request(self) -> dict[str, Any]:
        return {
            "do": "measure",
            "text": self._text,
            "seconds": max(self._end - time.monotonic(), 0.01),
            "limit": self._limit,
            "left_out": self._left_out,
            "known": self._rows,
            "thorough": self._thorough,
        }

    def _note(self, message: Message) -> None:
        if "measured" in message:
            self._rows.append(message["measured"])
        elif "best" in message:
            self._best = Measurement.of(message["best"])

    def _answered(self, answer: Message) -> Measurement:
        """Return the measurement of an answer, or the best choice of an earlier process if the answer has no choice."""
        if "error" in answer:
            if self._best is None:
                raise MeasureError(answer["error"])
            return self._best
        measurement: Measurement = answer["answer"]
        if measurement.entry is None and self._best is not None:
            return measurement._replace(entry=self._best.entry, compiled=self._best.compiled)
        return measurement

    def _with_faults(self, measurement: Measurement) -> Measurement:
        """Return a measurement with its faults. Each candidate that ended a process is listed with the reason."""
        entry = measurement.entry
        if entry is not None:
            reasons = {suspect.begun: self._left_out[suspect.begun] for suspect in self._suspects}
            rows = [row for row in entry.candidates if row.name not in reasons]
            rows += [Choice(name, "", rejection_reason=printable(reason)) for name, reason in reasons.items()]
            entry = entry._replace(candidates=tuple(rows))
        return measurement._replace(entry=entry, faults=self._faults())

    def _faults(self) -> tuple[FoundFault, ...]:
        """Return the suspected faults that repeat in a new process that runs only this candidate, before the deadline.

        Another program on the GPU, a debugger or a full machine can look like a candidate that hangs.
        """
        found = []
        for suspect in self._suspects:
            until = min(self._deadline, time.monotonic() + _CONFIRM_SECONDS)
            if time.monotonic() > self._deadline:
                break
            self._worker.close()
            request = {"do": "confirm", "text": self._text, "choice": suspect.step.get("choice"), "limit": self._limit}
            try:
                answer = self._worker.ask(request, until)
            except StartError:
                break
            if isinstance(answer, Ended) and answer.cause != "deadline":
                found.append(FoundFault(suspect.begun, symptom_of(answer), printable(answer.how), driver()))
        return tuple(found)
