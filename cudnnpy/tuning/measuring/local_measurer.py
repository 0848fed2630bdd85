"""Measure a problem in this process, which is the measuring process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from cudnnpy._planning.candidates import Candidate, try_plan
from cudnnpy._planning.choice import Choice, Engine
from cudnnpy._planning.engines import Target, save_plan
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.measuring.watch import SILENT, Watch
from cudnnpy.tuning.ranking.candidate_order import tuning_order
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import entry_of, stored_candidate

_FAILED = ("failed when run", "wrong result")  # the rejection reasons of candidates that ran
_PLANNING_SECONDS = 30.0  # for the heuristics, until the first candidate is planned


class LocalMeasurer:
    """Measures as tuner.Tuner does, but runs candidates in this process.

    The first run of a candidate is between unmapped addresses, where an access outside loses the CUDA context.
    `watch` reports each step, except for `watch.best`; `best` is called with each new fastest candidate, as a Measurement.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        watch: Watch = SILENT,
        best: Callable[[Measurement], object] | None = None,
    ) -> None:
        self._handle, self._target = handle, Target(handle)
        self._watch, self._best = watch, best

    def measure(
        self,
        problem: Problem,
        options: PlanningOptions,
        limit: int,
        left_out: Mapping[str, str],
        known: Mapping[str, Choice] | None = None,
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit, except the ones in `left_out`.

        `known` has the measurements of an earlier process.
        """
        considered: list[Candidate] = []

        def ordered() -> Iterator[Candidate]:
            for candidate in tuning_order(problem, options, self._target):
                considered.append(candidate)
                yield candidate

        def chosen(choice: Candidate, *, is_complete: bool) -> Measurement:
            is_own = all(candidate is not choice for candidate in considered)  # its knobs are from the knob search
            found = [*considered, choice] if is_own else considered
            entry = entry_of(problem, options, self._target, Plan(problem, choice), found, complete=is_complete)
            return Measurement(entry, compiled=_compiled(choice))

        def report(choice: Candidate) -> None:
            if self._best is not None:
                self._best(chosen(choice, is_complete=False))

        self._watch.begin(None, _PLANNING_SECONDS)
        watch = self._watch._replace(best=report)
        search = Search(self._handle, watch=watch, known=known, left_out=left_out)
        try:
            choice = search(problem, options, self._target, ordered(), limit)
            if choice is None:
                failed = {
                    one.name: one.rejection_reason for one in considered if one.rejection_reason.startswith(_FAILED)
                }
                reason = f"no candidate can be used: {_reasons(considered)}"
                return Measurement(None, reason, search.was_memory_limited, rejected=failed)
            measurement = chosen(choice, is_complete=search.is_complete)
        except MemoryError as error:
            return Measurement(None, str(error), was_memory_limited=True)
        except TypeError as error:  # a candidate whose plan cannot be serialized
            return Measurement(None, str(error))
        return measurement._replace(was_memory_limited=search.was_memory_limited)

    def confirm(self, problem: Problem, options: PlanningOptions, entry: Entry, limit: int) -> str | None:
        """Return why the result of a stored plan is wrong here; "" if it is right; None if it could not be run."""
        try:
            candidate = stored_candidate(entry, problem, options, self._target)
        except (ValueError, CudnnError) as error:
            return str(error)
        return self._why_wrong(candidate, problem, options, limit)

    def try_engine(self, problem: Problem, options: PlanningOptions, engine: Engine | None, limit: int) -> str | None:
        """Return why the result of one engine is wrong; "" if it is right; None if it could not be run."""
        candidate = problem.forced_candidate(options._replace(algorithm=engine), self._target)
        return self._why_wrong(candidate, problem, options, limit)

    def _why_wrong(self, candidate: Candidate, problem: Problem, options: PlanningOptions, limit: int) -> str | None:
        self._watch.begin(candidate, _PLANNING_SECONDS)
        try:
            if try_plan(candidate, problem, options, limit):
                search = Search(self._handle, watch=self._watch)
                search.confirm(problem, options, self._target, candidate, limit)
        except CudnnError as error:
            return str(error)
        except MemoryError:
            return None
        return candidate.rejection_reason


def _compiled(choice: Candidate) -> dict[str, str]:
    """Return the serialized plan of a choice by its name, if its engine was compiled at run time."""
    with suppress(CudnnError):  # a plan that cuDNN does not serialize is compiled again
        return {} if choice.plan is None else {choice.name: save_plan(choice.plan)}
    return {}


def _reasons(candidates: Sequence[Candidate]) -> str:
    """Return the three most frequent rejection reasons, in one line."""
    counts = Counter(
        " ".join(candidate.rejection_reason.split()) for candidate in candidates if candidate.rejection_reason
    )
    return "; ".join(reason for reason, _ in counts.most_common(3)) or "there is no candidate"
