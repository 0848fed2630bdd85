"""The function that writes the addresses of a launch into the parameters of its kernels.

Every direct launch at new addresses runs it. It is made as code, since one call with all values takes about half of the time
of a loop that writes them one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from ctypes import Array, c_uint64

from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct.relocations import Move

# What the function raises for an address that is not an integer of 64 bits. Then some of the parameters are written.
NOT_ADDRESSES = (TypeError, ValueError, OverflowError, struct.error)


def writer(words: Array[c_uint64], found: Iterable[tuple[int, Move]], count: int) -> Callable[[Addresses], None]:
    """Return a function that writes what follows the addresses of a launch into the parameters of its kernels.

    Parameters
    ----------
    words : array of c_uint64
        The parameters of all kernels. What lies between two addresses is written as it is now.
    found : iterable of (int, Move)
        What follows the addresses, with the number of the first word of its kernel.
    count : int
        The number of addresses.
    """
    fields = sorted((8 * start + (8 if move.wide else 4) * move.number, move) for start, move in found)
    now, begin = bytes(words), fields[0][0]
    formats, values, end = ["="], [f"{begin}"], begin
    for at, move in fields:
        if at > end:
            formats.append(f"{at - end}s")
            values.append(repr(now[end:at]))
        formats.append("Q" if move.wide else "I")
        address = f"a{move.operand} + {move.distance}" if move.distance else f"a{move.operand}"
        values.append(address if move.wide else f"{address} & 0xFFFFFFFF")
        end = at + (8 if move.wide else 4)
    source = f"""
def make(pack, words):
    def write(pointers):
        {"".join(f"a{at}, " for at in range(count))} = pointers
        pack(words, {", ".join(values)})
    return write
"""
    made: dict[str, Callable[..., Callable[[Addresses], None]]] = {}
    exec(compile(source, f"{__file__}, parameters of {len(fields)} addresses", "exec"), made)
    return made["make"](struct.Struct("".join(formats)).pack_into, words)
