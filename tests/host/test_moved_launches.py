"""A plan that is launched at many addresses gets a CUDA graph that is moved to them: when, for how many, and when not."""

from __future__ import annotations

import gc
import random
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from stand_in_graphs import CAPTURES, Kernel, Pointers, StandInGraphs

import cudnnpy
from cudnnpy import raw
from cudnnpy._runtime.launcher import Launcher
from cudnnpy.errors import StatusError

STREAM, OTHER = 0x5000, 0x6000
BASE = 0x7F00_0000_0000
UNTIL = 250  # launches at new addresses, after which there is a graph

pytestmark = pytest.mark.usefixtures("cache_limits")


class Planned:
    """The launch of one kernel, whose parameters are the addresses."""

    name, device, workspace_size, replayable = "fake plan", 0, 0, True

    def __init__(self, graphs: StandInGraphs, *, movable: bool = True, certain: bool = True) -> None:
        self.graphs, self.movable, self.bound, self.checked = graphs, movable, 0, 0
        self.status = 0
        self.kernel = Kernel(lambda p: [struct.pack(f"{len(p) + 1}Q", *p, 0 if certain else p[0] >> 5)])

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
        return lambda: self.status or self.graphs.queue([self.kernel], pointers)


def tuples(number: int) -> Pointers:
    return BASE + 4096 * number, BASE + (1 << 33) + 256 * number, 0


def launched(graphs: StandInGraphs) -> list[tuple[Pointers, int]]:
    """The addresses and the stream of everything that ran."""
    return [(struct.unpack(f"{len(one) // 8}Q", one)[:-1], stream) for (((one,),), stream) in graphs.launched]


def moving(graphs: StandInGraphs, stream: int = STREAM) -> tuple[Launcher, Planned]:
    """A launcher whose graph is moved on a stream."""
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(UNTIL):
        launcher.run(tuples(number), stream)
    assert cudnnpy.cache_info().moved_replays == 1
    graphs.launched.clear()
    return launcher, planned


def test_new_addresses_are_launched_by_one_graph(graphs: StandInGraphs) -> None:
    planned = Planned(graphs)
    launcher = Launcher(planned)
    for number in range(1000):
        launcher.run(tuples(number), STREAM)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(1000)]
    assert graphs.plain <= UNTIL
    assert planned.checked == 1000
    info = cudnnpy.cache_info()
    assert (info.replays, info.moved_replays, info.launches) == (1, 1, 0)
    assert len(graphs.executables) == 1


def test_a_few_addresses_need_no_graph_that_is_moved(graphs: StandInGraphs) -> None:
    launcher = Launcher(Planned(graphs))
    for _ in range(100):
        for number in range(16):
            launcher.run(tuples(number), STREAM)
    info = cudnnpy.cache_info()
    assert (info.replays, info.moved_replays) == (16, 0)
    assert set(launched(graphs)) == {(tuples(number), STREAM) for number in range(16)}


def test_launches_that_are_kept_need_no_graph_that_is_moved(graphs: StandInGraphs) -> None:
    """It would hardly be faster."""
    cudnnpy.set_cache_limit(replays=2)
    launcher = Launcher(Planned(graphs))
    for _ in range(100):
        for number in range(30):
            launcher.run(tuples(number), STREAM)
    info = cudnnpy.cache_info()
    assert (info.replays, info.moved_replays) == (2, 0)


def test_addresses_that_return_get_graphs_of_their_own_beside_it(graphs: StandInGraphs) -> None:
    cudnnpy.set_cache_limit(replays=101)
    launcher, planned = moving(graphs)
    bound = planned.bound
    for _ in range(30):
        for number in range(300):
            launcher.run(tuples(number), STREAM)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(300)] * 30
    info = cudnnpy.cache_info()
    assert (info.replays, info.moved_replays) == (101, 1)
    assert planned.bound - bound == 100  # for captures alone
    assert len(graphs.executables) == 101


