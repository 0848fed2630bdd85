"""Tune jobs on the workers of a Dask cluster, in place of the GPUs of this machine (local_workers).

Each GPU gets one problem at a time from here. Dask's scheduler would queue many on a worker, and blame all of them for its end.
Here it is certain at which problem a worker was lost. That problem is retried, on another GPU if there is one, and set aside
after TRIES.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._installation import with_extra
from cudnnpy._planning.measurement import FoundFault, Measurement
from cudnnpy._version import __version__
from cudnnpy.cli.tune import dask_worker
from cudnnpy.cli.tune.cluster_workers import ClusterError, DaskGpu, WorkerRegistry
from cudnnpy.cli.tune.dask_worker import Answer, TuneHere, WorkerTask
from cudnnpy.cli.tune.tune_problem import Job, Result, first_line, mismatch

TRIES = 3  # of a problem whose worker is lost, or that a GPU has no choice for
CONNECT_SECONDS = 5.0
_POLL_SECONDS = 1.0  # between two listings of the workers
_ABSENCE_SECONDS = 30.0  # without a worker of a GPU kind: a nanny takes some of them to restart one
_MAX_NAME = 200  # characters of a problem in the name of a task


@dataclass(eq=False)
class _Task:
    """A job, its first start, the number of tries, the UUID of the last GPU, and the faults so far."""

    job: Job
    start: float = 0.0
    tries: int = 0
    last_gpu: str = ""
    faults: list[FoundFault] = field(default_factory=list)


class DaskCluster:
    """The GPUs of a Dask cluster's workers.

    `scheduler` is the address of the scheduler, such as "tcp://host:8786", or the path of its scheduler file (.json). Raises
    ClusterError if it does not answer, no worker has a GPU, or a worker has another version of cudnnpy or cuDNN.
    """

    devices: list[tuple[int, str]]  #: the numbers of the GPUs, and the kind of each
    notes: list[str]  #: the GPU of each worker, or the reason why it has none; one line for each

    def __init__(
        self, scheduler: str, worker_task: WorkerTask | None = None, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._worker_task = TuneHere() if worker_task is None else worker_task
        self._registry = WorkerRegistry(raw.version())
        self._ended: queue.SimpleQueue[DaskGpu] = queue.SimpleQueue()
        self._finished: list[Any] = []  # futures, which the dashboard counts while they are referenced
        self._numbers, self._name = count(), uuid4().hex[:8]
        self._last_poll = 0.0
        self._client: Any = None
        _check_distributed()
        self._silence = _SilentDask()
        try:
            self._client = _connect(scheduler, connect_seconds)
            self._check_scheduler()
            self._poll_workers()
            self._check_workers(scheduler)
        except BaseException:
            self.close()
            raise
        gpus = sorted(self._registry.gpus.values(), key=lambda gpu: gpu.number)
        self.devices = [(gpu.number, gpu.gpu.kind) for gpu in gpus]
        self.notes = [f"GPU {gpu.number} is the one with UUID {gpu.gpu.uuid} of worker {gpu.address}" for gpu in gpus]
        self.notes += [f"worker {address} is left out: {why}" for address, why in self._registry.unusable.items()]
        self.notes += [
            f"worker {address} is left out: other workers have the GPUs that it sees"
            for address in self._registry.without_gpu()
        ]

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield a result for each job, in the order of completion. Closing the generator cancels the other jobs.

        Raises ClusterError if the scheduler is lost.
        """
        waiting: dict[str, deque[_Task]] = {}
        for job in jobs:
            waiting.setdefault(job.kind, deque()).append(_Task(job))
        last_seen = dict.fromkeys(waiting, time.monotonic())  # of workers of a GPU kind
        try:
            while any(waiting.values()) or self._registry.busy():
                if time.monotonic() - self._last_poll > _POLL_SECONDS:
                    yield from self._take_answers(self._poll_workers(), waiting)
                    yield from self._give_up(waiting, last_seen)
                for gpu in self._registry.gpus.values():
                    if gpu.task is None and (task := self._next_task(gpu, waiting.get(gpu.gpu.kind))):
                        self._start(gpu, task)
                with suppress(queue.Empty):
                    yield from self._take_answers([self._ended.get(timeout=_POLL_SECONDS / 4)], waiting)
        finally:
            self._cancel()

    def close(self) -> None:
        """Leave the cluster, whose workers go on running. This can be called repeatedly."""
        if self._client is not None:
            self._cancel()
            self._finished.clear()
            with suppress(Exception):
                self._client.close(timeout=2)
            self._client = None
        self._silence.end()

    # Workers

    def _poll_workers(self) -> list[DaskGpu]:
        """Update the registry of workers. Return the GPUs whose worker was lost."""
        self._last_poll = time.monotonic()
        if self._client.status != "running":  # the futures of a lost connection are cancelled
            raise ClusterError("the scheduler was lost")
        try:
            present = self._client.nthreads()
            lost = self._registry.keep_only(present)
            new = self._registry.unknown(present)
            announcements = (
                self._client.run(dask_worker.announce, self._worker_task, workers=new, on_error="return") if new else {}
            )
        except Exception as error:
            raise ClusterError(f"the scheduler was lost: {first_line(error)}") from None
        self._registry.add(announcements)
        return [gpu for gpu in lost if gpu.task is not None]

    def _check_scheduler(self) -> None:
        """Raise ClusterError unless the scheduler has this cudnnpy, without which it cannot unpickle the tasks."""
        try:
            version = self._client.run_on_scheduler(dask_worker.version)
        except Exception as error:
            version = first_line(error)
        if version != __version__:
            raise ClusterError(f"the scheduler must have cudnnpy {__version__}; got {version}")

    def _check_workers(self, scheduler: str) -> None:
        """Raise ClusterError for a worker of another version, and if no worker has a GPU."""
        for reason in self._registry.mismatched.values():
            raise ClusterError(reason)
        if self._registry.gpus:
            return
        for address, reason in self._registry.unusable.items():
            raise ClusterError(f"worker {address} must have a GPU that cuDNN can use; got none: {reason}")
        raise ClusterError(
            f"the cluster must have workers; got none: on each machine start one for each GPU, with "
            f"dask worker {scheduler} --nworkers N --nthreads 1"
        )

    # Tasks

    def _next_task(self, gpu: DaskGpu, tasks: deque[_Task] | None) -> _Task | None:
        """Take the next task for a GPU. One that failed on it goes to another GPU of the kind, if there is one."""
        is_alone = sum(other.gpu.kind == gpu.gpu.kind for other in self._registry.gpus.values()) == 1
        for index, task in enumerate(tasks or ()):
            if task.last_gpu != gpu.gpu.uuid or is_alone:
                del tasks[index]  # type: ignore[union-attr]
                return task
        return None

    def _start(self, gpu: DaskGpu, task: _Task) -> None:
        """Send a task to a worker. Its name has the problem, which the dashboard shows."""
        gpu.task = task
        task.tries, task.last_gpu, task.start = task.tries + 1, gpu.gpu.uuid, task.start or time.monotonic()
        retry = f" (try {task.tries})" if task.tries > 1 else ""
        gpu.future = self._client.submit(
            dask_worker.tune,
            self._worker_task,
            gpu.process,
            task.job._replace(known=(*task.job.known, *task.faults)),
            gpu.gpu.uuid,
            key=f"cudnnpy tune-{task.job.text[:_MAX_NAME]}{retry} {self._name}.{next(self._numbers)}",
            workers=[gpu.address],
            allow_other_workers=False,
            pure=False,
        )
        gpu.future.add_done_callback(lambda _: self._ended.put(gpu))

    def _take_answers(self, gpus: Iterable[DaskGpu], waiting: dict[str, deque[_Task]]) -> Iterator[Result]:
        """Yield the results of tasks that ended or whose worker was lost, or queue the tasks for a retry."""
        for gpu in gpus:
            if gpu.task is None:  # the answer was taken when the worker was lost
                continue
            task: _Task = gpu.task
            answer, gpu.task = self._answer(gpu), None
            entry, reason = answer.measurement.entry, answer.measurement.reason
            task.faults += answer.measurement.faults
            if entry is None and not answer.is_final:
                if task.tries < TRIES:
                    waiting[task.job.kind].append(task)
                    continue
                reason = f"set aside after {TRIES} tries: {reason}"
            if entry is not None and (difference := mismatch(entry, task.job)):
                entry, reason = None, f"worker {gpu.address} must send an entry with {difference}"
            yield Result(task.job, gpu.number, time.monotonic() - task.start, entry, reason, tuple(task.faults))

    def _answer(self, gpu: DaskGpu) -> Answer:
        """Return the answer of a worker, or a failure if the worker was lost."""
        future, gpu.future = gpu.future, None
        if future.status == "finished":
            with suppress(Exception):  # the worker was lost after its last task
                answer: Answer = future.result(timeout=CONNECT_SECONDS)
                self._finished.append(future)
                if answer.is_restarted:
                    self._registry.release_gpu(gpu)
                return answer
        error = future.exception() if future.status == "error" else None
        with suppress(Exception):
            future.cancel()
        self._registry.release_gpu(gpu)
        reason = f"its worker {gpu.address} was lost" if error is None else first_line(error)
        return Answer(Measurement(None, reason))

    def _give_up(self, waiting: dict[str, deque[_Task]], last_seen: dict[str, float]) -> Iterator[Result]:
        """Give up the tasks of a GPU kind that no worker has had for _ABSENCE_SECONDS."""
        for gpu in self._registry.gpus.values():
            last_seen[gpu.gpu.kind] = time.monotonic()
        for kind, tasks in waiting.items():
            while tasks and time.monotonic() - last_seen[kind] > _ABSENCE_SECONDS:
                yield Result(tasks.popleft().job, None, 0.0, None, "no GPU is left to tune it on")

    def _cancel(self) -> None:
        """Cancel the tasks that are queued or running in the cluster. A search that runs there is not interrupted."""
        futures = [gpu.future for gpu in self._registry.busy()]
        for gpu in self._registry.busy():
            gpu.task = gpu.future = None
        if futures and self._client is not None and self._client.status == "running":
            with suppress(Exception):
                self._client.cancel(futures)


