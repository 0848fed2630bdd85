"""The check of a tuple of addresses, in a few integer operations where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_

Pointers = tuple[int, ...]


class AddressCheck:
    """The check of the addresses of operands and of a workspace for one executable.

    It calls `explain` only for addresses that may be wrong: a null one, one that is not a multiple of `alignment`, and
    a result or a workspace whose memory overlaps another operand's. `explain(operands, workspace)` looks at each of them
    and raises ValueError, or accepts them.

    Parameters
    ----------
    sizes : sequence of int
        The bytes of each operand.
    results : iterable of int
        The numbers of the operands that are written.
    explain : callable
        The whole check.
    alignment : int
        The largest alignment of an operand in bytes, a power of two; 1 if alignment is not checked.
    space : int
        The bytes of workspace; 0 if the workspace is not checked.
    """

    __slots__ = ("_checks_space", "_explain", "_low_bits", "_pairs")

    def __init__(
        self,
        sizes: Sequence[int],
        results: Iterable[int],
        explain: Callable[[Sequence[int], int], None],
        alignment: int = 1,
        space: int = 0,
    ) -> None:
        self._explain, self._low_bits, self._checks_space = explain, alignment - 1, bool(space)
        written, every = list(results), list(sizes)
        if space:
            written.append(len(every))
            every.append(space)
        self._pairs = [
            (result, other, every[result], -every[other])
            for result in written
            for other in range(len(every))
            if other != result and not (other in written and other < result)
        ]

    def __call__(self, operands: Pointers, workspace: int) -> None:
        """Raise ValueError for invalid addresses."""
        pointers = (*operands, workspace) if self._checks_space else operands
        try:
            suspect = 0 in pointers or reduce(or_, pointers, 0) & self._low_bits
            if not suspect:
                for result, other, size, before in self._pairs:
                    if before < pointers[other] - pointers[result] < size:
                        break
                else:
                    return
        except (TypeError, IndexError):
            pass  # not integers, or too few of them
        self._explain(operands, workspace)
