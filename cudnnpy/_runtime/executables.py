"""What is launched: calls of C functions and planned graphs, in turn, on operands and parts of the workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_double, c_float
from functools import partial
from typing import Any, NamedTuple, Protocol

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, at_least_4d, extent, same_memory
from cudnnpy._core.validation import check_number
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.handle import Handle


class Executable(Protocol):
    """One launch: a C function's, or a planned graph's."""

    workspace_size: int

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """A call without arguments that launches the work and returns a status."""


# Calls of C functions


class At(NamedTuple):
    """In a Function's arguments: the address of the operand with this number."""

    place: int


WORKSPACE = At(-1)


class Function:
    """A call of a C function: the handle goes first, At(n) is the n-th address, numbers of ctypes go by reference."""

    def __init__(self, name: str, *arguments: Any, workspace_size: int = 0) -> None:
        self.name, self.arguments, self.workspace_size = name, arguments, workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""

        def of(argument: Any) -> Any:
            if isinstance(argument, At):
                return (workspace if argument is WORKSPACE else pointers[argument.place]) or None
            if isinstance(argument, c_float | c_double):
                return byref(argument)
            return getattr(argument, "pointer", argument)

        launch = partial(raw.bound(self.name), handle.pointer, *map(of, self.arguments))
        launch.owners = (self, handle)  # type: ignore[attr-defined]  # alive as long as the call
        return launch


def described(spec: TensorSpec) -> TensorDescriptor:
    """A tensor's descriptor, of four axes at least."""
    wide = at_least_4d(spec)
    return TensorDescriptor(wide.shape, wide.dtype, strides=wide.strides)


def check_scales(alpha: float, beta: float) -> None:
    """TypeError for an alpha or beta that is no number, ValueError for one that is not finite."""
    for name, value in (("alpha", alpha), ("beta", beta)):
        check_number(name, value, finite=True)


def scales(alpha: float, beta: float, dtype: str) -> tuple[Any, Any]:
    """alpha and beta as C takes them: double for float64, else float. Raises as check_scales does."""
    check_scales(alpha, beta)
    kind = c_double if dtype == "float64" else c_float
    return kind(alpha), kind(beta)


def copy(x: TensorSpec, y: TensorSpec, alpha: float = 1.0, beta: float = 0.0) -> Function:
    """y = alpha * x + beta * y, for tensors of one shape, in whatever memory order and dtype: cudnnTransformTensor."""
    a, b = scales(alpha, beta, x.dtype)
    return Function("cudnnTransformTensor", a, described(x), At(0), b, described(y), At(1))


# Launches in turn


class Either:
    """One launch where two operands are the same memory, another where they are not."""

    def __init__(self, first: int, second: int, same: Executable, different: Executable) -> None:
        self.first, self.second, self.same, self.different = first, second, same, different
        self.workspace_size = max(same.workspace_size, different.workspace_size)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""
        chosen = self.same if pointers[self.first] == pointers[self.second] else self.different
        return chosen.bind(handle, pointers, workspace)


class Shifted:
    """A launch on operands that begin some bytes after the addresses: on parts of tensors."""

    def __init__(self, executable: Executable, offsets: tuple[int, ...]) -> None:
        self.executable, self.offsets, self.workspace_size = executable, offsets, executable.workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The call on these addresses."""
        shifted = tuple(pointer + offset for pointer, offset in zip(pointers, self.offsets, strict=True))
        return self.executable.bind(handle, shifted, workspace)


class Step(NamedTuple):
    """A launch and its operands, by number."""

    executable: Executable
    places: tuple[int, ...]


class Steps:
    """Launches in turn, as one. The steps' places are the operands', then those of the parts of scratch memory.

    `scratch` are the sizes of these parts in bytes. They are the first of the workspace; the steps share what follows.
    `main` is the step that the others serve, if there is one.
    """

    def __init__(self, steps: Sequence[Step], scratch: Sequence[int] = (), main: Executable | None = None) -> None:
        self.steps, self.scratch, self.main = steps, scratch, main
        most = max((step.executable.workspace_size for step in steps), default=0)
        self.workspace_size = sum(map(rounded, scratch)) + most

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The launch on these addresses; it ends with the first step that fails, and returns that step's status."""
        places, address = list(pointers), workspace
        for size in self.scratch:
            places.append(address)
            address += rounded(size)
        launches = [
            step.executable.bind(handle, tuple(places[at] for at in step.places), address) for step in self.steps
        ]
        return launches[0] if len(launches) == 1 else in_turn(launches, (self, handle))


