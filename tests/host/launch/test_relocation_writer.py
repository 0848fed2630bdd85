"""The relocations of a launch are written, and nothing else changes."""

from __future__ import annotations

import struct
from ctypes import c_uint64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnnpy._launch.direct.relocations import INVALID_ADDRESS_ERRORS, Relocation, compile_relocator

WORDS, COUNT = 12, 3
addresses = st.tuples(*[st.integers(1 << 32, 1 << 47)] * COUNT)


@st.composite
def parameters(draw: st.DrawFn) -> tuple[bytes, list[Relocation]]:
    """The parameters of kernels, and their relocations: words, or one half of a word."""
    values = draw(st.binary(min_size=8 * WORDS, max_size=8 * WORDS))
    found = []
    for word in draw(st.lists(st.integers(0, WORDS - 1), min_size=1, unique=True)):
        half = draw(st.sampled_from([None, 0, 4]))
        operand, addend = draw(st.integers(0, COUNT - 1)), draw(st.integers(-99, 99))
        found.append(Relocation(half is None, 8 * word + (half or 0), operand, addend))
    return values, found


@given(parameters(), addresses, addresses)
def test_each_relocation_is_written_and_nothing_else(
    drawn: tuple[bytes, list[Relocation]], here: tuple[int, ...], there: tuple[int, ...]
) -> None:
    values, relocations = drawn
    words = (c_uint64 * WORDS).from_buffer_copy(values)
    write = compile_relocator(words, relocations, COUNT)
    assert bytes(words) == values
    for pointers in (here, there):
        write(pointers)
        wanted = bytearray(values)
        for is_64_bit, offset, operand, addend in relocations:
            address = pointers[operand] + addend
            struct.pack_into(
                *(("Q", wanted, offset, address) if is_64_bit else ("I", wanted, offset, address & 0xFFFF_FFFF))
            )
        assert bytes(words) == wanted


def test_two_launches_of_one_shape_have_their_own_constants() -> None:
    """The code of the writer is shared, the parameters and the addends are not."""
    made = []
    for addend in (8, 64):
        words = (c_uint64 * 3)(0, addend, 0)
        relocations = [Relocation(True, 0, 0, addend), Relocation(True, 16, 1, 0)]
        made.append((words, compile_relocator(words, relocations, 2)))
    for _, write in made:
        write((1 << 40, 1 << 41))
    assert [list(words) for words, _ in made] == [[(1 << 40) + n, n, 1 << 41] for n in (8, 64)]


@pytest.mark.parametrize("bad", [16.0, "16", None, 1 << 64, -100])
@pytest.mark.parametrize("addend", [0, 8])
def test_an_invalid_address_raises(bad: Any, addend: int) -> None:
    write = compile_relocator((c_uint64 * 2)(), [Relocation(True, 0, 0, addend), Relocation(True, 8, 1, 0)], 2)
    for pointers in ((bad, 16), (16,), (16, 16, 16)):
        with pytest.raises(INVALID_ADDRESS_ERRORS):
            write(pointers)
