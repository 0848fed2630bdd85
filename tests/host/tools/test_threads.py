"""Functions that run side by side."""

from __future__ import annotations

from threading import Barrier

import pytest

from tools.threads import run_side_by_side


def test_functions_run_at_once_and_an_error_is_raised_after_all_have_ended() -> None:
    together, ended = Barrier(3, timeout=20.0), list[int]()

    def run(number: int) -> None:
        together.wait()
        if number == 1:
            raise ValueError("the second")
        ended.append(number)

    with pytest.raises(ValueError, match="the second"):
        run_side_by_side([lambda n=number: run(n) for number in range(3)])  # type: ignore[misc]
    assert sorted(ended) == [0, 2]
