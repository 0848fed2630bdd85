"""Parameters of normalizations: their shapes and dtypes, the checks of those of a call, and substitutes for missing ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, extent
from cudnnpy._memory import workspace as memory
from cudnnpy._memory.streams import synchronize
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import At, Executable, Function, Operand, Step, described, in_turn, rounded, scales
from cudnnpy._runtime.fills import Fill
from cudnnpy._runtime.operands import packed_like
from cudnnpy.handle import Handle
from cudnnpy.typing import ElementName

NAN = float("nan")
NUMBERS = {"scale": 1.0, "bias": 0.0}  # the values of missing parameters


def statistics_dtype(x: TensorSpec) -> ElementName:
    """The dtype of the statistics: float64 for an x of float64, else float32."""
    return "float64" if x.dtype == "float64" else "float32"


def parameter_dtypes(x: TensorSpec) -> tuple[ElementName, ...]:
    """The dtypes allowed for scale and bias: x's dtype, and float32 for an x of 16 bits."""
    return (x.dtype,) if x.dtype in ("float32", "float64") else ("float32", x.dtype)


def scale_and_bias(call: Call, x: TensorSpec, shape: tuple[int, ...], names: Sequence[str]) -> dict[str, TensorSpec]:
    """The scale and bias that were given, checked, by name. Raises TypeError if their dtypes differ."""
    found = {name: packed_like(call, name, shape, *parameter_dtypes(x)) for name in names if name in call.specs}
    if len({spec.dtype for spec in found.values()}) > 1:
        raise TypeError(f"bias must be {found['scale'].dtype}, as scale; got {found['bias'].dtype}")
    return found


def both_or_neither(call: Call, first: str, second: str) -> bool:
    """Whether two arrays that belong together were given. Raises ValueError for one without the other."""
    if (first in call.specs) != (second in call.specs):
        missing = second if first in call.specs else first
        raise ValueError(f"{first} and {second} must be passed together; got None for {missing}")
    return first in call.specs


def check_channels(call: Call, count: int) -> None:
    """Raise ValueError for a scale or bias where x has 0 channels, as PyTorch does."""
    for name in ("scale", "bias"):
        if not count and name in call.specs:
            raise ValueError(f"{name} must be None for an x of 0 channels; got an array")


# Gradients with respect to parameters, which may be missing


# (whether dscale is computed, whether dbias is) -> the names of the results after dx
GRADIENTS = {
    (False, False): (),
    (True, False): ("dscale",),
    (False, True): ("dbias",),
    (True, True): ("dscale", "dbias"),
}


def gradients(found: Any, *computed: bool) -> Any:
    """(dx, dscale, ...) from the results of a call, with None for gradients that were not computed."""
    if all(computed):
        return found
    made = iter(found if any(computed) else (found,))
    return (next(made), *(next(made) if wanted else None for wanted in computed))


# Substitutes for missing parameters


class Constant:
    """Device memory that is filled with one number and lives as long as the object."""

    def __init__(self, spec: TensorSpec, value: float, call: Call) -> None:
        size = math.prod(spec.shape) * dtype_of(spec.dtype).itemsize
        self._memory = memory.allocate(size, call.device, call.stream)
        handle = Handle.default(call.device)
        handle.set_stream(call.stream)
        raw.check(filled(spec, value).bind(handle, (self._memory[0],), 0)(), "fill")
        synchronize(call.stream, call.device)  # other streams will read it
        self.address = self._memory[0]


class Spare(NamedTuple):
    """A part of the workspace for a result that was not asked for."""

    size: int


class Supplied:
    """A launch with more addresses than operands: each is that of an operand, given by number, a Constant or a Spare."""

    def __init__(self, executable: Executable, slots: Sequence[int | Constant | Spare]) -> None:
        self._executable, self._slots = executable, tuple(slots)
        spare = sum(rounded(slot.size) for slot in self._slots if isinstance(slot, Spare))
        self.workspace_size = spare + executable.workspace_size

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """The launch on the operands' addresses and those of the substitutes."""
        addresses = []
        for slot in self._slots:
            if isinstance(slot, Constant):
                addresses.append(slot.address)
            elif isinstance(slot, Spare):
                addresses.append(workspace)
                workspace += rounded(slot.size)
            else:
                addresses.append(pointers[slot])
        return in_turn([self._executable.bind(handle, tuple(addresses), workspace)], (self,))


def spare(spec: TensorSpec) -> Spare:
    """A part of the workspace that holds a tensor."""
    return Spare(extent(spec))


Slot = int | Constant | Spare
Slots = list[Slot]


def slots(call: Call, names: Sequence[str], operands: Sequence[Operand], parameter: TensorSpec) -> Slots:
    """For each name its operand's number, a Constant for a missing scale or bias, and a Spare for a missing result.

    `parameter` describes the missing ones.
    """
    places = {operand.name: place for place, operand in enumerate(operands)}
    return [
        places[name]
        if name in places
        else Constant(parameter, NUMBERS[name], call)
        if name in NUMBERS
        else spare(parameter)
        for name in names
    ]


def supplied(executable: Executable, slots: Slots, count: int) -> Executable:
    """An executable on `count` operands, which launches another one on the addresses of the slots."""
    return executable if slots == [*range(count)] else Supplied(executable, slots)


# Fills


def filled(spec: TensorSpec, value: float) -> Executable:
    """An executable that fills a packed tensor with a number."""
    if spec.dtype != "float64":
        return Fill(spec, value)
    flat = TensorSpec((math.prod(spec.shape),), spec.dtype, (1,))
    number = scales(0.0, 0.0, spec.dtype)[0]
    number.value = value
    return Function("cudnnSetTensor", described(flat), At(0), number)


def fills(operands: Sequence[Operand], values: dict[str, float]) -> list[Step]:
    """Steps that fill the operands that `values` names, each with its value. Operands without elements are omitted."""
    return [
        Step(filled(operand.spec, values[operand.name]), (place,))
        for place, operand in enumerate(operands)
        if operand.name in values and 0 not in operand.spec.shape
    ]
