"""Memory of cuda.core's pool that is given back to the driver for other allocators, and its reserve. No GPU here."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in_driver import DONE, DriverFixture

import cudnnpy
from cudnnpy._arrays import workspace
from cudnnpy._arrays.workspace import allocate_from_pool, trim_pool_afterwards
from cudnnpy._core import driver as driver_calls

STREAM, OTHER = 0x5000, 0x6000
MiB, GiB = 1 << 20, 1 << 30


class Buffer:
    """An allocation, as cuda.core has it."""

    handle = 1 << 20


class Pool:
    """The pool of a device, which keeps all that it ever mapped until it is trimmed."""

    in_one_part = False

    def __init__(self) -> None:
        self.reserved_mem_current = self.used_mem_current = 0
        self.parts: list[int] = []  # the sizes in which memory was mapped; nothing smaller goes back to the driver
        self.freed: Counter[int] = Counter()  # bytes whose free is queued, by the stream
        self.handle, self.attributes, self.allocate = self, self, self.take

    def take(self, size: int, *, stream: int) -> Buffer:
        self.used_mem_current += size
        more = self.used_mem_current - self.reserved_mem_current
        if more > 0:
            self.reserved_mem_current += more
            self.parts += [more] if self.in_one_part else [MiB] * (more // MiB)
        buffer = Buffer()
        weakref.finalize(buffer, self.freed.update, {stream: size})
        return buffer

    def hold(self, used: int, unused: int) -> None:
        """Memory of others."""
        self.used_mem_current, self.reserved_mem_current = used, used + unused
        self.parts = [MiB] * (unused // MiB)

    @property
    def unused(self) -> int:
        return self.reserved_mem_current - self.used_mem_current


class Driver:
    """The driver: what it was asked for, the devices' pools, and the streams that are being captured."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.current: int | None = None
        self.pools: dict[int, Any] = {0: Pool(), 1: Pool()}
        self.captured: set[int] = set()
        self.error: Exception | None = None

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, stream: int) -> tuple[int]:
        assert stream not in self.captured
        assert self.current is not None
        self.calls.append(("synchronize", stream))
        pool = self.pools[self.current]
        pool.used_mem_current -= pool.freed.pop(stream, 0)
        return (0,)

    def trim(self, pool: Pool, keep: int) -> tuple[int]:
        """Memory whose free has not been waited for counts as used."""
        self.calls.append(("trim", keep))
        if self.error is not None:
            raise self.error
        least = max(keep, pool.used_mem_current)  # which is guaranteed to stay
        while pool.parts and pool.reserved_mem_current - pool.parts[-1] >= least:
            pool.reserved_mem_current -= pool.parts.pop()
        return (0,)

    def is_capturing(self, stream: int, state: Any) -> int:
        state._obj.value = stream in self.captured
        return 0

    @property
    def trims(self) -> int:
        return [name for name, _ in self.calls].count("trim")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> Driver:
    made = Driver()
    core = SimpleNamespace(
        Device=lambda device: SimpleNamespace(memory_resource=made.pools[device]),
        Stream=SimpleNamespace(from_handle=lambda address: address),
    )
    cuda_driver(
        core=core,
        cuStreamSynchronize=made.synchronize,
        cuMemPoolTrimTo=made.trim,
        cuStreamIsCapturing=made.is_capturing,
        cuThreadExchangeStreamCaptureMode=lambda mode: (*DONE, mode),
    )
    monkeypatch.setattr(driver_calls, "_torch_captures", lambda: 0 in made.captured)
    monkeypatch.setattr(workspace, "on_device", made.on_device)
    return made


def use(size: int, device: int = 0, stream: int = STREAM) -> None:
    """Take memory for a block, and free it there."""
    with trim_pool_afterwards(device, stream):
        allocate_from_pool(size, device, stream)


# Memory for a while


