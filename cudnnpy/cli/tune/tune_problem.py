"""Tune one problem on one GPU: jobs, their results, and the GPUs of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cudnnpy._core.cuda_python import gpu_facts
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.availability import visible_gpus
from cudnnpy.tuning import stored_choice
from cudnnpy.tuning.measurement import FoundFault, Measurement
from cudnnpy.tuning.measuring.child_process import StartError
from cudnnpy.tuning.measuring.gpu_worker import GpuWorker
from cudnnpy.tuning.measuring.gpus import uuid_of
from cudnnpy.tuning.store.entry import Entry, Key

EXTRA_SECONDS = 300.0  # beyond ten times the seconds of the search, to plan, to start processes and to confirm faults
_POLL_SECONDS = 1.0  # between two checks for a stop, while another process uses the GPU
_MAX_REASON = 300  # characters


class Job(NamedTuple):
    """A problem to be tuned."""

    text: str  #: the problem in the notation, with the options that the choice depends on
    seconds: float  #: the time limit of the search
    kind: str  #: the GPU kind to tune it on
    key: Key  #: the key of its entry
    thorough: bool = False  #: whether all candidates are measured, and not only until several in a row gain nothing
    known: tuple[FoundFault, ...] = ()  #: faults of its candidates, which are not run again with the same driver


class TuningGpu(NamedTuple):
    """A GPU: its UUID, its ordinal in a process, and its kind. GPUs of equal kinds can share stored choices."""

    uuid: str
    device: int
    kind: str


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
    while not worker.is_stopped:
        with worker.turn(time.monotonic() + _POLL_SECONDS) as has_turn:
            if has_turn:
                return _measured(worker, job)
    raise StartError("stopped")


def _measured(worker: GpuWorker, job: Job) -> Measurement:
    driver = stored_choice.driver()
    left_out = {fault.candidate: f"{fault.symptom}: {fault.detail}" for fault in job.known if fault.driver == driver}
    deadline = time.monotonic() + EXTRA_SECONDS + 10 * job.seconds
    measurement = worker.measure(job.text, job.seconds, left_out=left_out, deadline=deadline, thorough=job.thorough)
    if measurement.entry is None:
        worker.close()
    if measurement.was_memory_limited:
        reason = measurement.reason or "the GPU has too little free memory to measure in"
        measurement = measurement._replace(entry=None, reason=reason)
    return measurement


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


# GPUs, without a CUDA context in this process


def tuning_gpus() -> list[TuningGpu]:
    """Return the visible GPUs by ordinal, without making a CUDA context. Raises UnavailableError if there is none."""
    return [TuningGpu(uuid_of(device), device, _kind(device)) for device in range(len(visible_gpus()))]


def _kind(device: int) -> str:
    """Return the kind of a GPU as the properties of a device profile that make it."""
    name, capability, multiprocessors = gpu_facts(device)
    version = 10 * int(capability.replace(".", ""))  # 900
    return json.dumps({"deviceName": name, "deviceVer": version, "multiProcessorCount": multiprocessors})


def key_for(problem: Problem, options: PlanningOptions, kind: str) -> Key:
    """Return the store key of a problem on a GPU kind."""
    return stored_choice.key_of(problem, options, Target(None, kind))
