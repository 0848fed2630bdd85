"""cudnnpy.freeze: nothing is measured, and problems without a stored choice get the default choice."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
from made_up_engines import LOTS, Cudnn, Made, MadeUp

import cudnnpy
from cudnnpy import Engine, Plan
from cudnnpy._launch.plan_cache import plan_cache
from cudnnpy._layers import convolution
from cudnnpy._planning import selection
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.tuning.store import levels

FAST = "engine 2"


@pytest.fixture
def engines(cudnn: Cudnn) -> Cudnn:
    cudnn.add(Made(1), Made(2, lambda knobs: 1.0))
    return cudnn


def planned(name: str = "sums", before: Engine | None = None, **options: Any) -> Plan:
    asked = PlanningOptions(prefer="autotune")._replace(**options)
    return selection.plan_for(MadeUp(name), asked, preferred_engine=before)


def test_nothing_is_measured_in_a_freeze(engines: Cudnn) -> None:
    planned()
    engines.measured.clear()
    with cudnnpy.freeze() as frozen:
        assert (planned().name, frozen.unknown) == (FAST, ())
        guess = planned("others")
        assert (guess.name, guess.milliseconds, guess.store_layer) == ("engine 1", None, "")
        planned("others"), planned("more"), planned("third", prefer="fastest"), planned("fourth", algorithm=Engine(2))
    assert engines.measured == []
    assert frozen.unknown == ("made_up problem_others prefer=autotune", "made_up problem_more prefer=autotune")
    assert len(levels.current().user) == 1
    assert planned("others").name == FAST


def test_a_guess_keeps_to_the_limits(engines: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.engines[1].size = lambda knobs: 100
    engines.add(Made(3, size=lambda knobs: 50))
    engines.engines[2].size = lambda knobs: LOTS + 1
    with cudnnpy.freeze():
        assert planned(workspace_limit=99).name == "engine 3"
        assert planned(workspace_limit=10).name == "plain"
        monkeypatch.setattr(MadeUp, "functions", lambda *_: iter(()))
        with pytest.raises(NoAlgorithmError, match="needs 50 bytes, the limit is 10 bytes"):
            planned(workspace_limit=10)


def test_a_freeze_takes_what_was_cut_short(engines: Cudnn) -> None:
    engines.engines[1].runs_for = 1.0
    planned(tune_seconds=0.5)
    engines.measured.clear()
    with cudnnpy.freeze() as frozen:
        assert planned(tune_seconds=9.0).store_layer == "user"
    assert (engines.measured, frozen.unknown) == ([], ())


def test_freezes_may_overlap_in_any_order(engines: Cudnn) -> None:
    first, second = cudnnpy.freeze(), cudnnpy.freeze()
    planned("both")
    first.end()
    first.end()
    planned("second")
    assert engines.measured == []
    second.end()
    planned("measured")
    assert engines.measured
    assert [len(one.unknown) for one in (first, second)] == [1, 2]
    with pytest.raises(ZeroDivisionError), cudnnpy.freeze():
        raise ZeroDivisionError
    engines.measured.clear()
    planned("after an error")
    assert engines.measured


def test_a_freeze_holds_for_all_threads(engines: Cudnn) -> None:
    with cudnnpy.freeze() as frozen:
        thread = threading.Thread(target=planned)
        thread.start()
        thread.join()
    assert (engines.measured, len(frozen.unknown)) == ([], 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_guesses_leave_the_plan_cache_with_their_freezes(engines: Cudnn, is_known: bool) -> None:
    if is_known:
        planned()
    for freeze in (cudnnpy.freeze(), cudnnpy.freeze()):
        planned()
        plan_cache().insert_planned("a signature", "its plan")
        freeze.end()
        assert plan_cache().get("a signature") == ("its plan" if is_known else None)
        plan_cache().insert_planned("a signature", "its plan")
        freeze.end()  # a second time
        assert plan_cache().get("a signature") == "its plan"


def test_the_engine_of_a_guess_is_not_that_of_later_shapes(engines: Cudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """With policy="once" the engine of the first shape serves the later ones."""
    given: list[Engine | None] = []

    def made_up(problem: Any, options: Any, *, preferred_engine: Engine | None, **_: Any) -> Plan:
        given.append(preferred_engine)
        return planned()

    monkeypatch.setattr(convolution, "plan_for", made_up)
    monkeypatch.setattr(convolution, "on_device", lambda device: nullcontext())
    conv = cudnnpy.Convolution(prefer="autotune", policy="once")
    x, w = cudnnpy.TensorSpec((1, 8, 4, 4)), cudnnpy.TensorSpec((4, 8, 1, 1))
    with cudnnpy.freeze():
        assert conv.plan("forward", x, w, device=0)._is_provisional
    for _ in range(2):
        assert not conv.plan("forward", x, w, device=0)._is_provisional
    assert given == [None, None, Engine(2)]
