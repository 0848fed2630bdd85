"""Arrays that differ only in the strides of axes of size 1, as PyTorch and CuPy write them; and batches of 0.

They share a plan, the engines for depthwise convolutions are found for each of them, and new results have the memory order
that PyTorch gives them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from whole_numbers import assert_same, exact_result, to_host, whole_numbers

import cudnnpy
from cudnnpy import Convolution, Graph, TensorSpec, reference

nn: Any = cudnnpy
twin: Any = reference
IMAGES = [(1, 8, 6, 6), (8, 1, 6, 6), (8, 8, 1, 1), (1, 1, 6, 6), (1, 8, 1, 1), (8, 8, 1, 6)]
CHANNELS_LAST = torch.channels_last
CHANNELS = 144


def described(tensor: torch.Tensor, *numbers: int) -> torch.Tensor:
    """The same memory, with other strides for axes of size 1."""
    given = iter(numbers)
    strides = [next(given, 5) if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    return torch.as_strided(tensor, tensor.shape, strides)


def variants(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors as they are, and with other numbers; none that PyTorch takes for channels last."""
    found = [tensors]
    for seed in range(4):
        numbers = random.Random(seed)
        found.append([described(t, *(numbers.choice([2, 7, 64, 1000]) for _ in t.shape)) for t in tensors])
    return found


def operations(x: tuple[int, ...]) -> dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]]:
    """Calls of `nn` or of the reference, and their arrays' shapes."""
    n, c, *spatial = x
    w, y = (8, c, 3, 3), (n, 8, *spatial)
    return {
        "forward": (lambda nn, x, w: nn.Convolution(padding=1).forward(x, w), [x, w]),
        "backward_data": (lambda nn, dy, w: nn.Convolution(padding=1).backward_data(dy, w, x), [y, w]),
        "backward_filter": (lambda nn, dy, a: nn.Convolution(padding=1).backward_filter(dy, a, w), [y, x]),
        "depthwise": (lambda nn, a, b: nn.Convolution(padding=1, groups=c).forward(a, b), [x, (c, 1, 3, 3)]),
        "transposed": (lambda nn, a, b: nn.ConvolutionTranspose(padding=1).forward(a, b), [x, (c, 8, 3, 3)]),
        "fused": (lambda nn, a, b, r: nn.FusedConvolution(padding=1).forward(a, b, residual=r), [x, w, y]),
        "pooling": (lambda nn, a: nn.Pooling("max", 3, padding=1, stride=2).forward(a), [x]),
        "average": (lambda nn, a: nn.Pooling("average_exclude_padding", 3, padding=1).forward(a), [x]),
        "softmax": (lambda nn, a: nn.Softmax().forward(a), [x]),
        "activation": (lambda nn, a: nn.Activation("tanh").forward(a), [x]),
        "batch normalization": (
            lambda nn, a, s, b, m: nn.BatchNormalization().forward_inference(a, s, b, mean=m, variance=b * b + 1),
            [x, (c,), (c,), (c,)],
        ),
    }


@pytest.mark.parametrize("name", list(operations((1, 8, 6, 6))))
def test_arrays_in_the_same_memory_have_one_plan_and_one_result(name: str) -> None:
    for x in IMAGES:
        call, shapes = operations(x)[name]
        for last in (False, True):
            tensors = [whole_numbers(*shape, seed=at, last=last and len(shape) > 2) for at, shape in enumerate(shapes)]
            expected = np.asarray(call(twin, *(np.asarray(to_host(t), np.float32) for t in tensors)), np.float64)
            cudnnpy.clear_cache()
            # channels last as torch writes it first: then results of one channel are so, too
            first = call(nn, *(described(t) for t in tensors))
            misses = cudnnpy.cache_info().misses
            for given in variants([described(t) for t in tensors]):
                found = call(nn, *given)
                assert found.stride() == first.stride()
                scale = max(1.0, float(np.abs(expected).max()))
                np.testing.assert_allclose(
                    to_host(found), expected, rtol=2e-3, atol=2e-3 * scale, err_msg=f"{x} {last}"
                )
            assert (cudnnpy.cache_info().misses, cudnnpy.cache_info().size) == (misses, misses), (x, last)


# Depthwise convolutions


