"""What follows the addresses of a launch is written, and nothing else changes."""

from __future__ import annotations

import struct
from ctypes import c_uint64
from typing import Any

import numpy as np
import pytest
from cudnnpy._launch.direct.relocation_writer import NOT_ADDRESSES, writer
from cudnnpy._launch.direct.relocations import Move
from hypothesis import given
from hypothesis import strategies as st

WORDS, COUNT = 12, 3
addresses = st.tuples(*[st.integers(1 << 32, 1 << 47)] * COUNT)


@st.composite
def parameters(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, Move]]]:
    """The parameters of kernels, and what follows the addresses: words, or one half of a word."""
    values = draw(st.binary(min_size=8 * WORDS, max_size=8 * WORDS))
    found = []
    for word in draw(st.lists(st.integers(0, WORDS - 1), min_size=1, unique=True)):
        start = draw(st.integers(0, word))
        half = draw(st.sampled_from([None, 0, 1]))
        number = word - start if half is None else 2 * (word - start) + half
        found.append((start, Move(half is None, number, draw(st.integers(0, COUNT - 1)), draw(st.integers(-99, 99)))))
    return values, found


@given(parameters(), addresses, addresses)
def test_each_field_is_written_and_nothing_else(
    drawn: tuple[bytes, list[tuple[int, Move]]], here: tuple[int, ...], there: tuple[int, ...]
) -> None:
    values, found = drawn
    words = (c_uint64 * WORDS).from_buffer_copy(values)
    write = writer(words, found, COUNT)
    assert bytes(words) == values
    for pointers in (here, there):
        write(pointers)
        wanted = bytearray(values)
        for start, move in found:
            address = pointers[move.operand] + move.distance
            if move.wide:
                struct.pack_into("Q", wanted, 8 * (start + move.number), address)
            else:
                struct.pack_into("I", wanted, 8 * start + 4 * move.number, address & 0xFFFF_FFFF)
        assert bytes(words) == wanted


def test_numpy_integers_are_addresses() -> None:
    words = (c_uint64 * 2)()
    found = [(0, Move(True, 0, 0, 64)), (0, Move(True, 1, 1, 0))]
    writer(words, found, 2)((np.int64(1 << 40), np.uint64(1 << 63)))  # type: ignore[arg-type]
    assert list(words) == [(1 << 40) + 64, 1 << 63]


@pytest.mark.parametrize("bad", [16.0, "16", None, 1 << 64, -100])
@pytest.mark.parametrize("distance", [0, 8])
def test_what_is_not_an_address_raises(bad: Any, distance: int) -> None:
    write = writer((c_uint64 * 2)(), [(0, Move(True, 0, 0, distance)), (0, Move(True, 1, 1, 0))], 2)
    for pointers in ((bad, 16), (16,), (16, 16, 16)):
        with pytest.raises(NOT_ADDRESSES):
            write(pointers)
