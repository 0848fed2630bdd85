"""What the choice of a plan wants of a problem: a convolution's and a graph's meet it, and a fused convolution is a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._planning.candidates import Candidate, Lowering
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions


class Problem(Protocol):
    """What is to be computed on one device, and what could compute it."""

    @property
    def operation(self) -> str:
        """The operation's name: "forward", "graph"."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The tensors in the order in which a plan takes their addresses; the results are the last."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors' descriptions, in the order of `operands`. The first has the type of what is multiplied."""

    @property
    def results(self) -> int:
        """How many of the operands are results."""

    @property
    def device(self) -> int:
        """The device's ordinal."""

    @property
    def beta(self) -> float:
        """The factor of what the first result held before."""

    @property
    def compute_dtype(self) -> str:
        """The type in which products are summed."""

    @property
    def reduction_length(self) -> int:
        """How many products are summed for one element of a result."""

    @property
    def is_finite(self) -> bool:
        """Whether the results for finite inputs are finite, so that a candidate whose results are not is wrong."""

    # For the texts of plans, and for comparing problems

    @property
    def kind(self) -> str:
        """The kind of problem: "convolution" or "graph"."""

    def plain(self) -> dict[str, Any]:
        """As JSON, without the device: what the reader of its kind (plan_text.READERS) makes it of again."""

    def lowerings(self) -> Iterable[Lowering]:
        """The ways to run it by the graph API."""

    def aligned(self) -> Problem:
        """The same problem with every address a multiple of 16: what is asked, wherever the tensors lie."""

    def likely(self, options: PlanningOptions, target: Target) -> Iterable[Candidate]:
        """The candidates that are worth trying first, the best guess first."""

    def engines(self, target: Target) -> Iterable[Candidate]:
        """Every engine with its own knobs."""

    def functions(self, options: PlanningOptions, target: Target) -> Iterable[Candidate]:
        """The plain C functions that compute the same, where there are any."""

    def forced(self, options: PlanningOptions, target: Target) -> Candidate:
        """The one candidate that `options.algorithm` names. Raises ValueError or TypeError for what is no algorithm."""


def is_strict(problem: Problem, options: PlanningOptions) -> bool:
    """Whether float32 has to be multiplied as it is, not as tf32."""
    return problem.specs[0].dtype == "float32" and not options.tf32
