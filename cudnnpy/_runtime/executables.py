"""Executables: calls of C functions and planned graphs, in sequence, on operands and parts of the workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_double, c_float
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, at_least_4d, extent, same_memory
from cudnnpy._launch.address_validation import address_check
from cudnnpy._launch.pace import is_long
from cudnnpy._options.arguments import check_scales
from cudnnpy.descriptors import TensorDescriptor
from cudnnpy.handle import Handle


class Executable(Protocol):
    """One launch: of a C function, of a planned graph, or of several of them in sequence.

    An attribute `movable` that is true says that the kernels depend on no property of the addresses beyond those that the
    plan was made for. An attribute `replayable` that is false says that the kernels may not be queued again without cuDNN.
    """

    workspace_size: int

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return a launch: a function without arguments that queues the work on these addresses and returns a status."""


def is_movable(executable: Executable) -> bool:
    """Return whether a captured launch of an executable may be moved to other addresses."""
    return bool(getattr(executable, "movable", False))


def is_replayable(executable: Executable) -> bool:
    """Return whether the kernels of a captured launch of an executable may be queued again."""
    return bool(getattr(executable, "replayable", True))


# Calls of C functions


class At(NamedTuple):
    """In the arguments of a Function: the address of the operand with this number."""

    place: int


WORKSPACE = At(-1)


class Function:
    """A call of a C function.

    The handle is passed first, At(n) becomes the n-th address, and ctypes numbers are passed by reference.
    """

    def __init__(self, name: str, *arguments: Any, workspace_size: int = 0) -> None:
        self.name, self.arguments, self.workspace_size = name, arguments, workspace_size
        # The places of the addresses among C's arguments, whose first is the handle.
        self._places = [(at, a.place) for at, a in enumerate(arguments, 1) if isinstance(a, At)]

    @cached_property
    def _prepared(self) -> tuple[Callable[..., int], list[Any]]:
        """The C function and its arguments, without the handle and the addresses."""

        def of(argument: Any) -> Any:
            if isinstance(argument, At):
                return None
            if isinstance(argument, c_float | c_double):
                return byref(argument)
            return getattr(argument, "pointer", argument)

        return raw.bound(self.name), [None, *map(of, self.arguments)]

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses."""
        function, prepared = self._prepared
        arguments = prepared.copy()
        arguments[0] = handle.pointer
        for at, place in self._places:
            arguments[at] = (pointers[place] if place >= 0 else workspace) or None
        launch = partial(function, *arguments)
        launch.owners = (self, handle)  # type: ignore[attr-defined]  # alive as long as the call
        return launch


def described(spec: TensorSpec) -> TensorDescriptor:
    """Return the descriptor of a tensor, with four axes or more."""
    wide = at_least_4d(spec)
    return TensorDescriptor(wide.shape, wide.dtype, strides=wide.strides)


def scales(alpha: float, beta: float, dtype: str) -> tuple[Any, Any]:
    """Return alpha and beta as C takes them: double for float64, else float. Raises as check_scales does."""
    check_scales(alpha, beta)
    kind = c_double if dtype == "float64" else c_float
    return kind(alpha), kind(beta)


def copy(x: TensorSpec, y: TensorSpec, alpha: float = 1.0, beta: float = 0.0) -> Function:
    """Return y = alpha * x + beta * y, for tensors of one shape in any memory order and dtype: cudnnTransformTensor."""
    a, b = scales(alpha, beta, x.dtype)
    return Function("cudnnTransformTensor", a, described(x), At(0), b, described(y), At(1))


# Launches in turn


class Either:
    """One executable if two operands are the same memory, another one if they are not."""

    def __init__(self, first: int, second: int, same: Executable, different: Executable) -> None:
        self.first, self.second, self.same, self.different = first, second, same, different
        self.workspace_size = max(same.workspace_size, different.workspace_size)

    @property
    def replayable(self) -> bool:
        """Whether the kernels of both may be queued again."""
        return is_replayable(self.same) and is_replayable(self.different)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses."""
        chosen = self.same if pointers[self.first] == pointers[self.second] else self.different
        return chosen.bind(handle, pointers, workspace)


