"""The kernels and fills that a captured launch queues, in their order, read from the driver's CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
    create_string_buffer,
    string_at,
)
from typing import Any, NamedTuple

from cudnnpy._core.driver import driver_library
from cudnnpy._launch.direct.stream_capture import Graph

FUNCTIONS = (  # of the driver, from CUDA 12.4 on
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphGetEdges_v2",
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
    "cuLaunchKernelEx",
)
BUFFER, SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
ATTRIBUTE_BYTES = 64  # of a CUlaunchAttributeValue
COOPERATIVE, CLUSTER, CLUSTER_POLICY, PREFERRED_CLUSTER = 2, 4, 5, 11  # of the enumeration CUlaunchAttributeID
# These, the window of the L2 cache, the memory domains and the carveout of shared memory. A stream's own are not read.
_ATTRIBUTES = (1, COOPERATIVE, CLUSTER, CLUSTER_POLICY, 9, 10, PREFERRED_CLUSTER, 14)
_KERNEL_NODE, _MEMSET_NODE = 0, 2  # of the enumeration CUgraphNodeType
_COMPLETE, _PROGRAMMATIC = 0, 1  # of the enumeration CUgraphDependencyType, and the ports of these dependencies


class _KernelNode(Structure):
    """A CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("values", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class _MemsetNode(Structure):
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

    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("kind", c_ubyte), ("reserved", c_ubyte * 5))


class Kernel(NamedTuple):
    """A kernel of a captured launch.

    `values` are its parameters, each filled up with zeros to words of 8 bytes. `packed` says that they are one buffer,
    as CU_LAUNCH_PARAM_BUFFER_POINTER passes them. `attributes` are those of its launch that the driver tells, by number.
    `early` says that it may begin before the kernel before it ends (programmatic dependent launch).
    """

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    sizes: tuple[int, ...]
    packed: bool
    attributes: tuple[tuple[int, bytes], ...]
    early: bool
    values: bytes


class Fill(NamedTuple):
    """A fill of memory with one value. `values` are the 8 bytes of the address."""

    value: int
    item_bytes: int
    width: int
    height: int
    pitch: int
    values: bytes


Queued = Kernel | Fill


def queued_by(graph: Graph) -> list[Queued] | None:
    """Return what a captured launch queues, in order.

    None if it is not a sequence, if it has nodes other than kernels and fills, or if their parameters cannot be read.
    """
    library, handle = driver_library(), c_void_p(int(graph.handle))
    order = _in_sequence(library, handle)
    if not order:
        return None
    found = list[Queued]()
    for node, early in order:
        kind = c_int(-1)
        if library.cuGraphNodeGetType(c_void_p(node), byref(kind)):
            return None
        one: Queued | None = None
        if kind.value == _KERNEL_NODE:
            one = _kernel(library, node, early)
        elif kind.value == _MEMSET_NODE and not early:
            one = _fill(library, node)
        if one is None:
            return None
        found.append(one)
    return found


def _in_sequence(library: Any, graph: c_void_p) -> list[tuple[int, bool]]:
    """Return the nodes of a graph in their order, each with whether it may begin early. Empty if they are not a sequence."""
    count = c_size_t()
    if library.cuGraphGetNodes(graph, None, byref(count)) or not count.value:
        return []
    nodes = (c_void_p * count.value)()
    if library.cuGraphGetNodes(graph, nodes, byref(count)):
        return []
    edges = c_size_t(count.value)  # one more than a sequence has
    before, after, data = (c_void_p * count.value)(), (c_void_p * count.value)(), (_Edge * count.value)()
    if library.cuGraphGetEdges_v2(graph, before, after, data, byref(edges)) or edges.value != count.value - 1:
        return []
    following = dict[int, tuple[int, bool]]()
    for at in range(edges.value):
        edge = data[at]
        if edge.kind not in (_COMPLETE, _PROGRAMMATIC) or edge.from_port != edge.kind or edge.to_port:
            return []
        following[before[at] or 0] = after[at] or 0, edge.kind == _PROGRAMMATIC
    first = {node or 0 for node in nodes} - {node for node, _ in following.values()}
    found = [(first.pop(), False)] if len(first) == 1 else []
    while found and found[-1][0] in following:
        found.append(following.pop(found[-1][0]))
    return found if len(found) == count.value else []


def _kernel(library: Any, node: int, early: bool) -> Kernel | None:
    given = _KernelNode()
    if library.cuGraphKernelNodeGetParams_v2(c_void_p(node), byref(given)):
        return None
    function = given.func or given.kernel  # cuLaunchKernelEx takes either
    if given.extra:
        parts = _packed(given.extra)
    elif given.values:
        info = library.cuFuncGetParamInfo if given.func else library.cuKernelGetParamInfo
        sizes = list(_sizes(info, function))
        starts = given.values[: len(sizes)]
        if None in starts:
            return None
        parts = [string_at(start, size) for start, size in zip(starts, sizes, strict=True)]
    else:
        return None
    values = b"".join(part.ljust(-(-len(part) // 8) * 8, b"\0") for part in parts)
    if not values:
        return None
    return Kernel(
        function,
        tuple(given.grid),
        tuple(given.block),
        given.shared_bytes,
        tuple(map(len, parts)),
        bool(given.extra),
        tuple(_attributes(library, node)),
        early,
        values,
    )


def _attributes(library: Any, node: int) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a kernel's launch: the number and the bytes of each that this driver knows."""
    for number in _ATTRIBUTES:
        value = create_string_buffer(ATTRIBUTE_BYTES)
        if not library.cuGraphKernelNodeGetAttribute(c_void_p(node), number, value):
            yield number, value.raw


def _packed(extra: Any) -> list[bytes]:
    """Return the parameters that are passed as one buffer."""
    pairs = {extra[at]: extra[at + 1] for at in (0, 2)}
    if pairs.keys() != {BUFFER, SIZE} or extra[4]:
        return []
    return [string_at(pairs[BUFFER], c_size_t.from_address(pairs[SIZE]).value)]


def _sizes(info: Callable[..., int], function: int) -> Iterator[int]:
    """Yield the sizes of a kernel's parameters in bytes."""
    offset, size = c_size_t(), c_size_t()
    at = 0
    while not info(c_void_p(function), c_size_t(at), byref(offset), byref(size)):
        yield size.value
        at += 1


def _fill(library: Any, node: int) -> Fill | None:
    given = _MemsetNode()
    if library.cuGraphMemsetNodeGetParams(c_void_p(node), byref(given)) or given.item_bytes not in (1, 2, 4):
        return None
    address = int(given.address).to_bytes(8, "little")
    return Fill(given.value, given.item_bytes, given.width, given.height, given.pitch, address)
