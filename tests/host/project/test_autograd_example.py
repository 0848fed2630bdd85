"""The autograd example on the CPU: its accuracy, its layer (rows B1-B6, C1-C4), its gradients against autograd's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import autograd.numpy as anp
import autograd_conv as example
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import ACTIVATIONS, convolve, value_and_pullback

import cudnnpy

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "autograd_conv.py"


ConvolutionLayer, Variable = example.ConvolutionLayer, example.Variable


def draw(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def layer_of(*arguments, seed=0, dtype="float64", **options):
    """A layer whose bias is not zero, so that a forgotten one shows."""
    layer = ConvolutionLayer(*arguments, random=np.random.default_rng(seed), dtype=dtype, **options)
    if layer.bias is not None:
        layer.bias.data = draw(*layer.bias.data.shape, seed=seed + 1, dtype=dtype)
    return layer


# The program


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,  # seconds; the training is to take less
    )


def test_it_learns_the_digits_on_a_cpu():
    result = run("--epochs", "4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Device: CPU")
    reached = float(re.search(r"360 images not trained on: ([\d.]+)%", result.stdout)[1])
    assert 97 <= reached <= 100
    assert "Training" in result.stderr
    assert "100%" in result.stderr


def test_a_gpu_that_is_not_there_is_said_so():
    result = run("--device", "cuda")
    assert result.returncode == 2
    assert "cuDNN cannot be used: " in result.stderr


# B1: the options


def test_the_defaults():
    layer = ConvolutionLayer(3, 4, 5)
    assert (layer.cudnn_prefer, layer.workspace_MB_limit) == ("fastest", 1024)
    assert layer.weight.data.shape == (4, 3, 5, 5)
    assert layer.bias.data.tolist() == [0, 0, 0, 0]
    assert ConvolutionLayer(3, 4, 5, bias=False).parameters != layer.parameters
    assert len(ConvolutionLayer(3, 4, 5, bias=False).parameters) == 1


@pytest.mark.parametrize("option", ["cudnn_preference", "workspace_limit", "data_format", "prefer"])
def test_an_unknown_option_is_a_type_error(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        ConvolutionLayer(3, 4, 5, **{option: 1})


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((0, 4, 3), {}, "in_channels must be an int of 1 or more; got 0"),
        ((3, -1, 3), {}, "out_channels must be an int of 1 or more; got -1"),
        ((3, 4, 0), {}, r"kernel_size\[0\] must be an int of 1 or more; got 0"),
        ((3, 4, (3, 2.5)), {}, r"kernel_size\[1\] must be an int of 1 or more; got 2\.5"),
        ((4, 4, 3), {"groups": 3}, "groups must divide 4 input and 4 output channels; got 3"),
        ((4, 4, 3), {"activation": "relu6"}, "activation must be None or 'relu'; got 'relu6'"),
        ((4, 4, 3), {"cudnn_prefer": "quickest"}, r"cudnn_prefer must be one of 'fastest'.*; got 'quickest'"),
        ((4, 4, 3), {"workspace_MB_limit": -1}, "workspace_MB_limit must be an int of 0 or more; got -1"),
        ((4, 4, 3), {"stride": 0}, "stride"),
        ((4, 4, 3), {"padding": -1}, "padding"),
        ((4, 4, 3), {"dilation": 0}, "dilation"),
    ],
)
def test_a_wrong_option_is_named(arguments, options, named):
    with pytest.raises(ValueError, match=named):
        ConvolutionLayer(*arguments, **options)


# B2: the set-up record


@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 5),
    padding=st.integers(0, 3),
    stride=st.integers(1, 3),
    batch=st.integers(1, 3),
)
def test_the_set_up_records_the_sizes(size, kernel, padding, stride, batch):
    layer = layer_of(2, 3, kernel, stride=stride, padding=padding)
    x = draw(batch, 2, size, size + 1)
    if size + 2 * padding < kernel:
        with pytest.raises(
            ValueError,
            match="the output would be empty",
        ):
            layer(x)
        assert layer.set_up is None
        return
    y = layer(x)
    sizes = [(n + 2 * padding - kernel) // stride + 1 for n in (size, size + 1)]
    assert layer.set_up.x_shape == x.shape
    assert layer.set_up.y_shape == y.shape == (batch, 3, *sizes)
    assert layer.set_up.workspace_size == 0


def test_the_set_up_is_derived_once_and_again_when_a_size_changes():
    layer = layer_of(2, 3, 3)
    layer(draw(4, 2, 6, 6))
    first = layer.set_up
    layer(draw(4, 2, 6, 6, seed=1))
    assert layer.set_up is first
    for shape in [(5, 2, 6, 6), (5, 2, 6, 7)]:
        layer(draw(*shape))
        assert layer.set_up.x_shape == shape


def test_a_channel_mismatch_is_an_error_at_set_up_and_later():
    layer = layer_of(2, 3, 3)
    wrong = draw(4, 3, 6, 6)
    with pytest.raises(
        ValueError,
        match=r"x must have shape \(N, 2, size, size\), for a weight of shape \(3, 2, 3, 3\); got shape \(4, 3, 6, 6\)",
    ):
        layer(wrong)
    assert layer.set_up is None
    layer(draw(4, 2, 6, 6))
    kept = layer.set_up
    for x in (wrong, draw(2, 6, 6), draw(4, 2, 6, 6, 6)):
        with pytest.raises(ValueError, match="x must have shape"):
            layer(x)
    assert layer.set_up is kept


def test_a_gradient_of_another_shape_is_an_error():
    layer = layer_of(2, 3, 3)
    y = layer(Variable(draw(4, 2, 6, 6)))
    with pytest.raises(ValueError, match=r"gradient must have shape \(4, 3, 4, 4\), .*; got shape \(4, 3, 5, 4\)"):
        y.backward(draw(4, 3, 5, 4))
    with pytest.raises(ValueError, match=r"gradient must have shape .*; got None"):
        y.backward()
    y.backward(draw(4, 3, 4, 4))  # the record is still there


# B3, B5, C3, C4: on a device. A stand-in for one: its arrays are boxes that only its library opens, and its library
# computes with the reference and plans what a test says.


class Box:
    """An array on the stand-in device: with a shape and a dtype, and nothing to compute with."""

    def __init__(self, array):
        assert type(array) is np.ndarray
        self._array, self.shape, self.dtype = array.copy(), array.shape, array.dtype.name

    def __dlpack_device__(self):
        return 2, 0


def opened(argument):
    assert not isinstance(argument, np.ndarray), "a host array was given to the device's library"
    return argument._array if isinstance(argument, Box) else argument


class Spec(SimpleNamespace):
    def __init__(self, shape, dtype):
        super().__init__(shape=shape, dtype=dtype)


class BoxConvolution:
    sizes = {}
    planned = []
    epilogues = []

    def __init__(self, **options):
        self._reference = cudnnpy.reference.Convolution(**options)
        self.output_shape = self._reference.output_shape

    def __getattr__(self, operation):
        method = getattr(self._reference, operation)

        def call(*arguments, out=None, **scalars):
            result = method(*map(opened, arguments), out=None if out is None else opened(out), **scalars)
            return Box(result) if out is None else out

        return call

    def plan(self, operation, *arguments, bias=None, activation=None):
        assert (operation == "forward") or (bias is activation is None)
        self.epilogues.append((bias and bias.shape, activation))
        shapes = []
        for argument in arguments:
            assert type(argument) in (Box, Spec, tuple)
            shapes.append(getattr(argument, "shape", argument))
        self.planned.append((self._reference.prefer, self._reference.workspace_limit, operation, *shapes))
        return SimpleNamespace(workspace_size=self.sizes[operation], name=f"engine for {operation}")


@pytest.fixture
def device(monkeypatch):
    """Put the stand-in in cudnnpy's place; what was planned is in BoxConvolution.planned."""
    sizes = {"forward": 5 << 20, "backward_data": 7 << 20, "backward_filter": 3 << 20}
    monkeypatch.setattr(BoxConvolution, "sizes", sizes)
    monkeypatch.setattr(BoxConvolution, "planned", [])
    monkeypatch.setattr(BoxConvolution, "epilogues", [])
    stand_in = SimpleNamespace(
        reference=cudnnpy.reference,
        Convolution=BoxConvolution,
        TensorSpec=Spec,
        to_device=lambda array, device: Box(array),
        to_numpy=lambda array: array._array.copy(),
        why_unavailable=lambda: None,
    )
    monkeypatch.setattr(example, "cudnnpy", stand_in)
    monkeypatch.setattr(example, "device_name", lambda device: f"stand-in {device}")


