"""Executables on the operands of a call in another order, and on parts of the workspace for results that it did not request."""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch.steps import Executable, Step, StepSequence


class ScratchBuffer(NamedTuple):
    """A part of the workspace for a result that the caller did not request."""

    size: int


def scratch_buffer(spec: TensorSpec) -> ScratchBuffer:
    """Return a part of the workspace that holds a tensor."""
    return ScratchBuffer(byte_extent(spec))


def with_implicit_operands(executable: Executable, sources: list[int | ScratchBuffer], count: int) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the sources."""
    if sources == [*range(count)]:
        return executable
    scratch = [source.size for source in sources if isinstance(source, ScratchBuffer)]
    of_scratch = iter(range(count, count + len(scratch)))
    indices = [source if isinstance(source, int) else next(of_scratch) for source in sources]
    return StepSequence([Step(executable, tuple(indices))], scratch)
