"""Whether the GPU waits for the host: told by events, of which few are recorded, and none in a capture."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cudnnpy._launch import pace as pace_module
from cudnnpy._launch.pace import Pace

from cudnnpy import TensorSpec
from cudnnpy._core import driver as driver_calls
from cudnnpy._core.layouts import packed_strides

STREAM = 0x5000
NOT_READY, BAD, RELAXED, GLOBAL = 600, 1, 2, 0


class FakeDriver:
    """The driver's events. `lag` is the number of launches by which the GPU is behind the host."""

    def __init__(self) -> None:
        self.lag = 0
        self.capturing: set[int] = set()
        self.mode = GLOBAL
        self.launches = 0
        self.events: dict[int, int] = {}  # with the launch after which each was recorded
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
        self.events[event._obj.value] = 0
        return 0

    def cuEventQuery(self, event: Any) -> int:
        assert self.mode == RELAXED
        return NOT_READY if self.events[event.value] > self.launches - self.lag else 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        assert event.value in self.events
        self.events[event.value] = self.launches
        self.recorded.append(stream.value or 0)
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        del self.events[event.value]
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


def run(driver: FakeDriver, pace: Pace, launches: int, stream: int = STREAM) -> list[bool | None]:
    """The answer at each launch."""
    found = []
    for _ in range(launches):
        pace.left -= 1
        if pace.left <= 0:
            pace.look(stream)
        found.append(pace.gpu_waits)
        driver.launches += 1
    return found


def test_events_do_not_tell_of_a_gpu_that_is_about_as_fast_as_the_host(driver: FakeDriver) -> None:
    driver.lag = 30
    assert run(driver, Pace(), 300) == [None] * 300


def test_a_gpu_that_reaches_events_soon_waits(driver: FakeDriver) -> None:
    pace = Pace()
    assert run(driver, pace, 47) == [None] * 47
    assert run(driver, pace, 200) == [True] * 200
    assert len(driver.recorded) <= 16
    driver.lag = 30
    assert run(driver, pace, 100)[-1] is None


def test_a_gpu_that_is_behind_is_known_after_tens_of_launches(driver: FakeDriver) -> None:
    pace = Pace()
    run(driver, pace, 200)
    driver.lag = 1000
    found = run(driver, pace, 200)
    assert found.index(False) <= 80
    assert set(found[found.index(False) :]) == {False}
    recorded = len(driver.recorded)
    assert run(driver, pace, 480) == [False] * 480
    assert len(driver.recorded) - recorded == 10  # each takes the GPU some time
    driver.lag = 0
    found = run(driver, pace, 100)
    assert found.index(True) <= 48
    assert set(found[found.index(True) :]) == {True}


def test_pauses_of_a_gpu_that_is_behind_change_nothing(driver: FakeDriver) -> None:
    """The host synchronizes, as at the end of a step or of a measurement."""
    pace = Pace()
    driver.lag = 1000
    run(driver, pace, 96)
    for _ in range(20):
        driver.lag = 0
        assert run(driver, pace, 30) == [False] * 30
        driver.lag = 1000
        assert run(driver, pace, 66) == [False] * 66


def test_a_capture_is_left_alone(driver: FakeDriver) -> None:
    pace = Pace()
    driver.capturing = {STREAM}
    assert run(driver, pace, 100) == [None] * 100
    assert (driver.recorded, driver.events) == ([], {})
    driver.capturing = set()
    run(driver, pace, 32)
    assert driver.recorded == [STREAM] * 2


def test_each_thread_and_device_has_its_own(driver: FakeDriver) -> None:
    found = [Pace.of_thread(at) for at in (0, 1, 0)]

    def work() -> None:
        found.append(Pace.of_thread(0))
        run(driver, found[-1], 16)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is found[2]
    assert len({id(one) for one in found}) == 3
    assert len(driver.events) == 1
    found.clear()
    assert driver.events == {}  # the thread has ended


def test_without_events_nothing_is_known(driver: FakeDriver) -> None:
    driver.failing, driver.lag = "cuEventCreate", 1000
    assert run(driver, Pace(), 100) == [None] * 100
    assert driver.recorded == []


@pytest.mark.parametrize(
    ("shape", "dtype", "products", "long"),
    [
        ((1, 64, 14, 14), "float16", 10**7, False),
        ((64, 64, 56, 56), "float16", 0, False),
        ((64, 256, 56, 56), "float16", 0, True),
        ((1, 64, 56, 56), "float32", 10**9, True),
        ((1, 64, 56, 56), "float16", 10**9, False),
        ((1, 64, 14, 14), "float64", 10**9, True),
    ],
)
def test_a_long_launch_moves_or_multiplies_much(shape: tuple[int, ...], dtype: str, products: int, long: bool) -> None:
    spec, one = TensorSpec(shape, dtype, packed_strides(shape)), TensorSpec((1,), strides=(1,))
    assert pace_module.is_long([spec], products) is long
    assert pace_module.is_long((spec, one), products) is long
