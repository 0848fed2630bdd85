"""reference.run: the evaluator of graphs against the layers' reference, differences, identities; rounding and bad input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from graph_evaluation import OPTIONS, graph_of, operation
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import says
from reference_checks import assert_close, normal_numbers

from cudnnpy import Graph, TensorSpec, raw, reference
from cudnnpy.graph.kinds import KINDS, pointwise_name
from cudnnpy.reference._kinds import FUNCTIONS

POINTWISE = {pointwise_name(mode): mode for mode in raw.cudnnPointwiseMode_t}
SIZES = st.sampled_from([1, 2, 3, 5, 7])
SEEDS = st.integers(0, 2**32 - 1)


def node_of(graph: Graph, name: str, array: np.ndarray, strides: Any = None) -> Any:
    return graph.tensor(name, TensorSpec(array.shape, array.dtype.name, strides))


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor (N, C, H, W)."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def test_every_kind_has_a_function() -> None:
    assert set(KINDS) <= set(FUNCTIONS)


# Against the layers


@settings(deadline=None)
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    extra=st.tuples(SIZES, SIZES),
    taps=st.tuples(*[st.sampled_from([1, 2, 3])] * 2),
    stride=st.tuples(*[st.integers(1, 3)] * 2),
    dilation=st.tuples(*[st.integers(1, 2)] * 2),
    padding=st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2),
    groups=st.integers(1, 3),
    last=st.booleans(),
    mode=st.sampled_from(["cross_correlation", "convolution"]),
    seed=SEEDS,
)
def test_convolutions_are_the_layers(
    sizes: Any,
    extra: Any,
    taps: Any,
    stride: Any,
    dilation: Any,
    padding: Any,
    groups: int,
    last: bool,
    mode: Any,
    seed: int,
) -> None:
    n, c, k = sizes
    image = [(r - 1) * d + e for r, d, e in zip(taps, dilation, extra, strict=True)]
    x = normal_numbers(seed, (n, c * groups, *image))
    w = normal_numbers(seed + 1, (k * groups, c, *taps))
    layer = reference.Convolution(padding=padding, stride=stride, dilation=dilation, groups=groups, mode=mode)
    y = layer.forward(x, w)
    g = Graph(compute_dtype="float64")
    strides = channels_last if last else lambda shape: None
    nodes = [node_of(g, name, one, strides(one.shape)) for name, one in (("x", x), ("w", w))]
    g.output("y", g.convolution(*nodes, padding=padding, stride=stride, dilation=dilation, mode=mode, groups=groups))
    assert_close(reference.run(g, {"x": x, "w": w})["y"], y)

    dy = normal_numbers(seed + 2, y.shape)
    geometry = {
        "mode": raw.CUDNN_CONVOLUTION if mode == "convolution" else raw.CUDNN_CROSS_CORRELATION,
        "pre_padding": tuple(before for before, _ in padding),
        "post_padding": tuple(after for _, after in padding),
        "stride": stride,
        "dilation": dilation,
    }
    made = operation("convolution_backward_data", geometry, {"dy": dy, "w": w}, dx=x.shape)
    assert_close(made["dx"], layer.backward_data(dy, w, x.shape))
    made = operation("convolution_backward_filter", geometry, {"dy": dy, "x": x}, dw=w.shape)
    assert_close(made["dw"], layer.backward_filter(dy, x, w.shape))


@settings(deadline=None)
@given(shape=st.tuples(SIZES, SIZES, SIZES, SIZES), factor=st.floats(0, 1), seed=SEEDS)
def test_batch_normalization_is_the_layer(shape: Any, factor: float, seed: int) -> None:
    x, dy = (normal_numbers(seed + n, shape) for n in (0, 1))
    row = (1, shape[1], 1, 1)
    scale, bias, mean, dispersion = (normal_numbers(seed + n, row) for n in (2, 3, 4, 5))
    variance = dispersion**2
    old = {"running_mean": mean.ravel().copy(), "running_variance": variance.ravel().copy()}
    layer = reference.BatchNormalization()
    expected = layer.forward_training(x, scale.ravel(), bias.ravel(), **old, average_factor=factor)
    arrays = {"x": x, "scale": scale, "bias": bias, "mean": mean, "var": variance}
    g = Graph(compute_dtype="float64")
    nodes = {name: node_of(g, name, array) for name, array in arrays.items()}
    made = g.normalization(
        "batch_norm",
        nodes["x"],
        nodes["scale"],
        nodes["bias"],
        1e-5,
        running=(nodes["mean"], nodes["var"]),
        average_factor=factor,
    )
    for number, node in enumerate(made):
        g.output(f"y{number}", node)
    found = list(reference.run(g, arrays).values())
    for one, other in zip(found, (*expected, *old.values()), strict=True):
        assert_close(one.reshape(other.shape), other)

    arrays = {"dy": dy, "x": x, "scale": scale, "mean": found[1], "inverse": found[2]}
    g = Graph(compute_dtype="float64")
    gradient_nodes = g.normalization_backward("batch_norm", *(node_of(g, *pair) for pair in arrays.items()))
    for name, node in zip("abc", gradient_nodes, strict=True):
        g.output(name, node)
    gradients = layer.backward(dy, x, scale.ravel(), found[1].ravel(), found[2].ravel())
    for one, other in zip(reference.run(g, arrays).values(), gradients, strict=True):
        assert_close(one.reshape(other.shape), other)


@settings(deadline=None)
@given(
    shape=st.tuples(SIZES, SIZES, st.integers(3, 7), st.integers(3, 7)),
    window=st.tuples(*[st.integers(1, 3)] * 2),
    stride=st.tuples(*[st.integers(1, 3)] * 2),
    mode=st.sampled_from(["max", "average_include_padding", "average_exclude_padding"]),
    with_index=st.booleans(),
    seed=SEEDS,
)
def test_pooling_is_the_layer(shape: Any, window: Any, stride: Any, mode: Any, with_index: bool, seed: int) -> None:
    x = normal_numbers(seed, shape)
    padding = tuple(size // 2 for size in window)
    layer = reference.Pooling(mode, window=window, padding=padding, stride=stride)
    y = layer.forward(x)
    g = Graph(compute_dtype="float64")
    name = "maxpool" if mode == "max" else mode.replace("average", "avgpool")
    g.output("y", g.resample(name, node_of(g, "x", x), window, padding=padding, stride=stride))
    assert_close(reference.run(g, {"x": x})["y"], y)

    options = dict(g._operation_graph({}).operations[0].options)
    dy, arrays = normal_numbers(seed + 1, y.shape), {"x": x}
    if mode == "max" and with_index:
        arrays = {"index": operation("resample_fwd", options, {"x": x}, y=y.shape)["index"]}
    made = operation("resample_bwd", options, {"dy": dy, **arrays}, dx=x.shape)
    assert_close(made["dx"], layer.backward(dy, x, y))


@settings(deadline=None)
@given(shape=st.tuples(SIZES, SIZES, SIZES), seed=SEEDS)
def test_softmax_is_the_layer(shape: Any, seed: int) -> None:
    x = 3 * normal_numbers(seed, shape)
    expected = np.moveaxis(reference.Softmax().forward(np.moveaxis(x, -1, 1)), 1, -1)
    g = Graph(compute_dtype="float64")
    node = node_of(g, "x", x)
    powers = g.pointwise("exp", g.pointwise("sub", node, g.reduction("max", node, (-1,))))
    g.output("y", g.pointwise("div", powers, g.reduction("add", powers, (-1,))))
    assert_close(reference.run(g, {"x": x})["y"], expected)
    assert_close(operation("softmax", {}, {"x": x}, y=shape)["y"], expected)


@pytest.mark.parametrize("mode", ["relu", "sigmoid", "tanh", "elu", "swish", "clipped_relu"])
def test_activations_are_the_layers(mode: str) -> None:
    x, dy = (3 * normal_numbers(seed, (2, 3, 5, 7)) for seed in (0, 1))
    is_clipped = mode == "clipped_relu"
    layer = reference.Activation(mode, coefficient=1.5 if is_clipped else 1.0)
    name, how = ("relu", {"relu_upper_clip": 1.5}) if is_clipped else (mode, {})
    y = layer.forward(x)
    assert_close(pointwise(f"{name}_fwd", how, x=x), y)
    assert_close(pointwise(f"{name}_bwd", how, dy=dy, x=x), layer.backward(dy, x, y))


# Differences


def pointwise(name: str, options: Mapping[str, Any] | None = None, **arrays: np.ndarray) -> np.ndarray:
    (made,) = operation("pointwise", {"mode": POINTWISE[name], **(options or {})}, arrays, y=()).values()
    return np.asarray(made)


def assert_gradient(function: Callable[..., np.ndarray], arrays: list[np.ndarray], gradients: list[np.ndarray]) -> None:
    """Compare sum(gradient * direction) with the difference of a scalar function along a random direction."""
    for place, gradient in enumerate(gradients):
        direction = normal_numbers(100 + place, arrays[place].shape)
        moved = [
            function(*[a + step * direction if n == place else a for n, a in enumerate(arrays)])
            for step in (1e-5, -1e-5)
        ]
        assert (gradient * direction).sum() == pytest.approx(float(moved[0] - moved[1]) / 2e-5, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "options", [{}, {"elu_alpha": 0.5, "softplus_beta": 2.0, "swish_beta": 1.5, "relu_lower_clip_slope": 0.1}]
)
@pytest.mark.parametrize("name", [name.removesuffix("_bwd") for name in POINTWISE if name.endswith("_bwd")])
def test_gradients_of_activations_are_differences(name: str, options: dict[str, float]) -> None:
    x, dy = np.linspace(-4, 4, 24).reshape(2, 3, 4), normal_numbers(1, (2, 3, 4))  # no element is 0
    assert_gradient(
        lambda x: (dy * pointwise(f"{name}_fwd", options, x=x)).sum(),
        [x],
        [pointwise(f"{name}_bwd", options, dy=dy, x=x)],
    )


NORMS = {
    "batch": (raw.CUDNN_BATCH_NORM, (4, 3, 5, 2), (1, 3, 1, 1)),
    "instance": (raw.CUDNN_INSTANCE_NORM, (4, 3, 5, 2), (1, 3, 1, 1)),
    "layer": (raw.CUDNN_LAYER_NORM, (4, 3, 5, 2), (1, 3, 5, 2)),
    "rms": (raw.CUDNN_RMS_NORM, (4, 7, 1, 1), (1, 7, 1, 1)),
    "adaptive": (raw.CUDNN_ADA_LAYER_NORM, (2, 3, 5), (2, 1, 5)),
}
STATISTICS = {
    "batch": (1, 3, 1, 1),
    "instance": (4, 3, 1, 1),
    "layer": (4, 1, 1, 1),
    "rms": (4, 1, 1, 1),
    "adaptive": (2, 3, 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_normalizations_are_differences(name: str) -> None:
    mode, shape, parameters = NORMS[name]
    x, dy = (normal_numbers(seed, shape) + 1 for seed in (0, 1))
    scale, bias = (normal_numbers(seed, parameters) for seed in (2, 3))
    options = {"mode": mode, "phase": raw.CUDNN_NORM_FWD_TRAINING}

    def forward(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
        given = {"x": x, "scale": scale, "bias": bias, "epsilon": np.full((1,) * x.ndim, 1e-3)}
        return operation("norm_forward", options, given, y=shape)

    made = forward(x, scale, bias)
    assert made["inv_variance"].shape == STATISTICS[name]
    given = {"dy": dy, "x": x, "scale": scale, "mean": made["mean"], "inv_variance": made["inv_variance"]}
    found = operation("norm_backward", {"mode": mode}, given, dx=shape)
    assert_gradient(
        lambda *arrays: (dy * forward(*arrays)["y"]).sum(),
        [x, scale, bias],
        [found[one] for one in ("dx", "dscale", "dbias")],
    )


RESAMPLING = {
    "pre_padding": ((1, 2), (1, 2)),
    "post_padding": ((1, 2), (1, 2)),
    "stride": ((1, 2), (2, 3)),
    "window": (2, 2),
}


@pytest.mark.parametrize("padding", raw.cudnnPaddingMode_t)
@pytest.mark.parametrize("mode", set(raw.cudnnResampleMode_t))
def test_gradients_of_resampling_are_differences(mode: int, padding: int) -> None:
    options = {**RESAMPLING, "mode": mode, "padding_mode": padding}
    x, dy = normal_numbers(0, (2, 3, 4, 5)), normal_numbers(1, (2, 3, 7, 6))
    if padding == raw.CUDNN_NEG_INF_PAD and mode != raw.CUDNN_RESAMPLE_MAXPOOL:
        options["pre_padding"] = (0, 0)  # the padding of a sum is 0 or an edge
    found = operation("resample_bwd", options, {"dy": dy, "x": x}, dx=x.shape)["dx"]
    assert_gradient(lambda x: (dy * operation("resample_fwd", options, {"x": x}, y=dy.shape)["y"]).sum(), [x], [found])


def attention(heads: int = 4, shared: int = 2) -> dict[str, np.ndarray]:
    shapes = {"q": (2, heads, 5, 3), "k": (2, shared, 7, 3), "v": (2, shared, 7, 2)}
    arrays = {name: normal_numbers(seed, shape) for seed, (name, shape) in enumerate(shapes.items())}
    return arrays | {
        "scale": np.full((1, 1, 1, 1), 0.6),
        "seq_len_q": np.array([5, 3]).reshape(2, 1, 1, 1),
        "seq_len_kv": np.array([7, 4]).reshape(2, 1, 1, 1),
    }


def test_gradients_of_attention_are_differences() -> None:
    arrays, do = attention(), normal_numbers(9, (2, 4, 5, 2))
    made = operation("sdpa_fwd", {}, arrays, o=do.shape)
    given = {**arrays, "o": made["o"], "stats": made["stats"], "do": do}
    found = operation("sdpa_bwd", {}, given, dq=(), dk=(), dv=())

    def forward(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Any:
        return (do * operation("sdpa_fwd", {}, {**arrays, "q": q, "k": k, "v": v}, o=do.shape)["o"]).sum()

    assert_gradient(forward, [arrays[name] for name in "qkv"], [found[name] for name in ("dq", "dk", "dv")])


def test_gradients_of_a_sink_and_a_bias_are_differences() -> None:
    x, sink, bias, do = (
        normal_numbers(n, s) for n, s in enumerate([(2, 4, 5, 7), (1, 4, 1, 1), (1, 1, 5, 7), (2, 4, 5, 7)])
    )
    v, k = np.eye(7)[None, None].repeat(2, 0).repeat(4, 1), np.eye(7)[None, None].repeat(2, 0).repeat(4, 1)

    def forward(x: np.ndarray, sink: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
        return operation("softmax", {}, {"x": x + bias, "sink": sink}, y=x.shape)

    made = forward(x, sink, bias)  # the scores of q = x + bias and k = v = 1
    given = {"q": x + bias, "k": k, "v": v, "o": made["y"], "stats": made["stats"], "do": do, "sink": sink}
    found = operation("sdpa_bwd", {}, given, dbias=bias.shape)
    assert_gradient(
        lambda *a: (do * forward(*a)["y"]).sum(), [x, sink, bias], [found[n] for n in ("dq", "dsink", "dbias")]
    )


# Identities


def test_as_many_positions_as_columns_are_transposed_by_the_strides() -> None:
    pages, table = normal_numbers(5, (2, 1, 4, 8)), np.array([1, 0]).reshape(1, 1, 2, 1)
    arrays = {"pages": pages, "table": table.astype(np.int32), "length": np.full((1, 1, 1, 1), 7, np.int32)}
    whole = np.concatenate([pages[1], pages[0]], 1)[None] * (np.arange(8)[:, None] < 7)
    for strides, expected in (((64, 64, 8, 1), whole), ((64, 64, 1, 8), whole.transpose(0, 1, 3, 2))):
        g = Graph()
        nodes = [node_of(g, name, array) for name, array in arrays.items()]
        operands = dict(zip(("container", "page_table", "sequence"), nodes, strict=True))
        y = g.add("paged_cache_load", **operands, shape=(1, 1, 8, 8), strides=strides)["y"]
        g.output("y", y)
        np.testing.assert_array_equal(reference.run(g, arrays)["y"], expected)


def test_fewer_positions_than_columns_are_transposed() -> None:
    pages, table = normal_numbers(5, (2, 1, 2, 8)), np.array([1, 0]).reshape(1, 1, 2, 1)
    arrays = {"pages": pages, "table": table.astype(np.int32), "length": np.full((1, 1, 1, 1), 4, np.int32)}
    g = Graph()
    nodes = [node_of(g, name, array) for name, array in arrays.items()]
    operands = dict(zip(("container", "page_table", "sequence"), nodes, strict=True))
    g.output("y", g.add("paged_cache_load", **operands, shape=(1, 1, 8, 3), strides=(24, 24, 1, 8))["y"])
    whole = np.concatenate([pages[1], pages[0]], 1)[None, :, :3]
    np.testing.assert_array_equal(reference.run(g, arrays)["y"], whole.transpose(0, 1, 3, 2))
    for shape in ((1, 1, 8, 5), (1, 1, 7, 3), (1, 2, 4, 8), (1, 1, 32)):
        with pytest.raises(
            ValueError, match=r"^shape must be \(1, 1, 4, 8\), with fewer rows at most, or its transpose"
        ):
            g.add("paged_cache_load", **operands, shape=shape)


def test_attention_on_pages_is_attention_on_the_gathered_tensors() -> None:
    arrays = attention(4, 2)
    pages = {name: normal_numbers(5 + n, (6, 2, 4, arrays[name].shape[3])) for n, name in enumerate("kv")}
    tables = {name: np.array([[3, 0], [5, 2]]).reshape(2, 1, 2, 1) for name in "kv"}
    whole = {
        name: np.stack([np.concatenate([pages[name][page] for page in row.ravel()], 1) for row in tables[name]])
        for name in "kv"
    }
    given = {"container": pages["k"], "page_table": tables["k"], "sequence": arrays["seq_len_kv"]}
    loaded = operation("paged_cache_load", {}, given, y=(2, 2, 8, 3))["y"]
    lengths = np.arange(8)[:, None] < arrays["seq_len_kv"]
    np.testing.assert_array_equal(loaded, np.where(lengths, whole["k"], 0))
    np.testing.assert_array_equal(
        operation("paged_cache_load", {}, given, y=(2, 2, 3, 8))["y"], loaded.transpose(0, 1, 3, 2)
    )
    on_pages = arrays | pages | {f"page_table_{name}": tables[name] for name in "kv"}
    assert_close(
        operation("sdpa_fwd", {}, on_pages, o=(2, 4, 5, 2))["o"],
        operation("sdpa_fwd", {}, arrays | whole, o=(2, 4, 5, 2))["o"],
    )


def test_attention_with_a_mask_of_blocks_a_dropout_and_scales() -> None:
    arrays = {
        "q": normal_numbers(0, (1, 2, 130, 4)),
        "k": normal_numbers(1, (1, 2, 200, 4)),
        "v": normal_numbers(2, (1, 2, 200, 3)),
    }
    scores = arrays["q"] @ arrays["k"].transpose(0, 1, 3, 2)
    blocks = np.array([[[1, 0], [1, 1]], [[0, 1], [1, 0]]])[None]
    inside = np.kron(blocks[0], np.ones((1, 128, 128)))[:, :130, :200] != 0
    powers = np.where(inside, np.exp(scores), 0)
    weights = powers / powers.sum(-1, keepdims=True)
    expected = weights @ arrays["v"]
    assert_close(operation("sdpa_fwd", {}, {**arrays, "block_mask": blocks}, o=expected.shape)["o"], expected)
    bits = (blocks * [1, 2]).sum(-1, keepdims=True)
    assert_close(operation("sdpa_fwd", {}, {**arrays, "block_mask": bits}, o=expected.shape)["o"], expected)

    kept = np.random.default_rng(0).random(scores.shape) < 0.75
    dropped = operation(
        "sdpa_fwd",
        {"dropout_probability": 0.25},
        {**arrays, "block_mask": bits, "dropout_rng_dump": kept},
        o=expected.shape,
    )
    assert_close(dropped["o"], (weights * kept / 0.75) @ arrays["v"])
    scales = {"descale_q": 2.0, "descale_k": 0.5, "descale_v": 4.0, "scale_s": 8.0, "descale_s": 0.125, "scale_o": 16.0}
    made = operation(
        "sdpa_fwd",
        {},
        {**arrays, "block_mask": bits} | {n: np.full((1, 1, 1, 1), s) for n, s in scales.items()},
        o=expected.shape,
    )
    assert_close(made["o"], 64 * expected)
    assert made["amax_s"].item() == pytest.approx(weights.max())
    assert made["amax_o"].item() == pytest.approx(4 * np.abs(expected).max())


def test_the_statistics_of_a_softmax() -> None:
    x, sink = normal_numbers(0, (2, 3, 5, 7)), normal_numbers(1, (1, 3, 1, 1))
    x[0, 0, 0] = -np.inf
    with np.errstate(divide="ignore"):
        made = operation("softmax", {"stats_log2": True}, {"x": x}, y=x.shape)
        np.testing.assert_allclose(made["stats"], np.log2(np.exp(x).sum(-1, keepdims=True)), rtol=1e-12)
    assert not made["y"][0, 0, 0].any()
    np.testing.assert_array_equal(made["max"], x.max(-1, keepdims=True))
    made = operation("softmax", {}, {"x": x, "sink": sink}, y=x.shape)
    total = np.exp(x).sum(-1, keepdims=True) + np.exp(sink)
    assert_close(made["y"], np.exp(x) / total)
    assert_close(made["max"] + np.log(made["sum_exp"]), np.log(total))


def test_statistics_and_their_end_are_a_batch_normalization() -> None:
    x, dy = (normal_numbers(seed, (3, 5, 2, 7)) + 1 for seed in (0, 1))
    scale, bias, mean, variance = (1 + 0.1 * normal_numbers(seed, (1, 5, 1, 1)) for seed in (2, 3, 4, 5))
    numbers = {"epsilon": np.full((1, 1, 1, 1), 1e-3), "exp_average_factor": np.full((1, 1, 1, 1), 0.25)}
    sums = operation("gen_stats", {}, {"x": x}, sum=scale.shape)
    given = {
        "y_sum": sums["sum"],
        "y_sq_sum": sums["sq_sum"],
        "scale": scale,
        "bias": bias,
        "accum_count": np.full((1, 1, 1, 1), 42),
    }
    old = {"prev_running_mean": mean, "prev_running_var": variance}
    made = operation("bn_finalize", {}, {**given, **numbers, **old}, eq_scale=scale.shape)
    norm = {"x": x, "scale": scale, "bias": bias, "input_running_mean": mean, "input_running_var": variance}
    norm |= {"epsilon": numbers["epsilon"], "exp_avg_factor": numbers["exp_average_factor"]}
    options = {"mode": raw.CUDNN_BATCH_NORM, "phase": raw.CUDNN_NORM_FWD_TRAINING}
    expected = operation("norm_forward", options, norm, y=x.shape)
    assert_close(made["eq_scale"] * x + made["eq_bias"], expected["y"])
    for one, other in (
        ("saved_mean", "mean"),
        ("saved_inv_std", "inv_variance"),
        ("updated_running_mean", "output_running_mean"),
        ("updated_running_var", "output_running_var"),
    ):
        assert_close(made[one], expected[other])

    inference = {"mode": raw.CUDNN_BN_FINALIZE_STATISTICS_INFERENCE}
    made = operation("bn_finalize", inference, {**given, **numbers, **old}, eq_scale=scale.shape)
    options["phase"] = raw.CUDNN_NORM_FWD_INFERENCE
    assert_close(made["eq_scale"] * x + made["eq_bias"], operation("norm_forward", options, norm, y=x.shape)["y"])

    given = {"x": x, "dy": dy, "mean": expected["mean"], "invstd": expected["inv_variance"], "bn_scale": scale}
    weights = operation("bn_bwd_weights", {}, given, dbn_scale=scale.shape)
    names = {"dy": dy, "x": x, "scale": scale, "mean": expected["mean"], "inv_variance": expected["inv_variance"]}
    gradients = operation("norm_backward", {"mode": raw.CUDNN_BATCH_NORM}, names, dx=x.shape)
    assert_close(weights["eq_dy_scale"] * dy + weights["eq_x_scale"] * x + weights["eq_bias"], gradients["dx"])
    assert_close(weights["dbn_scale"], gradients["dscale"])
    assert_close(weights["dbn_bias"], gradients["dbias"])


def test_bands_are_each_others_inverse() -> None:
    band = normal_numbers(0, (2, 5, 4))
    options = {"lower_bandwidth": 1, "upper_bandwidth": 2, "axis": 2, "pad_value": -9.0}
    matrix = operation("expand_band_matrix", options, {"x": band}, y=(2, 5, 5))["y"]
    for row in range(5):
        for column in range(5):
            expected = band[:, row, column - row + 1] if -1 <= column - row <= 2 else -9.0
            np.testing.assert_array_equal(matrix[:, row, column], expected)
    back = operation("contract_band_matrix", options, {"x": matrix}, y=band.shape)["y"]
    exists = [[0 <= row - 1 + place < 5 for place in range(4)] for row in range(5)]
    np.testing.assert_array_equal(back, np.where(exists, band, -9.0))
    cut = operation("contract_band_matrix", {**options, "max_token_value": 3}, {"x": matrix}, y=band.shape)["y"]
    np.testing.assert_array_equal(cut, np.where([[0 <= r - 1 + p < 3 for p in range(4)] for r in range(5)], band, -9.0))


@pytest.mark.parametrize("rope_dim", [None, 4])
def test_rope_turns_and_turns_back(rope_dim: int | None) -> None:
    x, half = normal_numbers(0, (2, 3, 5, 6)), normal_numbers(1, (5, 1, 1, (rope_dim or 6) // 2))
    options = {"output_scale": 2.0} | ({} if rope_dim is None else {"rope_dim": rope_dim})
    freqs = np.concatenate([half, half], -1)
    y = operation("rope_fwd", options, {"x": x, "freqs": freqs}, y=x.shape)["y"]
    first = 6 - (rope_dim or 6)
    np.testing.assert_array_equal(y[..., :first], 2 * x[..., :first])
    turned = (x[..., first : first + half.size // 5] + 1j * x[..., first + half.size // 5 :]) * np.exp(
        1j * half[:, 0, 0]
    )
    assert_close(y[..., first:], 2 * np.concatenate([turned.real, turned.imag], -1))
    assert_close(operation("rope_bwd", options, {"dy": y, "freqs": freqs}, dx=x.shape)["dx"], 4 * x)
    apart = {"x": x, "freqs": normal_numbers(2, freqs.shape)}  # the gradient, whatever the angles
    dy = normal_numbers(3, x.shape)
    dx = operation("rope_bwd", options, {"dy": dy, "freqs": apart["freqs"]}, dx=x.shape)["dx"]
    assert_gradient(lambda x: (dy * operation("rope_fwd", options, {**apart, "x": x}, y=x.shape)["y"]).sum(), [x], [dx])


@pytest.mark.parametrize("scale_dtype", ["float32", "float8_e4m3fn", "float8_e8m0fnu"])
def test_blocks_are_quantized_and_back(scale_dtype: str) -> None:
    x = normal_numbers(0, (2, 5, 70)) * 10.0 ** normal_numbers(1, (2, 5, 1))
    x[0, 0, :32] = 0
    scale = np.zeros((2, 5, 3))
    specs = {"y": TensorSpec(x.shape, "float8_e4m3fn"), "scale": TensorSpec(scale.shape)._replace(dtype=scale_dtype)}
    made = operation("block_scale_quantize", {"block_size": (32,)}, {"x": x}, specs)
    exact = np.abs(np.pad(x, [(0, 0), (0, 0), (0, 26)]).reshape(2, 5, 3, 32)).max(-1) / 448
    assert (made["scale"] >= exact).all()
    largest = {"float32": 1.0, "float8_e4m3fn": 1.13, "float8_e8m0fnu": 2.0}[scale_dtype]
    is_normal = (exact > 2.0**-6) | (scale_dtype != "float8_e4m3fn")
    assert (made["scale"] <= largest * exact)[(exact > 0) & is_normal].all()
    if scale_dtype == "float8_e8m0fnu":
        assert (np.frexp(made["scale"])[0] == 0.5).all()
    stored = made["y"].astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert np.isfinite(stored).all()
    for block in ((32,), (1, 32)):
        given = {"x": stored, "scale": made["scale"]}
        back = operation("block_scale_dequantize", {"block_size": block}, given, y=x.shape)["y"]
        allowed = np.repeat(made["scale"], 32, -1)[..., :70] * 2.0**-9
        assert (np.abs(back - x) <= np.abs(x) / 16 + allowed).all()


def test_experts_multiply_their_tokens() -> None:
    token, weight = normal_numbers(0, (1, 7, 3)), normal_numbers(1, (4, 3, 5))
    offsets, expert = np.array([0, 2, 2, 6]).reshape(4, 1, 1), [0, 0, 2, 2, 2, 2, 3]
    rows = np.stack([token[0, t] @ weight[e] for t, e in enumerate(expert)])
    given = {"token": token, "weight": weight, "first_token_offset": offsets}
    assert_close(operation("moe_grouped_matmul", {"mode": 0}, given, output=(1, 7, 5))["output"], rows[None])
    index = np.array([6, 1, 1, 0, 4, 5, 2])
    gathered = operation(
        "moe_grouped_matmul", {"mode": 1}, {**given, "token_index": index.reshape(1, 7, 1)}, output=(1, 7, 5)
    )
    assert_close(gathered["output"][0], np.stack([token[0, t] @ weight[e] for t, e in zip(index, expert, strict=True)]))
    to = {
        "token_index": np.array([3, 0, 1, 2, 0, 3, 1]).reshape(1, 7, 1),
        "token_ks": np.array([0, 1, 1, 0, 0, 1, 0]).reshape(1, 7, 1),
    }
    scattered = operation("moe_grouped_matmul", {"mode": 2, "top_k": 2}, {**given, **to}, output=(1, 8, 5))["output"]
    expected = np.zeros((8, 5))
    expected[[6, 1, 3, 4, 0, 7, 2]] = rows
    assert_close(scattered[0], expected)
    for mode, wrong, message in (
        (1, {"token_index": index - 1}, r"token_index must have rows of the 7 there are .*; got -1 to 5"),
        (2, {**to, "token_index": index + 1}, r"token_index \* top_k \+ token_ks must have rows of the 7 there are"),
        (0, {"first_token_offset": offsets + 2}, r"first_token_offset must have ends of rows of the 8 .*; got 2 to 8"),
    ):
        with pytest.raises(ValueError, match=message):
            operation("moe_grouped_matmul", {"mode": mode}, {**given, **wrong}, output=(1, 7, 5))
    dy = normal_numbers(2, (1, 7, 5))
    dweight = operation(
        "moe_grouped_matmul_bwd",
        {},
        {"doutput": dy, "token": token, "first_token_offset": offsets},
        dweight=weight.shape,
    )

    def forward(weight: np.ndarray) -> Any:
        return (dy * operation("moe_grouped_matmul", {}, {**given, "weight": weight}, output=dy.shape)["output"]).sum()

    assert_gradient(forward, [weight], [dweight["dweight"]])


def test_band_masks_are_their_composition() -> None:
    x = normal_numbers(0, (2, 3, 5, 7))
    row, column = np.arange(5)[:, None], np.arange(7)
    outside = np.full((1, 1, 1, 1), -np.inf)
    at_least = {"comparison_mode": raw.CUDNN_POINTWISE_CMP_GE}
    causal = operation("diagonal_band_mask", at_least, {"x": x, "b": outside}, y=x.shape)["y"]
    np.testing.assert_array_equal(causal, np.where(row >= column, x, -np.inf))
    lengths = {
        "seq_len_q": np.array([5, 3]).reshape(2, 1, 1, 1),
        "cu_seq_len_kv": np.array([0, 7, 11]).reshape(3, 1, 1, 1),
    }
    given = {"x": x, "b": np.full((1, 1, 1, 1), -5.0), **lengths}
    shift = np.array([2, 1]).reshape(2, 1, 1, 1)
    below = {"comparison_mode": raw.CUDNN_POINTWISE_CMP_GE}
    found = operation("diagonal_band_mask", below, {**given, "shift_right_bound": np.full((1, 1, 1, 1), 1)}, y=x.shape)[
        "y"
    ]
    np.testing.assert_array_equal(found, np.where(row + shift + 1 >= column, x, -5.0))
    above = {"comparison_mode": raw.CUDNN_POINTWISE_CMP_GT}
    found = operation("diagonal_band_mask", above, {**given, "left_bound": np.full((1, 1, 1, 1), 2)}, y=x.shape)["y"]
    np.testing.assert_array_equal(found, np.where(column + 2 - shift > row, x, -5.0))


def test_elements_move() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    specs = {"x": TensorSpec((2, 3, 4), "float32", (12, 1, 3)), "y": TensorSpec((6, 4), "float32", (4, 1))}
    memory = x.transpose(0, 2, 1).ravel()
    np.testing.assert_array_equal(operation("reshape", {}, {"x": x}, specs)["y"].ravel(), memory)
    logical = {"mode": raw.CUDNN_RESHAPE_LOGICAL}
    np.testing.assert_array_equal(operation("reshape", logical, {"x": x}, specs)["y"], x.reshape(6, 4))
    np.testing.assert_array_equal(
        operation("transpose", {"permutation": (2, 0, 1)}, {"x": x}, y=())["y"], x.transpose(2, 0, 1)
    )
    part = {"start": (0, 1, 0), "limit": (2, 3, 4), "stride": (1, 1, 3)}
    np.testing.assert_array_equal(operation("slice", part, {"x": x}, y=())["y"], x[:, 1:, ::3])
    both = operation("concat", {"axis": 1}, {"inputs": (x, 2 * x)}, output=())["output"]
    np.testing.assert_array_equal(both, np.concatenate([x, 2 * x], 1))
    assert operation("signal", {}, {"x": x, "flag": x}, y=())["y"] is x


def test_products_of_valid_sizes() -> None:
    a, b = normal_numbers(0, (2, 5, 3)), normal_numbers(1, (1, 3, 4))
    sizes = {name: np.array(valid).reshape(2, 1, 1) for name, valid in (("m", [5, 2]), ("n", [1, 4]), ("k", [3, 2]))}
    given = {"a": a, "b": b, **{f"{name}_override": one for name, one in sizes.items()}}
    c = operation("matmul", {"padding_value": -7.0}, given, c=(2, 5, 4))["c"]
    assert_close(c[0, :5, :1], a[0] @ b[0, :, :1])
    assert_close(c[1, :2], a[1, :2, :2] @ b[0, :2])
    assert (c[0, :, 1:] == -7).all()
    assert (c[1, 2:] == -7).all()
    heads = operation(
        "matmul", {}, {"a": normal_numbers(2, (1, 4, 5, 3)), "b": normal_numbers(3, (1, 2, 3, 4))}, c=(1, 4, 5, 4)
    )["c"]
    assert_close(heads[0, 3], normal_numbers(2, (1, 4, 5, 3))[0, 3] @ normal_numbers(3, (1, 2, 3, 4))[0, 1])


# Elementwise operations and reductions


@pytest.mark.parametrize("name", [name for name in POINTWISE if not name.endswith(("_fwd", "_bwd"))])
def test_elementwise_operations(name: str) -> None:
    x, b = np.array([[-2.5, -1.0, 0.0, 1.0, 2.5, 7.0]]), np.array([[2.0], [-3.0], [1.0]])
    t = np.array([[0.0], [1.0], [-1.0]])
    own: dict[str, Callable[[float, float], float]] = {
        "abs": lambda x, b: abs(x),
        "ceil": lambda x, b: math.ceil(x),
        "cos": lambda x, b: math.cos(x),
        "exp": lambda x, b: math.exp(x),
        "floor": lambda x, b: math.floor(x),
        "log": lambda x, b: math.log(x),
        "neg": lambda x, b: -x,
        "rsqrt": lambda x, b: x**-0.5,
        "sin": lambda x, b: math.sin(x),
        "sqrt": lambda x, b: math.sqrt(x),
        "tan": lambda x, b: math.tan(x),
        "erf": lambda x, b: math.erf(x),
        "identity": lambda x, b: x,
        "reciprocal": lambda x, b: 1 / x,
        "logical_not": lambda x, b: not x,
        "add": lambda x, b: x + b,
        "add_square": lambda x, b: x + b * b,
        "div": lambda x, b: x / b,
        "max": max,
        "min": min,
        "mod": math.fmod,
        "floor_mod": lambda x, b: x - math.floor(x / b) * b,
        "mul": lambda x, b: x * b,
        "pow": lambda x, b: x**b,
        "sub": lambda x, b: x - b,
        "atan2": math.atan2,
        "cmp_eq": lambda x, b: x == b,
        "cmp_neq": lambda x, b: x != b,
        "cmp_gt": lambda x, b: x > b,
        "cmp_ge": lambda x, b: x >= b,
        "cmp_lt": lambda x, b: x < b,
        "cmp_le": lambda x, b: x <= b,
        "logical_and": lambda x, b: bool(x and b),
        "logical_or": lambda x, b: bool(x or b),
        "gen_index": lambda x, b: x,
        "binary_select": lambda x, b: x,
    }
    if name in ("log", "rsqrt", "sqrt", "reciprocal", "pow"):
        x = np.abs(x) + 0.5
    expected = [[own[name](float(one), float(other)) for one in x[0]] for other in b[:, 0]]
    if name == "gen_index":
        assert pointwise(name, {"axis": 1}, x=x).tolist() == [[0, 1, 2, 3, 4, 5]]
    elif name == "binary_select":
        np.testing.assert_array_equal(pointwise(name, x=x, b=b, t=t), np.where([[False], [True], [True]], x, b))
    else:
        np.testing.assert_allclose(np.broadcast_to(pointwise(name, x=x, b=b), (3, 6)), expected, rtol=1e-14)


def test_scales_clips_and_whole_quotients() -> None:
    x, b = np.array([-7.0, -1.0, 3.0, 7.0]), np.array([2.0, 2.0, 2.0, 2.0])
    assert pointwise("sub", {"alpha1": 2.0, "alpha2": -1.0}, x=x, b=b).tolist() == [-12, 0, 8, 16]
    assert pointwise("div", {"compute_dtype": "int32"}, x=x, b=b).tolist() == [-3, 0, 1, 3]
    clips = {"relu_lower_clip": 1.0, "relu_upper_clip": 5.0}
    assert pointwise("relu_fwd", clips, x=x).tolist() == [1, 1, 3, 5]
    assert pointwise("relu_fwd", {"relu_lower_clip_slope": 0.5}, x=x).tolist() == [-3.5, -0.5, 3, 7]
    assert math.isnan(pointwise("relu_fwd", x=np.array([math.nan]))[0])
    assert pointwise("relu_fwd", x=np.array([math.inf]))[0] == math.inf


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", 0.0),
        ("mul", 0.0),
        ("min", -3.0),
        ("max", 2.0),
        ("amax", 3.0),
        ("avg", 0.0),
        ("norm1", 6.0),
        ("norm2", math.sqrt(14)),
        ("mul_no_zeros", -6.0),
    ],
)
def test_reductions(op: Any, expected: float) -> None:
    x = np.array([[[-3.0, 1.0, 0.0, 2.0]]])
    g = Graph(compute_dtype="float64")
    g.output("y", g.reduction(op, node_of(g, "x", x), (-1,)))
    assert reference.run(g, {"x": x})["y"].tolist() == [[[expected]]]


def test_interpolation() -> None:
    x = np.array([[[[0.0, 4.0, 8.0]]]])
    options = {"pre_padding": (0, 0), "post_padding": (0, 0), "stride": (1, (1, 2)), "window": (1, 2)}
    options["padding_mode"] = raw.CUDNN_EDGE_VAL_PAD
    for mode, expected in (
        (raw.CUDNN_RESAMPLE_BILINEAR, [0, 2, 4, 6, 8]),
        (raw.CUDNN_RESAMPLE_NEAREST, [0, 0, 4, 4, 8]),
    ):
        assert (
            operation("resample_fwd", {**options, "mode": mode}, {"x": x}, y=(1, 1, 1, 5))["y"].ravel().tolist()
            == expected
        )


def test_the_index_of_a_maximum_counts_in_the_window() -> None:
    x = np.array([[[[1.0, 5.0], [5.0, 2.0]]]])
    options = {
        **RESAMPLING,
        "pre_padding": (1, 1),
        "post_padding": (0, 0),
        "stride": (1, 1),
        "mode": raw.CUDNN_RESAMPLE_MAXPOOL,
    }
    made = operation("resample_fwd", {**options, "padding_mode": raw.CUDNN_NEG_INF_PAD}, {"x": x}, y=(1, 1, 2, 2))
    assert made["index"][0, 0].tolist() == [[3, 3], [3, 1]]  # the first of equals


# Rounding


def test_every_tensor_is_rounded_at_its_own_dtype() -> None:
    x = np.full((1, 1, 1), 2048.0, np.float32)
    for dtype, expected in (("float32", 1.0), ("float16", 0.0), ("bfloat16", 0.0), ("float8_e5m2", 0.0)):
        steps = [
            ("pointwise", {"mode": POINTWISE["add"]}, {"x": "x", "b": "one"}, {"y": ("sum", dtype)}),
            ("pointwise", {"mode": POINTWISE["sub"]}, {"x": "sum", "b": "x"}, {"y": ("y", "float32")}),
        ]
        found = reference.run(graph_of(steps, {"x": x}, {"y"}, {"one": 1.0}), {"x": x})
        assert found["y"].dtype == np.float32
        assert found["y"].item() == expected


def test_integers_and_flags_saturate_and_are_true_or_false() -> None:
    x = np.array([[[-300.0, 0.4, 0.5, 1.5, 300.0]]], np.float32)
    for dtype, expected in (
        ("int8", [-128, 0, 0, 2, 127]),
        ("uint8", [0, 0, 0, 2, 255]),
        ("bool", [True, True, True, True, True]),
    ):
        steps = [("pointwise", {"mode": POINTWISE["identity"]}, {"x": "x"}, {"y": ("y", dtype)})]
        found = reference.run(graph_of(steps, {"x": x}, {"y"}), {"x": x})
        assert found["y"].dtype.name == dtype
        assert found["y"].ravel().tolist() == expected


# Bad input


def graph() -> Graph:
    g = Graph()
    g.output("y", g.pointwise("add", g.tensor("x", TensorSpec((1, 2, 3))), g.tensor("b", TensorSpec((1, 2, 1)))))
    return g


X, B = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2, 1), np.float32)


@pytest.mark.parametrize("function", [reference.run, reference.tolerance])
@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"x": X}, TypeError, "arrays must be the graph's inputs, by name; got no b"),
        ({"x": X, "b": B, "y": X}, TypeError, "arrays must be the graph's inputs, by name; got unknown y"),
        ({"c": X, "b": B}, TypeError, "...got no x and unknown c"),
        ({"x": X, "b": B[..., 0]}, ValueError, "b must have the graph's shape, (1, 2, 1); got shape (1, 2)"),
        ({"x": X, "b": B.astype(np.float64)}, TypeError, "b must be float32; got float64"),
        ({"x": X.tolist(), "b": B}, TypeError, "x must be a numpy.ndarray; got a builtins.list"),
        ([X, B], TypeError, "arrays must be a dict of NumPy arrays by name; got ..."),
    ],
)
def test_bad_arrays_are_named(function: Any, arrays: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=says(message)):
        function(graph(), arrays)


def test_bad_graphs_are_named() -> None:
    with pytest.raises(TypeError, match=says("graph must be a cudnnpy.Graph; got ...")):
        reference.run("g", {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says("a graph must have an output; got none")):
        reference.run(Graph(), {})


def test_random_bits_are_the_callers() -> None:
    steps = [
        ("rng", {}, {"seed": "seed"}, {"y": ("mask", "float32")}),
        ("pointwise", {"mode": POINTWISE["mul"]}, {"x": "x", "b": "mask"}, {"y": ("y", "float32")}),
    ]
    seed, mask = np.zeros((1, 1, 1), np.int32), np.array([[[1.0, 0.0, 1.0]]], np.float32)
    x = np.array([[[2.0, 3.0, 4.0]]], np.float32)
    g = graph_of(steps, {"seed": seed, "x": x}, {"y", "mask"})
    found = reference.run(g, {"seed": seed, "x": x, "mask": mask})
    assert found["y"].tolist() == [[[2, 0, 4]]]
    assert found["mask"].tolist() == mask.tolist()
    with pytest.raises(ValueError, match=says("arrays must have the result of rng...")):
        reference.run(g, {"seed": seed, "x": x})


@pytest.mark.parametrize(
    ("kind", "options", "extra", "message"),
    [
        ("sdpa_fwd", {"dropout_probability": 0.5}, {}, "dropout_probability must be 0 for the reference...got 0.5..."),
        ("sdpa_bwd", {"dropout_probability": 0.5}, {}, "dropout_probability must be 0 for the reference...got 0.5..."),
        ("norm_forward", {}, {"peer_stats": (X,)}, "peer_stats must be left out for the reference..."),
        ("norm_backward", {}, {"peer_stats": (X,)}, "peer_stats must be left out for the reference..."),
        (
            "expand_band_matrix",
            OPTIONS,
            {"kv_token_offset": X},
            "kv_token_offset must be left out for the reference...",
        ),
    ],
)
def test_what_numpy_cannot_know_is_refused(kind: str, options: Any, extra: Any, message: str) -> None:
    with pytest.raises(ValueError, match=says(message)):
        operation(kind, options, {**attention(), "x": X, **extra}, y=(1, 2, 3), o=(2, 4, 5, 2))
