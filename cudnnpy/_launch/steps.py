"""The steps of a plan: calls of C functions, fills and planned graphs, in sequence, on operands and scratch memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import byref, c_double, c_float
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_scales
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import bits_of, dtype_of
from cudnnpy._core.layouts import TensorSpec, at_least_4d, is_dense, is_too_large
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.handle import Handle

# Bytes. Parts of a workspace start at its multiples; some engines align their workspace themselves, to as many bytes.
WORKSPACE_ALIGNMENT = 256

# Queues work on fixed addresses, and returns a status.
BoundLaunch = Callable[[], int]


class Executable(Protocol):
    """One launch: of a C function, of a planned graph, or of several of them in sequence.

    An optional attribute `is_relocatable` is true if the same kernels serve all addresses that the plan was made for.

    All that a bound launch depends on is fixed when the plan is made, except for the addresses: a launch may be called again.
    """

    workspace_size: int

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on these addresses of the operands and the workspace."""


def is_relocatable(executable: Executable) -> bool:
    """Return whether the kernels of an executable serve all addresses that its plan was made for."""
    return bool(getattr(executable, "is_relocatable", False))


# Calls of C functions


class OperandAddress(NamedTuple):
    """In the arguments of a FunctionCall: the address of the operand with this index."""

    operand: int


WORKSPACE = OperandAddress(-1)


class FunctionCall:
    """A call of a C function.

    The handle is passed first, OperandAddress(n) becomes the n-th address, and ctypes numbers are passed by reference.
    """

    def __init__(self, name: str, *arguments: Any, workspace_size: int = 0) -> None:
        self.name, self.arguments, self.workspace_size = name, arguments, workspace_size
        # The positions of the addresses among C's arguments. The handle has position 0.
        self._positions = [(at, a.operand) for at, a in enumerate(arguments, 1) if isinstance(a, OperandAddress)]

    @cached_property
    def _prepared(self) -> tuple[Callable[..., int], list[Any]]:
        """The C function and its arguments, without the handle and the addresses."""

        def c_argument(argument: Any) -> Any:
            if isinstance(argument, OperandAddress):
                return None
            if isinstance(argument, c_float | c_double):
                return byref(argument)
            return getattr(argument, "pointer", argument)

        return raw.bound(self.name), [None, *map(c_argument, self.arguments)]

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on these addresses."""
        function, prepared = self._prepared
        arguments = prepared.copy()
        arguments[0] = handle.pointer
        for position, index in self._positions:
            arguments[position] = (addresses[index] if index >= 0 else workspace) or None
        launch = partial(function, *arguments)
        launch.owners = (self, handle)  # type: ignore[attr-defined]  # alive as long as the call
        return launch


def tensor_descriptor(spec: TensorSpec) -> TensorDescriptor:
    """Return the descriptor of a tensor, with four axes or more."""
    wide = at_least_4d(spec)
    return TensorDescriptor(wide.shape, wide.dtype, strides=wide.strides)


def scaling_arguments(alpha: float, beta: float, dtype: str) -> tuple[Any, Any]:
    """Return alpha and beta as C takes them: double for float64, else float. Raises as check_scales does."""
    check_scales(alpha, beta)
    number = c_double if dtype == "float64" else c_float
    return number(alpha), number(beta)


def copy(x: TensorSpec, y: TensorSpec, alpha: float = 1.0, beta: float = 0.0) -> FunctionCall:
    """Return y = alpha * x + beta * y, for tensors of one shape in any memory format and dtype: cudnnTransformTensor."""
    a, b = scaling_arguments(alpha, beta, x.dtype)
    x_descriptor, y_descriptor = tensor_descriptor(x), tensor_descriptor(y)
    return FunctionCall("cudnnTransformTensor", a, x_descriptor, OperandAddress(0), b, y_descriptor, OperandAddress(1))


# Executables made of others


class OffsetExecutable:
    """An executable on parts of tensors: its operands begin some bytes after the addresses."""

    def __init__(self, executable: Executable, offsets: tuple[int, ...]) -> None:
        self.executable, self.offsets, self.workspace_size = executable, offsets, executable.workspace_size

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on these addresses."""
        parts = tuple(address + offset for address, offset in zip(addresses, self.offsets, strict=True))
        return self.executable.bind(handle, parts, workspace)