def test_the_three_directions_are_planned_by_one_preference(device):
    layer = layer_of(2, 3, 3, cudnn_prefer="autotune", workspace_MB_limit=8)
    layer(Box(draw(4, 2, 6, 6)))
    assert BoxConvolution.planned == [
        ("autotune", 8 << 20, "forward", (4, 2, 6, 6), (3, 2, 3, 3)),
        ("autotune", 8 << 20, "backward_data", (4, 3, 4, 4), (3, 2, 3, 3), (4, 2, 6, 6)),
        ("autotune", 8 << 20, "backward_filter", (4, 3, 4, 4), (4, 2, 6, 6), (3, 2, 3, 3)),
    ]
    assert layer.set_up.workspace_size == 7 << 20
    assert BoxConvolution.epilogues == [((3,), None), (None, None), (None, None)]
    layer_of(2, 3, 3, bias=False, activation="relu")(Box(draw(4, 2, 6, 6)))
    assert BoxConvolution.epilogues[3] == (None, "relu")


def test_a_known_signature_is_not_planned_again(device):
    layer = layer_of(2, 3, 3)
    for _ in range(3):
        layer(Variable(Box(draw(4, 2, 6, 6)))).backward(Box(draw(4, 3, 4, 4)))
    assert len(BoxConvolution.planned) == 3


