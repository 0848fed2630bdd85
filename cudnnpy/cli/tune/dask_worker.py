"""Functions that `cudnnpy tune --dask` runs in the workers of a Dask cluster: announce the GPUs, and tune one problem.

An announcement is a dict of strings and numbers, so that the command can read it whatever version a worker has.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._planning.measurement import Measurement
from cudnnpy._process_state import declare
from cudnnpy._version import __version__
from cudnnpy.cli.tune.tune_problem import Job, TuningGpu, first_line, tune_on, tuning_gpus

# A worker that its nanny restarts has another token, and may have the same address.
_PROCESS_TOKEN = uuid4().hex
_tune_lock = threading.Lock()  # workers may have several threads, and serve several commands
_gpu_workers: dict[str, GpuWorker] = {}  # of this process, by UUID; their processes end with it

declare(__name__, "_gpu_workers")


class Answer(NamedTuple):
    """The measurement of a problem."""

    measurement: Measurement
    is_final: bool = False  # the problem fails on every GPU
    is_restarted: bool = False  # another process announced the GPU; nothing was measured


class WorkerTask(Protocol):
    """The part of a worker that tests replace. An instance is sent to the workers."""

    def gpus(self) -> list[TuningGpu]:
        """Return the GPUs that this process sees. Raises an exception that says why there is none."""

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""

    def tune(self, job: Job, gpu: str) -> Measurement:
        """Measure the problem of a job on the GPU of a UUID. Candidates with known faults are not run."""


class TuneHere:
    """The WorkerTask of `cudnnpy tune`: measure problems on the worker's GPU, in a child process. Nothing is stored there."""

    def gpus(self) -> list[TuningGpu]:
        """Return the GPUs that this process sees."""
        return tuning_gpus()

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""
        return raw.version()

    def tune(self, job: Job, gpu: str) -> Measurement:
        """Measure a problem. Raises ValueError and StartError."""
        if gpu not in _gpu_workers:
            _gpu_workers[gpu] = GpuWorker(gpu)
        return tune_on(_gpu_workers[gpu], job)


def announce(task: WorkerTask) -> dict[str, Any]:
    """Return the process of this worker, its versions, and its GPUs, or the reason why there are none."""
    gpus: list[TuningGpu] = []
    cudnn, reason = 0, ""
    try:
        gpus, cudnn = task.gpus(), task.cudnn()
        reason = "" if gpus else "it sees no GPU"
    except Exception as error:
        reason = first_line(error)
    listed = [gpu._asdict() for gpu in gpus]
    return {"process": _process(), "cudnnpy": __version__, "cudnn": cudnn, "gpus": listed, "reason": reason}


def tune(task: WorkerTask, process: str, job: Job, gpu: str) -> Answer:
    """Tune a problem. `process` is the process that announced the GPU."""
    if process != _process():
        return Answer(Measurement(None), is_restarted=True)
    with _tune_lock:
        try:
            return Answer(task.tune(job, gpu))
        except Exception as error:  # a ValueError is caused by the problem, on every GPU
            return Answer(Measurement(None, first_line(error)), is_final=isinstance(error, ValueError))


def _process() -> str:
    return f"{os.getpid()}-{_PROCESS_TOKEN}"


def version() -> str:
    """Return the version of cudnnpy. The command runs this on the scheduler."""
    return __version__
