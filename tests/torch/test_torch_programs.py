"""PyTorch programs of all kinds with cudnnpy.torch enabled: trained, compiled, traced, transformed, watched."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpu_kernels import Machine, draw, leaf, twice
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cudnnpy.torch


def small_network() -> torch.nn.Module:
    torch.manual_seed(0)
    n = torch.nn
    return n.Sequential(
        n.Conv2d(3, 8, 3, 2, 1, bias=False),
        n.BatchNorm2d(8),
        n.ReLU(),
        n.Conv2d(8, 8, 3, padding=1, groups=8),
        n.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1),
        n.AdaptiveAvgPool2d(2),
        n.Flatten(),
        n.Linear(16, 5),
    )


@pytest.mark.parametrize("last", [False, True])
def test_a_network_learns_the_same(machine: Machine, last: bool) -> None:
    images, labels = draw(4, 3, 12, 12), torch.arange(4)
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    losses = []
    for scope in (contextlib.nullcontext, cudnnpy.torch.enable):
        network = small_network()
        network = network.to(memory_format=torch.channels_last) if last else network
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        losses.append([])
        with scope():
            for _ in range(5):
                optimizer.zero_grad()
                loss = F.cross_entropy(network(images), labels)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] < losses[0][0]
    assert cudnnpy.torch.stats() == ({"forward": 15, "backward_data": 10, "backward_filter": 15}, {})
    assert len(machine.planned) == 8  # once for each signature


def test_inference_mode_autocast_and_copies_of_modules(machine: Machine) -> None:
    network, x = small_network().eval(), draw(2, 3, 12, 12)
    with torch.inference_mode():
        twice(lambda: (network(x),))
        twice(lambda: (copy.deepcopy(network)(x),))
    with torch.autocast("cpu", torch.bfloat16):
        twice(lambda: (F.conv2d(x, draw(4, 3, 3, 3)),), 2e-2)
    assert cudnnpy.torch.stats().handled["forward"] == 7


def test_vmap_and_functional_gradients(machine: Machine) -> None:
    x, w = draw(3, 2, 3, 6, 6), draw(4, 3, 3, 3)
    twice(lambda: (torch.func.vmap(F.conv2d, (0, None))(x, w),))
    per_image = torch.func.vmap(torch.func.grad(lambda w, x: F.conv2d(x, w).square().sum()), (None, 0))
    twice(lambda: (per_image(w, x),))
    assert cudnnpy.torch.stats().fallbacks == {}


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_program(machine: Machine, inside: bool) -> None:
    """Fake tensors do not reach the kernels."""
    network = small_network()
    x = draw(2, 3, 12, 12)
    expected = network(x)
    scope = cudnnpy.torch.enable if inside else contextlib.nullcontext
    with scope():
        compiled = torch.compile(network, backend="aot_eager")
        compiled(x)
    cudnnpy.torch.reset_stats()
    with cudnnpy.torch.enable():
        found = compiled(x)
        found.sum().backward()
    torch.testing.assert_close(found, expected)
    assert cudnnpy.torch.stats() == ({"forward": 3, "backward_data": 2, "backward_filter": 3}, {})
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
@pytest.mark.parametrize("way", ["trace", "script", "freeze"])
def test_torchscript(machine: Machine, way: str) -> None:
    network, x = small_network().eval(), draw(2, 3, 12, 12)
    made: Any = torch.jit.trace(network, x) if way == "trace" else torch.jit.script(network)
    made = torch.jit.freeze(made) if way == "freeze" else made
    with torch.no_grad():
        expected = network(x)
        with cudnnpy.torch.enable():
            for _ in range(3):  # it is optimized after a few runs
                torch.testing.assert_close(made(x), expected)
    assert cudnnpy.torch.stats() == ({"forward": 9, "backward_data": 0, "backward_filter": 0}, {})


# PyTorch 2.15 itself uses what it deprecates.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
def test_forward_mode_jacobians_and_checkpoints(machine: Machine) -> None:
    x, w, network = draw(2, 3, 12, 12), draw(4, 3, 3, 3), small_network()
    calls: list[Callable[[], tuple[torch.Tensor, ...]]] = [
        lambda: torch.func.jvp(lambda x: F.conv2d(x, w), (x,), (x,)),
        lambda: (torch.func.jacrev(lambda w: F.conv2d(x, w).sum((0, 2, 3)))(w),),
        lambda: torch.autograd.grad(checkpoint(network, leaf(x), use_reentrant=False).sum(), network[0].weight),
    ]
    for call in calls:
        twice(call, 1e-3)
    assert cudnnpy.torch.stats().fallbacks == {}


def test_complex_tensors_and_views(machine: Machine) -> None:
    """PyTorch computes a complex convolution by three real ones."""
    x, w = torch.view_as_complex(draw(2, 3, 6, 6, 2)), torch.view_as_complex(draw(4, 3, 3, 3, 2))
    twice(lambda: (torch.view_as_real(F.conv2d(x.conj(), w)), F.conv2d(x.conj().imag, w.real)))
    assert cudnnpy.torch.stats() == ({"forward": 4, "backward_data": 0, "backward_filter": 0}, {})


def test_what_watches_a_program_sees_the_same(machine: Machine) -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def call() -> list[str]:
        seen.clear()
        with Watch():
            F.conv2d(draw(2, 3, 6, 6), leaf(draw(4, 3, 3, 3))).sum().backward()
        return list(seen)

    expected = call()
    with cudnnpy.torch.enable():
        assert call() == expected
    assert "aten.convolution_backward.default" in expected
    assert cudnnpy.torch.stats() == ({"forward": 1, "backward_data": 0, "backward_filter": 1}, {})
