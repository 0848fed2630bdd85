"""A plan that is launched often passes its kernels to the driver directly: when, for how many, and when not."""

from __future__ import annotations

import gc
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cudnnpy._launch.direct.stream_capture import MOST_KERNELS
from cudnnpy._launch.launcher import Launcher
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.steps import AliasSwitch, OffsetExecutable, Step, StepSequence, is_relocatable
from stand_in_graphs import CAPTURES, Kernel, Pointers, StandInGraphs

import cudnnpy
from cudnnpy import TensorSpec, raw
from cudnnpy.errors import StatusError

STREAM, OTHER = 0x5000, 0x6000
BASE = 0x7F00_0000_0000
UNTIL = 60  # launches at new addresses, after which they are direct

pytestmark = pytest.mark.usefixtures("cache_limits")


class Planned:
    """The launch of one kernel, whose parameters are the addresses."""

    name, device, workspace_size, replayable, is_long = "fake plan", 0, 0, True, False

    def __init__(self, graphs: StandInGraphs, *, movable: bool = True, certain: bool = True) -> None:
        self.graphs, self.movable, self.bound, self.checked = graphs, movable, 0, 0
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


@pytest.mark.parametrize("gpu_waits", [True, False])
def test_new_addresses_are_launched_directly(graphs: StandInGraphs, gpu_waits: bool) -> None:
    graphs.gpu_waits = gpu_waits
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(1000):
        launcher.run(tuples(number), STREAM)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(1000)]
    assert graphs.plain <= UNTIL
    assert planned.checked == 1000
    info = cudnnpy.cache_info()
    assert (info.replays, info.direct_launches, info.launches) == (0, 1, 0)
    assert graphs.graphs == graphs.executables == {}  # nothing is kept on the device


def test_addresses_that_return_get_graphs_while_the_gpu_waits(graphs: StandInGraphs) -> None:
    """The second half of the room is for those that return often: a graph takes long to make, and saves little."""
    cudnnpy.set_cache_limit(replays=20)
    launcher, planned = direct(graphs)
    bound = planned.bound
    for rounds, replays in ((30, 10), (120, 20)):
        for _ in range(rounds):
            for number in range(60):
                launcher.run(tuples(number), STREAM)
        info = cudnnpy.cache_info()
        assert (info.replays, info.direct_launches) == (replays, 1)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(60)] * 150
    assert planned.bound - bound == 20  # for captures alone


def test_a_gpu_that_is_behind_gets_no_graph(graphs: StandInGraphs) -> None:
    """It would run the kernels more slowly, and the host's time does not count."""
    launcher, planned = direct(graphs)
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert cudnnpy.cache_info().replays == 1
    graphs.gpu_waits = False
    for executable in graphs.executables:
        graphs.executables[executable] = []  # so that a replay would be seen
    graphs.launched.clear()
    checked = planned.checked
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert launched(graphs) == [(tuples(1), STREAM)] * 30
    assert planned.checked == checked  # the same addresses need no other check
    for number in range(30):
        for _ in range(10):
            launcher.run(tuples(2 + number), STREAM)
    assert len(graphs.executables) == 1


def test_without_direct_launches_a_gpu_that_is_behind_gets_those_of_cudnn(graphs: StandInGraphs) -> None:
    planned = Planned(graphs, movable=False)
    launcher = Launcher(planned)
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert (cudnnpy.cache_info().replays, graphs.plain) == (1, 4)
    graphs.gpu_waits, bound = False, planned.bound
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert (graphs.plain, planned.bound) == (34, bound)  # by the launch that the graph was captured from
    assert launched(graphs) == [(tuples(1), STREAM)] * 60


def test_a_launch_of_many_kernels_is_left_to_cudnn(graphs: StandInGraphs) -> None:
    """As a CUDA graph each of them would take the GPU longer, and by itself the host as long."""
    for count, plain in ((MOST_KERNELS, 4), (MOST_KERNELS + 1, 30)):
        planned = Planned(graphs)
        planned.kernels = [planned.kernel] * count
        launcher, graphs.plain = Launcher(planned), 0
        for _ in range(30):
            launcher.run(tuples(1), STREAM)
        assert graphs.plain == plain


def test_graphs_that_a_gpu_is_behind_with_become_a_direct_launch(graphs: StandInGraphs) -> None:
    launcher = Launcher(Planned(graphs))
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert (cudnnpy.cache_info().replays, cudnnpy.cache_info().direct_launches) == (1, 0)
    graphs.gpu_waits = False
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1
    assert graphs.plain <= 4
    assert launched(graphs) == [(tuples(1), STREAM)] * 60


