"""The benchmark of graphs: the cases that it draws, their plans for an H200, and the summary of made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile
from tools.benchmark import graphs
from tools.benchmark.graph_cases import DTYPES, EACH, FAMILIES, NORMS, drawn, graph_of

CASES = drawn()


def test_cases_are_drawn_by_the_seed_and_take_turns() -> None:
    assert drawn() == CASES != drawn(2)
    assert [case.family for case in CASES] == list(FAMILIES) * EACH
    assert len({case.text for case in CASES}) == len(CASES)
    for family in FAMILIES:
        assert {case.dtype for case in CASES if case.family == family} == set(DTYPES)
    assert {case.norm for case in CASES} == {"", *NORMS}
    assert {case.factor for case in CASES} == {None, "int8"}


@pytest.mark.parametrize("seed", [1, 2])
def test_all_graphs_can_be_written(seed: int) -> None:
    for case in drawn(seed):
        graph = graph_of(case)
        graph.problem()
        assert [node.name for node in graph.inputs] == list(case.specs()), case.text
        if not case.norm:
            assert graph.operations.count("pointwise") == len(case.steps) + bool(case.factor), case.text


@needs_profiles
def test_graphs_of_each_family_are_planned() -> None:
    for case in CASES[: len(FAMILIES)]:
        assert graph_of(case).plan(DeviceProfile.load("h200")).name.startswith("engine "), case.text


def row(family: str, number: int, error: str | None = None, **ms: float) -> dict[str, Any]:
    """A row whose contenders took these times."""
    times = {"torch.compile": 1.0, "torch": 2.0, **ms}
    return {
        "key": f"{family} {number}",
        "family": family,
        "ms": {} if error else {name: {"median": value} for name, value in times.items()},
        "absent": {} if ms else dict.fromkeys(graphs.OURS, "a rule of engines"),
        "compile_s": 3.0,
        "plan_s": dict.fromkeys(ms, 0.5),
        "error": error,
    }


def test_the_summary_has_each_case_and_the_means_of_families() -> None:
    rows = [
        row("chain", 1, fastest=1.1, autotune=0.9),
        row("matmul", 1, fastest=1.0, autotune=1.0),
        row("matmul", 2, fastest=4.0, autotune=1.21),
        row("chain", 2),
        row("norm", 1, "fastest is wrong by nan (nan)", fastest=0.1),
        {"key": "norm 2", "error": "the process ended while this was measured: exit status -11"},
    ]
    found = list(graphs.lines(rows))
    assert found[1:6] == [
        "1.0000 |  1.00  1.00 |  0.50  0.50 |  2.00 | matmul 1",
        "1.0000 |  4.00  1.21 |  2.00  0.60 |  2.00 | matmul 2",
        "FAILED norm 1",
        "1.0000 |  1.10  0.90 |  0.55  0.45 |  2.00 | chain 1",
        "1.0000 |     -     - |     -     - |  2.00 | chain 2",
    ]
    for line in (
        "all, fastest over torch.compile: 3 rows, mean 1.639, worst 4.00, 2 (67%) above 1.05, 1 (33%) above 1.2: matmul 2",
        "matmul, fastest over torch: 2 rows, mean 1.000, worst 2.00, 1 (50%) above 1.05, 1 (50%) above 1.2: matmul 2",
        "chain, autotune over torch.compile: 1 rows, mean 0.900, worst 0.90, 0 (0%) above 1.05, 0 (0%) above 1.2: chain 1",
        "without an engine: 1",
        "    chain 2: a rule of engines",
        "failed: 2",
        "    FAILED norm 1: fastest is wrong by nan (nan)",
    ):
        assert line in found, (line, found)
    assert not [line for line in found if line.startswith(("norm, ", "dual product, "))]


def test_the_summary_of_a_file_needs_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDNNPY_STORE", "")  # which commands of the benchmark set for their process
    file = tmp_path / "rows.jsonl"
    for number, error in enumerate((None, "wrong")):
        file.open("a").write(json.dumps(row("chain", number, error, fastest=1.0)) + "\n")
        assert graphs.main(["--summary", "-o", str(file)]) == bool(error)
        assert f"failed: {number}" in capsys.readouterr().out
