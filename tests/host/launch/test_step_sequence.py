"""Sequences among the steps of a sequence: their operands, scratch memory and workspace, and what a launch calls."""

from __future__ import annotations

from typing import Any

import pytest

from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT, BoundLaunch, Step, StepSequence


class Recorded:
    """An executable that records the addresses of its launches."""

    def __init__(self, calls: list[Any], workspace_size: int = 0, status: int = 0) -> None:
        self.calls, self.workspace_size, self.status = calls, workspace_size, status

    def bind(self, handle: Any, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        def launch() -> int:
            self.calls.append((addresses, workspace))
            return self.status

        return launch


@pytest.mark.parametrize("status", [0, 5])
def test_steps_of_inner_sequences_share_the_rest_of_the_workspace(status: int) -> None:
    calls: list[Any] = []
    first, last = Recorded(calls, 10, status), Recorded(calls, 1000)
    inner = StepSequence([Step(first, (2, 0)), Step(last, (1, 3))], [300, 1])  # two operands, two parts
    other = StepSequence([Step(StepSequence([Step(last, (1, 0, 2))], [7]), (0, 2))], [9])
    outer = StepSequence([Step(inner, (1, 2)), Step(other, (2, 0))], [256])  # two operands, a part
    unit, start = WORKSPACE_ALIGNMENT, 1 << 20
    assert outer.workspace_size == unit + max(3 * unit + 1000, 2 * unit + 1000)
    launch = outer.bind(None, (10, 20), start)  # type: ignore[arg-type]
    for _ in range(2):
        del calls[:]
        assert launch() == status
        parts = [start + at * unit for at in range(5)]
        expected = [
            ((parts[1], 20), parts[4]),
            ((parts[0], parts[3]), parts[4]),
            ((parts[1], parts[0], parts[2]), parts[3]),
        ]
        assert calls == (expected[:1] if status else expected)


def test_a_single_step_is_its_own_launch() -> None:
    calls: list[Any] = []
    one = StepSequence([Step(StepSequence([Step(Recorded(calls), (1, 0))]), (1, 0))])
    assert one.bind(None, (3, 4), 0)() == 0  # type: ignore[arg-type]
    assert calls == [((3, 4), 0)]
    assert StepSequence([]).bind(None, (), 0)() == 0  # type: ignore[arg-type]
