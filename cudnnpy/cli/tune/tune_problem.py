"""Tune problems on the GPUs of this machine, or of the workers of a Dask cluster (dask_cluster): jobs, places, results.

Each place gets one job at a time, so that it is certain at which problem a worker was lost. A problem whose worker is lost, or
that has no choice, is retried in a new process, on another GPU if there is one, and set aside after TRIES. A place on which no
process starts is left out.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from cudnnpy._core.cuda_python import gpu_facts
from cudnnpy._planning.choice import GpuKind
from cudnnpy.availability import usable_cuda
from cudnnpy.tuning import stored_choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.measuring.child_process import StartError
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker
from cudnnpy.tuning.measuring.gpus import uuid_of
from cudnnpy.tuning.problem_file import ListedProblem
from cudnnpy.tuning.store.entry import Entry, Fault, Key

TRIES = 3
_PLACES_SECONDS = 0.5  # between two listings of the places
_RESULT_SECONDS = 5.0  # to fetch the answer of a job that has ended
EXTRA_SECONDS = 300.0  # beyond ten times the seconds of the search, to plan, to start processes and to confirm faults
_POLL_SECONDS = 1.0  # between two checks for a stop, while another process uses the GPU
_MAX_REASON = 300  # characters


class Job(NamedTuple):
    """A problem to be tuned."""

    text: str  #: the problem in the notation, with the options that the choice depends on
    seconds: float  #: the time limit of the search
    kind: GpuKind  #: the GPU kind to tune it on
    key: Key  #: the key of its entry
    thorough: bool = False  #: whether all candidates are measured, and not only until several in a row gain nothing
    #: faults of its candidates, stored or found now, which are not run again with the same driver
    known: tuple[Fault | FoundFault, ...] = ()


class TuningGpu(NamedTuple):
    """A GPU: its UUID, its ordinal in a process, and its kind. GPUs of equal kinds can share stored choices."""

    uuid: str
    device: int
    kind: GpuKind


class Place(NamedTuple):
    """A GPU with a worker: the name of the worker, and the function that starts a job there and returns its future."""

    gpu: TuningGpu
    name: str
    start: Callable[[Job], Any]


class Result(NamedTuple):
    """The result of a job: an entry, or the reason why there is none. `place` is a name; "" if no GPU was left."""

    job: Job
    place: str
    seconds: float
    entry: Entry | None
    reason: str = ""
    faults: tuple[FoundFault, ...] = ()


class LostPlace(NamedTuple):
    """A place where no process starts, by its name."""

    place: str
    reason: str


def tune_on(worker: GpuWorker, job: Job) -> Measurement:
    """Measure the problem of a job on a GPU, as soon as no other process of the user measures there.

    Return the choice to store, or the reason why there is none, and the faults. Without a choice the process ends, because
    the previous problem may have been the cause. Raises ValueError if the text is not a problem or no candidate can be used,
    and StartError if no process could be started or the worker was stopped.
    """
    driver, most_seconds = stored_choice.driver(), EXTRA_SECONDS + 10 * job.seconds
    left_out = {fault.candidate: f"{fault.symptom}: {fault.detail}" for fault in job.known if fault.driver == driver}
    while not worker.is_stopped:
        with worker.turn((now := time.monotonic()) + _POLL_SECONDS) as has_turn:
            if has_turn:
                measurement = worker.measure(
                    job.text, job.seconds, left_out=left_out, deadline=now + most_seconds, thorough=job.thorough
                )
                if measurement.entry is None:
                    worker.close()
                if measurement.was_memory_limited:
                    reason = measurement.reason or "the GPU has too little free memory to measure in"
                    return measurement._replace(entry=None, reason=reason)
                return measurement
    raise StartError("stopped")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's name if it has none."""
    lines = str(error).strip().splitlines()
    return (lines[0].strip() if lines else type(error).__name__)[:_MAX_REASON]


def checked_answer(answer: Any, job: Job, sender: str) -> Measurement:
    """Return the answer of another process to a job. Raises ValueError if it is malformed, or for something else."""
    try:
        measurement = Measurement.of(answer.plain())
    except Exception as error:
        raise ValueError(f"{sender} must send a measurement; got another answer: {first_line(error)}") from None
    expected, actual = ({**item.key._asdict(), "text": item.text} for item in (job, measurement.entry or job))
    for name, value in expected.items():
        if actual[name] != value:
            expected_value, other = repr(value)[:200], repr(actual[name])[:200]
            raise ValueError(f"{sender} must send an entry with {name} {expected_value}; got {other}")
    return measurement


# Distribution over places


@contextmanager
def local_places(gpus: Sequence[TuningGpu]) -> Iterator[list[Place]]:
    """Yield the GPUs of this machine as places. The processes end with the context."""
    workers = [GpuWorker(gpu.uuid) for gpu in gpus]
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.close)
        threads = stack.enter_context(ThreadPoolExecutor(max(len(gpus), 1)))
        for worker in workers:
            stack.callback(worker.stop)
        starts = [partial(threads.submit, tune_on, worker) for worker in workers]  # type: ignore[call-arg]
        yield [Place(gpu, f"GPU {gpu.device}", start) for gpu, start in zip(gpus, starts, strict=True)]


