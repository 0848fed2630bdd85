"""Stream capture of launches into CUDA graphs, which are read and never instantiated. Nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import TypeVar

from cudnnpy._core.driver import relaxed_capture
from cudnnpy._cuda_python import driver_library
from cudnnpy._launch.steps import BoundLaunch
from cudnnpy.handle import Handle, in_use

ResultT = TypeVar("ResultT")

FUNCTIONS = ("cuStreamCreate", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuStreamDestroy_v2", "cuGraphDestroy")
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class StreamCapture:
    """Captures launches on a stream of its own, whose address is `stream`, on the current device."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    @classmethod
    @contextmanager
    def redirect(cls, handle: Handle) -> Iterator[StreamCapture | None]:
        """Redirect the launches of a handle to a new stream within the block. None if the stream cannot be created."""
        library, stream = driver_library(), c_void_p()
        with relaxed_capture():
            before = handle._address
            if library.cuStreamCreate(byref(stream), _NON_BLOCKING):
                yield None
                return
            address = stream.value or 0
            try:
                with in_use(handle, address):
                    yield cls(address)
            finally:
                handle.set_stream(before)
                library.cuStreamDestroy_v2(stream)

    def capture(self, launch: BoundLaunch, read: Callable[[c_void_p], ResultT | None]) -> ResultT | None:
        """Capture a launch, which goes to the stream, and return the result of `read` for the graph.

        Return None if the launch fails or cannot be captured. The graph is destroyed before the method returns.
        """
        library, stream, graph = driver_library(), c_void_p(self.stream), c_void_p()
        if library.cuStreamBeginCapture_v2(stream, _RELAXED):
            return None  # without a capture the launch would run
        status = 1
        try:
            status = launch()
        finally:
            failed = library.cuStreamEndCapture(stream, byref(graph))
            if status and graph:
                library.cuGraphDestroy(graph)
        if status or failed or not graph:
            return None
        try:
            return read(graph)
        finally:
            library.cuGraphDestroy(graph)
