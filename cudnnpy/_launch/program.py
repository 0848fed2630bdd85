"""Program: steps with named operands, which dispatch launches like a plan, and StepBuilder, which assembles steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    channels_last_strides,
    has_same_layout,
    packed_strides,
    strides_of,
)
from cudnnpy._launch.address_validation import address_check
from cudnnpy._launch.steps import Executable, Step, StepSequence, copy, fill_or_scale, zero_fill

_ALIGNMENT = 16  # bytes; kernels for less aligned operands may differ from those for others


class Operand(NamedTuple):
    """An operand of a program.

    `in_place` names the inputs whose memory a result may share; `is_read` is true for a result that is also read.
    """

    name: str
    spec: TensorSpec
    is_result: bool = False
    in_place: tuple[str, ...] = ()
    is_read: bool = False


class Program:
    """Steps with named operands, a Launchable (launcher.py). Results must not overlap other operands.

    Parameters
    ----------
    name : str
        The name in errors.
    device : int
        The ordinal of the device.
    operands : sequence of Operand
        The operands, in the order of their addresses.
    steps : sequence of Step
        The steps; none if the results are empty tensors, for which nothing is launched.
    scratch : sequence of int
        The sizes of the parts of scratch memory in bytes.
    plan : Plan or None
        The plan of the step that the others prepare or complete, if there is one.
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
        self.executable = StepSequence(steps, scratch)
        self.workspace_size = self.executable.workspace_size
        are_aligned = all(operand.spec.alignment >= _ALIGNMENT for operand in operands)
        self.is_relocatable = bool(steps) and are_aligned and self.executable.is_relocatable
        self.check_addresses = address_check(
            [byte_extent(operand.spec) for operand in operands],
            [at for at, operand in enumerate(operands) if operand.is_result],
            lambda addresses, _workspace: check_overlaps(operands, addresses),
        )

    @property
    def _planning_ms(self) -> float:
        """The host time of planning, in milliseconds; 0 without a plan."""
        return 0.0 if self.plan is None else float(self.plan._planning_ms)

    def _trace_text(self) -> str:
        """Return the beginning of a traced line: the plan's, or the operands and the C functions, as a comment."""
        if self.plan is not None:
            return str(self.plan._trace_text())
        operands = ", ".join(f"{name} {_spec_text(spec)}" for name, spec, *_ in self.operands)
        return f"# {self.name}: {operands}; {', '.join(_function_names(self.executable)) or 'nothing to launch'}"


def _spec_text(spec: TensorSpec) -> str:
    """Return a shape, a dtype, and the memory format or the strides unless these are packed, as the notation has them."""
    words = ["x".join(map(str, spec.shape)) or "scalar", spec.dtype]
    if spec.strides not in (None, packed_strides(spec.shape)):
        is_channels_last = len(spec.shape) > 2 and spec.strides == channels_last_strides(spec.shape)
        words.append("channels_last" if is_channels_last else f"strides={','.join(map(str, spec.strides or ()))}")
    return " ".join(words)


def _function_names(executable: Any) -> Iterator[str]:
    """Yield the names of the functions that an executable calls, in order."""
    if isinstance(executable, StepSequence):
        for step in executable.steps:
            yield from _function_names(step.executable)
    elif (name := getattr(executable, "name", None)) is not None:
        yield name
    elif (inner := getattr(executable, "executable", None)) is not None:
        yield from _function_names(inner)


def check_overlaps(operands: Sequence[Operand], addresses: Sequence[int]) -> None:
    """Raise ValueError if a result overlaps another operand that it is not computed in place of."""
    placed = [
        (operand, start, start + byte_extent(operand.spec)) for operand, start in zip(operands, addresses, strict=True)
    ]
    for operand, start, end in placed:
        if not operand.is_result:
            continue
        for other, address, stop in placed:
            is_beside = address >= end or start >= stop or start == end or address == stop
            if other is operand or is_beside or _are_columns(operand.spec, other.spec, address - start):
                continue
            same = (
                address == start
                and other.spec.shape == operand.spec.shape
                and has_same_layout(other.spec, operand.spec)
            )
            if not (same and other.name in operand.in_place):
                raise ValueError(f"{operand.name} must not overlap {other.name} in memory; got overlapping arrays")


