"""Attention: its graphs in NumPy against the reference, the forms for engines, calls on stand-ins, and rejected arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from attention_problems import (
    arguments,
    as_operand,
    drawn,
    for_graph,
    graph_of,
    has_dbias,
    in_float8,
    in_pages,
    in_sequences,
    keys_of,
    padded,
    with_dropout,
)
from fresh_process import python
from hypothesis import given, settings
from hypothesis import strategies as st
from offline_profiles import needs_profiles
from stand_in_device import OTHER, Array, StandInDevice

import cudnnpy
from cudnnpy import Attention, DeviceProfile, Engine, NoAlgorithmError, TensorSpec, raw, reference
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._core.layouts import packed_strides
from cudnnpy._layers import attention as attention_layer
from cudnnpy._planning import candidates
from cudnnpy.errors import FunctionNotAvailableError
from cudnnpy.graph.attention_lowerings import parts
from cudnnpy.graph.graph_facts import modes, of_kind
from cudnnpy.graph.kinds import pointwise_name
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.reference.graph import _steps

untyped: Any = cudnnpy
FIRST_RELEASES = {name: getattr(attention_layer, name) for name in ("_MASKS", "_DROPOUT", "_RAGGED", "_MEASURED")}
H, BF = "float16", "bfloat16"
Q, K = (2, 4, 32, 16), (2, 2, 48, 16)
BOTH = ("lengths_q", "lengths_kv")
PACKED = {"q": Q, "k": K, "v": K}


@pytest.fixture(scope="module", autouse=True)
def _every_release() -> Iterator[None]:
    """Graphs are made with every release; which one has engines for them is a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in FIRST_RELEASES:
            patch.setattr(attention_layer, name, 0)
        yield


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_the_graphs_compute_what_the_reference_does(seed: int, has_dropout: bool, is_packed: bool) -> None:
    problem = with_dropout(drawn(seed), seed) if has_dropout else drawn(seed)
    problem = in_sequences(problem, seed) if is_packed else problem
    layout, arrays = problem.options["layout"], problem.arrays
    attention, twin = Attention(**problem.options), reference.Attention(**problem.options)
    made = dict(zip(("out", "statistics"), twin.forward(**problem.without_dout(), statistics=True), strict=True))
    compare(graph_of(attention, "forward", problem.without_dout()), arrays, made, layout)
    if "bias" in arrays and keys_of(problem) == 1:
        return  # backward is refused
    has_bias = has_dbias(problem)
    every = {**arrays, **made}
    gradients = twin.backward(
        *(every[name] for name in ("dout", "q", "k", "v", "out", "statistics")), **problem.others(), dbias=has_bias
    )
    names = ("dq", "dk", "dv", *(("dbias",) if has_bias else ()))
    graph = graph_of(attention, "backward", every, dbias=has_bias)
    compare(graph, every, dict(zip(names, gradients, strict=True)), layout)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_graphs_of_pages_compute_what_the_reference_does(seed: int) -> None:
    problem = in_pages(drawn(seed), seed)
    results = reference.Attention(**problem.options).forward(**problem.arrays, statistics=True)
    graph = graph_of(Attention(**problem.options), "forward", problem.arrays)
    made = dict(zip(("out", "statistics"), results, strict=True))
    compare(graph, problem.arrays, made, problem.options["layout"])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_graphs_of_float8_compute_what_the_reference_does(seed: int) -> None:
    """But for queries without keys, which are NaN in the graph, and make the greatest magnitudes NaN."""
    problem = in_float8(drawn(seed), seed)
    results = reference.Attention(**problem.options).forward(**arguments(problem.arrays), statistics=True)
    graph = graph_of(Attention(**problem.options), "forward", problem.arrays)
    made = dict(zip(("out", "statistics", *attention_layer.AMAX), results, strict=True))
    has_keys = bool(np.isfinite(made["statistics"]).all())
    compare(graph, problem.arrays, made, problem.options["layout"], without=() if has_keys else attention_layer.AMAX)


