"""One graph for each kind of operation of cuDNN's graph API, computed in NumPy, and planned for a GPU that is not here.

python graph_kinds.py                        # the results' shapes, by the reference implementation
python graph_kinds.py --device h200          # also the plan of each graph, or the reason why there is none
"""

import argparse

import ml_dtypes
import numpy as np

import cudnnpy


class Example:
    """A graph, and arrays for its inputs."""

    def __init__(self):
        self.graph, self.arrays = cudnnpy.Graph(), {}
        self.random = np.random.default_rng(len(KINDS))

    def tensor(self, name, *shape, dtype="float16", values=None, fastest=-1):
        """Add an input of random numbers, or of given ones; `fastest` is the axis of neighbours in memory."""
        drawn = self.random.uniform(-1, 1, shape) if values is None else np.broadcast_to(values, shape)
        array = np.ascontiguousarray(drawn, getattr(ml_dtypes, dtype, dtype))
        array = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, fastest, -1)), -1, fastest)
        self.arrays[name] = array
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return self.graph.tensor(name, cudnnpy.TensorSpec(shape, dtype, strides))

    def image(self, name, *shape, dtype="float16"):
        """Add an image (N, C, H, W), channels last in memory."""
        return self.tensor(name, *shape, dtype=dtype, fastest=1)

    def channels(self, name, count=32, values=None):
        """Add one float32 number for each channel."""
        return self.tensor(name, 1, count, 1, 1, dtype="float32", values=values, fastest=1)


def attention(e, scores, dropout=None, v=None, lengths=None):
    """Add a softmax of scores, and the product with values."""
    g = e.graph
    largest = g.reduction("max", scores, (3,))
    powers = g.pointwise("exp", g.pointwise("sub", scores, largest))
    total = g.reduction("add", powers, (3,))
    g.output("stats", g.pointwise("add", largest, g.pointwise("log", total)), "float32")
    if dropout is None:
        weights = g.pointwise("div", powers, total, dtype="float16")
    else:
        weights = g.pointwise("mul", g.pointwise("div", powers, total), dropout)
        weights = g.pointwise("mul", weights, 1 / 0.9, dtype="float16")
    g.output("o", g.matmul(weights, v or e.tensor("v", 2, 4, 128, 64), **(lengths or {})))


def convolution_forward(e):
    x, w = e.image("x", 4, 32, 14, 14), e.image("w", 64, 32, 3, 3)
    e.graph.output("y", e.graph.convolution(x, w, padding=1))


def convolution_backward_data(e):
    dy, w = e.image("dy", 4, 64, 14, 14), e.image("w", 64, 32, 3, 3)
    e.graph.output("dx", e.graph.convolution_backward_data(dy, w, (4, 32, 14, 14), padding=1))


def convolution_backward_filter(e):
    dy, x = e.image("dy", 4, 64, 14, 14), e.image("x", 4, 32, 14, 14)
    e.graph.output("dw", e.graph.convolution_backward_filter(dy, x, (64, 32, 3, 3), padding=1))


def pointwise(e):
    """The gradient of a relu, of numbers above a limit alone."""
    g, x, dy = e.graph, e.image("x", 4, 32, 8, 8), e.image("dy", 4, 32, 8, 8)
    large = g.pointwise("cmp_gt", x, 0.5)
    g.output("dx", g.pointwise("binary_select", g.pointwise("relu_bwd", dy, x), 0.0, large))


def reduction(e):
    e.graph.output("y", e.graph.reduction("add", e.image("x", 4, 32, 8, 8), (0, 2, 3)), "float32")


def matmul(e):
    g = e.graph
    product = g.matmul(e.tensor("a", 8, 64, 32), e.tensor("b", 8, 32, 48))
    g.output("c", g.pointwise("gelu_fwd", g.pointwise("add", product, e.tensor("bias", 1, 1, 48))))


def resample_fwd(e):
    e.graph.output("y", e.graph.resample("maxpool", e.image("x", 4, 32, 14, 14), 3, padding=1, stride=2))


def resample_bwd(e):
    dy = e.image("dy", 4, 32, 7, 7)
    e.graph.output("dx", e.graph.resample_backward("avgpool_include_padding", dy, (4, 32, 14, 14), 2))


def norm_forward(e):
    """The statistics of batch normalization in training, and the running ones."""
    g, x = e.graph, e.image("x", 4, 32, 8, 8)
    scale, bias, mean, variance = (e.channels(name, values=0.5) for name in ("scale", "bias", "mean", "variance"))
    results = g.normalization("batch_norm", x, scale, bias, 1e-5, running=(mean, variance), average_factor=0.1)
    for name, node in zip(("y", "saved_mean", "saved_inverse", "new_mean", "new_variance"), results, strict=True):
        g.output(name, node, "float16" if name == "y" else "float32")


