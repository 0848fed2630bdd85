"""The calls of the parts about operations: each operation of cudnnpy and PyTorch's own, on the same tensors.

cudnnpy's names are looked up when a case is made, so that a missing name fails its rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import cudnnpy as package

cudnnpy: Any = package

Call: TypeAlias = Callable[[], Any]

DEVICE = "cuda"
PACKED, CHANNELS_LAST = (False,), (True,)
EPSILON = 1e-5


class Tensors:
    """Random tensors of one data type in one memory format, and tensors for results; `bytes` counts both."""

    def __init__(self, torch: Any, dtype: str, channels_last: bool, shape: tuple[int, ...]) -> None:
        self.torch, self.dtype, self.shape = torch, getattr(torch, dtype), shape
        self.channels_last, self.channels = channels_last, shape[1]
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32  # of parameters and statistics
        self.bytes = 0
        self.rooms: list[Any] = []

    def random(self, *shape: int, dtype: Any = None) -> Any:
        """Normally distributed; (N, C, H, W) where no shape is given."""
        made = self.torch.randn(shape or self.shape, device=DEVICE, dtype=dtype or self.dtype)
        return self.ordered(made)

    def room(self, *shape: int, dtype: Any = None, turned: bool = False) -> Any:
        """A tensor of NaN for a result; `turned` is in the other memory format."""
        made = self.torch.full(shape or self.shape, math.nan, device=DEVICE, dtype=dtype or self.dtype)
        self.rooms.append(self.ordered(made, turned))
        return self.rooms[-1]

    def parameters(self, count: int) -> list[Any]:
        """Vectors of one number for each channel, from 0.5 to 1.5."""
        return [self.torch.rand(self.channels, device=DEVICE, dtype=self.wide) + 0.5 for _ in range(count)]

    def ordered(self, tensor: Any, turned: bool = False) -> Any:
        """The tensor in this memory format (or the other one)."""
        if tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=self.memory(turned))
        self.bytes += tensor.nbytes
        return tensor

    def memory(self, turned: bool = False) -> Any:
        """torch's name of the memory format."""
        return self.torch.channels_last if self.channels_last != turned else self.torch.contiguous_format


class CaseCalls(NamedTuple):
    """The calls that are compared, on one set of tensors."""

    torch: Call
    out: Call  # cudnnpy with the result's tensors given
    new: Call | None = None  # cudnnpy, which makes them
    separate: Call | None = None  # cudnnpy's separate calls that the fused call replaces
    expected: Callable[[Any], Any] | None = None  # the right result, from cudnnpy's, where torch's call has another


class Case(NamedTuple):
    """A row: what to call, on which tensors. Host cost is measured for forward operations."""

    name: str
    make: Callable[[Tensors], CaseCalls]
    host: bool = True
    orders: tuple[bool, ...] = PACKED + CHANNELS_LAST
    tolerance: float = 0.0  # if it is wider than the data type's
    has_float64: bool = True


def gradient(t: Tensors, function: Callable[..., Call], inputs: list[Any], dy: Any) -> Call:
    """torch's backward pass alone, through its own autograd: the forward pass has run."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with t.torch.enable_grad():
        y = function(t.torch, *leaves)()
    return partial(t.torch.autograd.grad, y, leaves, dy, retain_graph=True)


def plain(
    name: str, ours: Callable[[], Any], theirs: Callable[..., Call], saved: str = "xy", read: str | None = None
) -> list[Case]:
    """Forward and backward of an operation without parameters, whose backward takes dy and the tensors in `saved`.

    The gradient reads those in `read`, by default all of them; only their bytes are counted.
    """

    def forward(t: Tensors) -> CaseCalls:
        x, method = t.random(), ours().forward
        call = theirs(t.torch, x)
        y = t.room(*call().shape)
        return CaseCalls(call, partial(method, x, out=y), partial(method, x))

    def backward(t: Tensors) -> CaseCalls:
        x, method, dx = t.random(), ours().backward, t.room()
        y = t.ordered(theirs(t.torch, x)())
        dy = t.random(*y.shape)
        there = {"x": x, "y": y}
        given = [there[letter] for letter in saved]
        t.bytes -= sum(
            tensor.nbytes for letter, tensor in there.items() if letter not in (saved if read is None else read)
        )

        def expected(_: Any) -> Any:
            """Channels first: torch 2.11's avg_pool2d gives a wrong gradient for channels last."""
            return gradient(t, theirs, [x.contiguous()], dy.contiguous())()

        return CaseCalls(gradient(t, theirs, [x], dy), partial(method, dy, *given, out=dx), expected=expected)

    return [Case(name, forward), Case(f"{name}, backward", backward, host=False)]


