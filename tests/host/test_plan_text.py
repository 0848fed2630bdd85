"""Plan.to_json and from_json as far as no GPU is needed: what is written, and what is refused."""

from __future__ import annotations

import json

import pytest

import cudnnpy
from cudnnpy.convolution import plan as plans
from cudnnpy.convolution.candidates import Candidate
from cudnnpy.convolution.forms import Form
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
    executable = LegacyExecutable(problem, "gemm", strict, OnTheGpu())
    if asked:
        whole = problem._replace(beta=1.0)
        executable = Form(whole, problem).complete(executable, OnTheGpu())
    candidate = Candidate("legacy", "gemm", (), True, lambda: executable, executable=executable)
    return Plan(problem, candidate)


@pytest.mark.parametrize("strict", [True, False])
def test_a_v7_plan_comes_back_as_strict_as_it_was(monkeypatch, strict):
    plan = v7_plan(monkeypatch, strict)
    monkeypatch.setattr(plans, "Handle", type("Handle", (), {"default": staticmethod(lambda _: OnTheGpu())}))
    again = Plan.from_json(plan.to_json())
    assert again.executable.strict is strict
    assert (again.problem, again.name, again.source) == (plan.problem, "gemm", "legacy")


def test_a_v7_plan_with_an_epilogue_has_no_text(monkeypatch):
    with pytest.raises(TypeError, match="gemm is more than one launch"):
        v7_plan(monkeypatch, True, activation="relu").to_json()


@pytest.mark.parametrize("missing", ["strict", "plan", "engine", "notes", "problem", "format", "compiled_at_run_time"])
def test_a_text_that_lacks_something_is_refused(monkeypatch, missing):
    content = json.loads(v7_plan(monkeypatch, True).to_json())
    del content[missing]
    with pytest.raises(ValueError, match=f"no plan of this package \\(KeyError: '{missing}'\\)"):
        cudnnpy.Plan.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"format": 0}'])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"no plan of this package|format 0"):
        cudnnpy.Plan.from_json(text)
