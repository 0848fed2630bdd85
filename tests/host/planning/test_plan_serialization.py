"""Plan.to_json and from_json without a GPU: the text, and rejected texts."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from contextlib import nullcontext

import pytest
from planning import Refused
from test_planning import PROBLEMS

import cudnnpy
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._layers.lowerings.convolution_candidates import LegacyExecutable
from cudnnpy._layers.lowerings.convolution_lowerings import lowerings
from cudnnpy._planning import plan as plans
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Choice, GpuKind, digest
from cudnnpy._planning.plan import Plan
from cudnnpy.errors import LibraryVersionError


class OnTheGpu:
    """Stands for a handle, and for anything planned with one."""

    workspace_size = 0


def v7_plan(monkeypatch, strict, **asked):
    monkeypatch.setattr(
        "cudnnpy._layers.lowerings.convolution_candidates.raw.call", lambda *_: None
    )  # the query of the workspace
    problem = cudnnpy.Convolution(padding=1, tf32=not strict)._problem(
        "forward", TensorSpec((1, 3, 8, 8)), TensorSpec((4, 3, 3, 3)), device=0, **asked
    )
    lowering = next(lowering for lowering in lowerings(problem) if lowering.part.activation is None)
    executable = lowering.complete(LegacyExecutable(lowering.part, "gemm", strict, OnTheGpu()), OnTheGpu())
    choice = Choice("gemm" + lowering.suffix, "legacy", lowering=lowering.part_text, strict=strict)
    return Plan(problem, Candidate(choice, lowering=lowering, executable=executable))


@pytest.fixture
def handle(monkeypatch):
    monkeypatch.setattr(plans, "Handle", type("Handle", (), {"default": staticmethod(lambda _: OnTheGpu())}))
    monkeypatch.setattr(plans, "on_device", lambda device: nullcontext())
    monkeypatch.setattr(plans, "gpu_kind", lambda target: GpuKind("NVIDIA H200", "9.0", 132))


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


def changed(text, **changes):
    """The text with some fields changed, also of its choice, and a digest that fits."""
    fields = json.loads(text)
    del fields["sha256"]
    of_choice = {name: changes.pop(name) for name in Choice._fields if name in changes}
    fields = {**fields, "choice": {**fields["choice"], **of_choice}, **changes}
    return json.dumps({**fields, "sha256": digest(fields)})


ENGINE = {"index": 7, "knobs": None, "space_to_depth": False, "channels_last_copies": False, "flipped_forward": False}


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"problem": "forward 1x3x9x9 4x3x3x3 pad=1 activation=relu tf32=True tf32=True"}, "its problem is invalid"),
        ({"problem": "forward 0x3x8x8 4x3x3x3 pad=1"}, "its problem is invalid: .*must have elements"),
        ({"problem": "coffee"}, "its problem is invalid"),
        ({"problem": "forward 1x3x8x8 4x3x3x3 pad=1"}, "its name must be 'gemm'; got"),
        ({"name": "coffee"}, "its algorithm is invalid: algorithm must be"),
        ({"engine": ENGINE, "lowering": "coffee"}, "its lowering is not one of forward"),
        ({"engine": 7}, "it.choice.engine must be an object of index, knobs, "),
        ({"engine": {**ENGINE, "knobs": [[1, 2, 3]]}}, "it.choice.engine.knobs must be 2 integers"),
        ({"name": "winograd"}, r"its name must be 'winograd \+ epilogue'; got 'winograd'"),
        ({"name": "gemm"}, r"its name must be 'gemm \+ epilogue'; got 'gemm'"),
        ({"lowering": ""}, "its lowering must be 'forward 1x3x8x8 .*; got ''"),
        ({"source": "engines"}, "its source must be 'legacy'; got 'engines'"),
        ({"source": "coffee"}, "its source is 'coffee'"),
        ({"milliseconds": -1.0}, "it.choice.milliseconds must be a finite number of 0 or more"),
        ({"choice": None}, "it.choice must be an object of name, source, "),
        ({"cudnn": True}, "it.cudnn must be an int"),
        ({"gpu": "another"}, "for this GPU, NVIDIA H200, .*; got one for another: plan again"),
        ({"version": 5}, "its version is 5; this release reads 6: plan again, or tune again"),
        ({"more": 1}, "it must be an object of cudnn, gpu, problem, choice, operands; got .*more"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(monkeypatch, changes, why):
    text = v7_plan(monkeypatch, True, activation="relu").to_json()
    with pytest.raises(ValueError, match=f"^text must be a .*({why})"):
        Plan.from_json(changed(text, **changes))


@pytest.mark.usefixtures("handle")
def test_a_changed_text_is_found_by_its_digest(monkeypatch):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(ValueError, match="the text was changed or truncated"):
        Plan.from_json(text.replace('"gemm"', '"fft"'))


@pytest.mark.usefixtures("handle")
def test_how_a_text_is_spaced_and_ordered_does_not_matter(monkeypatch):
    text = v7_plan(monkeypatch, True).to_json()
    again = Plan.from_json(json.dumps(json.loads(text), indent=2, sort_keys=True))
    assert again.to_json() == text


def test_a_plan_of_format_5_is_refused_with_the_remedy():
    text = json.dumps({"format": 5, "cudnn": 91900, "gpu": "", "problem": "forward 1x3x8x8 4x3x3x3", "name": "gemm"})
    with pytest.raises(ValueError, match="its version is 5; this release reads 6: plan again, or tune again"):
        Plan.from_json(text)


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize(("version", "shown"), [(91900, r"9\.19\.0"), (7, "7")])
def test_a_plan_of_another_release_is_told_apart(monkeypatch, version, shown):
    text = changed(v7_plan(monkeypatch, True).to_json(), cudnn=version)
    with pytest.raises(LibraryVersionError, match=f"got one of cuDNN {shown}, .*: plan again"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "7", "{}", '{"version": 0}', '{"version": true}', '{"version": NaN}', "coffee", "\ufeff{}", "\x00"),
        *(
            "[" * 100_000,
            '{"a": ' * 100_000,
            "9" * 5000,
            " " * (5 << 20),
            '{"version": 6}',
            '{"version": 6, "sha256": 7}',
        ),
    ],
    ids=lambda text: text[:20],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"^text must be a serialized cudnnpy plan; got invalid text: ") as caught:
        Plan.from_json(text)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("text", "kind"), [(None, "NoneType"), (b"{}", "bytes"), ({}, "dict")])
def test_what_is_no_text_is_a_type_error(text, kind):
    with pytest.raises(TypeError, match=f"text must be a str from to_json; got a {kind}"):
        cudnnpy.Plan.from_json(text)


@pytest.mark.usefixtures("handle")
@pytest.mark.parametrize(
    ("device", "error"), [("0", TypeError), (None, TypeError), (True, TypeError), (0.0, TypeError), (-1, ValueError)]
)
def test_a_device_is_an_ordinal(monkeypatch, device, error):
    text = v7_plan(monkeypatch, True).to_json()
    with pytest.raises(error, match=rf"device must be an integer of 0 or more; got {device!r}"):
        cudnnpy.Plan.from_json(text, device)


def test_a_fresh_process_knows_every_kind_of_problem():
    for text in ("forward 1x3x8x8 4x3x3x3", 'graph {"operations":[],"tensors":[]}'):
        source = f"from cudnnpy._planning.problem_notation import parse; print(parse({text!r}))"
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
        assert "ConvolutionProblem" in done.stdout or "its graph has no output" in done.stderr


# Plans for a described device


def test_the_fields_of_a_plan(plan):
    made, _ = plan("text", **PROBLEMS["bias and relu"])
    fields = json.loads(made["text"])
    assert fields["problem"] == "forward 8x64x28x28 64x64x3x3 pad=1 float16 channels_last bias activation=relu"
    assert (fields["cudnn"], fields["gpu"]) == (
        cudnnpy.raw.version(),
        "NVIDIA H200, compute capability 9.0, 132 multiprocessors",
    )
    choice = fields["choice"]
    assert (choice["lowering"], choice["name"], choice["source"]) == ("", made["name"], made["source"])
    assert {**choice["engine"], "accumulation": False} == made["engine"]
    assert choice["milliseconds"] is None


def test_an_engine_or_knob_that_cudnn_does_not_have_is_refused(plan):
    made, _ = plan("text", **PROBLEMS["forward float32"])
    engine = json.loads(made["text"])["choice"]["engine"]
    for other in ({"index": 1000, "knobs": None}, {"knobs": [[1 << 40, 1]]}, {"knobs": [[2, 1 << 61]]}):
        text = changed(made["text"], engine={**engine, **other})
        with pytest.raises(Refused):
            plan("load", text=text)
