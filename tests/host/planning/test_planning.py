"""Candidates, filters, preferences, sizes and texts of the graph API, with the real libcudnn and no GPU.

cuDNN plans for a device that JSON describes to it. A process of its own does it (planner.py), with a stand-in for the
driver that is compiled here; it answers one request at a time.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from planning import Planner, Refused

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text

# What is asked


def problem(
    operation: str = "forward",
    x: tuple[int, ...] = (8, 64, 28, 28),
    w: tuple[int, ...] = (64, 64, 3, 3),
    y: tuple[int, ...] = (8, 64, 28, 28),
    dtype: str = "float32",
    *,
    last: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A request, from logical shapes; `last`: channels last in memory."""

    def tensor(shape: tuple[int, ...]) -> Any:
        strides, step = [0] * len(shape), 1
        for axis in [1, *reversed(range(2, len(shape))), 0]:
            strides[axis] = step
            step *= shape[axis]
        return [shape, strides] if last else list(shape)

    first, second, shape = {
        "forward": (x, w, None),
        "backward_data": (y, w, x),
        "backward_filter": (y, x, w),
    }[operation]
    request = {"operation": operation, "first": tensor(first), "second": tensor(second), "shape": shape, "dtype": dtype}
    options = {"padding": 1, **more.pop("options", {})}
    return {**request, "options": options, **more}


def with_options(request: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**request, "options": {**request["options"], **options}}


SMALL: Any = {"x": (2, 16, 8, 8, 8), "w": (16, 16, 3, 3, 3), "y": (2, 16, 8, 8, 8)}
LINE: Any = {"x": (8, 64, 28), "w": (64, 64, 3), "y": (8, 64, 28)}
PROBLEMS: dict[str, dict[str, Any]] = {
    **{f"{operation} float32": problem(operation) for operation in ("forward", "backward_data", "backward_filter")},
    **{
        f"{operation} {dtype} channels last": problem(operation, dtype=dtype, last=True)
        for operation in ("forward", "backward_data", "backward_filter")
        for dtype in ("float16", "bfloat16", "float32")
    },
    "float64": problem(dtype="float64"),
    "float64 backward_filter": problem("backward_filter", dtype="float64"),
    "one axis": problem(**LINE),
    "one axis backward_data": problem("backward_data", **LINE, dtype="float16", last=True),
    "three axes": problem(**SMALL),
    "three axes backward_filter": problem("backward_filter", **SMALL, dtype="bfloat16", last=True),
    "groups": problem(w=(64, 16, 3, 3), options={"groups": 4}),
    "depthwise": problem(w=(64, 1, 3, 3), dtype="float16", last=True, options={"groups": 64}),
    "stride and dilation": problem(y=(8, 64, 13, 13), options={"stride": 2, "dilation": 2}),
    "asymmetric": problem(options={"padding": [[0, 2], [2, 0]]}),
    "flipped": problem(options={"mode": "convolution"}),
    "bias and relu": problem(dtype="float16", last=True, bias=[64], activation="relu"),
    "bias": problem(last=True, bias=[64]),
    "sigmoid": problem(dtype="float16", last=True, activation="sigmoid"),
    "beta": problem(out=[8, 64, 28, 28], beta=1.0),
    "a filter with gaps": {**problem(), "second": [[64, 64, 3, 3], [64 * 18, 18, 6, 2]]},
}
every_problem = pytest.mark.parametrize("name", PROBLEMS)
# Of each way in which candidates are built and rejected
ONE_OF_EACH_KIND = ["forward float32", "backward_data float16 channels last", "float64", "one axis", "depthwise"]
ONE_OF_EACH_KIND += ["asymmetric", "bias and relu", "beta", "a filter with gaps"]
FREE = 1 << 37


def usable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not row["refused"]]


def is_tf32(row: dict[str, Any]) -> bool:
    return not {"tensor_core", "down_convert_inputs"}.isdisjoint(row["notes"])


# Descriptors that need an engine library to be finalized (the others are in test_backend.py)


# Candidates


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_planning_leaves_no_traceback(plan: Planner, name: str) -> None:
    """Its frames would keep the arrays of the callers until garbage collection."""
    assert plan("tracebacks", **PROBLEMS[name]) == 0


