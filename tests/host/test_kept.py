"""What is kept for launches: a few of the addresses that are used again, bounded over the process, and given back."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cudnnpy._launch.kept import Bound, Table, Wish
from stand_in_device import StandInDevice

import cudnnpy
from cudnnpy import Convolution, Plan, TensorSpec, raw
from cudnnpy.errors import StatusError

STREAM = 0x5000
STEP = 1 << 20  # bytes between the operands of a tuple


@pytest.fixture(autouse=True)
def _not_direct(cache_limits: None) -> None:
    """No launch is direct here: test_direct_launches_of_plans.py is about those."""
    cudnnpy.set_cache_limit(direct=False)


def planned(stand_in: StandInDevice, channels: int = 3, *, replayable: bool = True) -> Plan:
    stand_in.source = "heuristics" if replayable else "legacy"
    return Convolution().plan("forward", TensorSpec((2, channels, 6, 6)), TensorSpec((4, channels, 3, 3)), device=0)


def execute(plan: Plan, number: int, times: int = 1) -> None:
    """Run on the tuple of addresses with a number."""
    for _ in range(times):
        plan.execute(*(STEP * (3 * number + at) for at in (1, 2, 3)), 0, STREAM)


@pytest.mark.parametrize("direct", [True, False])
def test_streams_are_what_every_launch_takes_or_refuses(stand_in: StandInDevice, direct: bool) -> None:
    """However often a tuple of addresses was used: cuDNN, the driver and CUDA graphs each take other types."""
    cudnnpy.set_cache_limit(direct=direct)
    plan = planned(stand_in)
    for _ in range(40):
        for stream in (STREAM, np.int64(STREAM), SimpleNamespace(__cuda_stream__=(0, STREAM))):
            plan.execute(*addresses_of(0), 0, stream)  # type: ignore[arg-type]
        for bad, error in ((1 << 64, ValueError), (-1, ValueError), (5.0, TypeError), (True, TypeError)):
            with pytest.raises(error, match="stream must be"):
                plan.execute(*addresses_of(0), 0, bad)  # type: ignore[arg-type]
    assert [(type(launch.stream), launch.stream) for launch in stand_in.launches] == [(int, STREAM)] * 120


def addresses_of(number: int) -> list[int]:
    return [STEP * (3 * number + at) for at in (1, 2, 3)]


def test_new_addresses_reach_the_launch_and_nothing_of_them_is_kept(stand_in: StandInDevice) -> None:
    plan = planned(stand_in)
    for number in range(500):
        execute(plan, number)
        launch = stand_in.launches[-1]
        assert [launch.addresses[name] for name in ("x", "w", "y")] == addresses_of(number)
        assert stand_in.packs == set()
    calls = stand_in.c_calls
    assert calls["cudnnBackendCreateDescriptor"] == calls["cudnnBackendDestroyDescriptor"] == 500
    assert (calls["cudnnBackendSetAttribute"], calls["cudnnBackendExecute"]) == (1500, 500)
    info = cudnnpy.cache_info()
    assert (info.launches, info.replays, info.replay_bytes) == (0, 0, 0)


def test_large_problems_are_replayed_too(stand_in: StandInDevice) -> None:
    """Their kernels do not hide the host's cost where it limits a whole network: in a training step of ResNet-50 at batch
    16 a launch takes 50 us of host time, and most kernels take less."""
    stand_in.source = "heuristics"
    x, w = TensorSpec((128, 256, 56, 56), "float16"), TensorSpec((256, 256, 3, 3), "float16")
    execute_large = Convolution(padding=1).plan("forward", x, w, device=0).execute
    for _ in range(10):
        execute_large(1 << 40, 1 << 41, 1 << 42, 0, STREAM)
    assert cudnnpy.cache_info().replays == 1


def test_addresses_of_one_use_cost_those_in_use_nothing(stand_in: StandInDevice) -> None:
    plan = planned(stand_in)
    execute(plan, 0, 10)
    assert (cudnnpy.cache_info().replays, len(stand_in.cuda_graphs)) == (1, 1)
    cudnnpy.set_cache_limit(launches=1)
    for number in range(1, 40_000):
        execute(plan, number)
    replayed = stand_in.replayed
    execute(plan, 0, 5)
    assert (stand_in.replayed - replayed, len(stand_in.cuda_graphs)) == (5, 1)


def test_many_addresses_in_turn_make_few_graphs_and_keep_within_the_limits(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(launches=100, replays=8)
    plan = planned(stand_in)
    rounds, tuples = 8, 1000
    for _ in range(rounds):
        for number in range(tuples):
            execute(plan, number)
            info = cudnnpy.cache_info()
            assert info.launches <= 100
            assert info.replays <= 8
            assert len(stand_in.packs) <= info.launches + info.replays
    assert stand_in.c_calls["cudnnBackendCreateDescriptor"] <= rounds * tuples
    assert len(stand_in.cuda_graphs) <= 8 + rounds * tuples // 500

    cudnnpy.set_cache_limit(launches=2000)
    for _ in range(2):
        for number in range(tuples):
            execute(plan, number)
    stand_in.c_calls.clear()
    for number in range(tuples):  # all of which have room now
        execute(plan, number)
    assert stand_in.c_calls["cudnnBackendCreateDescriptor"] <= 2  # of those whose graph made room


def test_the_limits_hold_over_all_plans_and_threads(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(launches=7, replays=3)
    plans = [planned(stand_in, channels) for channels in (1, 2, 3)]
    failures: list[BaseException] = []
    ready = threading.Barrier(4, timeout=10)

    def work() -> None:
        try:
            ready.wait()
            for number in range(60):
                for plan in plans:
                    execute(plan, number % 6, 6)
                    info = cudnnpy.cache_info()
                    assert info.launches <= 7
                    assert info.replays <= 3
            ready.wait()  # threads that end drop their launchers
            ready.wait()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    ready.wait()
    info = cudnnpy.cache_info()
    assert (info.launches, info.replays) == (7, 3)
    assert len(stand_in.packs) == 10
    cudnnpy.clear_cache()  # of other threads' launchers, too
    left = len(stand_in.packs)
    ready.wait()
    for thread in threads:
        thread.join(10)
    assert (left, failures) == (0, [])


def test_graphs_that_are_no_longer_used_make_room_within_tens_of_launches(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(replays=32)
    plan = planned(stand_in)
    for number in range(32):
        execute(plan, number, 500)
    for _ in range(24):  # another phase, of addresses in turn
        for number in range(100, 116):
            execute(plan, number)
    assert (len(stand_in.cuda_graphs), cudnnpy.cache_info().replays) == (48, 32)
    replayed = stand_in.replayed
    for number in range(100, 116):
        execute(plan, number)
    assert stand_in.replayed - replayed == 16


def test_a_graph_in_use_keeps_its_place(stand_in: StandInDevice) -> None:
    """The others are used as often, or half as often."""
    cudnnpy.set_cache_limit(replays=8)
    plan = planned(stand_in)
    for turn in range(400):
        for number in range(16):
            if number < 12 or turn % 2:
                execute(plan, number)
    assert len(stand_in.cuda_graphs) == 8
    for _ in range(40):  # the first ones are used much less now
        for number in range(8, 16):
            execute(plan, number, 10)
        execute(plan, 0)
    assert len(stand_in.cuda_graphs) == 16


def test_short_bursts_of_many_addresses_replace_nothing(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(replays=8)
    plan = planned(stand_in)
    for number in range(8):
        execute(plan, number, 10)
    for number in range(8, 1000):
        execute(plan, number, 16)
    assert len(stand_in.cuda_graphs) == 8


def test_limits_of_0_keep_nothing(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(launches=0, replays=0)
    plan = planned(stand_in)
    execute(plan, 0, 2000)
    assert (stand_in.packs, stand_in.cuda_graphs) == (set(), [])
    cudnnpy.set_cache_limit(launches=10, replays=10, replay_bytes=0)
    execute(plan, 0, 2000)
    assert (len(stand_in.packs), stand_in.cuda_graphs) == (1, [])


def test_bytes_limit_the_graphs(stand_in: StandInDevice) -> None:
    cudnnpy.set_cache_limit(replays=100, replay_bytes=3 * 144 * 1024 + 5)
    plan = planned(stand_in)
    for number in range(6):
        execute(plan, number, 10)
    info = cudnnpy.cache_info()
    assert (info.replays, info.replay_limit, info.replay_bytes) == (3, 100, 3 * 144 * 1024)


def test_a_smaller_limit_gives_back_at_once(stand_in: StandInDevice) -> None:
    plan = planned(stand_in)
    for number in range(20):
        execute(plan, number, 10)
    for number in range(20, 40):
        execute(plan, number, 3)
    assert cudnnpy.cache_info()[4:8:2] == (20, 20)
    cudnnpy.set_cache_limit(launches=4, replays=5)
    assert cudnnpy.cache_info()[4:8:2] == (4, 5)
    assert len(stand_in.packs) == 9


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def dropped(plans: list[Plan]) -> None:
    plans.clear()


def cleared(_: list[Plan]) -> None:
    cudnnpy.clear_cache()


@pytest.mark.parametrize("end", [dropped, cleared])
@pytest.mark.parametrize("times", [3, 10])
def test_what_a_plan_keeps_ends_with_it_or_with_the_cache(
    stand_in: StandInDevice, end: Callable[[list[Plan]], None], times: int
) -> None:
    plans = [planned(stand_in)]
    cudnnpy.clear_cache()  # the plan is only the caller's
    with without_garbage_collection():
        for number in range(10):
            execute(plans[0], number, times)
        assert len(stand_in.packs) == 10
        stand_in.cuda_graphs.clear()
        stand_in.choices.clear()
        end(plans)
        assert stand_in.packs == set()
        info = cudnnpy.cache_info()
        assert (info.launches, info.replays, info.replay_bytes) == (0, 0, 0)
    for plan in plans:
        execute(plan, 0, times)
        assert [stand_in.launches[-1].addresses[name] for name in ("x", "w", "y")] == addresses_of(0)


FAILING = [
    ("cudnnBackendCreateDescriptor", 0),
    ("cudnnBackendSetAttribute", 1),
    ("cudnnBackendSetAttribute", 2),
    ("cudnnBackendSetAttribute", 3),
    ("cudnnBackendFinalize", 1),
    ("cudnnBackendExecute", 1),
]


@pytest.mark.parametrize(("name", "call"), FAILING)
def test_a_status_of_any_call_raises_and_leaves_no_pack(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    failing: list[int] = []
    real = raw.unchecked

    def unchecked(function: str) -> Callable[..., int]:
        succeeding = real(function)

        def called(*arguments: Any) -> int:
            if failing and function == name:
                failing[0] -= 1
                if failing[0] <= 0:
                    return int(raw.CUDNN_STATUS_EXECUTION_FAILED)
            return succeeding(*arguments)

        return called

    monkeypatch.setattr(raw, "unchecked", unchecked)
    plan = planned(stand_in)
    for _ in range(3):
        failing[:] = [call]
        shown = "made up" if name == "cudnnBackendExecute" else name
        with pytest.raises(StatusError, match=f"{shown} returned CUDNN_STATUS_EXECUTION_FAILED") as raised:
            execute(plan, 0)
        if name != "cudnnBackendExecute":
            del raised
        assert stand_in.packs == set()  # though the error of a launch is still there
    failing.clear()
    assert cudnnpy.cache_info().launches == 0
    execute(plan, 0, 2)
    assert len(stand_in.packs) == 1
    if name == "cudnnBackendExecute":  # of a launch that is kept
        failing[:] = [call]
        with pytest.raises(StatusError, match="made up returned CUDNN_STATUS_EXECUTION_FAILED"):
            execute(plan, 0)
    failing.clear()
    execute(plan, 0)
    assert len(stand_in.packs) == 1


@pytest.mark.parametrize("bad", [16.5, "16", None, 1 << 64])
def test_what_is_no_address_is_refused_and_no_pack_is_made(stand_in: StandInDevice, bad: Any) -> None:
    plan = planned(stand_in)
    with pytest.raises((TypeError, ValueError)):
        plan.execute(bad, *addresses_of(0)[1:], 0, STREAM)
    assert stand_in.packs == set()
    assert stand_in.launches == []


def ending(bound: Bound[Any], number: int) -> tuple[int, tuple[int]]:
    """Keep a graph whose table ends while the bound looks at it: its thread ends then. Return its key."""
    table: Table[Any] = Table(bound)
    bound.keep(table, (number,), SimpleNamespace(uses=0))
    key, last = (id(table), (number,)), [table]
    bound._entries[key] = lambda: last.pop() if last else None  # type: ignore[assignment]
    return key


def test_a_limit_is_any_integer(stand_in: StandInDevice) -> None:
    class Index:
        def __index__(self) -> int:
            return 5

    cudnnpy.set_cache_limit(launches=Index(), replays=Index(), replay_bytes=Index())  # type: ignore[arg-type]
    info = cudnnpy.cache_info()
    assert (info.launch_limit, info.replay_limit, info.replay_bytes_limit) == (5, 5, 5)
    plan = planned(stand_in)
    for number in range(20):
        execute(plan, number, 3)
    assert cudnnpy.cache_info().launches == 5


def test_a_table_may_end_while_its_graphs_are_compared() -> None:
    bound: Bound[Any] = Bound(2)
    ending(bound, 1)
    staying: Table[Any] = Table(bound)
    bound.keep(staying, (2,), SimpleNamespace(uses=0))
    wish = Wish(4, 16, uses=4)
    assert not bound.has_room(wish)
    assert (len(bound), [key[1] for key, _ in wish.rivals]) == (1, [(2,)])
    wish.rivals = [(ending(bound, 3), 0)]
    assert bound.has_room(wish)
    assert len(bound) == 1


# In a process without other threads: with them, Python 3.12 and later warn of a fork.
FORK = """
import os
from cudnnpy._planning.variant_pack import VariantPack
from cudnnpy._launch.kept import LAUNCHES, Table

