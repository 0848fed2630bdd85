"""How tables of measurements are made and judged; the tuning of a survey is a stand-in."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stored
from sample_graphs import GRAPHS

from cudnnpy import Graph, raw
from cudnnpy._planning import problem_file
from cudnnpy._planning.measurement_table import Configuration, Features, Table
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem_notation import text_of
from cudnnpy.store import Entry, Key, Store, StoredCandidate
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, Cell
from tools.measured import judge, survey, write
from tools.measured.__main__ import main, with_networks
from tools.measured.rows import Row, read
from tools.ranking.problems import problem_of


def candidate(index: int, ms: float | None, source: str = "heuristics", **more: Any) -> dict[str, Any]:
    found = {"name": f"engine {index}", "engine": index, "knobs": None, "source": source, "notes": [], **more}
    return found if ms is None else {**found, "ms": ms}


def line(*candidates: dict[str, Any], layer: str = "64x28x28 -> 64, 3x3, padding 1", **more: Any) -> str:
    given = {"batch": 8, "kind": "fp16 NHWC", "operation": "forward", "networks": ["a"], **more}
    key = f"{layer} {given['batch']} {given['kind']} {given['operation']}"
    return json.dumps({"key": key, "layer": layer, "candidates": list(candidates), **given})


def rows_of(folder: Path, *lines: str) -> list[Row]:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return read([file])


def test_a_row_has_its_candidates_times_and_the_first_guess(tmp_path: Path) -> None:
    knobs = candidate(4, 2.0, knobs=[[2, 5]], name="engine 4 (tile_size=5) + epilogue")
    (row,) = rows_of(
        tmp_path, line(candidate(1, None, rejection_reason="no"), candidate(2, 3.0), candidate(3, 1.0), knobs)
    )
    apart = Configuration(" + epilogue", 4, ((2, 5),))
    assert row.times == {Configuration("", 2, None): 3.0, Configuration("", 3, None): 1.0, apart: 2.0}
    assert row.first == Configuration("", 2, None)
    assert row.features.sizes == (8, 64, 28, 28, 64, 3, 3)


def test_candidates_with_wrong_results_and_rows_that_failed_are_left_out(tmp_path: Path) -> None:
    wrong = candidate(3, 1.0, difference=0.5), candidate(4, 0.5, difference=math.nan)
    failed = json.dumps({"key": "lost", "error": "no memory"})
    (row,) = rows_of(tmp_path, line(candidate(2, 3.0, difference=0.0), *wrong), failed)
    assert list(row.times) == [Configuration("", 2, None)]


def test_a_row_of_the_benchmark_has_what_was_chosen_with_and_without_tuning(tmp_path: Path) -> None:
    def plan(index: int, source: str) -> dict[str, Any]:
        engine = {"index": index, "knobs": [[2, 5]], "space_to_depth": False}
        return {"name": f"engine {index} (tile_size=5)", "source": source, "engine": engine, "notes": []}

    def compared(first: str, batch: int) -> str:
        plans = {"fastest": plan(2, first), "autotune": plan(3, "knobs")}
        times = {"fastest": {"median": 3.0}, "autotune": {"median": 1.0}}
        return line(plans=plans, ms=times, batch=batch, error=None)

    (row,) = rows_of(tmp_path, compared("heuristics", 8), compared("measured for 8x64x28x28, 64 filters", 16))
    first, best = (Configuration("", index, ((2, 5),)) for index in (2, 3))
    assert (row.first, row.times) == (first, {first: 3.0, best: 1.0})


@pytest.mark.parametrize("note", ["down_convert_inputs", "reduced_precision_reduction", "winograd"])
def test_what_rounds_more_than_the_first_guess_is_left_out(tmp_path: Path, note: str) -> None:
    rough, plain = candidate(3, 1.0, notes=["tensor_core", note]), candidate(2, 3.0, notes=["tensor_core"])
    assert [list(row.times) for row in rows_of(tmp_path, line(plain, rough))] == [[Configuration("", 2, None)]]


def test_the_first_guess_is_that_of_the_code_as_it_is(tmp_path: Path) -> None:
    winograd = candidate(7, 1.0, "engines", notes=["winograd"])
    lines = [line(winograd, candidate(2, 3.0), kind="fp32 strict NCHW", batch=batch) for batch in (1, 8)]
    assert [row.first.engine for row in rows_of(tmp_path, *lines)] == [2, 7]


def test_the_first_guess_puts_the_proposals_in_order_as_planning_does(tmp_path: Path) -> None:
    product = candidate(63, 2.0, knobs=[[25, 0]], name="engine 63 (workspace=0)")
    slow = line(product, candidate(67, 3.0), layer="728x19x19 -> 728, 1x1", kind="fp16 NCHW", operation="backward_data")
    small = line(product, candidate(67, 3.0), layer="72x19x19 -> 72, 1x1", kind="fp16 NCHW", operation="backward_data")
    clips = "24x8x9x9 -> 24, 3x3x3, padding 1, groups 24"
    plain = line(candidate(28, 2.0), candidate(0, 3.0, "engines"), layer=clips)
    found = rows_of(tmp_path, slow.replace('"batch": 8', '"batch": 32'), small, plain)
    assert [row.first.engine for row in found] == [67, 63, 0]


def test_the_first_guess_of_a_depthwise_gradient_is_a_forward_convolution_in_place_of_engine_0(tmp_path: Path) -> None:
    how = {"layer": "24x9x9 -> 24, 3x3, padding 1, groups 24", "kind": "tf32 NCHW", "operation": "backward_data"}
    forward = candidate(0, 1.0, name="engine 0 + forward")
    names = []
    for batch, tried in enumerate([[candidate(0, 2.0), forward], [candidate(6, 2.0), candidate(0, 3.0), forward]]):
        (row,) = rows_of(tmp_path, line(*tried, batch=batch + 1, **how))
        names.append((row.first.engine, row.first.lowering))
    assert names == [(0, " + forward"), (6, "")]


def test_the_first_guess_for_large_depthwise_images_is_on_copies(tmp_path: Path) -> None:
    """By the first engine that is compiled at run time and that the heuristics propose."""
    how = {"layer": "96x32x32 -> 96, 5x5, padding 2, groups 96", "kind": "tf32 NCHW", "batch": 64}
    copied = [
        candidate(0, 5.0, name="engine 0 + channels last"),
        candidate(71, 1.0, "engines", name="engine 71 + channels last", compiled=True),
        candidate(5, 1.0, name="engine 5 + channels last", compiled=True),
    ]
    (row,) = rows_of(tmp_path, line(candidate(0, 2.0), *copied, **how))
    assert (row.first.engine, row.first.lowering) == (5, " + channels last")


def test_a_transposed_convolution_is_planned_as_a_gradient(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, line(candidate(2, 3.0), layer="64x8x8 -> 32, 4x4, stride 2, padding 1, transposed"))
    assert (row.features.kind[0], row.features.sizes[:5]) == ("backward_data", (8, 32, 16, 16, 64))


KIND = ("forward", "half", "channels last", 2, True, False, "dense", False)
GOOD, BAD = Configuration("", 1, None), Configuration("", 2, None)


# Exports of a store


def stored_entry(batch: int, *candidates: StoredCandidate, **changes: Any) -> Entry:
    """An entry for the problem of `line`."""
    cell = Cell(catalogue.layer("64x28x28 -> 64, 3x3, padding 1"), batch, KINDS[0], "forward", ())
    problem, _ = problem_of(cell)
    key = Key(text_of(problem), "{}", "NVIDIA H200", "9.0", 132, 91900)
    text = changes.pop("text", text_of(problem, PlanningOptions(**changes.pop("options", {}))))
    return stored.entry(key=key._replace(**changes), text=text, candidates=candidates)


def measured_candidate(name: str, ms: float | None, source: str = "heuristics", refused: str = "") -> StoredCandidate:
    return StoredCandidate(name, source, 0, ms, ("tensor_core",), True, refused)


CANDIDATES = (
    measured_candidate("engine 2", 3.0),
    measured_candidate("engine 4 (tile_size=5, knob 99=3) + epilogue", 2.0, "knobs"),
    measured_candidate("engine 3", 1.0, "engines"),
    measured_candidate("engine 5", 0.5, "engines", "its result is wrong"),
    measured_candidate("engine 6", None),
    measured_candidate("CUDNN_CONVOLUTION_FWD_ALGO_GEMM", 0.1, "legacy"),
)


def test_an_entry_of_a_store_is_a_row_like_one_of_a_survey(tmp_path: Path) -> None:
    store = Store("")
    store.put(stored_entry(8, *CANDIDATES))
    store.export(tmp_path / "plans.jsonl")
    (found,) = read([tmp_path / "plans.jsonl"], "9.0", "9.19")
    apart = Configuration(" + epilogue", 4, ((int(raw.CUDNN_KNOB_TYPE_TILE_SIZE), 5), (99, 3)))
    assert found.times == {Configuration("", 2, None): 3.0, apart: 2.0, Configuration("", 3, None): 1.0}
    (surveyed,) = rows_of(tmp_path, line(candidate(2, 3.0)))
    assert (found.first, found.features) == (surveyed.first, surveyed.features)
    text = "forward 8x64x28x28 64x64x3x3 pad=1"
    assert found.key.startswith(text)
    assert found.networks == frozenset([found.key])


@pytest.mark.parametrize(
    "entry",
    [
        stored_entry(8, *CANDIDATES, capability="8.0"),
        stored_entry(8, *CANDIDATES, cudnn=91800),
        stored_entry(8, *CANDIDATES, options={"deterministic": True}),
        stored_entry(8, *CANDIDATES, options={"workspace_limit": 1}),
        stored_entry(8, *CANDIDATES, text=text_of(GRAPHS["convolution_alone"](Graph()).problem())),
        stored_entry(8, measured_candidate("engine 1", 1.0, "measured for 8x64x28x28, 64 filters"), *CANDIDATES),
        stored_entry(8, CANDIDATES[2]),
    ],
    ids=["GPU", "cuDNN", "deterministic", "limit", "graph", "table", "no first guess"],
)
def test_an_entry_that_says_nothing_of_the_first_guess_is_left_out(tmp_path: Path, entry: Entry) -> None:
    store = Store("")
    store.put(entry)
    store.export(tmp_path / "plans.jsonl")
    assert read([tmp_path / "plans.jsonl"], "9.0", "9.19") == []


def test_the_command_makes_a_table_of_an_export(tmp_path: Path) -> None:
    store = Store("")
    for batch in (8, 16, 32):
        store.put(stored_entry(batch, *CANDIDATES[:3]))
    store.export(tmp_path / "plans.jsonl")
    given = ["--gpu", "NVIDIA H200", "--capability", "9.0", "--cudnn", "9.19", "--out", str(tmp_path)]
    assert main([str(tmp_path / "plans.jsonl"), *given]) == 0
    (table,) = tmp_path.glob("sm-9.0-cudnn-9.19.jsonl")
    assert json.loads(table.read_text().splitlines()[0])["problems"] == 3


def row(batch: int, *networks: str, times: dict[Configuration, float] | None = None) -> Row:
    described = Features(KIND, (batch, 64, 28, 28, 64, 3, 3), 4)
    return Row(f"{batch} {networks}", described, frozenset(networks), times or {BAD: 3.0, GOOD: 1.0}, BAD)


def test_a_problem_is_judged_without_its_own_networks() -> None:
    alone = judge.left_out([row(8, "a"), row(16, "a"), row(32, "a", "b")])
    assert [one.chosen for one in alone] == [BAD] * 3
    others = judge.left_out([row(8, "a"), row(16, "b")])
    assert [(one.chosen, one.over_best, one.over_first) for one in others] == [(GOOD, 1.0, 1 / 3)] * 2


def test_a_proposal_that_cannot_run_is_passed_over() -> None:
    table = Table(write.table([row(8, "a")], *judge.KEY), judge.KEY)
    assert judge.choice(row(8, "b", times={BAD: 1.0}), table) == BAD


def test_the_command_writes_a_table_and_says_what_it_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    ran = candidate(2, 3.0), candidate(3, 1.0)
    file.write_text("".join(line(*ran, batch=batch, networks=[str(batch)]) + "\n" for batch in (8, 16)))
    out = tmp_path / "tables"
    assert main([str(file), "--gpu", "A GPU", "--capability", "9.9", "--cudnn", "9.99", "--out", str(out)]) == 0
    (written,) = out.iterdir()
    text = written.read_text()
    header = json.loads(text.partition("\n")[0])
    assert (header["GPU"], header["problems"]) == ("A GPU", 2)
    assert Table(text, ("9.9", "9.99"))
    assert "all | 2 | 3.000 | 1.000 | 0.0 % | 1.00 | 100.0 % | 0.333" in capsys.readouterr().out


def test_a_table_has_the_fastest_configurations_alone() -> None:
    times = {Configuration("", index, None): 1.0 + index / 10 for index in range(9)}
    text = write.table([row(8, "a", times={**times, BAD: 1.2})], *judge.KEY)
    problem = json.loads(text.splitlines()[2])["problems"][0]
    assert problem[1] == [0, 0, 1, 100, 2, 200]
    assert problem[2] == 200


# Surveys


def test_a_survey_tunes_drawn_problems_without_a_table_and_exports_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cudnnpy tune` is a program that writes a store."""
    program = tmp_path / "tune.py"
    program.write_text(
        "import os, sys; sys.path[:0] = sys.argv[1].split(os.pathsep)\n"
        "assert os.environ['CUDNNPY_TABLES'] == '' and sys.argv[2:5] == ['-m', 'cudnnpy', 'tune']\n"
        "assert sys.argv[6:7] + sys.argv[8:] == ['--store', '--seconds', '5.0']\n"
        "from test_measured_tools import CANDIDATES, stored_entry\n"
        "from cudnnpy import store\n"
        "with store.open(sys.argv[7]) as opened: opened.put(stored_entry(8, *CANDIDATES))\n"
        "sys.exit(130)\n"
    )
    started = subprocess.Popen

    def start(command: list[str], **how: Any) -> Any:
        return started([sys.executable, str(program), os.pathsep.join(sys.path), *command[1:]], **how)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert survey.main([str(tmp_path), "--seconds", "60", "--seed", "3", "--count", "20"]) == 0
    assert "1 problems" in capsys.readouterr().out
    assert len(problem_file.read(tmp_path / "3.toml")) == 20
    assert [row.key for row in read([tmp_path / "3.jsonl"], "9.0", "9.19")] == [
        "forward 8x64x28x28 64x64x3x3 pad=1 float16 channels_last"
    ]


