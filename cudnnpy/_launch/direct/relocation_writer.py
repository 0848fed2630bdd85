"""Write the addresses of a launch into the parameters of its kernels.

Every direct launch at new addresses does so. The function is compiled: one call with all values takes about half of the time of
a loop that writes them one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from ctypes import Array, c_uint64
from functools import lru_cache
from typing import Any

from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct.relocations import Relocation

# Exceptions of the writer for an address that is not an integer of 64 bits. Some of the parameters are written then.
INVALID_ADDRESS_ERRORS = (TypeError, ValueError, OverflowError, struct.error)


def compile_relocator(
    words: Array[c_uint64], relocations: Iterable[Relocation], count: int
) -> Callable[[Addresses], None]:
    """Return a function that writes `count` addresses into the parameters of the kernels of a launch.

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
