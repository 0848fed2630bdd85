"""Choose a candidate by the preference and the options, and explain rejections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from cudnnpy._core.candidate_table import table
from cudnnpy._memory import workspace as memory
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._planning import recording
from cudnnpy._planning.candidates import Candidate, Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.recall import Recall
from cudnnpy._planning.usable import Tune, is_usable
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.handle import Handle

_BEST = 16  # the number of the heuristics' proposals that autotune measures before all engines


def limit_of(options: PlanningOptions, free_bytes: int) -> int:
    """Return the largest workspace that a candidate may need, in bytes.

    It is that of the options (options.with_limit), whose default is the free memory of the device. It never exceeds the free
    memory.
    """
    limit = with_limit(options).workspace_limit
    return free_bytes if limit is None else min(limit, free_bytes)


def usable(
    candidates: Iterable[Candidate],
    problem: Problem,
    options: PlanningOptions,
    limit: int,
    tried: list[Candidate],
) -> Iterator[Candidate]:
    """Yield the candidates that can be used, planned. Append every candidate that is considered to `tried`."""
    for candidate in candidates:
        tried.append(candidate)
        if is_usable(candidate, problem, options, limit):
            yield candidate


def guesses(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Yield every candidate once, best first: the likely ones, then every engine, then the C functions."""
    return _distinct(
        chain(problem.likely(options, target), problem.engines(target), problem.functions(options, target))
    )


def _distinct(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the first candidate of each name."""
    seen: set[str] = set()
    for candidate in candidates:
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate


def choose(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    free_bytes: int,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> tuple[Candidate, list[Candidate]]:
    """Return the candidate that the options ask for, planned, and all candidates that were considered.

    `before` is the engine of an earlier shape (policy "once"), which is chosen if it can run this problem, too. `cap` is a
    further limit on the workspace, which dispatch sets after the device ran out of memory.

    Raises NoAlgorithmError, with the table of candidates, if none can be used.
    """
    limit = limit_of(options, free_bytes)
    limit = limit if cap is None else min(limit, cap)
    tried: list[Candidate] = []

    def first(candidates: Iterable[Candidate]) -> Candidate | None:
        return next(usable(candidates, problem, options, limit, tried), None)

    if options.algorithm is not None:
        found = first([problem.forced(options, target)])
    elif before is not None and (again := first([problem.forced(options._replace(algorithm=before), target)])):
        found = again
    elif options.prefer == "autotune" and tune is not None:
        found, tried = _tuned(problem, options, target, limit, tune)
    else:
        found = first(guesses(problem, options, target))
    if found is None:
        raise NoAlgorithmError(str(problem), wanted(options, limit), table(tried), tried)
    return found, tried


def _tuned(
    problem: Problem, options: PlanningOptions, target: Target, limit: int, tune: Tune
) -> tuple[Candidate | None, list[Candidate]]:
    """Return the candidate that measurement chooses, and all candidates that were considered.

    Without memory to measure in, choose what "fastest" chooses; if no engine can run, choose a C function.
    """
    tried: list[Candidate] = []

    def noted() -> Iterator[Candidate]:
        for candidate in _to_measure(problem, options, target):
            tried.append(candidate)
            yield candidate

    try:
        found = tune(problem, options, target, noted(), limit)
        is_scarce = found is None and _ran_out_of_memory(tried)
    except MemoryError:
        found, is_scarce = None, True
    if found is not None:
        if all(candidate is not found for candidate in tried):  # it has other knobs, which the tuner tries by itself
            tried.append(found)
        return found, tried
    if is_scarce:
        tried.clear()
    others = guesses(problem, options, target) if is_scarce else problem.functions(options, target)
    return next(usable(others, problem, options, limit, tried), None), tried


def _ran_out_of_memory(candidates: Iterable[Candidate]) -> bool:
    """Return whether memory was exhausted for a candidate, and no candidate gave a wrong result."""
    reasons = [candidate.refused for candidate in candidates]
    return any(reason.startswith("out of memory") for reason in reasons) and not any(
        reason.startswith("wrong result") for reason in reasons
    )


def _to_measure(problem: Problem, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
    """Yield the candidates that autotune measures, in an order that suits a short `tune_seconds`.

    The caller measures each before it takes the next. The first one that can be used is what "fastest" chooses. The best
    proposals of the heuristics follow, then every engine with its default knobs, since the heuristics omit some fast ones,
    then the other proposals. Of the orders that were tried on a survey of 1,816 convolutions of networks on an H200, none
    loses less if the time is used up. Engines that are compiled at run time are measured only where the heuristics propose
    them: one of the others took 15 s to plan, and none was the fastest for any of 84 problems.
    """
    ranked = list(_distinct(problem.likely(options, target)))
    names = {candidate.name for candidate in ranked}
    has_guess = False
    while ranked and not (has_guess and len(names) - len(ranked) >= _BEST):
        candidate = ranked.pop(0)
        yield candidate
        has_guess = has_guess or not candidate.refused
    yield from (candidate for candidate in problem.engines(target) if candidate.name not in names)
    yield from ranked


def plan_for(
    problem: Problem,
    options: PlanningOptions,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> Plan:
    """Return the plan that the options ask for. Its `candidates` are all that were considered.

    What is to be tuned is looked up in the store first (recall.py). `before` and `cap` are those of choose. Raises
    NoAlgorithmError, and ValueError if `options.algorithm` is the plan of another problem.
    """
    plan, recall = _planned(problem, options, tune, before, cap)
    if recall is not None and recall.entry is not None:
        plan.candidates = recall.considered()
    return plan


def plan_to_keep(
    problem: Problem,
    options: PlanningOptions,
    tune: Tune | None = None,
    before: Engine | None = None,
    cap: int | None = None,
) -> Plan:
    """Return the plan of plan_for without its candidates, of which a cache of thousands of plans has no need."""
    plan, _ = _planned(problem, options, tune, before, cap)
    if plan is not options.algorithm:
        plan.candidates = []
    return plan


def _planned(
    problem: Problem, options: PlanningOptions, tune: Tune | None, before: Engine | None, cap: int | None
) -> tuple[Plan, Recall | None]:
    """Return the plan that the options ask for, and what looked it up in the store."""
    given = options.algorithm
    if isinstance(given, Plan):
        given.check_serves(problem)
        return given, None
    target = Target(Handle.default(problem.device))
    recall = None if tune is None else Recall(tune, is_kept=cap is None)
    candidate, tried = choose(problem, options, target, memory.free_bytes(problem.device), recall, before, cap)
    plan = Plan(problem, candidate)
    plan.candidates = tried
    if recall is not None:
        plan.remembered = recall.layer
    recording.note(problem, options)
    return plan, recall


def survey(problem: Problem, options: PlanningOptions, target: Target, free_bytes: int) -> list[Candidate]:
    """Return every candidate, planned if the options permit it, otherwise with the rejection reason."""
    limit = limit_of(options, free_bytes)
    found = list(guesses(problem, options, target))
    for candidate in found:
        is_usable(candidate, problem, options, limit)
    return found


def wanted(options: PlanningOptions, limit: int) -> str:
    """Return the options that reject candidates, as text."""
    parts: list[Any] = [f"prefer={options.prefer!r}, so at most {bytes_text(limit)} of workspace"]
    if options.algorithm is not None:
        parts.append(f"algorithm={options.algorithm!r}")
    if options.deterministic:
        parts.append("deterministic=True")
    if not options.tf32:
        parts.append("tf32=False")
    return ", ".join(parts)