def compare(
    graph: cudnnpy.Graph,
    arrays: dict[str, Any],
    expected: dict[str, Any],
    layout: str,
    without: tuple[str, ...] = ("mask",),
) -> None:
    inputs = for_graph(graph, arrays, layout)
    allowed = reference.tolerance(graph, inputs)
    results = {name: found for name, found in reference.run(graph, inputs).items() if name not in without}
    expected = padded({**arrays, **expected}, layout)
    for name, found in results.items():
        right = as_operand(name, expected[name], layout).astype(np.float64)
        if name in ("out", "statistics"):  # queries without keys are NaN in the graph, which engines compute as 0
            has_keys = np.isfinite(expected["statistics"][..., 0])
            found, right, allowed[name] = found[has_keys], right[has_keys], allowed[name][has_keys]
        assert np.isfinite(right).all()
        # a dbias in float32 is computed in q's type, and the greatest magnitude of out is that of rounded weights
        more = {"dbias": 2.0**-7, "amax_o": 2.0**-3}.get(name, 0.0) * np.abs(right)
        assert (np.abs(found.astype(np.float64) - right) <= allowed[name] + more).all(), name


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_the_forms_for_engines_compute_the_graph(seed: int, form: int) -> None:
    """A transposed input is the same memory, and dq is the rounded buffer."""
    problem = drawn(seed, H, (16, 32))
    arrays = {name: array for name, array in problem.arrays.items() if name != "bias"}
    arrays["q"], arrays["k"] = (np.repeat(arrays[name][..., :8], 4, 3) for name in "qk")  # a head size of 32
    twin = reference.Attention(**problem.options)
    given_ = {name: array for name, array in arrays.items() if name != "dout"}
    arrays |= dict(zip(("out", "statistics"), twin.forward(**given_, statistics=True), strict=True))
    graph = graph_of(Attention(**problem.options), "backward", arrays)
    found, caller = graph._problem(0)
    assert isinstance(found, GraphProblem)
    inputs = for_graph(graph, arrays, problem.options["layout"])
    expected, names = reference.run(graph, inputs), caller.names
    both = parts(found.graph)
    assert {bool(one.buffer) for one in both} == {False, True}
    part = both[form]
    operands = dict(zip(found.graph.in_memory, (names[at] for at in caller.order), strict=True))
    values: dict[int, Any] = {
        tensor.uid: np.float32(tensor.number) for tensor in part.graph.tensors if tensor.number is not None
    }
    specs = part.graph.specs
    for uid in part.graph.in_memory:
        if uid in part.views:
            values[uid] = inputs[operands[part.views[uid]]].swapaxes(2, 3)
        elif operands.get(uid) in inputs:
            values[uid] = inputs[operands[uid]]
    values = {uid: np.broadcast_to(value, specs[uid].shape) for uid, value in values.items()}
    with np.errstate(invalid="ignore"):  # of queries without keys
        list(_steps(part.graph, values))
    for uid, name in operands.items():
        if name in expected:
            np.testing.assert_allclose(values[uid], expected[name], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(("queries", "values"), [(1, []), (2, [-np.inf, 0.0])])
def test_results_of_empty_sequences_in_pages_are_filled_but_for_one_query(queries: int, values: list[float]) -> None:
    problem = in_pages(drawn(0, sizes=(queries,)), 0)
    graph = graph_of(Attention(**problem.options), "forward", problem.arrays)
    asked: Any = graph.problem()
    (one,) = parts(asked.graph)
    assert sorted(value for _, value in one.filled) == values
    assert {uid for uid, _ in one.filled} <= set(one.graph.outputs)
    other = drawn(0)
    asked = graph_of(Attention(**other.options), "forward", other.without_dout()).problem()
    (dense,) = parts(asked.graph)
    assert not dense.filled


@pytest.mark.parametrize(
    ("queries", "keys", "lengths", "causal", "skips"),
    [
        (129, 16, BOTH, False, True),
        (128, 16, BOTH, False, False),
        (129, 16, BOTH[:1], False, False),
        (129, 16, BOTH[1:], False, False),
        (129, 136, BOTH[:1], True, True),
        (129, 16, BOTH[:1], True, False),
    ],
)
def test_gradients_skip_what_is_beyond_both_lengths(
    queries: int, keys: int, lengths: tuple[str, ...], causal: bool, skips: bool
) -> None:
    """The sizes are then the mask of queries; results of empty sequences are filled. A causal mask needs no lengths of keys."""
    q, k = np.zeros((2, 2, queries, 8), H), np.zeros((2, 2, keys, 8), H)
    arrays = {"dout": q, "q": q, "k": k, "v": k, "out": q, "statistics": np.zeros((2, 2, queries, 1), np.float32)}
    arrays |= dict.fromkeys(lengths, np.zeros(2, np.int32))
    asked: Any = graph_of(Attention(causal=causal), "backward", arrays).problem()
    for one in parts(asked.graph):
        sizes = {"m_override" in tensors for _, tensors in of_kind(one.graph, "matmul")}
        assert (sizes, len(one.filled)) == ({skips}, 3 if skips else 0)
        assert len([*modes(one.graph, "cmp_lt")]) == len(lengths) - skips


@pytest.mark.parametrize(("queries", "masks"), [(1, ["cmp_ge", "cmp_lt"]), (2, ["cmp_ge"])])
def test_keys_up_to_the_last_one_are_one_mask_of_several_queries(queries: int, masks: list[str]) -> None:
    q, k = np.zeros((2, 2, queries, 8), H), np.zeros((2, 2, 16, 8), H)
    arrays = {"q": q, "k": k, "v": k, "lengths_kv": np.zeros(2, np.int32)}
    asked: Any = graph_of(Attention(causal="bottom_right"), "forward", arrays).problem()
    assert sorted(pointwise_name(one.option("mode")) for one, _ in modes(asked.graph, "cmp_")) == masks


@pytest.mark.parametrize("lengths", [(), BOTH[:1], BOTH[1:], BOTH])
@pytest.mark.parametrize("window", [None, (5, None), (5, 2), (None, 7)])
@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
def test_no_rule_rejects_the_masks_of_one_query(lengths: tuple[str, ...], window: Any, causal: Any) -> None:
    arrays = {"q": np.zeros((2, 2, 1, 8), H), **dict.fromkeys("kv", np.zeros((2, 2, 16, 8), H))}
    arrays |= dict.fromkeys(lengths, np.zeros(2, np.int32))
    graph_of(Attention(causal=causal, window=window), "forward", arrays).problem()


def test_an_element_of_a_broadcast_axis_is_the_memory_of_all() -> None:
    """Lengths have stride 0 along the queries; other slices are operations."""
    for strides, is_view in (((1, 1, 0, 1), True), ((16, 16, 1, 1), False)):
        g = cudnnpy.Graph()
        lengths = g.tensor("lengths", TensorSpec((2, 1, 16, 1), "float32", strides))
        part = {"start": (0, 0, 0, 0), "limit": (2, 1, 1, 1), "stride": (1, 1, 1, 1)}
        g.output("y", g.pointwise("exp", g.add("slice", x=lengths, **part)["y"]))
        problem: Any = g.problem()
        (one,) = parts(problem.graph)
        assert [bool(one.views), len(one.graph.operations)] == [is_view, 1 if is_view else 2]
        if is_view:
            ((view, _),) = one.views.items()
            assert one.graph.specs[view].shape == (2, 1, 1, 1)


def test_the_form_of_less_memory_comes_first() -> None:
    def suffixes(queries: int, keys: int, size: int) -> list[str]:
        q, k = np.zeros((1, 2, queries, size), H), np.zeros((1, 2, keys, size), H)
        arrays = {"dout": q, "q": q, "k": k, "v": k, "out": q, "statistics": np.zeros((1, 2, queries, 1), np.float32)}
        problem = graph_of(Attention(), "backward", arrays).problem()
        return [lowering.suffix for lowering in problem.lowerings()]

    assert suffixes(64, 256, 64) == [" + accumulation", ""]
    assert suffixes(64, 64, 64) == ["", " + accumulation"]
    assert suffixes(65, 256, 72) == [" + accumulation", ""]


# Plans


def plan(
    operation: str,
    options: dict[str, Any],
    *,
    q: Any = (2, 4, 64, 32),
    k: Any = (2, 2, 128, 32),
    dtype: Any = H,
    **others: Any,
) -> Any:
    specs = {name: TensorSpec(shape, dtype) for name, shape in (("q", q), ("k", k), ("v", k))}
    lengths = {name: TensorSpec((2,), "int32") for name in others.pop("lengths", ())}
    made: Any = Attention(**options)
    return made.plan(operation, **specs, **lengths, **others, device=DeviceProfile.load("h200"))


NUMBERS: dict[str, Any] = dict.fromkeys(("seed", "offset"), TensorSpec((1,), "int64"))
PAGES: dict[str, Any] = {"k": (9, 2, 16, 32), "page_table": TensorSpec((2, 1, 8, 1), "int32")}
BIAS = TensorSpec((1, 4, 64, 128), H)
OFFSETS = ("offsets_q", "offsets_kv")
SEQUENCES: dict[str, Any] = {  # packed, of 64 queries and 128 keys at most
    "q": (100, 4, 32),
    "k": (130, 2, 32),
    "lengths": BOTH,
    **dict.fromkeys(OFFSETS, TensorSpec((3,), "int64")),
    "max_length_q": 64,
    "max_length_kv": 128,
}
PLANNED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("forward", {}, {}),
    ("forward", {"causal": "bottom_right", "window": (7, 3)}, {"lengths": BOTH, "bias": BIAS}),
    ("forward", {}, {"lengths": BOTH}),  # indices that two masks share end the process
    ("forward", {"dropout": 0.1}, {**NUMBERS}),
    ("forward", {"dropout": 0.1, "causal": True}, {**NUMBERS, "lengths": BOTH, "bias": BIAS}),
    ("backward", {"dropout": 0.5, "causal": True}, {**NUMBERS, "lengths": BOTH}),
    ("backward", {"dropout": 0.5, "deterministic": True}, {**NUMBERS}),
    ("backward", {"dropout": 0.5}, {**NUMBERS, "bias": BIAS, "dbias": True}),
    ("forward", {}, {"lengths": ("lengths_kv",), **PAGES}),
    ("forward", {}, {"lengths": BOTH, **PAGES, "q": (2, 4, 1, 32)}),
    ("forward", {"causal": "bottom_right", "window": (7, 3)}, {"lengths": BOTH, "bias": BIAS, **PAGES}),
    (
        "forward",
        {},
        {
            "lengths": BOTH,
            **PAGES,
            "q": (2, 4, 64, 256),
            "k": (9, 2, 1, 256),
            "page_table": TensorSpec((2, 1, 128, 1), "int32"),
        },
    ),
    ("backward", {}, {"lengths": BOTH}),
    ("backward", {"causal": "bottom_right"}, {"lengths": ("lengths_kv",)}),
    ("backward", {"causal": "bottom_right", "window": (7, 3)}, {}),
    ("backward", {"causal": True}, {"bias": BIAS, "dbias": True}),
    ("backward", {"deterministic": True}, {"q": (2, 4, 1, 24), "k": (2, 4, 9, 24)}),
    ("forward", {"causal": "bottom_right", "window": (7, 3)}, {**SEQUENCES, "bias": BIAS}),
    ("forward", {}, {**SEQUENCES, "q": (2, 4, 24), "k": (130, 2, 24), "max_length_q": 1}),
    ("backward", {"causal": True}, SEQUENCES),
    ("backward", {"window": (7, 3), "deterministic": True}, {**SEQUENCES, "k": (130, 4, 32)}),
]


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_plans_without_a_gpu() -> None:
    for operation, options, others in PLANNED:
        made = plan(operation, options, **others)
        assert (
            made.operands[-1]
            == {"forward": "statistics", "backward": "dbias" if "dbias" in others else "dv"}[operation]
        )
        assert made.name.startswith("engine ")
    for options, others in (({"causal": True}, {"dtype": "float8_e5m2"}), ({}, {"dtype": F8, "lengths": BOTH[1:]})):
        made = plan("forward", options, **others)
        assert made.operands[-7:] == ("descale_s", "scale_s", "scale_o", "out", "statistics", "amax_s", "amax_o")
        assert ("lengths_q" in made.operands) == ("lengths" in others)


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_a_plan_of_packed_sequences_does_not_know_where_they_end() -> None:
    """The tensors of its graph have the greatest length for each sequence, and more memory than the sequences."""
    made = plan("backward", {"causal": True}, **SEQUENCES)
    small = ("statistics", *BOTH, *OFFSETS)
    sizes = {name: 2 * 4 * 64 * 4 if name in small else 130 * 4 * 32 * 2 for name in made.operands}
    ends = [(1 << 20) + sum([*sizes.values()][:at]) for at in range(len(sizes) + 1)]
    made.check_addresses(tuple(ends[:-1]), (ends[-1] + 15) // 16 * 16)
    with pytest.raises(ValueError, match=r"^workspace must not overlap k in memory"):
        made.check_addresses(tuple(ends[:-1]), ends[made.operands.index("q")])
    assert made.workspace_size < 2 * 4 * (64 * 128 + 128 * 32 * 2) * 2 + (1 << 20)


@needs_profiles
@pytest.mark.usefixtures("without_driver")
def test_the_options_choose_the_form_of_the_gradient() -> None:
    buffer, scores = 2 * 4 * 64 * 32 * 4, 2 * 4 * 64 * 128 * 2
    heads = {"k": (2, 4, 128, 32)}
    first = plan("backward", {}, **heads)
    assert first.name.endswith(" + accumulation")
    assert not first.deterministic
    assert buffer <= first.workspace_size < scores
    assert first.engine is not None
    assert first.engine.accumulation
    fixed = plan("backward", {"deterministic": True}, **heads)
    assert fixed.deterministic
    assert "accumulation" not in fixed.name
    assert scores <= fixed.workspace_size
    assert "accumulation" in plan("backward", {"workspace_limit": scores - 1}, **heads).name
    with pytest.raises(NoAlgorithmError, match="not deterministic"):
        plan("backward", {"deterministic": True}, bias=TensorSpec((1, 4, 64, 128), H), dbias=True)
    with pytest.raises(NoAlgorithmError, match="the limit is"):
        plan("backward", {"prefer": "no_workspace"})


def test_an_engine_with_a_buffer_is_text_that_earlier_releases_wrote_without() -> None:
    choice = candidates.Choice("engine 6 + accumulation", "heuristics", Engine(6, accumulation=True), "accumulation")
    assert candidates.Choice.of(choice.plain()) == choice
    plain = candidates.Choice("engine 6", "heuristics", Engine(6)).plain()
    assert "accumulation" not in plain["engine"]
    assert candidates.Choice.of(plain).engine == Engine(6)


# Calls


def arrays_of(shapes: dict[str, tuple[int, ...]] = PACKED, dtype: str = H) -> dict[str, Array]:
    return {name: Array(*shape, dtype=dtype, pointer=(1 + at) << 24) for at, (name, shape) in enumerate(shapes.items())}


def test_a_call_runs_on_its_arrays_and_keeps_its_plan(stand_in: StandInDevice) -> None:
    attention, given_ = Attention(causal=True), arrays_of()
    out: Any = untyped.Attention.forward(attention, **given_)
    assert (out.shape, out.dtype) == (Q, H)
    stand_in.check([*given_.values(), out], stand_in.stream, stand_in.launches)
    (launch,) = stand_in.launches
    assert launch.name == "cudnnBackendExecute"
    both: Any = attention.forward(*given_.values(), statistics=True, stream=OTHER)  # type: ignore[type-var]
    assert [(one.shape, one.dtype) for one in both] == [(Q, H), ((2, 4, 32, 1), "float32")]
    stand_in.check([*given_.values(), *both], OTHER, stand_in.launches[1:])
    assert len(stand_in.planned_graphs) == 2
    attention.forward(*given_.values())  # type: ignore[type-var]
    Attention(causal=True).forward(*given_.values())  # type: ignore[type-var]
    assert len(stand_in.planned_graphs) == 2
    Attention(causal=True, scale=0.5).forward(*given_.values())  # type: ignore[type-var]
    assert len(stand_in.planned_graphs) == 3
    assert stand_in.planned_graphs[-1] != stand_in.planned_graphs[0]


def test_pages_need_lengths_of_queries_which_a_call_writes(stand_in: StandInDevice) -> None:
    given_ = arrays_of(
        {"q": Q, "k": (9, 2, 16, 16), "v": (9, 2, 16, 16), "lengths_kv": (2,), "page_table": (2, 1, 8, 1)}
    )
    for name in ("lengths_kv", "page_table"):
        given_[name].dtype = "int32"
    out, statistics = untyped.Attention.forward(Attention(), **given_, statistics=True)
    memset, launch = stand_in.launches
    assert memset.is_fill
    assert memset.arguments[1:3] == (32, 2)
    stand_in.check([*given_.values(), out, statistics], stand_in.stream, stand_in.launches)
    del stand_in.launches[:]
    given_["lengths_q"] = Array(2, dtype="int32", pointer=1 << 31)
    untyped.Attention.forward(Attention(), **given_)
    assert len(stand_in.launches) == 1
    assert launch.name == "cudnnBackendExecute"
    given_ = arrays_of(
        {"q": Q, "k": (9, 2, 16, 16), "v": (9, 2, 16, 16), "lengths_kv": (2,), "page_table": (2, 1, 0, 1)}
    )
    for name in ("lengths_kv", "page_table"):
        given_[name].dtype = "int32"
    del stand_in.launches[:]
    untyped.Attention.forward(Attention(), **given_)
    assert [launch.is_fill for launch in stand_in.launches] == [True]


def one_query(keys: int = 1024, **more: Any) -> dict[str, Any]:
    """Return the arguments of forward for one query of each of two sequences, and the lengths of their keys."""
    shapes: dict[str, Any] = {"q": (2, 4, 1, 64), "k": (2, 1, keys, 64), "v": (2, 1, keys, 64), "lengths_kv": (2,)}
    given_: dict[str, Any] = arrays_of({**shapes, **more})
    for name in given_.keys() & {*BOTH, "page_table"}:
        given_[name].dtype = "int32"
    return given_


PAGED: dict[str, Any] = {"k": (30, 2, 16, 64), "v": (30, 2, 16, 64), "page_table": (2, 1, 8, 1)}


@pytest.mark.parametrize(
    "options", [{}, {"causal": "bottom_right"}, {"prefer": "no_workspace"}, {"prefer": "autotune"}, {"layout": "BSHD"}]
)
@pytest.mark.parametrize("more", [{}, PAGED])
def test_one_query_with_lengths_is_one_operation(
    stand_in: StandInDevice, options: dict[str, Any], more: dict[str, Any]
) -> None:
    """Which needs the lengths of queries, too: they are written once."""
    shapes: dict[str, Any] = {"q": (2, 48, 1, 64), "k": (2, 2, 300, 64), "v": (2, 2, 300, 64), **more}
    if "layout" in options:
        shapes |= {name: (n, s, h, d) for name, (n, h, s, d) in shapes.items() if name in "qkv"}
    given_ = one_query(**shapes)
    out, statistics = untyped.Attention(**options).forward(**given_, statistics=True)
    stand_in.check([*given_.values(), out, statistics], stand_in.stream, stand_in.launches)
    untyped.Attention(**options).forward(**given_, statistics=True)
    write, attends, again = stand_in.launches
    assert (write.is_fill, again.is_fill) == (True, False)
    assert write.arguments[1:3] == (1, 2)
    assert {given_[name].pointer for name in given_} | {write.arguments[0]} <= {*attends.addresses.values()}
    (problem,) = stand_in.planned_graphs
    (operation,) = problem.graph.operations
    assert operation.kind == "sdpa_fwd"


@pytest.mark.parametrize("more", [{}, PAGED])
def test_a_query_that_is_masked_has_no_keys(stand_in: StandInDevice, more: dict[str, Any]) -> None:
    given_ = one_query(**more, lengths_q=(2,))
    out = untyped.Attention().forward(**given_)
    stand_in.check([*given_.values(), out], stand_in.stream, stand_in.launches)
    fill, writes, attends = stand_in.launches
    assert fill.is_fill
    of_lengths, of_query = stand_in.planned_graphs
    graph, arrays = of_lengths.graph, {"q": np.ones((1, 2, 8)), "k": np.ones((1, 8, 1))}
    arrays |= {"lengths_q": np.array([[[0], [1]]]), "lengths_kv": np.array([[[70], [300]]])}
    values: dict[int, Any] = {
        tensor.uid: np.float32(tensor.number).reshape(1, 1, 1) for tensor in graph.tensors if tensor.number is not None
    }
    values |= {uid: arrays[name] for uid, name in zip(graph.in_memory, of_lengths.names, strict=True) if name in arrays}
    list(_steps(graph, values))
    assert values[graph.outputs[0]].ravel().tolist() == [0, 300]
    assert {given_[name].pointer for name in BOTH} <= {*writes.addresses.values()}
    assert not {given_[name].pointer for name in BOTH} & {*attends.addresses.values()}
    assert [one.kind for one in of_query.graph.operations] == ["sdpa_fwd"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {"q": (2, 4, 129, 64)}),
        (
            {"prefer": "no_workspace", "layout": "BSHD"},
            {"q": (2, 2, 4, 64), "k": (2, 1024, 1, 64), "v": (2, 1024, 1, 64)},
        ),
        ({}, {"bias": (1, 1, 1, 1024)}),
        ({}, {"q": (2, 4, 2, 64), "bias": (1, 1, 1, 1024)}),
        ({"causal": True}, {}),
        ({"causal": "bottom_right", "window": (64, None)}, {}),
    ],
)
def test_other_lengths_are_a_mask(stand_in: StandInDevice, options: dict[str, Any], more: dict[str, Any]) -> None:
    given_ = one_query(**more)
    untyped.Attention(**options).forward(**given_)
    (launch,) = stand_in.launches
    assert given_["lengths_kv"].pointer in launch.addresses.values()
    assert len(stand_in.planned_graphs[0].graph.operations) > 5


