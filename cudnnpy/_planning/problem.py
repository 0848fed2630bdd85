"""Problem, one computation on one device with its candidates, and the values and operands that it has.

Convolutions and graphs are problems, with the same attributes and methods; a FusedConvolution is a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._planning.options import PlanningOptions

if TYPE_CHECKING:  # both import this module
    from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
    from cudnnpy.graph.problem import GraphProblem

Problem: TypeAlias = "ConvolutionProblem | GraphProblem"


class StridedSlice(NamedTuple):
    """Elements of a tensor: on each axis in logical order `shape` of them, from `start` on, `step` apart."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    step: tuple[int, ...]


class Values(NamedTuple):
    """The distribution of an operand's random values in a measurement: uniform from `low` to `high`, or whole numbers.

    Lengths and indices are not random: the elements begin at `low`, and each is `step` more than the one before.
    """

    low: float
    high: float
    is_whole: bool = False
    step: int | None = None


POSITIVE, FLAGS = Values(0.5, 1.5), Values(0.0, 1.0, is_whole=True)


def values_of(spec: TensorSpec) -> Values:
    """Return the distribution for an operand that may have any values."""
    if spec.dtype in ("bool", "float8_e8m0fnu"):  # flags, and scales
        return FLAGS if spec.dtype == "bool" else POSITIVE
    if "float" in spec.dtype:
        return Values(-1.0, 1.0)
    return Values(0.0 if spec.dtype == "uint8" else -4.0, 4.0, is_whole=True)


# Returns a slice of the operand with the given index, as an array of float64; for the result, its previous content.
Read = Callable[[int, StridedSlice], Any]


class CallerOperands(NamedTuple):
    """The operands of a problem as a caller names and orders them; the results come last."""

    names: tuple[str, ...]
    order: tuple[int, ...]  #: for each operand of the problem, its index among the names

    @property
    def positions(self) -> tuple[int, ...]:
        """For each name, the index of its operand of the problem."""
        return tuple(map(self.order.index, range(len(self.order))))


def is_strict(problem: Problem, options: PlanningOptions) -> bool:
    """Return whether float32 must be multiplied as float32, not as tf32."""
    return problem.specs[0].dtype == "float32" and not options.tf32
