"""Problem, the protocol of an operation to be planned. Convolutions and graphs implement it; a FusedConvolution is a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._planning.candidates import Candidate, Lowering
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions


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


class Problem(Protocol):
    """One computation on one device, and the candidates for it."""

    @property
    def operation(self) -> str:
        """The name of the operation: "forward", "backward_data", "backward_filter" or "graph"."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the tensors in the order of the addresses of a plan; the results come last."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensors, in the order of `operands`. The first has the dtype of the factors."""

    @property
    def results(self) -> int:
        """The number of results among the operands."""

    @property
    def device(self) -> int:
        """The ordinal of the device."""

    @property
    def beta(self) -> float:
        """The factor of the previous content of the first result."""

    @property
    def compute_dtype(self) -> str:
        """The data type in which products are summed."""

    @property
    def reduction_length(self) -> int:
        """The number of products that are summed for one element of a result."""

    @property
    def has_finite_results(self) -> bool:
        """Whether finite inputs give finite results, so that a candidate with other results is wrong."""

    @property
    def value_ranges(self) -> tuple[Values, ...]:
        """The distribution of each operand's values in a measurement, in the order of `specs`."""

    @property
    def broken_rule(self) -> str:
        """The rule of cuDNN's engines that the problem breaks, as a sentence; "" if none is known."""

    @property
    def format_advice(self) -> str:
        """A line about memory formats that engines may need, for the end of an error; "" if there is nothing to say."""

    def float64_elements(
        self, positions: Sequence[tuple[int, ...]], read: Read
    ) -> tuple[list[float], list[float]] | None:
        """Return elements of the only result, computed in float64, and the magnitude that scales the tolerance of each.

        None if the problem cannot compute single elements.
        """

    @property
    def kind(self) -> str:
        """The kind of problem: "convolution" or "graph" (notation.KINDS)."""

    def lowerings(self) -> Iterable[Lowering]:
        """Return the lowerings to the graph API."""

    def aligned(self) -> Problem:
        """Return the same problem with 16-byte alignment of every tensor, to compare problems regardless of addresses."""

    def proposed_candidates(self, target: Target) -> Iterable[Candidate]:
        """Return the proposals of cuDNN's heuristics, best first."""

    def engines(self, target: Target) -> Iterable[Candidate]:
        """Return every engine with its default knobs."""

    def functions(self, options: PlanningOptions, target: Target) -> Iterable[Candidate]:
        """Return the candidates of C functions outside the graph API that compute the same, if any."""

    def forced_candidate(self, options: PlanningOptions, target: Target) -> Candidate:
        """Return the candidate that `options.algorithm` forces. Raises ValueError or TypeError if it is not an algorithm."""


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
