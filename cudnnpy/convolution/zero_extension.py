"""Extend x with zeros for transposed convolutions with output_padding >= stride, whose windows outnumber the elements of x.

Such a transposed convolution of x equals that of x extended by zeros to the number of windows. So x is copied to scratch
memory with zeros after it; where x is the result, the elements after it are dropped.
"""

from __future__ import annotations

from typing import Any

from cudnnpy._core.cache_token import cache_token
from cudnnpy._core.layouts import TensorSpec, byte_extent, canonical, in_layout, result_strides
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_no_overlaps
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.step_builder import StepBuilder
from cudnnpy._options.checks import expand_per_axis, is_channels_last
from cudnnpy._options.convolution import ConvolutionOptions, TransposeOptions
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.operation import TRANSPOSE_INPUT_NAMES, Operation, logical
from cudnnpy.convolution.problem import output_shape, result_in_layout


class ZeroExtended(Operation):
    """The operations of a convolution with extended x. `surplus` is the number of added zeros on each spatial axis."""

    def __init__(self, options: ConvolutionOptions, surplus: tuple[int, ...]) -> None:
        super().__init__(options, TRANSPOSE_INPUT_NAMES)
        self.surplus = (0, 0, *surplus)
        self._token = cache_token(ZeroExtended, *options._fields().values(), *surplus)

    def _prepare(
        self, call: Call, operation: str, activation: str | None, alpha: float, beta: float, *shape: Any
    ) -> tuple[Program, list[TensorSpec]]:
        names, last, layout = self.inputs[operation], is_channels_last(self.options.layout), self.options.layout
        first, second = (call.specs[name] for name in names)
        out = call.specs.get("out")
        x = out if operation == "forward" else first
        if x is not None:
            name = "out" if operation == "forward" else names[0]
            x = canonical(logical(x, name, layout), name)
            with_zeros = in_layout(self._extended(x), last)
            if operation == "forward":
                self._check_result(x, logical(first, names[0], layout).shape, logical(second, names[1], layout).shape)
                out = with_zeros
            else:
                first = with_zeros
        problem = self.problem(
            operation,
            first,
            second,
            shape or None,
            bias=call.specs.get("bias"),
            activation=activation,
            out=out,
            alpha=alpha,
            beta=beta,
            device=call.device,
            last=call.suggests_channels_last,
        )
        at = len(problem.specs) - 1 if operation == "forward" else 0
        extended = problem.specs[at]
        if x is None:
            smaller = tuple(size - more for size, more in zip(extended.shape, self.surplus, strict=True))
            x = TensorSpec(smaller, extended.dtype, result_strides(smaller, extended))
        operands = self._operands(call, problem)
        operands[at] = operands[at]._replace(spec=x)
        check_no_overlaps(call, operands)
        results = [result_in_layout(self.options, operands[-1].spec, problem.x, problem.w, problem.y)]
        if problem.is_empty:
            return self._without_elements(call, problem, operands), results
        return self._with_copies(call, problem, operands, at), results

    def _check_result(self, x: TensorSpec, dy_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
        """Raise ValueError for a result whose shape does not follow from dy and w."""
        windows = output_shape(self.options, dy_shape, w_shape)
        expected = tuple(size - more for size, more in zip(windows, self.surplus, strict=True))
        if x.shape != expected:
            raise ValueError(f"out must have shape {expected} (logical order); got shape {x.shape}")

    def _extended(self, x: TensorSpec) -> TensorSpec:
        """Return x extended by zeros."""
        shape = tuple(size + more for size, more in zip(x.shape, self.surplus, strict=True))
        return TensorSpec(shape, x.dtype, result_strides(shape, x))

    def _with_copies(self, call: Call, problem: ConvolutionProblem, operands: list[Operand], at: int) -> Program:
        """Return the program of the problem's plan on an extended copy, in scratch memory, of the operand with index `at`."""
        plan = self._plan(call, problem, byte_extent(problem.specs[at]))
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
