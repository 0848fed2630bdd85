"""The hunt for faults: drawn problems, faults in scripted children, its file and summary."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planning import profile
from stand_in_driver import DriverFixture
from test_rows import ROOT
from test_tuning import Case, Device, in_a_corner, unwritten

from cudnnpy._core.layouts import are_channels_last, byte_extent, is_dense
from cudnnpy._measuring.gpu_worker import symptom_of
from cudnnpy._measuring.process import Ended, Message, StartError, WorkerProcess
from cudnnpy._measuring.watch import ContextLost
from cudnnpy._planning.candidates import Candidate, Engine
from cudnnpy._planning.problem_notation import parse_plannable, text_of
from cudnnpy.convolution.candidates import ConvolutionProblem
from tools.hunt import __main__ as hunt
from tools.hunt import child, report
from tools.hunt.drawing import KINDS, Drawn, draw

FACTS = {"cudnn": "9.19.0", "gpu": "a GPU", "driver": "13.0"}
DRAWN = 600


# What is drawn


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    return [draw(1, number) for number in range(DRAWN)]


def test_a_seed_draws_the_same_problems_and_another_one_draws_others(drawn: list[Drawn]) -> None:
    assert [draw(1, number) for number in range(20)] == drawn[:20]
    assert {draw(2, number).text for number in range(20)}.isdisjoint(problem.text for problem in drawn)
    assert len({problem.text for problem in drawn}) > 0.98 * DRAWN


def test_all_kinds_are_drawn_and_one_alone_on_request(drawn: list[Drawn]) -> None:
    counts = Counter(problem.kind for problem in drawn)
    assert counts.keys() == KINDS.keys()
    assert counts["odd"] > counts["network"] > counts["chain"] > counts["reduction"]
    assert {draw(1, number, "reduction").kind for number in range(5)} == {"reduction"}


def test_each_problem_is_one_that_a_plan_can_be_asked_for(drawn: list[Drawn]) -> None:
    for problem in drawn:
        asked, options = parse_plannable(problem.text)
        assert text_of(asked, options) == problem.text
        most = 10 << 30 if problem.kind == "large" else 1 << 30
        assert sum(map(byte_extent, asked.specs)) <= most


PROPERTIES: dict[str, Callable[[ConvolutionProblem], bool]] = {
    "batch 1": lambda p: p.x.shape[0] == 1,
    "channels that are no multiple of 8": lambda p: p.x.shape[1] % 8 > 0,
    "one spatial axis": lambda p: p.axes == 1,
    "three spatial axes": lambda p: p.axes == 3,
    "groups": lambda p: 1 < p.groups < p.x.shape[1],
    "depthwise": lambda p: p.is_depthwise,
    "dilation": lambda p: max(p.geometry.dilation) > 1,
    "a stride beyond the filter": lambda p: any(s > k for s, k in zip(p.geometry.stride, p.w.shape[2:], strict=True)),
    "padding that differs on the sides": lambda p: p.geometry.pre_padding != p.geometry.post_padding,
    "a flipped filter": lambda p: p.mode == "convolution",
    "bias": lambda p: p.bias is not None,
    "activation": lambda p: p.activation is not None,
    "alpha": lambda p: p.alpha != 1,
    "beta": lambda p: p.beta != 0,
    "channels last": lambda p: are_channels_last(p.x, p.w, p.y) and p.x.shape[1] > 1,
    "several memory orders": lambda p: are_channels_last(p.x) and not are_channels_last(p.y),
    "gaps": lambda p: not is_dense(p.x),
    "misaligned": lambda p: p.x.alignment < 16,
    "just below 2^31 bytes": lambda p: 0 <= (1 << 31) - byte_extent(p.x) < 1 << 26,
    "just above 2^31 bytes": lambda p: 0 < byte_extent(p.x) - (1 << 31) < 1 << 26,
    **{
        f"{of} {dtype}": lambda p, of=of, dtype=dtype: (p.operation, p.x.dtype) == (of, dtype)  # type: ignore[misc]
        for of in ("forward", "backward_data", "backward_filter")
        for dtype in ("float16", "bfloat16", "float32", "float64")
    },
    **{
        f"forward {dtype}": lambda p, dtype=dtype: p.x.dtype == dtype  # type: ignore[misc]
        for dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
    },
}


@pytest.fixture(scope="module")
def convolutions() -> list[ConvolutionProblem]:
    found = [parse_plannable(draw(1, number, kind).text)[0] for kind in ("odd", "large") for number in range(DRAWN)]
    return [problem for problem in found if isinstance(problem, ConvolutionProblem)]


@pytest.mark.parametrize("name", PROPERTIES)
def test_odd_and_large_convolutions_have_each_property(name: str, convolutions: list[ConvolutionProblem]) -> None:
    count = sum(map(PROPERTIES[name], convolutions))
    assert 3 <= count < len(convolutions)


def test_chains_are_convolutions_with_what_follows_them() -> None:
    graphs = [parse_plannable(draw(1, number, "chain").text)[0] for number in range(60)]
    operands = Counter(name for graph in graphs for name in graph.operands)
    assert operands["x"] == operands["w"] == operands["y"] == 60
    assert all(10 < operands[name] < 60 for name in ("scale", "bias", "residual"))


# Scripted children


class Children:
    """Starts children in which candidates do as a script says."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.asked: list[Message] = []
        self.fresh: list[Message] = []  # the first request of each child
        self.running = 0

    def __call__(self) -> Any:
        self.running += 1
        return Child(self)


