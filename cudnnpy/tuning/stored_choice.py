"""Convert between choices and store entries; the lock by which one thread measures a choice.

An entry is untrusted: its plan must be for the same problem, and is configured again from engine and knobs, so that cuDNN never
parses stored text. Known issues, options and the workspace limit apply to it as to any candidate.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import RLock
from weakref import WeakValueDictionary

from cudnnpy import raw
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice, GpuKind, invalid_text
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.plan import serialized_candidate
from cudnnpy._planning.problem import Problem, is_strict
from cudnnpy._planning.problem_notation import text_of
from cudnnpy._process.cuda_state import version_text
from cudnnpy._process.module_state import declare, process_cache
from cudnnpy._version import __version__
from cudnnpy.tuning.store.entry import Entry, Key, canonical_json

_OPTIONS = ("deterministic", "tf32", "workspace_limit")  # the options that a measured choice depends on


def key_of(problem: Problem, options: PlanningOptions, gpu: GpuKind) -> Key:
    """Return the key of a choice: the problem, the options, the GPU and the release of cuDNN.

    `prefer` affects the key only through the workspace limit that it implies, because the store holds autotune results only.
    """
    options = with_limit(options)
    return Key(
        text_of(problem),
        canonical_json({option: getattr(options, option) for option in _OPTIONS}),
        *gpu,
        raw.version(),
    )


def choice_text(problem: Problem, options: PlanningOptions) -> str:
    """Return the text of a problem and of the options that a choice depends on, for its key."""
    options = with_limit(options)
    return text_of(problem, PlanningOptions(**{option: getattr(options, option) for option in _OPTIONS}))


@process_cache
def driver() -> str:
    """Return the version of the CUDA driver: "13.0"; "" if there is none."""
    try:
        status, number = cuda_python("bindings.driver").cuDriverGetVersion()
    except Exception:  # no driver, or no cuda-python, so that nothing can be measured
        return ""
    return "" if int(status) else version_text(number)


def is_confirmed(entry: Entry) -> bool:
    """Return whether a choice was measured with the loaded driver, or confirmed by a run with it."""
    made_with = {} if entry.choice.milliseconds is None else entry.made_with
    return driver() != "" and driver() in (made_with.get("driver"), entry.made_with.get("confirmed_with_driver"))


def reason_of_fault(symptom: str, detail: str, made_at: str = "") -> str:
    """Return the rejection reason for a candidate with a fault, found now by default."""
    return f"{symptom} on {(made_at or _now())[:10]}: {detail}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Entries


def entry_of(
    problem: Problem,
    options: PlanningOptions,
    target: Target,
    choice: Choice,
    tried: Sequence[Candidate],
    *,
    complete: bool,
) -> Entry:
    """Return the store entry of a choice.

    `tried` are all candidates that were considered. `complete` means that time and memory sufficed for all of them.
    """
    is_measured = choice.milliseconds is not None
    return Entry(
        key_of(problem, options, gpu_kind(target)),
        choice_text(problem, options),
        choice.stored,
        options.tune_seconds if is_measured else 0.0,
        complete,
        _now(),
        {"cudnnpy": __version__, "python": platform.python_version(), **({"driver": driver()} if is_measured else {})},
        tuple(candidate.choice.stored for candidate in tried),
    )


def stored_candidate(entry: Entry, problem: Problem, options: PlanningOptions, target: Target) -> Candidate:
    """Return the candidate of an entry, not yet planned, with its measured time and error.

    Raises ValueError if its plan is for another problem, and the errors of serialized_candidate.
    """
    choice = entry.choice
    if entry.key.problem != text_of(problem) or (
        choice.engine is None and choice.strict != is_strict(problem, options)
    ):
        raise invalid_text(f"it is not a plan for {problem}")
    candidate = serialized_candidate(entry.serialized, problem, target)
    if (
        candidate.lowering is not None
        and candidate.engine is not None
        and candidate.source not in ("ranking", "heuristics", "knobs")
    ):
        facts, index = candidate.lowering.traits, candidate.engine.index
        if known_issues.requires_heuristics_proposal(facts, index, candidate.notes):
            raise invalid_text(f"{candidate.name} may be wrong for {problem}, unless the heuristics propose it")
    return candidate


# Single flight: one thread measures a choice, and other threads that need it wait


_locks: WeakValueDictionary[str, RLock] = WeakValueDictionary()

declare(__name__, "_locks", in_child=True)  # no thread of the parent will release them


@contextmanager
def single_flight(key: Key) -> Iterator[None]:
    """Let one thread of this process at a time into the block for a key."""
    lock = _locks.setdefault(key.digest, RLock())  # referred to until the end of the block
    with lock:
        yield
