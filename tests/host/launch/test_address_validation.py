"""The quick check of addresses accepts and rejects the same addresses as the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudnnpy._launch.address_validation import address_check

SIZES = 64, 32, 128  # of two inputs and a result, in bytes


class AskedError(Exception):
    """The whole check was asked."""


def asked(operands: Sequence[int], workspace: int) -> NoReturn:
    raise AskedError


def overlap(start: int, size: int, other: int, length: int) -> bool:
    return other < start + size and start < other + length


@given(st.tuples(*[st.integers(0, 40)] * 3), st.integers(0, 40), st.sampled_from([0, 48]))
def test_what_may_be_wrong_is_asked_about_and_nothing_else(places: Any, at: int, space: int) -> None:
    pointers, workspace = tuple(8 * place for place in places), 8 * at
    check = address_check(SIZES, [2], asked, 16, space)
    x, w, y = zip(pointers, SIZES, strict=True)
    wrong = any(not pointer or pointer % 16 for pointer in pointers) or overlap(*y, *x) or overlap(*y, *w)
    if space:
        wrong = wrong or not workspace or workspace % 16 > 0
        wrong = wrong or any(overlap(workspace, space, *operand) for operand in (x, w, y))
    if wrong:
        with pytest.raises(AskedError):
            check(pointers, workspace)
    else:
        check(pointers, workspace)


@given(st.tuples(*[st.integers(1, 40)] * 3))
def test_addresses_that_are_numpy_integers_are_checked_alike(places: Any) -> None:
    """Their differences wrap around."""
    x, w, y = (16 * place for place in places)
    wrong = overlap(y, SIZES[2], x, SIZES[0]) or overlap(y, SIZES[2], w, SIZES[1])

    def explain(operands: Sequence[int], workspace: int) -> None:
        if wrong:
            raise AskedError

    check = address_check(SIZES, [2], explain, 16)
    for kind in (np.uint64, np.int64):
        pointers: Any = tuple(map(kind, (x, w, y)))
        if wrong:
            with pytest.raises(AskedError):
                check(pointers, 0)
        else:
            check(pointers, 0)
