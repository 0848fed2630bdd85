"""Plan.to_json and from_json as far as no GPU is needed: what is written, and what is refused."""

from __future__ import annotations

import json

import pytest

import cudnnpy
from cudnnpy.convolution import plan as plans
from cudnnpy.convolution.candidates import Candidate
from cudnnpy.convolution.forms import forms
from cudnnpy.convolution.legacy import LegacyExecutable
from cudnnpy.convolution.operation import Operation
from cudnnpy.convolution.plan import Plan
from cudnnpy.convolution.problem import Options
from cudnnpy.layouts import TensorSpec


class OnTheGpu:
    """Stands for a handle, and for anything planned with one."""

    workspace_size = 0


def v7_plan(monkeypatch, strict, **asked):
    monkeypatch.setattr("cudnnpy.convolution.legacy.raw.call", lambda *_: None)  # the query of the workspace
    problem = Operation(Options(padding=1, tf32=not strict)).problem(
        "forward", TensorSpec((1, 3, 8, 8)), TensorSpec((4, 3, 3, 3)), **asked
    )
    form = next(form for form in forms(problem) if form.part.activation is None)
    executable = form.complete(LegacyExecutable(form.part, "gemm", strict, OnTheGpu()), OnTheGpu())
    candidate = Candidate(
        "legacy", "gemm" + form.suffix, (), True, lambda: executable, form=form, executable=executable
    )
    return Plan(problem, candidate)


@pytest.fixture
def handle(monkeypatch):
    monkeypatch.setattr(plans, "Handle", type("Handle", (), {"default": staticmethod(lambda _: OnTheGpu())}))


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize("strict", [True, False])
def test_a_v7_plan_comes_back_as_strict_as_it_was(monkeypatch, strict):
    plan = v7_plan(monkeypatch, strict)
    again = Plan.from_json(plan.to_json())
    assert again.executable.strict is strict
    assert (again.problem, again.name, again.source) == (plan.problem, "gemm", "legacy")


@pytest.mark.usefixtures("handle")
def test_a_v7_plan_comes_back_with_its_epilogue(monkeypatch):
    plan = v7_plan(monkeypatch, True, activation="relu")
    again = Plan.from_json(plan.to_json())
    assert again.name == plan.name == "gemm + epilogue"
    assert again.problem == plan.problem
    for steps in (plan.executable, again.executable):
        main, activation = (step.executable for step in steps.steps)
        assert isinstance(main, LegacyExecutable)
        assert activation.name == "cudnnActivationForward"


def test_a_part_that_is_none_of_the_layouts_is_refused(monkeypatch):
    content = json.loads(v7_plan(monkeypatch, True, activation="relu").to_json())
    content["part"]["x"][0] = [1, 3, 9, 9]
    with pytest.raises(ValueError, match="none of its layouts of forward"):
        cudnnpy.Plan.from_json(json.dumps(content))


def test_the_plan_of_a_graph_has_no_text():
    problem = Operation(Options()).problem("forward", TensorSpec((1, 3, 8, 8)), TensorSpec((4, 3, 3, 3)))
    plan = Plan(problem, Candidate("heuristics", "engine 1", (), True, OnTheGpu, executable=OnTheGpu()))
    plan.operation = "graph"
    with pytest.raises(TypeError, match="engine 1 is the plan of a graph; only those of convolutions have a text"):
        plan.to_json()


@pytest.mark.parametrize(
    "missing", ["strict", "plan", "engine", "notes", "problem", "part", "format", "compiled_at_run_time"]
)
def test_a_text_that_lacks_something_is_refused(monkeypatch, missing):
    content = json.loads(v7_plan(monkeypatch, True).to_json())
    del content[missing]
    with pytest.raises(ValueError, match=f"no plan of this package \\(KeyError: '{missing}'\\)"):
        cudnnpy.Plan.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"format": 0}'])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"no plan of this package|format 0"):
        cudnnpy.Plan.from_json(text)
