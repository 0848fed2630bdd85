"""The gradient with respect to the bias: dy, summed over all axes except the channels."""

from __future__ import annotations

from cudnnpy._core.layouts import TensorSpec, canonical, packed_strides
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import FLOATS, check_no_overlaps
from cudnnpy._launch.program import Operand, Program
from cudnnpy._options.arguments import check_no_beta, check_scales
from cudnnpy._options.convolution import ConvolutionOptions
from cudnnpy.convolution.call_problem import logical
from cudnnpy.graph.reductions import reduction


def bias_gradient(
    options: ConvolutionOptions, call: Call, alpha: float, beta: float
) -> tuple[Program, list[TensorSpec]]:
    """Return a reduction of dy, and the spec of its result.

    cudnnConvolutionBackwardBias is not used: on an H200 with cuDNN 9.19 it takes 6 to 19 times as long as the memory bandwidth
    allows on large tensors, and it faults on misaligned addresses (bias-gradient-misaligned in docs/known-issues.md).
    """
    spec = canonical(logical(call.specs["dy"], "dy", options.layout), "dy")
    if spec.dtype not in FLOATS:
        raise TypeError(f"dy must be float16, bfloat16, float32 or float64; got {spec.dtype}")
    if 0 in spec.shape[1:]:
        raise ValueError(
            f"dy must have sizes of 1 or more, except for a batch of 0; got shape {spec.shape} (logical order)"
        )
    channels, out = (spec.shape[1],), call.specs.get("out")
    if out is None:
        check_no_beta("beta", beta, "out")
    check_scales(alpha, beta)
    if out is not None and (out.shape != channels or out.dtype != spec.dtype or out.strides not in (None, (1,))):
        raise ValueError(f"out must be packed {spec.dtype} of shape {channels}; got {out.dtype} of shape {out.shape}")
    row = (1, *channels, *(1 for _ in spec.shape[2:]))
    sums = TensorSpec(row, spec.dtype, packed_strides(row))  # the same memory as (K,)
    operands = check_no_overlaps(call, (Operand("dy", spec), Operand("out", sums, True)))
    program = reduction(
        "bias gradient", call.device, operands, "add", float(alpha), float(beta), options.deterministic, call
    )
    return program, [TensorSpec(channels, spec.dtype)]
