"""cudnnpy.torch's attention for CPU tensors: the kernels are PyTorch's or the reference's, in every mixture of both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cpu_kernels import Machine, bytes_at, draw
from numpy_machine import tensor_in
from torch._dynamo.utils import counters
from torch.nn import functional as F

import cudnnpy.torch
from cudnnpy import NoAlgorithmError, reference
from cudnnpy._core.layouts import byte_extent
from cudnnpy._layers.attention import Attention
from cudnnpy.torch import attention, fallback_stats, planning, pytorch_kernels

HALF = torch.float16
ROADS = attention.ROADS
STATISTICS = {"flash": 3, "efficient": 3, "cudnn": 4}  # their axes


class Launcher:
    """In the place of a launcher: the reference on the operands' memory."""

    def __init__(self, planned: Any) -> None:
        self.planned, self.device = planned, 0

    def run(self, addresses: tuple[int, ...], stream: int, are_valid: object = False) -> None:
        planned, (*pointers, workspace) = self.planned, addresses
        assert are_valid
        assert workspace
        named = {}
        for operand, address in zip(planned.operands, pointers, strict=True):
            assert address % operand.spec.alignment == 0
            named[operand.name] = tensor_in(bytes_at(address, byte_extent(operand.spec)), operand.spec)
        results = {operand.name: named.pop(operand.name) for operand in planned.operands if operand.is_result}
        twin = reference.Attention(causal=planned.layer.causal, scale=planned.layer.scale)
        is_forward = planned.operation == "forward"
        made = twin.forward(**named, statistics=True) if is_forward else twin.backward(**named)
        planned.machine.launched.append(planned.operation)
        for name, values in zip(results, made, strict=False):
            results[name][...] = values


