"""Plan.to_json and from_json as far as no GPU is needed: what is written, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import nullcontext

import pytest
from test_planning import PROBLEMS

import cudnnpy
from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning import plan as plans
from cudnnpy._planning import plan_text
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.plan import Plan
from cudnnpy.convolution.legacy import LegacyExecutable
from cudnnpy.convolution.lowering import lowerings
from cudnnpy.convolution.operation import Operation
from cudnnpy.errors import LibraryVersionError


class OnTheGpu:
    """Stands for a handle, and for anything planned with one."""

    workspace_size = 0


def v7_plan(monkeypatch, strict, **asked):
    monkeypatch.setattr("cudnnpy.convolution.legacy.raw.call", lambda *_: None)  # the query of the workspace
    problem = Operation(ConvolutionOptions(padding=1, tf32=not strict)).problem(
        "forward", TensorSpec((1, 3, 8, 8)), TensorSpec((4, 3, 3, 3)), **asked
    )
    lowering = next(lowering for lowering in lowerings(problem) if lowering.part.activation is None)
    executable = lowering.complete(LegacyExecutable(lowering.part, "gemm", strict, OnTheGpu()), OnTheGpu())
    candidate = Candidate(
        "legacy",
        "gemm" + lowering.suffix,
        (),
        True,
        lambda: executable,
        lowering=lowering,
        executable=executable,
        strict=strict,
    )
    return Plan(problem, candidate)


@pytest.fixture
def handle(monkeypatch):
    monkeypatch.setattr(plans, "Handle", type("Handle", (), {"default": staticmethod(lambda _: OnTheGpu())}))
    monkeypatch.setattr(plans, "on_device", lambda device: nullcontext())


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


@pytest.mark.usefixtures("handle")
def test_a_plan_is_pickled_by_its_text_and_so_are_options_that_force_it(monkeypatch):
    plan = v7_plan(monkeypatch, True)
    conv = cudnnpy.Convolution(algorithm=plan, padding=1)
    for again in (pickle.loads(pickle.dumps(plan)), pickle.loads(pickle.dumps(conv)).algorithm, copy.deepcopy(plan)):
        assert again is not plan
        assert (again.problem, again.name, again.device) == (plan.problem, plan.name, plan.device)


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
        (("part", "x", 0), [1, 3, 9, 9], "its part is not one of the lowerings of forward"),
        (("part",), None, "it describes the algorithm 'gemm' wrongly"),
        (("problem", "x", 0), [2, 3, 8, 8], r"its problem is invalid: out must .*; got shape \(1, 4, 8, 8\)"),
        (("problem", "x", 0), [1, 3, -8, 8], "x.shape must be integers of 1 or more"),
        (("problem", "x", 0), [1, 3, 2**70, 8], "integer beyond 64 bits"),
        (("problem", "x", 2), [1 << 61, 64, 8, 1], "its problem is not in canonical form"),
        (("problem", "x", 1), "float16", "its problem is invalid: w must be float16, as x; got float32"),
        (("problem", "x", 1), "float33", r"x must be one of .*; got 'float33'"),
        (("problem", "x", 3), 12, r"x must have .*; got 'float32', 12"),
        (("problem", "operation"), "backward_data", "its problem is|its part is not one of the lowerings"),
        (("problem", "operation"), "sideways", "there is no operation 'sideways'"),
        (("problem", "groups"), -1, "groups must be integers"),
        (("problem", "groups"), True, "groups must be integers"),
        (("problem", "alpha"), "1", "its problem is invalid: alpha"),
        (("problem", "activation"), "gelu", "its problem is invalid: activation"),
        (("problem", "geometry", 0), [1], "geometry must be 2 integers"),
        (("problem", "more"), 1, "its problem has"),
        (("name",), "coffee", "forward has no algorithm 'coffee'"),
        (("source",), "engines", "it describes the algorithm 'gemm' wrongly"),
        (("deterministic",), False, "it describes the algorithm 'gemm' wrongly"),
        (("deterministic",), 1, "'deterministic' is a int"),
        (("milliseconds",), -1.0, "'milliseconds' is out of range"),
        (("notes",), ["a\nb"], "'notes' are not names"),
        (("format",), 2, "its format is 2; this version reads 4: plan anew"),
        (("more",), 1, "unknown key, 'more'"),
    ],
)
def test_a_content_that_disagrees_with_itself_is_refused(monkeypatch, path, value, why):
    text = v7_plan(monkeypatch, True, activation="relu").to_json()
    with pytest.raises(ValueError, match=f"^text must be a serialized cudnnpy plan; got invalid text: .*({why})"):
        cudnnpy.Plan.from_json(changed(text, *path, value=value))


def test_a_changed_text_is_found_by_its_digest(monkeypatch):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(ValueError, match="the text was changed or truncated"):
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
        ('{"format": 1e999}', "beyond float64"),
        ('{"format": NaN}', "the number NaN"),
        ('{"format": 4, "format": 4}', "a duplicate key"),
    ],
)
def test_a_text_that_would_take_a_parser_too_far_is_refused(text, why):
    with pytest.raises(ValueError, match=f"a serialized cudnnpy plan; got invalid text: .*{why}"):
        cudnnpy.Plan.from_json(text)


@pytest.mark.parametrize(("text", "kind"), [(None, "NoneType"), (b"{}", "bytes"), ({}, "dict")])
def test_what_is_no_text_is_a_type_error(text, kind):
    with pytest.raises(TypeError, match=f"text must be a str from to_json; got a {kind}"):
        cudnnpy.Plan.from_json(text)


@pytest.mark.parametrize(
    ("device", "error"), [("0", TypeError), (None, TypeError), (True, TypeError), (0.0, TypeError), (-1, ValueError)]
)
def test_a_device_is_an_ordinal(monkeypatch, device, error):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(error, match=rf"device must be an integer of 0 or more; got {device!r}"):
        cudnnpy.Plan.from_json(text, device)


@pytest.mark.parametrize("missing", [*plan_text.FIELDS])
def test_a_text_that_lacks_something_is_refused(monkeypatch, missing):
    content = json.loads(v7_plan(monkeypatch, True).to_json())
    del content[missing]
    why = "it is not an object with a format" if missing == "format" else f"it lacks '{missing}'"
    with pytest.raises(ValueError, match=f"a serialized cudnnpy plan; got invalid text: {why}"):
        cudnnpy.Plan.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"format": 0}', '{"format": true}', "coffee"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="text must be a serialized cudnnpy plan"):
        cudnnpy.Plan.from_json(text)


# cuDNN's own text, which a plan for a described device has


def graph(*path):
    return ("plan", "operationGraph", *path)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (graph("tensors", 0, "dim", 0), 4, r"plan.operationGraph.tensors\[0\].dim must be .*; got \[4, 64, 28, 28\]"),
        (graph("tensors", 1, "stride"), [576, 9, 3], r"tensors\[1\].stride must be \[576, 1,.*; got \[576, 9, 3\]"),
        (graph("tensors", 0, "dataType"), "CUDNN_DATA_FLOAT", r"dataType must be 'CUDNN_DA.*; got 'CUDNN_DATA_FLOAT'"),
        (graph("tensors", 0, "name"), "9", r"name must be '[12]'.*; got '[29]'"),
        (graph("tensors", 0, "isVirtual"), 0, r"isVirtual must be False.*; got 0"),
        (graph("tensors", 0, "ptrAlignment"), 1, r"ptrAlignment must be 16.*; got 1"),
        (graph("tensors", 0, "vectCount"), 4, r"vectCount must be 1.*; got 4"),
        (graph("tensors", 0, "more"), 4, "must have known keys only; got 'more'"),
        (graph("tensors"), "zz", r"plan.operationGraph.tensors must be a list of 6.*; got 'zz'"),
        (graph("tensors"), -1, r"plan.operationGraph.tensors must be a list of 6.*; got -1"),
        (graph("nodes"), [], r"plan.operationGraph.nodes must be a list of 3.*; got \[\]"),
        (graph("nodes", 0), None, r"nodes\[0\] must be an object.*; got None"),
        (graph("nodes", 0, "X"), "7", r"nodes\[0\].X must be '1'.*; got '7'"),
        (graph("nodes", 0, "pad"), [0, 1], r"nodes\[0\].pad must be \[1, 1\].*; got \[0, 1\]"),
        (graph("nodes", 0, "pad_lower"), [1, 1], "must have pad, or pad_lower and pad_upper"),
        (graph("nodes", 0, "stride", 0), "1", r"nodes\[0\].stride must be \[1, 1\].*; got \['1', 1\]"),
        (graph("nodes", 0, "alpha"), 2.0, r"nodes\[0\].alpha must be 1.0.*; got 2.0"),
        (graph("nodes", 0, "mathPrec"), "CUDNN_DATA_HALF", r"mathPrec must .*; got 'CUDNN_DATA_HALF'"),
        (graph("nodes", 0, "mode"), "CUDNN_CONVOLUTION", r"mode must be 'CUDNN_CROSS.*; got 'CUDNN_CONVOLUTION'"),
        (graph("nodes", 0, "groupCount"), 2, r"groupCount must be 1.*; got 2"),
        (graph("nodes", 1, "B"), "1", r"nodes\[1\].B must be '4'.*; got '1'"),
        (
            graph("nodes", 2, "pointwiseMode"),
            "CUDNN_POINTWISE_ABS",
            r"pointwiseMode must .*; got 'CUDNN_POINTWISE_ABS'",
        ),
        (graph("nodes", 2, "lowerClip"), 1.0, r"lowerClip must be 0.0.*; got 1.0"),
        (graph("finalizeMode"), 3, "finalizeMode must be a name; got 3"),
        (("plan", "engine", "engineId"), 1000, "plan.engine.engineId must be .*; got 1000"),
        (("plan", "engine", "knobChoices", "CUDNN_KNOB_TYPE_TILE_SIZE"), 99, "TILE_SIZE must be .*; got 99"),
        (
            ("plan", "engine", "knobChoices", "CUDNN_KNOB_TYPE_TILE_SIZX"),
            0,
            "TILE_SIZX must be the name of a kind of knob",
        ),
        (("plan", "engine", "knobChoices"), {}, "plan.engine.knobChoices must have all of the engine's knobs"),
        (("plan", "GPUProfile", "warpSize"), 31, r"plan.GPUProfile.warpSize must be 32.*; got 31"),
        (("plan", "GPUProfile", "maxGridSize"), [1], r"plan.GPUProfile.maxGridSize must be three sizes.*; got \[1\]"),
        (("plan", "cudnnVersion"), 90000, "plan.cudnnVersion must be 92800; got 90000"),
        (("plan", "more"), {}, "plan must have known keys only; got 'more'"),
        (("plan",), None, "plan must be an object; got None"),
        (("engine",), None, "forward has no algorithm 'engine"),
        (("engine", "knobs"), None, "its name must be 'engine \\d+'; got"),
        (("name",), "engine 12345", r"its name must be 'engine \d+ .*; got 'engine 12345'"),
        (("deterministic",), False, "'deterministic' and 'notes' disagree"),
        (("part",), [], "'part' is a list"),
    ],
)
def test_cudnns_text_has_to_describe_the_problem(plan, path, value, why):
    made, _ = plan("text", **PROBLEMS["bias and relu"])
    assert plan_text.read(made["text"], 0).name == made["name"]
    with pytest.raises(ValueError, match=f"^text must be a serialized cudnnpy plan; got invalid text: .*{why}"):
        cudnnpy.Plan.from_json(changed(made["text"], *path, value=value))


def test_a_plan_of_another_release_is_told_apart(plan, monkeypatch):
    made, _ = plan("text", **PROBLEMS["forward float32"])
    text = changed(changed(made["text"], "cudnn", value=91900), "plan", "cudnnVersion", value=91900)
    with pytest.raises(
        LibraryVersionError,
        match=r"text must be a plan of the loaded cuDNN, 9\.28\.0; got one of cuDNN 9\.19\.0\. cuDNN reads only the",
    ):
        cudnnpy.Plan.from_json(text)


def test_a_release_that_is_not_known_may_write_more(plan, monkeypatch):
    made, _ = plan("text", **PROBLEMS["forward float32"])
    text = changed(made["text"], "plan", "operationGraph", "nodes", 0, "newKey", value=1)
    with pytest.raises(ValueError, match="must have known keys only; got 'newKey'"):
        plan_text.read(text, 0)
    monkeypatch.setattr(raw, "version", lambda: 99900)
    text = changed(changed(text, "cudnn", value=99900), "plan", "cudnnVersion", value=99900)
    assert "newKey" in plan_text.read(text, 0).plan


def test_a_plan_with_knobs_that_autotune_tried_comes_back(plan):
    made, _ = plan("text", **PROBLEMS["bias and relu"])
    assert plan_text.read(changed(made["text"], "source", value="knobs"), 0).source == "knobs"