def pooling(mode: str, window: int, padding: int) -> list[Case]:
    """Two-dimensional pooling with stride 2."""
    name = f"{mode.replace('_', ' ')} pooling {window}x{window}/2"

    def ours() -> Any:
        return cudnnpy.Pooling(mode=mode, window=window, padding=padding, stride=2)

    def theirs(torch: Any, x: Any) -> Call:
        f = torch.nn.functional
        if mode == "max":
            return partial(f.max_pool2d, x, window, 2, padding)
        return partial(f.avg_pool2d, x, window, 2, padding, False, mode == "average_include_padding")

    return plain(name, ours, theirs, read="xy" if mode == "max" else "")


def global_pooling(size: tuple[int, int]) -> list[Case]:
    """The average of each image and channel, whatever the images' size."""

    def ours() -> Any:
        return cudnnpy.Pooling(mode="average_include_padding", window=size)

    def theirs(torch: Any, x: Any) -> Call:
        return partial(torch.nn.functional.adaptive_avg_pool2d, x, 1)

    return plain("global average pooling", ours, theirs, read="")


def activation(mode: str, theirs: Callable[..., Call], coefficient: float = 1.0) -> list[Case]:
    """An activation that torch has too."""
    name = mode.replace("_", " ")
    return plain(name, lambda: cudnnpy.Activation(mode=mode, coefficient=coefficient), theirs, read="x")


# --- normalizations


