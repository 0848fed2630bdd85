"""The problem that a cell of the benchmark is planned as."""

from __future__ import annotations

from cudnnpy._convolution.options import ConvolutionOptions
from cudnnpy._convolution.specification import make_problem, planning_options
from cudnnpy._core.layouts import TensorSpec, channels_last_strides, packed_strides
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning.options import PlanningOptions
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.plans import options


def problem_of(cell: Cell) -> tuple[ConvolutionProblem, PlanningOptions]:
    """Return the problem of a cell and its options. A transposed convolution's forward is a convolution's backward_data."""
    layer, batch, kind = cell.layer, cell.batch, cell.kind

    def spec(shape: tuple[int, ...]) -> TensorSpec:
        strides = channels_last_strides(shape) if kind.channels_last else packed_strides(shape)
        return TensorSpec(shape, kind.dtype, strides)

    x, y = spec(layer.x_shape(batch)), spec(layer.y_shape(batch))
    operation = cell.operation
    if layer.transposed:
        x, y = y, x
        operation = {"forward": "backward_data", "backward_data": "forward"}.get(operation, operation)  # type: ignore[assignment]
    with_bias = layer.bias and cell.operation == "forward"
    bias = TensorSpec((layer.filters,), kind.dtype) if with_bias else None
    given = ConvolutionOptions(**options(cell))
    return ConvolutionProblem(*make_problem(given, operation, x, spec(layer.w_shape), y, bias=bias)), planning_options(
        given
    )
