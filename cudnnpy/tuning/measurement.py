"""Measurements of candidates: Measurer, the protocol of measuring tuners, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem

if TYPE_CHECKING:  # a first call needs no entries
    from cudnnpy.tuning.store.entry import Entry

Symptom = Literal["context lost", "limit exceeded", "access outside", "wrong result", "process ended"]
SYMPTOMS: tuple[Symptom, ...] = get_args(Symptom)


#: the rejection reason of a candidate that autotune leaves out by its predicted time
UNPROMISING = "not measured: the ranking expects that it is slower"


class FoundFault(NamedTuple):
    """A fault of a candidate that repeated alone in a fresh process."""

    candidate: str  #: its name: the engine with its knobs, and the suffix of its lowering
    symptom: Symptom
    detail: str  #: one line for people
    driver: str  #: the version of the CUDA driver


_NONE: Mapping[str, str] = {}


class Measurement(NamedTuple):
    """The result of measuring a problem."""

    entry: Entry | None  #: the choice with all candidates; None if nothing was measured
    reason: str = ""  #: why nothing was measured; "" with an entry
    #: whether at least as many candidates ran out of memory as ran: the choice is not stored
    was_memory_limited: bool = False
    faults: tuple[FoundFault, ...] = ()
    #: without an entry, the candidates that failed when they ran, each with the rejection reason: they are not chosen now
    rejected: Mapping[str, str] = _NONE
    #: the serialized plan of a choice that was compiled at run time, by the name of its candidate (engines.save_plan)
    compiled: Mapping[str, str] = _NONE


class Measurer(Protocol):
    """Measures problems outside the calling process (measuring.tuner.Tuner)."""

    def measure(
        self, problem: Problem, options: PlanningOptions, limit: int, left_out: Mapping[str, str]
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit.

        `left_out` has the names of candidates that are not run, each with the rejection reason.
        """

    def confirm(self, problem: Problem, options: PlanningOptions, entry: Entry, limit: int) -> str | None:
        """Return why the result of a stored plan is wrong here; "" if it is right; None if it could not be run."""
