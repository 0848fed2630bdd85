"""`python -P -m tools.ranking.child`: the process that measures the candidates of a survey.

It is the measuring process (cudnnpy.tuning.measuring.child) with one more request, "survey".
It has "text", "left_out" with the rejection
reasons of candidates that must not run, "known" with the milliseconds and the workspace of earlier candidates, and "most": how
many candidates are measured, 0 for all. They are the first ones by the ranking model, and drawn ones.
Every candidate is a message {"row": [name, position, milliseconds, workspace, notes, rejection reason]}. The position is its
number among the proposals of cuDNN's heuristics for its lowering; -1 for others.

Children of one GPU plan side by side. A lock of the GPU is held while a candidate runs.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import IO, Any, cast

from cudnnpy._arrays import workspace
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.convolution_lowerings import lowerings
from cudnnpy._planning import problem_notation
from cudnnpy._planning.candidates import Candidate, all_engines, heuristic_candidates
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import is_strict
from cudnnpy.handle import Handle, on_device
from cudnnpy.tuning.measuring import child, search
from cudnnpy.tuning.measuring.bench import Bench
from cudnnpy.tuning.measuring.child import Service
from cudnnpy.tuning.measuring.gpus import uuid_of
from cudnnpy.tuning.measuring.timing import Watch
from cudnnpy.tuning.ranking import model as ranking
from cudnnpy.tuning.ranking.convolution_features import features
from tools.ranking import rows
from tools.ranking.dataset import configuration

_SECONDS = 3.0  # of measuring one problem; candidates that may take long come last
_WAIT_SECONDS = 120.0  # for the GPU's lock
_DRAWN = 4  # one of so many chosen candidates is drawn


@cache
def _lock_file() -> IO[bytes]:
    return Path(tempfile.gettempdir(), f"cudnnpy-survey-{uuid_of(0)}").open("wb")


class SurveyBench(Bench):
    """A Bench that holds the GPU's lock while it uses the GPU."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self._watch = options["watch"]
        with self._gpu():
            super().__init__(*given, **options)

    @contextmanager
    def _gpu(self) -> Iterator[None]:
        self._watch.begin(None, _WAIT_SECONDS)
        fcntl.flock(_lock_file(), fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(_lock_file(), fcntl.LOCK_UN)

    def measure(self, candidate: Candidate) -> bool:
        """Run and time a planned candidate."""
        with self._gpu():
            return super().measure(candidate)

    def finalists(self, ran: list[Candidate], default: Candidate | None) -> list[Candidate]:
        """Time the fastest candidates again, in alternation."""
        with self._gpu():
            return super().finalists(ran, default)

    def close(self) -> None:
        """Free the memory."""
        with self._gpu():
            super().close()


class SurveyService(Service):
    """A Service that measures the candidates of a survey, too."""

    def do_survey(self, request: Mapping[str, Any]) -> None:
        """Send the row of each candidate of a problem."""
        problem, options = problem_notation.parse(request["text"])
        target = Target(Handle.default(0))
        positions: dict[str, int] = {}
        measured: dict[str, Candidate] = {}

        def begin(candidate: Candidate | None, seconds: float) -> None:
            self._say({"begin": "" if candidate is None else candidate.name, "seconds": seconds})

        def tell(candidate: Candidate) -> None:
            measured[candidate.name] = candidate
            self._say({"row": _row(candidate, positions)})

        known = {
            name: Choice(name, "", workspace_size=size, milliseconds=ms)
            for name, (ms, size) in request["known"].items()
        }
        watch = Watch(begin, tell)
        find = search.Search(Handle.default(0), watch=watch)
        options = options._replace(tune_seconds=_SECONDS)
        with on_device(0):
            begin(None, 60.0)
            found = list(lowerings(cast("ConvolutionProblem", problem)))
            candidates = _candidates(found, target, positions)
            if most := request["most"]:
                candidates = self._chosen(list(candidates), problem, options, target, positions, most)
            limit = workspace.free_bytes(0) // 2
            find(problem, options, candidates, limit, left_out=request["left_out"], known=known)
            for candidate in measured.values():
                self._say({"row": _row(candidate, positions)})  # the finalists' times have changed

    def _chosen(
        self,
        candidates: Sequence[Candidate],
        problem: Any,
        options: PlanningOptions,
        target: Target,
        positions: Mapping[str, int],
        most: int,
    ) -> Iterator[Candidate]:
        """Yield the first candidates by the ranking model, and drawn others; all of them without a model of the problem."""
        strict = is_strict(problem, options)
        model, known = ranking.model_for(target), features(problem, strict)
        usable = [one for one in candidates if not (one.rejection_reason or (strict and one.uses_tf32))]
        if model is None or known is None or len(usable) <= most:
            yield from candidates
            return
        described = [configuration(rows.Candidate(one.name, positions[one.name], 1.0), problem) for one in usable]
        logarithms = model.logarithms(known, described)
        order = sorted(range(len(usable)), key=lambda number: logarithms[number])
        count = most - most // _DRAWN
        chosen = {*order[:count], *Random(str(problem)).sample(order[count:], most // _DRAWN)}
        for number in order:
            if number in chosen:
                yield usable[number]
            else:
                usable[number].rejection_reason = rows.NOT_CHOSEN
                self._say({"row": _row(usable[number], positions)})


def _row(candidate: Candidate, positions: Mapping[str, int]) -> list[Any]:
    notes = [*candidate.notes, *(["compiled"] if candidate.compiled_at_run_time else [])]
    reason = " ".join(candidate.rejection_reason.split())[:80]
    ms = None if reason else candidate.milliseconds
    return [candidate.name, positions.get(candidate.name, -1), ms, candidate.workspace_size, notes, reason]


def _candidates(found: list[Any], target: Target, positions: dict[str, int]) -> Iterator[Candidate]:
    """Yield the proposals of the lowerings in turn, then every engine that is not compiled at run time."""
    proposals = [list(heuristic_candidates(lowering, target)) for lowering in found]
    for candidates in proposals:
        positions.update((candidate.name, number) for number, candidate in enumerate(candidates))
    for row in zip_longest(*proposals):
        yield from filter(None, row)
    for lowering in found:
        for candidate in all_engines(lowering, target):
            if candidate.name not in positions and not candidate.compiled_at_run_time:
                positions.setdefault(candidate.name, -1)
                yield candidate


if __name__ == "__main__":
    vars(search)["Bench"] = SurveyBench
    vars(child)["Service"] = SurveyService
    child.main()
