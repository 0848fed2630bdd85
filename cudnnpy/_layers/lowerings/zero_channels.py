"""Convolutions of x and w with 0 channels, whose sums are 0: a plan for zeros in scratch memory adds bias and activation."""

from __future__ import annotations

from collections.abc import Sequence

from cudnnpy._convolution.sizes import Geometry
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, canonical_spec, result_strides
from cudnnpy._launch.program import Operand, Program, StepBuilder
from cudnnpy._launch.steps import Executable
from cudnnpy._planning.plan import Plan
from cudnnpy.typing import ElementName


def zeros_for(y: TensorSpec, dtype: ElementName) -> tuple[TensorSpec, TensorSpec, Geometry]:
    """Return x, w and geometry of a convolution of zeros with y's shape, with a filter of size 1 and 16 bytes of channels."""
    channels, taps = 16 // dtype_of(dtype).itemsize, (1,) * len(y.shape[2:])
    shapes = (y.shape[0], channels, *y.shape[2:]), (y.shape[1], channels, *taps)
    x, w = (canonical_spec(TensorSpec(shape, dtype, result_strides(shape, y)), "zeros") for shape in shapes)
    none = (0,) * len(taps)
    return x, w, Geometry(none, none, taps, taps)


def program_on_zeros(
    name: str,
    device: int,
    operands: Sequence[Operand],
    zeros: tuple[TensorSpec, TensorSpec],
    executable: Executable,
    plan: Plan,
) -> Program:
    """Return the program on `operands` whose executable takes zeros in scratch memory in place of the first two, x and w."""
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    replaced = [builder.scratch(spec) for spec in zeros]
    for tensor in replaced:
        builder.clear(tensor)
    builder.add(executable, *replaced, *[*builder.operands.values()][2:])
    return builder.program(name, device, operands, plan)
