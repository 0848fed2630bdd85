"""A small autograd convolution layer, and a network of three such layers that learns to read handwritten digits.

    python docs/examples/autograd_conv.py [--device auto|cpu|cuda] [--epochs N]

The layer works where its input lies: on a NumPy array with cudnnpy.reference, on an array in a GPU's memory with
cudnnpy. Both have the same operations with the same arguments, so that nothing else in this file depends on the device.

Everything in the network is a convolution, also the step to fewer pixels (stride 2) and the last, fully connected layer
(a filter as large as what is left). The rest is small: the ReLU's derivative, the softmax and the optimizer's step take
microseconds in NumPy and go through the host's memory, where a framework would have kernels of its own.

The digits are scikit-learn's, 1,797 pictures of 8x8 pixels, bundled with it: pip install scikit-learn rich
"""

import argparse
import sys
import warnings
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

import cudnnpy

REQUESTS = ("null", "write", "add")
PREFERENCES = ("fastest", "limited_workspace", "no_workspace", "autotune")
MEGABYTE = 1 << 20
MOST_SET_UPS = 64  # that a layer keeps, for as many sizes of its input
WANTED_ACCURACY = 0.97


# Where arrays lie


def device_of(array):
    """The ordinal of the GPU whose memory an array lies in, or None for the host's."""
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(f"array must be a NumPy array or one on a GPU (cudnnpy.to_device); got {array!r:.60}")
    kind, ordinal = array.__dlpack_device__()
    return ordinal if kind == 2 else None  # 2: DLPack's number for CUDA


def library_on(device):
    """What has Convolution for arrays on a device."""
    return cudnnpy.reference if device is None else cudnnpy


def to_host(array):
    return array if isinstance(array, np.ndarray) else cudnnpy.to_numpy(array)


def place(array, device):
    """The array on a device: itself, or a copy."""
    if device_of(array) == device:
        return array
    return to_host(array) if device is None else cudnnpy.to_device(to_host(array), device=device)


# The tape


class Variable:
    """An array with a gradient, and a record of what it was made from.

    request   "null": no gradient is computed; "write": each backward leaves its own; "add": it is added to grad
    grad      the gradient, an array like data, or None
    """

    def __init__(self, data, request="null", *, inputs=(), backward=None):
        self.data, self.request, self.grad = data, request, None
        self._inputs, self._backward = inputs, backward
        self._adding = False

    @property
    def request(self):
        return self._request

    @request.setter
    def request(self, value):
        if value not in REQUESTS:
            raise ValueError(f"request must be one of {', '.join(map(repr, REQUESTS))}; got {value!r}")
        self._request = value

    def take(self, gradient):
        """Take one contribution: gradient(out, beta) returns it plus beta * out, in out unless that is None."""
        beta = 1.0 if self._adding and self.grad is not None else 0.0
        self.grad = gradient(out=self.grad, beta=beta)
        self._adding = True  # what is used twice gets both contributions

    def backward(self, gradient=None):
        """Compute every requested gradient of this variable, weighted by `gradient` (1 for a single number).

        The record is spent: one forward is good for one backward. Raises RuntimeError where there is none, ValueError
        for a gradient of another shape.
        """
        if self._backward is None:
            raise RuntimeError(
                "backward without a recorded forward: call the layer on a Variable first, of which something requests "
                "a gradient, and once for each backward"
            )
        if gradient is None and prod(self.data.shape) == 1:
            gradient = np.ones_like(self.data)
        if gradient is None or tuple(gradient.shape) != tuple(self.data.shape):
            given = None if gradient is None else f"shape {tuple(gradient.shape)}"
            raise ValueError(f"gradient must have shape {tuple(self.data.shape)}, as the variable; got {given}")
        tape: dict[Variable, None] = {}
        self._lay_out(tape)
        for variable in tape:
            variable._adding = variable.request == "add"
        self.grad = gradient
        for variable in reversed(tape):
            if variable._backward is not None and variable.grad is not None:
                variable._backward(variable.grad)
            variable._inputs, variable._backward = (), None

    def _lay_out(self, tape):
        """List what this variable was made from, each after its own inputs."""
        for variable in self._inputs:
            if variable not in tape:
                variable._lay_out(tape)
        tape[self] = None