def norm_backward(e):
    g, dy, x = e.graph, e.image("dy", 4, 32, 8, 8), e.image("x", 4, 32, 8, 8)
    scale, mean, inverse = e.channels("scale"), e.channels("mean"), e.channels("inverse", values=1.7)
    results = g.normalization_backward("batch_norm", dy, x, scale, mean, inverse)
    for name, node in zip(("dx", "dscale", "dbias"), results, strict=True):
        g.output(name, node, "float16" if name == "dx" else "float32")


def gen_stats(e):
    """The sums of a convolution's result, as batch normalization after it needs them."""
    g = e.graph
    y = g.output("y", g.convolution(e.image("x", 4, 32, 14, 14), e.image("w", 64, 32, 3, 3), padding=1))
    for name, node in zip(("sum", "sq_sum"), g.add("gen_stats", x=y).values(), strict=True):
        g.output(name, node, "float32")


def bn_finalize(e):
    g = e.graph
    total, squares = e.channels("sum"), e.channels("squares", values=900.0)
    scale, bias, mean, variance = (e.channels(name, values=0.5) for name in ("scale", "bias", "mean", "variance"))
    results = g.add(
        "bn_finalize",
        y_sum=total,
        y_sq_sum=squares,
        scale=scale,
        bias=bias,
        epsilon=1e-5,
        accum_count=784,
        prev_running_mean=mean,
        prev_running_var=variance,
        exp_average_factor=0.1,
        results=("saved_mean", "saved_inv_std", "updated_running_mean", "updated_running_var"),
    )
    for name, node in results.items():
        g.output(name, node, "float32")


def bn_bwd_weights(e):
    """A gradient of a convolution through a relu to the batch normalization before it."""
    g, x = e.graph, e.image("x", 4, 32, 14, 14)
    mean, inverse, scale, bias = (e.channels(name, values=0.7) for name in ("mean", "inverse", "scale", "bias"))
    dy, w = e.image("dy", 4, 64, 14, 14), e.image("w", 64, 32, 3, 3)
    gradient = g.convolution_backward_data(dy, w, (4, 32, 14, 14), padding=1)
    normalized = g.pointwise("mul", g.pointwise("sub", x, mean), inverse)
    activated = g.pointwise("add", g.pointwise("mul", normalized, scale), bias)
    gradient = g.output("gradient", g.pointwise("relu_bwd", gradient, activated))
    results = g.add("bn_bwd_weights", x=x, dy=gradient, mean=mean, invstd=inverse, bn_scale=scale)
    for name, node in results.items():
        g.output(name, node, "float32")


def concat(e):
    """The result of a convolution before channels that lie in the result's memory already."""
    g, x, w = e.graph, e.image("x", 4, 32, 8, 8), e.image("w", 32, 32, 3, 3)
    y = g.convolution(x, w, padding=1, dtype="float16")
    inputs = y, e.image("others", 4, 32, 8, 8)
    g.output("y", g.add("concat", inputs=inputs, axis=1, inplace_index=1)["output"])


def reshape(e):
    """The gradients of attention: strides that are swapped transpose a matrix."""
    g, square = e.graph, 128 * 128
    q, k, o, do = (e.tensor(name, 2, 4, 128, 64) for name in ("q", "k", "o", "do"))
    kt = g.add("reshape", x=k, shape=(2, 4, 64, 128), strides=(4 * 8192, 8192, 1, 64))["y"]
    vt = e.tensor("v transposed", 2, 4, 64, 128, fastest=2)
    stats = e.tensor("stats", 2, 4, 128, 1, dtype="float32", values=5.0)
    total = g.reduction("add", g.pointwise("mul", do, o), (3,))
    total = g.output("total", g.pointwise("mul", total, 1.0), "float32")
    scores = g.pointwise("mul", g.matmul(q, kt), 0.125)
    weights = g.pointwise("exp", g.pointwise("sub", scores, stats))
    stored = g.pointwise("mul", weights, 1.0, dtype="float16")
    turned = {"shape": (2, 4, 128, 128), "strides": (4 * square, square, 1, 128)}
    g.output("dv", g.matmul(g.add("reshape", x=stored, **turned)["y"], do))
    slopes = g.pointwise("mul", g.pointwise("sub", g.matmul(do, vt), total), weights)
    slopes = g.pointwise("mul", slopes, 0.125, dtype="float16")
    g.output("dq", g.matmul(slopes, k))
    g.output("dk", g.matmul(g.add("reshape", x=slopes, **turned)["y"], q))


