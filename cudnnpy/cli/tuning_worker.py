"""What runs in the workers of a Dask cluster for `cudnnpy tune --dask`: a worker announces its GPUs, and tunes one problem.

Messages travel as lists, dicts, numbers and strings, so that they can be read whatever version a worker has. `received` is
the one way to read them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, get_origin, get_type_hints
from uuid import uuid4

from cudnnpy import raw
from cudnnpy._measuring.gpu_worker import GpuWorker
from cudnnpy._planning.candidate_filter import SYMPTOMS, FoundFault, Measurement, Symptom
from cudnnpy._version import __version__
from cudnnpy.cli.tuning import TuningGpu, tune_on, tuning_gpus

# A worker that its nanny has started again has another one, and may have the same address.
_PROCESS = uuid4().hex
_ONE_AT_A_TIME = threading.Lock()  # for workers of several threads that several commands use
_gpu_workers: dict[str, GpuWorker] = {}  # of this process, by UUID; their processes end with it


class Announcement(NamedTuple):
    """A worker's process, its versions, and its GPUs, or why there are none."""

    process: str
    cudnnpy: str
    cudnn: int
    gpus: list[Any]
    why: str


class Answer(NamedTuple):
    """The entry for a problem as Entry.plain returns it, or {} and the reason why there is none; FoundFaults as dicts."""

    entry: dict[str, Any]
    faults: list[Any]
    failure: str = ""
    is_final: bool = False  # the problem fails on every GPU
    is_restarted: bool = False  # the process is not the one that announced the GPU, and does nothing


class _Kind(NamedTuple):
    deviceName: str
    deviceVer: int
    multiProcessorCount: int


_Message = TypeVar("_Message", Announcement, Answer, TuningGpu, FoundFault, _Kind)


def received(kind: type[_Message], given: object) -> _Message:
    """Return the message of a dict. Raises ValueError unless it has every field of that kind, in its type, and no other."""
    hints = {name: str if hint == Symptom else hint for name, hint in get_type_hints(kind).items()}
    types = {name: get_origin(hint) or hint for name, hint in hints.items()}
    if not isinstance(given, dict) or {name: type(value) for name, value in given.items()} != types:
        wanted = ", ".join(f"{name} ({one.__name__})" for name, one in types.items())
        raise ValueError(f"{kind.__name__} must be an object of {wanted}; got {repr(given)[:200]}")
    if "kind" in given:
        received(_Kind, json.loads(given["kind"]))
    if given.get("symptom", SYMPTOMS[0]) not in SYMPTOMS:
        raise ValueError(f"symptom must be one of {', '.join(SYMPTOMS)}; got {given['symptom'][:200]!r}")
    return kind(**given)


class Work(Protocol):
    """What workers do. An instance is sent to them."""

    def gpus(self) -> list[TuningGpu]:
        """Return the GPUs that this process sees. Raises an exception that says why there is none."""

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""

    def tune(self, text: str, gpu: str, tune_seconds: float, known: Sequence[FoundFault]) -> Measurement:
        """Return the choice for a problem on the GPU of a UUID, and faults; those that are known are not run again."""


class TuneHere:
    """The Work of `cudnnpy tune`: problems are measured on the worker's GPU, in a process of its own. Nothing is kept there."""

    def gpus(self) -> list[TuningGpu]:
        """Return the GPUs that this process sees."""
        return tuning_gpus()

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""
        return raw.version()

    def tune(self, text: str, gpu: str, tune_seconds: float, known: Sequence[FoundFault]) -> Measurement:
        """Return the measured choice for a problem. Raises ValueError and StartError."""
        if gpu not in _gpu_workers:
            _gpu_workers[gpu] = GpuWorker(gpu)
        return tune_on(_gpu_workers[gpu], text, tune_seconds, known)


def announce(work: Work) -> dict[str, Any]:
    """Return the Announcement of this worker as a dict."""
    gpus: list[TuningGpu] = []
    cudnn = 0
    try:
        gpus, cudnn = work.gpus(), work.cudnn()
        why = "" if gpus else "it sees no GPU"
    except Exception as error:
        why = one_line(error)
    return Announcement(_process(), __version__, cudnn, [gpu._asdict() for gpu in gpus], why)._asdict()


def tune(
    work: Work, process: str, text: str, gpu: str, tune_seconds: float, known: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Tune a problem, and return the Answer as a dict. `process` is the process that announced the GPU."""
    if process != _process():
        return Answer({}, [], is_restarted=True)._asdict()
    with _ONE_AT_A_TIME:
        try:
            found = work.tune(text, gpu, tune_seconds, [FoundFault(**one) for one in known])
            entry = {} if found.entry is None else found.entry.plain()
            return Answer(entry, [one._asdict() for one in found.faults], found.reason)._asdict()
        except Exception as error:  # a ValueError is the problem's, on every GPU; after others, another GPU is tried
            return Answer({}, [], one_line(error), isinstance(error, ValueError))._asdict()


def _process() -> str:
    return f"{os.getpid()}-{_PROCESS}"


def leave() -> None:
    """End this worker's process, whatever its threads do: its nanny, if it has one, starts another."""
    os._exit(1)


def version() -> str:
    """Return the version of cudnnpy, which the scheduler is asked for."""
    return __version__


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the first line of an error's message, or the error's name if it has none."""
    lines = str(error).strip().splitlines()
    return (lines[0].strip() if lines else type(error).__name__)[:most]
