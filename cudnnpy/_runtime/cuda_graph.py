"""A launch as a CUDA graph: captured once, then replayed by one call of the driver."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

from cudnnpy._core.driver import driver_library, relaxed_capture
from cudnnpy.handle import Handle, in_use

Launch = Callable[[], int]


class Replay:
    """A launch captured as an executable CUDA graph. It owns the graph and the launch itself, `plain`.

    `uses` counts its launches.
    """

    __slots__ = ("graph", "launch", "owner", "plain", "uses")

    def __init__(self, owner: Any, launch: Launch) -> None:
        self.owner, self.plain, self.uses = owner, launch, 0
        self.graph = c_void_p(int(owner.handle))
        self.launch = driver_library().cuGraphLaunch

    @classmethod
    def of(cls, launch: Launch, handle: Handle) -> Replay | None:
        """Capture one launch on a separate stream. Return None if it cannot be captured."""
        with Captures.on(handle) as captures:
            graph = None if captures is None else captures.of(launch)
            executable = None if captures is None or graph is None else captures.executable(graph)
            return None if executable is None else cls(executable, launch)


class Captures:
    """Captures of launches on a separate stream of the current device."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

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
        """Capture a launch, which goes to the handle's stream. Return None if it fails or cannot be captured."""
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

    def executable(self, graph: Graph) -> Executable | None:
        """Instantiate a captured graph, and upload it."""
        from cuda.bindings import driver

        status, executable = driver.cuGraphInstantiate(graph.handle, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return None
        made = Executable(executable)
        # Otherwise the first launch uploads it, which is not allowed while another stream is being captured.
        driver.cuGraphUpload(executable, self._stream)
        driver.cuStreamSynchronize(self._stream)
        return made


class Graph:
    """Owner of a CUgraph."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            from cuda.bindings import driver

            driver.cuGraphDestroy(self.handle)


class Executable:
    """Owner of a CUgraphExec. CUDA defers its destruction until its launches are done."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            from cuda.bindings import driver

            driver.cuGraphExecDestroy(self.handle)
