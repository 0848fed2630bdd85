"""Whether the GPU waits for the host, or launches wait for the GPU: which way of launching takes less time depends on it.

Where the GPU waits, the host's time counts, and a CUDA graph takes the least of it. Where launches wait in the stream's
queue, the GPU's time counts, and a CUDA graph takes it longer than the same kernels one after another. So an event is
recorded now and then, and later launches tell how soon the GPU reaches it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_void_p

from cudnnpy._core.driver import capture_nearby, driver_library
from cudnnpy._core.layouts import TensorSpec, extent

_LOOK = 16  # launches between two looks at the event
_SOON = 2  # events, one after another, that the GPU reaches by the next look, until it is taken to wait for the host
_BEHIND = 3 * _LOOK  # launches after an event by which a GPU has fallen behind that has not reached it
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_of_thread = threading.local()
_LONG = 6.0  # the microseconds that the GPU needs at least for a launch that is long
# The most bytes that a GPU moves, and the most multiplications that it does, in a microsecond (an H200).
_BYTES = 5e6
_PRODUCTS = {"float32": 1e8, "float64": 2e7}
_HALF_PRODUCTS = 4e8  # of the other types


def is_long(specs: Sequence[TensorSpec], products: int = 0) -> bool:
    """Return whether the GPU takes longer than the host for a launch, by its operands and its number of multiplications."""
    rate = _PRODUCTS.get(specs[0].dtype, _HALF_PRODUCTS) if specs else _HALF_PRODUCTS
    return max(sum(map(extent, specs)) / _BYTES, products / rate) >= _LONG


class Pace:
    """The pace of one thread's launches on one device.

    `gpu_waits` is True or False where the events tell, and None where the host and the GPU are about as fast. `left` is the
    number of launches until the next look; each launch counts it down, and calls `look` at 0.
    """

    __slots__ = ("_event", "_launches", "_process", "_soon", "gpu_waits", "left")

    def __init__(self) -> None:
        self.gpu_waits: bool | None = None
        self.left, self._launches, self._soon = _LOOK, 0, 0  # _launches: since the event
        self._event: c_void_p | None = None  # a null event is one that could not be made
        self._process = os.getpid()

    @classmethod
    def of_thread(cls, device: int) -> Pace:
        """Return that of the calling thread for a device."""
        paces: dict[int, Pace] = _of_thread.__dict__.setdefault("paces", {})
        found = paces.get(device)
        if found is None:
            found = paces[device] = cls()
        return found

    def look(self, stream: int) -> None:
        """Look at the event, from a launch on a stream of the current device."""
        self.left = _LOOK
        self._launches += _LOOK
        if capture_nearby(stream):
            return
        library, mode = driver_library(), c_int(_RELAXED)
        # A query is not allowed while any thread captures, unless the mode of the calling thread is relaxed.
        library.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            if self._event is None:
                self._event = c_void_p()
                library.cuEventCreate(byref(self._event), _DISABLE_TIMING)
            elif self._event and not self._answered(library.cuEventQuery(self._event) == 0):
                return
            if self._event:
                library.cuEventRecord(self._event, c_void_p(stream))
                self._launches = 0
        finally:
            library.cuThreadExchangeStreamCaptureMode(byref(mode))

    def _answered(self, is_reached: bool) -> bool:
        """Take account of whether the GPU has reached the event. Return whether that tells something."""
        if is_reached and self._launches <= _LOOK:
            self._soon += 1
            if self._soon >= _SOON:
                self.gpu_waits = True
        elif is_reached:
            self._soon = 0
            if self.gpu_waits:
                self.gpu_waits = None
        elif self._launches >= _BEHIND:
            self._soon, self.gpu_waits = 0, False
        else:
            return False
        return True

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._event and not is_finalizing() and self._process == os.getpid():
            driver_library().cuEventDestroy_v2(self._event)
