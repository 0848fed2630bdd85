"""Workspace: one buffer for each thread, device and stream, its owner and its lifetime. No GPU here."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext
from inspect import unwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stand_in_driver import DONE, DriverFixture, StandInDriver

import cudnnpy
from cudnnpy._arrays import workspace
from cudnnpy._arrays.workspace import allocate_from_pool, release_workspace, set_allocator

STREAM, OTHER = 0x5000, 0x6000


class Buffer:
    """Device memory, told by its `handle` as cuda.core's buffers are."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size


class Pool:
    """An allocator that remembers what it gave, and what of it is still held."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int, int]] = []
        self.alive: weakref.WeakSet[Buffer] = weakref.WeakSet()

    def __call__(self, size: int, device: int, stream: int) -> Buffer:
        self.given.append((size, device, stream))
        buffer = Buffer(len(self.given) << 20, size)
        self.alive.add(buffer)
        return buffer

    def held(self) -> list[int]:
        gc.collect()
        return sorted(buffer.size for buffer in self.alive)


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The streams that are being captured, with the number of the capture."""
    captures: dict[int, int] = {}
    monkeypatch.setattr(workspace, "is_capturing", lambda stream: stream in captures)
    monkeypatch.setattr(workspace, "capture_id", captures.__getitem__)
    return captures


@pytest.fixture
def pool(capturing: dict[int, int]) -> Pool:
    made = Pool()
    set_allocator(made)
    return made


def test_one_buffer_serves_a_stream_and_grows(pool: Pool) -> None:
    first = workspace.workspace(100, 0, STREAM)
    assert workspace.workspace(100, 0, STREAM) == first
    assert workspace.workspace(1, 0, STREAM) == first
    larger = workspace.workspace(101, 0, STREAM)
    assert larger != first
    assert workspace.workspace(100, 0, STREAM) == larger
    assert pool.given == [(100, 0, STREAM), (101, 0, STREAM)]
    assert pool.held() == [101]  # the outgrown one is given back, in the order of its stream


def test_streams_and_devices_have_buffers_of_their_own(pool: Pool) -> None:
    addresses = {workspace.workspace(64, device, stream) for device in (0, 1) for stream in (0, STREAM, OTHER)}
    assert len(addresses) == 6
    assert sorted(pool.given) == sorted((64, device, stream) for device in (0, 1) for stream in (0, STREAM, OTHER))


def test_threads_have_buffers_of_their_own_which_go_with_them(pool: Pool) -> None:
    mine = workspace.workspace(64, 0, STREAM)
    theirs: list[int] = []

    def work() -> None:
        theirs.extend(workspace.workspace(64, 0, STREAM) for _ in range(3))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert len(set(theirs)) == 1
    assert theirs[0] != mine
    assert len(pool.given) == 2
    assert pool.held() == [64]
    assert workspace.workspace(64, 0, STREAM) == mine


def test_a_new_allocator_serves_from_the_next_call_on_in_every_thread(pool: Pool) -> None:
    old = workspace.workspace(64, 0, STREAM)
    steps = [threading.Barrier(2, timeout=10) for _ in range(2)]
    seen: list[int] = []

    def work() -> None:
        seen.append(workspace.workspace(64, 0, STREAM))
        steps[0].wait()
        steps[1].wait()
        seen.append(workspace.workspace(64, 0, STREAM))

    thread = threading.Thread(target=work)
    thread.start()
    steps[0].wait()
    new = Pool()
    set_allocator(new)
    steps[1].wait()
    thread.join(10)
    assert workspace.workspace(64, 0, STREAM) != 0
    assert len(pool.given) == 2
    assert len(new.given) == 2
    assert seen[0] != old
    assert pool.held() == []


def test_what_a_graph_was_captured_with_is_its_own_and_kept(pool: Pool, capturing: dict[int, int]) -> None:
    warm = workspace.workspace(100, 0, STREAM)
    capturing[STREAM] = 1
    first = workspace.workspace(90, 0, STREAM)
    assert workspace.workspace(90, 0, STREAM) == first
    assert workspace.workspace(50, 0, STREAM) == first
    assert workspace.workspace(100, 0, OTHER) != first  # which is not captured
    capturing[STREAM] = 2  # graphs may be launched side by side
    second = workspace.workspace(90, 0, STREAM)
    capturing.clear()
    assert workspace.workspace(100, 0, STREAM) == warm
    assert len({warm, first, second}) == 3
    workspace.workspace(200, 0, STREAM)
    workspace.workspace(200, 0, OTHER)
    assert pool.held() == [90, 90, 200, 200]
    set_allocator(None)
    set_allocator(pool)
    workspace.workspace(10, 0, STREAM)
    assert pool.held() == [10, 90, 90]  # the graphs' outlive the allocator
    release_workspace(captured=True)
    assert pool.held() == []


def test_a_buffer_outgrown_within_a_capture_is_kept_too(pool: Pool, capturing: dict[int, int]) -> None:
    """The launches recorded before use it."""
    capturing[STREAM] = 1
    small = workspace.workspace(100, 0, STREAM)
    large = workspace.workspace(200, 0, STREAM)
    assert workspace.workspace(100, 0, STREAM) == large != small
    capturing.clear()
    assert pool.held() == [100, 200]


@pytest.mark.parametrize("allocator", [5, "torch", b"", object()])
def test_an_allocator_is_a_function(allocator: Any) -> None:
    with pytest.raises(TypeError, match=r"allocator must be a function of.*; got .*"):
        set_allocator(allocator)
    assert unwrap(cudnnpy.set_allocator) is set_allocator


