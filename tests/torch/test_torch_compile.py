"""cudnnpy.torch under torch.compile on the host: tests/gpu/test_torch_compile_gpu.py has CUDA graphs and inductor's layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from cpu_kernels import Machine, alike, draw
from torch._dynamo.utils import counters

import cudnnpy.torch

CONVOLUTIONS = 3
BACKENDS = ["eager", "aot_eager"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False),
        torch.nn.ConvTranspose2d(8, 4, 2, 2),
    )


def step(
    model: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The result and the gradients."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = run(x)
    return (y.detach(), *torch.autograd.grad(y.square().mean(), [x, *model.parameters()]))


def check(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        alike(ours, theirs)


def graphs() -> int:
    """The number of graphs that were compiled, each without a break."""
    assert not counters["graph_break"]
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
def test_enabled_before_and_after_compiling(
    machine: Machine, backend: str, is_first: bool, memory_format: torch.memory_format
) -> None:
    model = network().to(memory_format=memory_format)
    x = draw(2, 3, 8, 8).contiguous(memory_format=memory_format)
    expected = step(model, model, x)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    if not is_first:
        check(step(model, compiled, x), expected)
        assert (machine.planned, graphs()) == ([], 1)
    with cudnnpy.torch.enable():
        for _ in range(3):
            check(step(model, compiled, x), expected)
            assert len(machine.planned) == 3 * CONVOLUTIONS  # forward and both gradients, all in the first step
    check(step(model, compiled, x), expected)
    assert graphs() == 1
    each = dict.fromkeys(("forward", "backward_data", "backward_filter"), 3 * CONVOLUTIONS)
    assert cudnnpy.torch.stats() == (each, {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_shapes(machine: Machine, backend: str) -> None:
    """One graph serves all sizes, and each size is planned once."""
    model, counts = network(), (4, 3, 6)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for seed in range(2):
        for count in counts:
            x = draw(count, 3, 8, 8, seed=seed)
            expected = step(model, model, x)
            with cudnnpy.torch.enable():
                check(step(model, compiled, x), expected)
    assert graphs() == 1
    assert len(machine.planned) == 3 * CONVOLUTIONS * len(counts)
    assert cudnnpy.cache_info().misses == 2 * CONVOLUTIONS * len(counts)  # one call computes both gradients
    assert cudnnpy.torch.stats().fallbacks == {}


def test_inductors_code_calls_the_kernels(machine: Machine) -> None:
    """It checks the strides of their results, which are not always those of an eager program."""
    model = torch.nn.Conv2d(3, 8, 3, padding=1)
    x = draw(2, 3, 8, 8)
    compiled = torch.compile(model, fullgraph=True)
    expected = step(model, compiled, x)
    assert machine.planned == []
    with cudnnpy.torch.enable():
        for _ in range(2):
            check(step(model, compiled, x), expected)
    assert graphs() == 1
    assert [operation for operation, _ in machine.planned] == ["forward", "backward_data", "backward_filter"]
    assert cudnnpy.torch.stats() == ({"forward": 2, "backward_data": 2, "backward_filter": 2}, {})


def test_options_change_plans_and_not_the_compiled_program(machine: Machine) -> None:
    model, x = network(), draw(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for options in ({}, {"prefer": "no_workspace"}, {"deterministic": True}, {}):
            with cudnnpy.torch.enable(**options):  # type: ignore[arg-type]
                alike(compiled(x), expected)
    assert graphs() == 1
    assert len(machine.planned) == 3 * CONVOLUTIONS
