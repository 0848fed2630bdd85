"""What runs in the workers of a Dask cluster for `cudnnpy tune --dask`: a worker tells its GPUs, and tunes one problem.

Messages travel as lists, dicts, numbers and strings, so that they can be read whatever version a worker has. `received` is
the one way to read them.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any, NamedTuple, Protocol, TypeVar, get_origin, get_type_hints
from uuid import uuid4

from cudnnpy._store.entry import Entry
from cudnnpy._version import __version__
from cudnnpy.availability import UnavailableError, why_unavailable
from cudnnpy.errors import NoAlgorithmError

# A worker that its nanny has started again has another one, and may have the same address.
_PROCESS = uuid4().hex
_ONE_AT_A_TIME = threading.Lock()  # for workers of several threads that several commands use

# What a problem is the cause of, on every GPU. After other errors, another GPU is tried.
_FINAL = (NoAlgorithmError, ValueError, TypeError)


class SeenGpu(NamedTuple):
    """A GPU that a worker sees: its UUID, its ordinal in that worker, and its kind as tuning.kinds_of_gpus returns it."""

    identity: str
    device: int
    kind: str


class Announcement(NamedTuple):
    """A worker's process, its versions, and its GPUs, or why there are none."""

    process: str
    cudnnpy: str
    cudnn: int
    gpus: list[Any]
    why: str


class Answer(NamedTuple):
    """The entry for a problem as Entry.plain returns it, or {} and the reason why there is none."""

    entry: dict[str, Any]
    failure: str = ""
    is_final: bool = False  # the problem fails on every GPU
    is_well: bool = True  # the GPU can still be used
    is_restarted: bool = False  # the process is not the one that announced the GPU, and does nothing


class _Kind(NamedTuple):
    deviceName: str
    deviceVer: int
    multiProcessorCount: int


_Message = TypeVar("_Message", Announcement, Answer, SeenGpu, _Kind)


def received(kind: type[_Message], given: object) -> _Message:
    """Return the message of a dict. Raises ValueError unless it has every field of that kind, in its type, and no other."""
    types = {name: get_origin(hint) or hint for name, hint in get_type_hints(kind).items()}
    if not isinstance(given, dict) or {name: type(value) for name, value in given.items()} != types:
        wanted = ", ".join(f"{name} ({one.__name__})" for name, one in types.items())
        raise ValueError(f"{kind.__name__} must be an object of {wanted}; got {repr(given)[:200]}")
    if "kind" in given:
        received(_Kind, json.loads(given["kind"]))
    return kind(**given)


class Work(Protocol):
    """What workers do. An instance is sent to them."""

    def gpus(self) -> list[SeenGpu]:
        """Return the GPUs that this process sees. Raises an exception that says why there is none."""

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""

    def tune(self, text: str, device: int, tune_seconds: float) -> Entry:
        """Return the choice for a problem on a GPU."""

    def check(self, device: int) -> None:
        """Raise if this process can no longer use a GPU. It is called after an error."""


class TuneHere:
    """The Work of `cudnnpy tune`: problems are measured on the worker's GPU. Nothing is kept there."""

    def gpus(self) -> list[SeenGpu]:
        """Return the GPUs that this process sees."""
        why = why_unavailable()
        if why is not None:
            raise UnavailableError(why)
        from cuda.core import Device

        from cudnnpy.cli.tuning import kinds_of_gpus

        return [SeenGpu(str(Device(device).uuid), device, kind) for device, kind in enumerate(kinds_of_gpus())]

    def cudnn(self) -> int:
        """Return the release of cuDNN that this process has."""
        from cudnnpy import raw

        return raw.version()

    def tune(self, text: str, device: int, tune_seconds: float) -> Entry:
        """Return the measured choice for a problem."""
        from cudnnpy import store
        from cudnnpy.cli.tuning import tune_one

        store.use("")  # what earlier problems left, in this process or in a file, is not what was asked for
        return tune_one(text, device, tune_seconds)

    def check(self, device: int) -> None:
        """Raise if the CUDA context of the GPU is lost."""
        from cuda.core import Device

        on_device = Device(device)
        on_device.set_current()
        on_device.sync()


def announce(work: Work) -> dict[str, Any]:
    """Return the Announcement of this worker as a dict."""
    gpus: list[SeenGpu] = []
    cudnn = 0
    try:
        gpus, cudnn = work.gpus(), work.cudnn()
        why = "" if gpus else "it sees no GPU"
    except Exception as error:
        why = one_line(error)
    process = f"{os.getpid()}-{_PROCESS}"
    return Announcement(process, __version__, cudnn, [gpu._asdict() for gpu in gpus], why)._asdict()


def tune(work: Work, process: str, text: str, device: int, tune_seconds: float) -> dict[str, Any]:
    """Tune a problem, and return the Answer as a dict. `process` is the process that announced the GPU."""
    if process != f"{os.getpid()}-{_PROCESS}":
        return Answer({}, is_restarted=True)._asdict()
    with _ONE_AT_A_TIME:
        try:
            return Answer(work.tune(text, device, tune_seconds).plain())._asdict()
        except Exception as error:
            is_final, failure = isinstance(error, _FINAL), one_line(error)
        try:
            work.check(device)
            is_well = True
        except Exception:
            is_well = False
    return Answer({}, failure, is_final and is_well, is_well)._asdict()


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
