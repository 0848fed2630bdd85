"""Search better knob values for the fastest engines, by coordinate descent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cudnnpy._planning import engines
from cudnnpy._planning.candidates import Candidate, from_configuration
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import Target
from cudnnpy.errors import StatusError
from cudnnpy.tuning.measuring.bench import milliseconds

_REFINED = 3  # the number of engines for which other knobs are tried
_MAX_RATIO = 2.0  # an engine that takes more than this many times as long as the fastest keeps its knobs
_PASSES = 3  # maximum passes over the knobs of one engine
_SAMPLES = 16  # approximate maximum of values of a knob in one pass
# The search ends after this many candidates in a row that are not faster by 1 %. In a survey of 1,736 convolutions on an H100
# with cuDNN 9.19 that leaves a quarter of its candidates, and costs 0.35 % of the chosen time; no search of knobs costs 1.3 %.
PATIENCE, GAIN = 8, 1.01


def other_knobs(ran: list[Candidate], target: Target) -> Iterator[Candidate]:
    """Yield the fastest engines with other knobs. The caller measures each candidate before it takes the next."""
    fastest, patience = min(map(milliseconds, ran), default=math.inf), PATIENCE
    for candidate in _descents(ran, target):
        yield candidate
        is_faster = not candidate.rejection_reason and milliseconds(candidate) * GAIN < fastest
        fastest, patience = (milliseconds(candidate), PATIENCE) if is_faster else (fastest, patience - 1)
        if not patience:
            break


def _descents(ran: list[Candidate], target: Target) -> Iterator[Candidate]:
    """Yield the fastest engines with other knobs, without an end by patience.

    This is a coordinate descent: one knob after the other, knobs with few values first, is set to its fastest value, until a
    pass over all knobs brings no improvement.
    """
    best: dict[Engine, Candidate] = {}  # by engine and lowering
    ranked = sorted(ran, key=milliseconds)
    for candidate in ranked:
        if milliseconds(candidate) > _MAX_RATIO * milliseconds(ranked[0]):
            break
        if candidate.engine is not None and candidate.engine.knobs:
            best.setdefault(replace(candidate.engine, knobs=None), candidate)
    known = {candidate.name for candidate in ran}
    for current in list(best.values())[:_REFINED]:
        if current.lowering is None or current.engine is None:
            continue
        lowering, index, fastest = current.lowering, current.engine.index, current
        built = lowering.build_graph(target)
        try:
            ranges = engines.knob_ranges(built, target, index)
        except StatusError:  # an engine that the heuristics return but that cannot be created by its index
            continue
        for _ in range(_PASSES):
            before = fastest
            for kind, values in sorted(ranges.items(), key=lambda item: len(item[1])):
                knobs = dict(fastest.engine.knobs or ()) if fastest.engine else {}
                if kind not in knobs:
                    continue
                for value in _sample(values, knobs[kind]):
                    try:
                        found = engines.engine(built, target, index, {**knobs, kind: value})
                    except StatusError:
                        continue
                    candidate = from_configuration(lowering, target, "knobs", found)
                    if candidate.name not in known:
                        known.add(candidate.name)
                        yield candidate
                        if not candidate.rejection_reason:
                            fastest = min(fastest, candidate, key=milliseconds)
            if fastest is before:
                break


def _sample(values: range, current: int) -> list[int]:
    """Return the values of a knob to try: all, or, if there are many, a sample and the neighbours of the current value."""
    if len(values) <= _SAMPLES:
        chosen = set(values)
    else:
        at = (current - values.start) // values.step
        near = values[max(at - _SAMPLES // 4, 0) : at + _SAMPLES // 4 + 1]
        chosen = {*values[:: -(-len(values) // _SAMPLES)], *near}
    return sorted(chosen - {current})