@pytest.mark.parametrize(
    ("before", "taken", "after"),
    [
        (0, 130 * GiB, GiB),  # most of it goes back
        (0, GiB, GiB),  # little enough to be kept for the next problem
        (0, 5000, 5000),
        (3 * GiB, 130 * GiB, 3 * GiB),  # what was there for others stays
        (3 * GiB, 2 * GiB, 3 * GiB),
        (GiB // 2, 3 * GiB, GiB),
    ],
)
@pytest.mark.parametrize("used", [0, 7 * GiB], ids=["unused", "used by others"])
@pytest.mark.parametrize("in_one_part", [False, True], ids=["in parts", "in one part"])
def test_memory_that_was_taken_for_a_while_goes_back_to_the_driver(
    driver: Driver, before: int, taken: int, after: int, used: int, in_one_part: bool
) -> None:
    pool = driver.pools[0]
    pool.in_one_part = in_one_part
    if in_one_part and taken > max(before, GiB):
        after = before  # less cannot be kept
    pool.hold(used, before)
    use(taken)
    assert (pool.used_mem_current, pool.unused) == (used, after)
    assert pool.reserved_mem_current <= used + before + GiB
    assert driver.calls[0] == ("synchronize", STREAM)
    if taken <= max(before, GiB):
        assert driver.trims == 0  # nothing is mapped anew for the next problem


def test_memory_goes_back_when_the_block_fails(driver: Driver) -> None:
    with pytest.raises(ZeroDivisionError), trim_pool_afterwards(0, STREAM):
        allocate_from_pool(8 * GiB, 0, STREAM)
        _ = 1 / 0
    assert driver.pools[0].unused == GiB


@pytest.mark.parametrize("stream", [STREAM, 0], ids=["its stream", "PyTorch's stream"])
def test_nothing_is_done_during_a_capture(driver: Driver, stream: int) -> None:
    """Neither a synchronization, which would end the capture with an error."""
    workspace.workspace(8 * GiB, 0, STREAM)
    driver.captured.add(stream)
    use(8 * GiB)
    cudnnpy.release_workspace()
    assert driver.calls == []


# The workspace


def test_workspace_that_is_released_is_there_for_other_allocators(driver: Driver) -> None:
    """Work that still runs is waited for: before that, its memory cannot be given back."""
    driver.pools[0].hold(GiB, GiB // 2)  # memory of others
    for device in (0, 1):
        workspace.workspace(4 * GiB, device, STREAM)
        workspace.workspace(2 * GiB, device, OTHER)
    cudnnpy.release_workspace()
    found = [(pool.used_mem_current, pool.unused) for pool in driver.pools.values()]
    assert found == [(GiB, 0), (0, 0)]
    for device in (0, 1):
        assert workspace.workspace(GiB, device, STREAM)
    assert driver.pools[1].used_mem_current == GiB


def test_a_captured_graph_keeps_its_workspace(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(size: int, device: int, stream: int, capturing: bool) -> tuple[int, int, Any]:
        return 1 << 20, size, driver.pools[device].take(size, stream=stream)

    monkeypatch.setattr(workspace, "allocate_from_pool", take)
    workspace._pools.add(0)
    monkeypatch.setattr(workspace, "capture_id", lambda stream: 1)
    driver.captured.add(STREAM)
    workspace.workspace(2 * GiB, 0, STREAM)
    driver.captured.clear()
    workspace.workspace(3 * GiB, 0, OTHER)
    cudnnpy.release_workspace()
    assert ("synchronize", STREAM) not in driver.calls  # the stream of the capture may be gone
    assert (driver.pools[0].used_mem_current, driver.pools[0].unused) == (2 * GiB, 0)


def test_the_size_of_a_device(cuda_driver: DriverFixture) -> None:
    invalid = (1, None)
    cuda_driver(
        cuDeviceGet=lambda ordinal: (*DONE, ordinal + 10) if ordinal < 2 else invalid,
        cuDeviceTotalMem=lambda device: (*DONE, 5 * GiB) if device == 10 else invalid,
    )
    assert [workspace.total_bytes(number) for number in (0, 1, 2)] == [5 * GiB, 0, 0]
