"""Validate the addresses of a launch: not null, aligned, and results that overlap no other operand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from cudnnpy._checks.option_values import check_integer

Addresses = tuple[int, ...]

# Takes the addresses of the operands and of the workspace, and raises ValueError if they are invalid.
AddressCheck = Callable[[Addresses, int], None]


def address_check(
    sizes: Sequence[int],
    results: Iterable[int],
    explain: Callable[[Sequence[int], int], None],
    alignment: int = 1,
    space: int = 0,
) -> AddressCheck:
    """Return the check of the addresses of operands and of a workspace for one executable.

    The check calls `explain(operands, workspace)`, which raises ValueError or accepts the addresses, only for addresses that
    may be invalid: one that is not an int, a null one, one that is not a multiple of `alignment`, and a result or a
    workspace whose memory overlaps another operand's. It raises TypeError for an address that is not an integer.

    Parameters
    ----------
    sizes : sequence of int
        The bytes of each operand.
    results : iterable of int
        The indices of the operands that are written.
    explain : callable
        The complete check, which names the invalid operand.
    alignment : int
        The largest alignment of an operand in bytes, a power of two; 1 if alignment is not checked.
    space : int
        The bytes of workspace; 0 if the workspace is not checked.
    """
    lengths = *sizes, space
    negative = (-length for length in lengths)
    check: AddressCheck = _maker(len(sizes), tuple(results), bool(space))(explain, alignment - 1, *lengths, *negative)
    return check


@lru_cache(maxsize=1024)
def _maker(count: int, results: tuple[int, ...], checks_space: bool) -> Any:
    """Return a function of `explain`, of the bits that must be 0, of the sizes and of their negatives, that returns a check.

    Every launch at new addresses is checked. One expression over local variables takes half of the time of a loop.
    """
    names = [f"a{at}" for at in range(count)]
    operands, written = "".join(f"{name}, " for name in names), list(results)
    if checks_space:
        written.append(count)
        names.append("space")
    apart = [
        f"not m{other} < {names[other]} - {names[result]} < n{result}"
        for result in written
        for other in range(len(names))
        if other != result and not (other in written and other < result)
    ]
    bits = " | ".join(names) or "0"  # differences of unsigned NumPy integers wrap around: they go to `explain`
    valid = " and ".join([*names, f"type(every := {bits}) is int and not every & bits", *apart])
    sizes = "".join(f", {sign}{at}" for sign in "nm" for at in range(count + 1))
    source = f"""
def make(explain, bits{sizes}):
    def check(operands, space):
        try:
            ({operands}) = operands
            if {valid}:
                return
        except (TypeError, ValueError):
            pass  # not integers, or not as many of them
        explain(operands, space)
        for address in (*operands, space):  # a float may equal the address of a launch before
            check_integer("addresses", address, 0)
    return check
"""
    made: dict[str, Any] = {"check_integer": check_integer}
    exec(compile(source, f"{__file__}, check of {count} addresses", "exec"), made)
    return made["make"]
