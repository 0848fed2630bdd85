"""Memory for operands that a call does not pass: constant buffers that live as long as a plan, and scratch buffers."""

from __future__ import annotations

import math
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._arrays import workspace as memory
from cudnnpy._arrays.driver_errors import synchronize
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.steps import Executable, Step, StepSequence
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


def scratch_buffer(spec: TensorSpec) -> ScratchBuffer:
    """Return a part of the workspace that holds a tensor."""
    return ScratchBuffer(byte_extent(spec))


def with_implicit_operands(executable: Executable, sources: OperandSources, count: int) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the sources."""
    if sources == [*range(count)]:
        return executable
    scratch = [source.size for source in sources if isinstance(source, ScratchBuffer)]
    constants = [source for source in sources if isinstance(source, ConstantBuffer)]
    of_scratch = iter(range(count, count + len(scratch)))
    of_constants = iter(range(count + len(scratch), count + len(scratch) + len(constants)))
    indices = [
        source if isinstance(source, int) else next(of_constants if isinstance(source, ConstantBuffer) else of_scratch)
        for source in sources
    ]
    return StepSequence([Step(executable, tuple(indices))], scratch, constants)