@pytest.mark.parametrize(("is_long", "replays"), [(False, 1), (True, 0)])
def test_the_length_of_a_launch_decides_where_nothing_is_known(
    graphs: StandInGraphs, is_long: bool, replays: int
) -> None:
    graphs.gpu_waits = None
    planned = Planned(graphs)
    planned.is_long = is_long
    launcher = Launcher(planned)
    for _ in range(30):
        launcher.run(tuples(1), STREAM)
    info = cudnnpy.cache_info()
    assert (info.replays, info.direct_launches) == (replays, is_long)


def test_what_is_not_replayable_is_neither_replayed_nor_launched_directly(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    planned.replayable = False
    launcher = Launcher(planned)
    for number in range(100):
        launcher.run(tuples(number % 3), STREAM)
    info = cudnnpy.cache_info()
    assert (info.replays, info.direct_launches, graphs.plain) == (0, 0, 100)


@pytest.mark.parametrize("replayable", [True, False])
def test_executables_are_replayable_if_all_of_their_parts_are(replayable: bool) -> None:
    part, other = (SimpleNamespace(workspace_size=0, replayable=one) for one in (replayable, True))
    plain = SimpleNamespace(workspace_size=0)
    steps = StepSequence([Step(plain, (0,)), Step(part, (0,)), Step(other, (0,))])
    wholes = (
        part,
        steps,
        OffsetExecutable(steps, (0,)),
        AliasSwitch(0, 1, other, part),
        AliasSwitch(0, 1, part, plain),
    )
    assert [is_relocatable(whole) for whole in wholes] == [replayable] * 5
    operands = [Operand("y", TensorSpec((1,), strides=(1,)), True)]
    assert Program("a program", 0, operands, [Step(steps, (0,))]).replayable is replayable


def test_one_launch_serves_every_stream(graphs: StandInGraphs) -> None:
    launcher, _ = direct(graphs)
    plain = graphs.plain
    streams = (STREAM, OTHER, 0, STREAM)
    for stream in streams:
        launcher.run(tuples(3000), stream)
    assert graphs.plain == plain
    assert launched(graphs) == [(tuples(3000), stream) for stream in streams]


def test_a_capture_gets_direct_launches_and_makes_no_graph(graphs: StandInGraphs) -> None:
    launcher, _ = direct(graphs)
    graphs.capturing = {STREAM, OTHER}
    plain = graphs.plain
    for stream in (STREAM, OTHER):
        for number in range(500):
            launcher.run(tuples(5000 + number % 5), stream)
    assert graphs.plain == plain
    assert graphs.executables == {}


def test_nothing_is_made_while_capturing(graphs: StandInGraphs) -> None:
    launcher = Launcher(Planned(graphs))
    graphs.capturing = {STREAM}
    for number in range(300):
        launcher.run(tuples(number), STREAM)
    assert cudnnpy.cache_info().direct_launches == 0
    graphs.capturing = set()
    launcher.run(tuples(300), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1


def test_what_is_not_movable_or_not_certain_is_launched_plainly(graphs: StandInGraphs) -> None:
    for options in ({"movable": False}, {"certain": False}):
        planned = Planned(graphs, **options)
        launcher = Launcher(planned)
        for number in range(1000):
            launcher.run(tuples(number), STREAM)
        assert planned.bound < 1020  # the captures of one attempt
        assert cudnnpy.cache_info().direct_launches == 0
    assert len(graphs.launched) == 2000


def test_the_switch_turns_it_off_and_on(graphs: StandInGraphs) -> None:
    launcher, _ = direct(graphs)
    cudnnpy.set_cache_limit(direct=False)
    info = cudnnpy.cache_info()
    assert (info.direct, info.direct_launches) == (False, 0)
    plain = graphs.plain
    for number in range(500):
        launcher.run(tuples(number + 1000), STREAM)
    assert graphs.plain == plain + 500
    cudnnpy.set_cache_limit(direct=True)
    for number in range(UNTIL):
        launcher.run(tuples(number + 2000), STREAM)
    assert cudnnpy.cache_info().direct_launches == 1
    for bad in (1, "yes"):
        with pytest.raises(TypeError, match=f"direct must be a bool; got {bad!r}"):
            cudnnpy.set_cache_limit(direct=bad)  # type: ignore[arg-type]


def test_there_are_at_most_as_many_as_launches(graphs: StandInGraphs) -> None:
    cudnnpy.set_cache_limit(launches=8)
    launchers = [Launcher(Planned(graphs)) for _ in range(24)]
    for number in range(300):
        for launcher in launchers:
            launcher.run(tuples(number), STREAM)
        assert cudnnpy.cache_info().direct_launches <= 8
    assert sum(len(launcher.direct) for launcher in launchers) == 8


@pytest.mark.parametrize("end", ["clear", "limit", "drop"])
def test_what_is_kept_is_given_back(graphs: StandInGraphs, end: str) -> None:
    launcher, planned = direct(graphs)
    kept, left = [launcher, planned], weakref.ref(launcher.direct[()])
    del launcher, planned
    if end == "clear":
        cudnnpy.clear_cache()
    elif end == "limit":
        cudnnpy.set_cache_limit(launches=0)
    else:
        kept.clear()
        gc.collect()
    assert left() is None
    assert cudnnpy.cache_info().direct_launches == 0


def test_invalid_addresses_raise_as_without_it(graphs: StandInGraphs) -> None:
    launcher, _ = direct(graphs)
    with pytest.raises(ValueError, match="misaligned"):
        launcher.run((BASE + 1, BASE, 0), STREAM)
    for bad in (16.0, 1 << 70):
        with pytest.raises(struct.error):
            launcher.run((bad, BASE, 0), STREAM)  # type: ignore[arg-type]
    assert graphs.launched == []
    plain = graphs.plain
    launcher.run(tuples(0), STREAM)
    assert graphs.plain == plain


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


@pytest.mark.parametrize("returning", [True, False])
def test_a_stream_that_was_destroyed_is_not_set_again(graphs: StandInGraphs, returning: bool) -> None:
    """Direct launches and CUDA graphs leave the handle on the stream of the last plain launch."""
    graphs.gpu_waits = returning
    launcher, set_stream = Launcher(Planned(graphs)), graphs.handle.set_stream

    def checked(stream: int) -> None:
        assert stream != OTHER, "cudnnSetStream with a stream that was destroyed"
        set_stream(stream)

    if returning:
        for number in range(UNTIL):
            launcher.run(tuples(number), OTHER)
    else:
        graphs.gpu_waits = True
        for _ in range(30):
            launcher.run(tuples(0), OTHER)
        graphs.gpu_waits = False
    before = graphs.handle._address
    assert before == OTHER
    graphs.handle.set_stream = checked
    for _ in range(30):
        launcher.run(tuples(0), STREAM)
    info = cudnnpy.cache_info()
    assert (info.replays, info.direct_launches) == (1, 1)
    assert {stream for _, stream in launched(graphs)[-30:]} == {STREAM}


def test_a_failed_plain_launch_raises_and_is_not_counted_as_one(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    launcher = Launcher(planned)
    planned.status = int(raw.CUDNN_STATUS_EXECUTION_FAILED)
    for number in range(1000):
        with pytest.raises(StatusError, match="fake plan returned CUDNN_STATUS_EXECUTION_FAILED"):
            launcher.run(tuples(number), STREAM)
    assert graphs.executables == {}


def test_a_launch_of_the_same_plan_in_between_is_right(graphs: StandInGraphs) -> None:
    """Garbage collection may run any code between the two calls of the driver."""
    launcher, _ = direct(graphs)
    graphs.before_launch = lambda: launcher.run(tuples(9001), STREAM)
    launcher.run(tuples(9000), STREAM)
    assert launched(graphs) == [(tuples(9001), STREAM), (tuples(9000), STREAM)]


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
    assert set(others) <= {tuples(50_000 + number) for number in range(2 * UNTIL)}
    assert launcher.direct


def test_a_launch_that_interrupts_a_launch_leaves_its_stream(graphs: StandInGraphs) -> None:
    ending, planned = Launcher(Planned(graphs)), Planned(graphs)
    launcher = Launcher(planned)
    queue = graphs.queue

    def interrupted(kernels: Sequence[Kernel], pointers: Pointers) -> int:
        """The first of two steps of a launch is queued, then a signal handler runs."""
        graphs.queue = queue  # type: ignore[method-assign]
        ending.run(tuples(9000), OTHER)
        return queue(kernels, pointers)

    graphs.queue = interrupted  # type: ignore[method-assign]
    launcher.run(tuples(1), STREAM)
    launcher.run(tuples(2), STREAM)
    assert launched(graphs) == [(tuples(9000), OTHER), (tuples(1), STREAM), (tuples(2), STREAM)]


def test_addresses_that_are_numpy_integers(graphs: StandInGraphs) -> None:
    launcher = Launcher(Planned(graphs))
    for number in range(UNTIL):
        launcher.run(tuple(map(np.uint64, tuples(number))), STREAM)  # type: ignore[arg-type]
    assert cudnnpy.cache_info().direct_launches == 1
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(UNTIL)]


def test_threads_have_their_own(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    failures: list[BaseException] = []
    lock = threading.Lock()  # the stand-in has one capture at a time

    def work(first: int) -> None:
        try:
            launcher = Launcher(planned)
            for number in range(300):
                with lock:
                    launcher.run(tuples(first + number), STREAM + first)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (10_000, 20_000, 30_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert sorted(launched(graphs)) == sorted(
        (tuples(first + number), STREAM + first) for first in (10_000, 20_000, 30_000) for number in range(300)
    )
    gc.collect()
    assert cudnnpy.cache_info().direct_launches == 0  # with the threads
