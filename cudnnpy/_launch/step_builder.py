"""StepBuilder, which assembles step sequences on named operands and on tensors in scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch import steps
from cudnnpy._launch.fill_executables import zero_fill
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.steps import Executable, Step, StepSequence


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
        self.add(steps.copy(source.spec, target.spec, alpha, beta), source, target)

    def clear(self, tensor: Tensor) -> None:
        """Add a step that sets all bytes of a tensor in scratch memory to 0."""
        self.add(zero_fill(byte_extent(tensor.spec)), tensor)

    def sequence(self) -> StepSequence:
        """Return the steps that were added, and their scratch memory, as one executable."""
        return StepSequence(self._steps, self._scratch)

    def program(self, name: str, device: int, operands: Sequence[Operand], plan: Any = None) -> Program:
        """Return the steps that were added as a program, whose operands are in the order of the builder's."""
        return Program(name, device, operands, self._steps, self._scratch, plan)
