"""A CUDA graph of one launch that is moved to other addresses by setting the parameters of its kernels.

Which bytes of a kernel's parameters are addresses is not documented, so it is found out for each plan. Captures of the
launch at several tuples of addresses, which launch nothing, show which 8-byte words follow which address; those words,
and everything else, must then be as predicted, bit for bit, in further captures. Bytes that differ between captures at
the very same addresses are uninitialized padding. A launch whose captures do not agree, or in which the address of an
operand is not found, is not moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, Structure, addressof, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, string_at
from struct import unpack
from typing import Any, NamedTuple

from cudnnpy._core.driver import driver_library
from cudnnpy._runtime.addresses import Pointers
from cudnnpy._runtime.cuda_graph import Captures, Graph, Launch
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle

_KERNEL_NODE = 0  # CU_GRAPH_NODE_TYPE_KERNEL
_NEAR = 1 << 31  # bytes between an address in a parameter and that of its operand
_HALF = (1 << 32) - 1
_BUFFER, _SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE
_FUNCTIONS = (  # of the driver, from CUDA 12.4 on
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
)
SPACE_ALIGNMENT = 256  # of the workspace: some engines align it themselves, to as many bytes
MOST_KERNELS = 8  # of a graph that is moved: each one that is moved takes a call of the driver


class _Parameters(Structure):
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


class Kernel(NamedTuple):
    """A kernel of a captured graph. `values` are its parameters, each filled up with zeros to words of 8 bytes.

    `packed` says that they are one buffer, as CU_LAUNCH_PARAM_BUFFER_POINTER passes them.
    """

    node: int
    launch: tuple[Any, ...]
    sizes: tuple[int, ...]
    packed: bool
    values: bytes


class Move(NamedTuple):
    """What follows an address in a kernel's parameters: the address of an operand and a distance.

    It is the word of 8 bytes with this number, or, if not `wide`, the half word of 4 bytes with this number, which has
    the low bits. Kernels whose parameters begin with a copy of an address have such halves in their padding.
    """

    wide: bool
    number: int
    operand: int
    distance: int


def moves(pointers: Pointers, same: Sequence[bytes], others: Sequence[tuple[Pointers, bytes]]) -> list[Move] | None:
    """Return what follows the addresses in a kernel's parameters. None if the captures do not agree.

    `same` are its parameters in captures at the addresses `pointers`, `others` those at other addresses.
    """
    count = len(same[0]) // 4
    first = _halves(same[0])
    known = [_HALF] * count  # the bits of whole bytes that are the same in captures at the same addresses
    for values in same[1:]:
        known = [mask & _same_bytes(*pair) for mask, *pair in zip(known, first, _halves(values), strict=True)]
    elsewhere, values = others[0]
    there = _halves(values)
    found = list[Move]()
    for low in range(0, count, 2):
        changed = [at for at in (low, low + 1) if (first[at] ^ there[at]) & known[at]]
        if not changed:
            continue
        if known[low] == known[low + 1] == _HALF:
            one, other = (halves[low] | halves[low + 1] << 32 for halves in (first, there))
            operands = [
                operand
                for operand, (here, at) in enumerate(zip(pointers, elsewhere, strict=True))
                if other - one == at - here and abs(one - here) < _NEAR
            ]
            if len(operands) == 1:
                found.append(Move(True, low // 2, operands[0], one - pointers[operands[0]]))
                continue
        for half in changed:
            operands = [
                operand
                for operand, (here, at) in enumerate(zip(pointers, elsewhere, strict=True))
                if not (there[half] - first[half] - at + here) & _HALF
            ]
            if known[half] != _HALF or len(operands) != 1:
                return None
            found.append(Move(False, half, operands[0], first[half] - pointers[operands[0]] & _HALF))
    for elsewhere, values in others:
        predicted = list(first)
        for move in found:
            _put(predicted, move, elsewhere)
        if any((one ^ other) & mask for one, other, mask in zip(predicted, _halves(values), known, strict=True)):
            return None
    return found


def _halves(values: bytes) -> tuple[int, ...]:
    return unpack(f"{len(values) // 4}I", values)


def _same_bytes(one: int, other: int) -> int:
    """Return the bits of the bytes that are the same in two half words."""
    return sum(0xFF << shift for shift in (0, 8, 16, 24) if not (one ^ other) >> shift & 0xFF)


def _put(halves: list[int], move: Move, pointers: Pointers) -> None:
    address = pointers[move.operand] + move.distance
    if move.wide:
        halves[2 * move.number], halves[2 * move.number + 1] = address & _HALF, address >> 32
    else:
        halves[move.number] = address & _HALF


def addresses_elsewhere(pointers: Pointers) -> Iterator[Pointers]:
    """Yield tuples of addresses for captures, which nothing is launched at: far apart and of different alignments.

    They are multiples of 4096, odd multiples of 16, and a mixture just below a multiple of 2**32, in changing order; those of
    the workspace, the last, are odd multiples of its alignment instead. A null address remains null. In the first tuple
    each moves by another distance, also in the low 32 bits, so that a word follows only one of them.
    """
    count = len(pointers)
    for number in range(3):
        found = []
        for at, pointer in enumerate(pointers):
            place = number * count + 1 + (at if number != 1 else count - 1 - at)
            start = (pointer >> 33) + (-place if pointer > 1 << 42 else place) << 33
            low = (
                (pointer & -4096) + 0x0123_7000 * (at + 1),
                0x0765_4010 + 0x0010_0220 * at,
                -0x10 * (2 + at % 15) - 0x1000 * at,
            )[number]
            if number and at == count - 1:
                low = low & -2 * SPACE_ALIGNMENT | SPACE_ALIGNMENT
            found.append(start + (low & _HALF) if pointer else 0)
        yield tuple(found)


def kernels_of(graph: Graph) -> list[Kernel] | None:
    """Return the kernels of a captured graph. None if it does anything else, or if their parameters cannot be read."""
    library, handle = driver_library(), c_void_p(int(graph.handle))
    count = c_size_t()
    if library.cuGraphGetNodes(handle, None, byref(count)):
        return None
    nodes = (c_void_p * count.value)()
    if library.cuGraphGetNodes(handle, nodes, byref(count)):
        return None
    found = []
    for node in nodes:
        kernel = _kernel(library, node or 0)
        if kernel is None:
            return None
        found.append(kernel)
    return found


def _kernel(library: Any, node: int) -> Kernel | None:
    kind, given = c_int(-1), _Parameters()
    if library.cuGraphNodeGetType(c_void_p(node), byref(kind)) or kind.value != _KERNEL_NODE:
        return None
    if library.cuGraphKernelNodeGetParams_v2(c_void_p(node), byref(given)):
        return None
    if given.extra:
        parts = _packed(given.extra)
    elif given.values:
        function = given.func or given.kernel
        info = library.cuFuncGetParamInfo if given.func else library.cuKernelGetParamInfo
        sizes = list(_sizes(info, function))
        starts = given.values[: len(sizes)]
        if None in starts:
            return None
        parts = [string_at(start, size) for start, size in zip(starts, sizes, strict=True)]
    else:
        return None
    values = b"".join(part.ljust(-(-len(part) // 8) * 8, b"\0") for part in parts)
    launch = (given.func, given.kernel, given.context, *given.grid, *given.block, given.shared_bytes)
    return Kernel(node, launch, tuple(map(len, parts)), bool(given.extra), values) if values else None


def _packed(extra: Any) -> list[bytes]:
    """Return the parameters that are passed as one buffer."""
    pairs = {extra[at]: extra[at + 1] for at in (0, 2)}
    if pairs.keys() != {_BUFFER, _SIZE} or extra[4]:
        return []
    return [string_at(pairs[_BUFFER], c_size_t.from_address(pairs[_SIZE]).value)]


def _sizes(info: Callable[..., int], function: int) -> Iterator[int]:
    """Yield the sizes of a kernel's parameters in bytes."""
    offset, size = c_size_t(), c_size_t()
    at = 0
    while not info(c_void_p(function), c_size_t(at), byref(offset), byref(size)):
        yield size.value
        at += 1


