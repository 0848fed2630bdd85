"""The program of the child process that measures and plans (cudnnpy.tuning.measuring.child_process).

A request is a line of JSON on standard input, and its answer a line on standard output, after lines that report on its way.
Candidates run in no other process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cudnnpy._arrays import workspace
from cudnnpy._planning import problem_notation
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.chooser import Rejection, Request
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.selection import limit_of, survey
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle, on_device
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import gpus
from cudnnpy.tuning.measuring.end_with_parent import end_with_parent
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.measuring.timing import ContextLost, Watch
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile
from cudnnpy.tuning.ranking.candidate_order import RankedChooser

_IDLE_SECONDS = 60.0  # until a process without a request ends, and gives the memory of its CUDA context back
_LEAST_SECONDS = 1e-9  # of a search; a request whose time is used up has 0, and the default choice alone is measured
_PLANNING_SECONDS = 300.0  # for one candidate for a profile, on a machine that may be busy


def main() -> None:
    """Answer the requests on standard input until it ends, or until none has come for a while."""
    end_with_parent(0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # cuDNN may print

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    warnings.simplefilter("always")  # the caller's filters decide
    warnings.simplefilter("ignore", ResourceWarning)  # of files that an error leaves open
    warnings.showwarning = lambda message, *_where, **_how: say({"warning": str(message)})
    service, requests = Service(say), os.fdopen(0, "rb")
    while select.select([requests], [], [], _IDLE_SECONDS)[0] and (line := requests.readline()):
        try:
            say(service.answer(json.loads(line)))
        except ContextLost as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)  # what Python or CUDA does at exit may hang now
    os._exit(0)


class Service:
    """Answers requests, each by the method of its name. `say` sends a message before the answer."""

    def __init__(self, say: Callable[[dict[str, Any]], object]) -> None:
        self._say = say
        self._profile: DeviceProfile | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"answer": ...}, or {"error": text, "kind": class} for an error that a request may cause."""
        try:
            return {"answer": getattr(self, f"do_{request['do']}")(request)}
        except (CudnnError, ValueError, TypeError, MemoryError, OSError) as error:
            return {"error": str(error), "kind": type(error).__name__}

    def do_open(self, request: Mapping[str, Any]) -> str:
        """Load the parent's libraries and the profile, or make a handle; return the version."""
        if request["version"] == __version__:
            for file in request["libraries"]:
                with suppress(OSError):  # cuDNN finds its own, or reports the missing file
                    ctypes.CDLL(file)
            if "stub" in request:
                ctypes.CDLL(f"/proc/self/fd/{request['stub']}")
            if "profile" in request:
                self._profile = DeviceProfile(**request["profile"])
                device_profile.target_of(self._profile)
            else:
                if why := gpus.why_not_safe(0):
                    raise CudnnError(why)
                with on_device(0):
                    Handle.default(0)
        return __version__

    def _begin(self, candidate: Candidate | None, seconds: float) -> None:
        choice = {} if candidate is None else {"choice": candidate.choice.stored.plain()}
        self._say({"begin": "" if candidate is None else candidate.name, "seconds": seconds, **choice})

    # Measuring

    def _search(self) -> Search:
        watch = Watch(self._begin, lambda candidate: self._say({"measured": candidate.choice.stored.plain()}))
        return Search(Handle.default(0), watch=watch)

    def do_measure(self, request: Mapping[str, Any]) -> Any:
        """Return the measurement of a problem."""

        def best(measurement: Measurement) -> None:
            self._say({"best": measurement.plain()})

        problem, options, limit = _parsed(request)
        seconds = max(request["seconds"], _LEAST_SECONDS)
        options = options._replace(tune_seconds=seconds, thorough=request["thorough"])
        known = {choice.name: choice for choice in map(Choice.of, request["known"])}
        return self._search().measure(problem, options, limit, request["left_out"], known, best).plain()

    def do_confirm(self, request: Mapping[str, Any]) -> str | None:
        """Return why the result of a choice is wrong; "" if it is right; None if it could not be run."""
        problem, options, limit = _parsed(request)
        return self._search().confirm(problem, options, Choice.of(request["choice"]), limit)

    # Planning

    def do_survey(self, request: Mapping[str, Any]) -> Any:
        """Return every candidate of a problem, of which `compiles` that must be compiled are: see selection.survey."""
        found = survey(self._chooser(request), request["compiles"])
        return [candidate.choice.stored.plain() for candidate in found]

    def _chooser(self, request: Mapping[str, Any]) -> ProfileChooser:
        assert self._profile is not None
        problem, options = problem_notation.parse(request["text"])
        if "choice" in request:
            options = options._replace(algorithm=Choice.of(request["choice"]).engine)
        target, limit = device_profile.target_of(self._profile), limit_of(options, self._profile.memory)
        asked = Request(problem, options, target, limit, may_run=False)
        return ProfileChooser(asked, self._announce, request["left_out"])

    def _announce(self, candidate: str) -> None:
        self._say({"begin": candidate, "seconds": _PLANNING_SECONDS})


class ProfileChooser(RankedChooser):
    """A chooser for the GPU of a device profile. cuDNN may end the process while it plans a candidate.

    Therefore `announce` is called with the name of each candidate before it is planned, and with "" before and after all of
    them. `left_out` has the names of candidates that are not planned, with the rejection reasons.
    """

    def __init__(self, request: Request, announce: Callable[[str], object], left_out: Mapping[str, str]) -> None:
        super().__init__(request)
        self._announce = announce
        self._rejections = {name: Rejection(reason, is_final=True) for name, reason in left_out.items()}

    def order(self) -> Iterator[Candidate]:
        """Yield every candidate once, or only the forced one, and announce those that are planned."""
        problem, options, target = self.request[:3]
        forced = () if options.algorithm is None else (problem.forced_candidate(options, target),)
        self._announce("")
        for candidate in forced or list(super().order()):
            if not candidate.rejection_reason and candidate.name not in self._rejections:
                self._announce(candidate.name)
            yield candidate
        self._announce("")

    def rejections(self) -> Mapping[str, Rejection]:
        """Return the candidates that are left out."""
        return self._rejections


def _parsed(request: Mapping[str, Any]) -> tuple[Problem, PlanningOptions, int]:
    """Return the problem of a request, its options, and its workspace limit, by default the free memory."""
    problem, options = problem_notation.parse(request["text"])
    free, limit = workspace.free_bytes(problem.device), request["limit"]
    return problem, with_limit(options)._replace(prefer="autotune"), free if limit is None else min(free, limit)


if __name__ == "__main__":
    main()
