"""CUDA driver calls on the path of every launch: the current device, and whether a stream is being captured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from typing import Any

from cudnnpy._core.cuda_python import cuda_python, driver_library
from cudnnpy._process.module_state import declare, process_cache
from cudnnpy.errors import CaptureError

_NOT_READY = 600  # CUDA_ERROR_NOT_READY


def is_capturing(stream: int) -> bool:
    """Return whether a stream is being captured into a CUDA graph. The legacy default stream (0, 1) cannot be."""
    if stream in (0, 1):
        return False
    state = c_int()
    return driver_library().cuStreamIsCapturing(stream, byref(state)) == 0 and state.value != 0


def is_stream_idle(stream: int) -> bool:
    """Return whether all work on a stream has ended, or failed."""
    return int(driver_library().cuStreamQuery(c_void_p(stream))) != _NOT_READY


def make_current(device: int) -> None:
    """Make a device current in the calling thread."""
    cuda_python("core").Device(device).set_current()


def is_stream_or_torch_capturing(stream: int) -> bool:
    """Return whether the stream, or PyTorch's current stream, is being captured.

    While the thread captures another stream, a capture by this package can invalidate that one.
    """
    return is_capturing(stream) or bool(_torch_captures())


def check_not_capturing(operation: str, stream: int, advice: str = "") -> None:
    """Raise CaptureError if the stream, or PyTorch's current stream, is being captured: nothing is planned then."""
    if not is_stream_or_torch_capturing(stream):
        return
    why = "a stream is being captured into a CUDA graph"
    if not advice:
        why = f"this signature has not been planned yet, and {why}"
        advice = "Call it once with arrays of the same shapes before the capture (a warm-up)"
    raise CaptureError(f"{operation}: {why}. {advice}; the capture is intact")


def _ask_torch() -> bool:
    """Return whether PyTorch's current stream is being captured.

    PyTorch's function raises if there is no driver. Nothing is captured before PyTorch has initialized CUDA. After that,
    PyTorch's function is called directly instead of this one.
    """
    global _torch_captures
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)  # missing while another thread imports PyTorch
    if is_initialized is None or not is_initialized():
        return False
    _torch_captures = cuda.is_current_stream_capturing
    return bool(_torch_captures())


_torch_captures: Callable[[], bool] = _ask_torch

# In a forked child PyTorch's CUDA cannot be used, and PyTorch itself raises the error.
declare(__name__, "_torch_captures", in_child=True)


@process_cache
def has_several_devices() -> bool:
    """Return whether the process sees several GPUs, so that the current device must be checked at each launch.

    It counts the GPUs of CUDA_VISIBLE_DEVICES. cuda.core's count is of all GPUs of the machine.
    """
    count = c_int()
    return driver_library().cuDeviceGetCount(byref(count)) != 0 or count.value > 1


def current_device() -> int:
    """Return the calling thread's current device, or -1."""
    device = c_int(-1)
    driver_library().cuCtxGetDevice(byref(device))
    return device.value


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Permit the calling thread to allocate and to make graphs during a capture (cuThreadExchangeStreamCaptureMode)."""
    driver = cuda_python("bindings.driver")
    before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)[1]
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