def test_a_gpu_without_the_operation_has_products(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few queries are rows there."""
    plan_in = cudnnpy.Graph._plan_in

    def without(self: cudnnpy.Graph, *arguments: Any, **options: Any) -> Any:
        if len(self._operation_graph({}).operations) == 1:
            raise NoAlgorithmError("graph of sdpa_fwd", "fastest", "", ())
        return plan_in(self, *arguments, **options)

    monkeypatch.setattr(cudnnpy.Graph, "_plan_in", without)
    untyped.Attention().forward(**one_query())
    untyped.Attention().forward(**one_query(q=(2, 4, 3, 64)))
    assert [len(problem.graph.operations) > 5 for problem in stand_in.planned_graphs] == [True, True]
    assert [one.is_fill for one in stand_in.launches] == [True, False, False]


@pytest.mark.parametrize(("causal", "is_mask_less"), [(True, True), (False, False), ("bottom_right", False)])
def test_a_causal_mask_covers_keys_beyond_lengths_that_are_those_of_queries(
    stand_in: StandInDevice, causal: Any, is_mask_less: bool
) -> None:
    given_ = arrays_of({**PACKED, "lengths_q": (2,)})
    given_["lengths_q"].dtype = "int32"
    forward = untyped.Attention(causal=causal).forward
    forward(**given_, lengths_kv=given_["lengths_q"])
    forward(**given_)
    assert len(set(stand_in.planned_graphs)) == 2 - is_mask_less
    forward(**given_, lengths_kv=Array(2, dtype="int32"))
    assert len(set(stand_in.planned_graphs)) == 2
    given_ = packed_arrays()
    forward(**{**given_, "lengths_kv": given_["lengths_q"]})
    assert ("lengths_kv" in stand_in.planned_graphs[-1].names) != is_mask_less


FEW: dict[str, Any] = {"q": (2, 4, 3, 16), "k": (2, 2, 1024, 16), "v": (2, 2, 1024, 16)}


def test_few_queries_of_a_long_cache_are_heads(stand_in: StandInDevice) -> None:
    """In the same memory; lengths are written as a bias."""
    given_ = arrays_of(FEW)
    out, statistics = untyped.Attention().forward(**given_, statistics=True)
    assert (out.shape, statistics.shape) == ((2, 4, 3, 16), (2, 4, 3, 1))
    stand_in.check([*given_.values(), out, statistics], stand_in.stream, stand_in.launches)
    untyped.Attention().forward(**given_, bias=Array(1, 1, 1, 1024, dtype=H))
    untyped.Attention().forward(**one_query(q=(2, 4, 3, 64)))
    untyped.Attention().plan("forward", *(TensorSpec(FEW[name], H) for name in "qkv"), device=0)
    assert [len(problem.operands) for problem in stand_in.planned_graphs] == [5, 6, 7, 5]
    for problem in stand_in.planned_graphs:
        of_q = next(spec for spec in problem.specs if spec.shape[:3] == (2, 12, 1))
        size = of_q.shape[3]
        assert (of_q.shape, of_q.strides) == ((2, 12, 1, size), (12 * size, size, size, 1))
    assert len(stand_in.launches) == 4


@pytest.mark.parametrize(
    ("options", "more", "copies"),
    [
        ({"causal": True}, {}, 0),
        ({"window": (4, 4)}, {}, 0),
        ({}, {"q": (2, 4, 129, 16)}, 0),
        ({}, {"k": (2, 2, 512, 16), "v": (2, 2, 512, 16)}, 0),
        ({}, {"bias": (1, 4, 1, 1024)}, 0),
        ({}, {"bias": (1, 1, 3, 1024)}, 0),
        ({"layout": "BSHD"}, {"q": (2, 3, 4, 16), "k": (2, 1024, 2, 16), "v": (2, 1024, 2, 16)}, 2),
        ({"layout": "BSHD", "prefer": "no_workspace"}, {"q": (2, 3, 4, 16), "k": (2, 1024, 2, 16), "v": (2, 1024, 2, 16)}, 0),
    ],
)  # fmt: skip
def test_other_queries_are_rows_and_those_in_another_order_are_copied(
    stand_in: StandInDevice, options: dict[str, Any], more: dict[str, Any], copies: int
) -> None:
    untyped.Attention(**options).forward(**arrays_of({**FEW, **more}))
    assert stand_in.planned_graphs[0].specs[0].shape[1] == (12 if copies else 4)
    assert [launch.name for launch in stand_in.launches].count("cudnnTransformTensor") == copies


@pytest.mark.parametrize(
    ("batch", "kv_heads", "queries", "are_heads"),
    [(1, 8, 16, True), (64, 8, 4, True), (64, 8, 16, False), (16, 32, 4, False), (1, 32, 4, True), (1, 1, 128, False)],
)
def test_queries_are_heads_where_that_is_faster(
    stand_in: StandInDevice, batch: int, kv_heads: int, queries: int, are_heads: bool
) -> None:
    """Measured for 2,048 keys; one head of k is read once for 64 rows."""
    shapes = {"q": (batch, 32, queries, 16), **dict.fromkeys("kv", (batch, kv_heads, 2048, 16))}
    arrays = {name: Array(*shape, dtype=H, pointer=at << 32) for at, (name, shape) in enumerate(shapes.items(), 1)}
    untyped.Attention().forward(**arrays, out=Array(*shapes["q"], dtype=H, pointer=9 << 32))
    heads = stand_in.planned_graphs[0].specs[0].shape[1]
    assert heads == (32 * queries if are_heads else 32)


def test_plans_of_one_query_with_lengths_need_those_of_queries() -> None:
    """Which one operation computes; masked queries and other masks are products."""
    if raw.version() < FIRST_RELEASES["_MEASURED"]:
        pytest.skip("the operation came with cuDNN 9.19 and its device profiles")
    q, k, lengths = TensorSpec((2, 18, 1, 64), H), TensorSpec((2, 2, 600, 64), H), TensorSpec((2,), "int32")
    named: dict[str, Any] = {"lengths_kv": lengths, "device": DeviceProfile.load("h200")}
    plan = Attention().plan("forward", q, k, k, **named)
    assert plan.operands == ("q", "k", "v", "lengths_q", "lengths_kv", "out", "statistics")
    sources = [one.name for one in Attention().candidates("forward", q, k, k, **named) if not one.rejection_reason]
    assert plan.name in sources
    with pytest.raises(NoAlgorithmError, match="masks heads beyond the eighth wrong"):
        Attention().plan("forward", q, k, k, lengths_q=lengths, **named)
    with pytest.raises(NoAlgorithmError, match="masks heads beyond the eighth wrong"):
        Attention(causal="bottom_right", window=(9, None)).plan("forward", q, k, k, **named)


@pytest.mark.parametrize("more", [{}, {"lengths_kv": (2,)}, {"lengths_q": (2,), "lengths_kv": (2,)}])
def test_the_last_query_alone_has_all_keys(stand_in: StandInDevice, more: dict[str, Any]) -> None:
    """A causal mask that ends at the last key is none for one query, and is not passed to engines that it would slow down."""
    shapes: dict[str, Any] = {"q": (2, 4, 1, 64), "k": (2, 1, 300, 64), "v": (2, 1, 300, 64), **more}
    given_: dict[str, Any] = arrays_of(shapes)
    for name in more:
        given_[name].dtype = "int32"
    gradients = {name: Array(2, 4, 1, 64, dtype=H) for name in ("dout", "out")}
    gradients["statistics"] = Array(2, 4, 1, 1)
    for causal in (False, "bottom_right"):
        attention = untyped.Attention(causal=causal)
        attention.forward(**given_)
        attention.backward(**given_, **gradients)
    half = len(stand_in.planned_graphs) // 2
    assert stand_in.planned_graphs[:half] == stand_in.planned_graphs[half:]
    forward, count = stand_in.planned_graphs[half - 2], 2 * half
    untyped.Attention(causal="bottom_right", window=(9, None)).forward(**given_)
    given_["q"] = Array(2, 4, 2, 64, dtype=H)
    untyped.Attention(causal="bottom_right").forward(**given_)
    assert forward not in stand_in.planned_graphs[count:]


def packed_arrays() -> dict[str, Any]:
    """Return the arguments of forward for two packed sequences."""
    shapes: dict[str, Any] = {"q": (50, 4, 16), "k": (70, 2, 16), "v": (70, 2, 16)}
    shapes |= {**dict.fromkeys(BOTH, (2,)), **dict.fromkeys(OFFSETS, (3,))}
    given_: dict[str, Any] = arrays_of(shapes)
    for name in (*BOTH, *OFFSETS):
        given_[name].dtype = "int64" if name in OFFSETS else "int32"
    return {**given_, "max_length_q": 32, "max_length_kv": 48}


def of_arrays(given_: dict[str, Any]) -> list[Any]:
    return [one for one in given_.values() if not isinstance(one, int)]


def test_results_of_packed_sequences_are_cleared_before(stand_in: StandInDevice) -> None:
    given_, attention = packed_arrays(), untyped.Attention(causal=True)
    out, statistics = attention.forward(**given_, statistics=True)
    assert [out.shape, statistics.shape] == [(50, 4, 16), (2, 4, 32, 1)]
    assert [launch.is_fill for launch in stand_in.launches] == [True, True, False]
    assert [launch.arguments[1:3] for launch in stand_in.launches[:2]] == [(0, 50 * 4 * 16), (0xFF800000, 2 * 4 * 32)]
    stand_in.check([*of_arrays(given_), out, statistics], stand_in.stream, stand_in.launches)
    del stand_in.launches[:]
    more = {"dout": out, "out": out, "statistics": statistics}
    gradients = attention.backward(**given_, **more)
    assert [one.shape for one in gradients] == [(50, 4, 16), (70, 2, 16), (70, 2, 16)]
    assert [launch.is_fill for launch in stand_in.launches] == [True, True, True, False]
    stand_in.check([*of_arrays({**given_, **more}), *gradients], stand_in.stream, stand_in.launches)
    count = len(stand_in.planned_graphs)
    attention.backward(**given_, **more)
    assert len(stand_in.planned_graphs) == count
    attention.forward(**{**given_, "max_length_q": 33})
    assert len(stand_in.planned_graphs) == count + 1
    given_["q"].strides = (3 * 64, 16, 1)  # a part of another array is copied, since offsets count its elements alone
    del stand_in.launches[:]
    attention.forward(**given_)
    assert "cudnnTransformTensor" in [launch.name for launch in stand_in.launches]
    given_["out"] = Array(50, 4, 16, dtype=H, strides=(3 * 64, 16, 1), pointer=1 << 30)
    del stand_in.launches[:]
    attention.forward(**given_)
    copy_of_q, cleared, _, copy_of_out = stand_in.launches
    assert (cleared.is_fill, cleared.arguments[1:3]) == (True, (0, 50 * 4 * 16))
    assert copy_of_q.name == copy_of_out.name == "cudnnTransformTensor"
    del given_["out"]
    with pytest.raises(ValueError, match=r"^out must have shape \(50, 4, 16\); got shape \(51, 4, 16\)"):
        attention.forward(**given_, out=Array(51, 4, 16, dtype=H))


def test_without_tokens_results_are_zeros(stand_in: StandInDevice) -> None:
    given_ = packed_arrays()
    given_["k"] = given_["v"] = Array(0, 2, 16, dtype=H)
    out = untyped.Attention().forward(**given_)
    assert out.shape == (50, 4, 16)
    assert [launch.is_fill for launch in stand_in.launches] == [True]
    assert not stand_in.planned_graphs


VALUES = {"lengths_q": [20, 30], "lengths_kv": [48, 22], "offsets_q": [0, 20 * 64, 50 * 64]}
VALUES |= {"offsets_kv": [0, 48 * 32, 70 * 32]}
OFFSETS_TEXT = "must count elements, .. for each token, from 0 to .*, with room for each sequence before the next; got"
BAD_VALUES: list[tuple[str, list[int], str]] = [
    ("lengths_q", [20, 33], "lengths_q must have numbers of 0 to 32; got 20 to 33"),
    ("lengths_kv", [-1, 22], "lengths_kv must have numbers of 0 to 48; got -1 to 22"),
    ("offsets_q", [0, 20, 50], f"offsets_q {OFFSETS_TEXT} 0 and then 20 for sequence 0 of 20 tokens"),
    ("offsets_kv", [48 * 32, 0, 70 * 32], f"offsets_kv {OFFSETS_TEXT} 1536 and then 0 for sequence 0 of 48 tokens"),
    ("offsets_kv", [0, 48 * 32, 71 * 32], f"offsets_kv {OFFSETS_TEXT} 1536 and then 2272 for sequence 1 of 22 tokens"),
    ("lengths_q", [21, 29], f"offsets_q {OFFSETS_TEXT} 0 and then 1280 for sequence 0 of 21 tokens"),
]


@pytest.mark.parametrize(("name", "values", "text"), BAD_VALUES)
def test_values_in_device_memory_are_checked_on_request(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch, name: str, values: list[int], text: str
) -> None:
    given_, read = packed_arrays(), dict(VALUES)
    of = {id(array): name for name, array in given_.items()}
    monkeypatch.setattr(attention_layer, "to_numpy", lambda array: np.array(read[of[id(array)]]))
    monkeypatch.setattr(attention_layer, "synchronize", lambda stream, device: None)
    monkeypatch.setattr(Attention, "_run", staticmethod(attention_layer._run_checked))
    assert untyped.Attention().forward(**given_, stream=OTHER).shape == (50, 4, 16)
    del stand_in.launches[:]
    read[name] = values
    with pytest.raises(ValueError, match=f"^{text}$"):
        untyped.Attention().forward(**given_)
    assert not stand_in.launches
    on_host = {
        name: np.zeros(array.shape, H) if name in "qkv" else np.array(read[name], array.dtype)
        for name, array in given_.items()
        if not isinstance(array, int)
    }
    with pytest.raises(ValueError, match=f"^{text}$"):
        untyped.reference.Attention().forward(**on_host, max_length_q=32, max_length_kv=48)


def test_lengths_of_queries_that_are_those_of_keys_are_checked_with_both(
    stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_ = packed_arrays()
    of = {id(array): name for name, array in given_.items()}
    given_["lengths_kv"] = given_["lengths_q"]
    monkeypatch.setattr(attention_layer, "to_numpy", lambda array: np.array(VALUES[of[id(array)]]))
    monkeypatch.setattr(Attention, "_run", staticmethod(attention_layer._run_checked))
    with pytest.raises(ValueError, match=f"^offsets_kv {OFFSETS_TEXT} 1536 and then 2240 for sequence 1 of 30 tokens$"):
        untyped.Attention(causal=True).forward(**given_)


def test_numbers_of_pages_are_checked_on_request(stand_in: StandInDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = arrays_of({"q": Q, **IN_PAGES})
    for name in ("lengths_kv", "page_table"):
        given_[name].dtype = "int32"
    read = {id(given_["lengths_kv"]): [7, 128], id(given_["page_table"]): [0] * 15 + [9]}
    monkeypatch.setattr(attention_layer, "to_numpy", lambda array: np.array(read[id(array)]))
    monkeypatch.setattr(Attention, "_run", staticmethod(attention_layer._run_checked))
    with pytest.raises(ValueError, match=r"^page_table must have numbers of the 9 pages; got 0 to 9$"):
        untyped.Attention().forward(**given_)
    assert not stand_in.launches


@pytest.mark.parametrize(("value", "is_checked"), [("1", True), ("0", False), ("", False)])
def test_a_variable_of_the_environment_requests_the_check(value: str, is_checked: bool) -> None:
    code = "from cudnnpy._layers import attention as a; print(a.Attention._run is a._run_checked)"
    assert python(code, CUDNNPY_CHECK_VALUES=value) == f"{is_checked}\n"


def test_gradients_are_of_the_library_shapes_and_orders_of_the_arrays(stand_in: StandInDevice) -> None:
    swapped = {name: (b, s, h, d) for name, (b, h, s, d) in PACKED.items()}
    given_ = arrays_of({**swapped, "dout": swapped["q"], "out": swapped["q"], "statistics": (2, 4, 32, 1)})
    given_["statistics"].dtype = "float32"
    bias = Array(1, 4, 32, 48, dtype="float32", pointer=1 << 30)
    attention: Any = Attention(layout="BSHD")
    results = attention.backward(**given_, bias=bias, dbias=True)
    assert [one.shape for one in results] == [swapped["q"], swapped["k"], swapped["k"], bias.shape]
    assert [one.dtype for one in results] == [H, H, H, "float32"]
    assert all(one.strides == packed_strides(one.shape) for one in results)
    stand_in.check([*given_.values(), bias, *results], stand_in.stream, stand_in.launches)
    names = [launch.name for launch in stand_in.launches]
    assert names == ["cudnnBackendExecute", "cudnnTransformTensor"]  # dbias becomes float32


def test_tensors_that_engines_load_badly_are_copied(stand_in: StandInDevice) -> None:
    given_ = arrays_of()
    given_["k"].strides = (2 * 48 * 17, 48 * 17, 17, 1)  # rows of 17 elements
    out: Any = untyped.Attention.forward(Attention(), **given_)
    assert [launch.name for launch in stand_in.launches] == ["cudnnTransformTensor", "cudnnBackendExecute"]
    stand_in.check([*given_.values(), out], stand_in.stream, stand_in.launches)
    del stand_in.launches[:]
    given_ = arrays_of()
    given_["v"].pointer += 2
    untyped.Attention.forward(Attention(), **given_)
    assert len(stand_in.launches) == 2
    del stand_in.launches[:]
    packed = {"strides": (32 * 3 * 64, 16, 3 * 64, 1), "dtype": H}  # q, k and v in one projection's result
    q, k, v = (Array(2, 4, 32, 16, **packed, pointer=(1 << 24) + 128 * at) for at in range(3))  # type: ignore[arg-type]
    untyped.Attention.forward(Attention(), q, k, v)
    assert len(stand_in.launches) == 1


def test_without_queries_or_keys_results_are_zeros_and_cudnn_is_not_called(stand_in: StandInDevice) -> None:
    given_ = arrays_of({"q": Q, "k": (2, 2, 0, 16), "v": (2, 2, 0, 16)})
    out, statistics = untyped.Attention.forward(Attention(), **given_, statistics=True)
    assert (out.shape, statistics.shape) == (Q, (2, 4, 32, 1))
    assert [launch.is_fill for launch in stand_in.launches] == [True, True]
    assert stand_in.launches[1].arguments[1] == int(np.float32(-np.inf).view(np.uint32))
    del stand_in.launches[:]
    given_ = arrays_of({"q": (2, 4, 0, 16), "k": K, "v": K})
    given_ |= {"dout": Array(2, 4, 0, 16, dtype=H), "out": Array(2, 4, 0, 16, dtype=H), "statistics": Array(2, 4, 0, 1)}
    results = untyped.Attention.backward(Attention(), **given_)
    assert [one.shape for one in results] == [(2, 4, 0, 16), K, K]
    assert [launch.is_fill for launch in stand_in.launches] == [True, True]
    for shapes in ({"q": (0, 4, 8, 16), "k": (0, 2, 8, 16), "v": (0, 2, 8, 16)}, {"q": (2, 0, 8, 16), "k": K, "v": K}):
        del stand_in.launches[:]
        untyped.Attention.forward(Attention(), **arrays_of(shapes))
        assert not stand_in.launches
    assert not stand_in.planned_graphs


# Rejected arguments: by both classes, in the same words

OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"causal": 1}, TypeError, "causal must be a bool or 'bottom_right'; got 1"),
    ({"causal": "top_left"}, ValueError, "causal must be a bool or 'bottom_right'; got 'top_left'"),
    ({"window": 7}, TypeError, r"window must be \(left, right\) or None; got 7"),
    ({"window": (-1, 0)}, ValueError, "window must be two integers of 0 or more, or None for no limit; got -1"),
    ({"scale": float("nan")}, ValueError, "scale must be a finite number; got nan"),
    ({"dropout": 1}, ValueError, "dropout must be a probability of 0 or more, and less than 1; got 1"),
    ({"dropout": "0.1"}, TypeError, "dropout must be a finite number; got '0.1'"),
    ({"layout": "SBHD"}, ValueError, "layout must be one of 'BHSD', 'BSHD'; got 'SBHD'"),
]


@pytest.mark.parametrize(("options", "kind", "text"), OPTIONS)
def test_options_out_of_range(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    for package in (cudnnpy, reference):
        made: Any = package
        with pytest.raises(kind, match=f"^{text}"):
            made.Attention(**options)


ARRAYS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q": (2, 4, 32)}, ValueError, "q must have the 4 axes BHSD; got shape"),
    (
        {"q": (2, 4, 32, 12), "k": (2, 2, 48, 12), "v": K},
        ValueError,
        "q must have a head size of 8 to 256, a multiple of 8; got 12",
    ),
    ({"v": (2, 2, 48, 264)}, ValueError, "v must have a head size of 8 to 256, a multiple of 8; got 264"),
    ({"k": (2, 2, 48, 24)}, ValueError, r"k must have shape \(2, 2, 48, 16\) for q of shape"),
    ({"v": (2, 2, 47, 16)}, ValueError, r"v must have shape \(2, 2, 48, 16\) for q of shape"),
    ({"k": (2, 3, 48, 16), "v": (2, 3, 48, 16)}, ValueError, "q must have a multiple of the 3 heads of k; got 4 heads"),
    (
        {"bias": (4, 32, 48)},
        ValueError,
        r"bias must have shape \(2, 4, 32, 48\), or 1 on some of the first three axes; got shape",
    ),
    (
        {"bias": (1, 2, 32, 48)},
        ValueError,
        r"bias must have shape \(2, 4, 32, 48\), or 1 on some of the first three axes; got shape",
    ),
    ({"lengths_kv": (3,)}, ValueError, r"lengths_kv must have shape \(2,\); got shape \(3,\)"),
    ({"lengths_q": ((2,), H)}, TypeError, "lengths_q must be int32; got float16"),
    ({"q": (Q, "float32")}, TypeError, "q must be float16 or bfloat16 or float8_e4m3fn or float8_e5m2; got float32"),
    ({"k": (K, BF)}, TypeError, "k must be float16.*; got bfloat16"),
    (
        {"bias": (2, 4, 32, 1)},
        ValueError,
        r"bias must have shape \(2, 4, 32, 48\), or 1 on some of the first three axes; got shape",
    ),
    ({"bias": ((1, 1, 1, 48), BF)}, TypeError, "bias must be float16 or float32; got bfloat16"),
    ({"out": (2, 4, 32, 24)}, ValueError, r"out must have shape \(2, 4, 32, 16\); got shape \(2, 4, 32, 24\)"),
    ({"statistics": ((2, 4, 32), "float32")}, ValueError, r"statistics must have shape \(2, 4, 32, 1\); got shape"),
]
IN_PAGES: dict[str, Any] = {"k": (9, 2, 16, 16), "v": (9, 2, 16, 16), "lengths_kv": (2,), "page_table": (2, 1, 8, 1)}
TWELVE: dict[str, Any] = {"k": (9, 2, 12, 16), "v": (9, 2, 12, 16)}
ARRAYS += [
    (
        {**IN_PAGES, "page_table": (2, 3)},
        ValueError,
        r"page_table must have shape \(2, 1, pages of a sequence, 1\); got shape \(2, 3\)",
    ),
    (
        {**IN_PAGES, "page_table": (3, 1, 8, 1)},
        ValueError,
        r"page_table must have shape \(2, 1, pages of a sequence, 1\)",
    ),
    (
        {**IN_PAGES, "page_table": (2, 1, 9, 1)},
        ValueError,
        "page_table must name pages of a multiple of 128 keys .*; got 9 pages of 16 keys: pad it with the number of any page",
    ),
    ({**IN_PAGES, "page_table": ((2, 1, 8, 1), "int64")}, TypeError, "page_table must be int32; got int64"),
    (
        {**IN_PAGES, **TWELVE},
        ValueError,
        "k must have one page or more, of a power of two of keys each,.* 9 pages of 12",
    ),
    (
        {**IN_PAGES, "k": (0, 2, 16, 16), "v": (0, 2, 16, 16)},
        ValueError,
        "k must have one page or more, .*; got 0 pages",
    ),
    ({**IN_PAGES, "v": (8, 2, 16, 16)}, ValueError, r"v must have shape \(9, 2, 16, 16\) for q of shape"),
    (
        {"k": IN_PAGES["k"], "v": IN_PAGES["v"], "page_table": (2, 1, 8, 1)},
        TypeError,
        "lengths_kv must be an array where page_table is given; got None",
    ),
]
IN_SEQUENCES: dict[str, Any] = {
    "q": (50, 4, 16),
    "k": (70, 2, 16),
    "v": (70, 2, 16),
    "max_length_q": 32,
    "max_length_kv": 48,
    "lengths_q": (2,),
    "lengths_kv": (2,),
    "offsets_q": (3,),
    "offsets_kv": (3,),
}
NEEDED = "must be given with offsets_q and offsets_kv; got None"
ARRAYS += [
    ({**IN_SEQUENCES, "q": Q}, ValueError, "q must have the 3 axes .*'tokens', 'heads', 'head size'.*; got shape"),
    ({**IN_SEQUENCES, "v": (70, 2, 24)}, ValueError, r"v must have shape \(70, 2, 16\) for q of shape"),
    ({**IN_SEQUENCES, "k": (71, 2, 16)}, ValueError, r"v must have shape \(71, 2, 16\) for q of shape"),
    (
        {**IN_SEQUENCES, "offsets_q": (3, 1)},
        ValueError,
        r"offsets_q must have shape \(batch \+ 1,\); got shape \(3, 1\)",
    ),
    ({**IN_SEQUENCES, "offsets_kv": (4,)}, ValueError, r"offsets_kv must have shape \(3,\); got shape \(4,\)"),
    ({**IN_SEQUENCES, "offsets_kv": ((3,), H)}, TypeError, "offsets_kv must be int32 or int64; got float16"),
    ({**IN_SEQUENCES, "lengths_kv": (3,)}, ValueError, r"lengths_kv must have shape \(2,\); got shape \(3,\)"),
    ({**IN_SEQUENCES, "max_length_q": -1}, ValueError, "max_length_q must be an integer of 0 or more; got -1"),
    ({**IN_SEQUENCES, "max_length_kv": 4.5}, TypeError, "max_length_kv must be an integer of 0 or more; got 4.5"),
    (
        {**IN_SEQUENCES, "page_table": (2, 1, 8, 1)},
        ValueError,
        "page_table must be None where offsets_q and offsets_kv",
    ),
    ({"max_length_q": 32}, ValueError, "max_length_q must be None without offsets_q and offsets_kv; got 32"),
]
ARRAYS += [
    ({other: change for other, change in IN_SEQUENCES.items() if other != name}, TypeError, f"{name} {NEEDED}")
    for name in IN_SEQUENCES
    if name not in ("q", "k", "v")
]
BY_DEFAULT = {"lengths_q": "int32", "lengths_kv": "int32", "page_table": "int32", "statistics": "float32"}
BY_DEFAULT |= dict.fromkeys(("seed", "offset", *OFFSETS), "int64")


def with_arrays(changes: dict[str, Any], make: Callable[[tuple[int, ...], str], Any]) -> dict[str, Any]:
    found = {}
    for name, change in {**PACKED, **changes}.items():
        if isinstance(change, int | float):
            found[name] = change
            continue
        shape, dtype = change if isinstance(change[-1], str) else (change, BY_DEFAULT.get(name, H))
        found[name] = make(shape, dtype)
    return found


def on_host(shape: tuple[int, ...], dtype: str) -> Any:
    return np.ones(shape, numpy_dtype(dtype))


@pytest.mark.parametrize(("changes", "kind", "text"), ARRAYS)
def test_arrays_that_do_not_fit(
    stand_in: StandInDevice, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    for package, make in ((cudnnpy, lambda shape, dtype: Array(*shape, dtype=dtype)), (reference, on_host)):
        made: Any = package
        with pytest.raises(kind, match=f"^{text}"):
            made.Attention().forward(**with_arrays(changes, make))
    assert not stand_in.launches
    assert not stand_in.planned_graphs


F8 = "float8_e4m3fn"
SCALES: list[Any] = [((1,), "float32")] * 6
IN_FLOAT8: dict[str, Any] = {"q": (Q, F8), "k": (K, F8), "v": (K, F8), "scales": SCALES}
SIX = "descale_q, descale_k, descale_v, descale_s, scale_s, scale_o"
OF_FLOAT8: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({}, {"scales": None}, TypeError, f"scales must have {SIX} for {F8}; got None for descale_q"),
    ({}, {"scales": SCALES[:5]}, TypeError, f"scales must be a sequence of 6 arrays, {SIX}; got 5"),
    ({}, {"scales": 2.0}, TypeError, f"scales must be a sequence of 6 arrays, {SIX}; got float"),
    ({}, {"scales": [*SCALES[:5], ((2,), "float32")]}, ValueError, r"scale_o must have shape \(1,\); got shape \(2,\)"),
    ({}, {"scales": [*SCALES[:5], ((1,), H)]}, TypeError, "scale_o must be float32; got float16"),
    ({}, PACKED, ValueError, "scales must be None for float16; got arrays"),
    ({}, {"k": (K, "float8_e5m2")}, TypeError, f"k must be {F8}.*; got float8_e5m2"),
    ({}, {"bias": ((1, 1, 1, 48), "float32")}, ValueError, f"bias must be None for {F8}; got an array"),
    ({}, {"lengths_q": (2,)}, ValueError, f"lengths_q must be None for {F8}; got an array"),
    (
        {},
        {"q": ((2, 4, 32, 24), F8), "k": ((2, 2, 48, 24), F8)},
        ValueError,
        f"q must have a head size of 16 to 128, a multiple of 16, for {F8}; got 24",
    ),
    (
        {},
        {"v": ((2, 2, 48, 144), F8)},
        ValueError,
        "v must have a head size of 16 to 128, a multiple of 16, for .*; got",
    ),
    (
        {"causal": "bottom_right"},
        {},
        ValueError,
        f"{F8} must have no mask but .*; got causal='bottom_right', window=None",
    ),
    ({"window": (3, 3)}, {}, ValueError, rf"{F8} must have no mask but .*; got causal=False, window=\(3, 3\)"),
]


@pytest.mark.parametrize(("options", "changes", "kind", "text"), OF_FLOAT8)
def test_arrays_of_float8_that_do_not_fit(
    stand_in: StandInDevice, options: dict[str, Any], changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    for package, make in ((cudnnpy, lambda shape, dtype: Array(*shape, dtype=dtype)), (reference, on_host)):
        made: Any = package
        given_ = {**IN_FLOAT8, **changes}
        scales = given_.pop("scales")
        scales = [make(*one) for one in scales] if isinstance(scales, list) else scales
        with pytest.raises(kind, match=f"^{text}"):
            made.Attention(**options).forward(**with_arrays(given_, make), scales=scales)
    assert not stand_in.launches
    assert not stand_in.planned_graphs


def test_float8_has_its_factors_as_operands_and_two_results_more(stand_in: StandInDevice) -> None:
    """Lengths of keys need those of queries, which a call writes once."""
    given_ = arrays_of(dtype=F8)
    scales = [Array(1, dtype="float32", pointer=(9 + at) << 24) for at in range(6)]
    out, amax_s, amax_o = untyped.Attention.forward(Attention(causal=True), **given_, scales=scales)
    assert (out.shape, out.dtype) == (Q, F8)
    assert [(one.shape, one.dtype) for one in (amax_s, amax_o)] == [((1,), "float32")] * 2
    stand_in.check([*given_.values(), *scales, out, amax_s, amax_o], stand_in.stream, stand_in.launches)
    del stand_in.launches[:]
    lengths = Array(2, dtype="int32", pointer=1 << 31)
    made = untyped.Attention.forward(Attention(), **given_, lengths_kv=lengths, statistics=True, scales=scales)
    assert [one.dtype for one in made] == [F8, "float32", "float32", "float32"]
    assert [launch.is_fill for launch in stand_in.launches] == [True, False]
    stand_in.check([*given_.values(), lengths, *scales, *made], stand_in.stream, stand_in.launches)
    del stand_in.launches[:]
    without_keys = arrays_of({"q": Q, "k": (2, 2, 0, 16), "v": (2, 2, 0, 16)}, F8)
    untyped.Attention.forward(Attention(), **without_keys, scales=scales)
    assert [launch.is_fill for launch in stand_in.launches] == [True] * 3
    del stand_in.launches[:]
    scales[1].pointer += 4  # copied to a multiple of 16
    made = untyped.Attention.forward(Attention(), **given_, scales=scales)
    assert [launch.name for launch in stand_in.launches] == ["cudnnTransformTensor", "cudnnBackendExecute"]
    given_["k"].pointer += 8
    with pytest.raises(
        ValueError, match=r"^k must have .* aligned to 16 bytes, since cuDNN copies no float8; got .* of 8"
    ):
        untyped.Attention.forward(Attention(), **given_, scales=scales)
    with pytest.raises(TypeError, match=r"^q must be float16 or bfloat16 in backward; got float8_e4m3fn"):
        untyped.Attention.plan(Attention(), "backward", *(TensorSpec(shape, F8) for shape in PACKED.values()), device=0)


MASK = (2, 4, 32, 48)
DROPOUTS: list[tuple[float, dict[str, Any], type[Exception], str]] = [  # of arrays, and of NumPy's
    (0.0, {"offset": (1,)}, ValueError, "offset must be None where dropout is 0; got an array"),
    (
        0.1,
        {**IN_PAGES, "seed": (1,), "offset": (1,)},
        ValueError,
        "dropout must be 0 where page_table is given; got 0.1",
    ),
    (0.1, {}, TypeError, "seed must be an array where dropout is 0.1; got None"),
    (0.1, {"seed": (1,)}, TypeError, "offset must be an array where dropout is 0.1; got None"),
    (0.1, {"seed": (1,), "offset": (1,), "mask": MASK}, ValueError, "mask must be None on a GPU, .*; got an array"),
    (0.1, {"seed": ((1,), "float32"), "offset": (1,)}, TypeError, "seed must be int64; got float32"),
    (0.1, {"seed": (1,), "offset": (2,)}, ValueError, r"offset must have shape \(1,\); got shape \(2,\)"),
]
DROPOUTS_OF_THE_REFERENCE: list[tuple[float, dict[str, Any], type[Exception], str]] = [
    (0.0, {"mask": MASK}, ValueError, "mask must be None where dropout is 0; got an array"),
    (0.1, {**IN_PAGES, "mask": MASK}, ValueError, "dropout must be 0 where page_table is given; got 0.1"),
    (0.1, {"seed": (1,), "offset": (1,)}, TypeError, "mask must be an array where dropout is 0.1; got None"),
    (0.1, {"mask": (1, 4, 32, 48)}, ValueError, r"mask must have shape \(2, 4, 32, 48\); got shape \(1, 4, 32, 48\)"),
    (0.1, {"mask": (MASK, "int32")}, TypeError, "mask must be float16 or float32; got int32"),
]


@pytest.mark.parametrize(("dropout", "changes", "kind", "text"), DROPOUTS)
def test_dropouts_that_do_not_fit(
    stand_in: StandInDevice, dropout: float, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    made: Any = Attention(dropout=dropout)
    with pytest.raises(kind, match=f"^{text}"):
        made.forward(**with_arrays(changes, lambda s, t: Array(*s, dtype=t)))
    assert not stand_in.launches


@pytest.mark.parametrize(("dropout", "changes", "kind", "text"), DROPOUTS_OF_THE_REFERENCE)
def test_dropouts_of_the_reference_that_do_not_fit(
    dropout: float, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    made: Any = reference.Attention(dropout=dropout)
    with pytest.raises(kind, match=f"^{text}"):
        made.forward(**with_arrays(changes, lambda s, t: np.ones(s, t)))


def test_numbers_of_a_dropout_are_read_in_each_call(stand_in: StandInDevice) -> None:
    """They are in memory, and one plan serves all of them; another probability is another plan."""
    given_: Any = with_arrays({"seed": (1,), "offset": (1,)}, lambda s, t: Array(*s, dtype=t))
    for at, array in enumerate(given_.values()):
        array.pointer = (1 + at) << 24
    made: Any = Attention(dropout=0.1)
    for pointer in (1 << 30, 1 << 31):
        given_["seed"].pointer = pointer
        del stand_in.launches[:]
        out = made.forward(**given_)
        stand_in.check([*given_.values(), out], stand_in.stream, stand_in.launches)
    assert len(stand_in.planned_graphs) == 1
    untyped.Attention(dropout=0.2).forward(**given_)
    assert len(stand_in.planned_graphs) == 2
    assert stand_in.planned_graphs[1] != stand_in.planned_graphs[0]


def test_gradients_that_do_not_fit(stand_in: StandInDevice) -> None:
    more = {"dout": Q, "out": Q, "statistics": (2, 4, 32, 1)}
    for changes, kind, text in (
        ({"dout": (2, 4, 32, 24)}, ValueError, r"^dout must have shape \(2, 4, 32, 16\); got shape"),
        ({"statistics": (2, 4, 31, 1)}, ValueError, r"^statistics must have shape \(2, 4, 32, 1\); got shape"),
        ({"statistics": ((2, 4, 32, 1), H)}, TypeError, "^statistics must be float32; got float16"),
        ({"dk": Q}, ValueError, r"^dk must have shape \(2, 2, 48, 16\); got shape"),
    ):
        for package, make in ((cudnnpy, lambda s, t: Array(*s, dtype=t)), (reference, lambda s, t: np.ones(s, t))):
            made: Any = package
            with pytest.raises(kind, match=text):
                made.Attention().backward(**with_arrays({**more, **changes}, make))
            with pytest.raises(ValueError, match=r"^dbias must be False where there is no bias"):
                made.Attention().backward(**with_arrays(more, make), dbias=True)
            with pytest.raises(TypeError, match=r"^dbias must be a bool; got None"):
                made.Attention().backward(**with_arrays(more, make), dbias=None)
    assert not stand_in.launches


def load_release(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    for name, first in FIRST_RELEASES.items():
        monkeypatch.setattr(attention_layer, name, first)
    monkeypatch.setattr(cudnnpy.raw, "version", lambda: version)


def test_masks_and_a_bias_need_a_release_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    load_release(monkeypatch, 90000)
    given_ = {name: TensorSpec(shape, H) for name, shape in PACKED.items()}
    text = "masks and a bias of Attention need cuDNN 9.10.0 or later; the loaded release is 9.0.0"
    bias = TensorSpec((1, 1, 32, 48), H)
    for options, others in (({"causal": True}, {}), ({"window": (3, None)}, {}), ({}, {"bias": bias})):
        made: Any = Attention(**options)  # type: ignore[arg-type]
        with pytest.raises(FunctionNotAvailableError, match=f"^{text}$"):
            made.plan("forward", **given_, **others, device=0)


def test_a_dropout_needs_a_release_whose_heuristics_propose_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    load_release(monkeypatch, 91300)
    text = "dropouts of Attention need cuDNN 9.14.0 or later; the loaded release is 9.13.0"
    with pytest.raises(FunctionNotAvailableError, match=f"^{text}$"):
        plan("backward", {"dropout": 0.1}, **NUMBERS)


def test_packed_sequences_need_a_release_that_needs_no_workspace_of_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    load_release(monkeypatch, 91700)
    text = "packed sequences of Attention need cuDNN 9.18.0 or later; the loaded release is 9.17.0"
    with pytest.raises(FunctionNotAvailableError, match=f"^{text}$"):
        plan("forward", {}, **SEQUENCES)


def test_float8_needs_a_release_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    load_release(monkeypatch, 91800)
    text = "float8 tensors of Attention need cuDNN 9.19.0 or later; the loaded release is 9.18.0"
    with pytest.raises(FunctionNotAvailableError, match=f"^{text}$"):
        plan("forward", {}, dtype=F8)


def test_plans_that_cannot_be_made() -> None:
    given_: Any = {name: TensorSpec(shape, H) for name, shape in PACKED.items()}
    made: Any = Attention()
    with pytest.raises(ValueError, match=r"^operation must be one of 'forward', 'backward'; got 'train'"):
        made.plan("train", **given_, device=0)
    with pytest.raises(ValueError, match=r"^dout and dbias must be those of backward; got one for forward"):
        made.plan("forward", **given_, dout=given_["q"], device=0)
    with pytest.raises(
        ValueError, match=r"^k must have strides that are multiples of 16 bytes, .* since a plan makes no copies; got"
    ):
        made.plan("forward", **{**given_, "k": TensorSpec(K, H, (2 * 48 * 17, 48 * 17, 17, 1))}, device=0)
    one_key, bias = TensorSpec((2, 2, 1, 16), H), TensorSpec((1, 4, 32, 1), H)
    with pytest.raises(ValueError, match=r"^bias must be None in backward of one key, .*; got a bias"):
        made.plan("backward", given_["q"], one_key, one_key, bias, device=0)
    with pytest.raises(
        ValueError, match=r"^bias must have all queries, .* where dbias is wanted; got shape \(1, 4, 1, 48\)"
    ):
        made.plan("backward", **given_, bias=TensorSpec((1, 4, 1, 48), H), dbias=True, device=0)
    with pytest.raises(ValueError, match=r"^v must have .* aligned to 16 bytes.* and an alignment of 8"):
        made.plan("backward", **{**given_, "v": TensorSpec(K, H, alignment=8)}, device=0)
    with pytest.raises(ValueError, match=r"^a planned problem must have elements; got scores of shape"):
        made.plan("forward", **{**given_, "q": TensorSpec((2, 4, 0, 16), H)}, device=0)
    table = TensorSpec((2, 1, 3, 1), "int32")
    with pytest.raises(ValueError, match=r"^page_table must be None for backward, .*; got one"):
        made.plan("backward", **given_, page_table=table, device=0)
    with pytest.raises(TypeError, match=r"^k must be a device array; got None"):
        made.plan("forward", given_["q"], None, given_["v"], device=0)
    assert not hasattr(reference.Attention(), "plan")
