"""PyTorch's attention on cudnnpy, by each of PyTorch's roads, against float64.

CUDNNPY_PROPERTY_EXAMPLES is how many problems are drawn.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import cudnnpy.torch
from cudnnpy.torch import fallback_stats
from tools.benchmark.attention import ROADS, wrong
from tools.benchmark.attention_cells import Cell, drawn, errors, operands

# CUDA graph trees capture an empty graph to make their memory pool; PyTorch 2.11 warns about it each time.
pytestmark = pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")

EXAMPLES = int(os.environ.get("CUDNNPY_PROPERTY_EXAMPLES", "24"))
CELLS = [cell for cell in drawn(2, 400) if cell.has_torch and cell.flop < 1e10][:EXAMPLES]
PLAIN = Cell("plain", "bfloat16", 2, 4, 4, 200, 200, 64, True)
CAUSAL = PLAIN._replace(kind="causal", causal=True)
BOTH = {"attention": 1, "attention_backward": 1}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    cudnnpy.torch.reset_stats()
    yield
    assert not cudnnpy.torch.is_enabled()
    torch._dynamo.reset()  # frees the CUDA graphs


def enabled(**options: Any) -> Any:
    return cudnnpy.torch.enable(attention=True, **options)


def handled() -> dict[str, int]:
    """The calls of attention; none was left to PyTorch."""
    found = cudnnpy.torch.stats()
    assert found.fallbacks == {}
    return {name: count for name, count in found.handled.items() if name not in fallback_stats.CONVOLUTIONS}


def attention(cell: Cell, road: str, leaves: Any, given: Any) -> Any:
    with sdpa_kernel(getattr(SDPBackend, road)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # why there is no kernel
        return F.scaled_dot_product_attention(
            *leaves,
            attn_mask=given.get("bias"),
            is_causal=bool(cell.causal),
            enable_gqa=cell.heads != cell.kv_heads,
        )


def step(cell: Cell, road: str, forward_on: bool = True, backward_on: bool = True) -> dict[str, Any]:
    """The results of a road, with cudnnpy or without."""
    given, _ = operands(torch, cell)
    leaves = [given[name].detach().requires_grad_() for name in "qkv"]
    with enabled() if forward_on else nullcontext():
        out = attention(cell, road, leaves, given)
    with enabled() if backward_on else nullcontext():
        gradients = torch.autograd.grad(out, leaves, given["dout"])
    return dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True))


def check(cell: Cell, results: dict[str, Any]) -> None:
    _, right = operands(torch, cell)
    assert wrong(errors(results, right), cell.dtype) == "", cell.text


def theirs(cell: Cell, road: str) -> dict[str, Any]:
    """PyTorch's own results. Skips where it has no kernel."""
    try:
        return step(cell, road, False, False)
    except RuntimeError as error:
        pytest.skip(str(error)[:100])


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("at", range(len(CELLS)))
def test_drawn_problems(at: int, road: str) -> None:
    expected = theirs(CELLS[at], road)
    found = step(CELLS[at], road)
    check(CELLS[at], found)
    assert handled() == BOTH
    for name, one in found.items():
        assert (one.shape, one.stride()) == (expected[name].shape, expected[name].stride()), name


@pytest.mark.parametrize("forward_on", [False, True])
@pytest.mark.parametrize("cell", [PLAIN, CAUSAL, PLAIN._replace(kind="bias", bias=(1, 4, 200, 200))], ids=str)
@pytest.mark.parametrize("road", ROADS)
def test_forward_and_backward_by_different_sides(cell: Cell, road: str, forward_on: bool) -> None:
    theirs(cell, road)
    check(cell, step(cell, road, forward_on, not forward_on))
    assert handled() == {"attention" if forward_on else "attention_backward": 1}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("road", ROADS)
def test_compiled_programs(road: str, mode: str | None) -> None:
    theirs(CAUSAL, road)
    given, _ = operands(torch, CAUSAL)
    leaves = [given[name].detach().requires_grad_() for name in "qkv"]
    with sdpa_kernel(getattr(SDPBackend, road)), enabled():
        compiled = torch.compile(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True, mode=mode
        )
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(*leaves)
            gradients = torch.autograd.grad(out, leaves, given["dout"])
            check(CAUSAL, dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True)))
    assert not counters["graph_break"]
    calls = handled()
    assert calls["attention"] == calls["attention_backward"] >= 2


def test_a_step_is_captured() -> None:
    given, _ = operands(torch, CAUSAL)
    leaves = [given[name].detach().requires_grad_() for name in "qkv"]

    def run() -> tuple[Any, ...]:
        out = attention(CAUSAL, "FLASH_ATTENTION", leaves, given)
        return (out, *torch.autograd.grad(out, leaves, given["dout"]))

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with enabled():
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            results = run()
    for one in results:
        one.detach().fill_(torch.nan)
    graph.replay()
    check(CAUSAL, dict(zip(("out", "dq", "dk", "dv"), results, strict=True)))
    assert handled() == {"attention": 2, "attention_backward": 2}


def test_autotune_compares_with_pytorch() -> None:
    given, _ = operands(torch, CAUSAL)
    leaves = [given[name].detach().requires_grad_() for name in "qkv"]
    with enabled(prefer="autotune", tune_seconds=0.3):
        out = attention(CAUSAL, "FLASH_ATTENTION", leaves, given)
        gradients = torch.autograd.grad(out, leaves, given["dout"])
    check(CAUSAL, dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True)))
    assert cudnnpy.torch.stats().fallbacks.keys() <= {fallback_stats.ATTENTION}


def test_dropout_is_left() -> None:
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    with enabled(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        out.sum().backward()
    assert torch.isfinite(out).all()
    assert cudnnpy.torch.stats().fallbacks == {fallback_stats.DROPOUT: 2}


def test_a_transformer_learns_the_same() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 2, 256, dropout=0.0, batch_first=True, device="cuda")
    x = torch.randn(4, 96, 128, device="cuda")

    def gradients() -> list[Any]:
        layer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        y.float().square().mean().backward()
        return [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]

    expected = gradients()
    with enabled():
        found = gradients()
    assert handled() == BOTH
    for ours, right in zip(found, expected, strict=True):
        assert (ours - right).norm() <= 0.03 * right.norm() + 1e-6
