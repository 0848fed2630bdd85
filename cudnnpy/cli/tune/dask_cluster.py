"""Tune jobs on the workers of a Dask cluster, in place of the GPUs of this machine (local_workers).

Each worker gets a GPU of its own, and one problem at a time from here. Dask's scheduler would queue many on a worker, and
blame all of them for its end. Here it is certain at which problem a worker was lost. That problem is retried, on another GPU if
there is one, and set aside after TRIES. The functions `announce`, `tune` and `version` run in the
cluster.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._installation import with_extra
from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._planning.measurement import FoundFault, Measurement
from cudnnpy._process_state import declare
from cudnnpy._version import __version__
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.tune.tune_problem import Job, Result, TuningGpu, checked, first_line, tune_on, tuning_gpus

TRIES = 3  # of a problem whose worker is lost, or that a GPU has no choice for
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.5  # between two listings of the workers
_ABSENCE_SECONDS = 30.0  # without a worker of a GPU kind: a nanny takes some of them to restart one
_MAX_NAME = 200  # characters of a problem in the name of a task
_VERSIONS = "cudnnpy {} and cuDNN {}"

# Of a worker's process
_tune_lock = threading.Lock()  # workers may have several threads, and serve several commands
_gpu_workers: dict[str, GpuWorker] = {}  # by UUID; their processes end with this one

declare(__name__, "_gpu_workers")


class ClusterError(UsageError):
    """The cluster cannot be used. The message is one line."""


def announce(versions: tuple[str, int]) -> tuple[Sequence[TuningGpu], str]:
    """Return the GPUs that this worker sees, or why there is none. Raises ValueError for other versions than the command's."""
    try:
        gpus, here = tuning_gpus(), (__version__, raw.version())
    except Exception as error:
        return [], first_line(error)
    if here != versions:
        raise ValueError(_VERSIONS.format(*here))
    return gpus, "" if gpus else "it sees no GPU"


def tune(job: Job, gpu: str) -> Measurement:
    """Measure a problem on the GPU of a UUID, in a child process. Nothing is stored.

    Raises ValueError for a problem that fails on every GPU, and StartError.
    """
    with _tune_lock:
        if gpu not in _gpu_workers:
            _gpu_workers[gpu] = GpuWorker(gpu)
        return tune_on(_gpu_workers[gpu], job)


def version() -> str:
    """Return the version of cudnnpy. The command runs this on the scheduler."""
    return __version__


class _DaskGpu(NamedTuple):
    """A GPU, its number in this cluster, and the address of the worker that uses it."""

    gpu: TuningGpu
    number: int
    address: str


@dataclass
class _Task:
    """A job, its first start, the number of tries, the last GPU, and the faults so far."""

    job: Job
    start: float = 0.0
    tries: int = 0
    gpu: _DaskGpu | None = None
    faults: list[FoundFault] = field(default_factory=list)


