"""The command `cudnnpy explain`: for a device profile with the real libcudnn, and its errors."""

from __future__ import annotations

import json
import re
from contextlib import closing, nullcontext
from pathlib import Path

import made_up_entries
import pytest
import sample_graphs
from made_up_candidates import made_up
from offline_profiles import needs_profiles
from planning import profile
from stored import export

import cudnnpy
from cudnnpy import DeviceProfile, Graph, raw
from cudnnpy._planning.choice import Choice, GpuKind
from cudnnpy._planning.engines import engine_name
from cudnnpy._planning.problem_notation import parse, text_of
from cudnnpy._process.cuda_state import CudaState
from cudnnpy.cli import arguments, command
from cudnnpy.cli import explain as explain_module
from cudnnpy.tuning.profiles import planner_process
from cudnnpy.tuning.profiles.planner_process import PlannerProcess
from cudnnpy.tuning.ranking import model
from cudnnpy.tuning.store.levels import LayerEntry
from cudnnpy.tuning.store.store import Store
from tests.shared import made_up_models

ROOT = Path(__file__).resolve().parents[3]
FEATURES = model.FEATURES + 1 + 5  # of a convolution, and of proposals without engines of their own
TEXT = "backward_data 128x64x56x56 64x64x3x3 pad=1 float16 channels_last"  # no engine for it is compiled at run time

offline = [needs_profiles, pytest.mark.usefixtures("without_driver")]


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    """The file of a profile, which is the same for all tests, so that one planner serves them."""
    file = tmp_path_factory.mktemp("profile") / "gpu.json"
    file.write_text(profile().read_text())
    return file


@pytest.fixture
def explain(h200, capsys):
    """Run the command for a profile, and return its status, output and errors."""

    def run(*arguments, status=0):
        found = command.main(["explain", *arguments, "--device", str(h200)])
        printed = capsys.readouterr()
        assert found == status, printed.err
        return printed.err if status else printed.out

    return run


