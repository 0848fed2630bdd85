"""Handles on a real device: the device, the stream, the thread and the process that they belong to."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cuda.bindings import driver
from cuda.core import Device
from fresh_process import python

from cudnnpy import raw
from cudnnpy.errors import ClosedError
from cudnnpy.handle import Handle, stream_address


@pytest.fixture
def device() -> Device:
    chosen = Device(0)
    chosen.set_current()
    return chosen


def current_context() -> int:
    return int(driver.cuCtxGetCurrent()[1])


def test_a_handle_on_the_current_device(device: Device) -> None:
    with Handle() as handle:
        assert handle.device == device.device_id
        assert handle.stream == 0
        assert handle.address
    assert handle.closed
    with pytest.raises(ClosedError):
        handle.set_stream(1)


@pytest.mark.parametrize("given", [lambda: 0, lambda: Device(0)], ids=["ordinal", "Device"])
def test_a_handle_on_a_device_leaves_the_current_one(device: Device, given: Callable[[], Any]) -> None:
    before = current_context()
    with Handle(given()) as handle:
        assert handle.device == 0
        assert current_context() == before


def test_a_thread_without_a_context_gets_the_devices() -> None:
    """As with the CUDA runtime: launches that follow need one."""
    seen: list[int] = []

    def work() -> None:
        driver.cuCtxSetCurrent(driver.CUcontext(0))
        handle = Handle(0)
        seen.append(current_context())
        handle.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert seen[0] != 0


def test_an_ordinal_that_the_machine_has_not(device: Device) -> None:
    with pytest.raises(ValueError, match=r"1000|device"):
        Handle(1000)


def test_streams(device: Device) -> None:
    one, other = device.create_stream(), device.create_stream()
    with Handle(stream=one) as handle:
        assert handle.stream == stream_address(one) != 0
        handle.set_stream(other)
        assert handle.stream == int(other.handle)
        handle.set_stream(int(one.handle))
        assert handle.stream == int(one.handle)
        handle.set_stream(None)
        assert handle.stream == 0


def test_a_stream_set_by_raw_is_noticed_when_read(device: Device) -> None:
    one = device.create_stream()
    with Handle() as handle:
        raw.call("cudnnSetStream", handle, int(one.handle))
        assert handle.stream == int(one.handle)
        handle.set_stream(None)
        assert handle.stream == 0


def test_a_stream_is_kept_alive_while_it_is_set(device: Device) -> None:
    with Handle(stream=device.create_stream()) as handle:
        gc.collect()
        raw.call("cudnnSetStream", handle, handle.stream)
        device.sync()


def test_collecting_during_a_capture_does_no_harm(device: Device) -> None:
    """cudnnDestroy would end the capture and spoil the launches after it."""
    stream = device.create_stream()
    handle = Handle(0, stream)
    address = int(stream.handle)
    error = driver.cuStreamBeginCapture(address, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)[0]
    assert error == driver.CUresult.CUDA_SUCCESS
    del handle
    gc.collect()
    error, graph = driver.cuStreamEndCapture(address)
    assert error == driver.CUresult.CUDA_SUCCESS
    driver.cuGraphDestroy(graph)
    device.sync()


def test_after_a_fork_it_is_an_error_and_no_crash() -> None:
    source = (
        "import os\n"
        "from cudnnpy.errors import ClosedError\n"
        "from cudnnpy.handle import Handle\n"
        "handle = Handle(0)\n"
        "default = Handle.default(0)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        handle.stream\n"
        "    except ClosedError as error:\n"
        "        print(error, flush=True)\n"
        "    handle.close()\n"
        "    del handle, default\n"
        "    os._exit(0)\n"
        "print(os.waitpid(child, 0)[1], handle.stream)\n"
        "handle.close()\n"
    )
    error, parent = python(source).splitlines()
    assert error.startswith("this Handle was made before this process was forked from its owner's")
    assert parent == "0 0"
