"""Batch normalization of no elements and without parameters, which test_operations.py does not draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cudnnpy
from cudnnpy import reference

TOLERANCE = {"float16": 2e-3, "float32": 1e-4, "float64": 1e-11}
EPSILON = {"epsilon": 0.1}  # so that no variance is small beside the error of mean(x^2) - mean^2
EMPTY = [(0, 3, 4), (2, 3, 0), (0, 3, 4, 5), (2, 3, 0, 5), (0, 3, 2, 4, 5)]


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


# None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_smoke_channels_of_no_elements(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    options = {"layout": layout}
    x = np.moveaxis(np.ones(shape, dtype), 1, -1) if layout == "NHWC" else np.ones(shape, dtype)
    kind = wide(dtype)
    scale, bias, running_mean, running_variance = (normal((3,), kind, seed) for seed in range(4))
    for activation in (None, "relu"):
        running = {"running_mean": running_mean, "running_variance": running_variance}
        given = x, scale, bias
        _, *statistics = check(
            "BatchNormalization", options, "forward_training", *given, **running, activation=activation
        )
    np.testing.assert_array_equal(running_mean, normal((3,), kind, 2))
    means = {"mean": running_mean, "variance": np.abs(running_variance)}
    check("BatchNormalization", options, "forward_inference", x, scale, bias, **means)
    check("BatchNormalization", options, "backward", x, x, scale, *statistics)
    check(
        "BatchNormalization", options, "backward", x, x, scale, out_scale=bias, out_bias=scale + 1, parameter_beta=0.5
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 8, 7, 6), (64, 64, 32, 32)], ids=str)
def test_batches_without_parameters(shape: tuple[int, ...], dtype: str) -> None:
    """Small ones by functions, large ones by graphs."""
    x, dy = normal(shape, dtype), normal(shape, dtype, 1)
    kind, count = wide(dtype), (shape[1],)
    for parameters in ((None, None), (normal(count, kind, 2), None), (None, normal(count, kind, 3))):
        running = {"running_mean": normal(count, kind, 4), "running_variance": np.abs(normal(count, kind, 5))}
        _, *saved = check(
            "BatchNormalization", EPSILON, "forward_training", x, *parameters, **running, average_factor=-1.0
        )
        means = {"mean": normal(count, kind, 6), "variance": np.abs(normal(count, kind, 7)) + 0.5}
        check("BatchNormalization", EPSILON, "forward_inference", x, *parameters, **means)
        check("BatchNormalization", EPSILON, "backward", dy, x, parameters[0], *saved, bias=parameters[1] is not None)
        check("BatchNormalization", EPSILON, "backward", dy, x, parameters[0], bias=parameters[1] is not None)