@pytest.fixture(autouse=True)
def _attention(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans are the reference, and PyTorch's kernels its formulas in float64."""

    def program(self: Attention, call: Any, operation: str, has_last: bool, longest: Any) -> Any:
        machine.planned.append((operation, self))
        if operation in machine.no_algorithm and machine.error is not None:
            raise machine.error
        _, operands = self._operands(call, operation, has_last)
        planned = SimpleNamespace(operands=operands, layer=self, operation=operation, machine=machine)
        planned.workspace_size = 64
        return planned, []

    monkeypatch.setattr(Attention, "_program", program)
    monkeypatch.setattr(planning, "Launcher", Launcher)
    monkeypatch.setattr(attention, "original_kernel", lambda name, key: ORIGINALS[name.removeprefix("aten::")])
    cudnnpy.clear_cache()
    cudnnpy.torch.reset_stats()
    torch._dynamo.reset()
    yield
    cudnnpy.clear_cache()
    cudnnpy.torch.reset_stats()


def scores(q: Any, k: Any, bias: Any, causal: bool, scale: float | None) -> Any:
    """In float64, with the keys of each head of q."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    found = q.double() @ k.double().mT * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if bias is not None:
        found = found + bias.double()
    return found.masked_fill(torch.ones_like(found, dtype=torch.bool).triu(1), -math.inf) if causal else found


def formulas(q: Any, k: Any, v: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, Any]:
    found = scores(q, k, bias, causal, scale)
    values = v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    return (found.softmax(-1) @ values).to(q.dtype), found.logsumexp(-1).float()


def torch_forward(road: str) -> Callable[..., Any]:
    def kernel(q: Any, k: Any, v: Any, *rest: Any, scale: float | None = None) -> Any:
        bias, _, *numbers = (None, True, *rest) if road == "flash" else rest
        out, lse = formulas(q, k, v, bias, bool(numbers[1:] and numbers[1]), scale)
        seeds = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
        if road == "efficient":
            return out, F.pad(lse, (0, -lse.shape[2] % 32), value=math.inf), *seeds
        lse = lse.unsqueeze(3) if road == "cudnn" else lse
        return out, lse, None, None, q.shape[2], k.shape[2], *seeds, None

    return kernel


def torch_backward(road: str) -> Callable[..., Any]:
    """By the statistics that it is given."""

    def kernel(dout: Any, q: Any, k: Any, v: Any, *rest: Any, scale: float | None = None) -> Any:
        bias, mask = None, [False] * 4
        if road == "efficient":
            bias, _, lse, _, _, _, mask, *causal = rest
        else:
            lse, causal = rest[1], [rest[7 if road == "flash" else -1]]
            bias = rest[4] if road == "cudnn" else None
        lse = lse.reshape(*q.shape[:2], -1)[..., : q.shape[2]].double().unsqueeze(3)
        weights = (scores(q, k, bias, any(causal), scale) - lse).exp()
        keys, values = (one.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
        of_weights = dout.double() @ values.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        scaled = of_scores * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
        dk, dv = scaled.mT @ q.double(), weights.mT @ dout.double()
        dk, dv = (one.unflatten(1, (k.shape[1], -1)).sum(2) for one in (dk, dv))
        made = tuple(one.to(q.dtype) for one in (scaled @ keys, dk, dv))
        return (*made, of_scores.to(q.dtype) if mask[3] else None) if road == "efficient" else made

    return kernel


ORIGINALS = {
    f"_scaled_dot_product_{road}_attention{word}": make(road)
    for road in ROADS
    for word, make in (("", torch_forward), ("_backward", torch_backward))
}


def call(
    road: str, q: Any, k: Any, v: Any, bias: Any = None, *, dropout: float = 0.0, causal: bool = False, **how: Any
) -> Any:
    """The operator, as scaled_dot_product_attention calls it."""
    rest = (dropout, causal) if road == "flash" else (bias, True, dropout, causal)
    return getattr(torch.ops.aten, f"_scaled_dot_product_{road}_attention")(q, k, v, *rest, **how)


def problem(
    queries: int = 19, keys: int = 19, heads: int = 4, kv_heads: int = 2, size: int = 16, *, is_bshd: bool = True
) -> list[torch.Tensor]:
    """q, k, v and the gradient of the result."""
    shapes = [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)]
    made = []
    for seed, (n, length) in enumerate(shapes):
        shape = (2, length, n, size) if is_bshd else (2, n, length, size)
        one = draw(*shape, seed=seed, dtype=HALF)
        made.append(one.transpose(1, 2) if is_bshd else one)
    return made


def step(road: str, tensors: list[torch.Tensor], backward_on: bool | None = None, **options: Any) -> list[torch.Tensor]:
    """The result, the statistics and the gradients. `backward_on`: whether our kernels compute the gradients."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in tensors[:3])
    if backward_on is None:
        out, lse, *_ = call(road, q, k, v, **options)
        return [out, lse, *torch.autograd.grad(out, (q, k, v), tensors[3])]
    with enabled() if not backward_on else cudnnpy.torch.disable():
        out, lse, *_ = call(road, q, k, v, **options)
    with enabled() if backward_on else cudnnpy.torch.disable():
        return [out, lse, *torch.autograd.grad(out, (q, k, v), tensors[3])]


def enabled(**options: Any) -> Any:
    return cudnnpy.torch.enable(attention=True, **options)


def alike(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=5e-3)


@pytest.fixture
def with_pytorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of PyTorch's for CPU tensors, which exist for CUDA alone."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in ORIGINALS.items():
        library.impl(name, kernel, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("with_pytorch")
@pytest.mark.parametrize("backward_on", [None, False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("road", ROADS)
def test_every_mixture_of_both_sides(machine: Machine, road: str, causal: bool, backward_on: bool | None) -> None:
    for options in ({}, {"is_bshd": False, "kv_heads": 4, "queries": 32, "keys": 32}):
        tensors = problem(**options) if road != "efficient" else problem(**{**options, "kv_heads": 4})
        expected = step(road, tensors, causal=causal, scale=0.3)
        assert machine.launched == []
        with cudnnpy.torch.disable() if backward_on is not None else enabled():
            found = step(road, tensors, backward_on, causal=causal, scale=0.3)
        alike(found, expected)
        operations = {None: ["forward", "backward"], False: ["forward"], True: ["backward"]}[backward_on]
        assert machine.launched == operations
        machine.launched.clear()
    assert not cudnnpy.torch.stats().fallbacks


@pytest.mark.parametrize("road", ROADS)
def test_results_lie_in_memory_as_pytorchs_meta_functions_say(road: str) -> None:
    """Compiled programs rely on it. A seed is on another device there."""
    tensors = problem(kv_heads=4)
    with enabled():
        forward, (out, lse, *gradients) = call(road, *tensors[:3]), step(road, tensors)
    assert lse.dim() == STATISTICS[road]
    there = [tensor.to("meta") for tensor in tensors]
    for ours, theirs in zip((*forward, out), (*call(road, *there[:3]), out), strict=True):
        if isinstance(theirs, torch.Tensor):
            assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
            assert ours.dtype == theirs.dtype or theirs.numel() == 1
        else:
            assert ours == theirs
    for ours, theirs in zip(gradients, step(road, there)[2:], strict=True):
        assert ours.stride() == theirs.stride()


@pytest.mark.usefixtures("with_pytorch")
@pytest.mark.parametrize("road", ["efficient", "cudnn"])
@pytest.mark.parametrize("axes", [(), (0, 1), (2,)])
def test_a_bias_that_is_expanded(machine: Machine, road: str, axes: tuple[int, ...]) -> None:
    tensors = problem(kv_heads=4)
    bias = draw(*(1 if axis in axes else n for axis, n in enumerate((2, 4, 19, 19))), dtype=HALF).expand(2, 4, 19, 19)
    expected = step(road, tensors, bias=bias)
    with enabled():
        alike(step(road, tensors, bias=bias), expected)
    assert machine.launched == ["forward", "backward"]


def reasons(call: Callable[[], Any], **options: Any) -> dict[str, int]:
    """Why a call is left to PyTorch, twice."""
    expected = call()
    with enabled(**options):
        for _ in range(2):
            alike(call(), expected)
    return cudnnpy.torch.stats().fallbacks


@pytest.mark.usefixtures("with_pytorch")
def test_calls_that_are_left_to_pytorch(machine: Machine) -> None:
    tensors, bias = problem(kv_heads=4), draw(2, 4, 19, 19, dtype=HALF).requires_grad_()
    q, k, v, dout = tensors

    def with_a_gradient_of_the_bias() -> list[torch.Tensor]:
        out = call("efficient", q, k, v, bias)[0]
        return [out, *torch.autograd.grad(out, bias, dout)]

    odd = [one[..., :12] for one in problem(size=16)]
    for left, reason, count in (
        (lambda: step("flash", tensors, dropout=0.5), fallback_stats.DROPOUT, 4),
        (lambda: step("flash", odd), fallback_stats.HEAD_SIZE, 4),
        (lambda: step("efficient", [one.float() for one in tensors]), fallback_stats.DATA_TYPE, 4),
        (lambda: [call("flash", q[:0], k[:0], v[:0])[0]], fallback_stats.EMPTY, 2),
        (with_a_gradient_of_the_bias, fallback_stats.BIAS_GRADIENT, 2),
    ):
        assert reasons(left) == {reason: count}
        cudnnpy.torch.reset_stats()
    assert machine.launched == ["forward"] * 2  # whose bias has a gradient
    machine.no_algorithm, machine.error = {"backward"}, NoAlgorithmError("this", "nothing", "", [])
    assert reasons(lambda: step("cudnn", tensors)) == {fallback_stats.NO_ALGORITHM: 2}
    machine.capturing = True
    cudnnpy.clear_cache()
    cudnnpy.torch.reset_stats()
    assert reasons(lambda: step("cudnn", tensors)) == {fallback_stats.CAPTURE: 4}


@pytest.mark.usefixtures("with_pytorch")
@pytest.mark.parametrize("prefer", ["autotune", "fastest"])
def test_autotune_leaves_what_pytorch_does_faster(monkeypatch: pytest.MonkeyPatch, prefer: str) -> None:
    monkeypatch.setattr(pytorch_kernels, "is_faster", lambda *_: True)
    monkeypatch.setattr(pytorch_kernels, "COMPARISON_RUNS", 0)
    found = reasons(lambda: step("flash", problem()), prefer=prefer)
    assert found == ({fallback_stats.ATTENTION: 4} if prefer == "autotune" else {})


def test_attention_is_off_by_default_and_off_again(machine: Machine) -> None:
    def registered() -> str:
        return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in ORIGINALS)

    before, tensors = registered(), problem()
    with cudnnpy.torch.enable():
        assert registered() == before
        with enabled():
            step("flash", tensors)
        assert registered() == before
    assert cudnnpy.torch.stats().handled == {**fallback_stats.CONVOLUTIONS, "attention": 1, "attention_backward": 1}
    with pytest.raises(TypeError, match="attention must be a bool; got 1"):
        cudnnpy.torch.enable(attention=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("road", ROADS)
def test_compiled_programs_have_no_graph_break(machine: Machine, road: str) -> None:
    counters.clear()
    tensors = problem(kv_heads=4)
    compiled = torch.compile(
        lambda q, k, v: call(road, q, k, v, causal=True)[0] * 2, backend="aot_eager", fullgraph=True
    )
    q, k, v = (tensor.detach().requires_grad_() for tensor in tensors[:3])
    with enabled():
        for _ in range(2):
            out = compiled(q, k, v)
            found = [out, *torch.autograd.grad(out, (q, k, v), tensors[3])]
        expected = step(road, tensors, causal=True)
    alike(found, [2 * one for one in (expected[0], *expected[2:])])
    assert not counters["graph_break"]
    assert machine.launched == ["forward", "backward"] * 3
    assert np.isfinite(found[0].detach().numpy()).all()
