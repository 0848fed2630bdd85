"""Known issues of cuDNN's engines: each has an effect on its side of its condition alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from issue_graphs import RIGHT, WRONG, Make, attention, attention_gradient, attention_nodes, random_arrays
from planning import Planner
from sample_graphs import GRAPHS, as_graph
from stored import fault
from test_rows import ROOT

from cudnnpy import Graph, TensorSpec
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import make_problem
from cudnnpy._core.layouts import channels_last_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._layers.lowerings.convolution_lowerings import ConvolutionLowering
from cudnnpy._planning import candidates, known_issues
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy._planning.known_issues import ISSUES, Issue
from cudnnpy.graph.problem import GraphLowering, GraphProblem
from cudnnpy.reference import tolerance
from cudnnpy.store import Store
from tools import known_issues as page

X, W, Y = (2, 8, 5, 5), (6, 8, 3, 3), (2, 6, 3, 3)
ONE = (2, 8, 3, 3), W, (2, 6, 1, 1)
GAPS = tuple(2 * stride for stride in (200, 25, 5, 1))
THREE = (2, 8, 5, 5, 5), (6, 8, 1, 3, 3), (2, 6, 5, 3, 3)  # three spatial axes
POINTS = (2, 8, 5, 5, 5), (6, 8, 1, 1, 1), (2, 6, 5, 5, 5)
DEPTHWISE = X, (8, 1, 3, 3), (2, 8, 3, 3)
GROUPED = X, (6, 4, 3, 3), Y  # with 2 groups
LONG = (2, 8, 200), (6, 4, 129), (2, 6, 72)  # with 2 groups
PADDED = (2, 8, 4, 5)  # x with which padding ((1, 0), 0) gives Y
ON_A_GPU = Target(handle=object())  # type: ignore[arg-type]
COMPILED = "runtime_compilation"

OPERATIONS = ("forward", "backward_data", "backward_filter")

Asked = ConvolutionProblem | GraphProblem


def problem(operation: str = "forward", shapes: Any = (X, W, Y), **how: Any) -> ConvolutionProblem:
    """A problem; `last` of its tensors, all or one of "xwy", are channels last, and `strides` are those of x."""
    dtype, result, last = how.pop("dtype", "float32"), how.pop("result", None), how.pop("last", "")
    alignment, strides = how.pop("alignment", 16), how.pop("strides", None)
    options = ConvolutionOptions(padding=how.pop("padding", 0), groups=how.pop("groups", 1))
    x, w, y = (
        TensorSpec(shape, dtype, channels_last_strides(shape) if name in last else None, alignment)
        for name, shape in zip("xwy", shapes, strict=True)
    )
    x, y = x._replace(strides=strides or x.strides), y._replace(dtype=result or dtype)
    if how.pop("bias", False):
        how["bias"] = TensorSpec((w.shape[0],), dtype)
    return ConvolutionProblem(*make_problem(options, operation, x, w, y, **how))


def convolved(mode: str | None = "relu_fwd", strides: Any = None, dtype: str = "float16") -> GraphProblem:
    """A convolution with an activation, as a graph."""
    g = Graph()
    x, w = (g.tensor(name, TensorSpec(shape, dtype)) for name, shape in (("x", X), ("w", W)))
    y = g.convolution(x, w)
    g.output("y", y if mode is None else g.pointwise(mode, y), strides=strides)
    return as_graph(g)


def activated(mode: str) -> GraphProblem:
    g = Graph()
    g.output("y", g.pointwise(mode, g.tensor("x", TensorSpec(X, "float16"))))
    return as_graph(g)


def misaligned(asked: GraphProblem) -> GraphProblem:
    tensors = tuple(one._replace(spec=one.spec._replace(alignment=4)) for one in asked.graph.tensors)
    return replace(asked, graph=asked.graph._replace(tensors=tensors))


def reduced(op: str) -> GraphProblem:
    g = Graph()
    g.output("y", g.reduction(op, g.tensor("x", TensorSpec(X, "float16", channels_last_strides(X))), (2, 3)))
    return as_graph(g)


def of_graph(make: Make) -> GraphProblem:
    g = Graph()
    make(g)
    return as_graph(g)


def of_graphs(name: str, engine: int, *notes: str) -> tuple[int, tuple[str, ...], list[Asked], list[Asked]]:
    """The sides of an issue of graphs."""
    return engine, notes, [of_graph(make) for make in WRONG[name]], [of_graph(make) for make in RIGHT[name]]


# id: (an engine that has it, its notes, problems that it gets wrong, the nearest that it is trusted with)
SIDES: dict[str, tuple[int, tuple[str, ...], list[Asked], list[Asked]]] = {
    "converted-to-float16": (
        65,
        ("tensor_core", "down_convert_inputs"),
        [problem(name, dtype=dtype) for name in OPERATIONS for dtype in ("float32", "float64")]
        + [convolved(dtype="float32"), reduced("add")],
        [problem(name, dtype="float16") for name in OPERATIONS] + [convolved()],
    ),
    "weight-gradient-nan": (70, ("tensor_core",), [problem("backward_filter")], [problem(), problem("backward_data")]),
    "weight-gradient-texture": (
        20,
        ("texture",),
        [problem("backward_filter", GROUPED, groups=2), problem("backward_filter", dtype="bfloat16", last="xwy")],
        [problem("backward_filter"), problem(shapes=GROUPED, groups=2)],
    ),
    "depthwise-endless": (
        3,
        (),
        [problem(name, DEPTHWISE, groups=8, last="xwy") for name in ("forward", "backward_filter")],
        [problem(shapes=GROUPED, groups=2), problem("backward_filter")],
    ),
    "weight-gradient-misaligned": (
        67,
        (),
        [problem("backward_filter", alignment=4)],
        [problem("backward_filter"), problem(alignment=4)],
    ),
    "data-gradient-unwritten": (78, (), [problem("backward_data")], [problem("backward_filter"), problem()]),
    "forward-gaps": (
        71,
        (),
        [problem(strides=GAPS)],
        [problem(), problem(last="xwy"), problem(strides=(400, 1, 80, 16), last="wy")],
    ),
    "forward-alpha": (
        71,
        (),
        [problem(shapes=ONE, alpha=0.5), problem(alpha=0.5), problem(last="xwy", alpha=-1.0)],
        [problem(shapes=ONE), problem(), problem(last="xwy", beta=0.5)],
    ),
    "fused-tanh": (
        0,
        (),
        [problem(activation="tanh"), problem(activation="tanh", bias=True), convolved("tanh_fwd")],
        [problem(activation="relu"), convolved("relu_fwd"), activated("tanh_fwd")],
    ),
    "int8-to-int32": (
        1,
        (),
        [problem(dtype="int8", result="int32", last="xwy"), problem(dtype="int8", result="int32")],
        [problem(dtype="int8", result="float32", last="xwy"), problem()],
    ),
    "int8-to-float32": (
        1,
        ("tensor_core",),
        [problem(dtype="int8", result="float32")],
        [problem(dtype="int8", result="float32", last="xwy"), problem(dtype="int8", result="int32"), problem()],
    ),
    "graph-orders": (
        5,
        (COMPILED,),
        [as_graph(GRAPHS["one_position_beside_channels_first"](Graph())), convolved(strides=channels_last_strides(Y))],
        [as_graph(GRAPHS["one_position_channels_last"](Graph())), convolved(), convolved(None)],
    ),
    "fused-orders": (
        5,
        (COMPILED,),
        [problem(activation="relu", last="x"), problem(shapes=ONE, bias=True), problem(activation="relu", last="y")],
        [
            *(problem(activation="relu"), problem(activation="relu", last="xwy"), problem(last="x")),
            problem(shapes=ONE, bias=True, activation="relu", last="xwy"),
        ],
    ),
    "fused-misaligned": (
        5,
        (COMPILED,),
        [problem(activation="relu", alignment=4), problem(bias=True, last="xwy", alignment=8)],
        [problem(activation="relu"), problem(alignment=4)],
    ),
    "graph-misaligned": (
        5,
        (COMPILED,),
        [misaligned(convolved()), misaligned(convolved("tanh_fwd"))],
        [convolved(), misaligned(activated("relu_fwd"))],
    ),
    "gradient-padding": (
        20,
        (),
        [problem(name, (PADDED, W, Y), padding=((1, 0), 0)) for name in ("backward_data", "backward_filter")],
        [
            problem("backward_filter", ((2, 8, 3, 3), W, Y), padding=1),
            problem(shapes=(PADDED, W, Y), padding=((1, 0), 0)),
        ],
    ),
    "data-gradient-beta": (22, (), [problem("backward_data", beta=0.5)], [problem("backward_data", alpha=0.5)]),
    "weight-gradient-beta": (20, (), [problem("backward_filter", beta=0.5)], [problem("backward_filter", alpha=0.5)]),
    "graph-sums": (1, (COMPILED,), [reduced("add"), reduced("norm2")], [reduced("max"), reduced("amax"), convolved()]),
    "forward-not-proposed": (72, (), [problem()], [problem("backward_data")]),
    "fused-bias-tf32": (26, (), [problem(bias=True)], [problem(), problem(bias=True, dtype="float16")]),
    "graph-broadcast": of_graphs("graph-broadcast", 4, COMPILED),
    "graph-first": of_graphs("graph-first", 7),
    "graph-first-operand": of_graphs("graph-first-operand", 4, COMPILED),
    "graph-formats": of_graphs("graph-formats", 1),
    "graph-activation-gradient": of_graphs("graph-activation-gradient", 8),
    "graph-comparison": of_graphs("graph-comparison", 1, COMPILED),
    "graph-resampled-result": of_graphs("graph-resampled-result", 1, COMPILED),
    "graph-resampled-sums": of_graphs("graph-resampled-sums", 1, COMPILED),
    "graph-index-rows": of_graphs("graph-index-rows", 7, COMPILED),
    "graph-index-columns": of_graphs("graph-index-columns", 2),
    "attention-gradient": of_graphs("attention-gradient", 7),
    "attention-head-sizes": of_graphs("attention-head-sizes", 6),
    "attention-one-query": (
        1,
        ("stream_k",),
        [
            *(of_graph(partial(attention, queries=1, keys=keys)) for keys in (600, 64)),
            *(of_graph(partial(attention_nodes, is_whole=is_whole)) for is_whole in (False, True)),
        ],
        [
            *map(of_graph, (attention, attention_gradient)),
            *(of_graph(partial(attention_nodes, queries=2, is_whole=is_whole)) for is_whole in (False, True)),
        ],
    ),
    "attention-shared-keys": of_graphs("attention-shared-keys", 1),
    "graph-float8-number": of_graphs("graph-float8-number", 0),
    "graph-int8-rows": of_graphs("graph-int8-rows", 7, COMPILED),
    "graph-block-scales": of_graphs("graph-block-scales", 7),
    "three-axes-half": (
        41,
        ("tensor_core",),
        [problem(shapes=THREE, dtype=dtype) for dtype in ("bfloat16", "float16")],
        [
            problem(shapes=THREE, dtype="bfloat16", last="xwy"),
            problem(shapes=POINTS, dtype="bfloat16"),
            problem(dtype="bfloat16"),
            problem("backward_filter", THREE, dtype="bfloat16"),
        ],
    ),
    "three-axes-tf32": (
        41,
        ("tensor_core",),
        [problem(name, THREE, last=last) for name in OPERATIONS for last in ("", "xwy")],
        [problem(), problem(shapes=THREE, dtype="float16", last="xwy"), problem(shapes=THREE, dtype="float64")],
    ),
    "long-filters": (
        0,
        (),
        [problem(shapes=LONG, groups=2, last=last) for last in ("", "xwy")],
        [
            problem(shapes=((2, 8, 200), (6, 4, 128), (2, 6, 73)), groups=2),
            problem(shapes=((2, 4, 200), (6, 4, 129), (2, 6, 72))),
            problem(shapes=LONG, groups=2, dtype="float16"),
        ],
    ),
    "fused-bias-float32": (
        14,
        (),
        [problem(bias=True), problem(bias=True, activation="relu")],
        [problem(), problem(bias=True, last="xwy"), problem(bias=True, shapes=(Y, (6, 6, 1, 1), Y))],
    ),
}


@pytest.fixture(autouse=True)
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Candidate]]:
    """Whatever the problem, the heuristics propose one engine: its candidates, in every lowering."""

    def candidates_of(asked: Asked, engine: int, *notes: str) -> list[Candidate]:
        found = SimpleNamespace(
            engine=engine,
            knobs=None,
            name=f"engine {engine}",
            notes=notes,
            numerical_notes=tuple(note for note in notes if note != COMPILED),
            behavior_notes=(COMPILED,) if COMPILED in notes else (),
            finalize=None,
        )
        monkeypatch.setattr(candidates, "heuristics", lambda *_: [found])
        for kind in (GraphLowering, ConvolutionLowering):
            monkeypatch.setattr(kind, "build_graph", lambda *_: None)
        return list(asked.proposed_candidates(ON_A_GPU))

    return candidates_of


def has_remedy(issue: Issue, asked: Asked, found: list[Candidate]) -> bool:
    """Whether a problem's candidates, with the fewest launches first, are what an issue's remedy makes of them."""
    copied = all(candidate.name.endswith(" + copies") for candidate in found)
    reasons = sorted(
        {candidate.rejection_reason for candidate in found}
    )  # of a convolution's lowerings, one is rejected
    return {
        "rejected": reasons == (["", issue.reason] if reasons[1:] else [issue.reason]),
        "not called deterministic": not any(candidate.deterministic for candidate in found),
        "not fused": all("epilogue" in candidate.name for candidate in found),
        "padded": copied,
        "added apart": copied,
        "not proposed": True,  # test_candidates.py
        "accepted": not any(candidate.rejection_reason for candidate in found),
    }[issue.remedy]


@pytest.fixture
def release(issue: Issue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loaded release is one that the table gives the issue to, which others reported in old releases alone."""
    number = issue.measured[0][0] if issue.measured else issue.assumed[0]
    monkeypatch.setattr(known_issues.raw, "version", lambda: number)


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("issue", ISSUES, ids=lambda issue: issue.id)
def test_an_issue_decides_where_its_condition_holds_and_nowhere_else(issue: Issue, offer: Any) -> None:
    engine, notes, wrong, right = SIDES[issue.id]
    for asked in wrong:
        assert issue.condition(asked.traits)
        assert has_remedy(issue, asked, offer(asked, engine, *notes)), asked
    for asked in right:
        assert not (issue.condition(asked.traits) and asked.traits.operation in issue.operations)
        found = offer(asked, engine, *notes)
        assert found
        assert [candidate.rejection_reason for candidate in found if candidate.rejection_reason] == []
        if issue.remedy not in ("rejected", "accepted", "not proposed"):
            assert not has_remedy(issue, asked, found), asked


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("issue", [issue for issue in ISSUES if issue.remedy == "rejected"], ids=lambda issue: issue.id)
def test_an_engine_of_another_kind_is_trusted(issue: Issue, offer: Any) -> None:
    _, notes, wrong, _ = SIDES[issue.id]
    other = {"with tensor cores": (), "without tensor cores": ("tensor_core",)}.get(issue.kind or "", ("winograd",))
    engine = 99 if issue.kind is None else SIDES[issue.id][0]
    assert other != notes
    for asked in wrong:
        assert not any(candidate.rejection_reason for candidate in offer(asked, engine, *other))


