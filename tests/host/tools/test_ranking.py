"""The survey of candidates' times, its rows, and the judgement of orders."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnnpy._core.layouts import byte_extent
from cudnnpy._measuring.process import Ended
from cudnnpy._planning.problem_notation import parse_plannable, text_of
from cudnnpy._planning.ranking import NUMBERS, Positions
from tools.ranking import __main__ as ranking
from tools.ranking import dataset, rows, survey
from tools.ranking.drawing import OF_NO_NETWORK, draw
from tools.ranking.rows import Candidate, Problem
from tools.rows import FileError

TEXT = "forward 8x64x28x28 64x64x3x3 pad=1 float16"
FAST, SLOW = "engine 4 (tile_size=2, stages=3)", "engine 7 + channels last"


def test_a_seed_draws_the_same_problems_which_can_be_planned() -> None:
    drawn = [draw(1, number) for number in range(200)]
    assert [draw(1, number) for number in range(20)] == drawn[:20]
    assert {draw(2, number).text for number in range(20)}.isdisjoint(one.text for one in drawn)
    for one in drawn:
        problem, options = parse_plannable(one.text)
        assert text_of(problem, options) == one.text
        assert sum(map(byte_extent, problem.specs)) <= 2 << 30
    assert {one.text.split()[0] for one in drawn} == {"forward", "backward_data", "backward_filter"}


def test_problems_of_no_network_can_be_planned_too_and_are_told_apart() -> None:
    drawn = [draw(1, number, free=0.5) for number in range(200)]
    free = [one for one in drawn if one.network == OF_NO_NETWORK]
    assert 60 < len(free) < 140
    problems = [parse_plannable(one.text)[0] for one in free]
    assert {len(problem.specs[0].shape) for problem in problems} == {3, 4, 5}
    assert sum(" groups=" in one.text for one in free) > 20


# The survey


class Child:
    """Answers a request with messages, or ends: `answers` has what comes of each request."""

    def __init__(self, answers: list[Any], requests: list[Any]) -> None:
        self._answers, self._requests = answers, requests

    def ask(self, request: Any, deadline: float, note: Any) -> Any:
        self._requests.append(request)
        said, answer = self._answers.pop(0) if self._answers else ([], {"answer": None})
        for row in said:
            note({"row": row})
        return answer

    def end(self) -> None:
        """Nothing runs."""


HEADER = {"survey": 2, "seed": 1, "around": 0.4, "free": 0.0, "cudnn": "9.19.0", "gpu": "a GPU"}


def surveyed(file: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Any], count: int = 1) -> list[Any]:
    requests: list[Any] = []
    monkeypatch.setattr(survey, "_start", lambda uuid: Child(answers, requests))
    end = time.monotonic() + 1000.0
    monkeypatch.setattr(survey.time, "monotonic", lambda: end - 1000.0 if len(requests) < count else end + 1.0)
    survey.Survey(file, HEADER, 0).run("GPU-1", end)
    return requests


def test_a_candidate_that_ends_the_process_is_a_fault_and_the_next_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [FAST, 0, 0.1, 0, ["tensor_core"], ""]
    ended = Ended("limit", "it was ended at the limit", SLOW, {"begin": SLOW})
    better = [FAST, 0, 0.09, 0, ["tensor_core"], ""]
    requests = surveyed(tmp_path / "s", monkeypatch, [([measured], ended), ([better], {"answer": None})], 2)
    assert requests[1]["left_out"] == {SLOW: "fault: limit exceeded"}
    assert requests[1]["known"] == {FAST: [0.1, 0]}
    header, row = map(json.loads, (tmp_path / "s").read_text().splitlines())
    assert header == HEADER
    assert row["rows"] == [better, [SLOW, -1, None, None, [], "fault: limit exceeded"]]


def test_a_survey_goes_on_where_it_ended_and_not_in_the_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = surveyed(tmp_path / "s", monkeypatch, [])
    second = surveyed(tmp_path / "s", monkeypatch, [])
    assert [request[0]["text"] for request in (first, second)] == [draw(1, 0).text, draw(1, 1).text]
    with pytest.raises(FileError, match="must be of a survey with"):
        survey.Survey(tmp_path / "s", {**HEADER, "seed": 2}, 0)


# The rows


def packed(tmp_path: Path, *found: list[Any]) -> Path:
    lines = [HEADER, {"number": 0, "text": TEXT, "network": "resnet50", "rows": list(found)}]
    (tmp_path / "survey").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert rows.pack([tmp_path / "survey"], tmp_path / "rows.gz") == 1
    return tmp_path / "rows.gz"


def test_rows_are_the_measured_candidates_and_those_of_slow_engines(tmp_path: Path) -> None:
    far = "not measured: engine 9 took 12.5 times as long as the fastest"
    file = packed(
        tmp_path,
        [FAST, 0, 0.0123456, 0, [], ""],
        [SLOW, -1, 0.02469, 0, [], ""],
        ["engine 9 (tile_size=1)", 3, None, 0, [], far],
        ["engines 1-3", -1, None, None, [], "not supported here: CUDNN_STATUS_NOT_SUPPORTED (3000)"],
    )
    (problem,) = rows.read([file])
    assert (problem.text, problem.network) == (TEXT, "resnet50")
    assert [(one.name, one.position) for one in problem.candidates] == [
        (FAST, 0),
        (SLOW, -1),
        ("engine 9 (tile_size=1)", 3),
    ]
    assert [one.over_best for one in problem.candidates] == pytest.approx([1.0, 2.0, 12.5], rel=1e-3)
    fast, slow, _ = problem.candidates
    assert (fast.engine, fast.knobs, fast.lowering) == (4, {"tile_size": 2, "stages": 3}, "")
    assert (slow.engine, slow.knobs, slow.lowering) == (7, {}, " + channels last")


def described(*candidates: Candidate) -> dataset.Described:
    (found,) = dataset.describe([Problem(TEXT, "", candidates)], 1)
    return found


def test_every_candidate_of_the_rows_has_finite_features() -> None:
    problems = list(rows.read(sorted(ranking.ROWS.glob("*.gz"))))[::60]
    given = dataset.describe(problems, 1)
    assert len(given) == len(problems)
    known = dataset.vocabulary(given)
    found = dataset.arrays(given, known)
    assert np.isfinite(found.problems).all()
    assert np.isfinite(found.numbers).all()
    assert found.problems.shape == (len(problems), 75 + 1 + len(known.engines) + 5)
    measured = sum(not math.isnan(candidate.over_best) for one in problems for candidate in one.candidates)
    assert found.numbers.shape == (measured, NUMBERS)
    assert np.isfinite(found.logarithms).all()
    assert found.starts[-1] == len(found.tokens) == len(found.is_ranked)
    assert (found.tokens > 0).any(axis=1).mean() > 0.9


def test_candidates_that_were_not_chosen_have_positions_and_no_time(tmp_path: Path) -> None:
    other = "engine 4 (tile_size=1, stages=3)"
    file = packed(
        tmp_path, [other, 0, None, 0, [], rows.NOT_CHOSEN], [FAST, 1, 0.1, 0, [], ""], [SLOW, -1, 0.2, 0, [], ""]
    )
    (problem,) = rows.read([file])
    assert [(one.name, one.position) for one in problem.candidates] == [(other, 0), (FAST, 1), (SLOW, -1)]
    assert [one.over_best for one in problem.candidates] == pytest.approx([math.nan, 1.0, 2.0], nan_ok=True)
    one = described(*problem.candidates)
    assert not one.is_complete
    found = dataset.arrays([one], dataset.vocabulary([one]))
    assert found.logarithms.tolist() == pytest.approx([0.0, math.log(2.0)])
    assert found.numbers[0].tolist() == Positions(one.configurations).of(one.configurations[1])
    complete = described(Candidate("engine 1", 0, 1.0))
    assert "| 1 | 1.000 " in ranking.line("given", [one, complete], [np.arange(3.0), np.arange(1.0)])


def test_engines_that_the_heuristics_omit_are_ranked_where_they_are_faster() -> None:
    given = [described(Candidate("engine 1", 0, 1.2), Candidate("engine 2", -1, 1.0), Candidate("engine 3", -1, 2.0))]
    assert dataset.vocabulary(given).others == [(given[0].kind, 2)]
    slower = [described(Candidate("engine 1", 0, 1.0), Candidate("engine 2", -1, 1.01))]
    assert dataset.vocabulary(slower).others == []


# The judgement


def test_an_order_is_judged_by_its_first_candidates() -> None:
    times = {"engine 1": 2.5, "engine 2": 2.0, "engine 3 (split_k=2)": 1.0}
    one = described(*(Candidate(name, 0 if name == "engine 1" else -1, over) for name, over in times.items()))
    given = ranking.line("given", [one], [np.arange(3.0)])
    assert given == "| given | 1 | 2.500 | 2.000 | 2.000 | 2.000 | 2.000 | 100 % | 100 % | 2.5 |"  # knobs do not count
    best = ranking.line("best", [one], [np.array([math.log(over) for over in times.values()])])
    assert best.startswith("| best | 1 | 2.000 | 2.000")


def test_the_command_judges_the_heuristics_on_the_rows_of_the_tool(capsys: pytest.CaptureFixture[str]) -> None:
    assert ranking.main([str(ranking.ROWS / "nvidia-h100.jsonl.gz"), "--epochs", "0"]) == 0
    (heuristics,) = capsys.readouterr().out.splitlines()[2:]
    assert heuristics.startswith("| heuristics | 1,733 | 1.169 | ")


def test_a_file_to_write_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ranking.main(["--pack", "survey.jsonl"])
    assert "--pack and --write need -o" in capsys.readouterr().err