# The layer


@dataclass(frozen=True)
class SetUp:
    """What follows from an input's shape, dtype and device: derived once, and again when one of them changes."""

    signature: tuple[Any, ...]
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    convolution: Any
    plans: dict[str, Any] = field(default_factory=dict)  # by operation; the CPU needs none

    @property
    def workspace_size(self):
        """Bytes of scratch memory: the largest of the three, since no two of one layer's operations run at once."""
        return max((plan.workspace_size for plan in self.plans.values()), default=0)


class ConvolutionLayer:
    """A convolution over 1, 2 or 3 spatial dimensions with a weight and a bias, recorded for backward.

    in_channels, out_channels   x is (N, in_channels, spatial...), y (N, out_channels, spatial...)
    kernel_size          an int for a square kernel over 2 dimensions, or one for each of 1, 2 or 3
    stride, padding, dilation, groups, deterministic, tf32   as in cudnnpy.Convolution
    bias                 whether there is one
    activation           None or "relu", computed with the convolution
    cudnn_prefer         "fastest", "limited_workspace", "no_workspace" or "autotune", for all three directions
    workspace_MB_limit   of 1,048,576 bytes: above it "fastest" warns, "limited_workspace" refuses (NoAlgorithmError)
                         and "autotune" does not look; "no_workspace" needs none
    dtype                of x and of the parameters
    random               the numpy.random.Generator that draws the first weights

    Called on an array, a layer returns an array. Called on a Variable, it returns a Variable to go backward from; the
    parameters' gradients come by their own requests (layer.weight.request, layer.bias.request; "write" at first). The
    parameters follow the input to its device.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        *,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        activation=None,
        cudnn_prefer="fastest",
        workspace_MB_limit=1024,
        deterministic=False,
        tf32=True,
        dtype="float32",
        random=None,
    ):
        if isinstance(kernel_size, int):
            kernel_size = (kernel_size, kernel_size)
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
        sizes |= {f"kernel_size[{axis}]": size for axis, size in enumerate(kernel_size)}
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be an int of 1 or more; got {size!r}")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups must divide {in_channels} input and {out_channels} output channels; got {groups}")
        if activation not in (None, "relu"):
            raise ValueError(f"activation must be None or 'relu'; got {activation!r}")
        if cudnn_prefer not in PREFERENCES:
            raise ValueError(f"cudnn_prefer must be one of {', '.join(map(repr, PREFERENCES))}; got {cudnn_prefer!r}")
        if not isinstance(workspace_MB_limit, int) or isinstance(workspace_MB_limit, bool) or workspace_MB_limit < 0:
            raise ValueError(f"workspace_MB_limit must be an int of 0 or more; got {workspace_MB_limit!r}")
        self.cudnn_prefer, self.workspace_MB_limit, self.activation = cudnn_prefer, workspace_MB_limit, activation
        self.options = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "prefer": cudnn_prefer,
            "deterministic": deterministic,
            "tf32": tf32,
        }
        if cudnn_prefer in ("limited_workspace", "autotune"):
            self.options["workspace_limit"] = workspace_MB_limit * MEGABYTE
        # which refuses a wrong option now, and a wrong size later, whatever the device will be
        self._reference = cudnnpy.reference.Convolution(**self.options)

        self.in_channels, self.dtype = in_channels, np.dtype(dtype)
        shape = (out_channels, in_channels // groups, *kernel_size)
        spread = np.sqrt(2 / prod(shape[1:]))  # keeps the size of the values through a ReLU (He et al., 2015)
        weight = (np.random.default_rng() if random is None else random).normal(scale=spread, size=shape)
        self.weight = Variable(weight.astype(self.dtype), "write")
        self.bias = Variable(np.zeros(out_channels, self.dtype), "write") if bias else None
        self.set_up, self._set_ups = None, {}  # of the last input, and of all by their signatures

    @property
    def parameters(self):
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x):
        if not isinstance(x, Variable):
            return self._forward(x)
        data = self._forward(x.data)
        inputs = (x, *self.parameters)
        if all(variable.request == "null" for variable in inputs):
            return Variable(data)
        backward = partial(self._backward, self.set_up, x, self.weight.data, data)
        return Variable(data, "write", inputs=inputs, backward=backward)

    def _forward(self, x):
        signature = (device_of(x), str(x.dtype), tuple(x.shape))
        if self.set_up is None or self.set_up.signature != signature:
            y_shape = self._follow(x)
            known = self._set_ups.get(signature)
            if known is None and len(self._set_ups) >= MOST_SET_UPS:
                self._set_ups.clear()
            self.set_up = self._set_ups[signature] = known or self._derive(x, signature, y_shape)
        bias = None if self.bias is None else self.bias.data
        return self.set_up.convolution.forward(x, self.weight.data, bias, self.activation)

    def _backward(self, set_up, x, w, y, dy):
        """Gradients for the recorded forward of x and w to y, each into the grad of its variable."""
        convolution = set_up.convolution
        if self.activation == "relu":
            gradient = to_host(dy)
            dy = place(np.where(to_host(y) > 0, gradient, gradient.dtype.type(0)), device_of(dy))
        if x.request != "null":
            x.take(partial(convolution.backward_data, dy, w, set_up.x_shape))
        if self.weight.request != "null":
            self.weight.take(partial(convolution.backward_filter, dy, x.data, tuple(w.shape)))
        if self.bias is not None and self.bias.request != "null":
            self.bias.take(partial(convolution.backward_bias, dy))

    def _follow(self, x):
        """Refuse an x that does not fit the weight; the parameters go where x is. Returns y's shape."""
        w_shape = tuple(self.weight.data.shape)
        if len(x.shape) != len(w_shape) or x.shape[1] != self.in_channels:
            sizes = ", ".join(["N", str(self.in_channels), *["size"] * (len(w_shape) - 2)])
            raise ValueError(
                f"x must have shape ({sizes}), for a weight of shape {w_shape}; got shape {tuple(x.shape)}"
            )
        y_shape = self._reference.output_shape(tuple(x.shape), w_shape)
        for variable in self.parameters:
            variable.data = place(variable.data, device_of(x))
            variable.grad = None if variable.grad is None else place(variable.grad, device_of(x))
        return y_shape

    def _derive(self, x, signature, y_shape):
        """The set-up record for x."""
        device, _, x_shape = signature
        w_shape = tuple(self.weight.data.shape)
        library = library_on(device)
        if library is cudnnpy.reference:
            return SetUp(signature, x_shape, y_shape, self._reference)
        convolution = library.Convolution(**self.options)
        # What the calls will choose (if by time, then about), told before they are made: they plan by themselves, once
        # for each signature, and share one workspace. `plan` plans anew each time, so what it says is kept.
        w, dy = self.weight.data, cudnnpy.TensorSpec(y_shape, self.dtype.name)
        bias = None if self.bias is None else self.bias.data
        plans = {
            "forward": convolution.plan("forward", x, w, bias=bias, activation=self.activation),
            "backward_data": convolution.plan("backward_data", dy, w, x_shape),
            "backward_filter": convolution.plan("backward_filter", dy, x, w_shape),
        }
        for plan in plans.values():
            plan.candidates = []  # all others that were looked at
        set_up = SetUp(signature, x_shape, y_shape, convolution, plans)
        if self.cudnn_prefer == "fastest" and set_up.workspace_size > self.workspace_MB_limit * MEGABYTE:
            warnings.warn(
                f"the fastest algorithms want {set_up.workspace_size / MEGABYTE:.1f} MB of workspace, more than "
                f"workspace_MB_limit={self.workspace_MB_limit}; cudnn_prefer='limited_workspace' keeps to it",
                stacklevel=4,
            )
        return set_up


