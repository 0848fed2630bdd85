"""Rank candidates by a measurement table: near problems, the effect of a table, and where it must not be used."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planning import Planner, _started, profile

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, channels_last_strides
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy._planning import known_issues, measurement_table
from cudnnpy._planning.candidates import Engine
from cudnnpy._planning.engines import Target
from cudnnpy._planning.measurement_table import Configuration, Features, Table, file_name
from cudnnpy.convolution.problem import make_problem
from cudnnpy.convolution.table_features import features
from tools.measured import write
from tools.measured.rows import Row

KEY = ("9.0", "9.99")
KIND = ("forward", "half", "channels last", 2, True, False, "dense", False, 1)
FAST, MIDDLE, SLOW = (Configuration("", index, ((2, 5), (14, index))) for index in (1, 2, 3))


def at(*sizes: int, kind: Any = KIND) -> Features:
    return Features(kind, sizes, 4)


def row(described: Features, first: Configuration = SLOW, **networks: Any) -> Row:
    """A problem for which FAST takes 1 ms, MIDDLE 1.1, and SLOW 2."""
    times = networks.pop("times", {FAST: 1.0, MIDDLE: 1.1, SLOW: 2.0})
    return Row(str(described), described, frozenset(networks.get("networks", {"a"})), times, first)


def table(*rows: Row) -> Table:
    return Table(write.table(rows, *KEY), KEY)


def proposed(of: Table, described: Features) -> list[Configuration]:
    return [proposal.configuration for proposal in of.proposals(described)]


HERE = at(32, 64, 56, 56, 64, 3, 3)
BESIDE = at(33, 64, 56, 56, 64, 3, 3)


# What is near


def test_what_was_fastest_for_this_very_problem_is_proposed_best_first() -> None:
    found = table(row(HERE)).proposals(HERE)
    assert [one.configuration for one in found] == [FAST, MIDDLE]
    assert {one.sizes for one in found} == {HERE.sizes}


@pytest.mark.parametrize("described", [at(32, 80, 56, 56, 64, 3, 3), at(40, 64, 48, 48, 64, 3, 3)])
def test_what_was_fastest_for_a_near_problem_is_proposed(described: Features) -> None:
    assert proposed(table(row(HERE)), described) == [FAST, MIDDLE]


@pytest.mark.parametrize(
    "described",
    [
        at(1, 64, 56, 56, 64, 3, 3),
        at(32, 64, 7, 7, 64, 3, 3),
        at(32, 1024, 56, 56, 64, 3, 3),
        *(at(*HERE.sizes, kind=(*KIND[:place], "other", *KIND[place + 1 :])) for place in range(len(KIND))),
    ],
)
def test_nothing_is_proposed_for_a_problem_that_is_far_or_of_another_kind(described: Features) -> None:
    assert proposed(table(row(HERE, times={FAST: 1.0, SLOW: 50.0})), described) == []


def test_a_small_gain_does_not_change_the_order() -> None:
    close = row(HERE, times={FAST: 1.0, SLOW: 1.03})
    assert proposed(table(close), HERE) == []


def test_the_farther_a_problem_is_the_more_must_be_gained() -> None:
    for gain, reach in ((1.1, 0), (1.6, 1), (2.3, 2)):
        known = table(row(HERE, times={FAST: 1.0, SLOW: gain}))
        found = [proposed(known, at(batch, *HERE.sizes[1:])) for batch in (32, 45, 64, 91)]
        assert found == [[FAST] if step <= reach else [] for step in range(4)], gain


def test_nothing_is_proposed_where_the_first_guess_was_the_fastest() -> None:
    assert proposed(table(row(HERE, first=FAST)), HERE) == []


def test_the_nearest_problems_decide_together_and_the_nearer_ones_count_more() -> None:
    one, other = {FAST: 1.0, MIDDLE: 2.0, SLOW: 3.0}, {MIDDLE: 1.0, FAST: 2.0, SLOW: 3.0}
    near = [row(at(batch, *HERE.sizes[1:]), times=one) for batch in (16, 64)]
    assert proposed(table(*near, row(at(32, 64, 40, 56, 64, 3, 3), times=other)), HERE)[0] == FAST
    assert proposed(table(*near, row(BESIDE, times=other)), HERE)[0] == MIDDLE


def test_a_problem_that_was_measured_itself_decides_alone() -> None:
    near = [row(at(batch, *HERE.sizes[1:])) for batch in (31, 33)]
    assert proposed(table(*near), HERE) == [FAST, MIDDLE]
    here = row(HERE, times={MIDDLE: 1.0, FAST: 1.2, SLOW: 2.0})
    assert proposed(table(*near, here), HERE) == [MIDDLE, FAST]
    assert proposed(table(*near, row(HERE, first=FAST)), HERE) == []


def test_one_problem_that_disagrees_keeps_the_order_of_the_heuristics() -> None:
    bad = {SLOW: 1.0, FAST: 9.0, MIDDLE: 9.0}
    assert proposed(table(row(at(64, 64, 56, 56, 64, 3, 3)), row(BESIDE, times=bad)), HERE) == []


def test_what_is_slow_for_the_nearest_problem_is_not_proposed_first() -> None:
    one, other = {FAST: 1.0, MIDDLE: 5.0, SLOW: 5.0}, {MIDDLE: 1.0, FAST: 5.0, SLOW: 5.0}
    found = proposed(table(row(BESIDE, times=one), row(at(32, 64, 28, 28, 64, 3, 3), times=other)), HERE)
    assert found[0] == FAST


# Which problems are looked up


def problem(operation: str = "forward", *, last: bool = True, dtype: Any = "float16", **more: Any) -> Any:
    shapes = (8, 64, 28, 28), (32, 64, 3, 3), (8, 32, 28, 28)
    specs = [TensorSpec(shape, dtype, channels_last_strides(shape) if last else None) for shape in shapes]
    for place, change in more.pop("change", {}).items():
        specs[place] = specs[place]._replace(**change)
    options = {name: more.pop(name) for name in ("padding", "mode", "dilation") if name in more}
    given = ConvolutionOptions(**{"padding": 1, **options})
    return make_problem(given, operation, *specs, **more)


def looked_up(strict: bool = False, **given: Any) -> Features | None:
    return features(problem(**given), strict)


def test_a_problem_is_looked_up_by_what_its_speed_depends_on() -> None:
    whole = looked_up()
    assert whole is not None
    assert whole.sizes == (8, 64, 28, 28, 32, 3, 3)
    others = [
        looked_up(operation="backward_data"),
        looked_up(operation="backward_filter"),
        looked_up(last=False),
        looked_up(dtype="float32"),
        looked_up(strict=True, dtype="float32"),
        looked_up(bias=TensorSpec((32,), "float16")),
        looked_up(dilation=2, padding=2),
        looked_up(dilation=4, padding=4),
    ]
    kinds = {other.kind for other in others if other is not None}
    assert len(kinds) == len(others)
    assert whole.kind not in kinds
    assert looked_up(dtype="bfloat16") == whole


@pytest.mark.parametrize(
    ("groups", "kind", "grouped"), [(1, "dense", ()), (4, "grouped", (8, 4)), (32, "depthwise", ())]
)
def test_a_grouped_problem_is_looked_up_by_its_groups(groups: int, kind: str, grouped: tuple[int, ...]) -> None:
    specs = (TensorSpec(shape, "float16") for shape in ((8, 32, 28, 28), (64, 32 // groups, 3, 3), (8, 64, 28, 28)))
    described = features(make_problem(ConvolutionOptions(padding=1, groups=groups), "forward", *specs), False)
    assert described is not None
    assert kind in described.kind
    assert described.sizes == (8, 32, 28, 28, 64, *grouped, 3, 3)


def test_a_tensor_of_one_position_has_the_order_of_the_others() -> None:
    for last in (True, False):
        shapes = (8, 64, 4, 4), (1, 64, 4, 4), (8, 1, 1, 1)
        strides = (channels_last_strides(shape) if last else None for shape in shapes)
        specs = (TensorSpec(shape, "float16", given) for shape, given in zip(shapes, strides, strict=True))
        described = features(make_problem(ConvolutionOptions(), "forward", *specs), False)
        assert described is not None
        assert described.kind[2] == ("channels last" if last else "channels first")


@pytest.mark.parametrize(
    "given",
    [
        {"change": {0: {"alignment": 8}}},
        {"change": {1: {"strides": None}}},
        {"change": {0: {"strides": (64 * 28 * 30, 1, 64 * 30, 64)}}},
        {"beta": 1.0},
        {"alpha": 2.0},
        {"activation": "relu"},
        {"mode": "convolution"},
        {"padding": ((2, 0), (1, 1))},
    ],
)
def test_a_problem_unlike_all_that_are_measured_is_not_looked_up(given: dict[str, Any]) -> None:
    assert looked_up(**given) is None


# Files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tables, empty; the loaded cuDNN is that of KEY."""
    monkeypatch.setenv("CUDNNPY_TABLES", str(tmp_path))
    monkeypatch.setattr(raw, "version", lambda: 99900)
    return tmp_path


