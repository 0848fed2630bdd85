"""The autograd example beside torch: its optimizer's steps, a network's gradients, and a tensor that it is given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

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


def test_a_networks_loss_and_gradients_are_torchs(example):
    network = example.digit_network(np.random.default_rng(3), dtype="float64")
    images, labels = draw(6, 1, 8, 8), np.arange(6)
    loss = example.softmax_cross_entropy(example.apply(network, example.Variable(images)), labels)
    ours = [variable for layer in network for variable in layer.parameters]
    theirs = [leaf(variable.data) for variable in ours]
    x = torch.tensor(images)
    for number, (layer, w, b) in enumerate(zip(network, theirs[::2], theirs[1::2], strict=True)):
        x = F.conv2d(x, w, b, layer.options["stride"], layer.options["padding"])
        x = torch.relu(x) if number < 2 else x
    expected = F.cross_entropy(x.flatten(1), torch.tensor(labels))
    assert float(loss.data) == pytest.approx(expected.item(), rel=1e-12)
    expected.backward()
    loss.backward()
    for variable, tensor in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(variable.grad, tensor.grad.numpy(), rtol=1e-10, atol=1e-12)


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


def test_a_tensor_on_the_host_is_refused(example):
    layer = example.ConvolutionLayer(2, 3, 3, random=np.random.default_rng(0), dtype="float64")
    with pytest.raises(TypeError, match="numpy"):
        layer(torch.zeros(1, 2, 5, 5))
