"""Choose a candidate by the preference and the options (`plan_for`), and plan it; the error if none can be used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnnpy._arrays import workspace as memory
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._core.candidate_table import table
from cudnnpy._planning import problem_notation
from cudnnpy._planning.candidates import Candidate, rejection_by_options, try_plan
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.chooser import (
    Chooser,
    Chosen,
    OtherGpu,
    Rejection,
    Request,
    check_device,
    chooser_of,
    tuning,
)
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import Handle, on_device

if TYPE_CHECKING:
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile

SURVEY_COMPILES = 3  # engines that a survey compiles; each takes 0.2 to 1 s
HOW_TO_COMPILE = "; plan with algorithm=candidate.engine to compile this one"
NOT_COMPILED = f"not compiled: of the engines that are compiled at run time, only the first ones are{HOW_TO_COMPILE}"


def limit_of(options: PlanningOptions, free_bytes: int, memory_limit: int | None = None) -> int:
    """Return the largest workspace that a candidate may need, in bytes.

    It is the least of the limit of the options (options.with_limit), the free memory of the device, and `memory_limit`, which
    dispatch sets after the device ran out of memory.
    """
    limits = with_limit(options).workspace_limit, free_bytes, memory_limit
    return min(limit for limit in limits if limit is not None)


def planned_candidates(
    candidates: Iterable[Candidate],
    request: Request,
    considered: list[Candidate],
    rejections: Mapping[str, Rejection] = MappingProxyType({}),
    compiles: int = SURVEY_COMPILES,
) -> Iterator[Candidate]:
    """Yield the candidates that can be used, planned. Append every candidate to `considered`.

    The first `compiles` candidates that must be compiled are, and all before the first one that can be used.
    """
    compiled, has_usable = 0, False
    for candidate in candidates:
        considered.append(candidate)
        if not candidate.rejection_reason and candidate.name in rejections:
            candidate.rejection_reason = rejections[candidate.name].reason
        candidate.rejection_reason = rejection_by_options(candidate, request.problem, request.options)
        if candidate.compiled_at_run_time and not candidate.rejection_reason:
            if has_usable and compiled >= compiles:
                candidate.rejection_reason = NOT_COMPILED
            compiled += 1
        if try_plan(candidate, request.problem, request.options, request.limit):
            has_usable = True
            yield candidate


def choose(chooser: Chooser) -> Chosen:
    """Choose a candidate: the forced one, or the first of these that can be used.

    1. the preferred engine, such as that of an earlier shape (policy "once");
    2. a stored choice, or with prefer="autotune" a measured one;
    3. the first candidate in the chooser's order that it does not reject;
    4. the first one whose rejection is not final, such as one with a stored fault.

    Raises NoAlgorithmError, with the table of candidates, if there is none.
    """
    request, considered = chooser.request, list[Candidate]()

    def first(
        candidates: Iterable[Candidate], rejections: Mapping[str, Rejection] = MappingProxyType({})
    ) -> Chosen | None:
        found = next(planned_candidates(candidates, request, considered, rejections), None)
        return None if found is None else Chosen(found, lambda: considered)

    def forced(algorithm: object) -> list[Candidate]:
        options = request.options._replace(algorithm=algorithm)
        return [request.problem.forced_candidate(options, request.target)]

    if request.options.algorithm is not None:
        choice = first(forced(request.options.algorithm))
    else:
        preferred = request.preferred_engine
        choice = (
            (None if preferred is None else first(forced(preferred), chooser.rejections()))
            or chooser.known()
            or first(chooser.order(), chooser.rejections())
            or first(_with_faults(chooser))
        )
    if choice is None:
        raise no_algorithm(request, considered)
    return choice


def _with_faults(chooser: Chooser) -> Iterator[Candidate]:
    """Yield the candidates whose rejection is not final, such as those with a stored fault."""
    names = {name for name, rejection in chooser.rejections().items() if not rejection.is_final}
    if names:
        yield from (one for one in chooser.order() if one.name in names)


def plan_for(
    problem: Problem,
    options: PlanningOptions,
    *,
    stream: int = 0,
    preferred_engine: Engine | None = None,
    memory_limit: int | None = None,
    lists_candidates: bool = True,
    operands: CallerOperands | None = None,
) -> Plan:
    """Return the plan of a problem that the options choose.

    Its `candidates` are all that were considered; with `lists_candidates=False` none, for a cache of thousands of plans.
    `stream` is the caller's, for whose work a measurement waits. `preferred_engine` is the engine of an earlier shape (policy
    "once"), which is chosen if it can run this problem, too. `memory_limit` is a further limit of the workspace, after the
    device ran out of memory: then nothing is measured. `operands` are the caller's names and order, if they are not the
    problem's. Raises NoAlgorithmError, and ValueError if `options.algorithm` is the plan of another problem.
    """
    given = options.algorithm
    if isinstance(given, Plan):
        given.check_serves(problem, operands)
        return given
    begin = time.perf_counter()
    request = request_for(problem, options, memory_limit, may_run=memory_limit is None)
    chooser = chooser_of(request._replace(stream=stream, preferred_engine=preferred_engine))
    chosen = choose(chooser)
    return Plan(
        problem,
        chosen.candidate,
        operands=operands,
        options=options,
        planning_ms=(time.perf_counter() - begin) * 1e3,
        candidates=chosen.considered() if lists_candidates else (),
        is_provisional=chooser.chosen(),
    )


def plan(problem: str, *, device: int | DeviceProfile = 0) -> Plan:
    """Choose the plan of a problem in the notation, such as ``"forward 8x64x28x28 64x64x3x3 pad=1 float16"``.

    Parameters
    ----------
    problem : str
        The problem with its options, as `cudnnpy.record` and ``cudnnpy explain`` write it.
    device : int or DeviceProfile
        The ordinal of a GPU of this machine, or the profile of a GPU that need not be here. The `entry` of a plan for a profile
        is what ``cudnnpy plan`` writes.

    Returns
    -------
    Plan
        The plan.

    Raises
    ------
    ValueError
        The text is not a problem, or cuDNN rejects the profile.
    NoAlgorithmError
        No algorithm can run; the message has the table of candidates.

    Examples
    --------
    >>> import cudnnpy
    >>> h200 = cudnnpy.DeviceProfile.load("h200")
    >>> cudnnpy.plan("forward 8x64x28x28 64x64x3x3 pad=1 float16 prefer=no_workspace", device=h200).workspace_size
    0
    """
    check_device(device)
    ordinal = 0 if isinstance(device, OtherGpu) else device
    return plan_on(device, *problem_notation.parse_plannable(problem, ordinal))


def plan_on(device: object, problem: Problem, options: PlanningOptions, operands: CallerOperands | None = None) -> Plan:
    """Return the plan of a problem for its device, or for another GPU if the argument `device` of a call is one.

    Raises NoAlgorithmError, and ValueError for a v7 algorithm or a Plan on another GPU.
    """
    if not isinstance(device, OtherGpu):
        with on_device(problem.device):
            return plan_for(problem, options, operands=operands)
    if not isinstance(options.algorithm, Engine | None):
        raise ValueError(f"algorithm must be None or a cudnnpy.Engine for a device profile; got {options.algorithm!r}")
    plan: Plan = tuning().profile_planner().plan_for_profile(problem, options, device, operands)
    return plan


def candidates_on(device: object, problem: Problem, options: PlanningOptions) -> list[Candidate]:
    """Return every candidate of a problem, with the rejection reasons, for its device or another GPU, as plan_on does."""
    if not isinstance(device, OtherGpu):
        with on_device(problem.device):
            return survey(chooser_of(request_for(problem, options)))
    found: list[Candidate] = tuning().profile_planner().candidates_for_profile(problem, options, device)
    return found


def survey(chooser: Chooser, compiles: int = SURVEY_COMPILES) -> list[Candidate]:
    """Return every candidate, planned if the options and the chooser permit it, otherwise with the rejection reason.

    Of those that must be compiled, `compiles` are, or as many as are needed for one that can be used.
    """
    found: list[Candidate] = []
    for _ in planned_candidates(chooser.order(), chooser.request, found, chooser.rejections(), compiles):
        pass
    return found


def request_for(
    problem: Problem, options: PlanningOptions, memory_limit: int | None = None, *, may_run: bool = False
) -> Request:
    """Return the request for a plan on the problem's device; by default for a report, for which no candidate is run."""
    target = Target(Handle.default(problem.device))
    limit = limit_of(options, memory.free_bytes(problem.device), memory_limit)
    return Request(problem, options, target, limit, may_run=may_run)


def no_algorithm(request: Request, considered: list[Candidate]) -> NoAlgorithmError:
    """Return the error for a problem that no candidate can run."""
    problem, options, _target, limit = request[:4]
    wanted, rule = describe_options(options, limit), problem.broken_rule
    advice = "" if rule else problem.format_advice
    return NoAlgorithmError(str(problem), wanted, table(considered) + advice, considered, rule)


def describe_options(options: PlanningOptions, limit: int) -> str:
    """Return the options that reject candidates, as text."""
    parts: list[Any] = [f"prefer={options.prefer!r}, so at most {bytes_text(limit)} of workspace"]
    if options.algorithm is not None:
        parts.append(f"algorithm={options.algorithm!r}")
    if options.deterministic:
        parts.append("deterministic=True")
    if not options.tf32:
        parts.append("tf32=False")
    return ", ".join(parts)
