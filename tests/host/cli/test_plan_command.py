"""The command `cudnnpy plan`: a file of problems and a profile, with the real libcudnn and no GPU."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess

import pytest
import sample_graphs
from offline_profiles import needs_profiles, properties
from planning import DATA

from cudnnpy import Graph, raw
from cudnnpy._planning.choice import deserialize
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_notation import parse, text_of
from cudnnpy.cli import command
from cudnnpy.cli.tune import tune_problem
from cudnnpy.tuning.measuring import child_process
from cudnnpy.tuning.profiles import planner_process
from cudnnpy.tuning.store import exports
from cudnnpy.tuning.store.database import Store

CONVOLUTION = "forward 8x64x28x28 64x64x3x3 pad=1 float16 channels_last"
FILTER = "backward_filter 8x64x28x28 64x64x3x3 pad=1 prefer=no_workspace"
FUSED = text_of(sample_graphs.GRAPHS["convolution_bias_relu"](Graph()).problem(0))
IMPOSSIBLE = text_of(sample_graphs.GRAPHS["product_in_float64"](Graph()).problem(0))


@pytest.fixture
def problems(tmp_path):
    """Write a file of problems."""

    def write(*texts):
        file = tmp_path / "PROBLEMS.txt"
        file.write_text("\n".join(["# Problems for `cudnnpy tune` and `cudnnpy plan`.", *texts, ""]))
        return file

    return write


@pytest.fixture
def plan(profile_file, problems, tmp_path, capsys):
    """Run the command on problems; return its status, output, errors and the file that it was to write."""

    def run(*texts, options=(), file=None, profile=None):
        output = tmp_path / "plans.jsonl"
        given = ["plan", str(file or problems(*texts)), "--device", str(profile or profile_file()), "-o", str(output)]
        status = command.main([*given, *options])
        printed = capsys.readouterr()
        return status, printed.out, printed.err, output

    return run


@needs_profiles
@pytest.mark.usefixtures("without_driver")
class TestForAProfile:
    def test_plans_are_written_and_summed_up(self, plan):
        status, out, err, file = plan(CONVOLUTION, FILTER, FUSED)
        assert (status, err) == (0, "")
        assert out.splitlines()[-1] == f"{file}: 3 plans"
        assert re.match(r"  problem +choice +workspace +candidates\n  forward 8x64x28x28", out)
        assert re.search(r"\d+ of \d+$", out, re.M)
        found = {entry.key: entry for entry in exports.read(file).entries}
        texts = {entry.text for entry in found.values()}
        assert texts == {CONVOLUTION, FILTER.replace("prefer=no_workspace", "workspace_limit=0"), FUSED}
        for entry in found.values():
            content = deserialize(entry.plan)
            assert (entry.choice.milliseconds, entry.choice.error) == (None, None)
            assert content.choice.engine is not None
            assert any(one == content.choice for one in entry.candidates)
            assert entry.key.cudnn == raw.version()

    def test_each_problem_is_one_line_of_80_columns(self, plan):
        texts = [CONVOLUTION, FUSED, text_of(sample_graphs.GRAPHS["scaled_convolution"](Graph()).problem(0))]
        _, out, _, _ = plan(*texts)
        header, *rows, _last = out.splitlines()
        assert len(rows) == len(texts)
        assert max(map(len, (header, *rows))) <= 80
        assert all(re.search(r"\d+ of \d+$", row) for row in rows)

    def test_a_store_imports_them(self, plan, tmp_path):
        *_, file = plan(CONVOLUTION, FILTER)
        with Store(tmp_path / "store.sqlite") as store:
            assert store.load(file) == 2
            assert {entry.text for entry in store} >= {CONVOLUTION}

    def test_equal_runs_write_equal_choices(self, plan):
        *_, file = plan(CONVOLUTION, FILTER)
        first = [entry._replace(made_at="") for entry in exports.read(file).entries]
        plan(CONVOLUTION, FILTER, options=["--force"])
        assert [entry._replace(made_at="") for entry in exports.read(file).entries] == first

    def test_what_cannot_be_planned_is_reported_and_the_others_are_written(self, plan):
        status, out, err, file = plan(CONVOLUTION, IMPOSSIBLE, FILTER)
        assert status == 1
        assert "PROBLEMS.txt, line 3: no engine takes float64, " in err
        assert "\nno algorithm for graph " in err
        assert "left out because" in err
        assert "CUDNN_STATUS_NOT_SUPPORTED" in err
        assert "  none, see above" in out
        assert out.splitlines()[-2:] == [f"{file}: 2 plans", "1 of 3 problems cannot be planned"]
        assert len(exports.read(file).entries) == 2

    def test_problems_with_one_choice_are_shown_as_written_and_counted_once(self, plan, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        status, out, _, file = plan(CONVOLUTION, f"{CONVOLUTION} prefer=autotune tune_seconds=3")
        assert (status, out.splitlines()[-1]) == (0, f"{file}: 1 plan")
        assert "tune_seconds=3" in out
        assert [entry.text for entry in exports.read(file).entries] == [CONVOLUTION]

    def test_without_any_plan_nothing_is_written(self, plan):
        status, out, _, file = plan(IMPOSSIBLE)
        assert status == 1
        assert f"{file}: not written, since nothing was planned" in out
        assert not file.exists()

    def test_a_file_without_problems_has_an_export_without_plans(self, plan, tmp_path):
        status, out, err, file = plan()
        assert (status, out, err) == (0, f"{file}: 0 plans\n", "")
        assert Store(tmp_path / "store.sqlite").load(file) == 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "backward_filter 0x64x28x28 64x64x3x3 pad=1",
                "column 1: a planned problem must have elements; got none in dy, x",
            ),
            ("forward 8x16x8x8 16x16x3x3 pads=1", "column 28: word must be "),
        ],
    )
    def test_what_is_no_problem_is_reported_with_its_place_and_the_others_are_written(self, plan, text, message):
        status, out, err, file = plan(CONVOLUTION, text, FILTER)
        assert status == 1
        (line,) = err.splitlines()
        assert f"PROBLEMS.txt, line 3, {message}" in line
        assert out.splitlines()[-2:] == [f"{file}: 2 plans", "1 of 3 problems cannot be planned"]
        assert len(exports.read(file).entries) == 2

    def test_a_file_of_which_no_text_is_a_problem_has_no_export(self, plan):
        status, out, err, file = plan("forward nonsense", "forward rubbish")
        assert (status, len(err.splitlines())) == (1, 2)
        assert out == f"{file}: not written, since nothing was planned\n2 of 2 problems cannot be planned\n"
        assert not file.exists()

    def test_a_preference_is_the_limit_that_it_means_to_tune(self, plan):
        limited = "forward 8x64x28x28 64x64x3x3 pad=1 prefer=limited_workspace"
        limits = {FILTER: 0, limited: 1 << 30, f"{limited} workspace_limit=1000GiB": 1000 << 30}
        *_, file = plan(*limits)
        found = {entry.key: entry for entry in exports.read(file).entries}
        assert len(found) == len(limits)
        kind = json.dumps(properties())
        for text, limit in limits.items():
            entry = found[tune_problem.key_for(*parse(text), kind)]
            assert json.loads(entry.key.options)["workspace_limit"] == limit
            assert parse(entry.text)[1] == PlanningOptions(workspace_limit=limit)

    def test_force_overwrites_and_leaves_nothing_beside(self, plan, tmp_path):
        (tmp_path / "plans.jsonl").write_text("mine")
        status, _, err, file = plan(CONVOLUTION)
        assert (status, file.read_text()) == (2, "mine")
        assert err == f"cudnnpy plan: {file}: the file exists; --force overwrites it\n"
        assert plan(CONVOLUTION, options=["--force"])[0] == 0
        assert len(exports.read(file).entries) == 1
        assert sorted(one.name for one in tmp_path.iterdir()) == ["PROBLEMS.txt", "gpu.json", "plans.jsonl"]

    @pytest.mark.skipif(raw.version() != 92800, reason="what cuDNN 9.28.0 needs")
    def test_the_profile_of_an_older_cudnn_is_one_line(self, plan):
        status, _, err, file = plan(CONVOLUTION, profile=DATA / "h200-cudnn-9.19.json")
        assert status == 2
        assert "must have the keys memoryBusWidth; got none of these; cuDNN 9.28.0, which is loaded, needs them" in err
        assert len(err.splitlines()) == 1
        assert not file.exists()

    def test_noise_of_cudnn_is_not_seen(self, profile_file, problems, tmp_path, capfd):
        given = [str(problems(CONVOLUTION)), "--device", str(profile_file()), "-o", str(tmp_path / "p.jsonl")]
        assert command.main(["plan", *given]) == 0
        assert capfd.readouterr().err == ""

    def test_on_a_terminal_it_shows_how_far_it_is(self, plan, monkeypatch):
        terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
        monkeypatch.setattr("sys.stderr", terminal)
        assert plan(CONVOLUTION, FILTER)[0] == 0
        parts = terminal.getvalue().split("\r\x1b[K")
        assert parts == ["", "planning 1 of 2", "planning 2 of 2", ""]

    def test_ctrl_c_ends_the_process_that_plans_and_writes_nothing(self, plan, monkeypatch):
        started = []

        class Started(subprocess.Popen):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                started.append(self)

        def interrupted(self, text):
            raise KeyboardInterrupt

        monkeypatch.setattr(child_process.subprocess, "Popen", Started)
        monkeypatch.setattr(planner_process.PlannerProcess, "plan", interrupted)
        status, _, err, file = plan(CONVOLUTION)
        assert (status, err) == (130, "")
        assert not file.exists()
        assert started
        assert all(one.returncode is not None for one in started)

    def test_a_profile_of_the_package_is_found_by_its_name(self, plan):
        status, _, err, file = plan(CONVOLUTION, profile="h200", options=["--stub-driver"])
        assert (status, err) == (0, "")
        assert {entry.key.gpu for entry in exports.read(file).entries} == {"NVIDIA H200"}


# What is refused before anything is planned


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a text\n", "PROBLEMS.txt, line 1, column 1: the file must have one problem a line"),
        ('format = 1\nproblems = ["forward 8x16x8x8 16x16x3x3"]\n', "got TOML, as earlier versions read"),
    ],
)
def test_a_file_that_has_no_problems_is_one_line(plan, tmp_path, content, message):
    file = tmp_path / "PROBLEMS.txt"
    file.write_text(content)
    status, _, err, output = plan(file=file)
    assert status == 2
    assert len(err.splitlines()) == 1
    assert message in err
    assert not output.exists()


def test_files_that_are_missing_are_named(plan, tmp_path):
    for options in ({"file": tmp_path / "no.txt"}, {"profile": tmp_path / "no.json"}):
        status, _, err, output = plan(CONVOLUTION, **options)
        assert status == 2
        assert len(err.splitlines()) == 1
        assert err.startswith(f"cudnnpy plan: {next(iter(options.values()))}: ")
        assert not output.exists()
    output.write_text("plans")
    _, _, err, _ = plan(file=tmp_path / "no.txt")
    assert err.startswith(
        f"cudnnpy plan: {tmp_path / 'no.txt'}: No such file"
    )  # which the existing output does not hide


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("-", "plans must be written to a file; got standard output"),
        ("{}", "is a folder"),
        ("{}/no/p.jsonl", "there is no folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(problems, profile_file, tmp_path, capsys, output, message):
    given = [str(problems(CONVOLUTION)), "--device", str(profile_file()), "-o", output.format(tmp_path)]
    assert command.main(["plan", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_that_may_not_be_written_to_is_refused(problems, profile_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, mode: str(place) != str(tmp_path))  # root may write anywhere
    given = [str(problems(CONVOLUTION)), "--device", str(profile_file()), "-o", str(tmp_path / "p.jsonl")]
    assert command.main(["plan", *given]) == 2
    assert f"the folder {tmp_path} cannot be written to" in capsys.readouterr().err
