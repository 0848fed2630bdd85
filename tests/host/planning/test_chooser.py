"""One chooser for every kind of problem: a made-up problem is chosen for, tuned, forced and saved. cuDNN is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from made_up_engines import LOTS, Cudnn, Made, MadeUp, asked, tuner

from cudnnpy import raw
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.tuning.measurement import UNPROMISING
from cudnnpy.tuning.measuring import search

SPLIT, TILE = int(raw.CUDNN_KNOB_TYPE_SPLIT_K), int(raw.CUDNN_KNOB_TYPE_TILE_SIZE)
Knobs = Mapping[int, int]

ASKED: Problem = MadeUp()


def chosen(options: PlanningOptions | None = None, **how: Any) -> Candidate:
    return selection.choose(asked(ASKED, options, **how)).candidate


def tuned(**options: Any) -> Candidate:
    return chosen(PlanningOptions(prefer="autotune", **options))


def considered(**options: Any) -> tuple[Candidate, list[Candidate]]:
    """Return the choice of autotune, and all candidates that were considered."""
    choice = selection.choose(asked(ASKED, PlanningOptions(prefer="autotune", **options)))
    return choice.candidate, choice.considered()


@dataclass(frozen=True)
class Ranked(MadeUp):
    """The same with predicted times, in the order of the proposals: 1, 1 + step, ..."""

    step: float = 0.0

    def proposed_candidates(self, target: Target) -> Iterator[Candidate]:
        for number, candidate in enumerate(super().proposed_candidates(target)):
            candidate.expected = 1.0 + number * self.step
            yield candidate


# The four preferences


def test_engines_that_are_not_proposed_and_functions_are_the_last_resort(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, notes=("nondeterministic",)))
    cudnn.add(Made(4), propose=False)
    strict = PlanningOptions(deterministic=True)
    assert chosen(strict).name == "engine 4"
    cudnn.engines[4].size = lambda knobs: LOTS + 1
    choice = selection.choose(asked(ASKED, strict))
    found, tried = choice.candidate, choice.considered()
    assert found.name == "plain"
    assert [candidate.name for candidate in tried].count("engine 1") == 1


# Autotune


def bowl(knobs: Knobs) -> float:
    """Fastest where the split is 6 and the tile 3."""
    return 1.0 + abs(knobs.get(SPLIT, 0) - 6) + 2.0 * abs(knobs.get(TILE, 0) - 3)


RANGES = {SPLIT: range(9), TILE: range(5)}
START = {SPLIT: 0, TILE: 0}


def test_autotune_descends_to_the_best_knobs(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, lambda knobs: 9.0), Made(2, bowl, ranges=RANGES, default=START))
    best = tuned()
    assert (dict(best.engine.knobs), best.milliseconds, best.source) == ({SPLIT: 6, TILE: 3}, 1.0, "knobs")  # type: ignore[union-attr]
    assert len(cudnn.measured) == len(set(cudnn.measured)) < 40  # each once, and far from all 90 of two lowerings


def test_autotune_varies_knobs_within_the_limit(cudnn: Cudnn) -> None:
    cudnn.add(Made(2, bowl, size=lambda knobs: 100 * knobs.get(SPLIT, 0), ranges=RANGES, default=START))
    best = tuned(workspace_limit=450)
    assert best.engine is not None
    assert dict(best.engine.knobs) == {SPLIT: 4, TILE: 3}
    assert best.workspace_size == 400
    assert not [name for name in cudnn.measured if "split_k=5" in name]


def test_an_engine_whose_knobs_cannot_be_read_keeps_those_that_are_proposed(cudnn: Cudnn) -> None:
    cudnn.add(Made(3, lambda knobs: 0.5, default={SPLIT: 1}), Made(2, bowl, ranges=RANGES, default=START))
    cudnn.engines[3].ranges = None  # type: ignore[assignment]
    best = tuned()
    assert best.name == "engine 3 (split_k=1)"
    assert [name for name in cudnn.measured if name.startswith("engine 2 (")]


def test_autotune_stops_when_its_time_is_used_up(cudnn: Cudnn) -> None:
    cudnn.add(Made(2, bowl, ranges=RANGES, default=START), Made(3))
    assert tuned(tune_seconds=1e-9).name == cudnn.measured[0]
    assert len(cudnn.measured) == 1


@pytest.mark.parametrize("fast", ["tensor_core", "winograd", "fft"])
def test_what_may_run_for_long_is_measured_last_and_the_longest_at_the_end(
    cudnn: Cudnn, monkeypatch: Any, fast: str
) -> None:
    monkeypatch.setitem(globals(), "ASKED", MadeUp(reduction_length=10**10))
    monkeypatch.setattr(search, "_PROMISING", 1)
    cudnn.add(Made(1, notes=("tensor_core",)), Made(6, notes=("strict_nan_prop",)), Made(7), Made(8, notes=(fast,)))
    tuned(tune_seconds=100.0)
    names = [name for name in cudnn.measured if "blocks" not in name]
    assert names == ["engine 1", "engine 8", "engine 7", "engine 6"]


def test_what_may_run_longer_than_there_is_time_is_not_measured(cudnn: Cudnn, monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "ASKED", MadeUp(reduction_length=10**10))
    monkeypatch.setattr(search, "_PROMISING", 1)
    cudnn.add(Made(1, notes=("tensor_core",)), Made(6, notes=("strict_nan_prop",)))
    tuned(tune_seconds=0.7)
    assert not [name for name in cudnn.measured if "engine 6" in name]
    _, tried = considered(tune_seconds=0.7)
    (left_out,) = [candidate for candidate in tried if candidate.name == "engine 6"]
    assert left_out.rejection_reason == "not measured: tune_seconds=0.7 were used up"


def test_what_needs_a_large_part_of_the_memory_is_not_measured(cudnn: Cudnn) -> None:
    sizes = {1: 0, 2: 1001, 3: 1000, 4: LOTS + 1}
    cudnn.add(*(Made(index, lambda knobs, i=index: 5.0 - i, lambda knobs, i=index: sizes[i]) for index in sizes))  # type: ignore[misc]
    cudnn.memory = 4000
    found, tried = considered()
    assert found.name == "engine 3"
    reasons = {candidate.name: candidate.rejection_reason for candidate in tried}
    assert reasons["engine 2"] == (
        "not measured: needs 1001 bytes, more than a quarter of the device's memory; workspace_limit= admits it"
    )
    assert reasons["engine 4"].startswith("not measured: needs 1024 GiB, more than a quarter")
    assert not {name for name in cudnn.measured if name.startswith(("engine 2", "engine 4"))}
    cudnn.memory = 0  # the driver does not tell
    assert tuned().name == "engine 3"
    assert "engine 2" in cudnn.measured


def test_the_guess_is_kept_where_there_is_no_memory_to_measure_it(cudnn: Cudnn) -> None:
    """Others that can be measured may be slower."""
    cudnn.add(Made(1, lambda knobs: 1.0), Made(2, lambda knobs: 2.0))
    cudnn.scarce = lambda candidate: candidate.name.startswith("engine 1")
    assert tuned().name == chosen().name == "engine 1"
    assert cudnn.measured == ["engine 1"]


@pytest.mark.parametrize("notes", [(), ("winograd",), ("tensor_core", "reduced_precision_reduction")])
def test_what_fastest_would_choose_is_measured_first(cudnn: Cudnn, notes: tuple[str, ...]) -> None:
    cudnn.add(Made(5, size=lambda knobs: LOTS + 1), Made(4, lambda knobs: 7.0, notes=notes), Made(3), Made(1))
    cudnn.add(Made(0), propose=False)
    guess = chosen()
    assert guess.name == "engine 4"
    assert tuned(tune_seconds=1e-9).name == cudnn.measured[0] == guess.name
    assert len(cudnn.measured) == 1
    tuned()
    assert cudnn.default is not None
    assert cudnn.default.name == guess.name


@pytest.mark.parametrize(("time", "best"), [(9.0, "engine 2"), (0.5, "engine 1"), (1.004, "engine 1")])
def test_a_candidate_wins_that_is_faster_than_the_guess(cudnn: Cudnn, time: float, best: str) -> None:
    cudnn.add(Made(1, lambda knobs: time), Made(2, lambda knobs: 1.0), Made(3, lambda knobs: 2.0))
    assert tuned().name == best


def test_the_least_workspace_wins_among_equals(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, lambda knobs: 9.0), Made(2, lambda knobs: 1.0, lambda knobs: 100), Made(3, lambda knobs: 1.004))
    assert tuned().name == "engine 3"


def test_engines_that_are_compiled_at_run_time_stay_where_the_heuristics_rank_them(cudnn: Cudnn) -> None:
    cudnn.add(Made(3), Made(2, compiled=True), Made(1))
    tuned()
    assert cudnn.measured[:3] == ["engine 3", "engine 2", "engine 1"]


@pytest.mark.parametrize(("problem", "refused"), [(ASKED, "gained nothing"), (Ranked(), UNPROMISING)])
def test_an_engine_is_not_compiled_when_some_in_a_row_are_not_faster(
    cudnn: Cudnn, problem: Problem, refused: str
) -> None:
    """Each candidate that is compiled counts as three."""
    cudnn.add(*(Made(number, lambda knobs: 1.0) for number in (1, 2, 3, 4, 5)), Made(9, compiled=True))
    measured, _ = engines_of(cudnn, problem)
    assert "engine 9" in measured
    cudnn.engines = {6: Made(6, lambda knobs: 1.0), **cudnn.engines}
    cudnn.proposed = [(6, {}), *cudnn.proposed]
    measured, reasons = engines_of(cudnn, problem)
    assert "engine 9" not in measured
    assert [reason for reason in reasons if refused in reason]
    measured, _ = engines_of(cudnn, problem, thorough=True)
    assert "engine 9" in measured
    cudnn.engines[4].time = lambda knobs: 0.9  # a gain
    measured, _ = engines_of(cudnn, problem)
    assert "engine 9" in measured


def engines_of(cudnn: Cudnn, problem: Problem, thorough: bool = False) -> tuple[list[str], set[str]]:
    """Measure a problem; return the names of measured candidates, and the rejection reasons of the others."""
    cudnn.measured.clear()
    options = PlanningOptions(prefer="autotune", thorough=thorough)
    entry = tuner().measure(problem, options, LOTS, {}).entry
    assert entry is not None
    assert entry.complete
    return cudnn.measured, {one.rejection_reason for one in entry.candidates if one.milliseconds is None}


def test_with_a_ranking_the_search_ends_when_several_in_a_row_are_not_faster(cudnn: Cudnn) -> None:
    cudnn.add(*(Made(number, lambda knobs: 1.0) for number in range(1, 40)))
    cudnn.add(Made(40, lambda knobs: 0.5), propose=False)
    measured, reasons = engines_of(cudnn, Ranked())
    assert measured == [f"engine {number}" for number in range(1, 1 + 17)]
    assert reasons == {UNPROMISING}
    cudnn.engines[8].time = lambda knobs: 0.9  # a gain within the patience
    measured, _ = engines_of(cudnn, Ranked())
    assert measured == [f"engine {number}" for number in range(1, 1 + 8 + 16)]


def test_other_knobs_of_an_engine_that_is_far_from_the_fastest_are_not_measured(cudnn: Cudnn) -> None:
    cudnn.add(Made(1, lambda knobs: 1.0), Made(2, lambda knobs: 4.1), Made(3, lambda knobs: 3.9), Made(4))
    cudnn.proposed += [(index, {SPLIT: number}) for index in (2, 3) for number in range(1, 9)]
    entry = tuner().measure(ASKED, PlanningOptions(prefer="autotune"), LOTS, {}).entry
    assert entry is not None
    tried = entry.candidates
    assert [name for name in cudnn.measured if name.startswith("engine 3 (")]
    far = [one for one in tried if one.name.startswith("engine 2 (") and one.name not in cudnn.measured]
    assert {one.rejection_reason for one in far} == {"not measured: engine 2 took 4.1 times as long as the fastest"}