@pytest.mark.parametrize("name", WRONG)
def test_the_graphs_of_an_issue_are_evaluated(name: str) -> None:
    """tests/gpu/known_issue_problems.py compares an engine with NumPy's results."""
    for make in (*WRONG[name], *RIGHT[name]):
        g = Graph()
        make(g)
        g.problem()
        allowed = tolerance(g, random_arrays(g))
        assert all(np.isfinite(one).mean() > 0.9 for one in allowed.values())


def test_graphs_that_add_are_not_called_deterministic_only_if_they_are_compiled(offer: Any) -> None:
    for notes, deterministic in (((COMPILED,), False), ((), True), (("nondeterministic",), False)):
        assert [candidate.deterministic for candidate in offer(reduced("add"), 1, *notes)] == [deterministic]


# Releases


@pytest.mark.parametrize(
    ("release", "assumed", "rejected"),
    [
        (91900, (90000, None), True),
        (90000, (90000, None), True),
        (93500, (90000, None), True),
        (92800, (90000, 92800), False),
        (92799, (90000, 92800), True),
        (91800, (91900, None), False),
        (91900, (92000, 92800), True),  # where it was measured
    ],
)
def test_an_issue_is_in_the_releases_measured_and_assumed(
    release: int, assumed: Any, rejected: bool, monkeypatch: pytest.MonkeyPatch, offer: Any
) -> None:
    issue = next(issue for issue in ISSUES if issue.id == "data-gradient-unwritten")
    monkeypatch.setattr(known_issues, "ISSUES", (issue._replace(assumed=assumed),))
    monkeypatch.setattr(known_issues.raw, "version", lambda: release)
    (found,) = offer(problem("backward_data"), 78)
    newer = " (assumed: not measured for 9.35.0)" if release == 93500 else ""
    assert found.rejection_reason == (issue.reason + newer if rejected else "")