def test_a_survey_interrupts_the_tuning_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, time\ntry: print('ready', flush=True); time.sleep(600)\nexcept KeyboardInterrupt: sys.exit(130)"
    started = subprocess.Popen

    def start(command: list[str], **how: Any) -> Any:
        process = started([sys.executable, "-c", code], stdout=subprocess.PIPE, **how)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    assert survey.tune(tmp_path / "a.toml", tmp_path / "a.sqlite", 0.5, 5.0) == survey.INTERRUPTED


def test_a_problem_belongs_to_all_networks_that_have_it() -> None:
    layer = catalogue.layer("64x56x56 -> 64, 3x3, padding 1")
    having = {network.name for network in catalogue.read() if layer in network.layers}
    kind = ("forward", "half", "channels last", 2, True, False, "dense", False, 1)
    known = Features(kind, (1, 64, 56, 56, 64, 3, 3), 4)
    other = known._replace(sizes=(7, 64, 56, 56, 64, 3, 3))
    rows = [Row("a", described, frozenset("a"), {GOOD: 1.0}, GOOD) for described in (known, other)]
    found = with_networks(rows)
    assert len(having) > 1
    assert [row.networks for row in found] == [having, {"a"}]


DENSE = ("backward_filter", "float32 strict", "channels first", 3, True, False, "dense", False, 1)