def test_every_plan_gets_its_graph_though_others_hold_all(graphs: StandInGraphs) -> None:
    """A network in training: the first plans' addresses take all graphs, and the others' need theirs."""
    cudnnpy.set_cache_limit(replays=64)
    launchers = [Launcher(Planned(graphs)) for _ in range(40)]
    draw = random.Random(3)
    for number in range(100):
        for launcher in launchers[:2]:
            for _ in range(6):
                launcher.run(tuples(number), STREAM)
    for _ in range(700):
        for launcher in launchers:
            launcher.run(tuples(draw.randrange(300)), STREAM)
    assert cudnnpy.cache_info().moved_replays == 40
    plain = graphs.plain
    for launcher in launchers:
        for number in range(50):
            launcher.run(tuples(1000 + number), STREAM)
    assert graphs.plain == plain


def test_a_plan_gets_its_graph_though_the_oldest_graphs_are_in_use(graphs: StandInGraphs) -> None:
    cudnnpy.set_cache_limit(replays=64)
    first, plan = Launcher(Planned(graphs)), Launcher(Planned(graphs))
    for number in range(64):
        for _ in range(6):
            first.run(tuples(number), STREAM)
    assert cudnnpy.cache_info().replays == 64
    for number in range(350):
        for busy in range(30):
            first.run(tuples(busy), STREAM)
        plan.run(tuples(number), STREAM)
    assert len(plan.moved) == 1
    assert set(first.replays) >= {tuples(busy) for busy in range(30)}


def test_more_plans_than_graphs_do_not_take_them_in_turn(graphs: StandInGraphs) -> None:
    cudnnpy.set_cache_limit(replays=8)
    launchers = [Launcher(Planned(graphs)) for _ in range(24)]
    for number in range(1500):
        for launcher in launchers:
            launcher.run(tuples(number), STREAM)
        assert len(graphs.executables) <= 8
    assert graphs.instantiated == 8
    assert sum(len(launcher.moved) for launcher in launchers) == 8


def test_each_stream_has_its_own(graphs: StandInGraphs) -> None:
    launcher, _ = moving(graphs)
    executables = set(graphs.executables)
    plain = graphs.plain
    launcher.run(tuples(1000), OTHER)
    assert graphs.plain == plain + 1
    for number in range(UNTIL):
        launcher.run(tuples(1000 + number), OTHER)
    assert len(graphs.executables.keys() - executables) == 1
    plain = graphs.plain
    for stream in (STREAM, OTHER, STREAM):
        launcher.run(tuples(3000), stream)
    assert graphs.plain == plain
    assert launched(graphs)[-3:] == [(tuples(3000), stream) for stream in (STREAM, OTHER, STREAM)]


def test_a_capture_gets_plain_launches_and_makes_no_graph(graphs: StandInGraphs) -> None:
    launcher, _ = moving(graphs)
    graphs.capturing = {STREAM, OTHER}
    plain = graphs.plain
    for stream in (STREAM, OTHER):
        for number in range(500):
            launcher.run(tuples(5000 + number), stream)
    assert graphs.plain == plain + 1000
    assert len(graphs.executables) == 1
    graphs.capturing = set()
    launcher.run(tuples(7000), STREAM)
    assert graphs.plain == plain + 1000


def test_what_is_not_movable_or_not_certain_is_launched_plainly(graphs: StandInGraphs) -> None:
    for options in ({"movable": False}, {"certain": False}):
        planned = Planned(graphs, **options)
        launcher = Launcher(planned)
        for number in range(1000):
            launcher.run(tuples(number), STREAM)
        assert planned.bound < 1020  # the captures of one attempt
        assert graphs.executables == {}
    assert len(graphs.launched) == 2000


