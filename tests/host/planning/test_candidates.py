"""Which of the engines that cuDNN offers are taken, by the problem; numbers for people."""

from __future__ import annotations

import gc
import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import make_problem
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.convolution_lowerings import ConvolutionLowering
from cudnnpy._planning import candidates
from cudnnpy._planning.chooser import Chooser, Request
from cudnnpy._planning.engines import Target
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.selection import choose, limit_of, survey
from cudnnpy.errors import NoAlgorithmError

X, W, Y = (2, 8, 5, 5), (6, 8, 3, 3), (2, 6, 3, 3)
ON_A_GPU = Target(handle=object())  # type: ignore[arg-type]


def problem(operation: str = "forward") -> ConvolutionProblem:
    tensors = (TensorSpec(shape, "float32") for shape in (X, W, Y))
    return ConvolutionProblem(*make_problem(ConvolutionOptions(), operation, *tensors))


def on_a_gpu(asked: ConvolutionProblem, options: PlanningOptions) -> Chooser:
    return Chooser(Request(asked, options, ON_A_GPU, limit_of(options, 1 << 30)))


def configuration(engine: int, *notes: str, compiled: bool = False) -> Any:
    """An engine as cuDNN offers it; its plan is its number."""
    return SimpleNamespace(
        engine=engine,
        knobs=None,
        name=f"engine {engine}",
        notes=(*notes, *(("runtime_compilation",) if compiled else ())),
        numerical_notes=notes,
        behavior_notes=("runtime_compilation",) if compiled else (),
        finalize=lambda: engine,
    )


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What cuDNN proposes, and all of its engines, for any problem, beside no v7 algorithm; plans need no workspace."""
    offers = SimpleNamespace(proposed=[], all=[])
    monkeypatch.setattr(ConvolutionLowering, "build_graph", lambda *_: None)
    monkeypatch.setattr(
        ConvolutionLowering, "executable", lambda self, plan, target: SimpleNamespace(plan=plan, workspace_size=0)
    )
    monkeypatch.setattr(candidates, "heuristics", lambda *_: offers.proposed)
    monkeypatch.setattr(candidates, "engines", lambda *_: offers.all)
    monkeypatch.setattr(candidates, "engine", lambda built, target, index, knobs: configuration(index))
    monkeypatch.setattr(ConvolutionProblem, "functions", lambda *_: [])
    return offers


@pytest.mark.parametrize("prefer", ["fastest", "no_workspace"])
def test_the_next_engine_takes_the_place_of_one_that_is_known_to_be_wrong(cudnn: Any, prefer: str) -> None:
    asked, options = problem("backward_data"), PlanningOptions(prefer=prefer)
    cudnn.proposed = cudnn.all = [configuration(78), configuration(5)]
    choice = choose(on_a_gpu(asked, options))
    chosen, tried = choice.candidate, choice.considered()
    assert chosen.engine is not None
    assert chosen.engine.index == 5
    (reason,) = {candidate.rejection_reason for candidate in tried if candidate.rejection_reason}
    assert "unwritten" in reason
    forced = options._replace(algorithm=candidates.Engine(78))
    with pytest.raises(NoAlgorithmError, match=reason):
        choose(on_a_gpu(asked, forced))


def test_an_engine_that_compiles_at_run_time_runs_only_where_the_heuristics_propose_it(cudnn: Any) -> None:
    cudnn.proposed = [configuration(5, compiled=True)]
    cudnn.all = [configuration(4, compiled=True), configuration(5, compiled=True), configuration(6)]
    asked, options = problem(), PlanningOptions()
    rows = {c.name: c for c in survey(on_a_gpu(asked, options))}
    assert [name for name, row in rows.items() if row.rejection_reason] == ["engine 4"]
    assert rows["engine 5"].compiled_at_run_time
    assert choose(on_a_gpu(asked, options)).candidate.name == "engine 5"


def test_a_plan_that_a_child_compiled_is_not_compiled_again(cudnn: Any) -> None:
    cudnn.proposed = [configuration(5, compiled=True), configuration(6, compiled=True), configuration(7)]
    five, six, seven = candidates.heuristic_candidates(next(iter(problem().lowerings())), ON_A_GPU)
    five.plan = "compiled elsewhere"  # type: ignore[assignment]
    assert [one.prepare().plan for one in (five, six, seven)] == ["compiled elsewhere", 6, 7]  # type: ignore[union-attr]
    assert [one.plan for one in (five, six, seven)] == ["compiled elsewhere", 6, None]
    assert pickle.loads(pickle.dumps(six)).plan is None


def test_a_planned_candidate_is_freed_with_its_last_reference(cudnn: Any) -> None:
    """With its plan, and without garbage collection."""
    cudnn.proposed = [configuration(5)]
    (one,) = candidates.heuristic_candidates(next(iter(problem().lowerings())), ON_A_GPU)
    one.prepare()
    candidate = weakref.ref(one)
    gc.disable()
    try:
        del one
        assert candidate() is None
    finally:
        gc.enable()
