"""The planned operations of a call signature, with the format conversions that PyTorch's kernels make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import OutOfMemoryError

from cudnnpy._launch.launcher import Launcher
from cudnnpy.torch import pytorch_kernels
from cudnnpy.torch.fallback_stats import HANDLED


class WorkspaceError(MemoryError):
    """The workspace of a plan cannot be allocated."""


class PlannedOperation(NamedTuple):
    """One operation with its plan, in the thread that planned it.

    `make_result` and `make_workspace` allocate tensors on the device, whose current stream `stream_of` returns. Attention has
    a tuple of results.
    """

    name: str
    launcher: Launcher
    make_result: Callable[[], Any]
    make_workspace: Callable[[], Any] | None
    stream_of: Callable[[int], int]

    def run(self, first: int, second: int, bias: int = 0) -> Any:
        """Launch the plan for inputs at addresses, and return the result, a new tensor. `bias` is 0 if the plan adds none."""
        result = self.make_result()
        at_result = result.data_ptr()
        # new memory overlaps nothing, the key has the alignments, and inputs are null only if their storage was freed
        self.launch((first, second, bias, at_result) if bias else (first, second, at_result), first and second)
        return result

    def launch(self, addresses: tuple[int, ...], are_valid: object) -> None:
        """Launch the plan on the addresses of its operands and on the current stream; `are_valid` as for a launcher.

        The workspace is freed at once, because PyTorch's allocator reuses it in stream order. Raises WorkspaceError if it
        cannot be allocated.
        """
        workspace_address = 0
        if self.make_workspace is not None:
            try:
                workspace = self.make_workspace()
            except OutOfMemoryError as error:
                raise WorkspaceError(str(error)) from None
            workspace_address = workspace.data_ptr()
        self.launcher.run((*addresses, workspace_address), self.stream_of(self.launcher.device), are_valid)
        HANDLED[self.name] += 1


class Forward(NamedTuple):
    """A planned convolution.

    Parameters
    ----------
    operation : PlannedOperation
        The plan.
    x_format, w_format : torch.memory_format or None
        The memory formats that x and w are copied to, None for no copy.
    bias_shape : tuple of int or None
        The shape in which the bias is added to the result of the plan; None if the plan adds it, or there is none.
    """

    operation: PlannedOperation
    x_format: Any
    w_format: Any
    bias_shape: tuple[int, ...] | None

    def run(self, x: Any, w: Any, bias: Any, at_x: int, at_w: int) -> Any:
        """Return the result. `at_x` and `at_w` are the addresses of x and w."""
        if self.x_format is not None:
            x = x.contiguous(memory_format=self.x_format)
            at_x = x.data_ptr()
        if self.w_format is not None:
            w = w.contiguous(memory_format=self.w_format)
            at_w = w.data_ptr()
        if bias is None:
            return self.operation.run(at_x, at_w)
        if self.bias_shape is None:
            return self.operation.run(at_x, at_w, bias.data_ptr())
        return self.operation.run(at_x, at_w).add_(bias.view(self.bias_shape))


class Backward(NamedTuple):
    """The planned gradients of a convolution.

    Parameters
    ----------
    dx, dw : PlannedOperation or None
        The plans of the gradients with respect to the input and the filter. None if one is not requested, or falls back.
    axes : tuple of int or None
        The axes over which the gradient with respect to the bias is a sum of dy. None if it is not requested.
    dy_format, x_format, w_format : torch.memory_format or None
        The memory formats that dy, x and w are copied to, None for no copy.
    is_transposed : bool
        Whether the convolution is transposed.
    fallback_mask : list of bool or None
        The gradients that PyTorch's own kernel computes, as the mask of aten::convolution_backward. None if it computes none.
    reason : str
        The reason of the fallback.
    """

    dx: PlannedOperation | None
    dw: PlannedOperation | None
    axes: tuple[int, ...] | None
    dy_format: Any
    x_format: Any
    w_format: Any
    is_transposed: bool
    fallback_mask: list[bool] | None
    reason: str

    def run(
        self, dy: Any, x: Any, w: Any, at_dy: int, at_x: int, at_w: int, bias_sizes: Any, geometry: tuple[Any, ...]
    ) -> tuple[Any, Any, Any]:
        """Return the gradients.

        `at_dy`, `at_x` and `at_w` are the addresses of dy, x and w; `bias_sizes` and `geometry` are the arguments of
        aten::convolution_backward between w and the mask.
        """
        dx = dw = db = None
        if self.fallback_mask is not None:
            arguments = dy, x, w, bias_sizes, *geometry, self.fallback_mask
            dx, dw, _ = pytorch_kernels.convolution_backward(self.reason, *arguments)
        if self.dy_format is not None:
            dy = dy.contiguous(memory_format=self.dy_format)
            at_dy = dy.data_ptr()
        if self.axes is not None:
            db = dy.sum(self.axes)
        if self.dx is not None:
            if self.w_format is not None:
                w = w.contiguous(memory_format=self.w_format)
                at_w = w.data_ptr()
            dx = self.dx.run(at_dy, at_w)
        if self.dw is not None:
            if self.x_format is not None:
                x = x.contiguous(memory_format=self.x_format)
                at_x = x.data_ptr()
            dw = self.dw.run(at_x, at_dy) if self.is_transposed else self.dw.run(at_dy, at_x)
        return dx, dw, db