class Child:
    def __init__(self, children: Children) -> None:
        self._children, self._has_ended, self._is_fresh = children, False, True

    def end(self) -> None:
        self._children.running -= not self._has_ended
        self._has_ended = True

    def ask(self, request: Message, deadline: float, note: Callable[[Message], object]) -> Message | Ended:
        assert not self._has_ended
        self._children.asked.append(request)
        self._children.fresh += [request] if self._is_fresh else []
        self._is_fresh = False
        only = request.get("name")
        for name, act in self._children.script.items():
            engine = name.split(" (")[0]
            if only not in (None, name) or name in request.get("left_out", ()) or engine in request.get("known", ()):
                continue
            done = act(request) if callable(act) else act
            if isinstance(done, Ended):
                return done._replace(begun=name, step={"begin": name, "engine": engine})
            symptom, detail = done
            note({"ran": {"name": name, "engine": engine, "symptom": symptom, "detail": detail, "ms": 2.0}})
        return {"answer": len(self._children.script)}


RIGHT = "", ""
WRONG = "wrong result", "leaves results unwritten"
CRASH = Ended("ended", "exit status 1, CUDA_ERROR_ILLEGAL_ADDRESS")
HANG = Ended("limit", "it was ended at the limit")


def alone(otherwise: Any, then: Any, **given: Any) -> Callable[[Message], Any]:
    """Does one thing if it is the only candidate, with some values in the request, and another one beside others."""
    return lambda request: then if {"do": "alone", **given}.items() <= request.items() else otherwise


def run(file: Path, script: dict[str, Any], *options: str, problems: int = 1) -> Children:
    """A run of the command, which ends well."""
    children = Children(script)
    given = ["--seed", "7", "--processes", "1", "--problems", str(problems), "-o", str(file), *options]
    assert hunt.main(given, start=children, facts=lambda: FACTS) == 0
    return children


