"""Modules for the tests of docs/examples/torch_network.py, and what checks a conversion of one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from host_plans import Host
from torch import nn


class By(nn.Module):
    """A module of named parts whose forward is a function of it and of x."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def conv(inside: int = 8, outside: int = 8, size: int = 3, padding: Any = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, size, padding=padding, **options)


def settled(module: nn.Module) -> nn.Module:
    """The module with statistics and parameters of batch normalizations that do something."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            for tensor in (part.running_mean, part.running_var, part.weight, part.bias):
                nn.init.uniform_(tensor, 0.5, 1.5)
    return module.eval()


def check(host: Host, module: nn.Module, *shape: int, dtype: Any = torch.float32, tolerance: float = 1e-5) -> Any:
    """Converts a module; its results are torch's, the first one too after the second call. Returns the network."""
    torch.manual_seed(1)
    x, other = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    given = [one.clone() for one in (x, other)]
    by_torch = copy.deepcopy(module)
    with torch.no_grad():
        expected = [by_torch(one.clone()) for one in (x, other)]
    network = host.example.convert(module, x)
    made = [network(one) for one in given]
    for result, right in zip(made, expected, strict=True):
        torch.testing.assert_close(result, right, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(module.state_dict().values(), by_torch.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)  # the same statistics, too, in training mode
    return network