@dataclass
class _Task:
    """A job, its first start, the number of tries, the last place, and the faults so far."""

    job: Job
    begin: float = 0.0
    tries: int = 0
    place: Place | None = None
    faults: list[FoundFault] = field(default_factory=list)

    def start(self, place: Place) -> Any:
        """Start the job at a place, and return its future. The faults of earlier tries are not run again."""
        self.place, self.tries, self.begin = place, self.tries + 1, self.begin or time.monotonic()
        return place.start(self.job._replace(known=(*self.job.known, *self.faults)))

    def report(self, future: Any) -> Result | LostPlace | None:
        """Return the report of a try that has ended, or whose place was lost. Without a result, the job is to be retried."""
        assert self.place is not None
        is_final = False
        try:
            if future.cancelled() or not future.done():
                future.cancel()
                raise ConnectionError(f"{self.place.name} was lost")
            measurement = checked_answer(future.result(timeout=_RESULT_SECONDS), self.job, self.place.name)
        except StartError as error:
            self.tries -= 1
            return LostPlace(self.place.name, first_line(error))
        except Exception as error:
            is_final = isinstance(error, ValueError)  # caused by the problem, on every GPU, or a malformed answer
            measurement = Measurement(None, first_line(error))
        self.faults += measurement.faults
        reason = measurement.reason
        if measurement.entry is None and not is_final:
            if self.tries < TRIES:
                return None
            reason = f"set aside after {TRIES} tries: {reason}"
        seconds = time.monotonic() - self.begin
        return Result(self.job, self.place.name, seconds, measurement.entry, reason, tuple(self.faults))


def distribute(
    jobs: Sequence[Job], places: Callable[[], Sequence[Place]], absence_seconds: float = 0.0
) -> Iterator[Result | LostPlace]:
    """Yield a result for each job, in the order of completion. Each job is tuned on a GPU of its kind.

    `places` returns the places that are there now. A job whose GPU kind has none for `absence_seconds` is given up. Closing the
    generator cancels the jobs that have not begun.
    """
    waiting = [_Task(job) for job in jobs]
    running: dict[Any, _Task] = {}  # by future
    left_out: list[Place] = []
    seen = dict.fromkeys((job.kind for job in jobs), time.monotonic())  # when a place of a GPU kind was there
    has_ended = SimpleQueue[None]()  # an item for each job; a signal interrupts its `get`, but no lock of Python's
    try:
        while waiting or running:
            with _held_signals():
                present = places()
                for future in [
                    future for future, task in running.items() if future.done() or task.place not in present
                ]:
                    task = running.pop(future)
                    report = task.report(future)
                    if report is not None:
                        yield report
                    if not isinstance(report, Result):
                        waiting.append(task)
                    if isinstance(report, LostPlace) and task.place is not None:
                        left_out.append(task.place)
                present = [place for place in present if place not in left_out]
                busy = [task.place for task in running.values()]
                for place in [place for place in present if place not in busy]:
                    for task in _fitting(waiting, place, present)[:1]:
                        waiting.remove(task)
                        future = task.start(place)
                        running[future] = task
                        future.add_done_callback(lambda _: has_ended.put(None))
                now = time.monotonic()
                seen |= {place.gpu.kind: now for place in present}
                for task in [task for task in waiting if now - seen[task.job.kind] > absence_seconds]:
                    waiting.remove(task)
                    yield Result(task.job, "", 0.0, None, "no GPU is left to tune it on")
            if waiting or running:
                with suppress(Empty):
                    has_ended.get(timeout=_PLACES_SECONDS)
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold the first of Ctrl-C, SIGTERM and SIGHUP until the end of the context.

    A handler that raises while a thread enters a Condition, an Event or a Future leaves its lock locked, and all others that
    need it wait forever (CPython's issue 74174). A second signal is not held, since the context may wait for a cluster.
    """
    held: list[int] = []
    with ExitStack() as handlers:

        def hold(number: int, _frame: object) -> None:
            if held:
                handlers.close()
                signal.raise_signal(number)
            held.append(number)

        if threading.current_thread() is threading.main_thread():  # other threads have no signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(signal.getsignal(number)):
                    handlers.callback(signal.signal, number, signal.signal(number, hold))
        yield
    if held:
        signal.raise_signal(held[0])


def _fitting(waiting: Sequence[_Task], place: Place, present: Sequence[Place]) -> list[_Task]:
    """Return the tasks that a place may start. A task is retried on another GPU of its kind, if there is one."""
    tasks = [task for task in waiting if task.job.kind == place.gpu.kind]
    if any(other.gpu.kind == place.gpu.kind and other.gpu != place.gpu for other in present):
        tasks = [task for task in tasks if task.place is None or task.place.gpu != place.gpu]
    return tasks


# GPUs, without a CUDA context in this process


def tuning_gpus() -> list[TuningGpu]:
    """Return the visible GPUs by ordinal, without making a CUDA context. Raises UnavailableError if there is none."""
    devices = range(usable_cuda().gpu_count)
    return [TuningGpu(uuid_of(device), device, GpuKind(*gpu_facts(device))) for device in devices]


def jobs_of(
    requests: Sequence[ListedProblem], kinds: Iterable[GpuKind], seconds: float | None, thorough: bool = False
) -> list[Job]:
    """Return one job for each problem and GPU kind, with the longest time limit of its requests or the one that is passed."""
    jobs: dict[Key, Job] = {}
    for request in requests:
        limit = request.options.tune_seconds if seconds is None else seconds
        for kind in kinds:
            key = stored_choice.key_of(request.problem, request.options, kind)
            if key not in jobs or jobs[key].seconds < limit:
                jobs[key] = Job(stored_choice.choice_text(request.problem, request.options), limit, kind, key, thorough)
    return list(jobs.values())