class TestForAProfile:
    pytestmark = offline

    def test_the_report_names_the_choice_and_why(self, explain):
        text = explain(TEXT, "--all")
        assert re.search(r"^problem +backward_data 128x64x56x56 64x64x3x3 pad=1 float16 channels_last$", text, re.M)
        assert "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.8 GiB; device profile" in " ".join(
            text.split()
        )
        (choice,) = re.findall(r"^choice +(engine \d+ .*)$", text, re.M)
        assert re.search(r"^because +the first of cuDNN's heuristics that can be used$", text, re.M)
        assert re.search(r"^workspace +\d", text, re.M)
        assert not re.search(r"^(ms|error|expected) ", text, re.M)
        assert re.search(r"^store +nothing for this problem$", text, re.M)
        assert re.search(r"^notes +tensor_core$", text, re.M)
        (marked,) = re.findall(r"^\*  (engine \d+)", text, re.M)
        assert choice.startswith(marked)
        rejected = re.split(r"^rejected: \d+\n", text, flags=re.M)[1]
        assert re.search(
            r"^ +\d+  not supported here: CUDNN_STATUS_NOT_SUPPORTED \(3000\)\n {7}engines ", rejected, re.M
        )

    def test_the_short_report_has_the_first_six_and_a_count_for_each_reason(self, explain):
        found, lines = json.loads(explain(TEXT, "--json"))["candidates"], explain(TEXT).splitlines()
        usable = [one["name"] for one in found if not one["rejection_reason"]]
        (start,) = (at for at, line in enumerate(lines) if line.startswith("candidates that"))
        assert lines[start] == f"candidates that can be used, in ranking order: {len(usable)} (--all lists them)"
        end = lines.index("", start)
        names = [
            line.lstrip("* ").split()[1] for line in lines[start + 2 : end] if line.lstrip("* ").startswith("engine ")
        ]
        assert names == [re.findall(r"\d+", name)[0] for name in usable[:6]]
        assert [line[0] for line in lines[start + 2 : end]].count("*") == 1
        total = re.fullmatch(r"rejected: (\d+) \(--all lists them\)", lines[end + 1])
        counts = [int(line.split()[0]) for line in lines[end + 2 :] if line.split()[0].isdigit()]
        assert sum(counts) == int(total[1]) > len(found) - len(usable)  # a row may be of several engines
        assert counts == sorted(counts, reverse=True)
        assert len(lines) < 45

    def test_the_words_may_be_arguments(self, explain):
        assert explain(*TEXT.split(), "--json") == explain(TEXT, "--json")

    @pytest.mark.parametrize("given", [("--prefer", "no_workspace"), ("prefer=no_workspace",)])
    def test_a_preference_changes_the_choice(self, explain, given):
        found = json.loads(explain(TEXT, *given, "--json"))
        (chosen,) = [one for one in found["candidates"] if one == found["choice"]]
        assert chosen["workspace_size"] == found["limit"] == 0
        assert "prefer=no_workspace" in found["problem"]
        assert re.fullmatch(r"the first .* that can be used, after \d+ that (was|were) rejected", found["why"])
        over = [one["rejection_reason"] for one in found["candidates"] if (one["workspace_size"] or 0) > 0]
        assert over
        assert all(re.fullmatch(r"needs .*, the limit is 0 bytes", reason) for reason in over)
        counted = re.findall(r"^ +(\d+)  needs \.\.\., the limit is \.\.\.$", explain(TEXT, *given), re.M)
        assert list(map(int, counted)) == [len(over)]  # reasons that differ in quantities are counted together

    def test_the_argument_is_stronger_than_the_text(self, explain):
        found = json.loads(explain(TEXT, "prefer=no_workspace", "--prefer", "fastest", "--json"))
        assert (found["problem"], found["limit"]) == (TEXT, 150109880320)

    def test_the_json_has_the_keys_that_are_documented(self, explain):
        found = json.loads(explain(TEXT, "--json"))
        page = (ROOT / "docs" / "planning-without-a-gpu.md").read_text()
        table = page.partition("**The report of `explain`**")[2].partition("\n\n**")[0]
        assert set(found) == set(re.findall(r"^\| `(\w+)` \|", table, re.M))
        assert all(set(one) == set(Choice._fields) for one in found["candidates"])
        documented = page.partition("| key of a choice |")[2].partition("\n\n")[0]
        assert re.findall(r"`(\w+)`", re.sub(r" \| .*", "", documented)) == [*Choice._fields]
        assert (found["format"], found["stored"], found["cudnn"]) == (2, None, raw.version_text(raw.version()))
        assert found["device"] | {"profile": ""} == {
            "name": "NVIDIA H200",
            "capability": "9.0",
            "multiprocessors": 132,
            "memory": 150109880320,
            "profile": "",
        }
        first = found["candidates"][0]
        knobs = tuple(map(tuple, first["engine"]["knobs"]))
        assert first["name"] == engine_name(first["engine"]["index"], knobs)

    @pytest.mark.parametrize("columns", [80, 100, 137, 200])
    def test_no_line_is_wider_than_the_terminal(self, explain, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, explain(TEXT).splitlines())) <= columns
        lines = explain(TEXT, "--all").splitlines()
        assert max(map(len, lines)) <= columns
        names = [line for line in lines if line[3:].startswith("engine ")]
        assert len(names) > 20  # a candidate begins a line of its own at any width

    def test_reasons_name_no_argument_of_python(self, explain):
        text = " ".join(explain(TEXT, "--prefer", "autotune").split())
        assert "nothing is stored for this problem, so autotune will measure it and the others on the GPU" in text
        assert "prefer='" not in text

    def test_a_graph_is_a_sentence_and_a_table_of_its_tensors(self, explain):
        graph = text_of(sample_graphs.GRAPHS["scaled_convolution"](Graph()).problem(0))
        lines = explain(graph, "--prefer", "no_workspace").splitlines()
        assert lines[0] == "problem    graph of convolution_forward, mul prefer=no_workspace"
        assert "{" not in "".join(lines)
        assert "algorithm=" not in "".join(lines)  # an argument of Python
        at = lines.index("tensors in memory")
        assert lines[at + 1].split() == ["tensor", "is", "data", "type", "shape", "strides"]
        assert re.match(r"x +input +float16 +\d+ x \d+ x \d+ x \d+ +\d+, 1, \d+, \d+$", lines[at + 2])

    def test_a_line_of_a_trace_is_a_problem(self, explain):
        line = f"{TEXT} # engine 3 (tilek=1); heuristics; workspace 1.5 KiB; host 12.3 us; GPU 4.5 us"
        assert json.loads(explain(line, "--json"))["problem"] == TEXT

    def test_a_problem_that_no_engine_can_run_is_status_2_and_a_report(self, h200, capsys):
        graph = text_of(sample_graphs.GRAPHS["product_in_float64"](Graph()).problem(0))
        assert command.main(["explain", graph, "--device", str(h200)]) == 2
        text = capsys.readouterr().out
        assert "candidates that can be used, in ranking order: 0\n\nrejected: " in text
        assert re.search(r"^choice +none$", text, re.M)
        assert re.search(r"^because +no candidate can be used: see the rejection reasons$", text, re.M)

    def test_a_predicted_time_is_marked_as_one(self, own_planner, explain, monkeypatch, tmp_path):
        forward = "forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last"  # a kind that FEATURES are of
        usable = [one for one in json.loads(explain(forward, "--json"))["candidates"] if not one["rejection_reason"]]
        fast = next(one for one in usable if one["source"] == "engines" and not one["engine"]["knobs"])
        made_up_models.write(tmp_path, ("9.0", model.model_release()), fast["engine"]["index"], FEATURES)
        monkeypatch.setenv("CUDNNPY_MODELS", str(tmp_path))
        planner_process.end_process()  # the next one sees the folder
        found = json.loads(explain(forward, "--json"))
        first = found["candidates"][0]
        assert (first["name"], first["expected"], first["milliseconds"]) == (fast["name"], 1.0, None)
        assert found["choice"] == first
        assert found["why"] == f"the {model.source_text('ranking')} predicts the shortest time for it"
        text = explain(forward, "--all")
        assert re.search(r"^expected +x1\.00$", text, re.M)
        assert re.search(r"^\*  engine .* x1\.00\b", text, re.M)


