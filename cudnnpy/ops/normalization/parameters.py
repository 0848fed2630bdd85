"""Scale and bias of normalizations: checks, and implicit operands for missing ones."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.fill_executables import fill
from cudnnpy._launch.implicit_operands import ConstantBuffer, OperandSources, scratch_buffer
from cudnnpy._launch.operands import packed_like
from cudnnpy._launch.program import Operand
from cudnnpy._launch.steps import Step
from cudnnpy._options.normalization import parameter_dtypes

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


def operand_sources(
    call: Call, names: Sequence[str], operands: Sequence[Operand], parameter: TensorSpec
) -> OperandSources:
    """Return for each name the index of its operand, a Constant for a missing scale or bias, or a Spare for a missing result.

    `parameter` is the spec of the missing ones.
    """
    places = {operand.name: place for place, operand in enumerate(operands)}
    return [
        places[name]
        if name in places
        else ConstantBuffer(parameter, DEFAULT_PARAMETERS[name], call)
        if name in DEFAULT_PARAMETERS
        else scratch_buffer(parameter)
        for name in names
    ]


def fill_steps(operands: Sequence[Operand], values: dict[str, float]) -> list[Step]:
    """Return steps that fill the operands named in `values`, each with its value. Empty operands are omitted."""
    return [
        Step(fill(operand.spec, values[operand.name]), (place,))
        for place, operand in enumerate(operands)
        if operand.name in values and 0 not in operand.spec.shape
    ]
