"""Tune one problem during a call with prefer="autotune", in a child process, within the time limit of the call.

If no child process is possible nothing is measured, and one warning has the reason.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from cudnnpy._arrays import workspace
from cudnnpy._core.caller_warning import warn
from cudnnpy._core.driver import is_stream_idle
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._process.module_state import declare, fork_safe_lock
from cudnnpy.handle import on_device
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import gpus
from cudnnpy.tuning.measuring.child_process import StartError, why_no_interpreter
from cudnnpy.tuning.measuring.gpu_lock import gpu_lock
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker, MeasureError
from cudnnpy.tuning.stored_choice import choice_text

VARIABLE = "CUDNNPY_MEASURE_IN"  # of earlier versions
_EXTRA_SECONDS = 3.0  # for the start of a process, for a candidate that is ended at its limit, and for planning
_PLANNING_SECONDS = 1.0  # of them, for planning the choice in this process
_POLL_SECONDS = 0.001
_RETRY_SECONDS = 60.0  # until the next try after no process could be started
_SAY_SECONDS = 2.0  # of tuning in a program, after which a line explains how to tune ahead

T = TypeVar("T")


class _NotMeasuredError(Exception):
    """Nothing can be measured now. The message is the reason."""


class Tuner:
    """Measures problems for the calls of a program on a device and a stream.

    A call takes at most 2 * tune_seconds + 3 s. It waits for the work on the stream first. A call measures nothing if it has to
    wait too long for the stream, or for another call that measures on the GPU.
    """

    def __init__(self, device: int, stream: int = 0) -> None:
        self._device, self._stream = device, stream
        if (given := os.environ.get(VARIABLE, "")) not in ("", "process"):
            raise ValueError(f"{VARIABLE} must be unset; got {given!r}: candidates run in a process of their own alone")

    def measure(
        self, problem: Problem, options: PlanningOptions, limit: int, left_out: Mapping[str, str]
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit.

        `left_out` has the names of candidates that are not run, each with the rejection reason.
        """
        begin = time.monotonic()
        end = begin + 2 * options.tune_seconds
        deadline = end + _EXTRA_SECONDS - _PLANNING_SECONDS

        def measured(worker: GpuWorker) -> Measurement:
            seconds = min(options.tune_seconds, max(end - time.monotonic(), 0.0))
            text = choice_text(problem, options)
            return worker.measure(text, seconds, limit=limit, left_out=left_out, deadline=deadline)

        try:
            measurement = self._in_turn(measured, begin + options.tune_seconds)
        except (_NotMeasuredError, MeasureError, ValueError) as error:  # ValueError: the notation cannot write a number
            return Measurement(None, str(error))
        if measurement.entry is not None:
            _note_tuned(time.monotonic() - begin)
        return measurement

    def confirm(self, problem: Problem, options: PlanningOptions, choice: Choice, limit: int) -> str | None:
        """Return why the result of a choice is wrong here; "" if it is right; None if it could not be run."""
        deadline = time.monotonic() + 2 * options.tune_seconds + _EXTRA_SECONDS - _PLANNING_SECONDS
        try:
            text = choice_text(problem, options)
            return self._in_turn(lambda worker: worker.confirm(text, choice, limit, deadline), deadline)
        except (_NotMeasuredError, ValueError):
            return None

    def _in_turn(self, action: Callable[[GpuWorker], T], until: float) -> T:
        """Return the result of an action, during which no other call measures on the GPU.

        Raises _NotMeasuredError if the GPU is not free until a time, or if no process can measure.
        """
        why = why_no_interpreter() or gpus.why_not_measured(self._device)
        if why:
            raise _not_measured(why)
        shared = _shared(gpus.uuid_of(self._device))
        if not self._waits_for_stream(until) or not shared.turn.acquire(timeout=max(until - time.monotonic(), 0.0)):
            raise _NotMeasuredError("other work on the GPU did not end in time")
        try:
            with gpu_lock(shared.worker.uuid, until) as is_held:
                if not is_held:
                    raise _NotMeasuredError("another process measured on the GPU for too long")
                if time.monotonic() < shared.retry_at:
                    raise _NotMeasuredError(shared.reason)
                try:
                    return action(shared.worker)
                except StartError as error:
                    shared.retry_at, shared.reason = time.monotonic() + _RETRY_SECONDS, str(error)
                    raise _not_measured(str(error)) from None
        finally:
            shared.turn.release()

    def _waits_for_stream(self, until: float) -> bool:
        """Wait for the work on the stream, and return whether it has ended before a time."""
        with on_device(self._device):
            while not is_stream_idle(self._stream):
                if time.monotonic() >= until:
                    return False
                time.sleep(_POLL_SECONDS)
        return True


# The processes of this program


class _Shared:
    """The process that measures on one GPU, with a lock for its callers."""

    def __init__(self, uuid: str) -> None:
        self.worker, self.turn = GpuWorker(uuid), threading.Lock()
        self.retry_at, self.reason = 0.0, ""


_lock = fork_safe_lock()
_by_uuid: dict[str, _Shared] = {}
_warned: set[str] = set()
_tuned = [0, 0.0]  # problems, and the seconds that they took

declare(__name__, "_by_uuid", in_child=True)  # a forked process starts processes of its own
declare(__name__, "_warned", "_tuned")


def _shared(uuid: str) -> _Shared:
    with _lock:
        found = _by_uuid.get(uuid)
        if found is None:
            found = _by_uuid[uuid] = _Shared(uuid)
        return found


def end_processes() -> None:
    """End idle processes, which frees their memory. The next call starts new ones."""
    for shared in list(_by_uuid.values()):
        if shared.turn.acquire(blocking=False):
            try:
                shared.worker.close()
            finally:
                shared.turn.release()


atexit.register(end_processes)
workspace.call_when_short(end_processes)


def _not_measured(why: str) -> _NotMeasuredError:
    """Return the error for a reason, and warn of it once."""
    if why not in _warned:
        _warned.add(why)
        warn(
            f'autotune measures nothing, and uses stored choices or chooses as "fastest" does: {why}. '
            "Tune ahead where a process can measure: cudnnpy tune PROBLEMS"
        )
    return _NotMeasuredError(why)


def _note_tuned(seconds: float) -> None:
    """Count a tuned problem. When the total time exceeds a few seconds, log one line about it."""
    with _lock:
        before = _tuned[1]
        _tuned[:] = _tuned[0] + 1, before + seconds
        number, total = _tuned
    if before < _SAY_SECONDS <= total:
        logging.getLogger("cudnnpy").warning(
            "%d problem%s tuned in %.1f s, and more may follow. To tune ahead: cudnnpy tune --record PROGRAM.py",
            number,
            " was" if number == 1 else "s were",
            total,
        )
