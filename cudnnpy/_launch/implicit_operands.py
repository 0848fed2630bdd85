"""Memory for operands that a call does not pass: constant buffers that live as long as a plan, and scratch buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.steps import BoundLaunch, Executable, aligned_size, is_relocatable, sequential_launch
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.streams import synchronize
from cudnnpy.handle import Handle


class ConstantBuffer:
    """Device memory that is filled with one number and lives as long as the object."""

    def __init__(self, spec: TensorSpec, value: float, call: Call) -> None:
        size = math.prod(spec.shape) * dtype_of(spec.dtype).itemsize
        self._memory = memory.allocate_from_pool(size, call.device, call.stream)
        self.address = self._memory[0]
        handle = Handle.default(call.device)
        handle.set_stream(call.stream)
        raw.check(fill(spec, value).bind(handle, (self.address,), 0)(), "fill")
        synchronize(call.stream, call.device)  # other streams will read it


class ScratchBuffer(NamedTuple):
    """A part of the workspace for a result that the caller did not request."""

    size: int


OperandSource = int | ConstantBuffer | ScratchBuffer
OperandSources = list[OperandSource]


class WithImplicitOperands:
    """An executable with implicit operands.

    Each of its addresses belongs to a caller's operand, given by its index, to a constant buffer, or to a scratch buffer.
    """

    def __init__(self, executable: Executable, sources: Sequence[OperandSource]) -> None:
        self.executable, self._sources = executable, tuple(sources)
        scratch = sum(aligned_size(source.size) for source in self._sources if isinstance(source, ScratchBuffer))
        self.workspace_size = scratch + executable.workspace_size

    @property
    def is_relocatable(self) -> bool:
        """Whether the same kernels serve all addresses of the caller's operands."""
        return is_relocatable(self.executable)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on the addresses of the caller's operands and of the buffers."""
        completed = []
        for source in self._sources:
            if isinstance(source, ConstantBuffer):
                completed.append(source.address)
            elif isinstance(source, ScratchBuffer):
                completed.append(workspace)
                workspace += aligned_size(source.size)
            else:
                completed.append(addresses[source])
        return sequential_launch([self.executable.bind(handle, tuple(completed), workspace)], (self,))


def scratch_buffer(spec: TensorSpec) -> ScratchBuffer:
    """Return a part of the workspace that holds a tensor."""
    return ScratchBuffer(byte_extent(spec))


def with_implicit_operands(executable: Executable, sources: OperandSources, count: int) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the sources."""
    return executable if sources == [*range(count)] else WithImplicitOperands(executable, sources)
