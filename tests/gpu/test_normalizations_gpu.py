"""Normalizations of sizes that test_operations.py does not draw: none, and more or longer rows than engines are made for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import cudnnpy
from cudnnpy import reference

TOLERANCE = {"float16": 2e-3, "float32": 1e-4, "float64": 1e-11}
EPSILON = {"epsilon": 0.1}  # so that no variance is small beside the error of mean(x^2) - mean^2
EMPTY = [(0, 3, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (0, 3, 2, 4, 5)]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    cudnnpy.clear_cache()
    yield
    cudnnpy.clear_cache()


def on_gpu(array: Any) -> Any:
    return torch.from_numpy(np.array(array)).cuda() if isinstance(array, np.ndarray) else array


def check(name: str, options: dict[str, Any], method: str, *given: Any, **more: Any) -> tuple[Any, ...]:
    """A call's results are those of the reference, of PyTorch, and the arrays that it writes are the same; the results."""
    ours, theirs = (getattr(getattr(package, name)(**options), method) for package in (cudnnpy, reference))
    tensors, named = [on_gpu(array) for array in given], {key: on_gpu(array) for key, array in more.items()}
    expected = theirs(*given, **more)
    found = ours(*tensors, **named)
    torch.cuda.synchronize()
    pairs = list(zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True))
    pairs += [(t, a) for t, a in zip((*tensors, *named.values()), (*given, *more.values()), strict=True)]
    for tensor, array in pairs:
        assert (tensor is None) == (array is None)
        if isinstance(array, np.ndarray):
            assert isinstance(tensor, torch.Tensor)
            assert tensor.is_cuda
            values = tensor.cpu().numpy()
            assert (values.shape, values.dtype) == (array.shape, array.dtype)
            tolerance = TOLERANCE[array.dtype.name]
            np.testing.assert_allclose(
                values.astype(np.float64), array.astype(np.float64), rtol=tolerance, atol=tolerance * scale_of(array)
            )
    return expected if isinstance(expected, tuple) else (expected,)


def scale_of(array: np.ndarray) -> float:
    return max(1.0, float(np.abs(np.nan_to_num(array.astype(np.float64))).max(initial=0.0)))


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def check_rows(shape: tuple[int, ...], kept: int, dtype: str, own: bool = False) -> None:
    """Both normalizations of rows, with and without parameters, and their gradients."""
    kind = dtype if own else wide(dtype)
    x, dy = normal(shape, dtype), normal(shape, dtype, 1)
    scale, bias = normal(shape[kept:], kind, 2), normal(shape[kept:], kind, 3)
    for name, parameters in (("LayerNormalization", (scale, bias)), ("RMSNormalization", (scale,))):
        _, *statistics = check(name, EPSILON, "forward_training", x, *parameters)
        check(name, EPSILON, "backward", dy, x, scale, *statistics)
        _, *statistics = check(name, EPSILON, "forward_training", x, normalized_shape=shape[kept:])
        check(name, EPSILON, "backward", dy, x, None, *statistics)
        check(name, EPSILON, "forward_inference", x, *parameters)