def transpose(e):
    e.graph.output("y", e.graph.add("transpose", x=e.tensor("x", 2, 16, 4, 64), permutation=(0, 2, 1, 3))["y"])


def slice(e):
    """A product of a part of the rows."""
    g = e.graph
    part = g.add("slice", x=e.tensor("a", 8, 64, 32), start=(0, 16, 0), limit=(8, 48, 32), stride=(1, 1, 1))
    g.output("y", g.matmul(part["y"], e.tensor("b", 8, 32, 64)))


def signal(e):
    g = e.graph
    flag = e.tensor("flag", 1, 1, 1, 1, dtype="int32", values=1)
    g.output("y", g.add("signal", mode="wait", flag=flag, value=1, x=e.image("x", 4, 32, 8, 8))["y"])


def rng(e):
    """Attention with a dropout."""
    g, q, k = e.graph, e.tensor("q", 2, 4, 128, 64), e.tensor("k", 2, 4, 64, 128, fastest=2)
    seed, offset = (e.tensor(name, 1, 1, 1, 1, dtype="int64", values=7) for name in ("seed", "offset"))
    bits = g.add("rng", shape=(2, 4, 128, 128), seed=seed, offset=offset, distribution="bernoulli", probability=0.9)
    mask = g.output("mask", bits["y"], "float32")
    e.arrays["mask"] = e.random.binomial(1, 0.9, mask.shape).astype(np.float32)  # on a GPU they are cuDNN's own bits
    attention(e, g.pointwise("mul", g.matmul(q, k), 0.125), mask)


def paged_cache_load(e):
    """Attention with keys and values in pages, and sequences of several lengths."""
    g, q, size = e.graph, e.tensor("q", 2, 4, 128, 64), 128 * 64
    pages, values = (e.tensor(name, 16, 4, 16, 64) for name in ("pages of k", "pages of v"))
    rows, columns = (e.tensor(name, 2, 1, 1, 1, dtype="int32", values=100) for name in ("rows", "columns"))
    table = e.tensor("table", 2, 1, 8, 1, dtype="int32", values=np.arange(16).reshape(2, 1, 8, 1))
    given = {"sequence": columns, "page_table": table}
    turned = {"shape": (2, 4, 64, 128), "strides": (4 * size, size, 1, 64)}
    k, v = (
        g.add("paged_cache_load", container=pages, **given, **turned),
        g.add("paged_cache_load", container=values, **given),
    )
    scores = g.pointwise("mul", g.matmul(q, k["y"], m=rows, n=columns), 0.125)
    limits = e.tensor("limits", 2, 1, 128, 1, dtype="int32", values=100)  # the columns of each query
    inside = g.pointwise("cmp_lt", g.pointwise("gen_index", scores, axis=3), limits)
    scores = g.pointwise("binary_select", scores, -1e30, inside)
    attention(e, scores, v=v["y"], lengths={"m": rows, "k": columns})


def block_scale_quantize(e):
    for name, node in e.graph.add("block_scale_quantize", x=e.tensor("x", 1, 128, 256), block_size=(32,)).items():
        e.graph.output(name, node)


def block_scale_dequantize(e):
    """A product of float8 matrices with a scale for 32 elements."""
    g = e.graph
    a, b = e.tensor("a", 1, 128, 128, dtype="float8_e4m3fn"), e.tensor("b", 1, 128, 128, dtype="float8_e4m3fn")
    a_scale = e.tensor("a_scale", 1, 128, 4, dtype="float8_e8m0fnu", values=0.5)
    b_scale = e.tensor("b_scale", 1, 4, 128, dtype="float8_e8m0fnu", values=2.0)
    left = g.add("block_scale_dequantize", x=a, scale=a_scale, block_size=(32,))
    right = g.add("block_scale_dequantize", x=b, scale=b_scale, block_size=(32,))
    g.output("c", g.matmul(left["y"], right["y"]), "float16")


def expand_band_matrix(e):
    g, x = e.graph, e.tensor("x", 2, 4, 64, 8)
    band = {"lower_bandwidth": 4, "upper_bandwidth": 3, "axis": 3, "pad_value": 0.0}
    g.output("y", g.add("expand_band_matrix", x=x, shape=(2, 4, 64, 64), **band)["y"], "float16")


