"""Which workers a Dask cluster has, and which GPU each of them is to use, for `cudnnpy tune --dask`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cudnnpy._version import __version__
from cudnnpy.cli.tune.dask_worker import Announcement, one_line, received
from cudnnpy.cli.tune.tune_problem import TuningGpu


class ClusterError(Exception):
    """The cluster cannot be used. The message is one line."""


@dataclass(eq=False)
class Member:
    """A worker with the GPU that it was given."""

    address: str
    process: str  # as it announced itself
    gpu: TuningGpu
    number: int  # of the GPU in this cluster, for people
    task: Any = None  # what it is working on, as its employer notes it
    future: Any = None
    since: float = 0.0


class Roster:
    """The workers that announced themselves. Each GPU is given to one of them.

    Parameters
    ----------
    cudnn : int
        The release of cuDNN that each worker must have.
    """

    def __init__(self, cudnn: int) -> None:
        self.members: dict[str, Member] = {}  # by address, as all others
        self.useless: dict[str, str] = {}  # why they cannot be used
        self.refused: dict[str, str] = {}  # those among them that have another version, or send something else
        self._announced: dict[str, tuple[str, list[TuningGpu]]] = {}  # the process, and the GPUs that it sees
        self._numbers: dict[str, int] = {}  # of GPUs, by UUID
        self._cudnn = cudnn

    def spare(self) -> list[str]:
        """Return the workers without a GPU of their own."""
        return sorted(self._announced.keys() - self.members.keys())

    def busy(self) -> list[Member]:
        """Return the members that are working."""
        return [member for member in self.members.values() if member.task is not None]

    def keep(self, present: Iterable[str]) -> list[Member]:
        """Forget the workers that are no longer there. Return the members among them."""
        gone = (self._announced.keys() | self.useless.keys()) - set(present)
        lost = [self.members.pop(address) for address in sorted(gone & self.members.keys())]
        for address in gone:
            self._announced.pop(address, None)
            self.useless.pop(address, None)
            self.refused.pop(address, None)
        return lost

    def unknown(self, present: Iterable[str]) -> list[str]:
        """Return the workers that have not announced themselves."""
        return sorted(set(present) - self._announced.keys() - self.useless.keys())

    def add(self, announcements: Mapping[str, Any]) -> None:
        """Note what workers announced (tuning_worker.announce), or the errors of those that could not."""
        for address, one in announcements.items():
            if isinstance(one, OSError):  # it was lost meanwhile
                continue
            if isinstance(one, Exception):
                self._refuse(address, f"cudnnpy {__version__}", one_line(one))
                continue
            try:
                announced = received(Announcement, one)
                gpus = [received(TuningGpu, gpu) for gpu in announced.gpus]
            except ValueError as error:
                self._refuse(address, f"cudnnpy {__version__}", f"another announcement: {error}")
                continue
            if announced.cudnnpy != __version__:
                self._refuse(address, f"cudnnpy {__version__}", announced.cudnnpy)
            elif announced.why:
                self.useless[address] = announced.why
            elif announced.cudnn != self._cudnn:
                self._refuse(address, f"cuDNN {self._cudnn}, as here", str(announced.cudnn))
            else:
                self._announced[address] = announced.process, gpus
        self._give_gpus()

    def _refuse(self, address: str, wanted: str, found: str) -> None:
        self.useless[address] = self.refused[address] = f"worker {address} must have {wanted}; got {found}"

    def _give_gpus(self) -> None:
        """Give a GPU that no other worker has to each worker without one, first to those that see the fewest."""
        for address in sorted(self.spare(), key=lambda address: (len(self._announced[address][1]), address)):
            process, gpus = self._announced[address]
            taken = {member.gpu.uuid for member in self.members.values()}
            for gpu in gpus:
                if gpu.uuid not in taken:
                    number = self._numbers.setdefault(gpu.uuid, len(self._numbers))
                    self.members[address] = Member(address, process, gpu, number)
                    break

    def dismiss(self, member: Member) -> None:
        """Take the GPU from a worker, which has to announce itself again."""
        if self.members.get(member.address) is member:
            del self.members[member.address]
            del self._announced[member.address]
