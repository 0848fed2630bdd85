"""The kernels of a launch passed to the driver directly, without cuDNN, at the addresses of each launch.

What cuDNN queues is read from captures of its launch (captured_kernels.py), which run nothing, and which of the
parameters follow the addresses of the operands is found by comparing them (followed_addresses.py). A direct launch is
made only if a capture of its own kernels has, bit for bit, what cuDNN's has.

The kernels follow each other on the stream as those of cuDNN do, so they take the GPU the same time. A CUDA graph of
them, which takes the host less, takes the GPU 1.5 to 3 us more for each launch, and 2 us more for each further kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, addressof, byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from itertools import accumulate
from typing import Any

from cudnnpy import raw
from cudnnpy._core.driver import driver_library
from cudnnpy._launch.address_validation import Addresses
from cudnnpy._launch.direct.captured_nodes import (
    ATTRIBUTE_BYTES,
    BUFFER,
    CLUSTER,
    CLUSTER_POLICY,
    COOPERATIVE,
    FUNCTIONS,
    PREFERRED_CLUSTER,
    SIZE,
    Fill,
    Kernel,
    Queued,
    queued_by,
)
from cudnnpy._launch.direct.relocation_writer import NOT_ADDRESSES, writer
from cudnnpy._launch.direct.relocations import SPACE_ALIGNMENT, Move, addresses_elsewhere, moves
from cudnnpy._launch.direct.stream_capture import MOST_KERNELS, Captures, Launch
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle

_PROGRAMMATIC_SERIALIZATION = 6  # of the enumeration CUlaunchAttributeID
_PASSED = (COOPERATIVE, CLUSTER, CLUSTER_POLICY, PREFERRED_CLUSTER)
_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE
_NO_STREAM = object()


class _Attribute(Structure):
    """A CUlaunchAttribute."""

    _fields_ = (("number", c_int), ("pad", c_ubyte * 4), ("value", c_ubyte * ATTRIBUTE_BYTES))


class _Configuration(Structure):
    """A CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    )


