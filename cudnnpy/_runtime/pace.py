"""Whether the GPU waits for the host, or the host for the GPU: which way of launching takes less time depends on it.

Where the GPU waits, the host's time counts, and a CUDA graph takes the least of it. Where launches wait in the stream's
queue, the GPU's time counts, and a CUDA graph takes it longer than the same kernels one after another. So an event is
recorded every few launches, and the next look tells whether the GPU has reached it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_int, c_void_p

from cudnnpy._core.driver import capture_nearby, driver_library

_LOOKS = {True: 4, False: 16}  # launches between two looks; each takes the host 1 us, and the GPU less
_AGREEING = 2  # looks, one after another, that change the answer: a single one may be chance
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_of_thread = threading.local()


class Pace:
    """The pace of one thread's launches on one device. `gpu_waits` is the latest answer."""

    __slots__ = ("_contrary", "_event", "_left", "gpu_waits")

    def __init__(self) -> None:
        self.gpu_waits, self._contrary, self._left = True, 0, _LOOKS[True]
        self._event: c_void_p | None = None  # a null event is one that could not be made

    @classmethod
    def of_thread(cls, device: int) -> Pace:
        """Return that of the calling thread for a device."""
        paces: dict[int, Pace] = _of_thread.__dict__.setdefault("paces", {})
        found = paces.get(device)
        if found is None:
            found = paces[device] = cls()
        return found

    def launches(self, stream: int) -> bool:
        """Count a launch on a stream of the current device, and return whether the GPU waits for the host."""
        self._left -= 1
        if not self._left:
            self._look(stream)
        return self.gpu_waits

    def _look(self, stream: int) -> None:
        self._left = _LOOKS[self.gpu_waits]
        if capture_nearby(stream):
            return
        library, mode = driver_library(), c_int(_RELAXED)
        # A query is not allowed while any thread captures, unless the mode of the calling thread is relaxed.
        library.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            self._take(bool(self._event) and library.cuEventQuery(self._event) != 0)
            if self._event is None:
                self._event = c_void_p()
                library.cuEventCreate(byref(self._event), _DISABLE_TIMING)
            if self._event:
                library.cuEventRecord(self._event, c_void_p(stream))
        finally:
            library.cuThreadExchangeStreamCaptureMode(byref(mode))

    def _take(self, is_behind: bool) -> None:
        """Take account of whether the GPU had not reached the event of the last look."""
        if is_behind is not self.gpu_waits:
            self._contrary = 0
            return
        self._contrary += 1
        if self._contrary == _AGREEING:
            self.gpu_waits, self._contrary = not is_behind, 0
            self._left = _LOOKS[self.gpu_waits]

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._event and not is_finalizing():
            driver_library().cuEventDestroy_v2(self._event)
