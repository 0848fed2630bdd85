"""Plan.to_json and from_json as far as no GPU is needed: what is written, and what is refused."""

from __future__ import annotations

import json

import pytest

import cudnnpy
from cudnnpy.convolution import plan as plans
from cudnnpy.convolution import plan_text
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


def changed(text, *path, value):
    """The text with one value changed, and a digest that fits."""
    content = json.loads(text)
    del content["sha256"]
    at = content
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps({**content, "sha256": plan_text.digest(content)})


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("part", "x", 0), [1, 3, 9, 9], "none of the layouts of forward"),
        (("part",), None, "it says of the algorithm 'gemm' what is not so"),
        (("problem", "x", 0), [2, 3, 8, 8], "its problem is none: out: shape \\(1, 4, 8, 8\\) given"),
        (("problem", "x", 0), [1, 3, -8, 8], "x: shape: expected integers of 1 or more"),
        (("problem", "x", 0), [1, 3, 2**70, 8], "integer beyond 64 bits"),
        (("problem", "x", 2), [1 << 61, 64, 8, 1], "its problem is written otherwise"),
        (("problem", "x", 1), "float16", "its problem is none: w: float32 given"),
        (("problem", "x", 1), "float33", "x: 'float33' is no element type"),
        (("problem", "x", 3), 12, "x: dtype 'float32' of alignment 12"),
        (("problem", "operation"), "backward_data", "its problem is|none of the layouts"),
        (("problem", "operation"), "sideways", "there is no operation 'sideways'"),
        (("problem", "groups"), -1, "groups: expected integers"),
        (("problem", "groups"), True, "groups: expected integers"),
        (("problem", "alpha"), "1", "its problem is none: alpha"),
        (("problem", "activation"), "gelu", "its problem is none: activation"),
        (("problem", "geometry", 0), [1], "geometry: expected 2 integers"),
        (("problem", "more"), 1, "its problem has"),
        (("name",), "coffee", "forward has no algorithm 'coffee'"),
        (("source",), "engines", "it says of the algorithm 'gemm' what is not so"),
        (("deterministic",), False, "it says of the algorithm 'gemm' what is not so"),
        (("deterministic",), 1, "'deterministic' is a int"),
        (("milliseconds",), -1.0, "'milliseconds' is out of range"),
        (("notes",), ["a\nb"], "'notes' are not names"),
        (("format",), 2, "its format is 2; this version reads 3: plan anew"),
        (("more",), 1, "unknown key, 'more'"),
    ],
)
def test_a_content_that_disagrees_with_itself_is_refused(monkeypatch, path, value, why):
    text = v7_plan(monkeypatch, True, activation="relu").to_json()
    with pytest.raises(ValueError, match=f"^`text` is not a serialized cudnnpy plan: .*({why})"):
        cudnnpy.Plan.from_json(changed(text, *path, value=value))


def test_a_changed_text_is_found_by_its_digest(monkeypatch):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(ValueError, match="the text was changed or cut"):
        cudnnpy.Plan.from_json(text.replace('"gemm"', '"fft"'))


@pytest.mark.usefixtures("handle")
def test_how_a_text_is_spaced_and_ordered_does_not_matter(monkeypatch):
    text = v7_plan(monkeypatch, True).to_json()
    again = Plan.from_json(json.dumps(json.loads(text), indent=2, sort_keys=True))
    assert again.to_json() == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"a": ' * 40 + "1" + "}" * 40, "nested too deep"),
        ("[" + "[]," * 100_000 + "1]", "too many parts"),
        (" " * (17 << 20), "characters"),
        ("9" * 5000, "an integer beyond 64 bits"),
        ('{"format": 1e999}', "beyond every float"),
        ('{"format": NaN}', "the number NaN"),
        ('{"format": 3, "format": 3}', "a key twice"),
    ],
)
def test_a_text_that_would_take_a_parser_too_far_is_refused(text, why):
    with pytest.raises(ValueError, match=f"not a serialized cudnnpy plan: .*{why}"):
        cudnnpy.Plan.from_json(text)


@pytest.mark.parametrize(("text", "kind"), [(None, "NoneType"), (b"{}", "bytes"), ({}, "dict")])
def test_what_is_no_text_is_a_type_error(text, kind):
    with pytest.raises(TypeError, match=f"text: {kind} given; expected a str from to_json"):
        cudnnpy.Plan.from_json(text)


@pytest.mark.parametrize(
    ("device", "error"), [("0", TypeError), (None, TypeError), (True, TypeError), (0.0, TypeError), (-1, ValueError)]
)
def test_a_device_is_an_ordinal(monkeypatch, device, error):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(error, match=f"device: {device!r} given; expected an integer of 0 or more"):
        cudnnpy.Plan.from_json(text, device)


def test_the_plan_of_a_graph_has_no_text():
    problem = Operation(Options()).problem("forward", TensorSpec((1, 3, 8, 8)), TensorSpec((4, 3, 3, 3)))
    plan = Plan(problem, Candidate("heuristics", "engine 1", (), True, OnTheGpu, executable=OnTheGpu()))
    plan.operation = "graph"
    with pytest.raises(TypeError, match="engine 1 is the plan of a graph; only those of convolutions have a text"):
        plan.to_json()


@pytest.mark.parametrize("missing", [*plan_text.FIELDS])
def test_a_text_that_lacks_something_is_refused(monkeypatch, missing):
    content = json.loads(v7_plan(monkeypatch, True).to_json())
    del content[missing]
    why = "expected an object with a format" if missing == "format" else f"it lacks '{missing}'"
    with pytest.raises(ValueError, match=f"not a serialized cudnnpy plan: {why}"):
        cudnnpy.Plan.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"format": 0}', '{"format": true}', "coffee"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="`text` is not a serialized cudnnpy plan: "):
        cudnnpy.Plan.from_json(text)
