"""Planning for a profile in a child process: noise, candidates that end the process, and the results that remain."""

from __future__ import annotations

import os
import pickle
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from offline_profiles import needs_profiles
from planning import profile

from cudnnpy import DeviceProfile
from cudnnpy._planning import problem_notation
from cudnnpy._planning.problem_notation import parse
from cudnnpy.errors import CudnnError, PlanningError
from cudnnpy.tuning.profiles import stub_driver
from cudnnpy.tuning.profiles.planner_process import PlannerProcess
from cudnnpy.tuning.ranking import model as ranking

ROOT = Path(__file__).resolve().parents[3]
TEXT = "backward_data 8x64x28x28 64x64x3x3 pad=1 float16 channels_last"  # no engine for it is compiled at run time
OTHER = "backward_data 8x32x28x28 64x32x3x3 pad=1 float16 channels_last"

pytestmark = [needs_profiles, pytest.mark.usefixtures("without_driver")]


@pytest.fixture
def in_child(monkeypatch, tmp_path):
    """Run Python code in each child process before anything else."""

    def run(code):
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text("import os, signal, sys\n" + textwrap.dedent(code))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
        monkeypatch.syspath_prepend(folder)  # children get the path of this process

    return run


CRASH = """
    from cudnnpy._planning import {module}
    made = {module}.{name}
    def crashing(*given, **options):
        if {condition}:
            print("last words", file=sys.stderr, flush=True)
            {ending}
        return made(*given, **options)
    {module}.{name} = crashing
"""
KILL = "os.kill(os.getpid(), signal.SIGSEGV)"


def opened(file):
    return PlannerProcess(DeviceProfile.load(file))


def planned(file):
    with closing(opened(file)) as planner:
        return planner.plan(*parse(TEXT))


@pytest.fixture(scope="module")
def planner(tmp_path_factory):
    file = tmp_path_factory.mktemp("profile") / "gpu.json"
    file.write_text(profile().read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stub_driver, "has_driver", lambda: False)
        patch.setenv("CUDNNPY_MODELS", "")
        made = opened(file)
    with closing(made):
        yield made


def test_a_plan_is_an_entry_that_was_not_measured(planner):
    entry = planner.plan(*parse(TEXT))
    assert (entry.choice.milliseconds, entry.choice.error, entry.choice.spread, entry.complete) == (
        None,
        None,
        None,
        True,
    )
    assert (entry.text, entry.key.gpu, entry.key.capability, entry.key.multiprocessors) == (
        TEXT,
        "NVIDIA H200",
        "9.0",
        132,
    )
    assert [*entry.made_with] == ["cudnnpy", "python"]  # and no driver
    first = next(one for one in entry.candidates if not one.rejection_reason)
    assert (first.source, first.workspace_size) == ("heuristics", entry.choice.workspace_size)
    assert len(entry.candidates) > 20
    assert all(one.rejection_reason or one.workspace_size is not None for one in entry.candidates)


def test_noise_of_cudnn_is_not_seen(profile_file, capfd, in_child):
    in_child('print("Could not load symbol cuGetErrorName", file=sys.stderr);')
    with closing(opened(profile_file())) as planner:
        planner.plan(*parse(TEXT))
    assert capfd.readouterr() == ("", "")


def test_a_damaged_model_is_a_warning_of_the_caller(profile_file, tmp_path, monkeypatch):
    model = tmp_path / ranking.file_name("9.0", ranking.model_release())
    model.write_text("a model")
    monkeypatch.setenv("CUDNNPY_MODELS", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error")  # filters are the caller's
    with pytest.warns(RuntimeWarning, match=f"{model.name} is not used to choose engines") as warned:
        planned(profile_file())
    assert len(warned) == 1
    planned(profile_file())  # a second warning is an error in the tests


def test_a_candidate_that_ends_the_process_costs_only_itself(profile_file, planner, in_child):
    usable = [row.name for row in planner.survey(*parse(TEXT)) if not row.rejection_reason]
    bad = [usable[0], usable[3]]
    in_child(
        f"""
        from cudnnpy._planning import engines
        made = engines.EngineConfiguration.finalize
        def crashing(self):
            if self.name in {bad!r}:
                {KILL}
            return made(self)
        engines.EngineConfiguration.finalize = crashing
        """
    )
    with closing(opened(profile_file())) as planner:
        entry = planner.plan(*parse(TEXT))
        again = planner.plan(*parse(TEXT))  # the process that took its place goes on
    assert next(one.name for one in entry.candidates if not one.rejection_reason) == usable[1]
    crashed = {one.name: one.rejection_reason for one in entry.candidates if "ended" in one.rejection_reason}
    assert crashed == dict.fromkeys(bad, "the process that planned it ended: signal SIGSEGV")
    assert [one.name for one in again.candidates if one.rejection_reason] == [
        one.name for one in entry.candidates if one.rejection_reason
    ]


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        (KILL, "signal SIGSEGV, last words"),
        ("os._exit(3)", "exit status 3, last words"),
        ("os.abort()", "signal SIGABRT, last words"),
    ],
)
def test_a_problem_that_ends_the_process_costs_only_itself(profile_file, in_child, ending, how):
    condition = "'32x28x28' in str(given[0].request.problem)"
    in_child(CRASH.format(module="selection", name="survey", condition=condition, ending=ending))
    with closing(opened(profile_file())) as planner:
        planner.plan(*parse(TEXT))
        with pytest.raises(PlanningError, match=f"^the process that plans ended: {how}$"):
            planner.plan(*parse(OTHER))
        assert planner.plan(*parse(TEXT)).text == TEXT


def test_a_child_that_cannot_start_is_an_error(profile_file, in_child):
    in_child("os._exit(7)")
    with pytest.raises(CudnnError, match="ended when it started: exit status 7") as caught:
        opened(profile_file())
    assert type(caught.value) is PlanningError
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_request_that_is_no_problem_is_an_error_of_that_problem(planner, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(problem_notation, "text_of", lambda *_problem: "backwards 8x64x28x28 64x64x3x3")
        with pytest.raises(PlanningError, match="column 1: operation must be one of"):
            planner.plan(*parse(TEXT))
    planner.plan(*parse(TEXT))
