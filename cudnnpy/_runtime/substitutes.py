"""Memory in place of operands that a call lacks: constants that live as long as a plan, and parts of the workspace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, extent
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.steps import Executable, aligned_size, sequential_launch
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.streams import synchronize
from cudnnpy.handle import Handle


class Constant:
    """Device memory that is filled with one number and lives as long as the object."""

    def __init__(self, spec: TensorSpec, value: float, call: Call) -> None:
        size = math.prod(spec.shape) * dtype_of(spec.dtype).itemsize
        self._memory = memory.allocate(size, call.device, call.stream)
        handle = Handle.default(call.device)
        handle.set_stream(call.stream)
        raw.check(fill(spec, value).bind(handle, (self._memory[0],), 0)(), "fill")
        synchronize(call.stream, call.device)  # other streams will read it
        self.address = self._memory[0]


class Spare(NamedTuple):
    """A part of the workspace for a result that was not asked for."""

    size: int


Slot = int | Constant | Spare
Slots = list[Slot]


class Supplied:
    """A launch with more addresses than operands: each is that of an operand, given by number, a Constant or a Spare."""

    def __init__(self, executable: Executable, slots: Sequence[Slot]) -> None:
        self._executable, self._slots = executable, tuple(slots)
        spare = sum(aligned_size(slot.size) for slot in self._slots if isinstance(slot, Spare))
        self.workspace_size = spare + executable.workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on the operands' addresses and those of the substitutes."""
        addresses = []
        for slot in self._slots:
            if isinstance(slot, Constant):
                addresses.append(slot.address)
            elif isinstance(slot, Spare):
                addresses.append(workspace)
                workspace += aligned_size(slot.size)
            else:
                addresses.append(pointers[slot])
        return sequential_launch([self._executable.bind(handle, tuple(addresses), workspace)], (self,))


def spare(spec: TensorSpec) -> Spare:
    """Return a part of the workspace that holds a tensor."""
    return Spare(extent(spec))


def supplied(executable: Executable, slots: Slots, count: int) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the slots."""
    return executable if slots == [*range(count)] else Supplied(executable, slots)
