"""What type checkers must refuse of the operations: marked as in near_c_errors.py."""

from __future__ import annotations

import numpy as np
from arrays import Torch

import cudnnpy
from cudnnpy import reference

x, w, host = Torch(), Torch(), np.ones((1, 3, 8, 8))
conv = cudnnpy.Convolution()

# Names that do not exist

cudnnpy.Convolution(paddings=1)  # E: call-arg reportCallIssue
cudnnpy.Convolution().forwards(x, w)  # E: attr-defined reportAttributeAccessIssue
cudnnpy.Pooling().options  # E: attr-defined reportAttributeAccessIssue
conv.forward(x, w, bias_=w)  # E: call-arg reportCallIssue
conv.forward(x)  # E: call-arg reportCallIssue
conv.plan("forward", x, w).run()  # E: attr-defined reportAttributeAccessIssue
cudnnpy.Graph().convolve(x, w)  # E: attr-defined reportAttributeAccessIssue

# Values of another type

cudnnpy.Activation("gelu")  # E: arg-type reportArgumentType
cudnnpy.Convolution(deterministic="yes")  # E: arg-type reportArgumentType
cudnnpy.Convolution(workspace_limit="1 GiB")  # E: arg-type reportArgumentType
conv.forward(x, w, alpha="2")  # E: arg-type reportArgumentType
conv.plan("forward", x, w).execute(x, w, x, 0, 0)  # E: arg-type reportArgumentType
cudnnpy.Plan.from_json(b"{}")  # E: arg-type reportArgumentType
cudnnpy.Graph().pointwise("add", x)  # E: arg-type reportArgumentType

# Convolutions

cudnnpy.Convolution(padding="nonsense", prefer="quickest").forward(1, "w")  # E: arg-type reportArgumentType

cudnnpy.Convolution(padding="nonsense")  # E: arg-type reportArgumentType
cudnnpy.Convolution(padding=1.5)  # E: arg-type reportArgumentType
cudnnpy.Convolution(prefer="quickest")  # E: arg-type reportArgumentType
cudnnpy.Convolution(mode="correlation")  # E: arg-type reportArgumentType
cudnnpy.Convolution(layout="CHWN")  # E: arg-type reportArgumentType
cudnnpy.Convolution(algorithm="fastest")  # E: arg-type reportArgumentType
cudnnpy.Convolution(algorithm=7)  # E: arg-type reportArgumentType
cudnnpy.Convolution(1)  # E: call-arg reportCallIssue
cudnnpy.ConvolutionTranspose(output_padding="same")  # E: arg-type reportArgumentType
cudnnpy.Attention(layout="SBHD")  # E: arg-type reportArgumentType
cudnnpy.Attention(causal="top_left")  # E: arg-type reportArgumentType
cudnnpy.FusedConvolution(policy="once")  # E: call-arg reportCallIssue
conv.forward(1, w)  # E: type-var reportArgumentType
conv.forward(x, "w")  # E: arg-type reportArgumentType
conv.forward(x, w, activation="gelu")  # E: arg-type reportArgumentType
conv.forward(x, w, stream="default")  # E: arg-type reportArgumentType
conv.forward(x, w).get()  # E: attr-defined reportAttributeAccessIssue
conv.backward_data(x, w, 8)  # E: arg-type reportArgumentType
conv.backward_filter(x, w, "w")  # E: arg-type reportArgumentType
conv.output_shape(x, w)  # E: arg-type reportArgumentType
conv.plan("backwards", x, w)  # E: arg-type reportArgumentType
conv.candidates("forward", x)  # E: call-arg reportCallIssue
conv.candidates("forward", x, w)[0].refusal  # E: attr-defined reportAttributeAccessIssue
cudnnpy.FusedConvolution().forward(x, w, activation="swish6")  # E: arg-type reportArgumentType
cudnnpy.Engine("7")  # E: arg-type reportArgumentType
cudnnpy.Engine(7, {"tile": 1})  # E: arg-type reportArgumentType
cudnnpy.Engine(7, None, True)  # E: call-arg reportCallIssue

# The operations beside the convolutions

cudnnpy.Pooling("max", 2, 1)  # E: call-arg reportCallIssue
cudnnpy.Pooling("maximum")  # E: arg-type reportArgumentType
cudnnpy.Pooling(window="2")  # E: arg-type reportArgumentType
cudnnpy.Pooling().backward(x, x)  # E: call-arg reportCallIssue
cudnnpy.Softmax(mode="channels")  # E: arg-type reportArgumentType
cudnnpy.BatchNormalization("batch")  # E: arg-type reportArgumentType
cudnnpy.BatchNormalization().forward_training(x, activation="tanh")  # E: arg-type reportArgumentType

# Graphs

graph = cudnnpy.Graph(prefer="autotune")
node = graph.tensor("x", x)
cudnnpy.Graph(prefer="quickest")  # E: arg-type reportArgumentType
cudnnpy.Graph("float32")  # E: call-arg reportCallIssue
graph.tensor("y", 1)  # E: arg-type reportArgumentType
graph.pointwise("plus", node)  # E: arg-type reportArgumentType
graph.resample("max", node, 2)  # E: arg-type reportArgumentType
graph.convolution(node, node, padding="same")  # E: arg-type reportArgumentType
graph.output("z", node, "floot32")  # E: arg-type reportArgumentType
graph.run(x=1)  # E: type-var reportArgumentType

# Options are fixed

conv.groups = 2  # E: misc reportAttributeAccessIssue

# The reference implementation

reference.Softmax("slow")  # E: arg-type reportArgumentType
reference.Activation().forward("x")  # E: type-var reportArgumentType
reference.Convolution(prefer="quickest")  # E: arg-type reportArgumentType
reference.Activation("gelu")  # E: arg-type reportArgumentType
reference.Softmax().forward([1.0])  # E: type-var reportArgumentType
reference.Convolution().forward(host, host, activation="gelu")  # E: arg-type reportArgumentType
reference.Convolutoin()  # E: attr-defined reportAttributeAccessIssue
