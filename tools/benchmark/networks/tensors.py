"""The tensors of a cell: torch's calls and cudnnpy's plans of the same convolution, and the comparison of their results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from cudnnpy.typing import ConvolutionOperation
from tools.benchmark.networks.cells import Cell
from tools.benchmark.networks.models import exact_float32
from tools.benchmark.timing import rotation

DEVICE = "cuda"
LARGEST = 20  # times the tolerance: the limit for one element, over the root mean square


class Operands(NamedTuple):
    """One set of tensors of a cell: x, w, dy, the bias if the layer has one, and the result."""

    x: Any
    w: Any
    dy: Any
    bias: Any
    out: Any


class PlanArguments(NamedTuple):
    """Arguments of Convolution.plan: a transposed convolution's forward is a convolution's backward_data."""

    operation: ConvolutionOperation
    first: Any
    second: Any
    shape: tuple[int, ...] | None
    bias: Any


def ordered(tensor: Any, channels_last: bool) -> Any:
    """Return the tensor in a memory format; 1-D tensors, for which torch has no format, by permuting the axes."""
    import torch

    if not channels_last:
        return tensor.contiguous()
    if tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.to(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[tensor.dim()])


def operands(torch: Any, cell: Cell) -> list[Operands]:
    """Return sets of random tensors for a cell; on a GPU so many that no call finds its inputs in the L2 cache."""
    layer, batch, dtype = cell.layer, cell.batch, getattr(torch, cell.kind.dtype)
    count = rotation(torch, layer.moved_bytes(batch, dtype.itemsize)) if DEVICE == "cuda" else 2
    shapes = (layer.x_shape(batch), layer.w_shape, layer.y_shape(batch))
    result = {"forward": 2, "backward_data": 0, "backward_filter": 1}[cell.operation]
    sets = []
    for _ in range(count):
        x, w, dy = (
            ordered(torch.randn(shape, device=DEVICE, dtype=dtype), cell.kind.channels_last) for shape in shapes
        )
        with_bias = layer.bias and cell.operation == "forward"
        bias = torch.randn(layer.filters, device=DEVICE, dtype=dtype) if with_bias else None
        sets.append(Operands(x, w, dy, bias, torch.full_like((x, w, dy)[result], math.nan)))
    return sets


def torch_call(torch: Any, cell: Cell, o: Operands) -> Callable[[], Any]:
    """Return torch's own call."""
    layer = cell.layer
    axes = (layer.stride, layer.padding, layer.dilation)
    options = (*map(list, axes), layer.transposed, list(layer.output_padding), layer.groups)
    if cell.operation == "forward":
        return keeping(torch.ops.aten.convolution, o.x, o.w, o.bias, *options)
    mask = [cell.operation == "backward_data", cell.operation == "backward_filter", False]
    backward, wanted = torch.ops.aten.convolution_backward, mask.index(True)
    return keeping(lambda: backward(o.dy, o.x, o.w, None, *options, mask)[wanted])


def keeping(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Return a call that keeps its newest result until the next, so that torch's allocator rotates buffers as ours do."""
    newest: list[Any] = [None]

    def call() -> Any:
        newest[0] = function(*arguments)
        return newest[0]

    return call


def plan_arguments(cell: Cell, o: Operands) -> PlanArguments:
    """Return the arguments of Convolution.plan for a cell. Its operands are both tensors, the bias and the result."""
    layer = cell.layer
    if cell.operation == "backward_filter":
        first, second = (o.x, o.dy) if layer.transposed else (o.dy, o.x)
        return PlanArguments(cell.operation, first, second, layer.w_shape, None)
    if (cell.operation == "forward") == layer.transposed:
        given, shape = (o.x, layer.y_shape(cell.batch)) if layer.transposed else (o.dy, layer.x_shape(cell.batch))
        return PlanArguments("backward_data", given, o.w, shape, o.bias)
    return PlanArguments("forward", o.dy if layer.transposed else o.x, o.w, None, o.bias)


def plan_call(torch: Any, cell: Cell, o: Operands, plan: Any, workspace: Any) -> Callable[[], Any]:
    """Return a launch of the plan by raw addresses."""
    given = plan_arguments(cell, o)
    tensors = [tensor for tensor in (given.first, given.second, given.bias, o.out) if tensor is not None]
    if len(plan.operands) != len(tensors):
        raise ValueError(
            f"tensors must match the operands of the plan, {plan.operands}; got {len(tensors)} tensors of the cell"
        )
    addresses = [tensor.data_ptr() for tensor in tensors]
    stream = torch.cuda.current_stream().cuda_stream
    arguments = (*addresses, workspace.data_ptr() if plan.workspace_size else 0, stream)
    execute, out = plan.execute, o.out

    def call() -> Any:
        execute(*arguments)
        return out

    return call


class Difference(NamedTuple):
    """The error of a result over the root mean square of the expected one: as a norm, and of the worst element."""

    relative: float
    largest: float

    def within(self, tolerance: float) -> bool:
        """Return whether the error is within a tolerance, of a `Kind` for example. NaN is not."""
        return self.relative <= tolerance and self.largest <= LARGEST * tolerance


def difference(torch: Any, result: Any, expected: Any) -> Difference:
    """Return the difference of two tensors, computed in float32 at least."""
    if result.shape != expected.shape:
        raise ValueError(f"the result must have shape {tuple(expected.shape)}; got shape {tuple(result.shape)}")
    wide = expected.dtype if expected.dtype == torch.float64 else torch.float32
    expected = expected.to(wide)
    off = result.to(wide) - expected
    norm = float(torch.linalg.vector_norm(expected))
    largest = float(off.abs().max()) * math.sqrt(expected.numel())
    relative = float(torch.linalg.vector_norm(off))
    if math.isnan(relative) or math.isnan(norm):
        return Difference(math.nan, math.nan)
    if norm == 0:
        return Difference(0.0, 0.0) if relative == 0 else Difference(math.inf, math.inf)
    return Difference(relative / norm, largest / norm)


def exact(torch: Any, cell: Cell, o: Operands) -> Any:
    """Return the result in float64, without torch's search."""
    wide = Operands(*(None if tensor is None else tensor.double() for tensor in o))
    with exact_float32(torch):
        return torch_call(torch, cell, wide)()