def rows_of(file: Path) -> tuple[list[Any], list[Any]]:
    """The rows of the problems and the faults."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0] == {"hunt": 1, "seed": 7, "only": None, **FACTS}
    return [row for row in rows if "problem" in row], [row["fault"] for row in rows if "fault" in row]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "faults.jsonl"


def test_a_problem_without_faults_is_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    children = run(file, {"engine 1": RIGHT, "engine 1 (tile_size=2)": RIGHT, "engine 2": RIGHT})
    (row,), faults = rows_of(file)
    expected = draw(7, 0)
    assert (row["problem"], row["kind"], row["text"]) == expected
    assert (row["engines"], row["runs"], row["ms"], row["error"]) == (["engine 1", "engine 2"], 3, 2.0, "")
    assert not faults
    assert [request["do"] for request in children.asked] == ["run"]
    assert children.asked[0]["text"] == expected.text
    out = capsys.readouterr().out
    assert "1 problems (" in out
    assert "no faults" in out


@pytest.mark.parametrize(
    ("acts", "symptom"), [(WRONG, "wrong result"), (CRASH, "access outside"), (HANG, "limit exceeded")]
)
def test_a_fault_that_repeats_alone_in_a_fresh_process_counts(acts: Any, symptom: str, file: Path) -> None:
    children = run(file, {"engine 1": RIGHT, "engine 20 (tile_size=6)": acts, "engine 21": RIGHT})
    (row,), (fault,) = rows_of(file)
    assert fault["symptom"] == symptom
    assert (fault["engine"], fault["candidate"]) == ("engine 20", "engine 20 (tile_size=6)")
    assert (fault["text"], fault["operation"]) == (row["text"], row["text"].split()[0])
    assert row["engines"] == ["engine 1", "engine 20", "engine 21"]  # the next child goes on
    again = [request for request in children.asked if request["do"] == "alone"]
    assert [request["slack"] for request in again] == ([0, 512] if symptom == "access outside" else [0])
    assert all(request in children.fresh for request in again)
    assert not children.running


@pytest.mark.parametrize("acts", [WRONG, CRASH, HANG])
def test_a_fault_that_does_not_repeat_is_none(acts: Any, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(file, {"engine 20": alone(acts, then=RIGHT), "engine 21": RIGHT})
    (row,), faults = rows_of(file)
    assert (row["unrepeated"], faults) == (["engine 20"], [])
    assert "1 faults did not repeat alone" in capsys.readouterr().out


def test_a_candidate_that_only_reads_just_behind_an_operand_is_told_apart(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(file, {"engine 1": RIGHT, "engine 20": alone(CRASH, then=("", ""), slack=512), "engine 21": CRASH})
    _, faults = rows_of(file)
    assert [(fault["engine"], fault["slack"]) for fault in faults] == [("engine 20", True), ("engine 21", False)]
    assert "right with 512 mapped bytes behind each operand: 1 candidates (" in capsys.readouterr().out


def test_an_engine_with_enough_faults_is_not_run_any_more(file: Path) -> None:
    children = run(file, {"engine 1": RIGHT, "engine 20": CRASH}, "--only", "reduction", problems=6)
    asked = [request["known"] for request in children.asked if request["do"] == "run"]
    assert asked[0] == []
    assert asked[-1] == ["engine 20"]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len([row for row in rows if "fault" in row]) == 4


def test_a_child_that_ends_before_a_candidate_costs_the_problem(file: Path) -> None:
    run(file, {"engine 1": RIGHT, "": Ended("ended", "signal SIGKILL")})
    (row,), faults = rows_of(file)
    assert (row["error"], row["runs"], faults) == ("signal SIGKILL", 1, [])


# Runs that follow


def test_a_run_goes_on_where_the_one_before_ended(file: Path) -> None:
    script = {"engine 1": RIGHT, "engine 20": CRASH}
    run(file, script, problems=2)
    run(file, script, problems=3)
    rows, _ = rows_of(file)
    assert [row["problem"] for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cut", [2, 20, 200])
def test_a_line_that_was_cut_off_is_run_again(cut: int, file: Path) -> None:
    """As after kill -9 or with a full disk: the last line is incomplete, and the lines before it stay."""
    script = {"engine 1": RIGHT, "engine 20": WRONG}
    run(file, script, problems=2)
    cut_off = file.read_bytes()[:-cut]
    file.write_bytes(cut_off)
    run(file, script, problems=1)
    assert file.read_bytes().startswith(cut_off[: cut_off.rfind(b"\n") + 1])
    findings = report.read(file)
    assert findings is not None
    assert sorted(findings.done) == [0, 1]
    assert len(findings.faults) == 2  # the second problem's fault was written twice


def test_a_file_whose_header_was_cut_off_begins_again(file: Path) -> None:
    file.write_text('{"hunt": 1, "se')
    run(file, {"engine 1": RIGHT})
    findings = report.read(file)
    assert findings is not None
    assert sorted(findings.done) == [0]


HUNT = """
import json, sys
from cudnnpy._measuring.process import WorkerProcess
from tools.hunt import __main__ as hunt
start = lambda: WorkerProcess({"profile": json.loads(sys.argv[1])}, command=hunt.COMMAND)
sys.exit(hunt.main(sys.argv[2:], start=start, facts=lambda: {"gpu": "none"}))
"""
PROFILE = {"text": profile().read_text(), "cudnn": None, "source": "a test"}


def test_a_hunt_that_is_killed_leaves_no_child_and_goes_on(file: Path, planning_environment: dict[str, str]) -> None:
    """Its children find no GPU, so that each problem ends with an error."""
    command = [sys.executable, "-c", HUNT, json.dumps(PROFILE), "--processes", "2", "-o", str(file)]
    environment = {**planning_environment, "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as killed:
        end = time.monotonic() + 60
        while time.monotonic() < end and (not file.exists() or file.read_bytes().count(b"\n") < 4):
            time.sleep(0.05)
        children = [
            Path("/proc", child)
            for of_thread in Path(f"/proc/{killed.pid}/task").glob("*/children")
            for child in of_thread.read_text().split()
        ]
        killed.kill()
    assert len(children) == 2
    while time.monotonic() < end and any(map(is_running, children)):
        time.sleep(0.05)
    assert not any(map(is_running, children))
    before = report.read(file)
    assert before is not None
    done = subprocess.run([*command, "--problems", "3"], env=environment, capture_output=True, text=True, check=True)
    after = report.read(file)
    assert after is not None
    assert len(after.done) == len(before.done) + 3
    assert f"{len(after.done)} problems" in done.stdout
    assert all(row["error"] and not row["runs"] for row in after.done.values())


def is_running(process: Path) -> bool:
    """Whether a process goes on, and does not only wait for its parent."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"key": "layers"}\n', "must be a file of tools.hunt, format 1"),
        ('{"hunt": 2}\n', "must be a file of tools.hunt, format 1"),
        ('{"hunt": 1, "seed": 8}\n', "must be of a hunt with"),
        ("[]\n", "a row must be a JSON object"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(
    text: str, reason: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert hunt.main(["--seed", "7", "-o", str(file)], start=Children({}), facts=lambda: FACTS) == 1
    assert reason in capsys.readouterr().err
    assert file.read_text() == text


def test_a_child_that_cannot_start_ends_the_hunt_with_its_reason(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> Any:
        raise StartError("no GPU")

    assert hunt.main(["-o", str(file)], start=refuse, facts=lambda: FACTS) == 1
    assert capsys.readouterr().err == "tools.hunt: no GPU\n"


def test_children_side_by_side_run_each_problem_once(file: Path) -> None:
    run(file, {"engine 1": RIGHT, "engine 20": CRASH}, "--processes", "4", problems=12)
    rows, _ = rows_of(file)
    assert sorted(row["problem"] for row in rows) == list(range(12))


# The summary


def test_the_summary_counts_problems_by_engine_and_the_time_that_short_reads_cost() -> None:
    def row(number: int, ms: float) -> dict[str, Any]:
        engines = ["engine 1", "engine 20"]
        facts = {"kind": "odd", "operation": "forward", "engines": engines, "runs": 3, "unrepeated": []}
        return {"problem": number, "text": f"forward {number}", "ms": ms, **facts}

    def fault(number: int, slack: bool, ms: float | None) -> dict[str, Any]:
        facts = {"operation": "forward", "engine": "engine 20", "candidate": "engine 20 (tile_size=2)"}
        found = {"symptom": "access outside", "detail": "exit status 1", "slack": slack, "ms": ms}
        return {"text": f"forward {number}", **facts, **found}

    done = {number: row(number, 3.0) for number in range(4)}
    faults = [fault(0, True, 2.0), fault(1, True, 2.9), fault(2, False, None)]
    text = report.summary(report.Findings({"hunt": 1, **FACTS}, done, faults))
    assert text.splitlines()[:3] == [
        "cudnn 9.19.0, gpu a GPU, driver 13.0",
        "4 problems (4 odd), 12 candidates run",
        "forward, engine 20: access outside in 3 of 4 problems",
    ]
    assert "right with 512 mapped bytes behind each operand: 2 candidates (forward engine 20)" in text
    assert "without them 1 of 4 problems are slower, 1.50 times at worst (single runs)" in text


def test_the_summary_of_a_file_needs_no_gpu(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(file, {"engine 1": RIGHT})
    said = capsys.readouterr().out
    assert hunt.main(["--summary", "-o", str(file)], facts=pytest.fail) == 0
    assert capsys.readouterr().out == said


# The child


class Scripted:
    """In place of a Verifier: a candidate's result is right, is wrong, or shows that the baseline was wrong."""

    wrong: tuple[str, ...] = ()
    exposes: dict[str, str] = {}  # the candidate that shows that another one, verified before, is wrong
    lost = ""
    order: list[str] = []

    def __init__(self, problem: Any, options: Any, *_: Any, slack: int, **__: Any) -> None:
        self.problem, self.options, self.slack = problem, options, slack
        self.verified: dict[str, int] = {}
        self.candidates: dict[str, Candidate] = {}

    def verify(self, candidate: Candidate) -> bool:
        self.order.append(candidate.name)
        self.candidates[candidate.name] = candidate
        if candidate.name == self.lost:
            raise ContextLost(candidate.name, "CUDA_ERROR_ILLEGAL_ADDRESS")
        candidate.milliseconds = 2.0
        other = self.candidates.get(self.exposes.get(candidate.name, ""))
        if other is not None and not other.rejection_reason:
            other.rejection_reason, self.verified = "wrong result: of the baseline", {}
        if candidate.name in self.wrong:
            candidate.rejection_reason = "wrong result: depends on the workspace's content"
        else:
            self.verified[candidate.name] = 1
        return not candidate.rejection_reason

    def close(self) -> None:
        """There is no memory."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Message]]:
    def candidate(name: str) -> Candidate:
        return Candidate("engines", name, (), True, pytest.fail, engine=Engine(int(name.split()[1])))

    def served(names: list[str], **request: Any) -> list[Message]:
        sent: list[Message] = []
        for replaced, stand_in in {
            "Examiner": Scripted,
            "sampled": lambda *_: [candidate(name) for name in names],
            "Handle": SimpleNamespace(default=lambda device: None),
            "on_device": lambda device: nullcontext(),
            "in_use": lambda handle, stream: nullcontext(),
            "memory": SimpleNamespace(trim_pool_afterwards=lambda device, stream: nullcontext()),
            "try_plan": lambda candidate, *_: candidate.name != "engine 9",
        }.items():
            monkeypatch.setattr(child, replaced, stand_in)
        monkeypatch.setattr(Scripted, "order", [])
        text = "forward 2x8x5x5 6x8x3x3"
        given = {"text": text, "seed": 1, "known": [], "left_out": [], **request}
        assert child.HuntService(sent.append).answer(given) == {"answer": None}
        return [message["ran"] for message in sent if "ran" in message]

    return served


def test_a_run_tells_of_each_candidate_that_could_be_planned(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "wrong", ("engine 2",))
    names = ["engine 1", "engine 2", "engine 9", "engine 3", "engine 4"]
    rows = {row["name"]: row for row in serve(names, do="run", left_out=["engine 3"], known=["engine 4"])}
    assert list(rows) == ["engine 1", "engine 2"]
    assert (rows["engine 1"]["symptom"], rows["engine 1"]["ms"]) == ("", 2.0)
    assert (rows["engine 2"]["symptom"], rows["engine 2"]["ms"]) == ("wrong result", None)
    assert rows["engine 2"]["detail"] == "wrong result: depends on the workspace's content"


def test_what_agreed_with_a_wrong_result_is_verified_again(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "exposes", {"engine 3": "engine 1"})
    rows = {row["name"]: row for row in serve(["engine 1", "engine 2", "engine 3"], do="run")}
    assert Scripted.order == ["engine 1", "engine 2", "engine 3", "engine 2"]
    assert [row["symptom"] for row in rows.values()] == ["wrong result", "", ""]


def test_a_candidate_alone_runs_before_what_it_is_compared_with(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "exposes", {"engine 1": "engine 3"})
    rows = {
        row["name"]: row for row in serve(["engine 1", "engine 2", "engine 3"], do="alone", name="engine 3", slack=512)
    }
    assert Scripted.order == ["engine 3", "engine 1"]
    assert rows["engine 3"]["symptom"] == "wrong result"


def test_a_lost_context_ends_the_child_with_the_drivers_error(
    serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(child.os, "_exit", leave)
    monkeypatch.setattr(Scripted, "lost", "engine 2")
    with pytest.raises(SystemExit):
        serve(["engine 1", "engine 2", "engine 3"], do="run")
    assert Scripted.order == ["engine 1", "engine 2"]
    error = capsys.readouterr().err
    assert symptom_of(Ended("ended", f"exit status 1, {error}")) == "access outside"


def test_the_child_is_the_measuring_process_with_more_requests(
    planning_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", planning_environment["LD_LIBRARY_PATH"])
    process = WorkerProcess({"profile": PROFILE}, command=hunt.COMMAND)
    try:
        request = {"do": "run", "text": "forward 1x1x5x5 nonsense", "seed": 1, "known": [], "left_out": []}
        answer = process.ask(request, time.monotonic() + 60)
    finally:
        process.end()
    assert not isinstance(answer, Ended)
    assert answer["kind"] == "ProblemTextError"
    assert "word must be" in answer["error"]


SAMPLE = """
import json, sys
from cudnnpy._planning import problem_notation
from cudnnpy._planning.engines import Target
from tools.hunt.child import sampled, engine_text
target = Target(profile=open(sys.argv[1]).read())
for text in json.loads(sys.argv[2]):
    problem, options = problem_notation.parse(text)
    found = [sampled(problem, options, target, seed) for seed in (1, 1, 2)]
    print("found", json.dumps([[(c.name, engine_text(c), c.source, c.is_conventional) for c in one] for one in found]))
"""


def test_every_engine_and_a_sample_of_knobs_is_tried(planning_environment: dict[str, str]) -> None:
    """With the real cuDNN, for the profile of a GPU; what is drawn can be planned."""
    drawn = [
        draw(3, number, kind).text for kind, number in (("network", 0), ("odd", 2), ("chain", 0), ("reduction", 0))
    ]
    texts = ["forward 8x64x28x28 64x64x3x3 pad=1 float16 channels_last", *drawn]
    command = [sys.executable, "-c", SAMPLE, str(profile()), json.dumps(texts)]
    done = subprocess.run(command, env=planning_environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr[-2000:]
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("found ")]
    assert len(lines) == len(texts)
    first, again, other = json.loads(lines[0])
    assert first == again
    assert {name for name, *_ in first} != {name for name, *_ in other}
    sources = Counter(source for _, _, source, _ in first)
    assert sources["engines"] > 5
    assert sources["knobs"] > 2
    assert 0 < sources["heuristics"] <= 6
    assert [is_plain for *_, is_plain in first] == sorted((is_plain for *_, is_plain in first), reverse=True)
    assert {engine for _, engine, source, _ in first if source == "knobs"} <= {engine for _, engine, *_ in first}


@pytest.mark.parametrize("first", ["right", "wrong"])
def test_candidates_are_verified_between_unmapped_addresses(
    first: str, monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture
) -> None:
    """With the real verification, in memory of the host: also if the first candidate is wrong."""
    memory = Device(monkeypatch, cuda_driver())
    case, sent = Case(memory), list[Message]()
    candidates = [
        case.candidate("wrong", 0.5, in_a_corner),
        case.candidate("unwritten", 0.5, unwritten),
        case.candidate("right", 3.0, space=1000),
        case.candidate("refused", 1.0, status=3000),
        case.candidate("other", 2.0),
    ]
    candidates.sort(key=lambda candidate: candidate.name != first)
    handle = SimpleNamespace(_address=0, _in_use=None, set_stream=lambda stream: None)
    monkeypatch.setattr(child, "sampled", lambda *_: candidates)
    monkeypatch.setattr(child, "Handle", SimpleNamespace(default=lambda device: handle))
    monkeypatch.setattr(child, "on_device", lambda device: nullcontext())
    request = {"do": "run", "text": text_of(case.problem), "seed": 1, "known": [], "left_out": [], "slack": 512}
    assert child.HuntService(sent.append).answer(request) == {"answer": None}
    rows = {message["ran"]["name"]: message["ran"] for message in sent if "ran" in message}
    symptoms = {name: row["symptom"] for name, row in rows.items()}
    assert symptoms == {"right": "", "other": "", "refused": "", "wrong": "wrong result", "unwritten": "wrong result"}
    assert (rows["right"]["ms"], rows["other"]["ms"], rows["wrong"]["ms"]) == (3.0, 2.0, None)
    assert rows["refused"]["detail"].startswith("failed when run")
    assert memory.count == 0
