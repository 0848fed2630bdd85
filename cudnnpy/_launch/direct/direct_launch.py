"""The kernels of a launch passed to the driver directly, without cuDNN, at the addresses of each launch.

The kernels and memsets that cuDNN queues are read from captures of its launch (captured_nodes.py), which run nothing, and
the words of the parameters that follow the operands are found by comparing them (relocations.py). A direct launch is made
only if a capture of its own kernels equals cuDNN's, bit for bit. The kernels follow each other on the stream as in cuDNN's
launch, so that they take the same GPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, Structure, addressof, byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from itertools import accumulate
from typing import Any

from cudnnpy import raw
from cudnnpy._core.cuda_python import driver_library
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct.captured_nodes import (
    ATTRIBUTE_BYTES,
    BUFFER_POINTER,
    BUFFER_SIZE,
    CLUSTER,
    CLUSTER_POLICY,
    COOPERATIVE,
    FUNCTIONS,
    PREFERRED_CLUSTER,
    GraphNode,
    KernelNode,
    MemsetNode,
    NodeReader,
    StreamCapture,
    padded_size,
)
from cudnnpy._launch.direct.relocations import (
    INVALID_ADDRESS_ERRORS,
    Relocation,
    compile_relocator,
    find_relocations,
    probe_addresses,
)
from cudnnpy._launch.steps import WORKSPACE_ALIGNMENT, BoundLaunch
from cudnnpy.errors import StatusError, status_error
from cudnnpy.handle import Handle

MAX_NODES = 8  # of a direct launch; with more of them single launches cost the host too much
_PROGRAMMATIC_SERIALIZATION = 6  # of the enumeration CUlaunchAttributeID
_PASSED_ATTRIBUTES = (COOPERATIVE, CLUSTER, CLUSTER_POLICY, PREFERRED_CLUSTER)
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE
_MEMORY_TYPE, _DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_NO_STREAM = object()


class _LaunchAttribute(Structure):
    """A CUlaunchAttribute."""

    _fields_ = (("number", c_int), ("pad", c_ubyte * 4), ("value", c_ubyte * ATTRIBUTE_BYTES))


class _LaunchConfig(Structure):
    """A CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_LaunchAttribute)),
        ("count", c_uint),
    )


