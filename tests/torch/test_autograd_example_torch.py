"""The autograd example beside torch: its optimizer's steps, a network's gradients, and a tensor that it is given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "autograd_conv.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[EXAMPLE.stem] = module
    spec.loader.exec_module(module)
    return module


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def leaf(array):
    return torch.tensor(array, requires_grad=True)


def test_the_optimizers_steps_are_torchs(example):
    variable = example.Variable(draw(3, 2), "write")
    tensor = leaf(variable.data)
    ours, theirs = example.Momentum([variable], 0.9), torch.optim.SGD([tensor], lr=0.1, momentum=0.9)
    for seed in range(3):
        variable.grad = draw(3, 2, seed=seed)
        tensor.grad = torch.tensor(variable.grad)
        ours.step(0.1)
        theirs.step()
    np.testing.assert_allclose(variable.data, tensor.detach().numpy(), rtol=1e-12)
