"""The ranking model: its file, its predictions, and the order of candidates."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_up_candidates import made_up

from cudnnpy import raw
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.known_issues import ProblemTraits
from cudnnpy.errors import NotSupportedError
from cudnnpy.tuning.ranking import model as ranking
from cudnnpy.tuning.ranking.model import Model
from tests.shared import made_up_models
from tools.ranking import dataset, rows
from tools.ranking.__main__ import ROWS

KEY = ("9.0", ranking.model_release())
GPU = Target(profile='{"deviceVer": 900}')
FEATURES = ranking.FEATURES + 6  # of a problem, and of the proposals
(SHIPPED,) = Path(ranking.__file__).with_name("models").glob("*.npz")


def shipped() -> Model:
    capability, release = SHIPPED.stem.removeprefix("sm-").split("-cudnn-")
    with np.load(SHIPPED, allow_pickle=False) as arrays:
        return Model(arrays, (capability, release))


def described(step: int) -> list[dataset.Described]:
    file = ROWS / "nvidia-h100.jsonl.gz"
    if not file.exists():
        pytest.skip("the sdist has no measured rows")
    return dataset.describe(list(rows.read([file]))[::step], 1)


# The predictions


def test_the_model_of_the_package_is_small_and_better_than_the_heuristics_on_measured_problems() -> None:
    assert SHIPPED.stat().st_size <= 300_000
    model, of_model, of_heuristics = shipped(), [], []
    for one in described(20):
        found = model.logarithms(one.features, one.configurations)
        assert all(map(math.isfinite, found))
        ranked = [
            (value, each.position, candidate.over_best)
            for value, each, candidate in zip(found, one.configurations, one.problem.candidates, strict=True)
            if each.position >= 0
        ]
        if ranked:
            of_model.append(math.log(min(ranked)[2]))
            of_heuristics.append(math.log(min(ranked, key=lambda row: row[1])[2]))
    assert np.mean(of_model) < 0.6 * np.mean(of_heuristics)


# The file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDNNPY_MODELS", str(tmp_path))
    return tmp_path


def test_a_model_is_for_one_architecture_and_release(folder: Path) -> None:
    assert ranking.model_for(GPU) is None
    made_up_models.write(folder, KEY, 7, FEATURES)
    ranking._read.cache_clear()
    assert ranking.model_for(GPU) is not None
    assert ranking.model_for(Target(profile='{"deviceVer": 800}')) is None
    assert ranking.model_for(Target(profile="{}")) is None


@pytest.mark.parametrize(
    ("version", "is_used", "first", "last", "note"),
    [
        (91100, False, "ranking", "heuristics", "was not measured for cuDNN 9.11"),
        (
            91200,
            True,
            "ranking of 9.19",
            "heuristics",
            "was measured with cuDNN 9.19, and orders the engines of 9.12, too",
        ),
        (91902, True, "ranking", "heuristics", ""),
        (
            92802,
            True,
            "ranking of 9.19",
            "heuristics",
            "was measured with cuDNN 9.19, and orders the engines of 9.28, too",
        ),
        (
            92900,
            False,
            "ranking",
            "heuristics (the ranking was not measured for 9.29)",
            "was not measured for cuDNN 9.29",
        ),
    ],
)
def test_a_release_that_was_not_measured_is_said(
    monkeypatch: pytest.MonkeyPatch, version: int, is_used: bool, first: str, last: str, note: str
) -> None:
    monkeypatch.setattr(ranking.raw, "version", lambda: version)
    assert (ranking.model_for(GPU) is not None) == is_used
    assert (ranking.source_text("ranking"), ranking.source_text("heuristics")) == (first, last)
    assert ranking.source_text("engines") == "engines"
    assert note in ranking.release_note()
    assert bool(note) == bool(ranking.release_note())


def test_the_newest_release_was_looked_at() -> None:
    """After `tools.generate` for a release: compare its engines (docs/dev/ranking.md), and measure the known issues."""
    newest = tuple(map(int, raw.HEADER_VERSION.split(".")[:2]))
    for release in (ranking._LAST, known_issues.NEWEST):
        assert (release // 10000, release // 100 % 100) == newest


def test_kinds_of_graphs_count_their_engines_apart() -> None:
    kinds = [(operation, fused) for operation in ranking.OPERATIONS for fused in (False, True)]
    assert len({ranking.engine_number(62, *kind) for kind in kinds}) == len(kinds)
    assert {ranking.engine_number(62, *kind) % ranking.ENGINES for kind in kinds} == {62}


def test_without_a_folder_no_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_MODELS", "")
    assert ranking.model_for(GPU) is None


def damaged(file: Path, how: str) -> None:
    content = file.read_bytes()
    arrays = made_up_models.arrays(KEY, 7, FEATURES)
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "changed":
        middle = content.index(b"vectors")
        file.write_bytes(content[: middle + 60] + b"\\0\\1\\2\\3" + content[middle + 64 :])
    elif how == "text":
        file.write_text("a model")
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "another release":
        made_up_models.write(file.parent, ("9.0", "8.9"), 7, FEATURES).rename(file)
    elif how == "no layer":
        np.savez(file, **{name: value for name, value in arrays.items() if name != "third"})
    elif how == "zip directory":
        at = content.index(b"PK\x01\x02")
        file.write_bytes(content[: at + 10] + b"\x63" + content[at + 11 :])  # an unknown way to compress
    elif how == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        np.savez(file, **{**arrays, **CHANGED[how]})


CHANGED: dict[str, dict[str, Any]] = {
    "pickled": {"mean": np.array([{}], object)},
    "another format": {"format": np.array(99)},
    "another shape": {"second": np.zeros((2, 1), np.int16)},
    "another bias": {"second bias": np.zeros(2, np.int16)},
    "another table": {"others": np.zeros((9, 3), np.int32)},
    "other features": {
        "mean": np.zeros(FEATURES + 1, np.float32),
        "scale": np.ones(FEATURES + 1, np.float32),
        "problem": np.zeros((FEATURES + 1, 1), np.int16),
    },
    "one engine twice": {"engines": np.array([7, 7], np.int32)},
    "NaN": {"mean": np.full(FEATURES, np.nan, np.float32)},
    "NaN weights": {"last": np.full((1, 1), np.nan, np.float32)},
}
HOW = ("cut", "changed", "text", "empty", "zip directory", "pipe", "another release", "no layer", *CHANGED)


@pytest.mark.parametrize("how", HOW)
def test_a_bad_file_gives_one_warning_and_the_order_of_the_heuristics(folder: Path, how: str) -> None:
    file = made_up_models.write(folder, KEY, 7, FEATURES)
    damaged(file, how)
    with pytest.warns(UserWarning, match=f"{file.name} is not used to choose engines") as warned:
        assert ranking.model_for(GPU) is None
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ranking.model_for(GPU) is None


# The order


REFUSED = "gives NaN"


def proposal(index: int, *notes: str) -> Any:
    return SimpleNamespace(engine=index, knobs=(), notes=notes)


def made(index: int, notes: tuple[str, ...]) -> Candidate:
    found = made_up(f"engine {index}", notes=notes, compiled_at_run_time="runtime_compilation" in notes)
    found.engine, found.rejection_reason = Engine(index), REFUSED if "faulty" in notes else ""
    found.lowering = SimpleNamespace(suffix="", traits=ProblemTraits("forward"))  # type: ignore[assignment]
    return found


def ordered(
    monkeypatch: pytest.MonkeyPatch, proposed: list[Any], other: Any, strict: bool = False, graph: Any = None
) -> Any:
    monkeypatch.setattr(ranking, "heuristics", lambda graph, target: iter(proposed))
    monkeypatch.setattr(
        ranking, "from_configuration", lambda lowering, target, source, found: made(found.engine, found.notes)
    )
    monkeypatch.setattr(
        ranking, "candidate_for_engine", lambda lowering, target, engine: made(other.engine, other.notes)
    )
    monkeypatch.setattr(
        ranking.known_issues, "rejection_by_issues", lambda traits, engine, notes: REFUSED if "faulty" in notes else ""
    )
    arrays = made_up_models.arrays(KEY, 7, FEATURES)
    tokens = [(0, index, 0, 0) for index in (7, 1, 2)]  # engine 3 is unknown
    vectors = np.concatenate([arrays["vectors"], np.zeros((2, 1), np.int16)])
    model = Model({**arrays, "tokens": np.array(tokens), "vectors": vectors}, KEY)
    lowering: Any = SimpleNamespace(
        suffix="", traits=ProblemTraits("forward"), build_graph=graph or (lambda target: None)
    )
    return ranking.ranked(model, [0.0] * ranking.FEATURES, 0, [lowering], GPU, strict)


def test_the_fastest_predicted_candidate_is_first_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(ordered(monkeypatch, [proposal(1), proposal(2)], proposal(7)))
    assert [one.name for one in found] == ["engine 7", "engine 1", "engine 2"]
    assert {one.source for one in found} == {"ranking"}
    assert [one.expected for one in found] == pytest.approx([1.0, math.exp(0.5), math.exp(0.5)])


@pytest.mark.parametrize("note", ["runtime_compilation", "faulty"])
def test_rejected_candidates_are_last_and_other_engines_are_left_out(
    monkeypatch: pytest.MonkeyPatch, note: str
) -> None:
    """Engines that are compiled at run time are not rejected, but left out unless the heuristics propose them."""
    found = list(ordered(monkeypatch, [proposal(2, note), proposal(1)], proposal(7, note)))
    ranked = {"runtime_compilation": ["engine 2", "engine 1"], "faulty": ["engine 1"]}[note]
    assert [one.name for one in found if one.expected is not None] == ranked
    assert {one.name for one in found} == {"engine 1", "engine 2"}


def test_a_graph_that_cudnn_rejects_is_a_rejected_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def rejects(target: Any) -> Any:
        raise NotSupportedError("cudnnBackendFinalize", 3000, "CUDNN_STATUS_NOT_SUPPORTED")

    (found,) = ordered(monkeypatch, [proposal(1)], proposal(7), graph=rejects)
    assert (found.name, found.expected) == ("graph", None)
    assert found.rejection_reason.startswith("not supported here: CUDNN_STATUS_NOT_SUPPORTED")


def test_candidates_are_made_when_their_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ordered(monkeypatch, [proposal(1), proposal(2)], proposal(7))
    names: list[int] = []
    monkeypatch.setattr(ranking, "from_configuration", lambda *given: names.append(given[-1].engine))
    assert next(found).name == "engine 7"
    assert names == []


def test_engines_that_the_model_does_not_know_follow_in_the_order_of_the_heuristics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = [proposal(4), proposal(3), proposal(1), proposal(5, "faulty")]
    found = list(ordered(monkeypatch, given, proposal(7)))
    assert [one.name for one in found] == ["engine 7", "engine 1", "engine 4", "engine 3", "engine 5"]
    assert [one.expected is None for one in found] == [False, False, True, True, True]
    assert [one.source for one in found] == ["ranking", "ranking", *["heuristics"] * 3]


def test_in_strict_float32_engines_of_tf32_have_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ordered(monkeypatch, [proposal(2, "tensor_core"), proposal(1)], proposal(7, "tensor_core"), strict=True)
    assert [one.name for one in found] == ["engine 1", "engine 2"]