class Step(NamedTuple):
    """An executable and the indices of its operands."""

    executable: Executable
    operand_indices: tuple[int, ...]


class StepSequence:
    """Executables in sequence, as one. Indices refer to the operands, then to the parts of scratch memory.

    Parameters
    ----------
    steps : sequence of Step
        The executables, in order.
    scratch : sequence of int
        The sizes of the parts of scratch memory in bytes. They come first in the workspace; the steps share the rest.
    """

    def __init__(self, steps: Sequence[Step], scratch: Sequence[int] = ()) -> None:
        self.steps, self.scratch = steps, scratch
        self._parts = [aligned_size(size) for size in scratch]
        self._flat: tuple[list[tuple[Executable, tuple[int, ...], int]], list[int]] | None = None
        shared = max((step.executable.workspace_size for step in steps), default=0)
        self.workspace_size = sum(self._parts) + shared

    @property
    def is_relocatable(self) -> bool:
        """Whether the same kernels serve all addresses in all steps."""
        return all(is_relocatable(step.executable) for step in self.steps)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on these addresses. It stops at the first step that fails, and returns its status."""
        steps, parts = self._flat or self._flatten(len(addresses))
        at = [*addresses, *[workspace + offset for offset in parts]].__getitem__
        launches = [one.bind(handle, tuple(map(at, indices)), workspace + offset) for one, indices, offset in steps]
        return launches[0] if len(launches) == 1 else sequential_launch(launches, (self, handle))

    def _flatten(self, count: int) -> tuple[list[tuple[Executable, tuple[int, ...], int]], list[int]]:
        """Return the steps for `count` operands, and the offsets of their workspace and of all scratch memory.

        The steps of a sequence among the steps take its place: each call at new addresses binds them.
        """
        *parts, own = accumulate(self._parts, initial=0)
        steps: list[tuple[Executable, tuple[int, ...], int]] = []
        for executable, indices in self.steps:
            if not isinstance(executable, StepSequence):
                steps.append((executable, indices, own))
                continue
            inner, more = executable._flatten(len(indices))
            known = *indices, *range(count + len(parts), count + len(parts) + len(more))
            steps += [(one, tuple(map(known.__getitem__, places)), own + offset) for one, places, offset in inner]
            parts += [own + offset for offset in more]
        self._flat = steps, parts
        return self._flat


def in_parts(make: Callable[..., FunctionCall], *specs: TensorSpec, whole: int = 0) -> Executable:
    """Return the executable of make(*specs), in several calls if a tensor exceeds one descriptor.

    The calls take parts of the first axis, so that the results of its positions must not depend on each other. The operands
    are `specs`, in this order, then `whole` others, which every call takes whole.
    """
    count = length = specs[0].shape[0]

    def cut(spec: TensorSpec, size: int) -> TensorSpec:
        return spec._replace(shape=(size, *spec.shape[1:]))

    while length > 1 and any(is_too_large(cut(spec, length)) for spec in specs):
        length = -(-length // 2)
    if length == count:
        return make(*specs)
    steps: list[Step] = []
    for start in range(0, count, length):
        function = make(*(cut(spec, min(length, count - start)) for spec in specs))
        offsets = [start * spec.strides[0] * dtype_of(spec.dtype).itemsize for spec in specs if spec.strides]
        offsets += [0] * whole
        steps.append(Step(OffsetExecutable(function, tuple(offsets)), tuple(range(len(offsets)))))
    return StepSequence(steps)


def sequential_launch(launches: Sequence[BoundLaunch], owners: tuple[Any, ...] = ()) -> BoundLaunch:
    """Return one launch of several. It stops at the first bad status and returns it."""

    def launch() -> int:
        for step in launches:
            if status := step():
                return status
        return 0

    launch.owners = (*owners, *launches)  # type: ignore[attr-defined]
    return launch


def aligned_size(size: int) -> int:
    """Return the bytes that a part of a workspace takes, so that the next part is aligned."""
    return -(-size // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


# Fills: the driver fills dense memory, and cudnnSetTensor the rest (slow-fill in docs/known-issues.md)


def fill(out: TensorSpec, value: float) -> Executable:
    """Return the executable that fills a tensor of floats with 0, 1 or NaN, or one of float32 or int32 with any number."""
    if is_dense(out):
        if out.dtype != "float64":
            return Memset(out, value)
        out = TensorSpec((math.prod(out.shape),), out.dtype, (1,))
    number = scaling_arguments(0.0, 0.0, out.dtype)[0]
    number.value = value
    return FunctionCall("cudnnSetTensor", tensor_descriptor(out), OperandAddress(0), number)


def fill_or_scale(out: TensorSpec, value: float, beta: float) -> Executable:
    """Return the executable of a result without terms: out = beta * out, or with a beta of 0 a fill, which reads nothing."""
    if not beta:
        return fill(out, value)
    factor = scaling_arguments(beta, 0.0, out.dtype)[0]
    return FunctionCall("cudnnScaleTensor", tensor_descriptor(out), OperandAddress(0), factor)


def zero_fill(size: int) -> Executable:
    """Return the executable that sets bytes of scratch memory to 0, which is the number 0 in every dtype."""
    return Memset(TensorSpec((-(-size // 4),), "float32", (1,)), 0.0)


class Memset:
    """A fill of dense memory by the driver: cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async."""

    workspace_size = 0
    name = "memset"

    def __init__(self, out: TensorSpec, value: float) -> None:
        self._count, self._width = math.prod(out.shape), dtype_of(out.dtype).itemsize
        self._pattern = bits_of(value, out.dtype)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch that fills the memory at an address, on the stream of the handle."""
        driver = cuda_python("bindings.driver")
        memset = getattr(driver, f"cuMemsetD{8 * self._width}Async")
        address, pattern, count = addresses[0], self._pattern, self._count

        def launch() -> int:
            failed = int(memset(address, pattern, count, handle._address)[0])
            return int(raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) if failed else 0

        launch.owners = (self, handle)  # type: ignore[attr-defined]
        return launch