GPU = Target(profile='{"deviceVer": 900}')


def test_a_table_is_of_one_architecture_and_one_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / file_name(*KEY)).write_text(write.table([row(HERE)], *KEY))
    found = measurement_table.table_for(GPU)
    assert found is not None
    assert proposed(found, HERE) == [FAST, MIDDLE]
    assert measurement_table.table_for(GPU) is found
    assert measurement_table.table_for(Target(profile='{"deviceVer": 800}')) is None
    assert measurement_table.table_for(Target(profile="{}")) is None
    monkeypatch.setattr(raw, "version", lambda: 99901)
    assert measurement_table.table_for(GPU) is found
    monkeypatch.setattr(raw, "version", lambda: 99800)
    assert measurement_table.table_for(GPU) is None


def test_no_table_is_used_where_the_variable_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNNPY_TABLES", "")
    assert measurement_table.table_for(GPU) is None


def cut(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    "change",
    [
        cut,
        lambda text: text.replace("[32,64,", "[33,64,"),
        lambda text: text.replace('"format": 3', '"format": 2'),
        lambda text: text.replace('"cudnn": "9.99"', '"cudnn": "9.98"'),
        lambda text: text.replace('"capability": "9.0"', '"capability": "8.0"'),
        lambda text: "",
        lambda text: "[]",
        lambda text: "null\n",
        lambda text: "\x00\ud7ff",
    ],
)
def test_a_table_that_cannot_be_read_is_ignored_with_one_warning(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / file_name(*KEY)
    text = write.table([row(HERE)], *KEY)
    file.write_text(change(text))
    with pytest.warns(UserWarning, match="is not used to choose engines") as caught:
        assert measurement_table.table_for(GPU) is None
    assert [str(file) in str(warning.message) for warning in caught] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measurement_table.table_for(GPU) is None


def written(configurations: Any, problems: Any, kind: Any = KIND) -> str:
    """A table with any content, and its digest."""
    first = {"configurations": configurations}
    rest = "".join(json.dumps(line) + "\n" for line in (first, {"kind": kind, "problems": problems}))
    header = {
        "format": measurement_table.FORMAT,
        "capability": KEY[0],
        "cudnn": KEY[1],
        "sha256": measurement_table.digest(rest),
    }
    return json.dumps(header) + "\n" + rest


GOOD = [["", 3, [[2, 5], [12, -1]]]]
FASTEST = [[list(HERE.sizes), [0, 0], 1000]]


@pytest.mark.parametrize(
    ("configurations", "problems"),
    [
        *(([["", engine, None]], FASTEST) for engine in (-1, 1.5, "3", None, True, 10**30)),
        *(
            ([["", 3, knobs]], FASTEST)
            for knobs in (5, [2, 5], [[2]], [[2, 5, 1]], [[2, 10**30]], [["a", 1]], {"2": 5})
        ),
        *(([[suffix, 3, None]], FASTEST) for suffix in (None, 7, [])),
        *((given, FASTEST) for given in ([], {}, "abc", None, [["", 3]], ["abc"])),
        *((GOOD, [[sizes, [0, 0], 1000]]) for sizes in ([32.5, 64], [0, 64], [True], "abc", None, [10**30])),
        *((GOOD, [[[2, 3], pairs, 1000]]) for pairs in ([0], [1, 0], [-1, 0], [0, -5000], [0, float("nan")], "ab", {})),
        *((GOOD, [[[2, 3], [0, 0], first]]) for first in (-5000, float("inf"), 10**400, "1", None)),
        *((GOOD, given) for given in ({}, "abc", 5, [5], ["abc"], [[[2, 3], [0, 0]]])),
    ],
)
def test_a_table_with_a_wrong_content_is_ignored_with_one_warning(
    folder: Path, configurations: Any, problems: Any
) -> None:
    file = folder / file_name(*KEY)
    file.write_text(written(configurations, problems))
    with pytest.warns(UserWarning, match="is not used to choose engines") as caught:
        assert measurement_table.table_for(GPU) is None
    assert [str(file) in str(warning.message) for warning in caught] == [True]


def test_a_good_table_of_any_content_is_read(folder: Path) -> None:
    (folder / file_name(*KEY)).write_text(written(GOOD, FASTEST))
    found = measurement_table.table_for(GPU)
    assert found is not None
    assert proposed(found, HERE) == [Configuration("", 3, ((2, 5), (12, -1)))]


def test_problems_with_another_number_of_sizes_are_not_near() -> None:
    assert proposed(Table(written(GOOD, [[[32, 64], [0, 0], 1000], *FASTEST]), KEY), HERE) != []
    assert proposed(Table(written(GOOD, [[[32, 64], [0, 0], 1000]]), KEY), HERE) == []


@pytest.mark.parametrize("name", ["x" * 300, "nothing"])
def test_a_folder_that_cannot_be_listed_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CUDNNPY_TABLES", str(folder / name))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert measurement_table.table_for(GPU) is None
    assert [name in str(warning.message) for warning in caught] == [True] * (len(name) > 255)


def test_an_engine_that_is_wrong_unless_proposed_is_not_taken_from_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (issue,) = (one for one in known_issues.ISSUES if one.remedy == "not proposed")
    wrong, right = Configuration("", issue.engines[0], None), Configuration("", 7, None)
    (folder / file_name(*KEY)).write_text(write.table([row(HERE, times={wrong: 1.0, right: 1.1, SLOW: 3.0})], *KEY))
    monkeypatch.setattr(
        measurement_table, "candidate_for_engine", lambda _, __, given: SimpleNamespace(engine=given, notes=())
    )
    lowering: Any = SimpleNamespace(suffix="", traits=known_issues.ProblemTraits("forward"))
    assert [one.engine for one in measurement_table.candidates(HERE, [lowering], GPU)] == [Engine(7)]


def test_a_candidate_from_a_table_has_the_time_that_is_expected_of_it(folder: Path, monkeypatch: Any) -> None:
    (folder / file_name(*KEY)).write_text(write.table([row(HERE)], *KEY))
    monkeypatch.setattr(
        measurement_table, "candidate_for_engine", lambda _, __, given: SimpleNamespace(engine=given, notes=())
    )
    lowering: Any = SimpleNamespace(suffix="", traits=known_issues.ProblemTraits("forward"))
    found = measurement_table.candidates(HERE, [lowering], GPU)
    assert [one.expected for one in found] == pytest.approx([1.0, 1.1])  # of the fastest one's


def test_the_tables_of_the_package_can_be_read_and_are_small() -> None:
    files = sorted(Path(measurement_table.__file__).with_name("tables").glob("*"))
    assert files
    for file in files:
        header = json.loads(file.read_text().partition("\n")[0])
        key = header["capability"], header["cudnn"]
        assert file.name == file_name(*key)
        Table(file.read_text(), key)
        assert header["problems"] > 500
        assert file.stat().st_size < 300_000


def test_importing_reads_no_table() -> None:
    program = (
        "import sys, pathlib; real = pathlib.Path.read_text\n"
        "def read(self, *a, **k):\n    assert self.suffix != '.jsonl', self\n    return real(self, *a, **k)\n"
        "pathlib.Path.read_text = read\nimport cudnnpy.convolution.candidates"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_engine_is_proposed_in_the_lowering_in_which_it_was_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, absent = Configuration(" + blocks", 7, None), Configuration(" + copies", 8, None)
    known = row(HERE, times={blocks: 1.0, absent: 1.05, SLOW: 3.0})
    (folder / file_name(*KEY)).write_text(write.table([known], *KEY))
    asked: list[Any] = []
    monkeypatch.setattr(
        measurement_table, "candidate_for_engine", lambda *given: asked.append(given) or SimpleNamespace(notes=())
    )
    facts = known_issues.ProblemTraits("forward")
    plain, other = (SimpleNamespace(suffix=suffix, traits=facts) for suffix in ("", " + blocks"))
    (found,) = measurement_table.candidates(HERE, [plain, other], GPU)  # type: ignore[list-item]
    assert asked == [(other, GPU, Engine(7))]
    assert found.source == "measured for 32x64x56x56, 64 filters"


# With the real libcudnn, which plans for a described device


X, W, Y = (8, 64, 28, 28), (64, 64, 3, 3), (8, 64, 28, 28)
REQUEST: dict[str, Any] = {
    "operation": "forward",
    "first": [X, channels_last_strides(X)],
    "second": [W, channels_last_strides(W)],
    "dtype": "float16",
    "options": {"padding": 1},
}
SOURCE = "measured for 8x64x28x28, 64 filters"


def usable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in rows if not one["refused"]]


class Learned:
    """A planner with a table, in which the third best guess without a table was the fastest for REQUEST."""

    def __init__(self, plain: Planner, start: Callable[[Path, Path], Planner], folder: Path) -> None:
        self.rows, self.folder = plain("survey", **REQUEST), folder
        first, *_ = ranked = [one for one in usable(self.rows) if one["engine"] is not None]
        needy = next(one for one in ranked[1:] if one["workspace_size"] > 0)
        free = next(one for one in ranked[1:] if one["workspace_size"] == 0 and one is not needy)
        self.first, self.winner, self.second = first, needy, free
        times = {self.configuration(one): time for one, time in ((needy, 1.0), (free, 1.1), (first, 3.0))}
        described = features(_made(), False)
        assert described is not None
        release = ".".join(raw.version_text(raw.version()).split(".")[:2])
        learned = Row("", described, frozenset(), times, self.configuration(first))
        (folder / file_name("9.0", release)).write_text(write.table([learned], "9.0", release))
        self.start = start
        self.plan = start(profile(), folder)

    @staticmethod
    def configuration(one: dict[str, Any]) -> Configuration:
        knobs = one["engine"]["knobs"]
        return Configuration("", one["engine"]["index"], knobs and tuple(map(tuple, knobs)))


def _made() -> Any:
    specs = (TensorSpec(shape, "float16", channels_last_strides(shape)) for shape in (X, W, Y))
    return make_problem(ConvolutionOptions(padding=1), "forward", *specs)


@pytest.fixture(scope="module")
def learned(
    plan: Planner, planning_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Learned]:
    folder, started = tmp_path_factory.mktemp("tables"), []

    def start(of: Path, tables: Path) -> Planner:
        errors = tmp_path_factory.mktemp("planner") / "stderr"
        environment = {**planning_environment, "CUDNNPY_TABLES": str(tables)}
        process = _started(
            [(Path(__file__).resolve().parents[2] / "shared" / "planner.py"), of], environment, errors.open("w")
        )
        started.append(process)
        return Planner(process, errors)

    yield Learned(plan, start, folder)
    for process in started:
        process.kill()
        process.communicate()


def with_options(**options: Any) -> dict[str, Any]:
    return {**REQUEST, "options": {**REQUEST["options"], **options}}


def test_what_was_measured_is_taken_first_and_says_so(learned: Learned) -> None:
    chosen = learned.plan("choose", **REQUEST)
    assert (chosen["name"], chosen["source"]) == (learned.winner["name"], SOURCE)


def test_the_table_of_candidates_has_it_first_and_the_others_in_their_order(learned: Learned) -> None:
    rows = learned.plan("survey", **REQUEST)
    proposals = [learned.winner["name"], learned.second["name"]]
    assert [one["name"] for one in rows[:2]] == proposals
    assert [one["source"] for one in rows[:2]] == [SOURCE, SOURCE]
    others = [one["name"] for one in learned.rows if one["name"] not in proposals]
    assert [one["name"] for one in rows[2:]] == others
    assert SOURCE not in [one["source"] for one in rows[2:]]


def test_a_near_problem_is_planned_by_it_too(learned: Learned) -> None:
    shape = (16, 64, 28, 28)
    near = {**REQUEST, "first": [shape, channels_last_strides(shape)]}
    assert learned.plan("choose", **near)["source"] == SOURCE


def test_options_reject_what_was_measured_as_any_other_candidate(learned: Learned) -> None:
    limited = learned.plan("choose", **with_options(prefer="no_workspace"))
    assert (limited["name"], limited["source"]) == (learned.second["name"], SOURCE)
    forced = learned.plan("choose", **with_options(algorithm=learned.first["engine"]))
    assert forced["name"] == learned.first["name"]


def test_a_plan_from_the_table_survives_its_text(learned: Learned) -> None:
    made, again = learned.plan("text", **REQUEST)
    assert made == again
    assert again["source"] == SOURCE


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32"},
        {"first": list(X), "second": list(W)},
        {"activation": "relu"},
        {"beta": 1.0, "out": list(Y)},
    ],
)
def test_problems_that_the_table_does_not_have_keep_the_order_of_the_heuristics(
    plan: Planner, learned: Learned, change: dict[str, Any]
) -> None:
    request = {**REQUEST, **change}
    assert learned.plan("survey", **request) == plan("survey", **request)


