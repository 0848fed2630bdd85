"""Worker processes that tune problems: one for each GPU, replaced when it dies or hangs.

A problem whose worker dies, hangs or raises an error gets one more try in a new process, since an error of CUDA spoils the
process that it happened in. Then the problem is set aside with the reason. A GPU on which no worker starts is left out.

A thread for each GPU starts its processes, hands them jobs and waits for their answers; the generator `Workers.run` yields
what the threads report.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, NamedTuple

from cudnnpy._measuring import parent_process
from cudnnpy._store.entry import Entry, Key
from cudnnpy.errors import NoAlgorithmError

# Tunes the problem of a text on a device within some seconds (tuning.tune_one).
Work = Callable[[str, int, float], Entry]
# Prepares a worker's process for a device. Raises if the device cannot be used.
Start = Callable[[int], None]

PATIENCE = 300.0  # seconds that planning and a slow candidate may take beyond those that are allowed for tuning
_TRIES = 2
_STARTING = 180.0  # seconds in which a worker loads cuDNN and makes a handle
_ENDING = 10.0  # seconds in which a worker that has nothing to do ends


class Job(NamedTuple):
    """The text of a problem to be tuned, the seconds for it, the kind of GPU to tune it on, and the key of its entry."""

    text: str
    seconds: float
    kind: str
    key: Key


class Result(NamedTuple):
    """What became of a job: an entry, or the reason why there is none. `device` is None if no GPU was left for it."""

    job: Job
    device: int | None
    seconds: float
    entry: Entry | None
    reason: str = ""


class LostDevice(NamedTuple):
    """A device on which no worker starts."""

    device: int
    reason: str


class Workers:
    """A process for each device.

    Parameters
    ----------
    devices : sequence of (int, str)
        The ordinals of the devices, and the kind of each: a job is tuned on a device of its kind.
    work, start : callable
        What tunes a problem in a worker's process, and what prepares the process. They can be pickled.
    patience : float
        A worker is killed that has not answered after this many seconds, and ten times those of its job.
    """

    def __init__(
        self, devices: Sequence[tuple[int, str]], work: Work, start: Start, patience: float = PATIENCE
    ) -> None:
        self._devices, self._work, self._start, self._patience = dict(devices), work, start, patience
        self._reports: SimpleQueue[Result | LostDevice | None] = SimpleQueue()
        self._lock, self._running, self._is_stopped = threading.Lock(), set[_Worker](), False

    def run(self, jobs: Sequence[Job]) -> Iterator[Result | LostDevice]:
        """Yield a result for each job, in the order in which they are done. The processes end with the generator."""
        queues = {
            kind: deque(job for job in jobs if job.kind == kind) for kind in dict.fromkeys(job.kind for job in jobs)
        }
        threads: list[threading.Thread] = []
        try:
            while threads := self._threads(queues):
                for thread in threads:
                    thread.start()
                left = len(threads)
                while left:
                    report = self._reports.get()
                    if isinstance(report, LostDevice):
                        del self._devices[report.device]
                    if report is None:
                        left -= 1
                    else:
                        yield report
            for queue in queues.values():
                yield from (Result(job, None, 0.0, None, "no GPU is left to tune it on") for job in queue)
        finally:
            with self._lock:
                self._is_stopped = True
                for worker in self._running:
                    worker.process.kill()
            for thread in threads:
                if thread.is_alive():  # Ctrl-C may come before all are started
                    thread.join()

    def _threads(self, queues: dict[str, deque[Job]]) -> list[threading.Thread]:
        """Return a thread for each device that there is a job for."""
        found: list[threading.Thread] = []
        for kind, queue in queues.items():
            devices = [device for device, its_kind in self._devices.items() if its_kind == kind]
            found += [
                threading.Thread(target=self._serve, args=(device, queue), daemon=True)
                for device in devices[: len(queue)]
            ]
        return found

    # In the thread of a device

    def _serve(self, device: int, queue: deque[Job]) -> None:
        worker: _Worker | None = None
        try:
            while queue and not self._is_stopped:
                try:
                    job = queue.popleft()
                except IndexError:
                    break
                try:
                    worker = self._tuned(device, worker, job)
                except Exception as error:  # no worker starts here
                    worker = None
                    queue.appendleft(job)
                    self._reports.put(LostDevice(device, _one_line(error)))
                    break
        finally:
            self._end(worker, _ENDING)
            self._reports.put(None)

    def _tuned(self, device: int, worker: _Worker | None, job: Job) -> _Worker | None:
        """Report the result of a job; return the worker for the next one, or None if it is spoiled."""
        begin = time.monotonic()
        for number in range(_TRIES):
            worker = worker or self._new(device)
            state, content = worker.ask(job, self._patience + 10 * job.seconds)
            if state == "failed":
                self._end(worker)
                worker = None
            if state != "failed" or number == _TRIES - 1:
                entry, reason = (content, "") if state == "done" else (None, content)
                self._reports.put(Result(job, device, time.monotonic() - begin, entry, reason))
                break
        return worker

    def _new(self, device: int) -> _Worker:
        with self._lock:
            if self._is_stopped:
                raise _NoWorkerError("stopped")
            worker = _Worker(device, self._work, self._start)
            self._running.add(worker)
        state, content = worker.answer(_STARTING)
        if state != "ready":
            self._end(worker)
            raise _NoWorkerError(content)
        return worker

    def _end(self, worker: _Worker | None, seconds: float = 0.0) -> None:
        if worker is not None:
            worker.end(seconds)
            with self._lock:
                self._running.discard(worker)


class _NoWorkerError(Exception):
    """No worker starts on a device."""


class _Worker:
    """A process, and this process's end of its pipe."""

    def __init__(self, device: int, work: Work, start: Start) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._pipe, other = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work_on, args=(other, device, work, start), daemon=True)
        # Ctrl-C reaches every process of a terminal. Workers inherit from this thread that they do not see it; `run` ends them.
        resource_tracker.ensure_running()  # whose start would unblock it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        other.close()  # so that the end of the process is the end of the pipe

    def ask(self, job: Job, seconds: float) -> tuple[str, Any]:
        """Return the answer for a job: ("done", entry), ("refused", reason) or ("failed", reason)."""
        with suppress(OSError):  # it has died, which the missing answer tells
            self._pipe.send((job.text, job.seconds))
        return self.answer(seconds)

    def answer(self, seconds: float) -> tuple[str, Any]:
        """Return the next answer. A process that does not answer in some seconds, or that dies, has failed."""
        if not self._pipe.poll(seconds):
            return "failed", f"no answer after {seconds:g} s"
        try:
            state, content = self._pipe.recv()
        except (EOFError, OSError):
            self.process.join(_ENDING)
            return "failed", _end_text(self.process.exitcode)
        except Exception as error:  # of unpickling
            return "failed", f"its answer cannot be read: {_one_line(error)}"
        return state, content

    def end(self, seconds: float) -> None:
        """End the process, at once or after it had some seconds to end by itself."""
        self._pipe.close()
        if seconds:
            self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _end_text(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        return f"the worker was ended by {name}"
    return f"the worker ended with exit status {status}"


# In a worker's process


def _work_on(pipe: Connection, device: int, work: Work, start: Start) -> None:
    """Answer the jobs that come through a pipe, until it is closed. The process ends with its parent, too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent_process.end_with(parent.sentinel)
    os.dup2(sys.__stderr__.fileno() if sys.__stderr__ else 2, 1)  # what libraries print is not the command's output
    with suppress(EOFError, OSError):  # of the pipe, whose other end is closed with the parent
        try:
            start(device)
        except Exception as error:
            pipe.send(("failed", _one_line(error)))
            return
        pipe.send(("ready", ""))
        while True:
            text, seconds = pipe.recv()
            try:
                answer: tuple[str, Any] = "done", work(text, device, seconds)
            except NoAlgorithmError as error:
                answer = "refused", f"no candidate can be used: {_reasons(error)}"
            except ValueError as error:
                answer = "refused", _one_line(error)
            except Exception as error:
                answer = "failed", _one_line(error)
            pipe.send(answer)


def _reasons(error: NoAlgorithmError) -> str:
    """Return the rejection reasons of an error's candidates, each once, the most frequent first, in one line."""
    reasons = [candidate.refused for candidate in error.candidates if candidate.refused]
    ranked = sorted(dict.fromkeys(reasons), key=reasons.count, reverse=True)
    return "; ".join(" ".join(reason.split()) for reason in ranked[:3]) or "there is no candidate"


def _one_line(error: Exception) -> str:
    if isinstance(error, _NoWorkerError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