# Executables on the operands of a call in another order


class Constant(NamedTuple):
    """An input that the caller left out, in memory that all launches share."""

    address: int


class ScratchBuffer(NamedTuple):
    """A part of the workspace for a result that the caller did not request, or for an input that the caller left out."""

    size: int
    filled: Executable | None = None  #: what writes the input
    reads: tuple[int, ...] = ()  #: the operands that it reads


class _OnConstants:
    """An executable of whose operands some, with these indices, are at the same addresses in every launch."""

    def __init__(self, executable: Executable, constants: list[tuple[int, int]]) -> None:
        self.executable, self.constants = executable, constants
        self.workspace_size, self.is_relocatable = executable.workspace_size, is_relocatable(executable)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch on these addresses of the other operands."""
        every = [*addresses]
        for at, address in self.constants:
            every.insert(at, address)
        return self.executable.bind(handle, tuple(every), workspace)


def with_implicit_operands(
    executable: Executable, sources: Sequence[int | ScratchBuffer | Constant], count: int
) -> Executable:
    """Return an executable on `count` operands, which launches another one on the addresses of the sources."""
    if constants := [(at, one.address) for at, one in enumerate(sources) if isinstance(one, Constant)]:
        executable = _OnConstants(executable, constants)
    others = [source for source in sources if not isinstance(source, Constant)]
    if others == [*range(count)]:
        return executable
    scratch = [source for source in others if isinstance(source, ScratchBuffer)]
    of_scratch = iter(range(count, count + len(scratch)))
    indices = [source if isinstance(source, int) else next(of_scratch) for source in others]
    fills = [Step(one.filled, (*one.reads, at)) for at, one in enumerate(scratch, count) if one.filled is not None]
    return StepSequence([*fills, Step(executable, tuple(indices))], [one.size for one in scratch])
