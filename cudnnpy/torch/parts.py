"""What is ready to run for a signature: planned operations, and the copies that PyTorch's kernels make, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import OutOfMemoryError

from cudnnpy._launch.launcher import Launcher
from cudnnpy.torch import native
from cudnnpy.torch.counts import TAKEN


class WorkspaceError(MemoryError):
    """There is no memory for the workspace of a plan."""


class Part:
    """One operation with its plan, in the thread that planned it.

    `make` and `make_workspace` make tensors on the device, whose current stream `stream_of` returns.
    """

    __slots__ = ("_device", "_launcher", "_make", "_make_workspace", "_operation", "_stream_of")

    def __init__(
        self,
        operation: str,
        launcher: Launcher,
        make: Callable[[], Any],
        make_workspace: Callable[[], Any] | None,
        stream_of: Callable[[int], int],
    ) -> None:
        self._operation, self._launcher, self._device = operation, launcher, launcher.device
        self._make, self._make_workspace, self._stream_of = make, make_workspace, stream_of

    def run(self, first: int, second: int, bias: int = 0) -> Any:
        """Launch the plan for inputs at addresses on the current stream, and return the result, a new tensor.

        `bias` is 0 if the plan adds none. The workspace is freed at once: PyTorch's allocator reuses it in the order of the
        stream. Raises WorkspaceError if there is no memory for it.
        """
        result, space = self._make(), 0
        if self._make_workspace is not None:
            try:
                workspace = self._make_workspace()
            except OutOfMemoryError as error:
                raise WorkspaceError(str(error)) from None
            space = workspace.data_ptr()
        if bias:
            pointers: tuple[int, ...] = first, second, bias, result.data_ptr(), space
        else:
            pointers = first, second, result.data_ptr(), space
        # new memory overlaps nothing, the key has the alignments, and inputs are null only if their storage was freed
        self._launcher.run(pointers, self._stream_of(self._device), first and second)
        TAKEN[self._operation] += 1
        return result


class Forward:
    """A planned convolution.

    Parameters
    ----------
    part : Part
        The plan.
    formats : tuple
        The memory formats that x and w are copied to, None for no copy.
    bias_shape : tuple of int or None
        The shape in which the bias is added to the result of the plan; None if the plan adds it, or there is none.
    """

    __slots__ = ("_bias_shape", "_part", "_w_format", "_x_format")

    def __init__(self, part: Part, formats: tuple[Any, Any], bias_shape: tuple[int, ...] | None) -> None:
        self._part, self._bias_shape = part, bias_shape
        self._x_format, self._w_format = formats

    def run(self, x: Any, w: Any, bias: Any, at_x: int, at_w: int) -> Any:
        """Return the result. `at_x` and `at_w` are the addresses of x and w."""
        if self._x_format is not None:
            x = x.contiguous(memory_format=self._x_format)
            at_x = x.data_ptr()
        if self._w_format is not None:
            w = w.contiguous(memory_format=self._w_format)
            at_w = w.data_ptr()
        if bias is None:
            return self._part.run(at_x, at_w)
        if self._bias_shape is None:
            return self._part.run(at_x, at_w, bias.data_ptr())
        return self._part.run(at_x, at_w).add_(bias.view(self._bias_shape))


class Backward:
    """The planned gradients of a convolution.

    Parameters
    ----------
    dx, dw : Part or None
        The plans of the gradients with respect to the input and the filter. None if one is not asked for, or is left.
    axes : tuple of int or None
        The axes over which the gradient with respect to the bias is a sum of dy. None if it is not asked for.
    formats : tuple
        The memory formats that dy, x and w are copied to, None for no copy.
    is_transposed : bool
        Whether the convolution is transposed.
    left : list of bool or None
        Which gradients PyTorch's own kernel computes, as the mask of aten::convolution_backward. None if none.
    reason : str
        Why it does.
    """

    __slots__ = ("_axes", "_dw", "_dx", "_dy_format", "_is_transposed", "_left", "_reason", "_w_format", "_x_format")

    def __init__(
        self,
        dx: Part | None,
        dw: Part | None,
        axes: tuple[int, ...] | None,
        formats: tuple[Any, Any, Any],
        is_transposed: bool,
        left: list[bool] | None = None,
        reason: str = "",
    ) -> None:
        self._dx, self._dw, self._axes = dx, dw, axes
        self._dy_format, self._x_format, self._w_format = formats
        self._is_transposed, self._left, self._reason = is_transposed, left, reason

    def run(
        self, dy: Any, x: Any, w: Any, at_dy: int, at_x: int, at_w: int, bias_sizes: Any, geometry: tuple[Any, ...]
    ) -> tuple[Any, Any, Any]:
        """Return the gradients.

        `at_dy`, `at_x` and `at_w` are the addresses of dy, x and w; `bias_sizes` and `geometry` are the arguments of
        aten::convolution_backward between w and the mask.
        """
        dx = dw = db = None
        if self._left is not None:
            dx, dw, _ = native.convolution_backward(self._reason, dy, x, w, bias_sizes, *geometry, self._left)
        if self._dy_format is not None:
            dy = dy.contiguous(memory_format=self._dy_format)
            at_dy = dy.data_ptr()
        if self._axes is not None:
            db = dy.sum(self._axes)
        if self._dx is not None:
            if self._w_format is not None:
                w = w.contiguous(memory_format=self._w_format)
                at_w = w.data_ptr()
            dx = self._dx.run(at_dy, at_w)
        if self._dw is not None:
            if self._x_format is not None:
                x = x.contiguous(memory_format=self._x_format)
                at_x = x.data_ptr()
            dw = self._dw.run(at_x, at_dy) if self._is_transposed else self._dw.run(at_dy, at_x)
        return dx, dw, db