class Shifted:
    """An executable on operands that begin some bytes after the addresses: on parts of tensors."""

    def __init__(self, executable: Executable, offsets: tuple[int, ...]) -> None:
        self.executable, self.offsets, self.workspace_size = executable, offsets, executable.workspace_size
        self.movable = is_movable(executable)

    @property
    def replayable(self) -> bool:
        """Whether its kernels may be queued again."""
        return is_replayable(self.executable)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses."""
        shifted = tuple(pointer + offset for pointer, offset in zip(pointers, self.offsets, strict=True))
        return self.executable.bind(handle, shifted, workspace)


class Step(NamedTuple):
    """An executable and its operands, by number."""

    executable: Executable
    places: tuple[int, ...]


class Steps:
    """Executables in sequence, as one. Their places are the operands', then those of the parts of scratch memory.

    `scratch` are the sizes of these parts in bytes. They come first in the workspace; the steps share the rest. `main`
    is the step that the others serve, if there is one.
    """

    def __init__(self, steps: Sequence[Step], scratch: Sequence[int] = (), main: Executable | None = None) -> None:
        self.steps, self.scratch, self.main = steps, scratch, main
        most = max((step.executable.workspace_size for step in steps), default=0)
        self.workspace_size = sum(map(rounded, scratch)) + most
        self._parts = [rounded(size) for size in scratch]
        self.movable = all(is_movable(step.executable) for step in steps)

    @property
    def replayable(self) -> bool:
        """Whether the kernels of all steps may be queued again."""
        return all(is_replayable(step.executable) for step in self.steps)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses. It stops at the first step that fails, and returns its status."""
        places, address = list(pointers), workspace
        for size in self._parts:
            places.append(address)
            address += size
        at = places.__getitem__
        launches = [executable.bind(handle, tuple(map(at, wanted)), address) for executable, wanted in self.steps]
        return launches[0] if len(launches) == 1 else in_turn(launches, (self, handle))


def in_turn(steps: Sequence[Callable[[], int]], owners: tuple[Any, ...] = ()) -> Callable[[], int]:
    """Return one launch of several, which stops at the first bad status and returns it."""

    def launch() -> int:
        for step in steps:
            if status := step():
                return status
        return 0

    launch.owners = (*owners, *steps)  # type: ignore[attr-defined]
    return launch


def rounded(size: int) -> int:
    """Return the bytes that a part of a workspace takes, so that the next part is aligned."""
    return -(-size // 256) * 256


# Operands, for dispatch


class Operand(NamedTuple):
    """An operand of a program.

    `in_place` names the inputs whose memory a result may share; `is_read` says that a result is also read.
    """

    name: str
    spec: TensorSpec
    is_result: bool = False
    in_place: tuple[str, ...] = ()
    is_read: bool = False


class Program:
    """Steps with named operands, as a Planned (launcher.py): results must not overlap other operands.

    A program without steps launches nothing: its results have no elements. `plan` is the plan that was chosen for the
    step that the others serve, if there is one.
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
        self.replayable = bool(steps) and self.executable.replayable
        self.movable = self.executable.movable and all(operand.spec.alignment >= 16 for operand in operands)
        self.is_long = plan.is_long if plan is not None else is_long([operand.spec for operand in operands])
        self.check_addresses = address_check(
            [extent(operand.spec) for operand in operands],
            [at for at, operand in enumerate(operands) if operand.is_result],
            partial(_explain, operands),
        )


def _explain(operands: Sequence[Operand], pointers: Sequence[int], _workspace: int) -> None:
    check_overlaps(operands, pointers)


def check_overlaps(operands: Sequence[Operand], pointers: Sequence[int]) -> None:
    """Raise ValueError if a result overlaps another operand that it is not computed in place of."""
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
    """Return an executable that needs its operands in the memory order and dtype of `wanted`, with copies of those that
    differ.

    With a beta, a result is copied in, too.
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
