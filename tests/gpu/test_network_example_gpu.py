"""docs/examples/torch_network.py on a GPU: networks against torch in float32, eager and in CUDA graphs."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
import torch_network
from torch import nn

from tools.benchmark.networks import models, plain

SMALL = 64  # pixels of a side
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 5e-3}


@pytest.fixture(autouse=True)
def switches():
    """The command sets torch's switches."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32
    yield
    cudnn.benchmark, cudnn.allow_tf32 = before


def off(result, right):
    return models.off(torch, result, right)


def check(module, x, dtype=torch.float16):
    """Converts a module in a type; compares it with float32 torch, eager and captured. Returns the network."""
    module = module.eval()
    with torch.no_grad():
        with models.exact_float32(torch):
            right, right_half = module(x), module(x / 2)
        module, x = module.to(dtype), x.to(dtype)
        allowed = max(TOLERANCE[dtype], 2 * off(module(x), right))
        allowed_half = max(TOLERANCE[dtype], 2 * off(module(x / 2), right_half))
    network = torch_network.convert(module, x)
    models.poison(torch, 256)
    first = network(x)
    assert off(first, right) <= allowed, network.report(others=True)
    replay = torch_network.captured(network, x)
    assert off(network(x / 2), right_half) <= allowed_half
    assert off(replay(x), right) <= allowed
    assert off(replay(x / 2), right_half) <= allowed_half  # not network(x / 2): other engines may be faster in a graph
    assert off(replay(x), right) <= allowed
    assert off(first, right) <= allowed  # no later call wrote over it
    return network


def on_cudnnpy(network):
    return [row.layer for row in network.rows if row.by == "cudnnpy"]


NETWORKS = {
    **{name: partial(make, torch) for name, make in plain.MODELS.items()},
    "unet": partial(models.unet, torch, width=16),
}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_whole_network_is_torch_s(name, batch):
    torch.manual_seed(0)
    module = NETWORKS[name]().cuda()
    torch_network.settle(module, torch.randn(4, 3, SMALL, SMALL, device="cuda"))
    module = module.to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, SMALL, SMALL, device="cuda").to(memory_format=torch.channels_last)
    assert len(on_cudnnpy(check(module, x))) > 10


class Residual(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.first, self.norm, self.act = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), act
        self.depthwise, self.last = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 32, 1)

    def forward(self, x):
        y = self.act(self.norm(self.first(x)) + x)
        return self.act(self.last(self.act(self.depthwise(y))))


def test_streams_and_threads_at_once():
    torch.manual_seed(0)
    module = nn.Sequential(*[Residual(nn.ReLU()) for _ in range(4)]).cuda().half().eval()
    inputs = [torch.randn(4, 32, 32, 32, device="cuda").half() for _ in range(4)]
    network = torch_network.convert(module, inputs[0])
    expected = [network(x) for x in inputs]
    wrong = []

    def work(x, right):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            wrong.extend(number for number in range(50) if off(network(x), right) > 1e-2)
        stream.synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def small():
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), Residual(nn.SiLU()))


def test_the_command(capsys):
    torch_network.main([f"{__name__}:small", "--size", "32", "--batch", "2"])
    printed = capsys.readouterr().out
    assert "of 4 run on cudnnpy" in printed
    assert "cudnnpy, CUDA graph: " in printed
