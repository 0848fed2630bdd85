"""Results of the operations for sizes that test_operations.py does not draw, against PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import cudnnpy

ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-20, torch.float64: 2.0**-46}
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
INFINITY = math.inf


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def drawn(*shape: int, dtype: Any, last: bool = False) -> torch.Tensor:
    made = torch.randn(shape, device="cuda", dtype=dtype)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def room(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, math.nan)


def check(found: torch.Tensor, exact: torch.Tensor, length: int = 1, beside: torch.Tensor | float = 0.0) -> None:
    """Each element differs by a few roundings of the result, and by those of a float32 sum of `length` numbers.

    `beside` is a term of the result that was rounded before it was added.
    """
    assert found.shape == exact.shape
    unit = ROUNDOFF[found.dtype]
    limit = torch.finfo(found.dtype).max
    exact = torch.where(exact.abs() > limit, exact.sign() * INFINITY, exact)
    apart = torch.as_tensor(beside).abs().to(exact)
    allowed = 4 * unit * (exact.abs() + apart) + 2.0**-22 * math.sqrt(length) * 8 + unit * 1e-3
    same = (found.double() == exact) | (found.isnan() & exact.isnan())
    close = (found.double() - exact).abs() <= allowed
    wrong = ~(same | close)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} are wrong, by {float((found.double() - exact)[wrong][0])}"
    )


# --- softmax


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize(
    "shape", [(300, 1000), (100_000, 40), (3, 4096), (5, 32768), (3, 50257), (2, 131072), (600, 16640)], ids=str
)
def test_softmax_of_rows(shape: tuple[int, int], algorithm: Any, dtype: Any) -> None:
    op = cudnnpy.Softmax(algorithm)
    exact = torch.log_softmax if algorithm == "log" else torch.softmax
    x, dy = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype)
    x[0, 3], x[1, :5] = 20.0, -INFINITY
    y = op.forward(x, out=room(x))
    expected = exact(x.double(), 1)
    finite = expected.isfinite()
    check(y[finite], expected[finite], shape[1])
    check(
        op.forward(x, alpha=0.5, beta=1.0, out=y.clone())[finite], 0.5 * expected[finite] + y.double()[finite], shape[1]
    )
    again = x.clone()
    op.forward(again, out=again)
    check(again[finite], expected[finite], shape[1])
    wide, result = dy.double(), y.double()
    if algorithm == "log":
        gradient = wide - result.exp() * wide.sum(1, keepdim=True)
    else:
        gradient = result * (wide - (wide * result).sum(1, keepdim=True))
    check(op.backward(dy, y, out=room(dy)), gradient, shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1000), (3, 32768)], ids=str)
def test_softmax_of_nan_and_of_nothing_but_minus_infinity_is_nan(shape: tuple[int, int], dtype: Any) -> None:
    x = drawn(*shape, dtype=dtype)
    x[0, 7], x[1] = math.nan, -INFINITY
    y = cudnnpy.Softmax().forward(x)
    assert y[:2].isnan().all()
    check(y[2], torch.softmax(x[2].double(), 0))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [100, 1025, 2048])
def test_softmax_over_channels(channels: int, last: bool, dtype: Any) -> None:
    x, dy = (drawn(3, channels, 5, 7, dtype=dtype, last=last) for _ in range(2))
    op = cudnnpy.Softmax()
    y = op.forward(x, out=room(x))
    check(y, torch.softmax(x.double(), 1))
    wide, result = dy.double(), y.double()
    check(op.backward(dy, y, out=room(x)), result * (wide - (wide * result).sum(1, keepdim=True)), channels)


# Each case plans graphs, most of which cuDNN compiles: float32 and float16 take all roads, and bfloat16 those of SHAPES[::3].


# --- averages over images


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape", [(16, 512, 7, 7), (8, 64, 64, 64), (3, 20, 40, 50), (1, 64, 128, 128), (2, 1, 300, 300)], ids=str
)
def test_averages_over_images(shape: tuple[int, ...], last: bool, dtype: Any) -> None:
    x = drawn(*shape, dtype=dtype, last=last)
    for mode in ("average_include_padding", "average_exclude_padding"):
        op = cudnnpy.Pooling(mode, shape[2:])
        exact = x.double().mean((2, 3), keepdim=True)
        y = op.forward(x, out=room(exact.to(dtype)))
        check(y, exact, shape[2] * shape[3])
        check(
            op.forward(x, alpha=3.0, beta=-1.0, out=y.clone()), 3 * exact - y.double(), shape[2] * shape[3], 3 * exact
        )
        dy = drawn(*y.shape, dtype=dtype)
        gradient = (dy.double() / (shape[2] * shape[3])).expand(shape)
        check(op.backward(dy, x, y, out=room(x)), gradient)
        check(op.backward(dy, x, y, out=x.clone(), alpha=2.0, beta=1.0), 2 * gradient + x.double(), beside=x.double())


# --- batch normalization


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(8, 3, 160, 160), (8, 20, 40, 40), (32, 256, 20, 20), (8, 64, 100, 100), (128, 64, 1, 1), (8, 16, 14, 14)],
    ids=str,
)
def test_batch_normalization_in_either_order(shape: tuple[int, ...], last: bool, dtype: Any) -> None:
    x, dy = (drawn(*shape, dtype=dtype, last=last) for _ in range(2))
    scale, bias = (torch.rand(shape[1], device="cuda") + 0.5 for _ in range(2))
    op = cudnnpy.BatchNormalization(epsilon=1e-3)
    y, mean, inverse = op.forward_training(x, scale, bias, out=room(x))
    dx, dscale, dbias = op.backward(dy, x, scale, mean, inverse, out=room(x))
    leaves = [tensor.double().requires_grad_() for tensor in (x, scale, bias)]
    exact = torch.nn.functional.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.1, 1e-3)
    gradients = torch.autograd.grad(exact, leaves, dy.double())
    length = shape[0] * shape[2] * shape[3]
    check(y, exact.detach(), 64)
    check(dx, gradients[0], 64)
    for found, expected in ((dscale, gradients[1]), (dbias, gradients[2])):
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * math.sqrt(length))


# --- tensors that exceed one descriptor


@pytest.mark.parametrize(
    ("op", "shape", "exact"),
    [
        (cudnnpy.Activation("relu"), (65_537, 32_768), lambda x: x.relu()),
        (cudnnpy.Softmax(), (65_537, 32_768), lambda x: x.softmax(1)),
        (cudnnpy.Pooling("max"), (65_537, 8, 64, 64), lambda x: torch.nn.functional.max_pool2d(x, 2)),
    ],
    ids=["Activation", "Softmax", "Pooling"],
)
def test_tensors_that_exceed_one_descriptor(op: Any, shape: tuple[int, ...], exact: Any) -> None:
    """More than 2**31 elements, in parts of the first axis: the ends and the places where the parts meet."""
    x = torch.randn(shape, device="cuda", dtype=torch.float16)
    y = op.forward(x, out=torch.full_like(exact(x[:1]), math.nan).expand(shape[0], *[-1] * (x.ndim - 1)).clone())
    for rows in (slice(0, 2), slice(16_384, 16_388), slice(32_767, 32_770), slice(65_535, 65_537)):
        check(y[rows], exact(x[rows].double()), 1000)
    assert not y.isnan().any()
