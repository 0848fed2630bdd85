"""reference.tolerance: it holds results of other arithmetic to be right, and single wrong elements to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_evaluation import graph_of, operation, run_in_float32
from reference_checks import normal_numbers

from cudnnpy import Graph, TensorSpec, reference
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.reference.graph import compare

Arrays = dict[str, np.ndarray]


def excess(graph: Graph, arrays: Arrays, results: Arrays, notes: tuple[str, ...] = ()) -> dict[str, float]:
    """The largest difference over the tolerance, by output."""
    expected, allowed = reference.run(graph, arrays), reference.tolerance(graph, arrays, notes)
    found = {}
    for name, array in expected.items():
        one, other = (a.astype(np.float64) for a in (results[name], array))
        with np.errstate(invalid="ignore"):
            difference = np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, np.abs(one - other))
        assert not np.isnan(allowed[name]).any()
        found[name] = float((difference / np.maximum(allowed[name], 1e-300)).max(initial=0.0))
    return found


def to_tf32(x: np.ndarray) -> np.ndarray:
    """Cut off to 10 bits after the first one, as a tensor core may."""
    return (x.view(np.int32) & ~np.int32((1 << 13) - 1)).view(np.float32)


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b with one addition in float32 after another."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total += a[..., :, k : k + 1].astype(np.float32) * b[..., k : k + 1, :].astype(np.float32)
    return total


def product(dtype: str, k: int, options: dict[str, Any]) -> tuple[Graph, Arrays]:
    arrays = {"a": normal_numbers(0, (2, 16, k)).astype(dtype), "b": normal_numbers(1, (2, k, 8)).astype(dtype)}
    g = Graph(**options)
    g.output("c", g.matmul(*(g.tensor(name, TensorSpec(one.shape, dtype)) for name, one in arrays.items())))
    return g, arrays


@pytest.mark.parametrize("k", [1, 7, 500, 4001])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_products_in_any_order(dtype: str, k: int) -> None:
    g, arrays = product(dtype, k, {"tf32": False})
    c = one_by_one(arrays["a"], arrays["b"])
    assert excess(g, arrays, {"c": c.astype(dtype)})["c"] <= 1
    assert excess(g, arrays, {"c": np.zeros_like(c)})["c"] > 30


@pytest.mark.parametrize("k", [1, 500])
def test_tf32_is_allowed_where_the_graph_allows_it(k: int) -> None:
    g, arrays = product("float32", k, {})
    c = one_by_one(*map(to_tf32, arrays.values()))
    assert excess(g, arrays, {"c": c})["c"] <= 1
    assert k > 1 or excess(product("float32", k, {"tf32": False})[0], arrays, {"c": c})["c"] > 100


def test_a_product_that_cancels() -> None:
    g, arrays = product("float16", 512, {"tf32": False})
    arrays["a"][..., 256:] = arrays["a"][..., :256]
    arrays["b"][:, 256:] = -arrays["b"][:, :256]
    arrays["b"][:, 0] *= np.float16(1.001)
    assert excess(g, arrays, {"c": one_by_one(arrays["a"], arrays["b"]).astype(np.float16)})["c"] <= 1


def test_sums_in_parts_of_the_stored_type_are_noted() -> None:
    g, arrays = product("float16", 512, {})
    arrays = {name: np.abs(array) for name, array in arrays.items()}
    parts = [one_by_one(arrays["a"][..., n : n + 64], arrays["b"][:, n : n + 64]) for n in range(0, 512, 64)]
    total = np.zeros(parts[0].shape, np.float16)
    for part in parts:
        total += part.astype(np.float16)
    assert excess(g, arrays, {"c": total})["c"] > 1
    assert excess(g, arrays, {"c": total}, ("reduced_precision_reduction",))["c"] <= 1


def convolution_graph() -> tuple[Graph, Arrays]:
    shapes = {"x": (2, 16, 9, 9), "w": (8, 16, 3, 3), "bias": (1, 8, 1, 1)}
    arrays = {name: normal_numbers(n, shape).astype(np.float16) for n, (name, shape) in enumerate(shapes.items())}
    g = Graph()
    x, w, bias = (g.tensor(name, TensorSpec(one.shape, "float16")) for name, one in arrays.items())
    g.output("y", g.pointwise("gelu_fwd", g.pointwise("add", g.convolution(x, w, padding=1), bias)))
    return g, arrays


def test_a_convolution_that_is_not_fused() -> None:
    g, arrays = convolution_graph()
    stored = reference.Convolution(padding=1).forward(arrays["x"], arrays["w"]) + arrays["bias"]
    (y,) = operation("pointwise", {"mode": 104}, {"x": stored.astype(np.float64)}, y=()).values()
    assert excess(g, arrays, {"y": y.astype(np.float16)})["y"] <= 1


def test_winograd_is_noted() -> None:
    g, arrays = convolution_graph()
    y = reference.run(g, arrays)["y"]
    y[y > 5] += np.float16(1)  # elsewhere the activation is flat
    assert excess(g, arrays, {"y": y})["y"] > 1
    assert excess(g, arrays, {"y": y}, ("winograd_tile_4x4",))["y"] <= 1


def rows_graph(dtype: str) -> tuple[Graph, Arrays]:
    """Scores with a mask of two computed numbers, a softmax, and a layer normalization."""
    arrays = {
        "x": 4 * normal_numbers(0, (2, 16, 33)),
        "scale": normal_numbers(1, (1, 1, 33)),
        "bias": normal_numbers(2, (1, 1, 33)),
    }
    arrays = {name: one.astype(dtype) for name, one in arrays.items()}
    g = Graph()
    x, scale, bias = (g.tensor(name, TensorSpec(one.shape, dtype)) for name, one in arrays.items())
    inside = g.pointwise("cmp_gt", x, g.number(-3.0, 3))
    scores = g.pointwise("binary_select", x, g.number(-np.inf, 3), inside)
    powers = g.pointwise("exp", g.pointwise("sub", scores, g.reduction("max", scores, (-1,))))
    weights = g.pointwise("div", powers, g.reduction("add", powers, (-1,)))
    g.output("weights", weights)
    y, mean, inverse = g.normalization("layer_norm", g.pointwise("add", x, weights), scale, bias, 1e-5)
    g.output("y", y)
    g.output("mean", mean, "float32")
    g.output("inverse", inverse, "float32")
    return g, arrays


def chain_graph(dtype: str) -> tuple[Graph, Arrays]:
    """Two products with an activation between, a gate, and sums."""
    shapes = {"a": (2, 7, 40), "b": (2, 40, 24), "c": (2, 24, 5)}
    arrays = {name: (normal_numbers(n, shape) / 4).astype(dtype) for n, (name, shape) in enumerate(shapes.items())}
    g = Graph(tf32=False)
    a, b, c = (g.tensor(name, TensorSpec(one.shape, dtype)) for name, one in arrays.items())
    hidden = g.matmul(a, b)
    gated = g.pointwise(
        "mul",
        g.pointwise("swish_fwd", hidden),
        g.pointwise("sqrt", g.pointwise("add", g.pointwise("mul", hidden, hidden), g.number(1, 3))),
    )
    y = g.matmul(gated, c)
    g.output("y", y)
    g.output("sums", g.reduction("norm2", g.pointwise("mul", y, g.pointwise("tanh_fwd", y)), (0, 2)), "float32")
    return g, arrays


GRAPHS: dict[str, Callable[[str], tuple[Graph, Arrays]]] = {"rows": rows_graph, "chain": chain_graph}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_in_float32(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g, arrays = GRAPHS[name](dtype)
    assert all(ratio <= 1 for ratio in excess(g, arrays, run_in_float32(g, arrays, monkeypatch)).values())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", [*GRAPHS, "convolution"])
def test_one_wrong_element_is_found(name: str, dtype: str) -> None:
    g, arrays = convolution_graph() if name == "convolution" else GRAPHS[name](dtype)
    right = reference.run(g, arrays)
    for output, array in right.items():
        sizes = np.abs(array.astype(np.float64)).ravel()
        large = np.flatnonzero(sizes >= np.sqrt(np.mean(sizes**2)) / 2)
        for place in large[:: max(large.size // 8, 1)]:
            wrong = array.copy()
            wrong.ravel()[place] *= np.asarray(1.02, array.dtype)
            assert excess(g, arrays, {**right, output: wrong})[output] > 1, (output, place)


def test_a_comparison_that_may_go_either_way() -> None:
    arrays = {"a": np.array([[[1.0, 3.0, 0.1]]], np.float32), "b": np.array([[[1.0], [1.0], [1.0]]], np.float32)}
    g = Graph(tf32=False)
    a, b = (g.tensor(name, TensorSpec(one.shape)) for name, one in arrays.items())
    total = g.matmul(a, b)
    for name, number in (("near", 4.1), ("far", 4.2)):
        flag = g.pointwise("cmp_gt", total, g.number(number, 3))
        g.output(name, g.pointwise("binary_select", total, g.number(-np.inf, 3), flag))
    allowed = reference.tolerance(g, arrays)
    assert allowed["near"].item() == np.inf
    assert allowed["far"].item() == 0  # -infinity, and nothing else


@pytest.mark.parametrize("outside", [-np.inf, -1e9])
def test_the_value_outside_of_a_mask_does_not_enlarge_the_tolerance(outside: float) -> None:
    a, b = (normal_numbers(n, (1, 1, 16, 16)).astype(np.float16) for n in (0, 1))
    g = Graph()
    scores = g.matmul(*(g.tensor(name, TensorSpec(one.shape, "float16")) for name, one in (("a", a), ("b", b))))
    masked = g.add("diagonal_band_mask", x=scores, b=g.number(outside), comparison_mode="cmp_ge")["y"]
    g.output("y", g.pointwise("exp", masked), "float32")
    assert (reference.tolerance(g, {"a": a, "b": b})["y"] < 0.01 * (1 + reference.run(g, {"a": a, "b": b})["y"])).all()


def test_exact_results_have_no_tolerance() -> None:
    g = Graph()
    array = normal_numbers(0, (2, 3, 4)).astype(np.float16)
    x = g.tensor("x", TensorSpec(array.shape, "float16"))
    g.output("y", g.pointwise("relu_fwd", x))
    g.output("largest", g.reduction("max", x, (-1,)))
    assert not any(allowed.any() for allowed in reference.tolerance(g, {"x": array}).values())


def test_attention_with_a_softmax_in_half_precision() -> None:
    heads = {"q": (1, 2, 40, 16), "k": (1, 2, 50, 16), "v": (1, 2, 50, 16)}
    arrays = {name: normal_numbers(n, shape).astype(np.float16) for n, (name, shape) in enumerate(heads.items())}
    operands = {name: name for name in "qkv"}
    g = graph_of([("sdpa_fwd", {}, operands, {"o": ("o", "float16")})], arrays, {"o"}, shape=(1, 2, 40, 16))
    q, k, v = (one.astype(np.float32) for one in arrays.values())
    scores = q @ k.transpose(0, 1, 3, 2)
    powers = np.exp(scores - scores.max(-1, keepdims=True)).astype(np.float16).astype(np.float32)
    o = (powers @ v) / np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)
    assert excess(g, arrays, {"o": o.astype(np.float16)})["o"] <= 1
    wrong = o.astype(np.float16)
    wrong.ravel()[np.argmax(np.abs(o))] *= np.float16(1.02)
    assert excess(g, arrays, {"o": wrong})["o"] > 1


INFINITE_PADDING = {"lower_bandwidth": 1, "upper_bandwidth": 5, "axis": 2, "pad_value": -np.inf}
SINGLE: list[tuple[str, dict[str, Any], str, Arrays]] = [
    ("expand_band_matrix", INFINITE_PADDING, "y", {"x": normal_numbers(0, (2, 7, 7))}),
    ("matmul", {"padding_value": -7.0}, "c", {"m_override": np.full((2, 1, 1), 4, np.int32)}),
    ("softmax", {}, "y", {"x": normal_numbers(0, (2, 7, 7))}),
    (
        "rope_fwd",
        {"output_scale": 0.5},
        "y",
        {"x": normal_numbers(0, (2, 3, 5, 4)), "freqs": normal_numbers(1, (5, 1, 1, 4))},
    ),
]


@pytest.mark.parametrize(("kind", "options", "result", "arrays"), SINGLE, ids=[kind for kind, *_ in SINGLE])
def test_single_operations(
    kind: str, options: dict[str, Any], result: str, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "matmul":
        arrays = {"a": normal_numbers(0, (2, 7, 7)), "b": normal_numbers(1, (2, 7, 7)), **arrays}
    arrays = {name: array if array.dtype == np.int32 else array.astype(np.float32) for name, array in arrays.items()}
    shape = arrays.get("x", arrays.get("a")).shape  # type: ignore[union-attr]
    g = graph_of(
        [(kind, options, {n: n for n in arrays}, {result: (result, "float16")})], arrays, {result}, shape=shape
    )
    g.options = PlanningOptions(tf32=False)
    found = run_in_float32(g, arrays, monkeypatch)
    assert excess(g, arrays, found)[result] <= 1
    finite = np.isfinite(found[result])
    wrong = np.where(finite, found[result] * np.float16(1.02), np.float16(0))
    wrong[finite & (np.abs(found[result]) < 0.1)] = 1
    allowed, right = reference.tolerance(g, arrays)[result], reference.run(g, arrays)[result]
    with np.errstate(invalid="ignore"):
        assert (np.abs(wrong.astype(np.float64) - right) > allowed).all()


def test_a_remainder_whose_quotient_may_pass_a_whole_number_may_have_any_value() -> None:
    """A divisor with an error is in x many times, and the ends of the errors may give nearly the same remainder."""
    g = Graph()
    x = g.tensor("x", TensorSpec((1, 1, 4), "float32"))
    divisor = g.pointwise("sigmoid_fwd", g.tensor("b", TensorSpec((1, 1, 4), "float32")))
    g.output("y", g.pointwise("mod", x, divisor))
    arrays = {
        "x": np.array([[[-3.0, 2.0, 0.3, 1.25]]], np.float32),
        "b": np.array([[[-3.0, -4.0, 0.0, 0.0]]], np.float32),
    }
    allowed = reference.tolerance(g, arrays)["y"].ravel()
    assert np.isinf(allowed[:2]).all()  # 63 and 111 times the divisor
    assert (allowed[2:] < 0.01).all()


def test_an_output_in_an_order_that_is_not_documented_is_unchecked() -> None:
    g, arrays = product("float16", 8, {})
    (c,) = g.outputs
    added = g.output("added", g.pointwise("identity", c), "float32", reordering="f16x16")
    allowed = reference.tolerance(g, arrays)
    assert np.isinf(allowed["added"]).all()
    assert np.isfinite(allowed["c"]).all()
    wrong = np.full(added.shape, np.nan, np.float32)
    found = compare(wrong, reference.run(g, arrays)["added"], allowed["added"])
    assert found.is_right
    assert found.unchecked == wrong.size


def test_the_mean_of_many_positive_numbers_may_be_summed_one_after_the_other() -> None:
    random, shape = np.random.default_rng(0), (8, 128, 768)
    arrays = {"x": random.random(shape, np.float32), "scale": np.ones((1, *shape[1:]), np.float32)}
    g = Graph()
    x, scale = (g.tensor(name, TensorSpec(one.shape)) for name, one in arrays.items())
    g.output("mean", g.normalization("layer_norm", x, scale, scale, 1e-5)[1])
    found = np.add.accumulate(arrays["x"].reshape(8, -1), axis=1, dtype=np.float32)[:, -1] / np.float32(128 * 768)
    error = np.abs(found - arrays["x"].mean((1, 2), np.float64))
    allowed = reference.tolerance(g, arrays)["mean"].ravel()
    assert (error <= allowed).all()
    assert (allowed < 2e-5).all()