def statistics(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Mean and inverse standard deviation of the elements over the axes."""
    wide = x if x.element_size() == 8 else x.float()
    return wide.mean(axes), (wide.var(axes, unbiased=False) + EPSILON).rsqrt()


def batch_norm(torch: Any, x: Any, scale: Any, bias: Any) -> Call:
    """torch's, in training, without running statistics."""
    return partial(torch.nn.functional.batch_norm, x, None, None, scale, bias, True, 0.1, EPSILON)


def batch_training(t: Tensors, relu: bool = False) -> CaseCalls:
    """With running statistics, each side its own."""
    f, x, y = t.torch.nn.functional, t.random().add_(1), t.room()  # a mean other than 0
    scale, bias, *running = t.parameters(6)
    theirs, mine, apart = running[:2], running[2:], t.parameters(2)
    forward = cudnnpy.BatchNormalization(epsilon=EPSILON).forward_training
    given = (x, scale, bias, *mine)
    normalize = partial(f.batch_norm, x, *theirs, scale, bias, True, 0.1, EPSILON)
    if not relu:
        expected = partial(_with, normalize, x, (0, 2, 3))
        return CaseCalls(normalize, partial(forward, *given, out=y), partial(forward, *given), expected=expected)
    rectify, cut = t.torch.relu_, cudnnpy.Activation(mode="relu").forward

    def call() -> Any:
        return rectify(normalize())

    def separate() -> Any:
        forward(x, scale, bias, *apart, out=y)
        return cut(y, out=y)

    fused = partial(forward, *given, activation="relu")
    return CaseCalls(call, partial(fused, out=y), fused, separate, partial(_with, call, x, (0, 2, 3)))


def _with(call: Call, x: Any, axes: tuple[int, ...], _ours: Any) -> tuple[Any, ...]:
    return call(), *statistics(x, axes)


def batch_inference(t: Tensors) -> CaseCalls:
    """By given statistics."""
    x, y, (scale, bias, mean, variance) = t.random(), t.room(), t.parameters(4)
    call = partial(t.torch.nn.functional.batch_norm, x, mean, variance, scale, bias, False, 0.1, EPSILON)
    ours = partial(cudnnpy.BatchNormalization(epsilon=EPSILON).forward_inference, x, scale, bias, mean, variance)
    return CaseCalls(call, partial(ours, out=y), ours)


def batch_backward(t: Tensors) -> CaseCalls:
    """By saved statistics."""
    x, dy, dx, (scale, bias) = t.random(), t.random(), t.room(), t.parameters(2)
    results = {"out_" + name: t.room(t.channels, dtype=t.wide) for name in ("scale", "bias")}
    ours = cudnnpy.BatchNormalization(epsilon=EPSILON).backward
    saved = statistics(x, (0, 2, 3))
    return CaseCalls(
        gradient(t, batch_norm, [x, scale, bias], dy), partial(ours, dy, x, scale, *saved, out=dx, **results)
    )


def instance_norm(torch: Any, x: Any, scale: Any, bias: Any) -> Call:
    """torch's, over the space of each image and channel."""
    return partial(torch.nn.functional.instance_norm, x, None, None, scale, bias, True, 0.1, EPSILON)


def layer_norm(torch: Any, x: Any, scale: Any, bias: Any) -> Call:
    """torch's, over the last axis; parameters of x's element type, as its CUDA kernel asks."""
    return partial(torch.nn.functional.layer_norm, x, tuple(scale.shape), scale, bias, EPSILON)


def rms_norm(torch: Any, x: Any, scale: Any) -> Call:
    """torch's, over the last axis; parameters of x's element type, without which it runs no single kernel."""
    return partial(torch.nn.functional.rms_norm, x, tuple(scale.shape), scale, EPSILON)


def normalization(kind: str, theirs: Callable[..., Call], rows: bool = False) -> list[Case]:
    """Training, inference and backward of a kind that has no running statistics; `rows`: over the last axis of x."""

    def ours() -> Any:
        return getattr(cudnnpy, f"{kind}Normalization")(epsilon=EPSILON)

    def inputs(t: Tensors) -> tuple[Any, list[Any]]:
        """x and the parameters; for rows they are of x's data type, as torch's kernels require."""
        if not rows:
            return t.random().add_(1), t.parameters(2)
        made = [(t.torch.rand(t.channels, device=DEVICE) + 0.5).to(t.dtype) for _ in range(1 + (kind == "Layer"))]
        return t.random().add_(1), made

    def saved(x: Any) -> tuple[Any, ...]:
        if kind == "RMS":
            wide = x if x.element_size() == 8 else x.float()
            return ((wide.square().mean(-1) + EPSILON).rsqrt(),)
        return statistics(x, (-1,) if rows else (2, 3))

    def training(t: Tensors) -> CaseCalls:
        x, parameters = inputs(t)
        call, method = theirs(t.torch, x, *parameters), partial(ours().forward_training, x, *parameters)
        return CaseCalls(call, partial(method, out=t.room(*x.shape)), method, expected=lambda _: (call(), *saved(x)))

    def inference(t: Tensors) -> CaseCalls:
        x, parameters = inputs(t)
        method = partial(ours().forward_inference, x, *parameters)
        return CaseCalls(theirs(t.torch, x, *parameters), partial(method, out=t.room(*x.shape)), method)

    def backward(t: Tensors) -> CaseCalls:
        x, parameters = inputs(t)
        dy, dx = t.random(*x.shape), t.room(*x.shape)
        call = gradient(t, theirs, [x, *parameters], dy)
        return CaseCalls(call, partial(ours().backward, dy, x, parameters[0], *saved(x), out=dx))

    name = f"{kind if kind == 'RMS' else kind.lower()} norm"
    return [
        Case(f"{name}, training", training),
        Case(f"{name}, inference", inference),
        Case(f"{name}, backward", backward, host=False),
    ]


# --- tensors


def add(t: Tensors, bias: bool) -> CaseCalls:
    """A tensor of x's shape, or one element for each channel."""
    x, y, a = t.random(), t.room(), t.random(1, t.channels, 1, 1) if bias else t.random()
    ours = partial(cudnnpy.add_tensor, a, x)
    return CaseCalls(partial(t.torch.add, x, a), partial(ours, out=y), ours)


def scale(t: Tensors) -> CaseCalls:
    """By a number."""
    x, y = t.random(), t.room()
    ours = partial(cudnnpy.scale_tensor, x, 0.7)
    return CaseCalls(partial(t.torch.mul, x, 0.7), partial(ours, out=y), ours)


def fill(t: Tensors) -> CaseCalls:
    """With a number; there is no form of it without a result."""
    return CaseCalls(partial(t.room().fill_, 0.7), partial(cudnnpy.set_tensor, t.room(), 0.7))


def turn(t: Tensors) -> CaseCalls:
    """Into the other memory format."""
    x, y = t.random(), t.room(turned=True)
    call = partial(x.contiguous, memory_format=t.memory(turned=True))
    ours = partial(cudnnpy.transform_tensor, x)
    return CaseCalls(call, partial(ours, out=y), partial(ours, layout="C" if t.channels_last else "channels_last"))


def convert(t: Tensors) -> CaseCalls:
    """From float32 to float16, or back."""
    narrow = t.dtype == t.torch.float32
    dtype, name = (t.torch.float16, "float16") if narrow else (t.torch.float32, "float32")
    x, y = t.random(), t.room(dtype=dtype)
    ours = partial(cudnnpy.transform_tensor, x)
    return CaseCalls(partial(x.to, dtype), partial(ours, out=y), partial(ours, dtype=name))


def reduction(op: str, axes: tuple[int, ...] | None) -> Case:
    """A reduction over some axes, or over all (None)."""

    def make(t: Tensors) -> CaseCalls:
        x = t.random()
        every = axes or tuple(range(x.dim()))
        if op == "norm2":
            call = partial(t.torch.linalg.vector_norm, x, 2, every, True)
        else:
            call = partial({"sum": t.torch.sum, "max": t.torch.amax}[op], x, every, True)
        ours = partial(cudnnpy.reduce_tensor, x, op=op, axes=axes)
        return CaseCalls(call, partial(ours, out=t.room(*call().shape)), ours)

    return Case(f"reduce: {op} over {'all' if axes is None else ' '.join(map(str, axes))}", make)


def dropout(t: Tensors) -> CaseCalls:
    """The random masks differ: cudnnpy's zeros are accepted if they are about half of the elements."""
    x, y = t.random().abs_() + 0.1, t.room()  # nothing is 0 by itself
    forward = cudnnpy.Dropout(probability=0.5, seed=1).forward

    def expected(ours: Any) -> Any:
        mask = ours[0] != 0
        off = abs(float(mask.float().mean()) - 0.5)
        return x * mask * (2.0 if off <= 3 / math.sqrt(x.numel()) else math.nan)  # six standard deviations

    return CaseCalls(
        partial(t.torch.dropout, x, 0.5, True), partial(forward, x, out=y), partial(forward, x), None, expected
    )


def dropout_backward(t: Tensors) -> CaseCalls:
    """By the reserve of a forward pass, and torch's by its own mask."""
    x, dy, dx = t.random().abs_() + 0.1, t.random(), t.room()
    drop = cudnnpy.Dropout(probability=0.5, seed=1)
    y, reserve = drop.forward(x)
    call = gradient(t, lambda torch, x: partial(torch.dropout, x, 0.5, True), [x], dy)
    return CaseCalls(call, partial(drop.backward, dy, reserve, out=dx), expected=lambda _: dy * (y != 0) * 2)


# --- fused


def fused(t: Tensors, residual: bool) -> CaseCalls:
    """relu(convolution + bias + residual), or convolution * scale + bias, with 3x3 filters."""
    torch, x, y = t.torch, t.random(), t.room()
    w = t.ordered(t.random(t.channels, t.channels, 3, 3) / math.sqrt(9 * t.channels))
    conv2d, relu_, addcmul = torch.nn.functional.conv2d, torch.relu_, torch.addcmul
    bias, factor, other = t.random(t.channels), t.random(t.channels), t.random()
    bias4, factor4 = (tensor.view(1, -1, 1, 1) for tensor in (bias, factor))
    forward = cudnnpy.FusedConvolution(padding=1).forward
    convolve = cudnnpy.Convolution(padding=1).forward
    if not residual:
        normalize = cudnnpy.BatchNormalization(epsilon=EPSILON).forward_inference
        none, one = torch.zeros(t.channels, device=DEVICE), torch.full((t.channels,), 1 - EPSILON, device=DEVICE)
        wide, z = (factor.float(), bias.float()), t.room()

        def scaled() -> Any:
            return addcmul(bias4, conv2d(x, w, None, 1, 1), factor4)

        def scaled_separately() -> Any:
            convolve(x, w, out=y)
            return normalize(y, *wide, none, one, out=z)

        ours = partial(forward, x, w, scale=factor, bias=bias, activation=None)
        return CaseCalls(scaled, partial(ours, out=y), ours, scaled_separately)
    add_tensor, cut = cudnnpy.add_tensor, cudnnpy.Activation(mode="relu").forward

    def added() -> Any:
        return relu_(conv2d(x, w, bias, 1, 1).add_(other))

    def added_separately() -> Any:
        convolve(x, w, out=y)
        add_tensor(bias4, y, out=y)
        add_tensor(other, y, out=y)
        return cut(y, out=y)

    ours = partial(forward, x, w, bias=bias, residual=other, activation="relu")
    return CaseCalls(added, partial(ours, out=y), ours, added_separately)
