"""The gradient with respect to the bias: dy, summed over all axes except the channels."""

from __future__ import annotations

from ctypes import byref, c_size_t

from cudnnpy import raw
from cudnnpy._checks.call_arguments import check_no_beta, check_scales
from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._core.layouts import (
    TensorSpec,
    byte_extent,
    canonical_spec,
    normalize_unit_strides,
    packed_strides,
    to_packed,
)
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import FLOATS, check_no_overlaps
from cudnnpy._launch.program import Operand, Program, StepBuilder, program_for_empty_input
from cudnnpy._launch.steps import (
    WORKSPACE,
    FunctionCall,
    OperandAddress,
    StepSequence,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy._layers.arguments.call_problem import logical_spec
from cudnnpy._layers.lowerings.sum_by_graphs import sum_by_graphs
from cudnnpy.descriptors import ReduceTensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.typing import ElementName


def bias_gradient(
    options: ConvolutionOptions, call: Call, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    """Return the sum of dy by reduction nodes of graphs or by cudnnReduceTensor, and the spec of the result.

    Nodes take channels last in one graph, and channels first in two. cudnnReduceTensor takes the rest: small tensors, which
    are not worth compiling a graph, float64, gaps, misaligned addresses, and deterministic sums.

    cudnnConvolutionBackwardBias is not used: on an H200 with cuDNN 9.19 it takes 6 to 19 times as long as the memory bandwidth
    allows on large tensors, and it faults on misaligned addresses (bias-gradient-misaligned in docs/known-issues.md).
    """
    spec = canonical_spec(logical_spec(call.specs["dy"], "dy", options.layout), "dy")
    if spec.dtype not in FLOATS:
        raise TypeError(f"dy must be float16, bfloat16, float32 or float64; got {spec.dtype}")
    if 0 in spec.shape[1:]:
        shape = call.specs["dy"].shape
        raise ValueError(f"dy must have sizes of 1 or more, except for a batch of 0; got shape {shape}")
    channels, out = (spec.shape[1],), call.specs.get("out")
    if out is None:
        check_no_beta("beta", beta, "out")
    check_scales(alpha, beta)
    if out is not None and (out.shape != channels or out.dtype != spec.dtype or out.strides not in (None, (1,))):
        raise ValueError(f"out must be packed {spec.dtype} of shape {channels}; got {out.dtype} of shape {out.shape}")
    row = (1, *channels, *(1 for _ in spec.shape[2:]))
    sums = TensorSpec(row, spec.dtype, packed_strides(row))  # the same memory as (K,)
    operands = check_no_overlaps(call, (Operand("dy", spec), Operand("out", sums, True)))
    name, results = "bias gradient", [TensorSpec(channels, spec.dtype)]
    if not byte_extent(spec):
        return program_for_empty_input(name, call.device, operands, beta), results
    alpha, beta = float(alpha), float(beta)
    seconds = options.tune_seconds if options.prefer == "autotune" else None
    steps = None if options.deterministic else sum_by_graphs(call, spec, sums, alpha, beta, seconds)
    if steps is None or not call.allows(steps.workspace_size):
        steps = _sum_by_function(call.device, spec, sums, alpha, beta)
    return Program(name, call.device, operands, steps.steps, steps.scratch), results


def _sum_by_function(device: int, x: TensorSpec, y: TensorSpec, alpha: float, beta: float) -> StepSequence:
    """Return the steps of cudnnReduceTensor, on float32 copies for bfloat16, which it does not support."""
    builder = StepBuilder({"x": x, "y": y})
    source, target = builder.operands["x"], builder.operands["y"]
    if x.shape == y.shape:  # nothing to add up: reduction-of-one-shape in docs/known-issues.md
        builder.copy(source, target, alpha, beta)
        return builder.sequence()
    is_copied = x.dtype == "bfloat16"
    if is_copied:
        source, target = (builder.scratch(to_packed(spec, "float32")) for spec in (x, y))
        builder.copy(builder.operands["x"], source)
    dtype: ElementName = "float64" if x.dtype == "float64" else "float32"
    how = ReduceTensorDescriptor("add", compute_dtype=dtype, propagate_nan=True)
    one, two = map(tensor_descriptor, normalize_unit_strides(source.spec, target.spec))
    size = c_size_t()
    raw.call("cudnnGetReductionWorkspaceSize", Handle.default(device), how, one, two, byref(size))
    a, b = scaling_arguments(1.0 if is_copied else alpha, 0.0 if is_copied else beta, dtype)
    function = FunctionCall(
        "cudnnReduceTensor", how, None, 0, WORKSPACE, size.value, a, one, OperandAddress(0), b, two, OperandAddress(1),
        workspace_size=size.value,
    )  # fmt: skip
    builder.add(function, source, target)
    if is_copied:
        builder.copy(target, builder.operands["y"], alpha, beta)
    return builder.sequence()
