"""The GPUs of this machine: each tunes problems by a worker of its own, whose process is replaced when it ends or hangs.

A problem that cannot be measured is set aside with the reason. A GPU on which no process starts is left out. A thread for each
GPU hands jobs to its worker; the generator `Workers.run` yields what the threads report.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._measuring.process import StartError
from cudnnpy._planning.candidate_filter import FoundFault, Measurement
from cudnnpy._store.entry import Entry
from cudnnpy.cli.tuning import Job, TuningGpu, mismatch, tune_on
from cudnnpy.cli.tuning_worker import one_line

_END_SECONDS = 10.0  # that a stopped worker is waited for; what is left of it ends with this process


class Result(NamedTuple):
    """What became of a job: an entry, or the reason why there is none. `device` is None if no GPU was left for it."""

    job: Job
    device: int | None
    seconds: float
    entry: Entry | None
    reason: str = ""
    faults: tuple[FoundFault, ...] = ()


class LostDevice(NamedTuple):
    """A device on which no worker starts."""

    device: int
    reason: str


class Workers:
    """A worker for each GPU; a job is tuned on a GPU of its kind. `make` returns the worker of a UUID."""

    def __init__(self, gpus: Sequence[TuningGpu], make: Callable[[str], GpuWorker] = GpuWorker) -> None:
        self._gpus = {gpu.device: (gpu, make(gpu.uuid)) for gpu in gpus}
        self._reports: SimpleQueue[Result | LostDevice | None] = SimpleQueue()

    def run(self, jobs: Sequence[Job]) -> Iterator[Result | LostDevice]:
        """Yield a result for each job, in the order in which they are done. The processes end with the generator."""
        queues = {
            kind: deque(job for job in jobs if job.kind == kind) for kind in dict.fromkeys(job.kind for job in jobs)
        }
        workers = [worker for _, worker in self._gpus.values()]
        threads: list[threading.Thread] = []
        try:
            while threads := self._threads(queues):
                for thread in threads:
                    thread.start()
                left = len(threads)
                while left:
                    report = self._reports.get()
                    if isinstance(report, LostDevice):
                        del self._gpus[report.device]
                    if report is None:
                        left -= 1
                    else:
                        yield report
            for queue in queues.values():
                yield from (Result(job, None, 0.0, None, "no GPU is left to tune it on") for job in queue)
        finally:
            for worker in workers:
                worker.stop()
            for thread in threads:
                if thread.is_alive():  # Ctrl-C may come before all are started
                    thread.join(_END_SECONDS)

    def _threads(self, queues: dict[str, deque[Job]]) -> list[threading.Thread]:
        """Return a thread for each GPU that there is a job for."""
        found: list[threading.Thread] = []
        for kind, queue in queues.items():
            gpus = [(gpu, worker) for gpu, worker in self._gpus.values() if gpu.kind == kind]
            found += [
                threading.Thread(target=self._serve, args=(gpu.device, worker, queue), daemon=True)
                for gpu, worker in gpus[: len(queue)]
            ]
        return found

    # In the thread of a GPU

    def _serve(self, device: int, worker: GpuWorker, queue: deque[Job]) -> None:
        try:
            while queue and not worker.is_stopped:
                try:
                    job = queue.popleft()
                except IndexError:
                    break
                begin = time.monotonic()
                try:
                    measurement = tune_on(worker, job.text, job.seconds, job.known)
                except StartError as error:
                    queue.appendleft(job)
                    self._reports.put(LostDevice(device, one_line(error)))
                    break
                except Exception as error:
                    measurement = Measurement(None, one_line(error))
                entry, reason = measurement.entry, measurement.reason
                if entry is not None and (wrong := mismatch(entry, job)):
                    entry, reason = None, f"the process that measures must send an entry with {wrong}"
                seconds = time.monotonic() - begin
                self._reports.put(Result(job, device, seconds, entry, reason, measurement.faults))
        finally:
            worker.close()
            self._reports.put(None)