def elsewhere(
    steps: Sequence[Step], count: int, scratch: Sequence[int], sizes: Mapping[int, int]
) -> tuple[list[Step], tuple[int, ...], dict[int, int]]:
    """Steps on `count` operands, some of which lie in scratch memory instead, in parts of as many bytes as `sizes` says.

    Returns the steps, the sizes of all scratch memory, and the operands' numbers with their new places.
    """
    moved = {at: count + len(scratch) + part for part, at in enumerate(sizes)}
    found = [Step(step.executable, tuple(moved.get(at, at) for at in step.places)) for step in steps]
    return found, (*scratch, *sizes.values()), moved


def in_turn(steps: Sequence[Callable[[], int]], owners: tuple[Any, ...] = ()) -> Callable[[], int]:
    """One launch of several: stops at the first bad status and returns it."""

    def launch() -> int:
        for step in steps:
            if status := step():
                return status
        return 0

    launch.owners = (*owners, *steps)  # type: ignore[attr-defined]
    return launch


def rounded(size: int) -> int:
    """Bytes that a part of a workspace takes, so that the next part is aligned."""
    return -(-size // 256) * 256


# Operands, for dispatch


class Operand(NamedTuple):
    """An operand of a program: `in_place` names those that a result may be, `is_read` says that it is read as well."""

    name: str
    spec: TensorSpec
    is_result: bool = False
    in_place: tuple[str, ...] = ()
    is_read: bool = False


class Program:
    """Steps as a Planned (see launcher.py): named operands, whose addresses are checked for overlaps.

    A program without steps launches nothing: that of a result without elements. `plan` is the one that was chosen for the
    step that the others serve, where one was.
    """

    def __init__(
        self,
        name: str,
        device: int,
        operands: Sequence[Operand],
        steps: Sequence[Step],
        scratch: Sequence[int] = (),
        plan: Any = None,
    ) -> None:
        self.name, self.device, self.operands, self.steps, self.scratch = name, device, operands, steps, scratch
        self.plan = plan
        self.executable = Steps(steps, scratch)
        self.workspace_size = self.executable.workspace_size
        self.replayable = bool(steps)

    def check_addresses(self, operands: Sequence[int], workspace: int) -> None:
        """Raises ValueError for a result that overlaps another operand."""
        check_overlaps(self.operands, operands)


def check_overlaps(operands: Sequence[Operand], pointers: Sequence[int]) -> None:
    """ValueError for a result that overlaps another operand, unless it may be that operand and is."""
    for operand, start in zip(operands, pointers, strict=True):
        if not operand.is_result:
            continue
        size = extent(operand.spec)
        for other, pointer in zip(operands, pointers, strict=True):
            length = extent(other.spec)
            if other is operand or not (size and length and pointer < start + size and start < pointer + length):
                continue
            same = pointer == start and other.spec.shape == operand.spec.shape and same_memory(other.spec, operand.spec)
            if not (same and other.name in operand.in_place):
                raise ValueError(f"{operand.name} must not overlap {other.name} in memory; got overlapping arrays")


def arranged(
    name: str,
    device: int,
    operands: Sequence[Operand],
    executable: Executable,
    wanted: Sequence[TensorSpec],
    beta: float = 0.0,
) -> Program:
    """One launch that wants its operands in the memory order and dtype of `wanted`: with copies of those that are not.

    With a beta a result is copied in, too.
    """
    before: list[Step] = []
    after: list[Step] = []
    places: list[int] = []
    scratch: list[int] = []
    for at, (operand, want) in enumerate(zip(operands, wanted, strict=True)):
        spec = operand.spec
        if spec.dtype == want.dtype and same_memory(spec, want) and spec.alignment >= want.alignment:
            places.append(at)
            continue
        places.append(len(operands) + len(scratch))
        scratch.append(extent(want))
        if operand.is_result:
            after.append(Step(copy(want, spec), (places[-1], at)))
        if not operand.is_result or operand.is_read or beta:
            before.append(Step(copy(spec, want), (at, places[-1])))
    return Program(name, device, operands, [*before, Step(executable, tuple(places)), *after], scratch)
