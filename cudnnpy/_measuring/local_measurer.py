"""Measure a problem in this process: in the measuring process, or where measuring in the caller's process was set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cudnnpy._measuring.search import Search
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.remembered import candidate_of, entry_of
from cudnnpy._planning.selection import tuning_order
from cudnnpy._planning.usable import Measurement, is_usable
from cudnnpy._store.entry import Entry
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle

_FAILED = ("failed when run", "wrong result")  # the rejection reasons of candidates that ran


class LocalMeasurer:
    """A measurer that runs candidates on addresses and a stream of this process; without addresses, on random inputs."""

    def __init__(
        self, handle: Handle, inputs: tuple[int, ...] = (), result: int | None = None, stream: int = 0
    ) -> None:
        self._target, self._search = Target(handle), Search(handle, inputs, result, stream)

    def measure(
        self, problem: Problem, options: PlanningOptions, limit: int, left_out: Mapping[str, str]
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit."""
        tried: list[Candidate] = []

        def noted() -> Iterator[Candidate]:
            for candidate in tuning_order(problem, options, self._target):
                candidate.refused = candidate.refused or left_out.get(candidate.name, "")
                tried.append(candidate)
                yield candidate

        try:
            found = self._search(problem, options, self._target, noted(), limit)
        except MemoryError as error:
            return Measurement(None, str(error))
        if found is None:
            failed = {one.name: one.refused for one in tried if one.refused.startswith(_FAILED)}
            return Measurement(None, "no candidate could be run", rejected=failed)
        if all(candidate is not found for candidate in tried):  # it has other knobs, which the search tries by itself
            tried.append(found)
        try:
            plan, is_complete = Plan(problem, found), self._search.is_complete
            entry = entry_of(problem, options, self._target, plan, tried, complete=is_complete)
        except TypeError as error:  # a candidate without a text
            return Measurement(None, str(error))
        return Measurement(entry, lacked_memory=self._search.lacked_memory)

    def confirm(self, problem: Problem, options: PlanningOptions, entry: Entry, limit: int) -> str | None:
        """Return why the result of a stored plan is wrong here; "" if it is right; None if it could not be run."""
        try:
            candidate = candidate_of(entry, problem, options, self._target)
            if is_usable(candidate, problem, options, limit):
                self._search.confirm(problem, options, self._target, candidate, limit)
        except (ValueError, CudnnError) as error:
            return str(error)
        except MemoryError:
            return None
        return candidate.refused