@pytest.mark.parametrize(
    ("prefer", "limit"),
    [("fastest", None), ("limited_workspace", 6 << 20), ("no_workspace", None), ("autotune", 6 << 20)],
)
def test_the_limit_goes_to_the_preferences_that_keep_to_one(prefer, limit):
    options = layer_of(2, 3, 3, cudnn_prefer=prefer, workspace_MB_limit=6).options
    assert options["prefer"] == prefer
    assert options.get("workspace_limit") == limit


def test_fastest_warns_above_the_limit(device):
    with pytest.warns(UserWarning, match=r"7\.0 MB of workspace, more than workspace_MB_limit=6") as caught:
        layer_of(2, 3, 3, workspace_MB_limit=6)(Box(draw(4, 2, 6, 6)))
    assert caught[0].filename == __file__
    layer_of(2, 3, 3, workspace_MB_limit=7)(Box(draw(4, 2, 6, 6)))  # at the limit: no warning, which would fail here


def test_training_on_a_device_and_on_the_cpu_give_the_same(device):
    """Every array is where it should be, or the stand-in fails; and what is computed does not depend on where."""
    images, labels, test_images, test_labels = example.digits()
    found = []
    for place in (0, None):
        random = np.random.default_rng(5)
        network = example.digit_network(random)
        losses = [loss for _, loss in example.train(network, images[:128], labels[:128], place, 1, random)]
        parameters = [variable.data for layer in network for variable in layer.parameters]
        assert all(isinstance(array, Box if place == 0 else np.ndarray) for array in parameters)
        found.append((losses, [example.to_host(array) for array in parameters]))
        found[-1][0].append(example.accuracy(network, test_images[:50], test_labels[:50], place))
    assert found[0][0] == found[1][0]
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


# B4, B5, C2: forward and the three gradients


