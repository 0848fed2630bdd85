"""A launch as a CUDA graph: captured once, then replayed by one call of the driver.

A graph is for the addresses that it was captured with. It is not moved to others by cuGraphExecKernelNodeSetParams: which
bytes of a kernel's parameters are addresses is not documented, and would have to be confirmed for each plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

from cudnnpy._core.driver import driver_library, relaxed_capture
from cudnnpy.handle import Handle

Launch = Callable[[], int]


class Replay:
    """A launch captured as an executable CUDA graph. It owns the graph and the launch itself, `plain`."""

    __slots__ = ("graph", "launch", "owner", "plain")

    def __init__(self, owner: Any, launch: Launch) -> None:
        self.owner, self.plain = owner, launch
        self.graph = c_void_p(int(owner.handle))
        self.launch = driver_library().cuGraphLaunch

    @classmethod
    def of(cls, launch: Launch, handle: Handle) -> Replay | None:
        """Capture one launch on a separate stream. Return None if it cannot be captured."""
        with relaxed_capture():
            return cls._made_of(launch, handle)

    @classmethod
    def _made_of(cls, launch: Launch, handle: Handle) -> Replay | None:
        from cuda.bindings import driver

        before = handle._address
        status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        if status != driver.CUresult.CUDA_SUCCESS:
            return None
        try:
            handle.set_stream(int(stream))
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            if driver.cuStreamBeginCapture(stream, mode)[0] != driver.CUresult.CUDA_SUCCESS:
                return None  # without a capture the launch would run
            failed = launch()
            status, graph = driver.cuStreamEndCapture(stream)
            if status != driver.CUresult.CUDA_SUCCESS:
                return None
            status, executable = driver.cuGraphInstantiate(graph, 0)
            driver.cuGraphDestroy(graph)
            if status != driver.CUresult.CUDA_SUCCESS:
                return None
            made = cls(_Executable(executable), launch)
            # Otherwise the first launch uploads it, which is not allowed while another stream is being captured.
            driver.cuGraphUpload(executable, stream)
            driver.cuStreamSynchronize(stream)
            return None if failed else made
        finally:
            handle.set_stream(before)
            driver.cuStreamDestroy(stream)


class _Executable:
    """Owner of a CUgraphExec. CUDA defers its destruction until its launches are done."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __del__(self) -> None:
        if not sys.is_finalizing():
            from cuda.bindings import driver

            driver.cuGraphExecDestroy(self.handle)
