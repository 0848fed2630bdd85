"""Tune jobs on the GPUs of this machine, each with a worker of its own.

A thread for each GPU hands jobs to its worker, whose process is replaced when it ends or hangs. A GPU on which no process
starts is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._measuring.process import StartError
from cudnnpy._planning.measurement import Measurement
from cudnnpy.cli.tune.tune_problem import Job, LostDevice, Result, TuningGpu, checked, first_line, tune_on

_STOP_SECONDS = 10.0  # that a stopped worker is waited for; its thread ends with this process


class LocalWorkers:
    """A worker for each GPU. Each job is tuned on a GPU of its kind. `make` returns the worker of a UUID."""

    def __init__(self, gpus: Sequence[TuningGpu], make: Callable[[str], GpuWorker] = GpuWorker) -> None:
        self._gpus = {gpu.device: (gpu, make(gpu.uuid)) for gpu in gpus}
        self._reports: SimpleQueue[Result | LostDevice | None] = SimpleQueue()

    def run(self, jobs: Sequence[Job]) -> Iterator[Result | LostDevice]:
        """Yield a result for each job, in the order of completion. The processes end with the generator."""
        queues: dict[str, deque[Job]] = {}
        for job in jobs:
            queues.setdefault(job.kind, deque()).append(job)
        workers = [worker for _, worker in self._gpus.values()]
        threads: list[threading.Thread] = []
        try:
            while threads := self._threads(queues):
                for thread in threads:
                    thread.start()
                running = len(threads)
                while running:
                    report = self._reports.get()
                    if isinstance(report, LostDevice):
                        del self._gpus[report.device]
                    if report is None:
                        running -= 1
                    else:
                        yield report
            for queue in queues.values():
                yield from (Result(job, None, 0.0, None, "no GPU is left to tune it on") for job in queue)
        finally:
            for worker in workers:
                worker.stop()
            for thread in threads:
                if thread.is_alive():  # Ctrl-C may come before all are started
                    thread.join(_STOP_SECONDS)

    def _threads(self, queues: dict[str, deque[Job]]) -> list[threading.Thread]:
        """Return a thread for each GPU that has a job."""
        threads: list[threading.Thread] = []
        for kind, queue in queues.items():
            gpus = [(gpu, worker) for gpu, worker in self._gpus.values() if gpu.kind == kind]
            threads += [
                threading.Thread(target=self._serve, args=(gpu.device, worker, queue), daemon=True)
                for gpu, worker in gpus[: len(queue)]
            ]
        return threads

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
                    measurement = checked(tune_on(worker, job), job, "the process that measures")
                except StartError as error:
                    queue.appendleft(job)
                    self._reports.put(LostDevice(device, first_line(error)))
                    break
                except Exception as error:
                    measurement = Measurement(None, first_line(error))
                result = Result(job, device, time.monotonic() - begin, *measurement[:2], measurement.faults)
                self._reports.put(result)
        finally:
            worker.close()
            self._reports.put(None)
