"""Capture launches into CUDA graphs, and read their kernels and memsets in order.

The graphs are never instantiated, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p, memset, string_at
from typing import Any, NamedTuple

from cudnnpy._core.cuda_python import driver_library
from cudnnpy._core.driver import relaxed_capture
from cudnnpy._launch.steps import BoundLaunch
from cudnnpy.handle import Handle, in_use

FUNCTIONS = (  # of the driver; the first ones from CUDA 12.4 on
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphGetEdges_v2",
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
    "cuLaunchKernelEx",
    "cuStreamCreate",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamDestroy_v2",
    "cuGraphDestroy",
)
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
BUFFER_POINTER, BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
ATTRIBUTE_BYTES = 64  # of a CUlaunchAttributeValue
COOPERATIVE, CLUSTER, CLUSTER_POLICY, PREFERRED_CLUSTER = 2, 4, 5, 11  # of the enumeration CUlaunchAttributeID
# Also the L2 access policy window, the memory domains and the shared memory carveout. Attributes of a stream are not read.
_ATTRIBUTES = (1, COOPERATIVE, CLUSTER, CLUSTER_POLICY, 9, 10, PREFERRED_CLUSTER, 14)
_KERNEL_NODE, _MEMSET_NODE = 0, 2  # of the enumeration CUgraphNodeType
_COMPLETE, _PROGRAMMATIC = 0, 1  # of the enumeration CUgraphDependencyType, and the ports of these dependencies


class _KernelParams(Structure):
    """A CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("parameters", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class _MemsetParams(Structure):
    """A CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("address", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("item_bytes", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class _Edge(Structure):
    """A CUgraphEdgeData."""

    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5))


class KernelNode(NamedTuple):
    """A kernel of a captured launch.

    `parameters` are its parameters, each padded with zeros to words of 8 bytes, and `sizes` their sizes in bytes.
    `has_parameter_buffer` is true if they are one buffer, as CU_LAUNCH_PARAM_BUFFER_POINTER passes them. `attributes` are
    the launch attributes that the driver returns, by number. `is_programmatic` is true if the kernel may start before its
    predecessor ends (programmatic dependent launch).
    """

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    sizes: tuple[int, ...]
    has_parameter_buffer: bool
    attributes: tuple[tuple[int, bytes], ...]
    is_programmatic: bool
    parameters: bytes


class MemsetNode(NamedTuple):
    """A memset of a captured launch. `parameters` are the 8 bytes of the address."""

    value: int
    item_bytes: int
    width: int
    height: int
    pitch: int
    parameters: bytes


GraphNode = KernelNode | MemsetNode


class NodeReader:
    """Reads captures of one plan. It queries the parameter sizes of each kernel once."""

    def __init__(self) -> None:
        self._library = driver_library()
        self._sizes: dict[int, tuple[int, ...]] = {}  # by the function; valid while the plan holds its kernels
        self._attribute = (c_ubyte * ATTRIBUTE_BYTES)()

    def linear_nodes(self, graph: c_void_p) -> list[GraphNode] | None:
        """Return the nodes of a captured graph, in order.

        None if they are not a sequence, if there are nodes other than kernels and memsets, or if they cannot be read.
        """
        library, nodes, node_type = self._library, list[GraphNode](), c_int(-1)
        for address, is_programmatic in self._sequence(graph):
            handle = c_void_p(address)
            if library.cuGraphNodeGetType(handle, byref(node_type)):
                return None
            node: GraphNode | None = None
            if node_type.value == _KERNEL_NODE:
                node = self._kernel(handle, is_programmatic)
            elif node_type.value == _MEMSET_NODE and not is_programmatic:
                node = self._memset(handle)
            if node is None:
                return None
            nodes.append(node)
        return nodes or None

    def _sequence(self, graph: c_void_p) -> list[tuple[int, bool]]:
        """Return the nodes in order, each with whether its dependency is programmatic. Empty if they are not a sequence."""
        library, count = self._library, c_size_t()
        if library.cuGraphGetNodes(graph, None, byref(count)) or not count.value:
            return []
        total = count.value
        nodes = (c_void_p * total)()
        if library.cuGraphGetNodes(graph, nodes, byref(count)):
            return []
        edge_count = c_size_t(total)  # one more than a sequence has
        sources, targets, edges = (c_void_p * total)(), (c_void_p * total)(), (_Edge * total)()
        if library.cuGraphGetEdges_v2(graph, sources, targets, edges, byref(edge_count)):
            return []
        if edge_count.value != total - 1:
            return []
        following = dict[int, tuple[int, bool]]()
        for source, target, edge in zip(sources[: total - 1], targets, edges, strict=False):
            if edge.type not in (_COMPLETE, _PROGRAMMATIC) or edge.from_port != edge.type or edge.to_port:
                return []
            following[source or 0] = target or 0, edge.type == _PROGRAMMATIC
        first = {node or 0 for node in nodes} - {node for node, _ in following.values()}
        sequence = [(first.pop(), False)] if len(first) == 1 else []
        while sequence and sequence[-1][0] in following:
            sequence.append(following.pop(sequence[-1][0]))
        return sequence if len(sequence) == total else []

    def _kernel(self, node: c_void_p, is_programmatic: bool) -> KernelNode | None:
        params = _KernelParams()
        if self._library.cuGraphKernelNodeGetParams_v2(node, byref(params)):
            return None
        function = params.func or params.kernel  # cuLaunchKernelEx takes either
        if params.extra:
            parts = _parameter_buffer(params.extra)
        elif params.parameters:
            sizes = self._parameter_sizes(function, is_kernel=not params.func)
            starts = params.parameters[: len(sizes)]
            if None in starts:
                return None
            parts = [string_at(start, size) for start, size in zip(starts, sizes, strict=True)]
        else:
            return None
        parameters = b"".join(part.ljust(padded_size(len(part)), b"\0") for part in parts)
        if not parameters:
            return None
        return KernelNode(
            function,
            tuple(params.grid),
            tuple(params.block),
            params.shared_bytes,
            tuple(map(len, parts)),
            bool(params.extra),
            self._attributes(node),
            is_programmatic,
            parameters,
        )

    def _parameter_sizes(self, function: int, is_kernel: bool) -> tuple[int, ...]:
        """Return the sizes of a kernel's parameters in bytes."""
        sizes = self._sizes.get(function)
        if sizes is None:
            info = self._library.cuKernelGetParamInfo if is_kernel else self._library.cuFuncGetParamInfo
            handle, offset, size, found = c_void_p(function), c_size_t(), c_size_t(), list[int]()
            while not info(handle, c_size_t(len(found)), byref(offset), byref(size)):
                found.append(size.value)
            sizes = self._sizes[function] = tuple(found)
        return sizes

    def _attributes(self, node: c_void_p) -> tuple[tuple[int, bytes], ...]:
        """Return the attributes of a kernel's launch: the number and the bytes of each that this driver knows."""
        read, attribute = self._library.cuGraphKernelNodeGetAttribute, self._attribute
        found = list[tuple[int, bytes]]()
        for number in _ATTRIBUTES:
            memset(attribute, 0, ATTRIBUTE_BYTES)  # the driver writes the bytes of the attribute alone
            if not read(node, number, attribute):
                found.append((number, bytes(attribute)))
        return tuple(found)

    def _memset(self, node: c_void_p) -> MemsetNode | None:
        params = _MemsetParams()
        failed = self._library.cuGraphMemsetNodeGetParams(node, byref(params))
        if failed or params.item_bytes not in (1, 2, 4):
            return None
        address = int(params.address).to_bytes(8, "little")
        return MemsetNode(params.value, params.item_bytes, params.width, params.height, params.pitch, address)


def padded_size(size: int) -> int:
    """Return the bytes of the words of 8 bytes that a parameter takes."""
    return -(-size // 8) * 8


def _parameter_buffer(extra: Any) -> list[bytes]:
    """Return the parameters that are passed as one buffer."""
    pairs = {extra[at]: extra[at + 1] for at in (0, 2)}
    if pairs.keys() != {BUFFER_POINTER, BUFFER_SIZE} or extra[4]:
        return []
    return [string_at(pairs[BUFFER_POINTER], c_size_t.from_address(pairs[BUFFER_SIZE]).value)]


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

    def capture(
        self, launch: BoundLaunch, read: Callable[[c_void_p], list[GraphNode] | None]
    ) -> list[GraphNode] | None:
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
