"""Extend x with zeros for transposed convolutions with output_padding >= stride, whose windows outnumber the elements of x.

Such a transposed convolution of x equals that of x extended by zeros to the number of windows. So x is copied to scratch
memory with zeros after it; where x is the result, the elements after it are dropped.
"""

from __future__ import annotations

from typing import Any

from cudnnpy._core.identity import identity_of
from cudnnpy._core.layouts import TensorSpec, canonical, extent, in_layout, result_strides
from cudnnpy._options.checks import for_each_axis
from cudnnpy._runtime.dispatch import Call
from cudnnpy._runtime.executables import Operand, Program, Step, copy, elsewhere
from cudnnpy._runtime.fills import zeros
from cudnnpy._runtime.operands import no_overlaps
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.convolution.operation import TRANSPOSE_INPUT_NAMES, Operation, logical
from cudnnpy.convolution.problem import Options, output_shape, result_in_layout


class ZeroExtended(Operation):
    """The operations of such a convolution. `surplus` is the number of zeros that extend x on each spatial axis."""

    def __init__(self, options: Options, surplus: tuple[int, ...]) -> None:
        super().__init__(options, TRANSPOSE_INPUT_NAMES)
        self.surplus = (0, 0, *surplus)
        self._identity = identity_of(ZeroExtended, *self.options, *surplus)

    def _prepare(
        self, call: Call, operation: str, activation: str | None, alpha: float, beta: float, *shape: Any
    ) -> tuple[Program, list[TensorSpec]]:
        names, last, layout = self.inputs[operation], self.options.channels_last, self.options.layout
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
            last=call.last,
        )
        at = len(problem.specs) - 1 if operation == "forward" else 0
        extended = problem.specs[at]
        if x is None:
            smaller = tuple(size - more for size, more in zip(extended.shape, self.surplus, strict=True))
            x = TensorSpec(smaller, extended.dtype, result_strides(smaller, extended))
        operands = self._operands(call, problem)
        operands[at] = operands[at]._replace(spec=x)
        no_overlaps(call, operands)
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
        """x extended by zeros."""
        shape = tuple(size + more for size, more in zip(x.shape, self.surplus, strict=True))
        return TensorSpec(shape, x.dtype, result_strides(shape, x))

    def _with_copies(self, call: Call, problem: ConvolutionProblem, operands: list[Operand], at: int) -> Program:
        """The problem's plan on an extended copy, in scratch memory, of the operand with number `at`."""
        x, extended, count = operands[at].spec, problem.specs[at], len(operands)
        size = extent(extended)
        plan = self._plan(call, problem, size)
        whole = Step(plan.executable, tuple(range(count)))
        steps, scratch, places = elsewhere([whole], count, (), {at: size})
        place, part = places[at], extended._replace(shape=x.shape)  # x in scratch memory
        if not operands[at].is_result:
            steps = [Step(zeros(size), (place,)), Step(copy(x, part), (at, place)), *steps]
        else:
            if problem.beta:
                steps = [Step(copy(x, part), (at, place)), *steps]
            steps.append(Step(copy(part, x), (place, at)))
        return Program(plan.name, call.device, operands, steps, scratch, plan)


def surplus_of(options: Options, rank: int) -> tuple[int, ...]:
    """The number of windows beyond the size of x, on each spatial axis."""
    extra, stride = (for_each_axis(name, getattr(options, name), rank) for name in ("output_padding", "stride"))
    return tuple(more // step for more, step in zip(extra, stride, strict=True))
