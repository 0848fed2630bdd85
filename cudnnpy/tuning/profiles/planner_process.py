"""A child process that plans for a device profile, so that neither a stub driver nor a crash reaches the caller.

Some engine configurations end the process. Such a candidate is rejected with that reason, and a new process goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from cudnnpy._planning import problem_notation, selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice
from cudnnpy._planning.chooser import Request
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan, profile_plan
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy._process.module_state import declare, fork_safe_lock
from cudnnpy.errors import PlanningError
from cudnnpy.tuning import recording
from cudnnpy.tuning.measuring.child_process import Ended, StartError, Worker, WorkerProcess
from cudnnpy.tuning.profiles import stub_driver
from cudnnpy.tuning.profiles.device_profile import DeviceProfile, ProfileError
from cudnnpy.tuning.store.entry import Entry
from cudnnpy.tuning.stored_choice import entry_of


class PlannerProcess(Worker):
    """Plans for one profile.

    Raises ProfileError if the loaded cuDNN does not accept the profile, PlanningError if no process could be started, and
    CudnnError if there is no driver, and no stand-in for it on this architecture.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        super().__init__(self._started, lambda ended: f"the process that planned it ended: {ended.how}")
        self.profile = profile
        self._process = self._started()

    def plan(self, problem: Problem, options: PlanningOptions) -> Entry:
        """Return the choice for a problem, with all candidates. Raises NoAlgorithmError if there is none.

        Every candidate is planned, which takes milliseconds, but for engines that are compiled at run time: they are compiled
        only until one can be used. Nothing is measured: the choice has neither a time nor an error.
        """
        forced = None if options.algorithm is None else Choice("", "", options.algorithm)
        target, considered = Target(profile=self.profile.text), self.survey(problem, options, 0, forced)
        found = next((candidate for candidate in considered if not candidate.rejection_reason), None)
        if found is None:
            limit = selection.limit_of(options, self.profile.memory)
            raise selection.no_algorithm(Request(problem, options, target, limit), considered)
        return entry_of(problem, options, target, found.choice, considered, complete=True)

    def survey(
        self,
        problem: Problem,
        options: PlanningOptions,
        compiles: int = selection.SURVEY_COMPILES,
        forced: Choice | None = None,
    ) -> list[Candidate]:
        """Return every candidate for a problem. Raises PlanningError if cuDNN fails. One that ends the process is rejected.

        `compiles` is the limit of selection.survey, and `forced` the only choice that is considered.
        """
        request = {"do": "survey", "text": problem_notation.text_of(problem, options), "compiles": compiles}
        if forced is not None:
            request["choice"] = forced.plain()
        answer, _ = self.ask_on(lambda: request, {}, parse=lambda choices: [*map(Choice.of, choices)])
        if isinstance(answer, Ended):
            raise PlanningError(f"the process that plans ended: {answer.how}")
        if "error" in answer:
            raise PlanningError(answer["error"])
        return [*map(Candidate, answer["answer"])]

    def _started(self) -> WorkerProcess:
        stub = stub_driver.open_file()
        opening = {"profile": asdict(self.profile), **({} if stub is None else {"stub": stub})}
        try:
            process = WorkerProcess(opening, inherited=() if stub is None else (stub,))
            process.open()
            return process
        except StartError as error:
            raise (ProfileError if error.kind == "ProfileError" else PlanningError)(str(error)) from None
        finally:
            if stub is not None:
                os.close(stub)


# Calls of this program


_turn = fork_safe_lock()
_current: list[PlannerProcess] = []  # of the last profile that a call planned for
declare(__name__, "_current", in_child=True, resets=False)  # a forked process starts a process of its own


def plan_for_profile(
    problem: Problem, options: PlanningOptions, profile: DeviceProfile, operands: CallerOperands | None = None
) -> Plan:
    """Return the plan of a problem for a profile, and record the problem. Raises NoAlgorithmError."""
    with planner_for(profile) as planner:
        entry = planner.plan(problem, options)
    recording.note(problem, options)
    return profile_plan(entry, profile, operands)


def candidates_for_profile(problem: Problem, options: PlanningOptions, profile: DeviceProfile) -> list[Candidate]:
    """Return every candidate of a problem for a profile."""
    with planner_for(profile) as planner:
        return planner.survey(problem, options)


@contextmanager
def planner_for(profile: DeviceProfile) -> Iterator[PlannerProcess]:
    """Let one thread at a time plan for a profile.

    The process starts with the first call for a profile. It ends with the first call for another one, after a minute without
    work, and with the program. Raises the errors of PlannerProcess.
    """
    with _turn:
        if not _current or _current[0].profile != profile:
            end_process()
            _current.append(PlannerProcess(profile))
        yield _current[0]


def end_process() -> None:
    """End the process of these calls. The next call starts another one."""
    while _current:
        _current.pop().close()