CASES = [
    ((2, 3, 7, 6), (3, 4, 3), {}),
    ((2, 3, 7, 6), (3, 4, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "bias": False}),
    ((2, 4, 7, 6), (4, 6, 3), {"groups": 2, "padding": 1, "activation": "relu"}),
    ((2, 4, 9, 9), (4, 4, 3), {"groups": 4, "dilation": 2, "stride": 2, "activation": "relu"}),
    ((3, 2, 11), (2, 5, (4,)), {"stride": 3, "padding": 2, "activation": "relu"}),
    ((2, 2, 5, 4, 6), (2, 4, (3, 2, 3)), {"groups": 2, "padding": 1, "stride": (1, 2, 1)}),
]


def textbook_layer(x, w, b, stride=1, padding=0, dilation=1, groups=1, activation=None, bias=True):
    rank = x.ndim - 2
    stride, padding, dilation = (
        (given,) * rank if isinstance(given, int) else given for given in (stride, padding, dilation)
    )
    y = convolve(x, w, [(pad, pad) for pad in padding], stride, dilation, groups)
    if b is not None:
        y = y + anp.reshape(b, (-1, *[1] * rank))
    return ACTIVATIONS[activation or "identity"](y, 1.0)


def data_of(variables):
    return [variable.data for variable in variables]


@pytest.mark.parametrize(("x_shape", "arguments", "options"), CASES)
def test_the_gradients_are_the_textbooks(x_shape, arguments, options):
    layer, x = layer_of(*arguments, **options), Variable(draw(*x_shape), "write")
    variables = [variable for variable in (x, layer.weight, layer.bias) if variable is not None]
    expected, pull = value_and_pullback(lambda x, w, b=None: textbook_layer(x, w, b, **options), *data_of(variables))
    y = layer(x)
    np.testing.assert_allclose(y.data, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(layer(x.data), y.data)
    dy = draw(*y.data.shape, seed=9)
    y.backward(dy)
    for variable, gradient in zip(variables, pull(dy), strict=True):
        np.testing.assert_allclose(variable.grad, gradient, rtol=1e-11, atol=1e-11)


# B6: no backward without a forward


def unrecorded():
    layer = layer_of(2, 3, 3)
    x = draw(4, 2, 6, 6)
    yield Variable(layer(x))  # called on an array: inference
    yield Variable(x, "write")
    for variable in layer.parameters:
        variable.request = "null"
    yield layer(Variable(x))  # nothing wants a gradient
    layer.weight.request = "write"
    spent = layer(Variable(x))
    spent.backward(draw(4, 3, 4, 4))
    yield spent


@pytest.mark.parametrize("number", range(4))
def test_backward_without_a_recorded_forward_is_an_error_that_says_so(number):
    variable = list(unrecorded())[number]
    with pytest.raises(RuntimeError, match="backward without a recorded forward"):
        variable.backward(np.ones_like(variable.data))


# C1: gradients by request


@pytest.mark.parametrize("x_request", ["null", "write", "add"])
@pytest.mark.parametrize("w_request", ["null", "write", "add"])
@pytest.mark.parametrize("b_request", ["null", "write", "add"])
def test_gradients_by_request(x_request, w_request, b_request):
    layer, x = layer_of(2, 3, 3, activation="relu"), Variable(draw(4, 2, 6, 6), "write")
    variables = {"x": x, "w": layer.weight, "b": layer.bias}
    dy = draw(4, 3, 4, 4, seed=5)
    layer(x).backward(dy)
    once = {name: variable.grad.copy() for name, variable in variables.items()}
    requests = {"x": x_request, "w": w_request, "b": b_request}
    for name, variable in variables.items():
        variable.request = requests[name]
        variable.grad[...] = 100.0
    kept = {name: variable.grad for name, variable in variables.items()}
    if set(requests.values()) != {"null"}:
        layer(x).backward(dy)
    for name, variable in variables.items():
        expected = {"null": 100.0 + 0 * once[name], "write": once[name], "add": 100.0 + once[name]}[requests[name]]
        assert variable.grad is kept[name]
        np.testing.assert_allclose(variable.grad, expected, rtol=1e-12, atol=1e-11)