class DaskCluster:
    """The GPUs of a Dask cluster's workers.

    `scheduler` is the address of the scheduler, such as "tcp://host:8786", or the path of its scheduler file (.json). Raises
    ClusterError if it does not answer, no worker has a GPU, or a worker has another version of cudnnpy or cuDNN.
    """

    devices: list[tuple[int, str]]  #: the numbers of the GPUs, and the kind of each
    notes: list[str]  #: the GPU of each worker, or the reason why it has none; one line for each

    def __init__(self, scheduler: str) -> None:
        self._versions = (__version__, raw.version())
        self._gpus: dict[str, _DaskGpu] = {}  # by the address of the worker
        self._left_out: dict[str, str] = {}  # the reasons of the other workers
        self._numbers: dict[str, int] = {}  # of GPUs, by UUID
        self._running: dict[Any, _Task] = {}  # by future
        self._ended: list[Any] = []  # futures, so that the dashboard shows them
        self._client = _connect(scheduler)
        try:
            self._check(scheduler)
        except BaseException:
            self.close()
            raise
        gpus = sorted(self._gpus.values(), key=lambda gpu: gpu.number)
        self.devices = [(gpu.number, gpu.gpu.kind) for gpu in gpus]
        self.notes = [f"GPU {gpu.number} is the one with UUID {gpu.gpu.uuid} of worker {gpu.address}" for gpu in gpus]
        self.notes += [f"worker {address} is left out: {reason}" for address, reason in self._left_out.items()]

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield a result for each job, in the order of completion. Closing the generator cancels the other jobs.

        Raises ClusterError if the scheduler is lost.
        """
        waiting = [_Task(job) for job in jobs]
        seen = dict.fromkeys((job.kind for job in jobs), time.monotonic())  # when a worker of a GPU kind was there
        try:
            while waiting or self._running:
                self._poll_workers()
                seen |= {gpu.gpu.kind: time.monotonic() for gpu in self._gpus.values()}
                self._start_tasks(waiting)
                for future in self._wait():
                    yield from self._result(future, self._running.pop(future), waiting)
                for task in [one for one in waiting if time.monotonic() - seen[one.job.kind] > _ABSENCE_SECONDS]:
                    waiting.remove(task)
                    yield Result(task.job, None, 0.0, None, "no GPU is left to tune it on")
        finally:
            self._cancel()

    def close(self) -> None:
        """Leave the cluster, whose workers go on running. This can be called repeatedly."""
        self._cancel()
        self._ended.clear()
        with suppress(Exception):
            self._client.close(timeout=2)

    def _check(self, scheduler: str) -> None:
        """Raise ClusterError unless all parts have this cudnnpy and cuDNN, and a worker has a GPU."""
        try:
            found = self._client.run_on_scheduler(version)
        except Exception as error:
            found = first_line(error)
        if found != __version__:  # without it, the scheduler cannot unpickle the tasks
            raise ClusterError(f"the scheduler must have cudnnpy {__version__}; got {found}")
        self._poll_workers()
        for address, reason in self._left_out.items():
            if reason.startswith("must have "):  # a worker of another version that comes later is not used
                raise ClusterError(f"worker {address} {reason}")
            if not self._gpus:
                raise ClusterError(f"worker {address} must have a GPU that cuDNN can use; got none: {reason}")
        if not self._gpus:
            start = f"on each machine start one for each GPU, with dask worker {scheduler} --nworkers N --nthreads 1"
            raise ClusterError(f"the cluster must have workers; got none: {start}")

    def _poll_workers(self) -> None:
        """Forget the workers that were lost, and give free GPUs to new ones, first to those that see the fewest."""
        try:
            if self._client.status != "running":  # the futures of a lost connection are cancelled
                raise ConnectionError("the connection ended")
            present = self._client.nthreads()
            self._gpus = {address: gpu for address, gpu in self._gpus.items() if address in present}
            new = [address for address in present if address not in self._gpus]
            found = self._client.run(announce, self._versions, workers=new, on_error="return") if new else {}
            found = {
                address: said for address, said in found.items() if not isinstance(said, OSError)
            }  # lost meanwhile
        except Exception as error:
            raise ClusterError(f"the scheduler was lost: {first_line(error)}") from None
        needed = f"must have {_VERSIONS.format(*self._versions)}, as here"
        failed = {address: said for address, said in found.items() if isinstance(said, Exception)}
        self._left_out = {address: f"{needed}; got {first_line(error)}" for address, error in failed.items()}
        announced = [(address, *said) for address, said in found.items() if address not in failed]
        for address, gpus, reason in sorted(announced, key=lambda one: (len(one[1]), one[0])):
            taken = [gpu.gpu.uuid for gpu in self._gpus.values()]
            free = next((gpu for gpu in gpus if gpu.uuid not in taken), None)
            if free is None:
                self._left_out[address] = reason or "other workers have the GPUs that it sees"
            else:
                number = self._numbers.setdefault(free.uuid, len(self._numbers))
                self._gpus[address] = _DaskGpu(free, number, address)

    def _start_tasks(self, waiting: list[_Task]) -> None:
        """Send a task to each GPU without one. A task that failed on it goes to another GPU of the kind, if there is one."""
        busy = [task.gpu for task in self._running.values()]
        kinds = [gpu.gpu.kind for gpu in self._gpus.values()]
        for gpu in self._gpus.values():
            fitting = [task for task in waiting if task.job.kind == gpu.gpu.kind]
            if kinds.count(gpu.gpu.kind) > 1:
                fitting = [task for task in fitting if task.gpu is None or task.gpu.gpu != gpu.gpu]
            if gpu in busy or not fitting:
                continue
            task = fitting[0]
            waiting.remove(task)
            task.tries, task.gpu, task.start = task.tries + 1, gpu, task.start or time.monotonic()
            job = task.job._replace(known=(*task.job.known, *task.faults))
            retry = f" (try {task.tries})" if task.tries > 1 else ""
            key = f"cudnnpy tune-{job.text[:_MAX_NAME]}{retry} {uuid4().hex}"  # the dashboard shows it
            self._running[self._client.submit(tune, job, gpu.gpu.uuid, key=key, workers=[gpu.address])] = task

    def _wait(self) -> list[Any]:
        """Wait a moment for a task. Return the futures of those that ended, or whose worker was lost."""
        from distributed import wait

        if not self._running:
            time.sleep(_POLL_SECONDS)
        else:
            with suppress(TimeoutError, asyncio.CancelledError):
                wait(list(self._running), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED")
        present = self._gpus.values()
        return [future for future, task in self._running.items() if future.done() or task.gpu not in present]

    def _result(self, future: Any, task: _Task, waiting: list[_Task]) -> Iterator[Result]:
        """Yield the result of a task that ended or whose worker was lost, or queue the task for a retry."""
        assert task.gpu is not None
        worker, is_final = f"worker {task.gpu.address}", False
        try:
            if future.status not in ("finished", "error"):
                raise ConnectionError(f"its {worker} was lost")
            measurement = checked(future.result(timeout=_CONNECT_SECONDS), task.job, worker)
            self._ended.append(future)
        except Exception as error:
            is_final = isinstance(error, ValueError)  # caused by the problem, on every GPU
            measurement = Measurement(None, first_line(error))
            self._gpus.pop(task.gpu.address, None)  # its worker has to announce itself again
            with suppress(Exception):
                future.cancel()
        task.faults += measurement.faults
        reason = measurement.reason
        if measurement.entry is None and not is_final:
            if task.tries < TRIES:
                waiting.append(task)
                return
            reason = f"set aside after {TRIES} tries: {reason}"
        seconds = time.monotonic() - task.start
        yield Result(task.job, task.gpu.number, seconds, measurement.entry, reason, tuple(task.faults))

    def _cancel(self) -> None:
        """Cancel the tasks that are queued or running in the cluster. A search that runs there is not interrupted."""
        with suppress(Exception):
            if self._running and self._client.status == "running":
                self._client.cancel(list(self._running))
        self._running.clear()


def _connect(scheduler: str) -> Any:
    """Return a client of the scheduler, and silence Dask's log. Raises ClusterError if it does not answer."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError(f"--dask needs dask.distributed ({error}): pip install {with_extra('cluster')}") from None
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        address = scheduler
        if scheduler.endswith(".json"):
            with open(scheduler, encoding="utf-8") as file:
                address = str(json.load(file)["address"])
        asyncio.run(asyncio.wait_for(_check_address(address), _CONNECT_SECONDS + 1))
        return Client(address, timeout=_CONNECT_SECONDS, name="cudnnpy-tune")
    except Exception as error:
        raise ClusterError(
            f"--dask must be the address of a Dask scheduler that runs, such as tcp://host:8786, or its scheduler file; "
            f"got {scheduler!r}: {first_line(error)}"
        ) from None


async def _check_address(address: str) -> None:
    """Raise unless a Dask process answers at an address. A Client waits without end for a server of another kind."""
    from distributed.comm import connect
    from distributed.core import normalize_address
    from distributed.security import Security

    if not address:
        raise ConnectionError("there is no address")
    arguments = Security().get_connection_args("client")
    (await connect(normalize_address(address), timeout=_CONNECT_SECONDS, **arguments)).abort()