@pytest.fixture(scope="module")
def planned():
    """Two choices for the problem, by the heuristics alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDNNPY_MODELS", "")
        with closing(PlannerProcess(DeviceProfile.load(profile()))) as planner:
            return tuple(planner.plan(*parse(text)) for text in (TEXT, f"{TEXT} prefer=no_workspace"))


class TestTheStore:
    """What a store has for the problem, made of what is planned for the profile."""

    pytestmark = offline

    @pytest.fixture
    def stored(self, planned, monkeypatch, tmp_path):
        entry, other = planned
        measured = [one._replace(milliseconds=0.25 + at / 100) for at, one in enumerate(entry.candidates)]
        entry = other._replace(
            key=entry.key,
            choice=other.choice._replace(milliseconds=0.113, spread=0.021, error=0.04),
            tune_seconds=1.5,
            made_at="2026-11-22T10:00:00+00:00",
            made_with={"cudnnpy": "0.2.0"},
            candidates=tuple(measured),
        )
        file = tmp_path / "stored.jsonl"
        export(file, [entry])
        monkeypatch.setenv("CUDNNPY_STORE_LAYERS", str(file))
        return entry

    def test_autotune_takes_the_stored_choice(self, explain, stored, tmp_path):
        found = json.loads(explain(TEXT, "--prefer", "autotune", "--json"))
        layer = f"application {tmp_path / 'stored.jsonl'}"
        assert found["choice"] == found["stored"]["choice"] == stored.choice._replace(store_layer=layer).plain()
        assert found["why"] == f"tuned on 2026-11-22 with cudnnpy 0.2.0; from the store's layer: {layer}"
        assert [one["milliseconds"] for one in found["candidates"][:3]] == [0.25, 0.26, 0.27]
        text = explain(TEXT, "--prefer", "autotune")
        assert re.search(r"^ms +0\.1130$", text, re.M)
        assert re.search(r"^error +0\.04$", text, re.M)

    def test_a_candidate_that_was_measured_but_not_compiled_now_can_be_used(self, explain, monkeypatch, tmp_path, h200):
        text = text_of(sample_graphs.GRAPHS["scaled"](Graph()).problem(0))
        entry = cudnnpy.plan(text, device=DeviceProfile.load(h200)).entry
        measured = [one._replace(milliseconds=0.5, workspace_size=64, rejection_reason="") for one in entry.candidates]
        export(tmp_path / "stored.jsonl", [entry._replace(candidates=tuple(measured))])
        monkeypatch.setenv("CUDNNPY_STORE_LAYERS", str(tmp_path / "stored.jsonl"))
        rows = json.loads(explain(text, "--json"))["candidates"]
        assert [row["rejection_reason"] for row in rows if row["compiled_at_run_time"]] == [""] * 5
        assert [row["workspace_size"] for row in rows if row["compiled_at_run_time"]] == [0, 0, 0, 64, 64]

    def test_fastest_does_not_take_what_was_not_measured_here(self, explain, stored, tmp_path, monkeypatch):
        found = json.loads(explain(TEXT, "--json"))
        assert found["why"] == (
            "the first of cuDNN's heuristics that can be used; the stored choice was not measured with this driver"
        )
        assert found["choice"] != found["stored"]["choice"]
        monkeypatch.setenv("COLUMNS", "200")
        text = " ".join(explain(TEXT).split())
        assert f"store application {tmp_path / 'stored.jsonl'}: engine" in text
        assert "0.1130 ms, made on 2026-11-22 with cudnnpy 0.2.0; --prefer autotune takes it within this limit" in text

    def test_a_choice_that_needs_more_than_the_limit_is_not_taken(self, explain, stored, monkeypatch):
        large = stored._replace(choice=stored.choice._replace(workspace_size=1 << 50))
        monkeypatch.setattr(
            explain_module.levels,
            "current",
            lambda: type("L", (), {"get": lambda _, key: LayerEntry(large, "user")})(),
        )
        found = json.loads(explain(TEXT, "--prefer", "autotune", "--json"))
        assert found["choice"] != found["stored"]["choice"]
        needed = "the stored choice needs 1,125,899,906,842,624 bytes of workspace, more than the limit of "
        assert needed in found["why"]
        assert "takes it" not in explain(TEXT, "--prefer", "autotune")

    @pytest.mark.parametrize(("seconds", "is_again"), [("1.5", False), ("9", True)])
    def test_an_incomplete_choice_is_said_to_be_measured_again(self, explain, stored, monkeypatch, seconds, is_again):
        there = stored._replace(complete=False)
        monkeypatch.setattr(
            explain_module.levels,
            "current",
            lambda: type("L", (), {"get": lambda _, key: LayerEntry(there, "user")})(),
        )
        found = json.loads(explain(TEXT, f"tune_seconds={seconds}", "--prefer", "autotune", "--json"))
        more = "; more than its 1.5 s are allowed now, so it is measured again with the others"
        assert found["why"].endswith(
            f"before all candidates were measured; from the store's layer: user{more * is_again}"
        )

    def test_what_was_planned_without_measuring_says_so(self, explain, stored, monkeypatch, tmp_path):
        planned = stored._replace(choice=stored.choice._replace(milliseconds=None, error=None, spread=None))
        monkeypatch.setenv("CUDNNPY_STORE", str(tmp_path / "store.jsonl"))
        monkeypatch.delenv("CUDNNPY_STORE_LAYERS")
        with Store(tmp_path / "store.jsonl") as store:
            store.put(planned)
        found = json.loads(explain(TEXT, "--prefer", "autotune", "--json"))
        assert found["why"] == (
            "planned without measuring on 2026-11-22 with cudnnpy 0.2.0; from the store's layer: user"
        )
        assert found["choice"]["milliseconds"] is None


# What is refused


@pytest.mark.parametrize(("count", "there"), [(1, "0, the only GPU here"), (4, "an ordinal from 0 to 3")])
def test_an_ordinal_that_is_not_here_is_refused(monkeypatch, capsys, count, there):
    monkeypatch.setattr(arguments, "why_unavailable", lambda: None)
    monkeypatch.setattr("cuda.core.system.get_num_devices", lambda: 8)  # CUDA_VISIBLE_DEVICES hides the others
    monkeypatch.setattr(arguments, "usable_cuda", lambda: CudaState("13.0", "13.0", count, None))
    assert command.main(["explain", TEXT, "--device", "7"]) == 2
    assert f"--device must be {there}; got 7" in capsys.readouterr().err


# On a GPU, with stand-ins for it


def on_a_gpu(monkeypatch):
    """A GPU with two engines; returns what was asked."""
    seen = {}

    def survey(chooser):
        seen.update(device=chooser.request.problem.device)
        return [made_up(f"engine {number}", rejection_reason="", workspace_size=0) for number in (1, 2)]

    monkeypatch.setattr(arguments, "check_ordinal", lambda device, advice: None)
    monkeypatch.setattr(explain_module, "total_bytes", lambda device: 1 << 37)
    monkeypatch.setattr(explain_module, "on_device", lambda device: nullcontext())
    monkeypatch.setattr("cudnnpy.handle.Handle.default", lambda device: None)
    monkeypatch.setattr("cudnnpy._arrays.workspace.free_bytes", lambda device: 1 << 36)
    monkeypatch.setattr("cudnnpy.tuning.stored_choice.driver", lambda: "13.0")
    monkeypatch.setattr(explain_module.selection, "survey", survey)
    return seen


def test_on_a_gpu_the_candidates_are_planned(monkeypatch, capsys):
    seen = on_a_gpu(monkeypatch)
    assert command.main(["explain", TEXT, "--device", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (seen["device"], report["choice"]["name"], report["choice"]["milliseconds"]) == (1, "engine 1", None)


# What a store has for it, on a GPU


@pytest.fixture
def stored_here(monkeypatch):
    """An entry of "engine 2" for TEXT in the user's store, measured with this driver, and a GPU."""
    on_a_gpu(monkeypatch)
    problem, options = parse(TEXT)
    rows = (
        made_up_entries.candidate("engine 1", "heuristics", 0.5),
        made_up_entries.candidate("engine 2", "engines", 0.25),
    )
    entry = made_up_entries.entry(TEXT, rows, 1, made_with={"cudnnpy": "0.2.0", "driver": "13.0"})
    entry = entry._replace(key=explain_module.key_of(problem, options, GpuKind("", "", 0)))
    explain_module.levels.current().writable.put(entry)
    return entry