# None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (2, 0, 4), (2, 3, 0), (0,)], ids=str)
def test_smoke_rows_of_no_elements(shape: tuple[int, ...], dtype: str) -> None:
    for kept in range(len(shape)):
        check_rows(shape, kept, dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_smoke_channels_of_no_elements(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    options = {"layout": layout}
    x = np.moveaxis(np.ones(shape, dtype), 1, -1) if layout == "NHWC" else np.ones(shape, dtype)
    kind = wide(dtype)
    scale, bias, running_mean, running_variance = (normal((3,), kind, seed) for seed in range(4))
    _, *statistics = check("InstanceNormalization", options, "forward_training", x, scale, bias)
    check("InstanceNormalization", options, "backward", x, x, scale, *statistics)
    for activation in (None, "relu"):
        given = x, scale, bias, running_mean, running_variance, 0.1, activation
        _, *statistics = check("BatchNormalization", options, "forward_training", *given)
    np.testing.assert_array_equal(running_mean, normal((3,), kind, 2))
    check("BatchNormalization", options, "forward_inference", x, scale, bias, running_mean, np.abs(running_variance))
    check("BatchNormalization", options, "backward", x, x, scale, *statistics)
    check(
        "BatchNormalization", options, "backward", x, x, scale, out_scale=bias, out_bias=scale + 1, parameter_beta=0.5
    )
    check("LocalResponseNormalization", options, "forward", x)
    check("LocalResponseNormalization", options, "backward", x, x, x)


def test_nothing_is_launched_for_no_elements() -> None:
    """A stream that is captured records nothing, of which PyTorch warns."""
    x, scale = torch.empty(0, 8, device="cuda"), torch.ones(8, device="cuda")
    layer = cudnnpy.LayerNormalization()
    layer.forward_training(x, scale, scale)
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="CUDA Graph is empty"), torch.cuda.graph(graph):
        y, mean, inverse = layer.forward_training(x, scale, scale)
    graph.replay()
    torch.cuda.synchronize()
    assert (y.shape, mean.shape, inverse.shape) == ((0, 8), (0,), (0,))


# Few rows, many rows, long rows: by a graph where there is an engine, else by functions


@pytest.mark.parametrize("own", [False, True], ids=["float32 parameters", "its own"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((1,), 0),
        ((5,), 0),
        ((64,), 0),
        ((2, 3), 0),
        ((1, 2, 3), 0),
        ((64, 1), 1),
        ((1, 1), 1),
        ((70_000, 3), 1),
        ((70_000, 8), 1),
        ((3, 100_003), 1),
        ((1 << 20,), 0),
        ((2, 3, 4, 5, 6), 2),
    ],
    ids=str,
)
def test_rows_of_any_number_and_length(shape: tuple[int, ...], kept: int, dtype: str, own: bool) -> None:
    check_rows(shape, kept, dtype, own)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 1), (1, 1, 5), (2, 8, 7, 6), (3, 70_000, 2), (2, 4, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_instances_of_any_number_and_size(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    options = {"layout": layout, **EPSILON}
    channels = shape[1]
    first = normal(shape, dtype), normal(shape, dtype, 1)
    x, dy = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) if layout == "NHWC" else a for a in first)
    for kind in dict.fromkeys((dtype, wide(dtype))):
        scale, bias = normal((channels,), kind, 2), normal((channels,), kind, 3)
        _, *statistics = check("InstanceNormalization", options, "forward_training", x, scale, bias)
        check("InstanceNormalization", options, "backward", dy, x, scale, *statistics)
    _, *statistics = check("InstanceNormalization", options, "forward_training", x)
    check("InstanceNormalization", options, "backward", dy, x, None, *statistics)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 8, 7, 6), (64, 64, 32, 32)], ids=str)
def test_batches_without_parameters(shape: tuple[int, ...], dtype: str) -> None:
    """Small ones by functions, large ones by graphs."""
    x, dy = normal(shape, dtype), normal(shape, dtype, 1)
    kind, count = wide(dtype), (shape[1],)
    for parameters in ((None, None), (normal(count, kind, 2), None), (None, normal(count, kind, 3))):
        running = normal(count, kind, 4), np.abs(normal(count, kind, 5))
        _, *saved = check("BatchNormalization", EPSILON, "forward_training", x, *parameters, *running, -1.0)
        means = normal(count, kind, 6), np.abs(normal(count, kind, 7)) + 0.5
        check("BatchNormalization", EPSILON, "forward_inference", x, *parameters, *means)
        check("BatchNormalization", EPSILON, "backward", dy, x, parameters[0], *saved, bias=parameters[1] is not None)
        check("BatchNormalization", EPSILON, "backward", dy, x, parameters[0], bias=parameters[1] is not None)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_responses_of_three_axes(layout: str, dtype: str) -> None:
    shape = (2, 7, 33) if layout == "NCW" else (2, 33, 7)
    x, dy = normal(shape, dtype), normal(shape, dtype, 1)
    options = {"layout": layout, "alpha": 0.5}
    (y,) = check("LocalResponseNormalization", options, "forward", x)
    check("LocalResponseNormalization", options, "backward", dy, x, y)


def test_a_mean_far_above_the_deviation() -> None:
    """What is composed of functions takes the mean off before it squares."""
    x = (2.0**40 + np.arange(8.0)).reshape(1, 8)
    y = cudnnpy.LayerNormalization(0.0).forward_inference(on_gpu(x), normalized_shape=8)
    np.testing.assert_allclose(y.cpu().numpy()[0], (np.arange(8) - 3.5) / math.sqrt(5.25), rtol=1e-12)


# Rows for which the nodes have no fast engine


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(5000, 100), (4100, 197), (4097, 1000)], ids=str)
def test_many_rows_of_odd_lengths(shape: tuple[int, int], dtype: str, own: bool) -> None:
    check_rows(shape, 1, dtype, own)
