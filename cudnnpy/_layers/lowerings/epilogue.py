"""Apply bias and activation to a result in place, for convolutions whose plans cannot fuse them."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, packed_strides
from cudnnpy._launch.program import StepBuilder, Tensor
from cudnnpy._launch.steps import FunctionCall, OperandAddress, scaling_arguments, tensor_descriptor
from cudnnpy._planning.engines import GraphExecutable, Target, heuristics
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.errors import StatusError
from cudnnpy.graph.convolutions import epilogue_graph, uids
from cudnnpy.graph.descriptors import build_graph
from cudnnpy.names import enumerator


def add_epilogue(
    builder: StepBuilder, result: Tensor, bias: Tensor | None, activation: str | None, target: Target
) -> None:
    """Add the steps of a bias and an activation: a graph if the result is channels last, else a v7 function for each.

    The graph is planned once for a target: its engine is compiled at run time, which takes 0.2 s or more.
    """
    y, row = result.spec, None if bias is None else bias.spec
    tensors = (result,) if bias is None else (result, bias)
    if y.strides == channels_last_strides(y.shape):
        planned = target.memoize("epilogue", y, row, activation, make=lambda: _planned(y, row, activation, target))
        if planned is not None:
            builder.add(planned, *tensors, result)
            return
    d, (one, zero) = tensor_descriptor(y), scaling_arguments(1.0, 0.0, y.dtype)
    if row is not None:
        shape = (1, y.shape[1], *(1 for _ in y.shape[2:]))
        spread = tensor_descriptor(TensorSpec(shape, row.dtype, packed_strides(shape)))
        add = FunctionCall("cudnnAddTensor", one, spread, OperandAddress(1), one, d, OperandAddress(0))
        builder.add(add, *tensors)
    if activation is not None:
        beta = 1.0 if activation == "swish" else None
        mode = enumerator(raw.cudnnActivationMode_t, activation, "activation")
        how = ActivationDescriptor(mode, coefficient=1.0, propagate_nan=True, swish_beta=beta)
        activate = FunctionCall("cudnnActivationForward", how, one, d, OperandAddress(0), zero, d, OperandAddress(0))
        builder.add(activate, result)


def _planned(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> GraphExecutable | None:
    """Return the first executable of the graph that needs no workspace; None if there is none."""
    operands = ("convolved", "y") if bias is None else ("convolved", "bias", "y")
    for configuration in heuristics(build_graph(epilogue_graph(y, bias, activation), target), target):
        try:
            executable = GraphExecutable(configuration.finalize(), uids(operands))
        except StatusError:
            continue
        if not executable.workspace_size:
            return executable
    return None
