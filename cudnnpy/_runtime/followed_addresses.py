"""Which parameters of a captured launch follow the addresses of its operands.

Which bytes of a kernel's parameters are addresses is not documented, so it is found out for each plan. Captures of the
launch at several tuples of addresses, which launch nothing, show which 8-byte words follow which address; those words,
and everything else, must then be as predicted, bit for bit, in further captures. Bytes that differ between captures at
the very same addresses are uninitialized padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import unpack
from typing import NamedTuple

from cudnnpy._launch.address_validation import Addresses

_NEAR = 1 << 31  # bytes between an address in a parameter and that of its operand
_HALF = (1 << 32) - 1
SPACE_ALIGNMENT = 256  # of the workspace: some engines align it themselves, to as many bytes


class Move(NamedTuple):
    """What follows an address in a kernel's parameters: the address of an operand and a distance.

    It is the word of 8 bytes with this number, or, if not `wide`, the half word of 4 bytes with this number, which has
    the low bits. Kernels whose parameters begin with a copy of an address have such halves in their padding.
    """

    wide: bool
    number: int
    operand: int
    distance: int


def moves(pointers: Addresses, same: Sequence[bytes], others: Sequence[tuple[Addresses, bytes]]) -> list[Move] | None:
    """Return what follows the addresses in a kernel's parameters. None if the captures do not agree.

    `same` are its parameters in captures at the addresses `pointers`, `others` those at other addresses.
    """
    count = len(same[0]) // 4
    first = _halves(same[0])
    known = [_HALF] * count  # the bits of whole bytes that are the same in captures at the same addresses
    for values in same[1:]:
        known = [mask & _same_bytes(*pair) for mask, *pair in zip(known, first, _halves(values), strict=True)]
    elsewhere, values = others[0]
    there = _halves(values)
    found = list[Move]()
    for low in range(0, count, 2):
        changed = [at for at in (low, low + 1) if (first[at] ^ there[at]) & known[at]]
        if not changed:
            continue
        if known[low] == known[low + 1] == _HALF:
            one, other = (halves[low] | halves[low + 1] << 32 for halves in (first, there))
            operands = [
                operand
                for operand, (here, at) in enumerate(zip(pointers, elsewhere, strict=True))
                if other - one == at - here and abs(one - here) < _NEAR
            ]
            if len(operands) == 1:
                found.append(Move(True, low // 2, operands[0], one - pointers[operands[0]]))
                continue
        for half in changed:
            operands = [
                operand
                for operand, (here, at) in enumerate(zip(pointers, elsewhere, strict=True))
                if not (there[half] - first[half] - at + here) & _HALF
            ]
            if known[half] != _HALF or len(operands) != 1:
                return None
            found.append(Move(False, half, operands[0], first[half] - pointers[operands[0]] & _HALF))
    for elsewhere, values in others:
        predicted = list(first)
        for move in found:
            _put(predicted, move, elsewhere)
        if any((one ^ other) & mask for one, other, mask in zip(predicted, _halves(values), known, strict=True)):
            return None
    return found


def _halves(values: bytes) -> tuple[int, ...]:
    return unpack(f"{len(values) // 4}I", values)


def _same_bytes(one: int, other: int) -> int:
    """Return the bits of the bytes that are the same in two half words."""
    return sum(0xFF << shift for shift in (0, 8, 16, 24) if not (one ^ other) >> shift & 0xFF)


def _put(halves: list[int], move: Move, pointers: Addresses) -> None:
    address = pointers[move.operand] + move.distance
    if move.wide:
        halves[2 * move.number], halves[2 * move.number + 1] = address & _HALF, address >> 32
    else:
        halves[move.number] = address & _HALF


def addresses_elsewhere(pointers: Addresses) -> Iterator[Addresses]:
    """Yield tuples of addresses for captures: far apart and of different alignments. No kernel runs on them.

    They are multiples of 4096, odd multiples of 16, and a mixture just below a multiple of 2**32, in changing order; those of
    the workspace, the last, are odd multiples of its alignment instead. A null address remains null. In the first tuple
    each moves by another distance, also in the low 32 bits, so that a word follows only one of them.
    """
    count = len(pointers)
    for number in range(3):
        found = []
        for at, pointer in enumerate(pointers):
            place = number * count + 1 + (at if number != 1 else count - 1 - at)
            start = (pointer >> 33) + (-place if pointer > 1 << 42 else place) << 33
            low = (
                (pointer & -4096) + 0x0123_7000 * (at + 1),
                0x0765_4010 + 0x0010_0220 * at,
                -0x10 * (2 + at % 15) - 0x1000 * at,
            )[number]
            if number and at == count - 1:
                low = low & -2 * SPACE_ALIGNMENT | SPACE_ALIGNMENT
            found.append(start + (low & _HALF) if pointer else 0)
        yield tuple(found)