# Training


def softmax_cross_entropy(logits, labels):
    """The mean of -log(softmax(logits)[label]), a Variable of one number on the host."""
    z = to_host(logits.data).reshape(len(labels), -1)
    z = z - z.max(axis=1, keepdims=True)
    log_softmax = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))

    def backward(weight):
        gradient = np.exp(log_softmax)
        gradient[rows, labels] -= 1
        gradient = gradient.reshape(logits.data.shape) * (weight / len(labels)).astype(gradient.dtype)

        def contribution(out, beta):
            total = gradient + to_host(out) if beta else gradient
            return place(total, device_of(logits.data))

        logits.take(contribution)

    loss = -log_softmax[rows, labels].mean()
    return Variable(np.asarray(loss), "write", inputs=(logits,), backward=backward)


class Momentum:
    """Stochastic gradient descent with momentum. On a GPU the parameters are few, and updated by way of the host."""

    def __init__(self, parameters, momentum=0.9):
        self.parameters, self.momentum = parameters, momentum
        self.velocities = [np.zeros_like(to_host(variable.data)) for variable in parameters]

    def step(self, rate):
        for variable, velocity in zip(self.parameters, self.velocities, strict=True):
            velocity *= self.momentum
            velocity -= rate * to_host(variable.grad)
            variable.data = place(to_host(variable.data) + velocity, device_of(variable.data))