def test_engines_and_knobs_that_do_not_exist_change_nothing(learned: Learned, tmp_path: Path) -> None:
    ranked = [learned.configuration(one) for one in usable(learned.rows) if one["engine"] is not None]
    known = next(one for one in ranked if one.knobs)
    assert known.knobs is not None
    most = 2**31 - 1
    absurd = [
        Configuration("", most, None),
        Configuration("", 900, ((2, 5),)),
        known._replace(knobs=tuple((kind, most) for kind, _ in known.knobs)),
        known._replace(knobs=tuple((kind + 1000, value) for kind, value in known.knobs)),
        known._replace(lowering=" + nothing"),
    ]
    described = features(_made(), False)
    assert described is not None
    release = ".".join(raw.version_text(raw.version()).split(".")[:2])
    rows = [Row("", described, frozenset(), {**dict.fromkeys(absurd, 1.0), ranked[0]: 3.0}, ranked[0])]
    (tmp_path / file_name("9.0", release)).write_text(write.table(rows, "9.0", release))
    plan = learned.start(profile(), tmp_path)
    chosen = plan("choose", **REQUEST)
    assert (chosen["name"], chosen["source"]) == (learned.first["name"], learned.first["source"])
    found = [one for one in plan("survey", **REQUEST) if one["source"] == SOURCE or "2147483647" in one["name"]]
    assert len(found) >= 3
    assert all(one["refused"] for one in found)


def test_on_another_architecture_the_order_is_that_of_the_heuristics(learned: Learned, tmp_path: Path) -> None:
    described = tmp_path / "other.json"
    described.write_text(profile().read_text().replace('"deviceVer": 900', '"deviceVer": 800'))
    assert '"deviceVer": 800' in described.read_text()
    other, plain = learned.start(described, learned.folder), learned.start(described, tmp_path)
    assert other("survey", **REQUEST) == plain("survey", **REQUEST)


def test_tuning_measures_what_the_table_proposes(learned: Learned) -> None:
    times = {one["name"]: 5.0 for one in learned.rows}
    found = learned.plan("choose", **with_options(prefer="autotune"), times={**times, learned.winner["name"]: 1.0})
    assert (found["name"], found["milliseconds"]) == (learned.winner["name"], 1.0)
