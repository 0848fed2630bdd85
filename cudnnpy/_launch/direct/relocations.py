"""Relocations: the words of a captured launch's parameters that hold the address of an operand plus an addend.

They are found by comparing captures at several tuples of addresses, and every byte of the parameters must then be as the
relocations predict. Bytes that differ between captures at the very same addresses are uninitialized padding.
DESIGN.md has an example in bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import Array, c_uint64
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT

_MAX_ADDEND = 1 << 31  # bytes between the address in a parameter and the address of its operand
_LOW = (1 << 32) - 1  # the low half of a word
_KNOWN = bytes([0xFF]) + bytes(255)  # translates the differences of bytes into masks


class Relocation(NamedTuple):
    """A word of a kernel's parameters that holds the address of an operand plus an addend.

    It is the 8-byte word at the offset if `is_64_bit`, else the 4-byte word with the low 32 bits. Kernels whose
    parameters begin with a copy of an address have such halves in their padding.
    """

    is_64_bit: bool
    offset: int
    operand: int
    addend: int


def find_relocations(
    addresses: Addresses, repeats: Sequence[bytes], probes: Sequence[tuple[Addresses, bytes]]
) -> list[Relocation] | None:
    """Return the relocations of a kernel's parameters, or None if the captures contradict each other.

    Parameters
    ----------
    addresses : tuple of int
        The addresses of the operands and of the workspace.
    repeats : sequence of bytes
        The kernel's parameters in captures at these addresses.
    probes : sequence of (tuple of int, bytes)
        Other addresses, with the kernel's parameters in a capture at them.
    """
    first, known = repeats[0], _known_bytes(repeats)
    probe_addresses, probed = probes[0]
    relocations = list[Relocation]()
    # A word follows the operand by whose distance it has moved. In the first probe all distances differ.
    distances = [there - here for here, there in zip(addresses, probe_addresses, strict=True)]
    for index, (word, moved, mask) in enumerate(zip(*map(_words, (first, probed, known)), strict=True)):
        if not (word ^ moved) & mask:
            continue
        found = _relocations_of_word(8 * index, word, moved, mask, addresses, distances)
        if found is None:
            return None
        relocations += found
    for probe_addresses, probed in probes:
        differences = _number(_predicted(first, relocations, probe_addresses)) ^ _number(probed)
        if differences & _number(known):
            return None
    return relocations


def _relocations_of_word(
    offset: int, word: int, moved: int, mask: int, addresses: Addresses, distances: Sequence[int]
) -> list[Relocation] | None:
    """Return the relocation of a word that changed, or of each of its halves. None if it follows no operand, or several."""
    if mask == (1 << 64) - 1:
        operands = [
            operand
            for operand, (address, distance) in enumerate(zip(addresses, distances, strict=True))
            if moved - word == distance and abs(word - address) < _MAX_ADDEND
        ]
        if len(operands) == 1:
            return [Relocation(True, offset, operands[0], word - addresses[operands[0]])]
    relocations = []
    for shift in (0, 32):
        half, moved_half, half_mask = (value >> shift & _LOW for value in (word, moved, mask))
        if not (half ^ moved_half) & half_mask:
            continue
        operands = [operand for operand, distance in enumerate(distances) if not (moved_half - half - distance) & _LOW]
        if half_mask != _LOW or len(operands) != 1:
            return None
        relocations.append(Relocation(False, offset + shift // 8, operands[0], half - addresses[operands[0]] & _LOW))
    return relocations


def _known_bytes(repeats: Sequence[bytes]) -> bytes:
    """Return a mask of the bytes that are the same in all captures at the same addresses: 0xFF, else 0."""
    first, differences = _number(repeats[0]), 0
    for other in repeats[1:]:
        differences |= first ^ _number(other)
    return differences.to_bytes(len(repeats[0]), "little").translate(_KNOWN)


def _number(parameters: bytes) -> int:
    return int.from_bytes(parameters, "little")


def _words(parameters: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(parameters) // 8}Q", parameters)


def _predicted(first: bytes, relocations: Sequence[Relocation], addresses: Addresses) -> bytes:
    """Return the parameters at other addresses."""
    parameters = bytearray(first)
    for is_64_bit, offset, operand, addend in relocations:
        address = addresses[operand] + addend
        if is_64_bit:
            struct.pack_into("<Q", parameters, offset, address & (1 << 64) - 1)
        else:
            struct.pack_into("<I", parameters, offset, address & _LOW)
    return bytes(parameters)


def probe_addresses(addresses: Addresses) -> Iterator[Addresses]:
    """Yield tuples of addresses for captures: far apart and of different alignments. No kernel runs on them.

    They are multiples of 4096, odd multiples of 16, and a mixture just below a multiple of 2**32, in changing order. The
    workspace's addresses, the last ones, are odd multiples of its alignment instead. A null address remains null. In the first
    tuple each operand moves by another distance, also in the low 32 bits.
    """
    count = len(addresses)
    for number in range(3):
        probe = []
        for at, address in enumerate(addresses):
            # a multiple of 2**33 that no other operand and no other tuple has
            place = number * count + 1 + (at if number != 1 else count - 1 - at)
            start = (address >> 33) + (-place if address > 1 << 42 else place) << 33
            low = (
                (address & -4096) + 0x0123_7000 * (at + 1),
                0x0765_4010 + 0x0010_0220 * at,
                -0x10 * (2 + at % 15) - 0x1000 * at,
            )[number]
            if number and at == count - 1:
                low = low & -2 * WORKSPACE_ALIGNMENT | WORKSPACE_ALIGNMENT
            probe.append(start + (low & _LOW) if address else 0)
        yield tuple(probe)


# Writing the addresses of a launch

# Exceptions of the writer for an address that is not an integer of 64 bits. Some of the parameters are written then.
INVALID_ADDRESS_ERRORS = (TypeError, ValueError, OverflowError, struct.error)


def compile_relocator(
    words: Array[c_uint64], relocations: Iterable[Relocation], count: int
) -> Callable[[Addresses], None]:
    """Return a function that writes `count` addresses into the parameters of the kernels of a launch.

    Every direct launch at new addresses calls it. It is compiled: one call with all values takes about half of the time of a
    loop that writes them one by one.

    Parameters
    ----------
    words : array of c_uint64
        The parameters of all kernels. Bytes between two relocations are written as they are now.
    relocations : iterable of Relocation
        The relocations, with offsets from the start of `words`.
    count : int
        The number of addresses.
    """
    now, fields = bytes(words), sorted(relocations, key=lambda relocation: relocation.offset)
    begin = end = fields[0].offset
    formats, shape, constants = ["="], list[tuple[bool, int, bool]](), list[Any]()
    for is_64_bit, offset, operand, addend in fields:
        if offset > end:
            formats.append(f"{offset - end}s")
            constants.append(now[end:offset])
            shape.append((False, -1, True))
        formats.append("Q" if is_64_bit else "I")
        shape.append((is_64_bit, operand, addend != 0))
        if addend:
            constants.append(addend)
        end = offset + (8 if is_64_bit else 4)
    pack = struct.Struct("".join(formats)).pack_into
    write: Callable[[Addresses], None] = _maker(count, tuple(shape))(pack, words, begin, *constants)
    return write


@lru_cache(maxsize=256)
def _maker(count: int, shape: tuple[tuple[bool, int, bool], ...]) -> Any:
    """Return a function of the packing function, the parameters, their first offset and the constants that returns a writer.

    Each field is (whether it has 64 bits, the operand, whether it has an addend), or (False, -1, True) for bytes in between.
    Plans of one kernel share a shape, and compiling takes longer than the rest.
    """
    values, constants = list[str](), list[str]()
    for is_64_bit, operand, has_constant in shape:
        if has_constant:
            constants.append(f"c{len(constants)}")
        address = " + ".join([*([f"a{operand}"] if operand >= 0 else []), *(constants[-1:] if has_constant else [])])
        values.append(address if is_64_bit or operand < 0 else f"{address} & 0xFFFFFFFF")
    source = f"""
def make(pack, words, begin, {", ".join(constants)}):
    def write(addresses):
        {"".join(f"a{at}, " for at in range(count))} = addresses
        pack(words, begin, {", ".join(values)})
    return write
"""
    made: dict[str, Any] = {}
    exec(compile(source, f"{__file__}, parameters of {len(shape)} fields", "exec"), made)
    return made["make"]
