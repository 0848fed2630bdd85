"""Activations and their gradients: cudnnActivationForward and cudnnActivationBackward, or elementwise graphs.

On an H200 the functions take 1.2 to 2.3 times as long as PyTorch, and graphs that see the memory as rows 1.0 to 1.1 times
as long (docs/benchmarks). Large dense tensors use graphs.
"""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, byte_extent, has_same_layout, with_strides_of
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import as_rows, check_input, check_like, check_no_overlaps, resolve_output, row_view_shape
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress, Step, copy, scaling_arguments, tensor_descriptor
from cudnnpy._options.activation import ActivationBase
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.graph.activations import activated
from cudnnpy.graph.graph import Graph
from cudnnpy.graph.nodes import Node
from cudnnpy.names import enumerator


class Activation(ActivationBase, DeviceOperation):
    def _descriptor(self, coefficient: float) -> ActivationDescriptor:
        swish = coefficient if self.mode == "swish" else None
        return ActivationDescriptor(self.mode, coefficient=coefficient, propagate_nan=True, swish_beta=swish)

    def _forward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        x = check_input(call, "x", empty=True)
        y = resolve_output(call, "out", x.shape, x.dtype, x, beta)
        operands = check_no_overlaps(call, (Operand("x", x), Operand("out", y, True, ("x",))))
        a, b = scaling_arguments(alpha, beta, x.dtype)
        if not byte_extent(y):
            return Program("activation", call.device, operands, []), [y]
        step = Step(copy(x, y, alpha, beta), (0, 1)) if self.mode == "identity" else None  # cuDNN rejects IDENTITY
        shape = row_view_shape(x, y) if (alpha, beta) == (1.0, 0.0) else None
        if shape is not None and step is None:
            graph = Graph()
            node = graph.tensor("x", as_rows(x, shape))
            graph.output("y", activated(graph, node, self.mode, self.coefficient), strides=as_rows(y, shape).strides)
            planned = graph.executable(call.device)
            step = Step(planned, (0, 1)) if planned else None
        if step is None:
            how, dx, dy = self._descriptor(self.coefficient), tensor_descriptor(x), tensor_descriptor(y)
            step = Step(
                FunctionCall("cudnnActivationForward", how, a, dx, OperandAddress(0), b, dy, OperandAddress(1)), (0, 1)
            )
        return Program("activation", call.device, operands, [step]), [y]

    def _backward(self, call: Call, alpha: float, beta: float) -> tuple[Program, list[TensorSpec]]:
        dy = check_input(call, "dy", empty=True)
        x, y = (check_like(call, name, dy.shape, dy.dtype) for name in ("x", "y"))
        dx = resolve_output(call, "out", dy.shape, dy.dtype, dy, beta)
        operands = check_no_overlaps(
            call, (Operand("dy", dy), Operand("x", x), Operand("y", y), Operand("out", dx, True, ("dy",)))
        )
        a, b = scaling_arguments(alpha, beta, dy.dtype)
        if not byte_extent(dx):
            return Program("activation gradient", call.device, operands, []), [dx]
        step = Step(copy(dy, dx, alpha, beta), (0, 3)) if self.mode == "identity" else None
        shape = row_view_shape(dy, x, y, dx) if (alpha, beta) == (1.0, 0.0) else None
        if shape is not None and step is None:
            reads_y = self.mode in ("sigmoid", "tanh")
            graph = Graph()
            gradient = graph.tensor("dy", as_rows(dy, shape))
            forward = graph.tensor("y" if reads_y else "x", as_rows(y if reads_y else x, shape))
            graph.output("dx", _gradient(graph, gradient, forward, self.mode, self.coefficient))
            planned = graph.executable(call.device)
            step = Step(planned, (0, 2 if reads_y else 1, 3)) if planned else None
        if step is None:
            clipped = self.mode == "clipped_relu"
            how = self._descriptor(_below(self.coefficient, dy.dtype) if clipped else self.coefficient)
            # For tanh, cuDNN compares the strides of axes of size 1, too.
            alike = with_strides_of(dx, dy) if has_same_layout(dx, dy) else dx
            required_specs = dy, with_strides_of(x, alike), with_strides_of(y, dy), alike
            one, two, three, four = map(tensor_descriptor, required_specs)
            tensors = three, OperandAddress(2), one, OperandAddress(0), two, OperandAddress(1)
            function = FunctionCall("cudnnActivationBackward", how, a, *tensors, b, four, OperandAddress(3))
            return with_conversion_copies(
                "activation gradient", call.device, operands, function, required_specs, beta
            ), [dx]
        return Program("activation gradient", call.device, operands, [step]), [dx]


def _below(ceiling: float, dtype: str) -> float:
    """The largest number of a dtype below a ceiling.

    The gradient of cudnnActivationBackward at the ceiling itself is dy: clipped-relu-ceiling in docs/known-issues.md.
    """
    import numpy as np

    if ceiling <= 0.0:  # the gradient is 0 everywhere
        return ceiling
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":  # the upper half of a float32
            bits = int(np.float32(ceiling).view(np.uint32)) >> 16
            near = np.array([bits, max(bits - 1, 0)], np.uint32) << 16
            lower, lowest = map(float, near.view(np.float32))
        else:
            nearest = np.dtype(dtype).type(ceiling)
            lower, lowest = float(nearest), float(np.nextafter(nearest, np.dtype(dtype).type(0.0)))
    return lower if lower < ceiling else lowest


def _gradient(graph: Graph, dy: Node, forward: Node, mode: str, coefficient: float) -> Node:
    """The gradient with respect to x as nodes. cuDNN's gradient nodes read x; sigmoid and tanh are composed from y."""
    if mode in ("sigmoid", "tanh"):
        square = graph.pointwise("mul", forward, forward)
        if mode == "sigmoid":
            return graph.pointwise("mul", dy, graph.pointwise("sub", forward, square))
        return graph.pointwise("sub", dy, graph.pointwise("mul", dy, square))
    if mode == "clipped_relu":
        return graph.pointwise("relu_bwd", dy, forward, how={"relu_upper_clip": coefficient})
    options = {"elu": {"elu_alpha": coefficient}, "swish": {"swish_beta": coefficient}}.get(mode, {})
    return graph.pointwise(enumerator(raw.cudnnPointwiseMode_t, f"{mode}_bwd", "mode"), dy, forward, how=options)