@pytest.mark.parametrize(
    ("release", "note"),
    [
        (91902, ""),
        (92800, "were measured with cuDNN 9.19.0, and are assumed in 9.28.0"),
        (92900, "were measured with cuDNN 9.19.0, and are assumed in 9.29.0, which is newer than the table (9.28.0)"),
    ],
)
def test_a_release_in_which_issues_are_assumed_is_said(
    release: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_issues.raw, "version", lambda: release)
    assert known_issues.release_note().endswith(note)
    assert bool(note) == bool(known_issues.release_note())


def test_a_release_without_a_lowerings_issue_plans_the_whole_problem(
    monkeypatch: pytest.MonkeyPatch, offer: Any
) -> None:
    repaired = tuple(issue._replace(assumed=(90000, 91900), measured=()) for issue in ISSUES)
    monkeypatch.setattr(known_issues, "ISSUES", repaired)
    monkeypatch.setattr(known_issues.raw, "version", lambda: 91900)
    for name in ("fused-misaligned", "gradient-padding"):
        engine, notes, (asked, *_), _ = SIDES[name]
        assert offer(asked, engine, *notes)[0].name == f"engine {engine}"


# The table


def test_every_issue_has_problems_on_both_sides_of_it() -> None:
    assert [issue.id for issue in ISSUES] == list(SIDES)
    assert all(wrong and right for *_, wrong, right in SIDES.values())
    for issue in ISSUES:
        engine, notes, wrong, _ = SIDES[issue.id]
        assert issue.is_of(engine, notes)
        assert {asked.traits.operation for asked in wrong} == set(issue.operations)