def contract_band_matrix(e):
    band = {"lower_bandwidth": 4, "upper_bandwidth": 3, "axis": 3}
    e.graph.output("y", e.graph.add("contract_band_matrix", x=e.tensor("x", 2, 4, 64, 64), **band)["y"], "float16")


def diagonal_band_mask(e):
    """Attention with a causal mask."""
    g, q, k = e.graph, e.tensor("q", 2, 4, 128, 64), e.tensor("k", 2, 4, 64, 128, fastest=2)
    scores = g.pointwise("mul", g.matmul(q, k), 0.125)
    attention(e, g.add("diagonal_band_mask", x=scores, b=-np.inf, comparison_mode="cmp_ge")["y"])


def softmax(e):
    """The middle of attention."""
    g, q, v = e.graph, e.tensor("q", 2, 4, 64, 64), e.tensor("v", 2, 4, 64, 64)
    weights = g.add("softmax", x=g.matmul(q, e.tensor("k", 2, 4, 64, 64, fastest=2)), dtype="float16")["y"]
    g.output("y", g.matmul(weights, v))


def rope_fwd(e):
    x, freqs = e.tensor("x", 2, 4, 64, 64), e.tensor("freqs", 64, 1, 1, 64, dtype="float32")
    e.graph.output("y", e.graph.add("rope_fwd", x=x, freqs=freqs)["y"])


def rope_bwd(e):
    dy, freqs = e.tensor("dy", 2, 4, 64, 64), e.tensor("freqs", 64, 1, 1, 64, dtype="float32")
    e.graph.output("dx", e.graph.add("rope_bwd", dy=dy, freqs=freqs)["dx"])


def sdpa_fwd(e):
    given = {name: e.tensor(name, 2, 4, 128, 64) for name in "qkv"}
    for name, node in e.graph.add("sdpa_fwd", **given, scale=0.125, results=("stats",)).items():
        e.graph.output(name, node)


def sdpa_bwd(e):
    given = {name: e.tensor(name, 2, 4, 128, 64) for name in ("q", "k", "v", "o", "do")}
    stats = e.tensor("stats", 2, 4, 128, 1, dtype="float32", values=5.0)
    for name, node in e.graph.add("sdpa_bwd", **given, stats=stats, scale=0.125).items():
        e.graph.output(name, node)


def moe_grouped_matmul(e):
    first = e.tensor("first", 4, 1, 1, dtype="int32", values=np.array([0, 30, 30, 100]).reshape(4, 1, 1))
    weight = e.tensor("weight", 4, 64, 32, fastest=1)
    token = e.tensor("token", 1, 128, 64)
    made = e.graph.add("moe_grouped_matmul", token=token, weight=weight, first_token_offset=first)
    e.graph.output("y", made["output"])


def moe_grouped_matmul_bwd(e):
    first = e.tensor("first", 4, 1, 1, dtype="int32", values=np.array([0, 30, 30, 100]).reshape(4, 1, 1))
    doutput, token = e.tensor("doutput", 1, 128, 32), e.tensor("token", 1, 128, 64)
    made = e.graph.add("moe_grouped_matmul_bwd", doutput=doutput, token=token, first_token_offset=first)
    e.graph.output("dweight", made["dweight"])


KINDS = {
    function.__name__: function
    for function in (
        *(convolution_forward, convolution_backward_data, convolution_backward_filter, pointwise, reduction, matmul),
        *(resample_fwd, resample_bwd, norm_forward, norm_backward, gen_stats, bn_finalize, bn_bwd_weights, concat),
        *(reshape, transpose, slice, signal, rng, paged_cache_load, block_scale_quantize, block_scale_dequantize),
        *(
            expand_band_matrix,
            contract_band_matrix,
            diagonal_band_mask,
            softmax,
            rope_fwd,
            rope_bwd,
            sdpa_fwd,
            sdpa_bwd,
        ),
        *(moe_grouped_matmul, moe_grouped_matmul_bwd),
    )
}


def example(kind):
    """Return the example of a kind."""
    made = Example()
    KINDS[kind](made)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="the name or the file of a device profile")
    profile = parser.parse_args().device
    for kind in KINDS:
        made = example(kind)
        results = cudnnpy.reference.run(made.graph, made.arrays)
        print(f"{kind}: {', '.join(f'{name} {array.dtype}{list(array.shape)}' for name, array in results.items())}")
        if profile:
            try:
                print(f"    {made.graph.plan(cudnnpy.DeviceProfile.load(profile))}")
            except (cudnnpy.CudnnError, RuntimeError) as error:
                print(f"    no plan: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