# The scheduler


def _check_distributed() -> None:
    """Raise ClusterError if dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise ClusterError(f"--dask needs dask.distributed ({error}): pip install {with_extra('cluster')}") from None


def _connect(scheduler: str, seconds: float) -> Any:
    """Return a client of the scheduler. Raises ClusterError if it does not answer."""
    from distributed import Client

    try:
        address = scheduler
        if scheduler.endswith(".json"):
            with open(scheduler, encoding="utf-8") as file:
                address = str(json.load(file)["address"])
        asyncio.run(_check_address(address, seconds))
        return Client(address, timeout=seconds, name="cudnnpy-tune", set_as_default=False)
    except Exception as error:
        raise ClusterError(
            f"--dask must be the address of a Dask scheduler that runs, such as tcp://host:8786, or its scheduler file; "
            f"got {scheduler!r}: {first_line(error)}"
        ) from None


async def _check_address(address: str, seconds: float) -> None:
    """Raise unless a Dask process answers at an address. A Client waits without end for a server of another kind."""
    from distributed.comm import connect
    from distributed.core import normalize_address
    from distributed.security import Security

    if not address:
        raise ConnectionError("there is no address")
    arguments = Security().get_connection_args("client")
    try:
        comm = await asyncio.wait_for(connect(normalize_address(address), timeout=seconds, **arguments), seconds + 1)
    except TimeoutError:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    comm.abort()


class _SilentDask:
    """Turns off the log messages of Dask, and of its callbacks in Tornado, until `end`."""

    def __init__(self) -> None:
        names = {name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado")}
        self._levels = {name: logging.getLogger(name).level for name in {"distributed", *names}}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def end(self) -> None:
        """Restore the previous levels."""
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self._levels = {}
