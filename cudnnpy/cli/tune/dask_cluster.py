"""The workers of a Dask cluster as places for jobs (tune_problem), in place of the GPUs of this machine.

Each worker gets a GPU of its own. `distributed` sends a job to the worker of its place and brings the answer back. The
functions `announce`, `tune` and `version` run in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._process.installation import with_extra
from cudnnpy._version import __version__
from cudnnpy.cli.arguments import UsageError
from cudnnpy.cli.tune.tune_problem import Job, Place, TuningGpu, first_line, tune_on, tuning_gpus
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring.gpu_worker import worker_of

ABSENCE_SECONDS = 30.0  # without a worker of a GPU kind: a nanny takes some of them to restart one
_CONNECT_SECONDS = 5.0
_MAX_NAME = 200  # characters of a problem in the name of a task
_VERSIONS = "cudnnpy {} and cuDNN {}"


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
    return tune_on(worker_of(gpu), job)


def version() -> str:
    """Return the version of cudnnpy. The command runs this on the scheduler."""
    return __version__


class DaskCluster:
    """The GPUs of a Dask cluster's workers.

    `scheduler` is the address of the scheduler, such as "tcp://host:8786". Raises ClusterError if it does not answer, no
    worker has a GPU, or a worker has another version of cudnnpy or cuDNN.
    """

    def __init__(self, scheduler: str) -> None:
        self._versions = (__version__, raw.version())
        self._places: dict[str, Place] = {}  # by the address of the worker
        self._left_out: dict[str, str] = {}  # the reasons of the other workers
        self._futures: list[Any] = []  # of all tasks, so that the dashboard shows them
        self._client = _connect(scheduler)
        try:
            self._check(scheduler)
        except BaseException:
            self.close()
            raise
        self.gpus = [place.gpu for place in self._places.values()]  #: the GPUs of the workers
        #: the GPU of each worker, or the reason why it has none; one line for each
        self.notes = [f"{place.name} has the GPU with UUID {place.gpu.uuid}" for place in self._places.values()]
        self.notes += [f"worker {address} is left out: {reason}" for address, reason in self._left_out.items()]

    def present(self) -> Sequence[Place]:
        """Return the places of the workers that are there now. Raises ClusterError if the scheduler is lost.

        New workers get the GPUs that are free, first the workers that see the fewest.
        """
        try:
            if self._client.status != "running":  # the futures of a lost connection are cancelled
                raise ConnectionError("the connection ended")
            workers = self._client.nthreads()
            self._places = {address: place for address, place in self._places.items() if address in workers}
            new = [address for address in workers if address not in self._places]
            answers = self._client.run(announce, self._versions, workers=new, on_error="return") if new else {}
        except Exception as error:
            raise ClusterError(f"the scheduler was lost: {first_line(error)}") from None
        failed = {address: answer for address, answer in answers.items() if isinstance(answer, Exception)}
        needed = f"must have {_VERSIONS.format(*self._versions)}, as here"
        self._left_out = {
            address: f"{needed}; got {first_line(error)}"
            for address, error in failed.items()
            if not isinstance(error, OSError)  # lost meanwhile
        }
        announced = [(address, *answer) for address, answer in answers.items() if address not in failed]
        for address, gpus, reason in sorted(announced, key=lambda one: (len(one[1]), one[0])):
            taken = [place.gpu.uuid for place in self._places.values()]
            free = next((gpu for gpu in gpus if gpu.uuid not in taken), None)
            if free is None:
                self._left_out[address] = reason or "other workers have the GPUs that it sees"
            else:
                self._places[address] = self._place(address, free)
        return [*self._places.values()]

    def close(self) -> None:
        """Leave the cluster, whose workers go on running. This can be called repeatedly."""
        self._futures.clear()
        with suppress(Exception):
            self._client.close(timeout=2)

    def _place(self, address: str, gpu: TuningGpu) -> Place:
        def start(job: Job) -> Any:
            key = f"cudnnpy tune-{job.text[:_MAX_NAME]} {uuid4().hex}"  # the dashboard shows it
            self._futures.append(self._client.submit(tune, job, gpu.uuid, key=key, workers=[address]))
            return self._futures[-1]

        return Place(gpu, f"worker {address}", start)

    def _check(self, scheduler: str) -> None:
        """Raise ClusterError unless all parts have this cudnnpy and cuDNN, and a worker has a GPU."""
        try:
            found = self._client.run_on_scheduler(version)
        except Exception as error:
            found = first_line(error)
        if found != __version__:  # without it, the scheduler cannot unpickle the tasks
            raise ClusterError(f"the scheduler must have cudnnpy {__version__}; got {found}")
        places = self.present()
        for address, reason in self._left_out.items():
            if reason.startswith("must have "):  # a worker of another version that comes later is not used
                raise ClusterError(f"worker {address} {reason}")
            if not places:
                raise ClusterError(f"worker {address} must have a GPU that cuDNN can use; got none: {reason}")
        if not places:
            start = f"on each machine start one for each GPU, with dask worker {scheduler} --nworkers N --nthreads 1"
            raise ClusterError(f"the cluster must have workers; got none: {start}")


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
        asyncio.run(asyncio.wait_for(_identity(scheduler), _CONNECT_SECONDS + 1))
        return Client(scheduler, timeout=_CONNECT_SECONDS, name="cudnnpy-tune")
    except Exception as error:
        expected = (
            'the address of a Dask scheduler that runs, such as tcp://host:8786 ("address" in its scheduler file)'
        )
        raise ClusterError(f"--dask must be {expected}; got {scheduler!r}: {first_line(error)}") from None


async def _identity(address: str) -> object:
    """Return the identity of a Dask process. A Client waits without end for a server of another kind."""
    from distributed import rpc
    from distributed.security import Security

    arguments = Security().get_connection_args("client")
    async with rpc(address, timeout=_CONNECT_SECONDS, connection_args=arguments) as process:
        return await process.identity()
