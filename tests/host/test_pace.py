"""Whether the GPU waits for the host: told by events, of which few are recorded, and never in a capture."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cudnnpy._core import driver as driver_calls
from cudnnpy._runtime import pace as pace_module
from cudnnpy._runtime.pace import Pace

STREAM = 0x5000
NOT_READY, BAD, RELAXED, GLOBAL = 600, 1, 2, 0


class FakeDriver:
    """The driver's events. `behind` says that the GPU has not reached the latest event."""

    def __init__(self) -> None:
        self.behind = False
        self.capturing: set[int] = set()
        self.mode = GLOBAL
        self.events: set[int] = set()
        self.recorded: list[int] = []
        self.failing = ""

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuEventCreate(self, event: Any, flags: int) -> int:
        assert flags == 2  # CU_EVENT_DISABLE_TIMING
        if self.failing == "cuEventCreate":
            return BAD
        event._obj.value = 0x100 + len(self.events)
        self.events.add(event._obj.value)
        return 0

    def cuEventQuery(self, event: Any) -> int:
        assert self.mode == RELAXED
        assert event.value in self.events
        return NOT_READY if self.behind else 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        assert event.value in self.events
        self.recorded.append(stream.value or 0)
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.events.remove(event.value)
        return 0

    def cuStreamIsCapturing(self, stream: int, state: Any) -> int:
        state._obj.value = int(stream in self.capturing)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    for module in (driver_calls, pace_module):
        monkeypatch.setattr(module, "driver_library", lambda: fake)
    monkeypatch.setattr(driver_calls, "_torch_captures", driver_calls._ask_torch)
    yield fake
    assert fake.mode == GLOBAL


def run(pace: Pace, launches: int, stream: int = STREAM) -> list[bool]:
    return [pace.launches(stream) for _ in range(launches)]


def test_at_first_the_gpu_waits(driver: FakeDriver) -> None:
    assert run(Pace(), 100) == [True] * 100
    assert len(driver.recorded) == 25


def test_a_gpu_that_is_behind_for_two_looks_changes_the_answer(driver: FakeDriver) -> None:
    pace = Pace()
    run(pace, 40)
    driver.behind = True
    found = run(pace, 40)
    assert found == [True] * found.index(False) + [False] * (40 - found.index(False))
    assert found.index(False) <= 8
    recorded = len(driver.recorded)
    assert run(pace, 160) == [False] * 160
    assert len(driver.recorded) - recorded == 10  # the GPU's time counts now
    driver.behind = False
    found = run(pace, 100)
    assert found == [False] * found.index(True) + [True] * (100 - found.index(True))
    assert found.index(True) <= 32


def test_a_single_look_changes_nothing(driver: FakeDriver) -> None:
    pace = Pace()
    run(pace, 40)
    for _ in range(20):  # a kernel that takes long, once in a while
        driver.behind = True
        assert run(pace, 4) == [True] * 4
        driver.behind = False
        assert run(pace, 4) == [True] * 4
    driver.behind = True
    run(pace, 40)
    for _ in range(20):  # the host synchronizes once in a while
        driver.behind = False
        assert run(pace, 16) == [False] * 16
        driver.behind = True
        assert run(pace, 16) == [False] * 16


def test_a_capture_is_left_alone(driver: FakeDriver) -> None:
    pace = Pace()
    driver.capturing = {STREAM}
    assert run(pace, 100) == [True] * 100
    assert (driver.recorded, driver.events) == ([], set())
    driver.capturing = set()
    run(pace, 8)
    assert driver.recorded == [STREAM] * 2


def test_each_thread_and_device_has_its_own(driver: FakeDriver) -> None:
    found = [Pace.of_thread(at) for at in (0, 1, 0)]

    def work() -> None:
        found.append(Pace.of_thread(0))
        run(found[-1], 8)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is found[2]
    assert len({id(one) for one in found}) == 3
    assert len(driver.events) == 1
    found.clear()
    assert driver.events == set()  # the thread has ended


def test_without_events_the_gpu_waits(driver: FakeDriver) -> None:
    driver.failing, driver.behind = "cuEventCreate", True
    pace = Pace()
    assert run(pace, 100) == [True] * 100
    assert driver.recorded == []
    del pace