def filters(dtype: torch.dtype, taps: int) -> list[torch.Tensor]:
    """One filter in the descriptions that PyTorch makes, and in others."""
    w = whole_numbers(CHANNELS, 1, taps, taps, dtype=str(dtype).removeprefix("torch."))
    whole = taps * taps
    found = [w, w.to(memory_format=CHANNELS_LAST), w.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)]
    return found + [torch.as_strided(w, w.shape, (whole, one, taps, 1)) for one in (0, 1, whole, 4096)]


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_every_description_of_a_depthwise_filter_has_the_same_engines(
    operation: Any, dtype: torch.dtype, taps: int
) -> None:
    name = str(dtype).removeprefix("torch.")
    x = whole_numbers(2, CHANNELS, 14, 14, dtype=name, seed=1, last=True)
    conv = Convolution(padding=taps // 2, groups=CHANNELS)
    names, results = [], []
    cudnnpy.clear_cache()
    for w in filters(dtype, taps):
        if operation == "backward_filter":
            out = torch.empty_strided(w.shape, w.stride(), dtype=dtype, device="cuda")
            plan = conv.plan(operation, x, x, out=out)
            found = conv.backward_filter(x, x, out=out)
            right = exact_result(operation, x, x, tuple(w.shape), padding=taps // 2, groups=CHANNELS)
        else:
            more: tuple[Any, ...] = (tuple(x.shape),) if operation == "backward_data" else ()
            plan = conv.plan(operation, x, w, *more)
            found = getattr(conv, operation)(x, w, *more)
            right = exact_result(operation, x, w, *more, padding=taps // 2, groups=CHANNELS)
            assert found.is_contiguous(memory_format=CHANNELS_LAST)
        names.append(plan.name)
        results.append(found)
        assert_same(found, right)
    assert names.count(names[0]) == len(names)
    assert cudnnpy.cache_info().misses == 1
    if torch.cuda.get_device_capability() == (9, 0) and operation != "backward_filter":
        special = {"forward": 5, "backward_data": 6}[operation]
        rows = conv.candidates(operation, x, filters(dtype, taps)[0], *more)
        assert special in {row.engine.index for row in rows if row.engine is not None}


# The memory order of new results


def test_one_image_of_a_batch_is_described_as_torch_does() -> None:
    """unsqueeze(0) of an image that is channels last gives its batch axis a stride that counts nothing."""
    x = whole_numbers(2, 16, 12, 12, dtype="float16", last=True)
    w = whole_numbers(8, 16, 3, 3, dtype="float16", seed=1, last=True)
    conv, right = Convolution(padding=1), None
    cudnnpy.clear_cache()
    for one in (x[:1], x[0].unsqueeze(0), x[0][None], described(x[:1], 1)):
        found = conv.forward(one, w)
        assert found.is_contiguous(memory_format=CHANNELS_LAST)
        right = exact_result("forward", one, w, padding=1) if right is None else right
        assert_same(found, right)
    assert cudnnpy.cache_info().misses == 1


def test_cupys_new_axes_have_the_same_plan() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x, w = cupy.ones((16, 12, 12), "float32"), cupy.ones((16, 3, 3), "float32")
    conv = Convolution(padding=1, groups=16)
    cudnnpy.clear_cache()
    found = [conv.forward(x[None], w[:, None]), conv.forward(x.reshape(1, 16, 12, 12), w.reshape(16, 1, 3, 3))]
    assert cudnnpy.cache_info().misses == 1
    cupy.testing.assert_array_equal(*found)
    assert float(found[0][0, 0, 5, 5]) == 9.0


def test_a_graph_takes_arrays_of_every_description() -> None:
    g = Graph()
    shapes = {"x": (1, 16, 8, 8), "w": (16, 16, 3, 3), "b": (1, 16, 1, 1)}
    tensors = {name: whole_numbers(*shape, dtype="float16", last=True) for name, shape in shapes.items()}
    nodes = {
        name: g.tensor(name, TensorSpec(shape, "float16", tensors[name].stride())) for name, shape in shapes.items()
    }
    g.output("y", g.pointwise("add", g.convolution(nodes["x"], nodes["w"], padding=1), nodes["b"]))
    right = exact_result("forward", tensors["x"], tensors["w"], padding=1) + to_host(tensors["b"])
    cudnnpy.clear_cache()
    for x, w, b in variants([tensors[name] for name in shapes]):
        assert_same(g.run(x=x, w=w, b=b), right)
    assert cudnnpy.cache_info().misses == 1


# Batches of 0
