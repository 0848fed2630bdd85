"""Choose a candidate by the preference and the options, and explain rejections."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cudnnpy._core.candidate_table import table
from cudnnpy._core.choice import Engine
from cudnnpy._core.layouts import are_channels_last, channels_last_strides
from cudnnpy._memory import workspace as memory
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._planning import recording
from cudnnpy._planning.candidate_filter import try_plan
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.measurement import Measurer
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._process_state import process_cache
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import Handle

if TYPE_CHECKING:
    from cudnnpy._planning.stored_tuner import StoredTuner

RUNTIME_ENGINES = "Engines that are compiled at run time are planned only where the GPU is"


def limit_of(options: PlanningOptions, free_bytes: int) -> int:
    """Return the largest workspace that a candidate may need, in bytes.

    It is the limit of the options (options.with_limit), by default the free memory of the device, which it never exceeds.
    """
    limit = with_limit(options).workspace_limit
    return free_bytes if limit is None else min(limit, free_bytes)


def planned_candidates(
    candidates: Iterable[Candidate],
    problem: Problem,
    options: PlanningOptions,
    limit: int,
    tried: list[Candidate],
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Candidate]:
    """Yield the candidates that can be used, planned. Append every candidate that is considered to `tried`.

    `left_out` has the rejection reasons of candidates with a stored fault, by their names.
    """
    for candidate in candidates:
        tried.append(candidate)
        candidate.rejection_reason = candidate.rejection_reason or left_out.get(candidate.name, "")
        if try_plan(candidate, problem, options, limit):
            yield candidate


def ranked_candidates(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Yield every candidate once: the problem's ranked candidates, then every engine, then the C functions."""
    return _distinct(
        chain(problem.proposed_candidates(options, target), problem.engines(target), problem.functions(options, target))
    )


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the first candidate of each name."""
    seen: set[str] = set()
    for candidate in candidates:
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate


@process_cache
def _stored_tuner_class() -> type[StoredTuner] | None:
    """Return the class of tuners, or None in an installation without the package `_store`."""
    if find_spec("cudnnpy._store") is None:  # a failing import would disturb threads that import the same module
        return None
    from cudnnpy._planning.stored_tuner import StoredTuner

    return StoredTuner


def choose(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free_bytes: int,
    tuner: StoredTuner | None = None,
    previous_engine: Engine | None = None,
    memory_limit: int | None = None,
) -> tuple[Candidate, list[Candidate]]:
    """Choose a candidate by the options. Return it, planned, and all candidates that were considered now.

    `tuner` has stored choices and faults, and measures; it is not used for a forced algorithm. `previous_engine` is the engine
    of an earlier shape (policy "once"), which is chosen if it can run this problem, too. `memory_limit` is a further limit on
    the workspace, which dispatch sets after the device ran out of memory. Candidates with a stored fault are used only if no
    other can be.

    Raises NoAlgorithmError, with the table of candidates, if none can be used.
    """
    limit = limit_of(options, free_bytes)
    limit = limit if memory_limit is None else min(limit, memory_limit)
    tried: list[Candidate] = []

    def first(candidates: Iterable[Candidate], left_out: Mapping[str, str] = MappingProxyType({})) -> Candidate | None:
        return next(planned_candidates(candidates, problem, options, limit, tried, left_out), None)

    found: Candidate | None = None
    if options.algorithm is not None:
        found = first([problem.forced_candidate(options, target)])
    else:
        if previous_engine is not None:
            again = problem.forced_candidate(options._replace(algorithm=previous_engine), target)
            found = first([again], {} if tuner is None else tuner.left_out)
        if found is None and tuner is not None and (found := tuner.choice(limit)):
            tried.append(found)
        if found is None:
            faults, rejected = ({}, {}) if tuner is None else (tuner.left_out, tuner.rejected)
            found = first(ranked_candidates(problem, options, target), {**faults, **rejected})
            if found is None and (with_fault := faults.keys() - rejected.keys()):
                found = first(one for one in ranked_candidates(problem, options, target) if one.name in with_fault)
    if found is None:
        raise no_algorithm(problem, options, limit, tried)
    return found, tried


def tuning_order(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Yield the candidates that autotune measures. The caller measures each before it takes the next.

    The first one that can be used is the default choice. Where a ranking model orders the candidates (Candidate.expected), the
    engines that it does not rank come only with `options.thorough`, or if no candidate could be used. C functions come only
    if none could.
    """
    is_ranked = has_guess = False

    def all_candidates() -> Iterator[Candidate]:
        yield from problem.proposed_candidates(options, target)
        if options.thorough or not (is_ranked and has_guess):
            yield from problem.engines(target)
        if not has_guess:
            yield from problem.functions(options, target)

    for candidate in _distinct(all_candidates()):
        yield candidate
        is_ranked = is_ranked or candidate.expected is not None
        has_guess = has_guess or not candidate.rejection_reason