@every_problem
def test_every_candidate_is_listed_once_and_planned_or_refused(plan: Planner, name: str) -> None:
    rows = plan("survey", **PROBLEMS[name])
    assert len(usable(rows)) >= 2
    assert len({row["name"] for row in rows}) == len(rows)
    sources = [row["source"] for row in rows]
    assert {"heuristics"} <= set(sources) <= {"heuristics", "engines"}
    assert sources == sorted(sources, reverse=True)  # heuristics, then every other engine
    for row in rows:
        assert row["planned"] == (not row["refused"])
        assert row["refused"] or row["workspace_size"] >= 0
        assert row["refused"] == "" or len(row["refused"]) > 10
        assert row["deterministic"] == ("nondeterministic" not in row["notes"])
        assert row["milliseconds"] is None
        if row["engine"] is None:
            continue
        assert row["name"].startswith(f"engine {row['engine']['index']}")
        assert (row["kind"] == "GraphExecutable") == (row["planned"] and " + " not in row["name"])
        assert row["name"].count("=") == len(row["engine"]["knobs"] or ())


@every_problem
def test_engines_that_may_read_textures_are_not_relocatable(plan: Planner, name: str) -> None:
    """A texture is an object of cuDNN's, which it makes for an address and does not keep."""
    texture = str(int(raw.CUDNN_KNOB_TYPE_USE_TEX))
    for row in usable(plan("survey", **PROBLEMS[name])):
        if row["kind"] == "GraphExecutable":
            chosen = {str(kind): value for kind, value in row["engine"]["knobs"] or ()}
            has_textures = texture in plan("knobs", **PROBLEMS[name], index=row["engine"]["index"])
            assert row["is_relocatable"] == (not has_textures or chosen.get(texture) == 0), row["name"]


def test_engines_are_found_that_the_heuristics_leave_out(plan: Planner) -> None:
    request = PROBLEMS["forward float32"]
    known = plan("engines", **request)
    listed = {row["engine"]["index"] for row in plan("survey", **request) if row["engine"]}
    assert set(known["proposed"]) < listed <= set(range(known["count"]))
    assert known["proposed"][:1] == known["best"]  # not a fallback


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "a filter with gaps"])
def test_engines_that_do_not_take_a_graph_are_listed_together_with_cudnns_reason(plan: Planner, name: str) -> None:
    request, count = PROBLEMS[name], plan("engines", **PROBLEMS[name])["count"]
    rows = plan("survey", **request)
    plain = [row for row in rows if not re.search(r" \+ ", row["name"])]
    together = [row for row in plain if row["engine"] is None]
    assert all(re.fullmatch(r"not supported here: CUDNN_STATUS_\w+ \([34]\d\d\d\)", row["refused"]) for row in together)
    assert len({row["refused"] for row in together}) == len(together)
    others = {
        number
        for row in together
        for part in re.sub("engines? ", "", row["name"]).split(", ")
        for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }
    listed = {row["engine"]["index"] for row in plain if row["engine"]}
    if plain:
        assert listed | others == set(range(count))
        assert not listed & others


def test_one_axis_is_planned_as_a_picture_of_height_1(plan: Planner) -> None:
    picture = problem(x=(8, 64, 1, 28), w=(64, 64, 1, 3), y=(8, 64, 1, 28), options={"padding": [0, 1]})
    keys = ("name", "workspace_size", "refused", "notes")
    line, flat = (
        [tuple(row[key] for key in keys) for row in plan("survey", **r)] for r in (PROBLEMS["one axis"], picture)
    )
    assert line == flat


# Filters


@every_problem
def test_filters_leave_out_what_they_say_and_nothing_else(plan: Planner, name: str) -> None:
    request = PROBLEMS[name]
    rows = {row["name"]: row for row in plan("survey", **request)}
    float32 = request["dtype"] == "float32"
    for deterministic, tf32 in ((True, True), (False, False), (True, False)):
        filtered = plan("survey", **with_options(request, deterministic=deterministic, tf32=tf32))
        assert {row["name"] for row in filtered} == set(rows)
        for row in filtered:
            before = rows[row["name"]]
            if deterministic and not row["deterministic"]:
                expected = "not deterministic"
            elif not tf32 and float32 and is_tf32(row):
                expected = "uses tf32"
            else:
                expected = before["refused"]
            assert row["refused"] in (expected, before["refused"]), row
            assert bool(row["refused"]) == bool(expected or before["refused"])


