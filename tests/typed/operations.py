"""A user's program with every operation, on device arrays of several libraries, as plans and as graphs, and in NumPy.

It is checked, not run: see tests/host/project/test_typed.py.
"""

from __future__ import annotations

import numpy as np
from arrays import CoreStream, Cupy, Torch

import cudnnpy
from cudnnpy import TensorSpec, reference
from cudnnpy.typing import Array, ArrayT, Padding, Preference

x, w, dy = Torch(), Torch(), Torch()
result: Torch

# Convolutions: every option in each of its forms

for padding in (1, (1, 2), ((0, 1), (1, 0)), "same"):
    cudnnpy.Convolution(padding=padding)
cudnnpy.Convolution(padding="valid", stride=2, dilation=(1, 2), groups=4, mode="convolution", layout="NHWC")
cudnnpy.Convolution(padding=np.array([1, 1]), stride=np.int64(2), compute_dtype="float32", tf32=False)
cudnnpy.Convolution(prefer="limited_workspace", workspace_limit=1 << 20, deterministic=True, policy="once")
cudnnpy.Convolution(prefer="autotune", tune_seconds=1, compute_dtype=np.float32)
cudnnpy.Convolution(algorithm="implicit_gemm")
cudnnpy.Convolution(algorithm=cudnnpy.Engine(1, {2: 3}))
conv = cudnnpy.Convolution()
result = conv.forward(x, w)
result = conv.forward(x, w, w, "relu", out=x, alpha=2, beta=0.5, stream=CoreStream())
result = conv.backward_data(dy, w, (1, 3, 8, 8), stream=0x7F00)
result = conv.backward_data(dy, w, out=x)
result = conv.backward_filter(dy, x, [8, 3, 3, 3])
result = conv.backward_bias(dy)
other: Cupy = conv.forward(Cupy(), w)
shape: tuple[int, ...] = conv.output_shape((1, 3, 8, 8), [8, 3, 3, 3])
transpose = cudnnpy.ConvolutionTranspose(stride=2, output_padding=1)
result = transpose.forward(x, w, w, "tanh")
result = transpose.backward_data(dy, w)
result = transpose.backward_filter(dy, x)
result = transpose.backward_bias(dy)
fused = cudnnpy.FusedConvolution(padding="same", prefer="no_workspace")
result = fused.forward(x, w, scale=w, bias=w, residual=x, activation=None)
shape = fused.output_shape((1, 3, 8, 8), (8, 3, 3, 3))
attention = cudnnpy.Attention(causal="bottom_right", window=(7, None), scale=0.5, layout="BSHD", deterministic=True)
out, statistics = attention.forward(x, x, x, bias=w, lengths_kv=w, statistics=True)
gradients = attention.backward(dy, x, x, x, x, x, dbias=True)
result = gradients[0]

# Plans

plan = conv.plan("forward", x, w, bias=w, activation="relu")
plan = conv.plan("backward_data", TensorSpec((1, 8, 8, 8)), TensorSpec((8, 3, 3, 3)), (1, 3, 8, 8), device=0)
plan.execute(0x1000, 0x2000, 0x3000, 0, 0)
addresses: list[int] = [0x1000 for _ in plan.operands]
plan.execute(*addresses, 0, 0)
plan.execute(*addresses, workspace=0, stream=0)
size: int = plan.workspace_size
text: str = plan.to_json() + plan.name + plan.source + "".join(plan.notes)
milliseconds: float | None = plan.milliseconds
again: cudnnpy.Plan = cudnnpy.Plan.from_json(text, device=0)
cudnnpy.Convolution(algorithm=plan)
found: list[cudnnpy.Candidate] = conv.candidates("backward_filter", dy, x, (8, 3, 3, 3))
names: list[str] = [candidate.name + candidate.rejection_reason for candidate in found]
print(cudnnpy.candidates_table(found))

# The operations beside the convolutions

result = cudnnpy.Activation("clipped_relu", 6.0).forward(x)
result = cudnnpy.Activation(mode="elu", coefficient=0.5).backward(dy, x, x, out=dy)
pooling = cudnnpy.Pooling("average_inc_pad", 3, padding=1, stride=(2, 2))
result = pooling.forward(x)
result = pooling.backward(dy, x, x)
shape = pooling.output_shape((1, 3, 8, 8))
result = cudnnpy.Softmax("log", "instance", layout="NHWC").forward(x)
result = cudnnpy.Softmax(algorithm="fast").backward(dy, x)
batch = cudnnpy.BatchNormalization("per_activation", epsilon=1e-3)
result, mean, inverse = batch.forward_training(x, w, w, running_mean=w, running_variance=w, activation="relu")
result = batch.forward_inference(x, w, w, mean=mean, variance=w)
result, dscale, dbias = batch.backward(dy, x, w, mean, inverse)

# Graphs

graph = cudnnpy.Graph(prefer="autotune", compute_dtype="float32", tune_seconds=1)
a, b = graph.tensor("a", x), graph.tensor("b", TensorSpec((8, 3, 3, 3), "float16"))
y = graph.convolution(a, b, padding=((0, 1), 1), stride=1, dilation=(1, 1))
y = graph.pointwise("relu_fwd", graph.pointwise("add", y, graph.number(1)), how={"relu_upper_clip": 6})
y = graph.reduction("max", graph.resample("maxpool", y, 2, stride=2), axes=(2, 3))
graph.output("y", graph.matmul(y, y), dtype="float16", strides=[1, 1, 1, 1])
first, *rest = graph.normalization("batch_norm", a, b, None, 1e-5, training=False)
graph_result = graph.run(a=x, b=w, stream=CoreStream())
plan = graph.plan()
plan = graph.plan(device=0)

# A layer of a user, with a preference of its own


class Block:
    """Two convolutions."""

    def __init__(self, padding: Padding, prefer: Preference = "fastest") -> None:
        self.first = cudnnpy.Convolution(padding=padding, prefer=prefer)
        self.second = cudnnpy.Convolution(padding=padding, prefer=prefer)

    def __call__(self, image: ArrayT, first: Array, second: Array) -> ArrayT:
        """The result is of the library of the image."""
        between: ArrayT = self.first.forward(image, first, activation="relu")
        last: ArrayT = self.second.forward(between, second)
        return last


result = Block("same")(x, w, w)

# The reference implementation: the same names on NumPy arrays

host = np.zeros((1, 3, 8, 8), np.float32)
in_numpy = reference.Convolution(padding="same").forward(host, np.zeros((8, 3, 3, 3), np.float32))
in_numpy = reference.Softmax().forward(in_numpy)
total: float = float(in_numpy.sum())
single = reference.Activation("elu", 0.5).forward(np.ones(3, np.float32))
again_single: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = reference.Softmax().backward(single, single)