def test_the_switch_turns_it_off_and_gives_back(graphs: StandInGraphs) -> None:
    launcher, _ = moving(graphs)
    cudnnpy.set_cache_limit(moving=False)
    info = cudnnpy.cache_info()
    assert (info.moving, info.moved_replays, info.replays) == (False, 0, 0)
    assert graphs.executables == graphs.graphs == {}
    plain = graphs.plain
    for number in range(500):
        launcher.run(tuples(number + 1000), STREAM)
    assert graphs.plain == plain + 500
    cudnnpy.set_cache_limit(moving=True)
    for number in range(UNTIL):
        launcher.run(tuples(number + 2000), STREAM)
    assert cudnnpy.cache_info().moved_replays == 1
    for bad in (1, "yes"):
        with pytest.raises(TypeError, match=f"moving must be a bool; got {bad!r}"):
            cudnnpy.set_cache_limit(moving=bad)  # type: ignore[arg-type]


def test_the_switch_is_off_before_what_was_made_is_dropped(graphs: StandInGraphs) -> None:
    """Otherwise another thread makes one in between, which remains."""
    launcher, _ = moving(graphs)
    destroy, other = graphs.cuGraphExecDestroy, Launcher(Planned(graphs))

    def work(executable: int) -> None:
        destroy(executable)
        for number in range(UNTIL):
            other.run(tuples(number), OTHER)

    driver.cuGraphExecDestroy = work
    try:
        cudnnpy.set_cache_limit(moving=False)
    finally:
        driver.cuGraphExecDestroy = destroy
    assert (cudnnpy.cache_info().moved_replays, len(launcher.moved), len(other.moved)) == (0, 0, 0)


@pytest.mark.parametrize("end", ["clear", "limit", "drop"])
def test_what_is_moved_is_given_back(graphs: StandInGraphs, end: str) -> None:
    kept = list(moving(graphs))
    assert len(graphs.executables) == len(graphs.graphs) == 1
    if end == "clear":
        cudnnpy.clear_cache()
    elif end == "limit":
        cudnnpy.set_cache_limit(replays=0)
    else:
        kept.clear()
        gc.collect()
    assert graphs.executables == graphs.graphs == {}
    assert cudnnpy.cache_info().replays == 0


def test_invalid_addresses_raise_as_without_it(graphs: StandInGraphs) -> None:
    launcher, _ = moving(graphs)
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
    assert cudnnpy.cache_info().moved_replays == 0
    for number in range(UNTIL):
        launcher.run((*tuples(number)[:2], BASE + (1 << 34) + 256 * number), STREAM)
    assert cudnnpy.cache_info().moved_replays == 1
    graphs.launched.clear()
    plain = graphs.plain
    given = [(*tuples(9000)[:2], BASE + (1 << 34) + space) for space in (16, 1024)]
    for pointers in given:
        launcher.run(pointers, STREAM)
    assert graphs.plain == plain + 1
    assert launched(graphs) == [(pointers, STREAM) for pointers in given]


def test_a_driver_that_rejects_the_parameters_is_not_asked_for_each_launch(graphs: StandInGraphs) -> None:
    launcher, _ = moving(graphs)
    graphs.failing = "cuGraphExecKernelNodeSetParams_v2"
    for number in range(50):
        launcher.run(tuples(number), STREAM)
    assert launched(graphs) == [(tuples(number), STREAM) for number in range(50)]
    graphs.failing = "cuGraphLaunch"
    launcher, _ = moving_again(graphs, launcher)
    with pytest.raises(StatusError, match="cuGraphLaunch returned CUDNN_STATUS_EXECUTION_FAILED"):
        launcher.run(tuples(7), STREAM)
    graphs.failing = ""
    launcher.run(tuples(8), STREAM)


def moving_again(graphs: StandInGraphs, launcher: Launcher) -> tuple[Launcher, int]:
    """After more launches there is another graph."""
    failing, graphs.failing = graphs.failing, ""
    for number in range(UNTIL):
        launcher.run(tuples(20_000 + number), STREAM)
    plain = graphs.plain
    launcher.run(tuples(30_000), STREAM)
    assert graphs.plain == plain
    graphs.failing = failing
    return launcher, plain


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
    launcher, _ = moving(graphs)
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
    assert cudnnpy.cache_info().moved_replays == 1


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
    assert cudnnpy.cache_info().moved_replays == 1
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
    assert graphs.executables == {}  # with the threads