# The four preferences


@every_problem
def test_limits_are_kept_to_the_byte(plan: Planner, name: str) -> None:
    request = PROBLEMS[name]
    rows = usable(plan("survey", **request))
    sizes = sorted({row["workspace_size"] for row in rows})
    for size in {sizes[0], sizes[len(sizes) // 2], sizes[-1]}:
        for limit in (size, size - 1):
            if limit < 0:
                continue
            fitting = [row for row in rows if row["workspace_size"] <= limit]
            asked = (
                with_options(request, prefer="limited_workspace", workspace_limit=limit),
                with_options(request, prefer="fastest", workspace_limit=limit),
                {**request, "free": limit},  # the device has no more than that
                {**with_options(request, prefer="limited_workspace", workspace_limit=FREE), "free": limit},
            )
            for given in asked:
                if fitting:
                    chosen = plan("choose", **given)
                    assert (chosen["name"], chosen["workspace_size"]) == (
                        fitting[0]["name"],
                        fitting[0]["workspace_size"],
                    )
                else:
                    with pytest.raises(Refused, match=f"at most {re.escape(bytes_text(limit))} of workspace"):
                        plan("choose", **given)


@every_problem
def test_no_workspace_takes_the_first_that_needs_none(plan: Planner, name: str) -> None:
    request = with_options(PROBLEMS[name], prefer="no_workspace", workspace_limit=1 << 30)
    none = [row for row in usable(plan("survey", **PROBLEMS[name])) if row["workspace_size"] == 0]
    if none:
        chosen = plan("choose", **request)
        assert (chosen["name"], chosen["workspace_size"]) == (none[0]["name"], 0)
    else:
        with pytest.raises(Refused, match=r"(?s)NoAlgorithmError.*needs .*, the limit is 0 bytes") as caught:
            plan("choose", **request)
        assert caught.value.kind == "NoAlgorithmError"


def test_limited_workspace_without_a_number_is_1_gib(plan: Planner) -> None:
    large = problem(x=(512, 64, 56, 56), y=(512, 64, 56, 56))
    rows = plan("survey", **with_options(large, prefer="limited_workspace"))
    free = plan("survey", **large)
    too_large = {row["name"] for row in usable(free) if row["workspace_size"] > 1 << 30}
    assert too_large
    left_out = {row["name"]: row["refused"] for row in rows if row["refused"]}
    assert too_large == set(left_out) - {row["name"] for row in free if row["refused"]}
    for name in too_large:
        assert re.fullmatch(r"needs [\d.]+ GiB, the limit is 1 GiB", left_out[name])


@pytest.mark.parametrize("prefer", ["fastest", "limited_workspace"])
def test_what_the_device_turned_out_to_have_is_a_limit_too(plan: Planner, prefer: str) -> None:
    request = with_options(PROBLEMS["forward float32"], prefer=prefer, workspace_limit=FREE)
    rows = usable(plan("survey", **request))
    largest = max(rows, key=lambda row: row["workspace_size"])
    fitting = [row for row in rows if row["workspace_size"] < largest["workspace_size"]]
    rows[:0] = [largest]  # as if it were the best guess
    before = largest["engine"]
    assert plan("choose", **request, before=before)["name"] == largest["name"]
    assert (
        plan("choose", **request, before=before, memory_limit=largest["workspace_size"] - 1)["name"]
        == fitting[0]["name"]
    )


# autotune, with times in place of a clock


def test_autotune_plans_an_epilogue_once(plan: Planner) -> None:
    """Its engine is compiled at run time, for each of the candidates without it."""
    request = with_options(PROBLEMS["bias and relu"], prefer="autotune")
    names = [row["name"] for row in usable(plan("survey", **request))]
    assert len([name for name in names if name.endswith(" + epilogue")]) > 1
    assert plan("choose", **request, times=dict.fromkeys(names, 1.0))["graphs"].count("epilogue") == 1


def test_autotune_measures_within_the_limit_and_the_filters(plan: Planner) -> None:
    request = PROBLEMS["backward_filter float32"]
    rows = usable(plan("survey", **request))
    limit = sorted(row["workspace_size"] for row in rows)[len(rows) // 2]
    narrow = with_options(request, prefer="autotune", workspace_limit=limit, deterministic=True)
    wanted = [row["name"] for row in rows if row["workspace_size"] <= limit and row["deterministic"]]
    assert 0 < len(wanted) < len(rows)
    chosen = plan("choose", **narrow, times={row["name"]: 1.0 for row in rows})
    assert sorted(chosen["seen"][: len(wanted)]) == sorted(wanted)
    assert not {row["name"] for row in rows}.intersection(chosen["seen"][len(wanted) :])


# The table that says why not


@pytest.mark.parametrize(
    "request_",
    [
        problem(w=(64, 1, 3, 3), dtype="int8", last=True, options={"groups": 64}),
        with_options(problem(last=True, dtype="bfloat16"), algorithm={"index": 10_000}),
        with_options(problem(), algorithm="winograd"),
    ],
    ids=["not supported", "no such engine", "no GPU"],
)
def test_the_table_has_a_line_for_every_candidate_and_says_why(plan: Planner, request_: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        plan("choose", **request_)
    _check_table(caught.value)
    assert re.search(r"not supported here: CUDNN_STATUS_\w+ \(\d+\)|need a GPU", caught.value.text)


def _check_table(refused: Refused) -> None:
    assert refused.kind == "NoAlgorithmError"
    title, wanted, header, *lines = refused.text.splitlines()
    assert title.startswith(("no algorithm for forward ", "no algorithm for backward_filter "))
    assert wanted.startswith("  asked for: prefer=")
    assert header.split() == [
        "candidate",
        "source",
        "workspace",
        "ms",
        "deterministic",
        "notes",
        "left",
        "out",
        "because",
    ]
    assert refused.candidates
    for row in refused.candidates:
        size = "?" if row["workspace_size"] is None else bytes_text(row["workspace_size"])
        notes = ", ".join(note for note in row["notes"] if note != "nondeterministic")
        sure = "yes" if row["deterministic"] else "no"
        assert row["refused"]
        cells = [row["name"], row["source"], size, sure, *filter(None, [notes]), row["refused"]]
        pattern = r"\s+".join(map(re.escape, cells)) + "$"
        assert any(re.match(r"\s+" + pattern, line) for line in lines), (pattern, lines)


# One algorithm, forced


@pytest.mark.parametrize("name", ["forward float32", "backward_data float16 channels last", "groups"])
def test_a_forced_engine_is_the_one_that_is_planned(plan: Planner, name: str) -> None:
    rows = usable(plan("survey", **PROBLEMS[name]))
    with_knobs = [row for row in rows if row["engine"]["knobs"]][:6]
    without = [row for row in rows if not row["engine"]["knobs"]][:6]
    assert with_knobs
    assert without
    for row in (*with_knobs, *without):
        chosen = plan("choose", **with_options(PROBLEMS[name], algorithm=row["engine"]))
        assert chosen["engine"] == row["engine"]
        assert (chosen["name"], chosen["workspace_size"]) == (row["name"], row["workspace_size"])


def test_a_forced_engine_obeys_the_limit_and_the_filters(plan: Planner) -> None:
    rows = usable(plan("survey", **PROBLEMS["forward float32"]))
    row = next(row for row in rows if row["workspace_size"] and is_tf32(row))
    forced = with_options(PROBLEMS["forward float32"], algorithm=row["engine"])
    for option, why in (({"prefer": "no_workspace"}, "the limit is 0 bytes"), ({"tf32": False}, "uses tf32")):
        with pytest.raises(Refused, match=f"(?s)NoAlgorithmError.*{why}") as caught:
            plan("choose", **with_options(forced, **option))
        assert [found["name"] for found in caught.value.candidates] == [row["name"]]


def test_a_knob_out_of_its_range_is_refused(plan: Planner) -> None:
    request = PROBLEMS["forward float32"]
    row = next(row for row in usable(plan("survey", **request)) if row["engine"]["knobs"])
    index, (kind, _) = row["engine"]["index"], row["engine"]["knobs"][0]
    allowed = plan("knobs", **request, index=index)[str(kind)]
    assert dict(row["engine"]["knobs"])[kind] in allowed
    wrong = {"index": index, "knobs": [[kind, max(allowed) + 1000]]}
    with pytest.raises(Refused, match=r"(?s)NoAlgorithmError.*not supported here: CUDNN_STATUS_"):
        plan("choose", **with_options(request, algorithm=wrong))


@pytest.mark.parametrize(
    ("operation", "given"), [("forward", "deterministic"), ("backward_data", "gemm"), ("backward_filter", "gemm")]
)
def test_an_algorithm_by_a_name_that_there_is_not(plan: Planner, operation: str, given: str) -> None:
    with pytest.raises(Refused) as caught:
        plan("choose", **with_options(problem(operation), algorithm=given))
    assert caught.value.kind == "ValueError"
    for part in (
        "algorithm must be one of ",
        f"for {operation}; got {given!r}",
        "fft_tiling",
        "Theano's none",
    ):
        assert part in caught.value.text


@pytest.mark.parametrize(
    ("operation", "given", "name"),
    [
        ("forward", "none", "implicit_gemm"),
        ("forward", "small", "implicit_precomp_gemm"),
        ("forward", "large", "gemm"),
        ("forward", "WINOGRAD_NONFUSED", "winograd_nonfused"),
        ("backward_data", "deterministic", "1"),
        ("backward_data", "algo_0", "0"),
        ("backward_filter", "small", "3"),
        ("backward_filter", "fft", "fft"),
    ],
)
def test_algorithms_by_name_need_a_gpu_and_say_so(plan: Planner, operation: str, given: str, name: str) -> None:
    with pytest.raises(Refused, match="the v7 functions need a GPU") as caught:
        plan("choose", **with_options(problem(operation), algorithm=given))
    assert [(row["name"], row["source"]) for row in caught.value.candidates] == [(name, "legacy")]


# Blocks of pixels

STEM: Any = {
    "x": (32, 3, 224, 224),
    "w": (64, 3, 7, 7),
    "y": (32, 64, 112, 112),
    "options": {"padding": 3, "stride": 2},
}
IN_BLOCKS = 32 * 12 * 115 * 115 + 64 * 12 * 4 * 4  # elements of x and w


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_a_strided_convolution_of_few_channels_may_be_in_blocks(plan: Planner, operation: str, dtype: str) -> None:
    request = problem(operation, dtype=dtype, last=True, **STEM)
    rows = usable(plan("survey", **request))
    blocks = [row for row in rows if row["name"].endswith(" + blocks")]
    assert 3 < len(blocks) < len(rows)
    for row in blocks:
        assert row["kind"] == "StepSequence"
        assert row["workspace_size"] >= IN_BLOCKS * (4 if dtype == "float32" else 2)


def test_an_engine_is_forced_in_blocks_or_without(plan: Planner) -> None:
    request = problem("backward_data", dtype="float16", last=True, **STEM)
    rows = usable(plan("survey", **request))
    for row in [row for row in rows if row["name"].endswith(" + blocks")][:3]:
        assert row["engine"]["space_to_depth"]
        chosen = plan("choose", **with_options(request, algorithm=row["engine"]))
        assert (chosen["name"], chosen["engine"]) == (row["name"], row["engine"])
        assert plan("choose", **request, before=row["engine"])["name"] == row["name"]
    plain = next(row for row in rows if not row["engine"]["space_to_depth"])
    assert plan("choose", **with_options(request, algorithm=plain["engine"]))["name"] == plain["name"]
    for other in (
        PROBLEMS["forward float32"],
        problem("backward_data", **{**STEM, "y": (32, 64, 224, 224), "options": {"padding": 3}}),
    ):
        with pytest.raises(Refused, match="the problem has no space-to-depth lowering"):
            plan("choose", **with_options(other, algorithm={"index": 1, "space_to_depth": True}))


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_half_precision_channels_first_may_be_copied_to_channels_last(plan: Planner, operation: str) -> None:
    request = problem(operation, dtype="float16")
    rows = usable(plan("survey", **request))
    copied = [row for row in rows if row["name"].endswith(" + channels last")]
    assert copied
    assert all(row["engine"]["channels_last_copies"] and row["workspace_size"] > 0 for row in copied)
    assert not any(row["engine"]["channels_last_copies"] for row in rows if row not in copied)
    assert not rows[0]["engine"]["channels_last_copies"]  # only measurement tells
    wanted = [row for row in copied if not row["compiled_at_run_time"]][-1]
    forced = with_options(request, algorithm=wanted["engine"])
    assert plan("choose", **forced)["name"] == wanted["name"]
    for made in plan("text", **forced):
        assert (made["name"], made["engine"]) == (wanted["name"], wanted["engine"])
    tuned = plan(
        "choose", **with_options(request, prefer="autotune"), times={wanted["name"]: 1.0, rows[0]["name"]: 2.0}
    )
    assert tuned["name"] == wanted["name"]
    with pytest.raises(Refused, match="no lowering to channels last"):
        last = problem(operation, dtype="float16", last=True)
        plan("choose", **with_options(last, algorithm={"index": 1, "channels_last_copies": True}))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_depthwise_gradient_may_be_computed_as_forward(plan: Planner, dtype: str) -> None:
    request = problem("backward_data", w=(64, 1, 3, 3), dtype=dtype, options={"groups": 64})
    rows = usable(plan("survey", **request))
    forward = [row for row in rows if row["name"].endswith(" + forward")]
    assert any(row["name"] == "engine 0 + forward" for row in forward)
    assert all(row["engine"]["flipped_forward"] == (row in forward) for row in rows)
    wanted = forward[0]
    forced = with_options(request, algorithm=wanted["engine"])
    for made in (plan("choose", **forced), *plan("text", **forced)):
        assert (made["name"], made["engine"]) == (wanted["name"], wanted["engine"])
    with pytest.raises(Refused, match="no lowering to a forward convolution"):
        plan(
            "choose",
            **with_options(problem("backward_data", dtype=dtype), algorithm={"index": 0, "flipped_forward": True}),
        )


def test_the_best_of_each_lowering_come_first(plan: Planner) -> None:
    """Autotune may have no time for all."""
    names = [row["name"] for row in usable(plan("survey", **problem(dtype="float16")))]
    plain = [place for place, name in enumerate(names) if " + " not in name]
    last = [place for place, name in enumerate(names) if name.endswith(" + channels last")]
    assert (plain[0], last[0]) == (0, 1)
    assert plain[1] < last[1]


def test_a_fused_activation_stays_fused_in_blocks(plan: Planner) -> None:
    rows = usable(plan("survey", **problem(dtype="bfloat16", last=True, bias=[64], activation="relu", **STEM)))
    names = [row["name"] for row in rows]
    assert any(name.endswith(" + blocks") for name in names)
    assert any(name.endswith(" + blocks + epilogue") for name in names)


# Bias and activation


def test_a_bias_and_an_activation_are_fused_where_cudnn_can(plan: Planner) -> None:
    for name in ("bias and relu", "bias"):
        chosen = plan("choose", **PROBLEMS[name])
        assert chosen["kind"] == "GraphExecutable"
        assert "epilogue" not in chosen["name"]


def test_beta_is_not_fused_with_an_activation(plan: Planner) -> None:
    """alpha * convolution + beta * out comes before the bias and the activation, which a fused graph cannot express."""
    rows = plan("survey", **problem(out=[8, 64, 28, 28], beta=1.0, bias=[64], activation="relu"))
    assert usable(rows)
    assert all(row["name"].endswith(" + epilogue") for row in rows)


STRIDED_W = [[64, 64, 3, 3], [64 * 18, 18, 6, 2]]


@pytest.mark.parametrize(
    ("more", "scratch"),
    [
        ({"out": [8, 64, 28, 28], "beta": 1.0}, 8 * 64 * 28 * 28 * 4),
        ({"second": STRIDED_W}, 64 * 64 * 3 * 3 * 4),
        ({"second": STRIDED_W, "out": [8, 64, 28, 28], "beta": 1.0}, 8 * 64 * 28 * 28 * 4 + 64 * 64 * 3 * 3 * 4),
    ],
    ids=["beta", "filter with gaps", "both"],
)
def test_scratch_memory_for_copies_is_counted_as_workspace(plan: Planner, more: dict[str, Any], scratch: int) -> None:
    """Which is a multiple of 256 here, and the plan's own part follows it."""
    plain = {row["name"]: row for row in usable(plan("survey", **problem()))}
    request = {**problem(), **more}
    copying = [row for row in usable(plan("survey", **request)) if row["name"].endswith(" + copies")]
    assert copying
    assert scratch % 256 == 0
    for row in copying:
        own = plain[row["name"].removesuffix(" + copies")]["workspace_size"]
        assert row["workspace_size"] == scratch + own
    with pytest.raises(Refused, match="the limit is 0 bytes"):
        plan("choose", **with_options({**request, "second": STRIDED_W}, prefer="no_workspace"))


# Plans as text


@pytest.mark.parametrize(
    ("request_", "suffix"),
    [
        (problem(), ""),
        (problem(activation="sigmoid", dtype="float64"), " + epilogue"),
        (problem(out=[8, 64, 28, 28], beta=1.0), " + copies"),
        (problem(out=[8, 64, 28, 28], beta=1.0, bias=[64], activation="relu"), " + copies + epilogue"),
        (problem("backward_filter", y=(8, 64, 27, 28), options={"padding": [[0, 1], 1]}), " + copies"),
        (problem("backward_data", bias=[64], activation="relu"), " + epilogue"),
    ],
    ids=[
        "plain",
        "epilogue",
        "beta",
        "beta and epilogue",
        "padding",
        "transposed",
    ],
)
def test_a_plan_survives_its_text_with_what_goes_with_it(plan: Planner, request_: dict[str, Any], suffix: str) -> None:
    made, again = plan("text", **request_)
    assert made["name"].endswith(suffix)
    assert ("+" in made["name"]) == bool(suffix)
    assert again == made


@pytest.mark.parametrize(
    ("operation", "roles"),
    [("forward", "X W Y"), ("backward_data", "dX W dY"), ("backward_filter", "X dW dY")],
)
def test_what_was_asked_is_what_cudnn_planned(plan: Planner, operation: str, roles: str) -> None:
    """Every number of the problem, in cuDNN's own text of the plan."""
    same = operation != "forward"  # paddings that differ are laid out otherwise for the gradients
    options = {
        "padding": [[1, 1], [2, 2]] if same else [[0, 1], [2, 3]],
        "stride": [1, 2],
        "dilation": [2, 3],
        "groups": 4,
        "mode": "convolution",
    }
    shapes = {"x": (8, 64, 28, 27), "w": (32, 16, 3, 5), "y": (8, 32, 26 if same else 25, 10)}
    request = problem(operation, **shapes, dtype="float16", last=True, options=options)
    graph = json.loads(plan("cudnn_plan", **request))["operationGraph"]
    (node,) = graph["nodes"]
    wanted = {
        "mode": "CUDNN_CONVOLUTION",
        "mathPrec": "CUDNN_DATA_FLOAT",
        "alpha": 1.0,
        "beta": 0.0,
        **({"pad": [1, 2]} if same else {"pad_lower": [0, 2], "pad_upper": [1, 3]}),
        "stride": [1, 2],
        "dilation": [2, 3],
    }
    assert {key: node[key] for key in wanted} == wanted
    tensors = {tensor["name"]: tensor for tensor in graph["tensors"]}
    for role, shape in zip(roles.split(), shapes.values(), strict=True):
        tensor = tensors[node[role]]
        n, c, h, w = shape
        assert (tensor["dim"], tensor["stride"]) == ([n, c, h, w], [c * h * w, 1, w * c, c])
        assert (tensor["dataType"], tensor["ptrAlignment"]) == ("CUDNN_DATA_HALF", 16)


# policy="once": an engine that served an earlier shape


def test_an_engine_that_served_before_is_taken_where_it_can_run(plan: Planner) -> None:
    request = PROBLEMS["forward float32"]
    last = usable(plan("survey", **request))[-1]
    other = problem(x=(4, 64, 14, 14), y=(4, 64, 14, 14))
    chosen = plan("choose", **other, before=last["engine"])
    assert chosen["engine"] == last["engine"]
    assert chosen["name"] != plan("choose", **other)["name"]


def test_where_it_cannot_run_the_choice_is_made_again(plan: Planner) -> None:
    request = PROBLEMS["forward float32"]
    anew = plan("choose", **request)
    assert plan("choose", **request, before={"index": 10_000, "knobs": None})["name"] == anew["name"]
    hungry = max(usable(plan("survey", **request)), key=lambda row: row["workspace_size"])
    narrow = with_options(request, workspace_limit=hungry["workspace_size"] - 1)
    chosen = plan("choose", **narrow, before=hungry["engine"])
    assert chosen["workspace_size"] < hungry["workspace_size"]
    assert chosen["name"] == plan("choose", **narrow)["name"]
