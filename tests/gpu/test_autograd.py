"""The autograd example on a GPU: its accuracy, and its layer against the same layer on the CPU (rows B1-B6, C1-C4)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import autograd_conv as example
import numpy as np
import pytest

import cudnnpy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "autograd_conv.py"


ConvolutionLayer, Variable = example.ConvolutionLayer, example.Variable
OPERATIONS = ("forward", "backward_data", "backward_filter")


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def on_gpu_and_cpu(*arguments, **options):
    """The same layer twice: one for the GPU, without tf32, and one for the CPU."""
    made = [ConvolutionLayer(*arguments, random=np.random.default_rng(1), tf32=False, **options) for _ in range(2)]
    for layer in made:
        if layer.bias is not None:
            layer.bias.data = draw(*layer.bias.data.shape, seed=2)
    return made


def close(on_gpu, on_cpu):
    """float32 sums of some hundreds of products of about 1."""
    scale = np.abs(on_cpu).max()
    np.testing.assert_allclose(cudnnpy.to_numpy(on_gpu), on_cpu, rtol=0, atol=2e-5 * scale)


def test_it_learns_the_digits_on_a_gpu():
    result = subprocess.run(
        [sys.executable, str(EXAMPLE), "--device", "cuda"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    print(result.stdout)
    assert result.returncode == 0, result.stderr
    assert re.search(r"Device: .+ \(cuDNN \d+\)", result.stdout)
    assert float(re.search(r"360 images not trained on: ([\d.]+)%", result.stdout)[1]) >= 97
    plans = re.findall(r"^Layer (\d), (\w+): .+, \d+ bytes of workspace$", result.stdout, re.MULTILINE)
    assert plans == [(str(layer), operation) for layer in (1, 2, 3) for operation in OPERATIONS]


@pytest.mark.parametrize("prefer", example.PREFERENCES)
@pytest.mark.parametrize(
    ("x_shape", "arguments", "options"),
    [
        ((4, 3, 9, 8), (3, 8, 3), {"padding": 1, "activation": "relu"}),
        ((4, 8, 9, 8), (8, 8, (3, 2)), {"stride": (2, 1), "bias": False}),
        ((4, 8, 9, 8), (8, 16, 3), {"groups": 2, "padding": 1, "activation": "relu"}),
        ((2, 4, 6, 5, 7), (4, 8, 3), {"padding": 1}),
    ],
)
def test_output_and_gradients_are_the_cpus(x_shape, arguments, options, prefer):
    if len(x_shape) == 5:
        arguments = (*arguments[:2], (arguments[2],) * 3)
    on_gpu, on_cpu = on_gpu_and_cpu(*arguments, cudnn_prefer=prefer, **options)
    x, host_x = Variable(cudnnpy.to_device(draw(*x_shape)), "write"), Variable(draw(*x_shape), "write")
    y, host_y = on_gpu(x), on_cpu(host_x)
    close(y.data, host_y.data)
    dy = draw(*host_y.data.shape, seed=3)
    y.backward(cudnnpy.to_device(dy))
    host_y.backward(dy)
    pairs = [(x, host_x), *zip(on_gpu.parameters, on_cpu.parameters, strict=True)]
    for variable, expected in pairs:
        close(variable.grad, expected.grad)
    sizes = {operation: plan.workspace_size for operation, plan in on_gpu.set_up.plans.items()}
    assert tuple(sizes) == OPERATIONS
    assert on_gpu.set_up.workspace_size == max(sizes.values())
    assert prefer != "no_workspace" or on_gpu.set_up.workspace_size == 0


def test_a_layer_follows_its_input_to_the_gpu_and_back():
    layer, _ = on_gpu_and_cpu(3, 8, 3)
    host = layer(draw(4, 3, 9, 8))
    close(layer(cudnnpy.to_device(draw(4, 3, 9, 8))), host)
    assert example.device_of(layer.weight.data) is not None
    np.testing.assert_array_equal(layer(draw(4, 3, 9, 8)), host)
