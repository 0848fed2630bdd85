"""Extend x with zeros for transposed convolutions with output_padding >= stride, whose windows outnumber the elements of x.

Such a transposed convolution of x equals that of x extended by zeros to the number of windows. So x is copied to scratch
memory with zeros after it; where x is the result, the elements after it are dropped.
"""

from __future__ import annotations

from cudnnpy._checks.option_values import expand_per_axis, in_array_order, is_channels_last
from cudnnpy._convolution.options import TransposeOptions
from cudnnpy._convolution.sizes import output_shape
from cudnnpy._convolution.specification import result_in_layout
from cudnnpy._core.layouts import TensorSpec, byte_extent, canonical_spec, in_layout, result_strides
from cudnnpy._launch.dispatch import Call, Specs
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program, StepBuilder
from cudnnpy._layers.arguments.call_problem import OperationRequest, logical_spec, problem_of_call
from cudnnpy._layers.convolution import Convolution, operands_of
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem


def prepare_extended(
    convolution: Convolution, surplus: tuple[int, ...], request: OperationRequest
) -> tuple[Program, list[TensorSpec]]:
    """Plan an operation of a convolution with extended x, as Convolution._prepare does.

    x is the first input or, of "forward", the result. `surplus` is the number of added zeros on each spatial axis.
    """
    call, is_forward = request.call, request.operation == "forward"
    surplus, layout, specs = (0, 0, *surplus), convolution.layout, Specs(call.specs)
    name = "out" if is_forward else request.names[0]
    x = specs.get(name)
    if x is not None:
        x = canonical_spec(logical_spec(x, name, layout), name)
        if is_forward:
            dy, w = (logical_spec(specs[name], name, layout).shape for name in request.names)
            expected = _less(output_shape(convolution, dy, w), surplus)
            if x.shape != expected:
                expected, given = (in_array_order(shape, layout) for shape in (expected, x.shape))
                raise ValueError(f"out must have shape {expected}; got shape {given}")
        extended_shape = tuple(size + more for size, more in zip(x.shape, surplus, strict=True))
        extended = TensorSpec(extended_shape, x.dtype, result_strides(extended_shape, x))
        specs[name] = in_layout(extended, is_channels_last(layout))
    problem = problem_of_call(convolution, request._replace(call=call._replace(specs=specs)))
    at = len(problem.specs) - 1 if is_forward else 0
    if x is None:
        smaller = _less(problem.specs[at].shape, surplus)
        x = TensorSpec(smaller, problem.specs[at].dtype, result_strides(smaller, problem.specs[at]))
    operands = operands_of(request, problem)
    operands[at] = operands[at]._replace(spec=x)
    check_no_overlaps(call, operands)
    results = [result_in_layout(convolution, operands[-1].spec, problem.x, problem.w, problem.y)]
    if problem.is_empty:
        return convolution._without_elements(call, problem, operands), results
    return _with_copies(convolution, call, problem, operands, at), results


def _less(shape: tuple[int, ...], surplus: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size - more for size, more in zip(shape, surplus, strict=True))


def _with_copies(
    convolution: Convolution, call: Call, problem: ConvolutionProblem, operands: list[Operand], at: int
) -> Program:
    """Return the program of the problem's plan on an extended copy, in scratch memory, of the operand with index `at`."""
    plan = convolution._plan_in(call, problem, byte_extent(problem.specs[at]))
    builder = StepBuilder({operand.name: operand.spec for operand in operands})
    tensors = [*builder.operands.values()]
    x, extended = tensors[at], builder.scratch(problem.specs[at])
    part = extended._replace(spec=extended.spec._replace(shape=x.spec.shape))  # x's elements of `extended`
    if not operands[at].is_result:
        builder.clear(extended)
    if not operands[at].is_result or problem.beta:
        builder.copy(x, part)
    builder.add(plan.executable, *tensors[:at], extended, *tensors[at + 1 :])
    if operands[at].is_result:
        builder.copy(part, x)
    return builder.program(plan.name, call.device, operands, plan)


def surplus_of(options: TransposeOptions, rank: int) -> tuple[int, ...]:
    """Return the number of windows beyond the size of x, on each spatial axis."""
    extra, stride = (expand_per_axis(name, getattr(options, name), rank) for name in ("output_padding", "stride"))
    return tuple(more // step for more, step in zip(extra, stride, strict=True))
