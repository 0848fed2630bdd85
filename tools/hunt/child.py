"""`python -P -m tools.hunt.child`: the process that runs the candidates of a hunt, each between unmapped addresses.

It is the measuring process (cudnnpy._worker) with two more requests, which have "text" and "seed". "run" examines every engine
with its default knobs and a sample of others, without the candidates in "left_out" and the engines in "known". "alone" examines
the candidate "name" before any other, with "slack" mapped bytes behind each operand. Each candidate that ran is a message
{"ran": row}; its "symptom" is "" if it is right.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from random import Random
from typing import Any

from cudnnpy import _worker
from cudnnpy._measuring.candidate_order import ranked_candidates
from cudnnpy._measuring.guarded_memory import STREAM
from cudnnpy._measuring.service import Say, Service
from cudnnpy._measuring.verification import Verifier
from cudnnpy._measuring.watch import ContextLost, Watch
from cudnnpy._memory import workspace as memory
from cudnnpy._planning import engines, problem_notation
from cudnnpy._planning.candidate_filter import try_plan
from cudnnpy._planning.candidates import Candidate, from_configuration
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import StatusError
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import Handle, in_use, on_device

_PROPOSED, _KNOBS = 6, 12  # of the heuristics' proposals, and drawn knobs, that are tried for a problem
_PLAN_SECONDS = 40.0  # the most for planning: some engines are compiled for 15 s
_RUN_SECONDS = 10.0  # the most that a candidate may run
_WORKSPACE = 8 << 30  # bytes, the most


def sampled(problem: Problem, options: PlanningOptions, target: Target, seed: int) -> list[Candidate]:
    """Return every engine with its default knobs, the C functions, and samples of the proposals and of other knobs.

    Conventional arithmetic comes first, whose results the others are compared with.
    """
    given, is_graph = Random(seed), isinstance(problem, GraphProblem)
    own = [candidate for candidate in problem.engines(target) if not candidate.rejection_reason]
    proposed = [
        candidate for candidate in ranked_candidates(problem, options, target) if not candidate.rejection_reason
    ]
    few = 1 + is_graph  # engines of graphs are compiled for seconds
    found = [*own, *problem.functions(options, target)]
    found += given.sample(proposed, min(_PROPOSED // few, len(proposed)))
    found += with_knobs(given.choices(own, k=_KNOBS) if own and not is_graph else [], target, given)
    distinct = {candidate.name: candidate for candidate in found if not candidate.rejection_reason}
    return sorted(distinct.values(), key=lambda candidate: not candidate.is_conventional)


def with_knobs(candidates: Iterable[Candidate], target: Target, given: Random) -> Iterator[Candidate]:
    """Yield the engines of candidates with one, two or three knobs drawn."""
    for candidate in candidates:
        if candidate.lowering is None or candidate.engine is None:
            continue
        built, index = candidate.lowering.build_graph(target), candidate.engine.index
        with suppress(StatusError):
            ranges = [(kind, values) for kind, values in engines.knob_ranges(built, target, index).items() if values]
            drawn = given.sample(ranges, min(given.randint(1, 3), len(ranges)))
            knobs = {kind: given.choice(values) for kind, values in drawn}
            found = engines.engine(built, target, index, {**dict(candidate.engine.knobs or ()), **knobs})
            yield from_configuration(candidate.lowering, target, "knobs", found)


def engine_text(candidate: Candidate) -> str:
    """Return the name of a candidate's engine, or of its C function, without knobs and lowering."""
    return candidate.name.split(" + ")[0] if candidate.engine is None else f"engine {candidate.engine.index}"


class Examiner(Verifier):
    """A Verifier that notes the shortest run of each candidate."""

    def _run_guarded(self, candidate: Candidate, *given: Any, **how: Any) -> float:
        ms = super()._run_guarded(candidate, *given, **how)
        candidate.milliseconds = min(ms, candidate.milliseconds or math.inf)
        return ms


class HuntService(Service):
    """A Service that runs candidates of a hunt, too."""

    def __init__(self, say: Say) -> None:
        super().__init__(say)
        self._actions.update(run=self._run, alone=self._alone)

    def _begin(self, candidate: Candidate | None, seconds: float) -> None:
        names = {} if candidate is None else {"begin": candidate.name, "engine": engine_text(candidate)}
        self._say({"begin": "", "seconds": seconds, **names})

    @contextmanager
    def _examined(self, request: Mapping[str, Any]) -> Iterator[tuple[Verifier, list[Candidate]]]:
        """Yield the verifier and the candidates of a request."""
        problem, options = problem_notation.parse(request["text"])
        options, handle = options._replace(tune_seconds=_RUN_SECONDS), Handle.default(0)
        self._begin(None, _PLAN_SECONDS)
        candidates = sampled(problem, options, Target(handle), request["seed"])
        how: dict[str, Any] = {"watch": Watch(self._begin), "times": False, "slack": request.get("slack", 0)}
        with (
            on_device(0),
            in_use(handle, STREAM),
            memory.trim_pool_afterwards(0, STREAM),
            closing(Examiner(problem, options, handle, _WORKSPACE, **how)) as verifier,
        ):
            yield verifier, candidates

    def _run(self, request: Mapping[str, Any]) -> None:
        """Verify candidates. Those that agreed with a baseline that was wrong are verified again."""
        left_out, known = request["left_out"], request["known"]
        with self._examined(request) as (verifier, candidates):
            wanted = [one for one in candidates if one.name not in left_out and engine_text(one) not in known]
            ran = [candidate for candidate in wanted if self._verified(verifier, candidate)]
            while left := [one for one in ran if not one.rejection_reason and one.name not in verifier.verified]:
                for candidate in left:
                    self._verified(verifier, candidate)
            for candidate in ran:
                self._tell(candidate)  # a baseline may have been found to be wrong later

    def _alone(self, request: Mapping[str, Any]) -> None:
        """Verify one candidate before any other, and then compare it with conventional arithmetic."""
        with self._examined(request) as (verifier, candidates):
            given = next(candidate for candidate in candidates if candidate.name == request["name"])
            for candidate in (given, *(other for other in candidates if other is not given and other.is_conventional)):
                is_right = self._verified(verifier, candidate) and not candidate.rejection_reason
                if given.rejection_reason or (is_right and candidate is not given):
                    break
            self._tell(given)

    def _verified(self, verifier: Verifier, candidate: Candidate) -> bool:
        """Plan, run and verify a candidate; return whether it could be planned."""
        self._begin(candidate, _PLAN_SECONDS)
        if not try_plan(candidate, verifier.problem, verifier.options, _WORKSPACE):
            return False
        try:
            verifier.verify(candidate)
        except ContextLost as lost:  # nothing can be freed any more
            print(lost, file=sys.stderr, flush=True)
            os._exit(1)
        self._tell(candidate)
        return True

    def _tell(self, candidate: Candidate) -> None:
        symptom = "wrong result" if candidate.rejection_reason.startswith("wrong result") else ""
        row = {
            "name": candidate.name,
            "engine": engine_text(candidate),
            "symptom": symptom,
            "detail": candidate.rejection_reason,
        }
        self._say({"ran": {**row, "ms": None if candidate.rejection_reason else candidate.milliseconds}})


if __name__ == "__main__":
    vars(_worker)["Service"] = HuntService
    _worker.main()
