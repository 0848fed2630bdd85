"""A launch as a CUDA graph: captured once, then replayed by one call of the driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

from cudnnpy._core.driver import driver_library
from cudnnpy._launch.direct.stream_capture import MOST_KERNELS, Captures, Launch
from cudnnpy.handle import Handle


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
        """Capture one launch on a separate stream. Return None if it cannot be captured, or has many kernels."""
        with Captures.on(handle) as captures:
            graph = None if captures is None else captures.of(launch)
            if captures is None or graph is None or graph.nodes() > MOST_KERNELS:
                return None
            executable = Executable.of(graph.handle, captures.stream)
            return None if executable is None else cls(executable, launch)


class Executable:
    """Owner of a CUgraphExec. CUDA defers its destruction until its launches are done."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.process = handle, os.getpid()

    @classmethod
    def of(cls, graph: Any, stream: int) -> Executable | None:
        """Instantiate a captured graph, and upload it on a stream."""
        from cuda.bindings import driver

        status, executable = driver.cuGraphInstantiate(graph, 0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return None
        made = cls(executable)
        # Otherwise the first launch uploads it, which is not allowed while another stream is being captured.
        driver.cuGraphUpload(executable, stream)
        driver.cuStreamSynchronize(stream)
        return made

    # At exit, the names of this module may be gone.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self.process == os.getpid():
            from cuda.bindings import driver

            driver.cuGraphExecDestroy(self.handle)
