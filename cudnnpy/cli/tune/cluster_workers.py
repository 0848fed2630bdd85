"""The workers of a Dask cluster, and the GPU that each of them uses, for `cudnnpy tune --dask`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cudnnpy._version import __version__
from cudnnpy.cli.errors import UsageError
from cudnnpy.cli.tune.tune_problem import TuningGpu, first_line


class ClusterError(UsageError):
    """The cluster cannot be used. The message is one line."""


@dataclass(eq=False)
class DaskGpu:
    """A GPU and the worker that uses it."""

    address: str
    process: str  # that announced the GPU
    gpu: TuningGpu
    number: int  # of the GPU in this cluster, for people
    task: Any = None  # that runs on it
    future: Any = None  # of the task


class WorkerRegistry:
    """The workers that announced themselves. Each GPU is assigned to one of them. All must have the release `cudnn`."""

    def __init__(self, cudnn: int) -> None:
        self.gpus: dict[str, DaskGpu] = {}  # by the address of the worker, like the others
        self.unusable: dict[str, str] = {}  # reasons
        self.mismatched: dict[str, str] = {}  # unusable workers that have another version of cudnnpy or cuDNN
        self._announced: dict[str, tuple[str, list[TuningGpu]]] = {}  # the process, and the GPUs that it sees
        self._numbers: dict[str, int] = {}  # of GPUs, by UUID
        self._cudnn = cudnn

    def without_gpu(self) -> list[str]:
        """Return the workers without a GPU of their own."""
        return sorted(self._announced.keys() - self.gpus.keys())

    def busy(self) -> list[DaskGpu]:
        """Return the GPUs that have a task."""
        return [gpu for gpu in self.gpus.values() if gpu.task is not None]

    def keep_only(self, present: Iterable[str]) -> list[DaskGpu]:
        """Remove the workers that are not present. Return their GPUs."""
        gone = (self._announced.keys() | self.unusable.keys()) - set(present)
        lost = [self.gpus.pop(address) for address in sorted(gone & self.gpus.keys())]
        for address in gone:
            self._announced.pop(address, None)
            self.unusable.pop(address, None)
            self.mismatched.pop(address, None)
        return lost

    def unknown(self, present: Iterable[str]) -> list[str]:
        """Return the workers that have not announced themselves."""
        return sorted(set(present) - self._announced.keys() - self.unusable.keys())

    def add(self, announcements: Mapping[str, Any]) -> None:
        """Add workers by their announcements (dask_worker.announce), or by the errors of those that could not announce."""
        for address, announcement in announcements.items():
            if isinstance(announcement, OSError):  # the worker was lost meanwhile
                continue
            if isinstance(announcement, Exception):
                self._reject(address, f"cudnnpy {__version__}", first_line(announcement))
            elif announcement["cudnnpy"] != __version__:
                self._reject(address, f"cudnnpy {__version__}", announcement["cudnnpy"])
            elif announcement["reason"]:
                self.unusable[address] = announcement["reason"]
            elif announcement["cudnn"] != self._cudnn:
                self._reject(address, f"cuDNN {self._cudnn}, as here", str(announcement["cudnn"]))
            else:
                gpus = [TuningGpu(**gpu) for gpu in announcement["gpus"]]
                self._announced[address] = announcement["process"], gpus
        self._assign_gpus()

    def _reject(self, address: str, required: str, actual: str) -> None:
        self.unusable[address] = self.mismatched[address] = f"worker {address} must have {required}; got {actual}"

    def _assign_gpus(self) -> None:
        """Assign a free GPU to each worker without one, first to the workers that see the fewest GPUs."""
        for address in sorted(self.without_gpu(), key=lambda address: (len(self._announced[address][1]), address)):
            process, gpus = self._announced[address]
            assigned = {gpu.gpu.uuid for gpu in self.gpus.values()}
            free = next((gpu for gpu in gpus if gpu.uuid not in assigned), None)
            if free is not None:
                number = self._numbers.setdefault(free.uuid, len(self._numbers))
                self.gpus[address] = DaskGpu(address, process, free, number)

    def release_gpu(self, gpu: DaskGpu) -> None:
        """Take the GPU from its worker, which has to announce itself again."""
        if self.gpus.get(gpu.address) is gpu:
            del self.gpus[gpu.address]
            del self._announced[gpu.address]