class DirectLaunch:
    """The kernels and fills of one launch, which one thread queues on any stream.

    Parameters
    ----------
    queued : sequence of Kernel or Fill
        What is queued, in order.
    found : sequence of list of Move
        For each, what follows the addresses.
    count : int
        The number of addresses.

    Attributes
    ----------
    uses : int
        How often it was launched.
    pointers : tuple of int or None
        The addresses of the last launch, which were checked.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_configurations",
        "_idle",
        "_keep",
        "_stream",
        "_stream_argument",
        "_write",
        "pointers",
        "uses",
    )

    def __init__(self, queued: Sequence[Queued], found: Sequence[list[Move]], count: int) -> None:
        starts = [0, *accumulate(len(one.values) // 8 for one in queued)]
        words = (c_uint64 * starts[-1]).from_buffer_copy(b"".join(one.values for one in queued))
        pairs = [(start, move) for start, several in zip(starts[:-1], found, strict=True) for move in several]
        self._write = writer(words, pairs, count)
        self._stream: object = _NO_STREAM
        self._stream_argument = c_void_p()
        self._idle = True
        self._configurations = list[_Configuration]()
        self._keep: list[Any] = [words]
        addresses = (addressof(words) + 8 * start for start in starts[:-1])
        self._calls = [
            self._kernel(one, address) if isinstance(one, Kernel) else self._fill(one, address)
            for one, address in zip(queued, addresses, strict=True)
        ]
        self.pointers: Addresses | None = None
        self.uses = 0

    def _kernel(self, kernel: Kernel, start: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the call of the driver that queues a kernel, whose parameters are at an address."""
        passed = [(number, value) for number, value in kernel.attributes if number in _PASSED and any(value)]
        if CLUSTER not in dict(passed):
            passed = [pair for pair in passed if pair[0] != CLUSTER_POLICY]  # it has a default, and needs a cluster
        if kernel.early:
            passed.append((_PROGRAMMATIC_SERIALIZATION, (1).to_bytes(ATTRIBUTE_BYTES, "little")))
        attributes = (_Attribute * len(passed))()
        for attribute, (number, value) in zip(attributes, passed, strict=True):
            attribute.number, attribute.value[:] = number, list(value)
        configuration = _Configuration(kernel.grid, kernel.block, kernel.shared_bytes)
        configuration.attributes, configuration.count = attributes, len(passed)
        self._configurations.append(configuration)
        if kernel.packed:
            length = c_size_t(kernel.sizes[0])
            values, extra = None, (c_void_p * 5)(BUFFER, start, SIZE, addressof(length), None)
            self._keep.append(length)
        else:
            offsets = accumulate((-(-size // 8) * 8 for size in kernel.sizes[:-1]), initial=start)
            values, extra = (c_void_p * len(kernel.sizes))(*offsets), None
        self._keep += [attributes, values, extra]
        return driver_library().cuLaunchKernelEx, (byref(configuration), c_void_p(kernel.function), values, extra)

    def _fill(self, fill: Fill, start: int) -> tuple[Any, tuple[Any, ...]]:
        """Return the call of the driver that queues a fill, whose address is at an address."""
        library, bits = driver_library(), 8 * fill.item_bytes
        address, value, width = c_uint64.from_address(start), c_uint(fill.value), c_size_t(fill.width)
        if fill.height == 1:
            return getattr(library, f"cuMemsetD{bits}Async"), (address, value, width, self._stream_argument)
        rows = c_size_t(fill.pitch), value, width, c_size_t(fill.height)
        return getattr(library, f"cuMemsetD2D{bits}Async"), (address, *rows, self._stream_argument)

    @classmethod
    def of(cls, bind: Callable[[Addresses], Launch], handle: Handle, pointers: Addresses) -> DirectLaunch | None:
        """Make it of the launch that `bind` makes of addresses. None if it is not certain what follows the addresses.

        The last address is that of the workspace, a multiple of SPACE_ALIGNMENT. The launch may leave it unused.
        """
        pointers = tuple(map(int, pointers))
        with Captures.on(handle) as captures:
            try:
                return None if captures is None else cls._made_of(bind, captures, pointers)
            except StatusError:  # cuDNN does not bind addresses that are not allocated
                return None

    @classmethod
    def _made_of(
        cls, bind: Callable[[Addresses], Launch], captures: Captures, pointers: Addresses
    ) -> DirectLaunch | None:
        queued = _captured(captures, bind(pointers))
        if queued is None:
            return None
        # The order matters: padding may hold what the capture before it left there.
        same, others = [queued], list[tuple[Addresses, list[Queued]]]()
        for elsewhere in addresses_elsewhere(pointers):
            read = [_captured(captures, bind(at)) for at in (elsewhere, pointers)]
            if read[0] is None or read[1] is None or not _same(read[0], queued) or not _same(read[1], queued):
                return None
            others.append((elsewhere, read[0]))
            same.append(read[1])
        found = list[list[Move]]()
        for at in range(len(queued)):
            at_others = [(there, read[at].values) for there, read in others]
            moved = moves(pointers, [read[at].values for read in same], at_others)
            if moved is None:
                return None
            found.append(moved)
        followed = {move.operand for several in found for move in several if move.wide}
        if not followed.issuperset(range(len(pointers) - 1)):
            return None  # a kernel has an operand in another way, such as a texture
        return cls._confirmed(captures, queued, found, pointers)

    @classmethod
    def _confirmed(
        cls, captures: Captures, queued: Sequence[Queued], found: Sequence[list[Move]], pointers: Addresses
    ) -> DirectLaunch | None:
        """Return the launch of what was captured, if a capture of its own kernels is the same."""
        made = cls(queued, found, len(pointers))
        try:
            own = _captured(captures, lambda: not made.launch(pointers, captures.stream))
        except StatusError:
            return None
        if own is None or not _same(own, queued) or [one.values for one in own] != [one.values for one in queued]:
            return None
        made.uses, made.pointers = 0, None
        return made

    def launch(self, pointers: Addresses, stream: int) -> bool:
        """Queue the launch at some addresses. Return whether that was done; otherwise nothing was queued.

        It is not done for a workspace that is less aligned, nor while another launch of the same kernels is being queued, which
        garbage collection may interrupt, nor if the driver rejects the first kernel: cuDNN may prepare it better, or tells
        what is wrong. Raises StatusError if the driver rejects a later one.
        """
        if not self._idle:
            return False
        self._idle = False
        try:
            if pointers != self.pointers:
                if pointers[-1] % SPACE_ALIGNMENT:
                    return False
                self.pointers = None  # an interrupt may leave parameters of two launches
                try:
                    self._write(pointers)
                except NOT_ADDRESSES:
                    return False
                self.pointers = pointers
            if stream != self._stream:
                self._set_stream(stream)
            for queue, arguments in self._calls:
                if (status := queue(*arguments)) and not self._queued_again(queue, arguments, status):
                    if arguments is self._calls[0][1]:
                        return False
                    raise raw.error_of(raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, queue.__name__)
            self.uses += 1
        finally:
            self._idle = True
        return True

    def _set_stream(self, stream: int) -> None:
        """Set the stream of the next launch. What interrupts it leaves no stream, which the next launch sets."""
        self._stream = _NO_STREAM
        self._stream_argument.value = stream
        for configuration in self._configurations:
            configuration.stream = stream
        self._stream = stream

    def _queued_again(self, queue: Any, arguments: tuple[Any, ...], status: int) -> bool:
        """Return whether a kernel that the driver rejected was queued after its function may have its shared memory.

        cuDNN sets the largest amount of dynamic shared memory of a function before its launches, which may be less for
        another plan with the same function.
        """
        if status != _INVALID_VALUE or queue != driver_library().cuLaunchKernelEx:
            return False
        shared_bytes = arguments[0]._obj.shared_bytes
        limit_set = driver_library().cuFuncSetAttribute(arguments[1], _MOST_DYNAMIC_SHARED, c_int(shared_bytes))
        return not limit_set and not queue(*arguments)


def _captured(captures: Captures, launch: Launch) -> list[Queued] | None:
    """Return what a launch queues. None if it cannot be captured or read, or has too many kernels."""
    if not all(hasattr(driver_library(), name) for name in FUNCTIONS):
        return None
    graph = captures.of(launch)
    queued = None if graph is None else queued_by(graph)
    return queued if queued is not None and len(queued) <= MOST_KERNELS else None


def _same(some: Sequence[Queued], others: Sequence[Queued]) -> bool:
    """Return whether two captures differ in nothing but the values of parameters."""
    return [one[:-1] for one in some] == [one[:-1] for one in others]