def why(capsys, *arguments):
    assert command.main(["explain", TEXT, "--json", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    return report["choice"]["name"], report["choice"]["milliseconds"], report["why"]


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_a_stored_choice_is_taken_with_every_preference(stored_here, capsys, prefer):
    tuned = "tuned on 2026-01-31 with cudnnpy 0.2.0; from the store's layer: user"
    assert why(capsys, "--prefer", prefer) == ("engine 2", 0.25, tuned)


def test_a_choice_of_another_driver_is_taken_once_it_is_confirmed(stored_here, capsys, monkeypatch):
    monkeypatch.setattr("cudnnpy.tuning.stored_choice.driver", lambda: "14.0")
    chosen, _, reason = why(capsys)
    assert (chosen, reason.partition("; ")[2]) == ("engine 1", "the stored choice was not measured with this driver")
    made_with = {**stored_here.made_with, "confirmed_with_driver": "14.0"}
    explain_module.levels.current().writable.put(stored_here._replace(made_with=made_with), replace=True)
    assert why(capsys)[0] == "engine 2"


@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_a_stored_choice_with_a_fault_is_rejected(stored_here, capsys, prefer):
    found = [("engine 2", "context lost", "an illegal address", "13.0")]
    explain_module.levels.current().add_faults(stored_here.key, TEXT, found)
    chosen, _, reason = why(capsys, "--prefer", prefer)
    assert chosen == "engine 1"
    assert re.search(r"the stored choice is rejected: context lost on \d{4}-\d\d-\d\d: an illegal address", reason)


def test_in_python_the_advice_is_no_option_of_the_command(monkeypatch, capsys):
    monkeypatch.setattr(arguments, "why_unavailable", lambda: "no GPU")
    with pytest.raises(arguments.UnavailableError, match=r"^no GPU$"):
        cudnnpy.explain("forward 1x3x8x8 4x3x3x3")
    assert command.main(["explain", "forward", "1x3x8x8", "4x3x3x3"]) == 2
    said = "no GPU; to plan without a GPU, name a device profile, such as --device h200"
    assert capsys.readouterr().err == f"cudnnpy explain: {said}\n"
