"""Tune one problem on one GPU, and what a process knows of GPUs that it does not use."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from cudnnpy._cuda_python import cuda_python
from cudnnpy._measuring.gpu_lock import gpu_lock
from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._measuring.gpus import uuid_of
from cudnnpy._measuring.process import StartError
from cudnnpy._planning import stored_choice
from cudnnpy._planning.candidate_filter import FoundFault, Measurement
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy._store.entry import Entry, Key
from cudnnpy.availability import visible_gpus

EXTRA_SECONDS = 300.0  # beyond ten times those of the search, to plan, to start processes and to confirm faults
_TRIES = 2
_POLL_SECONDS = 1.0  # between two looks at whether tuning was stopped, while another process uses the GPU


class Job(NamedTuple):
    """A problem to be tuned.

    Attributes
    ----------
    text : str
        The problem in the notation, with the options that the choice depends on.
    seconds : float
        The most seconds that the search takes.
    kind : str
        The kind of GPU to tune it on.
    key : Key
        The key of its entry.
    known : tuple of FoundFault
        Faults of its candidates, which are not run again with the same driver.
    """

    text: str
    seconds: float
    kind: str
    key: Key
    known: tuple[FoundFault, ...] = ()


def tune_on(worker: GpuWorker, text: str, seconds: float, known: Sequence[FoundFault] = ()) -> Measurement:
    """Measure a problem on a GPU, as soon as no other process of the user measures there.

    Without a choice it is tried once more in a new process, since the problem before may have been the cause.

    Parameters
    ----------
    worker : GpuWorker
        The worker of the GPU.
    text, seconds, known
        The fields of a Job.

    Returns
    -------
    Measurement
        The choice, or the reason why there is none to be stored; the faults of both tries.

    Raises
    ------
    ValueError
        The text is not a problem, or no candidate can be used.
    StartError
        No process could be started, or the worker was stopped.
    """
    while not worker.is_stopped:
        with gpu_lock(worker.uuid, time.monotonic() + _POLL_SECONDS) as is_held:
            if is_held:
                return _measured(worker, text, seconds, known)
    raise StartError("stopped")


def _measured(worker: GpuWorker, text: str, seconds: float, known: Sequence[FoundFault]) -> Measurement:
    driver = stored_choice.driver()
    left_out = {fault.candidate: _reason(fault) for fault in known if fault.driver == driver}
    faults: tuple[FoundFault, ...] = ()
    for _ in range(_TRIES):
        deadline = time.monotonic() + EXTRA_SECONDS + 10 * seconds
        measurement = worker.measure(text, seconds, left_out=left_out, deadline=deadline)
        faults += measurement.faults
        if measurement.entry is not None:
            break
        worker.close()
        left_out |= {fault.candidate: _reason(fault) for fault in measurement.faults}
    if measurement.lacked_memory:
        reason = measurement.reason or "the GPU has too little free memory to measure in"
        measurement = measurement._replace(entry=None, reason=reason)
    return measurement._replace(faults=faults)


def _reason(fault: FoundFault) -> str:
    return f"{fault.symptom}: {fault.detail}"


def mismatch(entry: Entry, job: Job) -> str:
    """Return what is wrong with an entry for a job, such as "gpu 'A'; got 'B'"; "" if it is for the very key and text."""
    wanted, found = ({**one.key._asdict(), "text": one.text} for one in (job, entry))
    for name, value in wanted.items():
        if found[name] != value:
            return f"{name} {repr(value)[:200]}; got {repr(found[name])[:200]}"
    return ""


# What a process knows of GPUs that it does not use


class TuningGpu(NamedTuple):
    """A GPU: its UUID, its ordinal in a process, and its kind, a text that is equal for GPUs that can share stored choices."""

    uuid: str
    device: int
    kind: str


def tuning_gpus() -> list[TuningGpu]:
    """Return the visible GPUs by ordinal. No CUDA context is made. Raises UnavailableError if there is none."""
    return [TuningGpu(uuid_of(device), device, _kind(device)) for device in range(len(visible_gpus()))]


def _kind(device: int) -> str:
    found: Any = cuda_python("core").Device(device)
    major, minor = found.compute_capability
    properties = {
        "deviceName": str(found.name),
        "deviceVer": 100 * major + 10 * minor,
        "multiProcessorCount": int(found.properties.multiprocessor_count),
    }
    return json.dumps(properties)


def key_for(problem: Problem, options: PlanningOptions, kind: str) -> Key:
    """Return the key of a problem on a kind of GPU."""
    return stored_choice.key_of(problem, options, Target(None, kind))