@lru_cache(maxsize=256)
def _are_columns(one: TensorSpec, other: TensorSpec, distance: int) -> bool:
    """Return whether two tensors are different columns of the same rows, as dq and dk are in an array that has both.

    `distance` is the number of bytes from the first element of one to the first element of the other.
    """
    axes = _axes_in_bytes(one), _axes_in_bytes(other)
    for row in {stride for _, stride in axes[0]} & {stride for _, stride in axes[1]}:
        ends = [1 + sum((size - 1) * stride for size, stride in of if stride < row) for of in axes]
        begin = distance % row
        if ends[0] <= begin <= row - ends[1] and all(t < row or t % row == 0 for of in axes for _, t in of):
            return True
    return False


def _axes_in_bytes(spec: TensorSpec) -> list[tuple[int, int]]:
    """Return the sizes and strides of the axes of more than one element, and of an element as an axis of bytes."""
    width = dtype_of(spec.dtype).itemsize
    axes = zip(spec.shape, strides_of(spec), strict=True)
    return [(width, 1), *((size, stride * width) for size, stride in axes if size > 1)]


def is_converted(spec: TensorSpec, wanted: TensorSpec) -> bool:
    """Return whether `with_conversion_copies` copies an operand, since the executable needs it otherwise."""
    return spec.dtype != wanted.dtype or spec.alignment < wanted.alignment or not has_same_layout(spec, wanted)


class Tensor(NamedTuple):
    """An operand of a step sequence, or a tensor in its scratch memory: the index of its address, and its spec."""

    address_index: int
    spec: TensorSpec


class StepBuilder:
    """Assembles a step sequence.

    `operands` has the specs of the sequence's operands by name, in the order of their addresses.
    """

    def __init__(self, operands: Mapping[str, TensorSpec]) -> None:
        self.operands = {name: Tensor(index, spec) for index, (name, spec) in enumerate(operands.items())}
        self._steps: list[Step] = []
        self._scratch: list[int] = []

    def scratch(self, spec: TensorSpec) -> Tensor:
        """Return a new tensor in scratch memory."""
        self._scratch.append(byte_extent(spec))
        return Tensor(len(self.operands) + len(self._scratch) - 1, spec)

    def add(self, executable: Executable, *tensors: Tensor) -> None:
        """Add a step: an executable, and the tensors that are its operands."""
        self._steps.append(Step(executable, tuple(tensor.address_index for tensor in tensors)))

    def copy(self, source: Tensor, target: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Add a step: target = alpha * source + beta * target, for tensors of one shape."""
        self.add(copy(source.spec, target.spec, alpha, beta), source, target)

    def clear(self, tensor: Tensor) -> None:
        """Add a step that sets all bytes of a tensor in scratch memory to 0."""
        self.add(zero_fill(byte_extent(tensor.spec)), tensor)

    def sequence(self) -> StepSequence:
        """Return the steps that were added, and their scratch memory, as one executable."""
        return StepSequence(self._steps, self._scratch)

    def program(self, name: str, device: int, operands: Sequence[Operand], plan: Any = None) -> Program:
        """Return the steps that were added as a program, whose operands are in the order of the builder's."""
        return Program(name, device, operands, self._steps, self._scratch, plan)


def with_conversion_copies(
    name: str,
    device: int,
    operands: Sequence[Operand],
    executable: Executable,
    wanted: Sequence[TensorSpec],
    beta: float = 0.0,
    plan: Any = None,
    scale: tuple[float, float] | None = None,
) -> Program:
    """Wrap an executable with copies that convert operands to the memory format and dtype in `wanted`.

    Results are converted back. A result that is read, or any result with a beta, is converted first, too. `scale` are the
    factors of the results and of their previous content, which the copies back apply in place of the executable.
    """
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    tensors: list[Tensor] = []
    after: list[tuple[Tensor, Tensor]] = []
    for operand, own, want in zip(operands, builder.operands.values(), wanted, strict=True):
        if not is_converted(operand.spec, want) and not (scale and operand.is_result):
            tensors.append(own)
            continue
        converted = builder.scratch(want)
        tensors.append(converted)
        if operand.is_result:
            after.append((converted, own))
        if not operand.is_result or operand.is_read or beta:
            builder.copy(own, converted)
    builder.add(executable, *tensors)
    for converted, own in after:
        builder.copy(converted, own, *(scale or ()))
    return builder.program(name, device, operands, plan)


def program_for_empty_input(name: str, device: int, operands: Sequence[Operand], beta: float) -> Program:
    """Return the program of sums over nothing: result = 0 + beta * result. An empty result is not written.

    The result is the last operand.
    """
    at, out = len(operands) - 1, operands[-1].spec
    return Program(name, device, operands, [Step(fill_or_scale(out, 0.0, beta), (at,))] if byte_extent(out) else [])
