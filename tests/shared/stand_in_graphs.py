"""A stand-in for the driver: kernels whose parameters are bytes that follow the addresses in any way, and captures."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, addressof, c_size_t, c_uint64, c_void_p, cast, create_string_buffer, string_at
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from stand_in_driver import DONE, stand_in_driver

from cudnnpy._launch import launcher
from cudnnpy.handle import Handle

CAPTURES = 0x9000  # the stream of our own captures
BAD = 1  # CUDA_ERROR_INVALID_VALUE

Pointers = tuple[int, ...]
Parameters = Callable[[Pointers], Sequence[bytes]]


class Kernel(NamedTuple):
    """A kernel that a launch queues: its parameters at some addresses, its number, and what kind of node it becomes.

    `fill` makes it a fill, of (value, item bytes, width, height, pitch), whose parameter is the address. `edge` is how
    it depends on the kernel before: the two ports and the kind.
    """

    parameters: Parameters
    function: int = 0x400
    handle: int = 0
    grid: Callable[[Pointers], int] = lambda pointers: 1
    kind: int = 0
    extra: bool = False
    attributes: tuple[tuple[int, bytes], ...] = ()
    edge: tuple[int, int, int] = (0, 0, 0)
    fill: tuple[int, ...] = ()


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
        self.launched: list[tuple[list[list[bytes]], int]] = []
        self.captures = 0
        self.confirmed = 0  # captures of kernels that went to the driver directly
        self.defaults: dict[int, bytes] = {}  # attributes of all kernels
        self.plain = 0  # launches by cuDNN
        self.shared_bytes: dict[int, int] = {}  # that functions may have
        self.sizes: dict[int, list[int]] = {}  # of the parameters of functions and kernels
        self.device_memory: set[int] = set()  # addresses that the driver knows
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

    # Captures

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        assert flags == 1
        stream._obj.value = CAPTURES
        return BAD if self.failing == "cuStreamCreate" else 0

    def cuStreamBeginCapture_v2(self, stream: c_void_p, mode: int) -> int:
        assert (stream.value, mode, self.capture) == (CAPTURES, 2, None)
        if self.failing == "cuStreamBeginCapture_v2":
            return BAD
        self.capture = []
        return 0

    def cuStreamEndCapture(self, stream: c_void_p, graph: Any) -> int:
        assert stream.value == CAPTURES
        nodes, self.capture = self.capture or [], None
        self.captures += 1
        if self.failing == "cuStreamEndCapture":
            return BAD
        number = graph._obj.value = next(self.numbers)
        self.graphs[number] = []
        for node in nodes:
            self.graphs[number].append(address := next(self.numbers))
            self.nodes[address] = node
        return 0

    def cuStreamDestroy_v2(self, stream: c_void_p) -> int:
        assert stream.value == CAPTURES
        return 0

    def cuGraphDestroy(self, graph: c_void_p) -> int:
        for number in self.graphs.pop(graph.value or 0):
            del self.nodes[number]
        return 0

    # Nodes, launches and the state of the driver

    def cuGraphGetNodes(self, graph: c_void_p, nodes: Any, count: Any) -> int:
        numbers = self.graphs[graph.value or 0]
        if nodes is not None:
            nodes[:] = numbers
        count._obj.value = len(numbers)
        return 0

    def cuGraphNodeGetType(self, node: c_void_p, kind: Any) -> int:
        kernel = self.nodes[node.value or 0].kernel
        kind._obj.value = 2 if kernel.fill else kernel.kind
        return 0

    def cuGraphGetEdges_v2(self, graph: c_void_p, before: Any, after: Any, data: Any, count: Any) -> int:
        numbers = self.graphs[graph.value or 0]
        count._obj.value = len(numbers) - 1
        for at, pair in enumerate(itertools.pairwise(numbers)):
            before[at], after[at] = pair
            data[at].from_port, data[at].to_port, data[at].type = self.nodes[pair[1]].kernel.edge
        return 0

    def cuGraphKernelNodeGetAttribute(self, node: c_void_p, number: int, value: Any) -> int:
        if number == 14:
            return BAD  # an older driver
        value[:] = {**self.defaults, **dict(self.nodes[node.value or 0].kernel.attributes)}.get(number, bytes(64))
        return 0

    def cuGraphMemsetNodeGetParams(self, node: c_void_p, given: Any) -> int:
        there, wanted = self.nodes[node.value or 0], given._obj
        wanted.address = int.from_bytes(there.values[0], "little")
        wanted.value, wanted.item_bytes, wanted.width, wanted.height, wanted.pitch = there.kernel.fill
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
            wanted.parameters = cast(there.addresses, POINTER(c_void_p))
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

    def cuLaunchKernelEx(self, configuration: Any, function: c_void_p, values: Any, extra: Any) -> int:
        hook, self.before_launch = self.before_launch, lambda: None
        hook()
        given, number = configuration._obj, function.value or 0
        if self.failing == "cuLaunchKernelEx" or given.shared_bytes > self.shared_bytes.get(number, 1 << 10):
            return BAD
        assert (tuple(given.grid)[1:], tuple(given.block), given.shared_bytes) == ((1, 1), (128, 1, 1), 64)
        assert (values is None) != (extra is None)
        if extra is not None:
            keys = dict(zip(extra[0:4:2], extra[1:4:2], strict=True))
            found = [string_at(keys[1], c_size_t.from_address(keys[2]).value)]
        else:
            found = [string_at(values[at], size) for at, size in enumerate(self.sizes[number])]
        passed = [given.attributes[at] for at in range(given.count)]
        attributes = {one.number: bytes(one.value) for one in passed}
        early = attributes.pop(6, None) is not None
        kernel = Kernel(
            lambda pointers: found,
            number,
            grid=lambda pointers: given.grid[0],
            extra=extra is not None,
            attributes=tuple(attributes.items()),
            edge=(1, 0, 1) if early else (0, 0, 0),
        )
        return self._queued(kernel, found, given.stream or 0)

    def _queued(self, kernel: Kernel, values: list[bytes], stream: int) -> int:
        """What is queued without cuDNN, one kernel after another."""
        if self.capture is not None and stream == CAPTURES:
            self.confirmed += not self.capture
            self.capture.append(Node(kernel, ()))
        else:
            self.launched.append(([values], stream))
        return 0

    def _filled(
        self, address: c_uint64, pitch: int, value: Any, width: Any, height: int, stream: Any, size: int
    ) -> int:
        values = [int(address.value).to_bytes(8, "little")]
        fill = (value.value, size, width.value, height, pitch)
        return self._queued(Kernel(lambda pointers: values, fill=fill), values, stream.value or 0)

    def cuMemsetD8Async(self, address: Any, value: Any, width: Any, stream: Any) -> int:
        return self._filled(address, 0, value, width, 1, stream, 1)

    def cuMemsetD32Async(self, address: Any, value: Any, width: Any, stream: Any) -> int:
        return self._filled(address, 0, value, width, 1, stream, 4)

    def cuMemsetD2D8Async(self, address: Any, pitch: Any, value: Any, width: Any, height: Any, stream: Any) -> int:
        return self._filled(address, pitch.value, value, width, height.value, stream, 1)

    def cuFuncSetAttribute(self, function: c_void_p, number: int, value: Any) -> int:
        assert number == 8
        self.shared_bytes[function.value or 0] = value.value
        return 0

    def cuStreamIsCapturing(self, stream: int, state: Any) -> int:
        state._obj.value = int(stream in self.capturing)
        return 0

    def cuPointerGetAttribute(self, value: Any, number: int, address: c_uint64) -> int:
        assert number == 2
        value._obj.value = 2
        return 0 if address.value in self.device_memory else BAD

    def cuCtxGetDevice(self, device: Any) -> int:
        device._obj.value = 0
        return 0


@contextmanager
def stand_in_graphs() -> Iterator[StandInGraphs]:
    """The stand-in in the place of the driver, with one device and one handle."""
    stand_in = StandInGraphs()
    with pytest.MonkeyPatch.context() as patch, stand_in_driver(libcuda=stand_in) as driver:
        driver.functions["cuThreadExchangeStreamCaptureMode"] = lambda mode: (*DONE, mode)
        patch.setattr(launcher, "has_several_devices", lambda: False)
        launcher.set_direct_launches(True)
        patch.setattr(Handle, "default", classmethod(lambda cls, device: stand_in.handle))
        yield stand_in


@pytest.fixture
def graphs() -> Iterator[StandInGraphs]:
    """The stand-in for one test."""
    gc.collect()  # direct launches of earlier tests
    with stand_in_graphs() as stand_in:
        yield stand_in
