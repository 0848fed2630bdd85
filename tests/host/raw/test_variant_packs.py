"""Variant packs: a launcher has those of its last two tuples of addresses, and none of a launch that failed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fresh_process import python
from stand_in_device import StandInDevice

import cudnnpy
from cudnnpy import Convolution, Plan, TensorSpec, raw
from cudnnpy.errors import ClosedError, StatusError
from cudnnpy.handle import Handle

STREAM = 0x5000
STEP = 1 << 20  # bytes between the operands of a tuple


def planned(stand_in: StandInDevice) -> Plan:
    return Convolution().plan("forward", TensorSpec((2, 3, 6, 6)), TensorSpec((4, 3, 3, 3)), device=0)


def execute(plan: Plan, number: int, times: int = 1) -> None:
    """Run on the tuple of addresses with a number."""
    for _ in range(times):
        plan.execute(*(STEP * (3 * number + at) for at in (1, 2, 3)), 0, STREAM)


@pytest.mark.parametrize("direct", [True, False])
def test_streams_are_what_every_launch_takes_or_refuses(stand_in: StandInDevice, direct: bool) -> None:
    """cuDNN and the driver take other types."""
    stand_in.is_relocatable = True
    cudnnpy.set_direct_launches(direct)
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


def test_addresses_reach_the_launch_and_the_last_two_packs_of_them_stay(stand_in: StandInDevice) -> None:
    plan = planned(stand_in)
    for number in range(500):
        for again in (number, max(number - 1, 0), number):
            execute(plan, again)
            launch = stand_in.launches[-1]
            assert [launch.addresses[name] for name in ("x", "w", "y")] == addresses_of(again)
        assert len(stand_in.packs) == min(number + 1, 2)
    calls = stand_in.c_calls
    assert (calls["cudnnBackendCreateDescriptor"], calls["cudnnBackendDestroyDescriptor"]) == (500, 498)
    assert (calls["cudnnBackendSetAttribute"], calls["cudnnBackendExecute"]) == (1500, 1500)
    del plan
    assert stand_in.packs == set()


def test_the_end_of_the_handle_ends_the_packs(stand_in: StandInDevice) -> None:
    """A pack itself does not refer to the handle; its launch does, so that the handle would not be destroyed."""
    plan = planned(stand_in)
    execute(plan, 0)
    handle = Handle.default(0)
    pointer = weakref.ref(handle.pointer)
    stand_in.launches.clear()  # which refer to it, too
    stand_in.thread_state.launches.clear()
    handle.close()
    assert (stand_in.packs, pointer()) == (set(), None)
    with pytest.raises(ClosedError):
        execute(plan, 0)


def test_a_number_that_equals_an_address_of_before_is_no_address(stand_in: StandInDevice) -> None:
    plan = planned(stand_in)
    execute(plan, 0)
    for bad in (float(STEP), str(STEP)):
        with pytest.raises(TypeError):
            plan.execute(bad, *addresses_of(0)[1:], 0, STREAM)  # type: ignore[arg-type]
    assert len(stand_in.launches) == 1


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
    execute(plan, 0)
    assert [stand_in.launches[-1].addresses[name] for name in ("x", "w", "y")] == addresses_of(0)
    assert len(stand_in.packs) == 1


@pytest.mark.parametrize("bad", [16.5, "16", None, 1 << 64])
def test_what_is_no_address_is_refused_and_no_pack_is_made(stand_in: StandInDevice, bad: Any) -> None:
    plan = planned(stand_in)
    with pytest.raises((TypeError, ValueError)):
        plan.execute(bad, *addresses_of(0)[1:], 0, STREAM)
    assert stand_in.packs == set()
    assert stand_in.launches == []


# In a process without other threads: with them, Python 3.12 and later warn of a fork.
FORK = """
import os
from cudnnpy._planning.engines import VariantPack

destroyed = []

def destroy(pack):
    destroyed.append(pack.value)
    return 0

packs = [VariantPack(destroy, ()), VariantPack(destroy, ())]
packs[0].value = 0x77
child = os.fork()
if not child:
    packs.clear()
    packs.append(VariantPack(destroy, ()))
    packs[0].value = 0x88
    packs.clear()
    os._exit(destroyed != [0x88])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
packs.clear()
assert destroyed == [0x77]  # of the other one nothing was created
"""


def test_a_forked_child_does_not_destroy_the_packs_of_its_parent() -> None:
    python(FORK)
