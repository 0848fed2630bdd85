"""A plan that is launched often passes its kernels to the driver directly: when, for how many, and when not."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from stand_in_graphs import CAPTURES, Kernel, Pointers, StandInGraphs

import cudnnpy
from cudnnpy import raw
from cudnnpy._launch.direct.direct_launch import MAX_NODES
from cudnnpy._launch.launcher import Launcher
from cudnnpy.errors import StatusError

STREAM, OTHER = 0x5000, 0x6000
BASE = 0x7F00_0000_0000
UNTIL = 2  # launches by cuDNN, after which they are direct


class Planned:
    """The launch of one kernel, whose parameters are the addresses."""

    name, device, workspace_size = "fake plan", 0, 0

    def __init__(self, graphs: StandInGraphs, *, is_relocatable: bool = True, certain: bool = True) -> None:
        self.graphs, self.is_relocatable, self.bound, self.checked = graphs, is_relocatable, 0, 0
        self.status = 0
        self.kernel = Kernel(lambda p: [struct.pack(f"{len(p) + 1}Q", *p, 0 if certain else p[0] >> 5)])
        self.kernels = [self.kernel]

    @property
    def executable(self) -> Any:
        return self

    def check_addresses(self, operands: Sequence[int], workspace: int) -> None:
        self.checked += 1
        if operands[0] % 16:
            raise ValueError("misaligned")

    def bind(self, handle: Any, operands: Pointers, workspace: int) -> Callable[[], int]:
        pointers = (*operands, workspace)
        struct.pack(f"{len(pointers)}Q", *pointers)  # raises for what is no address
        self.bound += 1
        return lambda: self.status or self.graphs.queue(self.kernels, pointers)


def tuples(number: int) -> Pointers:
    return BASE + 4096 * number, BASE + (1 << 33) + 256 * number, 0


def launched(graphs: StandInGraphs) -> list[tuple[Pointers, int]]:
    """The addresses and the stream of everything that ran."""
    return [(struct.unpack(f"{len(one) // 8}Q", one)[:-1], stream) for (((one,),), stream) in graphs.launched]


def direct(graphs: StandInGraphs) -> tuple[Launcher, Planned]:
    """A launcher whose launches are direct."""
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(UNTIL):
        launcher.run(tuples(number), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1
    graphs.launched.clear()
    return launcher, planned


def test_launches_from_the_third_on_are_direct_at_any_addresses(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(1000):
        launcher.run(tuples(number), STREAM)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(1000)]
    assert (graphs.plain, planned.checked) == (UNTIL, 1000)
    assert planned.bound == UNTIL + 4  # those of the captures
    assert cudnnpy.cache_info().direct_launches == 1
    assert graphs.graphs == {}  # nothing stays on the device


def test_a_launch_of_many_kernels_is_left_to_cudnn(graphs: StandInGraphs) -> None:
    """By itself each of them would take the host as long."""
    for count, plain in ((MAX_NODES, UNTIL), (MAX_NODES + 1, 30)):
        planned = Planned(graphs)
        planned.kernels = [planned.kernel] * count
        launcher, graphs.plain = Launcher(planned), 0
        for _ in range(30):
            launcher.run(tuples(1), STREAM)
        assert graphs.plain == plain


def test_a_stream_that_is_being_captured_takes_direct_launches(graphs: StandInGraphs) -> None:
    launcher, _ = direct(graphs)
    graphs.capturing = {STREAM, OTHER}
    plain = graphs.plain
    for stream in (STREAM, OTHER):
        for number in range(500):
            launcher.run(tuples(5000 + number % 5), stream)
    assert graphs.plain == plain


def test_plans_that_are_not_relocatable_are_launched_by_cudnn(graphs: StandInGraphs) -> None:
    for options in ({"is_relocatable": False}, {"certain": False}):
        planned = Planned(graphs, **options)
        launcher = Launcher(planned)
        for number in range(1000):
            launcher.run(tuples(number), STREAM)
        assert planned.bound < 1020  # the captures of one attempt
        assert cudnnpy.cache_info().direct_launches == 0
    assert len(graphs.launched) == 2000


def test_a_direct_launch_ends_with_its_plan(graphs: StandInGraphs) -> None:
    launcher, planned = direct(graphs)
    left = weakref.ref(launcher.direct)
    del launcher, planned
    gc.collect()
    assert left() is None
    assert cudnnpy.cache_info().direct_launches == 0


def test_a_less_aligned_workspace_is_launched_plainly(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(UNTIL):
        launcher.run((*tuples(number)[:2], BASE + (1 << 34) + 16), STREAM)
    assert cudnnpy.cache_info().direct_launches == 0
    for number in range(UNTIL):
        launcher.run((*tuples(number)[:2], BASE + (1 << 34) + 256 * number), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1
    graphs.launched.clear()
    plain = graphs.plain
    given = [(*tuples(9000)[:2], BASE + (1 << 34) + space) for space in (16, 1024)]
    for pointers in given:
        launcher.run(pointers, STREAM)
    assert graphs.plain == plain + 1
    assert launched(graphs) == [(pointers, STREAM) for pointers in given]


def test_what_the_driver_rejects_is_left_to_cudnn(graphs: StandInGraphs) -> None:
    """In a thread whose context was taken away, for example, cuDNN makes one current."""
    launcher, planned = direct(graphs)
    plain, graphs.failing = graphs.plain, "cuLaunchKernelEx"
    launcher.run(tuples(7), STREAM)
    assert graphs.plain == plain + 1
    planned.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    with pytest.raises(StatusError, match="fake plan returned CUDNN_STATUS_EXECUTION_FAILED"):
        launcher.run(tuples(8), STREAM)
    planned.status, graphs.failing = 0, ""
    launcher.run(tuples(9), STREAM)
    assert graphs.plain == plain + 1
    assert launched(graphs) == [(tuples(7), STREAM), (tuples(9), STREAM)]


def test_a_stream_that_was_destroyed_is_not_set_again(graphs: StandInGraphs) -> None:
    """Direct launches leave the handle on the stream of the last cuDNN launch."""
    launcher, set_stream = Launcher(Planned(graphs)), graphs.handle.set_stream
    launcher.run(tuples(0), OTHER)
    assert graphs.handle._address == OTHER

    def checked(stream: int) -> None:
        assert stream != OTHER, "cudnnSetStream with a stream that was destroyed"
        set_stream(stream)

    graphs.handle.set_stream = checked
    for _ in range(30):
        launcher.run(tuples(0), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1
    assert {stream for _, stream in launched(graphs)[1:]} == {STREAM}


def test_a_launch_that_interrupts_captures_does_not_let_them_run(graphs: StandInGraphs) -> None:
    """Garbage collection between two captures runs a destructor, whose launch goes to another stream."""
    ending = Launcher(Planned(graphs))
    planned = Planned(graphs)
    launcher, bind = Launcher(planned), planned.bind

    def interrupted(handle: Any, operands: Pointers, workspace: int) -> Callable[[], int]:
        bound = bind(handle, operands, workspace)
        if graphs.handle._address == CAPTURES:
            ending.run(tuples(50_000 + planned.bound), OTHER)
        return bound

    planned.bind = interrupted  # type: ignore[method-assign]
    for number in range(UNTIL):
        launcher.run(tuples(number), STREAM)
    ran = launched(graphs)
    assert [one for one in ran if one[1] == STREAM] == [(tuples(number), STREAM) for number in range(UNTIL)]
    others = [pointers for pointers, stream in ran if stream != STREAM]
    assert others
    assert set(others) <= {tuples(50_000 + number) for number in range(10)}
    assert launcher.direct