def _captured_again(captures: Captures, launch: Launch, kernels: list[Kernel]) -> list[Kernel] | None:
    """Return the kernels of a launch that is captured once more. None if they are other kernels."""
    graph = captures.of(launch)
    found = None if graph is None else kernels_of(graph)
    return found if found is not None and [one[1:4] for one in found] == [one[1:4] for one in kernels] else None


class MovedGraph:
    """An executable CUDA graph of one launch, which is moved to the addresses of each launch.

    It must be launched on one stream, since CUDA runs the launches of one graph in sequence, and by one thread.
    """

    __slots__ = ("_graph", "_idle", "_keep", "_kernels", "_launch", "_set", "uses")

    def __init__(self, executable: Any, graph: Graph, kernels: Sequence[Kernel], found: Sequence[list[Move]]) -> None:
        library = driver_library()
        self._graph, self._idle, self.uses = c_void_p(int(executable.handle)), True, 0
        self._keep: list[Any] = [executable, graph]  # the nodes are the graph's
        self._launch, self._set = library.cuGraphLaunch, library.cuGraphExecKernelNodeSetParams_v2
        self._kernels = [
            (self._prepared(kernel, moved), c_void_p(kernel.node))
            for kernel, moved in zip(kernels, found, strict=True)
            if moved
        ]

    def _prepared(self, kernel: Kernel, moved: list[Move]) -> Any:
        """Return the words and half words that are moved, how, and a reference to the argument of the driver."""
        words = (c_uint64 * (len(kernel.values) // 8)).from_buffer_copy(kernel.values)
        starts = [addressof(words)]
        for size in kernel.sizes:
            starts.append(starts[-1] + -(-size // 8) * 8)
        function, handle, context, *numbers = kernel.launch
        given = _Parameters(function, tuple(numbers[:3]), tuple(numbers[3:6]), numbers[6])
        given.kernel, given.context = handle, context
        if kernel.packed:
            length = c_size_t(kernel.sizes[0])
            self._keep.append(length)
            given.extra = (c_void_p * 5)(_BUFFER, starts[0], _SIZE, addressof(length), None)
        else:
            given.values = (c_void_p * len(kernel.sizes))(*starts[:-1])
        self._keep += [words, given]
        view = memoryview(words).cast("B")
        wide = [move[1:] for move in moved if move.wide]
        return view.cast("Q"), wide, view.cast("I"), [move[1:] for move in moved if not move.wide], byref(given)

    @classmethod
    def of(cls, bind: Callable[[Pointers], Launch], handle: Handle, pointers: Pointers) -> MovedGraph | None:
        """Capture the launch that `bind` makes of addresses. None if it is not certain how it is moved.

        The last address is that of the workspace, a multiple of SPACE_ALIGNMENT. The launch may leave it unused.
        """
        library, pointers = driver_library(), tuple(map(int, pointers))
        if not all(hasattr(library, name) for name in _FUNCTIONS):
            return None
        with Captures.on(handle) as captures:
            try:
                return None if captures is None else cls._made_of(bind, captures, pointers)
            except StatusError:  # cuDNN does not bind addresses that are not allocated
                return None

    @classmethod
    def _made_of(cls, bind: Callable[[Pointers], Launch], captures: Captures, pointers: Pointers) -> MovedGraph | None:
        graph = captures.of(bind(pointers))
        kernels = None if graph is None else kernels_of(graph)
        if graph is None or not kernels or len(kernels) > MOST_KERNELS:
            return None
        # The order matters: padding may hold what the capture before it left there.
        same, others = [kernels], list[tuple[Pointers, list[Kernel]]]()
        for elsewhere in addresses_elsewhere(pointers):
            read = [_captured_again(captures, bind(at), kernels) for at in (elsewhere, pointers)]
            if read[0] is None or read[1] is None:
                return None
            others.append((elsewhere, read[0]))
            same.append(read[1])
        found = list[list[Move]]()
        for at in range(len(kernels)):
            at_others = [(there, read[at].values) for there, read in others]
            moved = moves(pointers, [read[at].values for read in same], at_others)
            if moved is None:
                return None
            found.append(moved)
        followed = {move.operand for kernel in found for move in kernel if move.wide}
        if not followed.issuperset(range(len(pointers) - 1)):
            return None  # a kernel has an operand in another way, such as a texture
        executable = captures.executable(graph)
        made = None if executable is None else cls(executable, graph, kernels, found)
        if made is None or not made.move(pointers):  # the driver does not take the parameters
            return None
        made._idle = True
        return made

    def move(self, pointers: Pointers) -> bool:
        """Set the addresses of the next launch. Return whether that was possible; `launch` must follow then.

        It is not possible for a workspace that is less aligned, between `move` and `launch`, where garbage collection may
        run the same plan, and no longer after the driver rejected the parameters.
        """
        if not self._idle or pointers[-1] % SPACE_ALIGNMENT:
            return False
        self._idle = False
        set_parameters, graph = self._set, self._graph
        try:
            for (words, wide, halves, low, given), node in self._kernels:
                for number, operand, distance in wide:
                    words[number] = pointers[operand] + distance
                for number, operand, distance in low:
                    halves[number] = pointers[operand] + distance & 0xFFFF_FFFF
                if set_parameters(graph, node, given):
                    return False
        except (TypeError, ValueError, OverflowError):  # what is no address, or a NumPy integer of 64 bits
            self._idle = True
            return False
        return True

    def launch(self, stream: int) -> int:
        """Launch it on its stream, and return the status of the driver."""
        self.uses += 1
        status = self._launch(self._graph, stream)
        self._idle = True
        return int(status)
