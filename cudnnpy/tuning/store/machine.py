"""The loaded cuDNN and the visible GPUs, which decide whether this process can use an entry."""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.cuda_python import cuda_python, gpu_facts
from cudnnpy.errors import LibraryError
from cudnnpy.tuning.store.entry import Key


class Machine(NamedTuple):
    """The release of cuDNN, and the name, compute capability and multiprocessors of each GPU; None if it is not known."""

    cudnn: int | None
    gpus: frozenset[tuple[str, str, int]] | None

    def accepts(self, key: Key) -> bool:
        """Return whether an entry of a key can be used here. Unknown parts of the machine are not compared."""
        gpu = key.gpu, key.capability, key.multiprocessors
        return self.cudnn in (None, key.cudnn) and (self.gpus is None or gpu in self.gpus)


def this_machine() -> Machine:
    """Return the machine of this process. Without a cuDNN or without a GPU, that part is not known."""
    try:
        cudnn = raw.version()
    except LibraryError:
        cudnn = None
    return Machine(cudnn, _gpus())


def _gpus() -> frozenset[tuple[str, str, int]] | None:
    try:
        error, count = cuda_python("bindings.runtime").cudaGetDeviceCount()
    except (LibraryError, RuntimeError):  # no cuda-python, no driver
        return None
    if error or not count:
        return None
    return frozenset(map(gpu_facts, range(count)))
