"""Scale and bias of normalizations: checks, and implicit operands for missing ones."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._options.normalization import parameter_dtypes
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Step
from cudnnpy._runtime.fills import filled
from cudnnpy._runtime.operands import packed_like
from cudnnpy._runtime.substitutes import Constant, Slots, spare

NAN = float("nan")
DEFAULT_PARAMETERS = {"scale": 1.0, "bias": 0.0}


def scale_and_bias(call: Call, x: TensorSpec, shape: tuple[int, ...], names: Sequence[str]) -> dict[str, TensorSpec]:
    """Return the scale and bias of a call, checked, by name. Raises TypeError if their dtypes differ."""
    parameters = {
        name: packed_like(call, name, shape, *parameter_dtypes(x.dtype)) for name in names if name in call.specs
    }
    if len({spec.dtype for spec in parameters.values()}) > 1:
        raise TypeError(f"bias must be {parameters['scale'].dtype}, as scale; got {parameters['bias'].dtype}")
    return parameters


# Implicit operands


def operand_sources(call: Call, names: Sequence[str], operands: Sequence[Operand], parameter: TensorSpec) -> Slots:
    """Return for each name the index of its operand, a Constant for a missing scale or bias, or a Spare for a missing result.

    `parameter` is the spec of the missing ones.
    """
    places = {operand.name: place for place, operand in enumerate(operands)}
    return [
        places[name]
        if name in places
        else Constant(parameter, DEFAULT_PARAMETERS[name], call)
        if name in DEFAULT_PARAMETERS
        else spare(parameter)
        for name in names
    ]


def fill_steps(operands: Sequence[Operand], values: dict[str, float]) -> list[Step]:
    """Return steps that fill the operands named in `values`, each with its value. Empty operands are omitted."""
    return [
        Step(filled(operand.spec, values[operand.name]), (place,))
        for place, operand in enumerate(operands)
        if operand.name in values and 0 not in operand.spec.shape
    ]
