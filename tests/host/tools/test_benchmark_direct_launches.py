"""The benchmark of making a direct launch, on the stand-in for the driver."""

from __future__ import annotations

import struct

import pytest
from stand_in_graphs import Kernel, StandInGraphs

from tools.benchmark import direct_launches
from tools.benchmark.direct_launches import NAMES, PartTimes, part_times

HERE = (0x7F00_0010_0000, 0x7F00_0020_0000, 0x7F00_0030_0000, 0)


def test_the_parts_make_up_the_whole(graphs: StandInGraphs) -> None:
    kernel = Kernel(lambda pointers: [struct.pack("4Q", *pointers)])
    found = part_times(graphs.bind([kernel]), graphs.handle, HERE, 1)
    assert found is not None
    assert list(found) == ["all", *NAMES]
    assert all(found[name] > 0 for name in NAMES)
    assert sum(found[name] for name in NAMES) == pytest.approx(found["all"], rel=0.2)
    assert graphs.captures == 6


def test_a_launch_that_is_not_certain_has_no_times(graphs: StandInGraphs) -> None:
    kernel = Kernel(lambda pointers: [struct.pack("4Q", *pointers[:3], pointers[0] >> 4)])
    assert part_times(graphs.bind([kernel]), graphs.handle, HERE, 1) is None


def test_time_within_a_part_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(direct_launches, "perf_counter", lambda: next(ticks))
    clock = PartTimes()
    clock.timed("outer", clock.timed("inner", lambda: None))()
    assert clock.seconds == {"outer": 7.0, "inner": 3.0}
