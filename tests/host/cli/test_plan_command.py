"""The command `cudnnpy plan`: a file of problems and a profile, with the real libcudnn and no GPU."""

from __future__ import annotations

import io
import json
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import sample_graphs
from offline_profiles import needs_profiles, properties
from stand_in_tuning import KINDS, Machine, gpus_of, worker
from stored import export

from cudnnpy import Graph, raw
from cudnnpy._planning.choice import Engine, deserialize
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_notation import parse, text_of
from cudnnpy.cli import command
from cudnnpy.errors import PlanningError
from cudnnpy.tuning.measuring import child_process
from cudnnpy.tuning.profiles import planner_process
from cudnnpy.tuning.profiles.device_profile import FIRST_RELEASE
from cudnnpy.tuning.store.store import Store
from cudnnpy.tuning.stored_choice import key_of

ROOT = Path(__file__).resolve().parents[3]
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
        assert re.match(r"problem +choice +workspace +candidates\nforward 8x64x28x28", out)
        assert re.search(r"\d+ of \d+$", out, re.M)
        found = {entry.key: entry for entry in Store(file, read_only=True)}
        texts = {entry.text for entry in found.values()}
        assert texts == {CONVOLUTION, FILTER.replace("prefer=no_workspace", "workspace_limit=0"), FUSED}
        for entry in found.values():
            content = deserialize(entry.plan)
            assert (entry.choice.milliseconds, entry.choice.error) == (None, None)
            assert content.choice.engine is not None
            assert any(one == content.choice for one in entry.candidates)
            assert entry.key.cudnn == raw.version()

    def test_each_problem_is_one_line_of_80_columns(self, plan, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        texts = [CONVOLUTION, FUSED, text_of(sample_graphs.GRAPHS["scaled_convolution"](Graph()).problem(0))]
        _, out, _, _ = plan(*texts)
        header, *rows, _last = out.splitlines()
        assert len(rows) == len(texts)
        assert max(map(len, (header, *rows))) <= 80
        assert all(re.search(r"\d+ of \d+$", row) for row in rows)
        assert rows[2].startswith("line 4: graph of ")

    def test_without_a_file_the_choices_are_printed_alone(self, problems, profile_file, tmp_path, capsys):
        assert command.main(["plan", str(problems(CONVOLUTION)), "--device", str(profile_file())]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2
        assert sorted(one.name for one in tmp_path.iterdir()) == ["PROBLEMS.txt", "gpu.json"]

    def test_what_cannot_be_planned_is_reported_and_the_others_are_written(self, plan):
        status, out, err, file = plan(CONVOLUTION, IMPOSSIBLE, FILTER)
        assert status == 1
        assert "PROBLEMS.txt, line 3: no engine takes float64, " in err
        assert "\nno algorithm for graph " in err
        assert "left out because" in err
        assert "CUDNN_STATUS_NOT_SUPPORTED" in err
        assert "  none, see above" in out
        assert out.splitlines()[-2:] == [f"{file}: 2 plans", "1 of 3 problems cannot be planned"]
        assert len(Store(file, read_only=True)) == 2

    def test_problems_with_one_choice_are_shown_as_written_and_counted_once(self, plan, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        status, out, _, file = plan(CONVOLUTION, f"{CONVOLUTION} prefer=autotune tune_seconds=3")
        assert (status, out.splitlines()[-1]) == (0, f"{file}: 1 plan")
        assert "tune_seconds=3" in out
        assert [entry.text for entry in Store(file, read_only=True)] == [CONVOLUTION]

    def test_a_file_without_problems_has_an_export_without_plans(self, plan, tmp_path):
        status, out, err, file = plan()
        assert (status, out, err) == (0, f"{file}: 0 plans\n", "")
        assert Store(tmp_path / "store.jsonl").load(file) == 0

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
        assert len(Store(file, read_only=True)) == 2

    def test_a_file_of_which_no_text_is_a_problem_has_no_export(self, plan):
        status, out, err, file = plan("forward nonsense", "forward rubbish")
        assert (status, len(err.splitlines())) == (1, 2)
        assert out == f"{file}: not written, since nothing was planned\n2 of 2 problems cannot be planned\n"
        assert not file.exists()

    def test_a_preference_is_the_limit_that_it_means_to_tune(self, plan):
        limited = "forward 8x64x28x28 64x64x3x3 pad=1 prefer=limited_workspace"
        limits = {FILTER: 0, limited: 1 << 30, f"{limited} workspace_limit=1000GiB": 1000 << 30}
        *_, file = plan(*limits)
        found = {entry.key: entry for entry in Store(file, read_only=True)}
        assert len(found) == len(limits)
        kind = gpu_kind(Target(profile=json.dumps(properties())))
        for text, limit in limits.items():
            entry = found[key_of(*parse(text), kind)]
            assert json.loads(entry.key.options)["workspace_limit"] == limit
            assert parse(entry.text)[1] == PlanningOptions(workspace_limit=limit)

    def test_force_overwrites_and_leaves_nothing_beside(self, plan, tmp_path):
        (tmp_path / "plans.jsonl").write_text("mine")
        status, _, err, file = plan(CONVOLUTION)
        assert (status, file.read_text()) == (2, "mine")
        assert err == f"cudnnpy plan: {file}: the file exists; --force overwrites it\n"
        assert plan(CONVOLUTION, options=["--force"])[0] == 0
        assert len(Store(file, read_only=True)) == 1
        assert sorted(one.name for one in tmp_path.iterdir()) == ["PROBLEMS.txt", "gpu.json", "plans.jsonl"]

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

        def interrupted(self, problem, options):
            raise KeyboardInterrupt

        monkeypatch.setattr(child_process.subprocess, "Popen", Started)
        monkeypatch.setattr(planner_process.PlannerProcess, "plan", interrupted)
        status, _, err, file = plan(CONVOLUTION)
        assert (status, err) == (130, "")
        assert not file.exists()
        assert started
        assert all(one.returncode is not None for one in started)

    def test_a_profile_of_the_package_is_found_by_its_name(self, plan):
        status, _, err, file = plan(CONVOLUTION, profile="h200")
        assert (status, err) == (0, "")
        assert {entry.key.gpu for entry in Store(file, read_only=True)} == {"NVIDIA H200"}


# What is refused before anything is planned


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


# Comparing with an earlier run


@pytest.fixture
def compare(plan, profile_file, problems, tmp_path, capsys):
    """Plan problems, change the choices that were written, and compare; return the status, the lines and the errors."""

    def run(*texts, change=lambda entry: entry, options=(), also=()):
        *_, file = plan(*texts)
        entries = map(change, Store(file, read_only=True))
        export(file, [entry for entry in entries if entry is not None])
        given = ["plan", str(problems(*texts, *also)), "--device", str(profile_file()), "--compare", str(file)]
        status = command.main([*given, *options])
        printed = capsys.readouterr()
        return status, printed.out.splitlines(), printed.err

    return run


def with_choice(entry, text, **fields):
    """The entry, with other fields of its choice if it is for the text."""
    return entry._replace(choice=entry.choice._replace(**fields)) if entry.text == text else entry


@needs_profiles
@pytest.mark.usefixtures("without_driver")
class TestComparison:
    def test_problems_of_the_earlier_run_alone_are_counted(self, compare):
        other = CONVOLUTION.replace("8x64", "16x64")
        status, lines, _ = compare(CONVOLUTION, change=lambda entry: entry, also=[other])
        assert status == 0
        assert not any("not compared" in line for line in lines)

        def renamed(entry):
            return entry._replace(key=entry.key._replace(problem="another problem"))

        status, lines, _ = compare(CONVOLUTION, change=renamed)
        assert lines[-2].startswith("not compared: 1 problem of ")
        assert lines[-1].endswith("1 problem: 1 planned only now")

    def test_equal_runs_have_the_same_choices(self, compare):
        status, (title, *rows, last), err = compare(CONVOLUTION, FUSED)
        assert (status, err) == (0, "")
        assert title.split() == ["problem", "change", "choice", "workspace"]
        assert all("  the same choice  " in row and "->" not in row for row in rows)
        release = raw.version_text(raw.version())
        assert last == f"cuDNN {release} and {release}: 2 problems: 2 the same choice"

    def test_the_most_serious_changes_are_first(self, compare):
        other, gone = CONVOLUTION.replace("8x64", "16x64"), CONVOLUTION.replace("8x64", "32x64")

        def change(entry):
            if entry.text == gone:
                return None
            engine = entry.choice.engine
            knobs = Engine(engine.index, {**dict(engine.knobs or ()), 0: 99}, **engine._lowering_options)
            entry = with_choice(entry, CONVOLUTION, name="other knobs", engine=knobs)
            entry = with_choice(entry, other, name="engine 999", engine=Engine(999))
            key = entry.key._replace(cudnn=91900)
            return entry._replace(key=key)

        status, (_, *rows, last), err = compare(CONVOLUTION, FUSED, gone, other, change=change)
        assert (status, err) == (0, "")
        assert [re.split("  +", row)[:2] for row in rows] == [
            [other, "another engine"],
            [CONVOLUTION, "other knobs"],
            [gone, "planned only now"],
            [FUSED, "the same choice"],
        ]
        assert "engine 999 -> engine " in rows[0]
        assert "none -> engine " in rows[2]
        assert last.startswith("cuDNN 9.19.0 and ")
        assert last.endswith(": 1 another engine, 1 other knobs, 1 planned only now, 1 the same choice")

    def test_a_problem_that_is_refused_now_is_worse(self, plan, compare, monkeypatch):
        refuse = planner_process.PlannerProcess.plan

        def plan_one(self, problem, options):
            if text_of(problem, options) == FUSED and refused:
                raise PlanningError("no engine takes it")
            return refuse(self, problem, options)

        refused = []
        monkeypatch.setattr(planner_process.PlannerProcess, "plan", plan_one)
        status, lines, err = compare(CONVOLUTION, FUSED, change=lambda entry: refused.append(1) or entry)
        assert (status, err.count("PROBLEMS.txt, line 3: no engine takes it")) == (1, 1)
        assert re.split("  +", lines[1])[:2] == [FUSED, "refused now"]
        assert lines[-2:] == [f"worse: {FUSED}: refused now", lines[-1]]
        assert lines[-1].endswith("2 problems: 1 refused now, 1 the same choice")

    def test_what_is_refused_both_times_is_no_worse(self, compare):
        status, lines, _ = compare(CONVOLUTION, IMPOSSIBLE)
        assert status == 0
        assert lines[-1].endswith("2 problems: 1 the same choice, 1 refused both times")

    def test_the_choices_can_be_written_as_well(self, compare, tmp_path):
        status, lines, _ = compare(CONVOLUTION, options=["--save", str(tmp_path / "now.jsonl")])
        assert (status, lines[-1]) == (0, f"{tmp_path / 'now.jsonl'}: 1 plan")
        assert len(Store(tmp_path / "now.jsonl", read_only=True)) == 1

    def test_a_text_that_is_no_problem_is_status_1(self, compare):
        status, lines, err = compare(CONVOLUTION, also=["forward nonsense"])
        assert (status, len(err.splitlines())) == (1, 1)
        assert lines[-1].endswith("1 problem: 1 the same choice")

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("gpu", "NVIDIA A100", "--device must be as in .*plans.jsonl, NVIDIA A100; got NVIDIA H200"),
            ("cudnn", 90000, "must name a file of one GPU and one release of cuDNN; got .*, which has several"),
        ],
    )
    def test_a_file_of_another_gpu_or_of_several_releases_is_refused(self, compare, field, value, message):
        def change(entry):
            is_changed = field == "gpu" or entry.text == FUSED
            return entry._replace(key=entry.key._replace(**{field: value})) if is_changed else entry

        status, lines, err = compare(CONVOLUTION, FUSED, change=change)
        assert (status, lines, len(err.splitlines())) == (2, [], 1)
        assert re.search(message, err)


@pytest.mark.skipif(raw.version() < FIRST_RELEASE, reason="the first release that plans for a profile")
@pytest.mark.usefixtures("without_driver")
def test_the_example_of_the_page_is_compared_with_the_loaded_release(capsys):
    folder = ROOT / "docs" / "examples" / "releases"
    given = [str(folder / "problems.txt"), "--device", "h200", "--compare", str(folder / "cudnn-9.19.jsonl")]
    assert command.main(["plan", *given]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"cuDNN 9.19.0 and {raw.version_text(raw.version())}: 4 problems: ")
    if raw.version() == 92800:  # as the page prints
        assert last.endswith("1 another engine, 1 other knobs, 2 the same choice")


def timed(*options):
    """Run the command with a stand-in for the GPU and its worker, which take 0.25 ms for every choice."""
    with pytest.MonkeyPatch.context() as patch:
        Machine(partial(gpus_of, KINDS[0]), worker("tune")).replace(patch.setattr)
        return command.main(["plan", "PROBLEMS.txt", "--device", "0", "--time", *options])


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ((), ""),
        (("--slowdown", "1.3", "--workspace-growth", "4KiB"), ""),
        (("--slowdown", "1.2"), "takes 1.250 times as long"),
        (("--workspace-growth", "4095"), "needs 4 KiB more workspace"),
        (("--workspace-growth", "0", "--slowdown", "1"), "needs 4 KiB more workspace, takes 1.250 times as long"),
    ],
)
def test_times_on_a_gpu_are_written_and_compared(problems, tmp_path, monkeypatch, capsys, limits, reason):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of the lock of the GPU
    monkeypatch.chdir(tmp_path)
    problems(CONVOLUTION)
    assert timed("--save", "before.jsonl") == 0
    (entry,) = Store(Path("before.jsonl"), read_only=True)
    assert (entry.choice.milliseconds, entry.choice.error, entry.choice.workspace_size) == (0.25, 0.1, 1 << 20)
    before = with_choice(entry, CONVOLUTION, milliseconds=0.2, workspace_size=(1 << 20) - 4096)
    export(Path("before.jsonl"), [before])
    capsys.readouterr()
    assert timed("--compare", "before.jsonl", *limits) == bool(reason)
    title, row, *worse, last = capsys.readouterr().out.splitlines()
    assert re.split("  +", title)[-3:] == ["workspace", "ms", "error"]
    assert re.split("  +", row)[-3:] == ["1020 KiB -> 1 MiB", "0.2000 -> 0.2500", "0.1"]
    assert worse == [f"worse: {CONVOLUTION}: {reason}"] * bool(reason)
    assert last.endswith("1 the same choice; time now over before: 1.250 in the geometric mean")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--device", "h200", "-o", "p", "--time"],
            "--device must be the ordinal of a GPU, such as 0, with --time; got h200",
        ),
        (["--device", "0", "-o", "p"], "--device must be a device profile without --time; got 0"),
        (["--device", "h200", "-o", "p", "--workspace-growth", "1MiB"], "--workspace-growth must be with --compare"),
        (["--device", "h200", "--compare", "p", "--slowdown", "1.1"], "--slowdown must be with --time; got it without"),
        (
            ["--device", "h200", "--compare", "p", "--slowdown", "0"],
            "--slowdown: the value must be a number greater than 0",
        ),
        (["--device", "h200", "-o", "-"], "'-' is not the name of a file to write"),
        (["--device", "h200", "--compare", "no.jsonl"], "no.jsonl: no such store"),
        (["--device", "h200", "--compare", "PROBLEMS.txt"], "path must be a store or an export; got "),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(problems, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    problems(CONVOLUTION)
    assert command.main(["plan", "PROBLEMS.txt", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