def measured_row(size: int, times: dict[int, float], networks: str) -> Row:
    """A problem whose first guess is the first of the engines."""
    found = {Configuration("", engine, None): time for engine, time in times.items()}
    described = Features(DENSE, (size, 3, 16, 16, 16, 64, 3, 3, 3), 5)
    return Row(str(size), described, frozenset(networks), found, next(iter(found)))


def test_problems_of_an_earlier_table_are_kept_unless_they_were_measured_again() -> None:
    blocks = Configuration(" + blocks", 7, ((2, 5), (12, -1)))
    old = measured_row(2, {0: 3.0}, "a")._replace(times={blocks: 2.0}, first=blocks)
    kept = write.read(write.table([measured_row(1, {0: 3.0, 1: 1.0}, "a"), old], "9.0", "9.19"))
    assert [(one.sizes[0], one.first) for one in kept] == [(1, 2000), (2, 0)]
    new = measured_row(1, {0: 1.0, 1: 3.0}, "b"), measured_row(4, {5: 1.0}, "b")
    both = write.read(write.table(new, "9.0", "9.19", kept))
    assert [(one.sizes[0], one.fastest[0][0], one.first) for one in both] == [
        (1, Configuration("", 0, None), 0),
        (2, blocks, 0),
        (4, Configuration("", 5, None), 0),
    ]