def test_every_issue_was_measured_or_reported_for_releases_that_end() -> None:
    for issue in ISSUES:
        assert issue.measured or (issue.source.startswith("https://") and issue.assumed[1] is not None)
        assert page.condition_text(issue)


def test_where_tensor_cores_are_rejected_copies_that_can_use_them_come_first(
    offer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = problem(shapes=THREE, dtype="bfloat16")
    for release, suffixes in ((91002, [" + channels last", ""]), (91500, ["", " + channels last"])):
        monkeypatch.setattr(known_issues.raw, "version", lambda release=release: release)
        assert [candidate.name for candidate in offer(asked, 41, "tensor_core")] == [f"engine 41{s}" for s in suffixes]


# Problems at which others reported engines: operation, x or dy, w or x, and the rest
REPORTED: dict[str, list[dict[str, Any]]] = {
    "three-axes-half": [
        {"first": [1, 16, 124, 1282, 722], "second": [16, 16, 1, 3, 3], "dtype": "bfloat16"},
        {"first": [2, 32, 9, 16, 16], "second": [64, 32, 3, 3, 3], "dtype": "float16"},
    ],
    "three-axes-tf32": [
        {"first": [2, 32, 9, 16, 16], "second": [64, 32, 3, 3, 3]},
        {
            "operation": "backward_data",
            "first": [2, 64, 7, 14, 14],
            "second": [64, 32, 3, 3, 3],
            "shape": [2, 32, 9, 16, 16],
        },
        {
            "operation": "backward_filter",
            "first": [2, 64, 7, 14, 14],
            "second": [2, 32, 9, 16, 16],
            "shape": [64, 32, 3, 3, 3],
        },
    ],
    "long-filters": [{"first": [7, 3072, 2500], "second": [3072, 512, 129], "options": {"groups": 6, "padding": 64}}],
    "fused-bias-float32": [
        {"first": [512, 512, 7, 7], "second": [512, 512, 3, 3], "bias": [512], "options": {"padding": 1}}
    ],
}


@pytest.mark.parametrize("issue", [issue for issue in ISSUES if not issue.measured], ids=lambda issue: issue.id)
def test_a_reported_issue_leaves_engines_to_its_problems(issue: Issue, plan: Planner) -> None:
    for request in REPORTED[issue.id]:
        rows = [row for row in plan("survey", **{"operation": "forward", **request}) if row["planned"]]
        left = [row for row in rows if not issue.is_of(row["engine"]["index"], row["notes"])]
        assert len(left) < len(rows) or issue.engines == (14,)  # which newer releases do not offer for it
        assert left, (request, [row["name"] for row in rows])


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / page.PAGE).read_text() == page.rendered()


def test_faults_are_listed_by_engine_for_a_developer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store.jsonl"
    with Store(path) as store:
        store.add_faults(
            [fault(1), fault(2, candidate="engine 20", symptom="context lost"), fault(3, candidate="engine 3")]
        )
        store.add_faults([fault(1, candidate="engine 3 + copies", symptom="wrong result")])
    written = (page.ROOT / page.PAGE).read_bytes()
    assert page.main(["--faults", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    seen = "with cuDNN 9.19.0 on an NVIDIA H200"
    assert lines[0] == f"engine 3: 2 limit exceeded {seen}; 1 wrong result {seen}"
    assert lines[1].strip() == f"{fault(1).text}: engine 3 (multiply=1): limit exceeded: no end after 2.0 s"
    assert (lines[4], len(lines)) == (f"engine 20: 1 context lost {seen}", 6)
    assert (page.ROOT / page.PAGE).read_bytes() == written