def plan_for(
    problem: Problem,
    options: PlanningOptions,
    measurer: Measurer | None = None,
    previous_engine: Engine | None = None,
    memory_limit: int | None = None,
    *,
    lists_candidates: bool = True,
) -> Plan:
    """Return the plan of a problem that the options choose.

    Its `candidates` are all that were considered; with `lists_candidates=False` none, for a cache of thousands of plans.
    A valid stored choice is used (stored_tuner.py). Without one prefer="autotune" measures the problem by the measurer.
    `previous_engine` and `memory_limit` are the same as in `choose`. Raises NoAlgorithmError, and ValueError if
    `options.algorithm` is the plan of another problem.
    """
    given = options.algorithm
    if isinstance(given, Plan):
        given.check_serves(problem)
        return given
    begin = time.perf_counter()
    target = Target(Handle.default(problem.device))
    tuner_class = _stored_tuner_class()
    tuner = None
    if tuner_class is not None:
        tuner = tuner_class(problem, options, target, measurer, is_measured=memory_limit is None)
    candidate, considered = choose(
        problem, options, target, memory.free_bytes(problem.device), tuner, previous_engine, memory_limit
    )
    planning_ms = (time.perf_counter() - begin) * 1e3
    if not lists_candidates:
        considered = []
    elif tuner is not None and tuner.entry is not None:
        considered = tuner.considered()
    recording.note(problem, options)
    return Plan(problem, candidate, options=options, planning_ms=planning_ms, candidates=considered)


def survey(problem: Problem, options: PlanningOptions, target: Target, free_bytes: int) -> list[Candidate]:
    """Return every candidate, planned if the options and stored faults permit it, otherwise with the rejection reason."""
    tuner_class = _stored_tuner_class()
    left_out = {} if tuner_class is None else tuner_class(problem, options, target).left_out
    limit, ranked = limit_of(options, free_bytes), ranked_candidates(problem, options, target)
    found: list[Candidate] = []
    for _ in planned_candidates(ranked, problem, options, limit, found, left_out):
        pass
    return found


def no_algorithm(
    problem: Problem, options: PlanningOptions, limit: int, considered: list[Candidate], *, is_for_profile: bool = False
) -> NoAlgorithmError:
    """Return the error for a problem that no candidate can run."""
    advice = _advice_on_formats(problem) if problem.operation == "graph" else ""
    if is_for_profile and any("RUNTIME_PREREQUISITE_MISSING" in one.rejection_reason for one in considered):
        advice += f"\n  {RUNTIME_ENGINES}. One of them may run it"
    return NoAlgorithmError(str(problem), describe_options(options, limit), table(considered) + advice, considered)


def _advice_on_formats(problem: Problem) -> str:
    """Return the line about tensors that are not channels last, which the engines of most graphs need; "" if all are."""
    others = {
        name: channels_last_strides(spec.shape)
        for name, spec in zip(problem.operands, problem.specs, strict=True)
        if len(spec.shape) > 3 and not are_channels_last(spec)
    }
    if not others:
        return ""
    name, strides = next(iter(others.items()))
    return (
        f"\n  Engines for most graphs need tensors that are channels last in memory; {', '.join(others)} "
        f"{'is' if len(others) == 1 else 'are'} not. The strides of {name} would be {strides}"
    )


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
