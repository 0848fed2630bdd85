"""Which candidates the options and the limit on the workspace permit, and what measures those that are permitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem, is_strict


class Tune(Protocol):
    """Measures the usable candidates of a problem (search.Search)."""

    @property
    def is_complete(self) -> bool:
        """Whether the last call measured all that it was to measure."""

    @property
    def lacked_memory(self) -> bool:
        """Whether in the last call memory was missing for as many candidates as ran."""

    def __call__(
        self, problem: Problem, options: PlanningOptions, target: Target, candidates: Iterable[Candidate], limit: int
    ) -> Candidate | None:
        """Return the fastest usable candidate within a limit. The first of them is what is chosen without measuring.

        Raises MemoryError if there is no memory to measure it.
        """

    def confirm(self, problem: Problem, options: PlanningOptions, target: Target, given: Candidate, limit: int) -> None:
        """Run a planned candidate once, and reject it if its result is wrong. Raises MemoryError without memory for that."""


def rejection(candidate: Candidate, problem: Problem, options: PlanningOptions) -> str:
    """Return the reason to reject a candidate before it is planned; "" if the options permit it."""
    if candidate.refused:
        return candidate.refused
    if options.deterministic and not candidate.deterministic:
        return "not deterministic"
    if is_strict(problem, options) and candidate.uses_tf32:
        return "uses tf32"
    return ""


def is_usable(candidate: Candidate, problem: Problem, options: PlanningOptions, limit: int) -> bool:
    """Plan a candidate if the options permit it; return False, with the reason in `refused`, if it cannot be used."""
    candidate.refused = rejection(candidate, problem, options)
    executable = None if candidate.refused else candidate.prepare()
    if executable is None:
        return False
    if executable.workspace_size > limit:
        candidate.refused = f"needs {bytes_text(executable.workspace_size)}, the limit is {bytes_text(limit)}"
        return False
    return True
