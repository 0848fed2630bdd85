"""Executables on the operands of a call in another order, and on parts of the workspace for results that it did not request."""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._launch.steps import Executable, Step, StepSequence


class ScratchBuffer(NamedTuple):
    """A part of the workspace for a result that the caller did not request, or for an input that the caller left out."""

    size: int
    filled: Executable | None = None  #: what writes the input


def with_implicit_operands(executable: Executable, sources: list[int | ScratchBuffer], count: int) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the sources."""
    if sources == [*range(count)]:
        return executable
    scratch = [source for source in sources if isinstance(source, ScratchBuffer)]
    of_scratch = iter(range(count, count + len(scratch)))
    indices = [source if isinstance(source, int) else next(of_scratch) for source in sources]
    fills = [Step(one.filled, (at,)) for at, one in enumerate(scratch, count) if one.filled is not None]
    return StepSequence([*fills, Step(executable, tuple(indices))], [one.size for one in scratch])