class DirectLaunch:
    """The kernels and memsets of one launch, which one thread queues on any stream.

    Parameters
    ----------
    nodes : sequence of KernelNode or MemsetNode
        The captured launch.
    relocations : sequence of list of Relocation
        The relocations of each node.
    count : int
        The number of addresses.

    Attributes
    ----------
    addresses : tuple of int or None
        The addresses of the last launch, which were checked.
    other_pointers : int
        The number of words of the parameters that are no relocations and look like addresses of device memory.
    """

    def __init__(self, nodes: Sequence[GraphNode], relocations: Sequence[list[Relocation]], count: int) -> None:
        starts = [0, *accumulate(len(node.parameters) for node in nodes)]
        words = (c_uint64 * (starts[-1] // 8)).from_buffer_copy(b"".join(node.parameters for node in nodes))
        moved = [
            relocation._replace(offset=start + relocation.offset)
            for start, several in zip(starts[:-1], relocations, strict=True)
            for relocation in several
        ]
        self._write = compile_relocator(words, moved, count)
        self.other_pointers = _count_pointers(words, {relocation.offset // 8 for relocation in moved})
        self._stream: object = _NO_STREAM
        self._stream_argument = c_void_p()
        self._is_idle = True
        self._configurations = list[_LaunchConfig]()
        self._owned: list[Any] = [words]  # memory that the calls point to
        begin = addressof(words)
        self._calls = [
            self._kernel(node, begin + start) if isinstance(node, KernelNode) else self._memset(node, begin + start)
            for node, start in zip(nodes, starts[:-1], strict=True)
        ]
        self.addresses: Addresses | None = None

    def _kernel(self, node: KernelNode, start: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the driver's function that queues a kernel with the parameters at an address, and its arguments."""
        passed = [(number, value) for number, value in node.attributes if number in _PASSED_ATTRIBUTES and any(value)]
        if CLUSTER not in dict(passed):
            passed = [pair for pair in passed if pair[0] != CLUSTER_POLICY]  # it has a default, and needs a cluster
        if node.is_programmatic:
            passed.append((_PROGRAMMATIC_SERIALIZATION, (1).to_bytes(ATTRIBUTE_BYTES, "little")))
        attributes = (_LaunchAttribute * len(passed))()
        for attribute, (number, value) in zip(attributes, passed, strict=True):
            attribute.number, attribute.value[:] = number, value
        configuration = _LaunchConfig(node.grid, node.block, node.shared_bytes)
        configuration.attributes, configuration.count = attributes, len(passed)
        self._configurations.append(configuration)
        if node.has_parameter_buffer:
            length = c_size_t(node.sizes[0])
            parameters, extra = None, (c_void_p * 5)(BUFFER_POINTER, start, BUFFER_SIZE, addressof(length), None)
            self._owned.append(length)
        else:
            starts = accumulate(map(padded_size, node.sizes[:-1]), initial=start)
            parameters, extra = (c_void_p * len(node.sizes))(*starts), None
        self._owned += [attributes, parameters, extra]
        arguments = byref(configuration), c_void_p(node.function), parameters, extra
        return driver_library().cuLaunchKernelEx, arguments

    def _memset(self, node: MemsetNode, start: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the driver's function that queues a memset with the address at an address, and its arguments."""
        library, bits = driver_library(), 8 * node.item_bytes
        address, value, width = c_uint64.from_address(start), c_uint(node.value), c_size_t(node.width)
        if node.height == 1:
            return getattr(library, f"cuMemsetD{bits}Async"), (address, value, width, self._stream_argument)
        rows = c_size_t(node.pitch), value, width, c_size_t(node.height)
        return getattr(library, f"cuMemsetD2D{bits}Async"), (address, *rows, self._stream_argument)

    def launch(self, addresses: Addresses, stream: int) -> bool:
        """Queue the kernels at some addresses. Return False, with nothing queued, if cuDNN has to launch them.

        It has to for a workspace that is less aligned, and while another launch of the same kernels is being queued, which
        garbage collection may interrupt. It also has to if the driver rejects the first kernel: cuDNN may prepare it
        better, or reports the reason. Raises StatusError if the driver rejects a later one, with the number that were queued.
        """
        if not self._is_idle:
            return False
        self._is_idle = False
        try:
            if addresses != self.addresses:
                if addresses[-1] % WORKSPACE_ALIGNMENT:
                    return False
                self.addresses = None  # an interrupt may leave parameters of two launches
                try:
                    self._write(addresses)
                except INVALID_ADDRESS_ERRORS:
                    return False
                self.addresses = addresses
            if stream != self._stream:
                self._set_stream(stream)
            for at, (queue, arguments) in enumerate(self._calls):
                if (status := queue(*arguments)) and not self._is_queued_again(queue, arguments, status):
                    if not at:
                        return False
                    raise self._incomplete(at, queue.__name__, status)
        finally:
            self._is_idle = True
        return True

    def _incomplete(self, queued: int, function: str, status: int) -> StatusError:
        """Return the error for an incomplete launch, whose later kernels were rejected."""
        failed = raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER
        detail = (
            f"the driver rejected kernel {queued + 1} of {len(self._calls)} (CUresult {status}), with {queued} queued before: "
            "the result is incomplete. cudnnpy.set_direct_launches(False) leaves every launch to cuDNN"
        )
        return status_error(function, int(failed), failed.name, detail)

    def _set_stream(self, stream: int) -> None:
        """Set the stream of the next launch. An interrupt leaves no stream, and the next launch sets it."""
        self._stream = _NO_STREAM
        self._stream_argument.value = stream
        for configuration in self._configurations:
            configuration.stream = stream
        self._stream = stream

    def _is_queued_again(self, queue: Any, arguments: tuple[Any, ...], status: int) -> bool:
        """Queue a kernel again that the driver rejected for its shared memory. Return whether that was possible.

        cuDNN sets the maximum dynamic shared memory of a function before its launches, which may be less for another plan
        with the same function.
        """
        if status != _INVALID_VALUE or queue != driver_library().cuLaunchKernelEx:
            return False
        shared_bytes = c_int(arguments[0]._obj.shared_bytes)
        failed = driver_library().cuFuncSetAttribute(arguments[1], _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        return not failed and not queue(*arguments)


def make_direct_launch(
    bind: Callable[[Addresses], BoundLaunch], handle: Handle, addresses: Addresses
) -> DirectLaunch | str:
    """Make the direct launch of a plan, or return which of the facts that it relies on is not verified.

    Parameters
    ----------
    bind : callable
        Returns cuDNN's launch at some addresses.
    handle : Handle
        The handle that these launches go through.
    addresses : tuple of int
        Valid addresses. The last one is the workspace's, a multiple of WORKSPACE_ALIGNMENT; the launch may not use it.
    """
    if not all(hasattr(driver_library(), name) for name in FUNCTIONS):
        return "the driver is older than CUDA 12.4"
    addresses = tuple(map(int, addresses))
    with StreamCapture.redirect(handle) as capture:
        try:
            return "no stream for captures" if capture is None else _build(bind, capture, addresses)
        except StatusError as error:  # cuDNN does not bind addresses that are not allocated
            return f"{error.function} returned {error.name} at other addresses"


def _build(
    bind: Callable[[Addresses], BoundLaunch], capture: StreamCapture, addresses: Addresses
) -> DirectLaunch | str:
    read = NodeReader().linear_nodes
    here = bind(addresses)
    nodes = capture.capture(here, read)
    if nodes is None:
        return "the launch cannot be captured as a sequence of kernels and memsets"
    if len(nodes) > MAX_NODES:
        return f"{len(nodes)} kernels and memsets, more than {MAX_NODES}"
    repeats, probes = [nodes], list[tuple[Addresses, list[GraphNode]]]()
    has_padding = False
    for probe in probe_addresses(addresses):
        probed = capture.capture(bind(probe), read)
        if probed is None or not _differ_only_in_parameters(probed, nodes):
            return "other kernels at other addresses"
        probes.append((probe, probed))
        # Padding may hold the bytes that the capture before it left there: the first repeat follows a probe. If it has
        # the same bytes, another one shows nothing new.
        if len(repeats) == 1 or has_padding:
            repeat = capture.capture(here, read)
            if repeat is None or not _differ_only_in_parameters(repeat, nodes):
                return "other kernels in a second launch"
            repeats.append(repeat)
            has_padding = has_padding or repeat != nodes
    relocations = list[list[Relocation]]()
    for at in range(len(nodes)):
        probed_bytes = [(probe, probed[at].parameters) for probe, probed in probes]
        found = find_relocations(addresses, [repeat[at].parameters for repeat in repeats], probed_bytes)
        if found is None:
            return f"parameters of kernel {at + 1} of {len(nodes)} that are no addresses plus constants"
        relocations.append(found)
    followed = {relocation.operand for several in relocations for relocation in several if relocation.is_64_bit}
    if not followed.issuperset(range(len(addresses) - 1)):
        return "an operand that is in no parameter"  # a kernel gets it in another way, such as a texture
    direct = DirectLaunch(nodes, relocations, len(addresses))
    own = capture.capture(lambda: not direct.launch(addresses, capture.stream), read)
    direct.addresses = None
    return direct if own == nodes else "the captured direct launch differs from cuDNN's"


def _count_pointers(words: Iterable[int], relocated: set[int]) -> int:
    """Return how many words the driver takes for addresses of device memory, without those at the indices `relocated`.

    cuDNN may pass memory of its own, which a launch at other addresses would share. It may also be a number beside padding.
    """
    ask, kind = driver_library().cuPointerGetAttribute, c_uint()
    others = (word for index, word in enumerate(words) if word and index not in relocated)
    return sum(not ask(byref(kind), _MEMORY_TYPE, c_uint64(word)) and kind.value == _DEVICE for word in others)


def _differ_only_in_parameters(some: Sequence[GraphNode], others: Sequence[GraphNode]) -> bool:
    """Return whether two captures are equal but for the bytes of the parameters."""
    return [node[:-1] for node in some] == [node[:-1] for node in others]