destroyed = []

def destroy(pack):
    destroyed.append(pack.value)
    return 0

packs = [VariantPack(destroy), VariantPack(destroy)]
packs[0].value = 0x77
table = Table(LAUNCHES)
for number in range(3):
    kept_pack = VariantPack(destroy)
    kept_pack.value = 0x100 + number
    LAUNCHES.keep(table, (number,), kept_pack)
del kept_pack
child = os.fork()
if not child:
    assert (dict(table), len(LAUNCHES)) == ({}, 0)  # a launch would use the handle of the other process
    packs.clear()
    packs.append(VariantPack(destroy))
    packs[0].value = 0x88
    packs.clear()
    os._exit(destroyed != [0x88])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
packs.clear()
assert destroyed == [0x77]  # of the other one nothing was created
assert len(LAUNCHES) == 3
del table
assert sorted(destroyed) == [0x77, 0x100, 0x101, 0x102]
"""


# What another thread has ends in the child before any function that os.register_at_fork was given.
THREAD = """
import ctypes, os, threading, types
from cuda.bindings import driver
from cudnnpy._launch import kept, pace
from cudnnpy._launch.direct.stream_capture import Graph
from cudnnpy._launch.cuda_graph import Executable

destroyed = []
driver.cuGraphDestroy = driver.cuGraphExecDestroy = destroyed.append
pace.driver_library = lambda: types.SimpleNamespace(cuEventDestroy_v2=lambda event: destroyed.append("event"))
of_thread, ready, locked, end = threading.local(), *(threading.Event() for _ in range(3))

def work():
    of_thread.table = kept.Table(kept.REPLAYS)
    kept.REPLAYS.keep(of_thread.table, (1,), Executable("executable"))
    of_thread.graph, of_thread.pace = Graph("graph"), pace.Pace()
    of_thread.pace._event = ctypes.c_void_p(1)
    ready.set()
    end.wait()

def hold():
    with kept._lock:
        locked.set()
        end.wait(0.5)

threads = [threading.Thread(target=work), threading.Thread(target=hold)]
threads[0].start()
ready.wait()
threads[1].start()
locked.wait()
child = os.fork()
if not child:
    kept.clear()
    again = os.fork()
    if not again:
        threading.Thread(target=kept.clear).start()
        os._exit(len(destroyed))
    os._exit(os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) or len(destroyed))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
end.set()
for thread in threads:
    thread.join()
assert sorted(destroyed) == ["event", "executable", "graph"]
"""


def test_a_child_that_is_forked_beside_threads_does_not_end_what_they_have() -> None:
    """Nor does it wait for a lock that one of them held."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", THREAD], check=True, timeout=20)


def test_a_forked_child_neither_uses_nor_destroys_what_was_kept() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)