def test_an_allocator_takes_three_arguments() -> None:
    with pytest.raises(TypeError, match=r"allocator must take \(size, device, stream\); got a function of \(size\)"):
        set_allocator(lambda size: size)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("given", [None, 5, b"memory"])
def test_an_allocator_gives_device_memory(pool: Pool, given: Any) -> None:
    set_allocator(lambda size, device, stream: given)
    with pytest.raises(TypeError, match=r"the allocator's result must be a device array.*; got .*"):
        workspace.workspace(64, 0, STREAM)


def test_an_allocators_host_array_is_refused(pool: Pool) -> None:
    set_allocator(lambda size, device, stream: np.empty(size, np.uint8))
    with pytest.raises(TypeError, match="the allocator's result must be an array on a CUDA device; got a host array"):
        workspace.workspace(64, 0, STREAM)


def test_an_allocator_that_fails_leaves_the_old_buffer(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    old = workspace.workspace(64, 0, STREAM)

    def fail(self: Pool, *_: int) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(Pool, "__call__", fail)
    with pytest.raises(MemoryError, match="no more"):
        workspace.workspace(65, 0, STREAM)
    assert workspace.workspace(64, 0, STREAM) == old


class OutOfMemoryError(RuntimeError):
    """As PyTorch calls its own."""


@pytest.mark.parametrize(
    "error",
    [MemoryError("no more"), OutOfMemoryError("tried to allocate"), RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: no more")],
    ids=["MemoryError", "torch", "by its text"],
)
def test_an_allocator_that_is_out_of_memory_is_a_memory_error(pool: Pool, error: Exception) -> None:
    def fail(*_: int) -> Any:
        raise error

    set_allocator(fail)
    with pytest.raises(MemoryError, match="the allocator has no 64 bytes of memory on device 0") as caught:
        workspace.workspace(64, 0, STREAM)
    assert caught.value.__cause__ is error
    set_allocator(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        workspace.workspace(64, 0, STREAM)


def test_workspace_is_given_back_when_it_is_asked_for(pool: Pool, capturing: dict[int, int]) -> None:
    for stream in (STREAM, OTHER):
        workspace.workspace(64, 0, stream)
    capturing[STREAM] = 1
    workspace.workspace(32, 0, STREAM)
    capturing.clear()
    cudnnpy.release_workspace()
    assert pool.held() == [32]  # the captured graph's
    workspace.workspace(16, 0, STREAM)
    assert pool.held() == [16, 32]


def test_what_the_pool_keeps_unused_is_free(monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> None:
    monkeypatch.setattr(workspace, "on_device", lambda device: nullcontext())
    attributes = SimpleNamespace(reserved_mem_current=700, used_mem_current=400)
    pools = {0: SimpleNamespace(attributes=attributes), 1: SimpleNamespace()}
    core = SimpleNamespace(Device=lambda device: SimpleNamespace(memory_resource=pools[device]))
    cuda_driver(core=core, cuMemGetInfo=lambda: (*DONE, 1000, 5000))
    assert workspace.free_bytes(0) == 1300
    assert workspace.free_bytes(1) == 1000


# cuda.core's pool


class Device:
    """In place of cuda.core's Device: `error` is what its memory resource raises."""

    error: Exception | None = None
    log: list[Any] = []

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.memory_resource = SimpleNamespace(allocate=self._allocate)

    def _allocate(self, size: int, *, stream: Any) -> Buffer:
        if self.error is not None:
            raise self.error
        self.log.append(("allocate", self.ordinal, size, stream))
        return Buffer(1 << 20, size)

    def create_stream(self) -> Any:
        return SimpleNamespace(sync=lambda: self.log.append("sync"), name="own")

    def set_current(self) -> None:
        pass


@pytest.fixture
def driver(cuda_driver: DriverFixture) -> StandInDriver:
    streams = SimpleNamespace(from_handle=lambda address: ("stream", address))
    return cuda_driver(core=SimpleNamespace(Device=Device, Stream=streams))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, driver: StandInDriver) -> type[Device]:
    monkeypatch.setattr(workspace, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(Device, "log", [])
    return Device


def test_memory_comes_from_the_devices_pool_in_the_order_of_the_stream(device: type[Device]) -> None:
    address, size, owner = allocate_from_pool(4096, 1, STREAM)
    assert (address, size) == (1 << 20, 4096)
    assert isinstance(owner, Buffer)
    assert device.log == [("allocate", 1, 4096, ("stream", STREAM))]


def test_in_a_capture_memory_is_allocated_on_another_stream(device: type[Device], driver: StandInDriver) -> None:
    """So that the allocation does not become part of the graph."""

    def exchange(mode: Any) -> tuple[int, str]:
        device.log.append(mode)
        return 0, "the mode before"

    driver.functions["cuThreadExchangeStreamCaptureMode"] = exchange
    allocate_from_pool(4096, 0, STREAM, capturing=True)
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert [device.log[0], *device.log[2:]] == [relaxed, "sync", "the mode before"]
    assert device.log[1][:3] == ("allocate", 0, 4096)
    assert device.log[1][3].name == "own"


def test_a_device_without_that_much_memory_is_a_memory_error_with_the_sizes(
    device: type[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "error", RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: no"))
    monkeypatch.setattr(workspace, "free_bytes", lambda ordinal: 1234)
    with pytest.raises(MemoryError, match=r"device 0 has no 4096 bytes of memory \(1234 are free\)"):
        allocate_from_pool(4096, 0, STREAM)
    monkeypatch.setattr(device, "error", RuntimeError("CUDA_ERROR_INVALID_CONTEXT"))
    with pytest.raises(RuntimeError, match="INVALID_CONTEXT"):
        allocate_from_pool(4096, 0, STREAM)
