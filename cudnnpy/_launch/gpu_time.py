"""The GPU time of one launch, by CUDA events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_void_p

from cudnnpy._core.driver import relaxed_capture
from cudnnpy._cuda_python import driver_library

# The stream waits for this long before the first event, so that the kernels are queued when it is recorded. Otherwise the
# GPU would wait for the host between the events. The driver calls usleep itself, which needs no lock of the interpreter.
DELAY_US = 100
_SLEEP = ctypes.cast(ctypes.pythonapi.usleep, c_void_p)


def gpu_microseconds(launch: Callable[[], object], stream: int) -> float | None:
    """Call `launch`, wait until the GPU has done the work that it queues, and return the time of this work on the GPU.

    If `launch` takes longer than DELAY_US, the time includes the GPU's waiting for it, and is only an upper bound. None if the
    driver reports an error. The stream must not be captured, and its device must be current.
    """
    driver, address, milliseconds = driver_library(), c_void_p(stream), c_float()
    begin, end = c_void_p(), c_void_p()
    try:
        with relaxed_capture():  # another thread may capture
            driver.cuEventCreate(byref(begin), 0)
            driver.cuEventCreate(byref(end), 0)
            driver.cuLaunchHostFunc(address, _SLEEP, c_void_p(DELAY_US))
            driver.cuEventRecord(begin, address)
        launch()
        with relaxed_capture():
            failed = (
                driver.cuEventRecord(end, address)
                or driver.cuEventSynchronize(end)
                or driver.cuEventElapsedTime(byref(milliseconds), begin, end)
            )
    finally:
        driver.cuEventDestroy_v2(begin)
        driver.cuEventDestroy_v2(end)
    return None if failed else milliseconds.value * 1e3
