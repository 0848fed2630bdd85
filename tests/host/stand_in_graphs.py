"""A stand-in for the driver's CUDA graphs: kernels whose parameters are bytes that follow the addresses in any way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, addressof, c_size_t, c_void_p, cast, create_string_buffer, string_at
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from cuda.bindings import driver

from cudnnpy._core import driver as driver_calls
from cudnnpy._runtime import cuda_graph, launcher, moved_graph, plan_cache
from cudnnpy.handle import Handle

CAPTURES = 0x9000  # the stream of our own captures
BAD = 1  # CUDA_ERROR_INVALID_VALUE
GOOD, FAILED = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_UNKNOWN

Pointers = tuple[int, ...]
Parameters = Callable[[Pointers], Sequence[bytes]]


class Kernel(NamedTuple):
    """A kernel that a launch queues: its parameters at some addresses, its number, and what kind of node it becomes."""

    parameters: Parameters
    function: int = 0x400
    handle: int = 0
    grid: Callable[[Pointers], int] = lambda pointers: 1
    kind: int = 0
    extra: bool = False


class Node:
    """A node of a captured graph, whose parameters are in memory."""

    def __init__(self, kernel: Kernel, pointers: Pointers) -> None:
        self.kernel, self.values = kernel, list(kernel.parameters(pointers))
        self.buffers = [create_string_buffer(value, len(value)) for value in self.values]
        self.addresses = (c_void_p * len(self.buffers))(*map(addressof, self.buffers))
        self.grid = kernel.grid(pointers)
        self.size = c_size_t(len(self.values[0]) if self.values else 0)
        first = self.addresses[0] if self.values else 0
        self.packed = (c_void_p * 5)(2, addressof(self.size), 1, first, None)  # as one buffer


class StandInGraphs:
    """The driver. `launched` is what ran: the parameters of each kernel, and the stream."""

    def __init__(self) -> None:
        self.numbers = itertools.count(0x10000, 0x10)
        self.capturing: set[int] = set()  # streams of others
        self.capture: list[Node] | None = None  # the nodes of our own capture
        self.nodes: dict[int, Node] = {}
        self.graphs: dict[int, list[int]] = {}
        self.executables: dict[int, dict[int, list[bytes]]] = {}
        self.launched: list[tuple[list[list[bytes]], int]] = []
        self.instantiated = 0
        self.plain = 0  # launches that were not by a graph
        self.sizes: dict[int, list[int]] = {}  # of the parameters of functions and kernels
        self.failing = ""
        self.before_launch: Callable[[], object] = lambda: None
        self.rejects: Callable[[Pointers], bool] = lambda pointers: False
        self.handle: Any = SimpleNamespace(_address=0, _in_use=None, set_stream=self.set_stream)

    def set_stream(self, stream: int) -> None:
        self.handle._address = stream

    # The launch of a plan

    def bind(self, kernels: Sequence[Kernel]) -> Callable[[Pointers], Callable[[], int]]:
        """What binds addresses to a launch of some kernels."""

        def bound(pointers: Pointers) -> Callable[[], int]:
            return lambda: self.queue(kernels, pointers)

        return bound

    def queue(self, kernels: Sequence[Kernel], pointers: Pointers) -> int:
        nodes = [Node(kernel, pointers) for kernel in kernels]
        for kernel, node in zip(kernels, nodes, strict=True):
            self.sizes[kernel.function or kernel.handle] = [len(value) for value in node.values]
        if self.capture is None or self.handle._address != CAPTURES:
            self.plain += 1
            self.launched.append(([node.values for node in nodes], self.handle._address))
        elif self.rejects(pointers):
            return BAD
        else:
            self.capture += nodes
        return 0

    # Captures, as cuda.bindings has them

    def cuStreamCreate(self, _flags: Any) -> tuple[Any, int]:
        return GOOD, CAPTURES

    def cuStreamBeginCapture(self, *_: Any) -> tuple[Any]:
        self.capture = []
        return (GOOD,)

    def cuStreamEndCapture(self, _stream: Any) -> tuple[Any, int]:
        nodes, self.capture = self.capture or [], None
        graph = next(self.numbers)
        self.graphs[graph] = []
        for node in nodes:
            self.graphs[graph].append(number := next(self.numbers))
            self.nodes[number] = node
        return GOOD, graph

    def cuGraphInstantiate(self, graph: int, _flags: int) -> tuple[Any, int]:
        if self.failing == "cuGraphInstantiate":
            return FAILED, 0
        executable = next(self.numbers)
        self.instantiated += 1
        self.executables[executable] = {number: list(self.nodes[number].values) for number in self.graphs[graph]}
        return GOOD, executable

    def cuGraphDestroy(self, graph: int) -> None:
        for number in self.graphs.pop(graph):
            del self.nodes[number]

    def cuGraphExecDestroy(self, executable: int) -> None:
        del self.executables[executable]

    def nothing(self, *_: Any) -> tuple[Any, int]:
        return GOOD, 0

    # The rest, as ctypes has it

    def cuGraphGetNodes(self, graph: c_void_p, nodes: Any, count: Any) -> int:
        numbers = self.graphs[graph.value or 0]
        if nodes is not None:
            nodes[:] = numbers
        count._obj.value = len(numbers)
        return 0

    def cuGraphNodeGetType(self, node: c_void_p, kind: Any) -> int:
        kind._obj.value = self.nodes[node.value or 0].kernel.kind
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: c_void_p, given: Any) -> int:
        if self.failing == "cuGraphKernelNodeGetParams_v2":
            return BAD
        there, wanted = self.nodes[node.value or 0], given._obj
        wanted.func, wanted.kernel = there.kernel.function, there.kernel.handle
        wanted.grid[:], wanted.block[:], wanted.shared_bytes = (there.grid, 1, 1), (128, 1, 1), 64
        if there.kernel.extra:
            wanted.extra = cast(there.packed, POINTER(c_void_p))
        else:
            wanted.values = cast(there.addresses, POINTER(c_void_p))
        return 0

    def _parameter(self, function: c_void_p, at: c_size_t, offset: Any, size: Any) -> int:
        sizes = self.sizes[function.value or 0]
        if at.value >= len(sizes):
            return BAD
        offset._obj.value, size._obj.value = sum(sizes[: at.value]), sizes[at.value]
        return 0

    def cuFuncGetParamInfo(self, *given: Any) -> int:
        return self._parameter(*given)

    def cuKernelGetParamInfo(self, *given: Any) -> int:
        return self._parameter(*given)

    def cuGraphExecKernelNodeSetParams_v2(self, executable: c_void_p, node: c_void_p, given: Any) -> int:
        if self.failing == "cuGraphExecKernelNodeSetParams_v2":
            return BAD
        there, wanted = self.nodes[node.value or 0], given._obj
        kernel = there.kernel
        assert (wanted.func or 0, wanted.kernel or 0) == (kernel.function, kernel.handle)
        assert (tuple(wanted.grid), tuple(wanted.block), wanted.shared_bytes) == ((there.grid, 1, 1), (128, 1, 1), 64)
        if kernel.extra:
            assert not wanted.values
            keys = dict(zip(wanted.extra[0:4:2], wanted.extra[1:4:2], strict=True))
            values = [string_at(keys[1], c_size_t.from_address(keys[2]).value)]
        else:
            assert not wanted.extra
            values = [string_at(wanted.values[at], len(value)) for at, value in enumerate(there.values)]
        self.executables[executable.value or 0][node.value or 0] = values
        return 0

    def cuGraphLaunch(self, executable: c_void_p, stream: int) -> int:
        hook, self.before_launch = self.before_launch, lambda: None
        hook()
        if self.failing == "cuGraphLaunch":
            return BAD
        self.launched.append((list(self.executables[executable.value or 0].values()), stream))
        return 0

    def cuStreamIsCapturing(self, stream: int, state: Any) -> int:
        state._obj.value = int(stream in self.capturing)
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 0
        return 0


@contextmanager
def stand_in_graphs() -> Iterator[StandInGraphs]:
    """The stand-in in the place of the driver, with one device and one handle."""
    stand_in = StandInGraphs()
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "cuStreamCreate",
            "cuStreamBeginCapture",
            "cuStreamEndCapture",
            "cuGraphInstantiate",
            "cuGraphDestroy",
            "cuGraphExecDestroy",
        ):
            patch.setattr(driver, name, getattr(stand_in, name))
        for name in ("cuStreamDestroy", "cuGraphUpload", "cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode"):
            patch.setattr(driver, name, stand_in.nothing)
        for module in (driver_calls, cuda_graph, moved_graph):
            patch.setattr(module, "driver_library", lambda: stand_in)
        patch.setattr(launcher, "several_devices", lambda: False)
        patch.setattr(Handle, "default", classmethod(lambda cls, device: stand_in.handle))
        plan_cache.clear_cache()
        yield stand_in
        plan_cache.clear_cache()


@pytest.fixture
def graphs() -> Iterator[StandInGraphs]:
    """The stand-in for one test."""
    with stand_in_graphs() as stand_in:
        yield stand_in
