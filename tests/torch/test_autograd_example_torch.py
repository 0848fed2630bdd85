"""The autograd example beside torch: its optimizer's steps, a network's gradients, and a tensor that it is given."""

from __future__ import annotations

import autograd_conv as example
import numpy as np
import torch


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def leaf(array):
    return torch.tensor(array, requires_grad=True)


def test_the_optimizers_steps_are_torchs():
    variable = example.Variable(draw(3, 2), "write")
    tensor = leaf(variable.data)
    ours, theirs = example.Momentum([variable], 0.9), torch.optim.SGD([tensor], lr=0.1, momentum=0.9)
    for seed in range(3):
        variable.grad = draw(3, 2, seed=seed)
        tensor.grad = torch.tensor(variable.grad)
        ours.step(0.1)
        theirs.step()
    np.testing.assert_allclose(variable.data, tensor.detach().numpy(), rtol=1e-12)