def digits():
    """Training images, training labels, test images, test labels; images (N, 1, 8, 8), float32 in 0..1."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = (bunch.images[:, None] / 16).astype(np.float32), bunch.target
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return images[train], labels[train], images[test], labels[test]


def digit_network(random, **options):
    """Layers from (N, 1, 8, 8) to (N, 10, 1, 1)."""
    return [
        ConvolutionLayer(1, 16, 3, padding=1, activation="relu", random=random, **options),
        ConvolutionLayer(16, 32, 3, padding=1, stride=2, activation="relu", random=random, **options),
        ConvolutionLayer(32, 10, 4, random=random, **options),
    ]


def apply(network, x):
    for layer in network:
        x = layer(x)
    return x


def accuracy(network, images, labels, device):
    scores = to_host(apply(network, place(images, device))).reshape(len(images), -1)
    return float((scores.argmax(axis=1) == labels).mean())


def train(network, images, labels, device, epochs, random, batch_size=32, rate=0.05):
    """Train on a device; yields after every batch the part done and the loss. The rate falls to 0 along a cosine."""
    optimizer = Momentum([variable for layer in network for variable in layer.parameters])
    steps = epochs * -(-len(images) // batch_size)
    step = 0
    for _ in range(epochs):
        order = random.permutation(len(images))
        for start in range(0, len(images), batch_size):
            batch = order[start : start + batch_size]
            scores = apply(network, Variable(place(images[batch], device)))
            loss = softmax_cross_entropy(scores, labels[batch])
            loss.backward()
            optimizer.step(rate * (1 + np.cos(np.pi * step / steps)) / 2)
            step += 1
            yield step / steps, float(loss.data)


# The command


def device_name(device):
    if device is None:
        return "CPU (cudnnpy.reference)"
    from cuda.core import Device

    return f"{Device(device).name} (cuDNN {cudnnpy.raw.cudnnGetVersion()})"


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {value}")
    return value


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Train a small convolutional network on handwritten digits.")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if cuDNN works"
    )
    parser.add_argument("--epochs", type=positive, default=12, metavar="N", help="times through the images (12)")
    options = parser.parse_args(arguments)
    why = None if options.device == "cpu" else cudnnpy.why_unavailable()
    if options.device == "cuda" and why is not None:
        parser.exit(2, f"{parser.prog}: cuDNN cannot be used: {why}\n")
    device = None if options.device == "cpu" or why is not None else 0
    try:
        from rich.console import Console
        from rich.progress import Progress

        images, labels, test_images, test_labels = digits()
    except ImportError as error:
        parser.exit(2, f"{parser.prog}: {error}; pip install scikit-learn rich\n")

    print("Device:", device_name(device))
    random = np.random.default_rng(1)
    network = digit_network(random)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("Training", total=1.0)
        for done, loss in train(network, images, labels, device, options.epochs, random):
            progress.update(task, completed=done, description=f"Training, loss {loss:.3f}")
    reached = accuracy(network, test_images, test_labels, device)
    for number, layer in enumerate(network, 1):
        for operation, plan in layer.set_up.plans.items():
            print(f"Layer {number}, {operation}: {plan.name}, {plan.workspace_size} bytes of workspace")
    print(f"Accuracy on {len(test_images)} images not trained on: {reached:.2%}")
    if reached < WANTED_ACCURACY:
        print(f"{parser.prog}: below the {WANTED_ACCURACY:.0%} wanted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
