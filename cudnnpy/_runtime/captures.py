"""Captures of launches into CUDA graphs, from which is read what the launches queue. Nothing runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from typing import Any

from cudnnpy._core.driver import driver_library, relaxed_capture
from cudnnpy.handle import Handle, in_use

Launch = Callable[[], int]
# Of a launch that is queued again. With more of them a CUDA graph takes the GPU too long, and single launches the host.
MOST_KERNELS = 8


class Captures:
    """Captures of launches on a separate stream of the current device, whose address is `stream`."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.stream = stream, int(stream)

    @classmethod
    @contextmanager
    def on(cls, handle: Handle) -> Iterator[Captures | None]:
        """Point a handle to the stream of the captures within the block. None if there is no stream."""
        from cuda.bindings import driver

        with relaxed_capture():
            before = handle._address
            status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
            if status != driver.CUresult.CUDA_SUCCESS:
                yield None
                return
            try:
                with in_use(handle, int(stream)):
                    yield cls(stream)
            finally:
                handle.set_stream(before)
                driver.cuStreamDestroy(stream)

    def of(self, launch: Launch) -> Graph | None:
        """Capture a launch, which goes to the stream. Return None if it fails or cannot be captured."""
        from cuda.bindings import driver

        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        if driver.cuStreamBeginCapture(self._stream, mode)[0] != driver.CUresult.CUDA_SUCCESS:
            return None  # without a capture the launch would run
        captured, failed = None, 1
        try:
            failed = launch()
        finally:
            status, graph = driver.cuStreamEndCapture(self._stream)
            if status == driver.CUresult.CUDA_SUCCESS:
                captured = Graph(graph)
        return None if failed else captured


class Graph:
    """Owner of a CUgraph."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.process = handle, os.getpid()

    def nodes(self) -> int:
        """Return the number of its nodes: kernels, fills, copies."""
        count = c_size_t()
        driver_library().cuGraphGetNodes(c_void_p(int(self.handle)), None, byref(count))
        return count.value

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self.process == os.getpid():
            from cuda.bindings import driver

            driver.cuGraphDestroy(self.handle)
