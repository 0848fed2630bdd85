"""Answer requests in the child process: measure a problem on its GPU, or plan it for a device profile.

Candidates run in no other process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cudnnpy._arrays import workspace
from cudnnpy._planning import problem_notation
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.chooser import Rejection, Request
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.selection import limit_of, no_algorithm, survey
from cudnnpy._version import __version__
from cudnnpy.errors import CudnnError, NoAlgorithmError
from cudnnpy.handle import Handle, on_device
from cudnnpy.tuning.measurement import Measurement
from cudnnpy.tuning.measuring import gpus
from cudnnpy.tuning.measuring.local_measurer import LocalMeasurer
from cudnnpy.tuning.measuring.watch import Watch
from cudnnpy.tuning.profiles import device_profile
from cudnnpy.tuning.profiles.device_profile import DeviceProfile
from cudnnpy.tuning.ranking.candidate_order import RankedChooser
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import entry_of

Say = Callable[[dict[str, Any]], object]
_LEAST_SECONDS = (
    1e-9  # of a search; a request whose time is used up has 0, for which only the default choice is measured
)
_PLANNING_SECONDS = 300.0  # for one candidate for a profile, on a machine that may be busy


class Service:
    """Answers requests. `say` sends a message before the answer."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._profile: DeviceProfile | None = None
        self._actions: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "open": self._open,
            "measure": self._measure,
            "try": self._try,
            "confirm": self._confirm,
            "plan": self._plan,
            "survey": self._survey,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return {"answer": ...}, or {"error": text, "kind": class} for an error that a request may cause."""
        try:
            return {"answer": self._actions[request["do"]](request)}
        except (CudnnError, ValueError, TypeError, MemoryError, OSError) as error:
            return {"error": str(error), "kind": type(error).__name__}

    def _open(self, request: Mapping[str, Any]) -> str:
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

    # Measuring

    def _measurer(self) -> LocalMeasurer:
        def best(measurement: Measurement) -> None:
            self._say({"best": _plain(measurement)})

        return LocalMeasurer(Handle.default(0), watch=_watch(self._say), best=best)

    def _measure(self, request: Mapping[str, Any]) -> Any:
        problem, options, limit = _parsed(request)
        known = {choice.name: choice for choice in map(Choice.of, request["known"])}
        seconds = max(request["seconds"], _LEAST_SECONDS)
        options = options._replace(tune_seconds=seconds, thorough=request["thorough"])
        return _plain(self._measurer().measure(problem, options, limit, request["left_out"], known))

    def _try(self, request: Mapping[str, Any]) -> str | None:
        problem, options, limit = _parsed(request)
        return self._measurer().try_engine(problem, options, Choice.of(request["choice"]).engine, limit)

    def _confirm(self, request: Mapping[str, Any]) -> str | None:
        problem, options, limit = _parsed(request)
        return self._measurer().confirm(problem, options, Entry.of(request["entry"]), limit)

    # Planning

    def _plan(self, request: Mapping[str, Any]) -> Any:
        try:
            return self._chooser(request).entry().plain()
        except NoAlgorithmError as error:
            return {"error": str(error), "candidates": _plain_choices(error.candidates)}

    def _survey(self, request: Mapping[str, Any]) -> Any:
        return _plain_choices(survey(self._chooser(request)))

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

    def entry(self) -> Entry:
        """Return the choice, with all candidates.

        Every candidate is planned, which takes milliseconds, but for engines that are compiled at run time: they are compiled
        only until one can be used. Nothing is measured: the choice has neither a time nor an error. Raises NoAlgorithmError,
        with the table of candidates, if none can be used.
        """
        (problem, options, target), considered = self.request[:3], survey(self, compiles=0)
        found = next((candidate for candidate in considered if not candidate.rejection_reason), None)
        if found is None:
            raise no_algorithm(self.request, considered)
        return entry_of(problem, options, target, Plan(problem, found), considered, complete=True)


def _plain_choices(candidates: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the choices of candidates as JSON."""
    return [candidate.choice.stored.plain() for candidate in candidates]


def _parsed(request: Mapping[str, Any]) -> tuple[Problem, PlanningOptions, int]:
    """Return the problem of a request, its options, and its workspace limit, by default the free memory."""
    problem, options = problem_notation.parse(request["text"])
    free, limit = workspace.free_bytes(problem.device), request["limit"]
    return problem, with_limit(options)._replace(prefer="autotune"), free if limit is None else min(free, limit)


def _plain(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as JSON for the parent process."""
    entry = measurement.entry
    return {
        **measurement._asdict(),
        "entry": None if entry is None else entry.plain(),
        "rejected": dict(measurement.rejected),
        "compiled": dict(measurement.compiled),
    }


def _watch(say: Say) -> Watch:
    """Return a Watch that sends messages to the parent process."""

    def begin(candidate: Candidate | None, seconds: float) -> None:
        message: dict[str, Any] = {"begin": "" if candidate is None else candidate.name, "seconds": seconds}
        if candidate is not None:
            message["choice"] = candidate.choice.stored.plain()
        say(message)

    return Watch(begin, lambda candidate: say({"measured": candidate.choice.stored.plain()}))
