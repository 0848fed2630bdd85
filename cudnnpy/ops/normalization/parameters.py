"""Parameters of normalizations: their shapes and dtypes, the checks of those of a call, and substitutes for missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Step
from cudnnpy._runtime.fills import filled
from cudnnpy._runtime.operands import packed_like
from cudnnpy._runtime.substitutes import Constant, Slots, spare
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


def fills(operands: Sequence[Operand], values: dict[str, float]) -> list[Step]:
    """Steps that fill the operands that `values` names, each with its value. Operands without elements are omitted."""
    return [
        Step(filled(operand.spec, values[operand.name]), (place,))
        for place, operand in enumerate(operands)
        if operand.name in values and 0 not in operand.spec.shape
    ]
