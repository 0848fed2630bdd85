"""Bias and activation on a result in place, for convolutions that no single plan can fuse them into."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_double, c_float
from functools import partial

from cudnnpy import raw
from cudnnpy.convolution.graph import epilogue_graph, uids
from cudnnpy.convolution.legacy import row_descriptor
from cudnnpy.descriptors import ActivationDescriptor
from cudnnpy.engines import GraphExecutable, Target, heuristics
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle
from cudnnpy.layouts import TensorSpec, channels_last_strides
from cudnnpy.programs import Executable, described, in_turn


def make_epilogue(y: TensorSpec, bias: TensorSpec | None, activation: str | None, target: Target) -> Executable:
    """One launch by the graph API where the result is channels last; else one for each step by the v7 functions.

    It is bound to (y, y) or (y, bias, y): the convolved result is both read and written.
    """
    if y.strides == channels_last_strides(y.shape):
        operands = ("convolved", "y") if bias is None else ("convolved", "bias", "y")
        for configuration in heuristics(epilogue_graph(y, bias, activation, target), target):
            try:
                executable = GraphExecutable(configuration.finalize(), uids(operands))
            except StatusError:
                continue
            if not executable.workspace_size:
                return executable
    return StepByStep(y, bias, activation)


class StepByStep:
    """cudnnAddTensor, then cudnnActivationForward in place."""

    workspace_size = 0

    def __init__(self, y: TensorSpec, bias: TensorSpec | None, activation: str | None) -> None:
        self._y = described(y)
        self._scale = c_double if y.dtype == "float64" else c_float
        self._bias = self._activation = None
        if bias is not None:
            self._bias = row_descriptor(y, bias.dtype)
        if activation is not None:
            beta = 1.0 if activation == "swish" else None
            self._activation = ActivationDescriptor(activation, coefficient=1.0, propagate_nan=True, swish_beta=beta)

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Launches on (y, y) or (y, bias, y)."""
        one, zero = self._scale(1.0), self._scale(0.0)
        y = pointers[-1]
        steps: list[Callable[[], int]] = []
        if self._bias is not None:
            add = raw.bound("cudnnAddTensor")
            steps.append(
                partial(
                    add, handle.pointer, byref(one), self._bias.pointer, pointers[1], byref(one), self._y.pointer, y
                )
            )
        if self._activation is not None:
            activate = raw.bound("cudnnActivationForward")
            d = self._y.pointer
            steps.append(
                partial(activate, handle.pointer, self._activation.pointer, byref(one), d, y, byref(zero), d, y)
            )
        return in_turn(steps, (self, one, zero))


class Epilogue:
    """An epilogue by itself, for a Launcher."""

    replayable = True
    name = "bias and activation"
    workspace_size = 0

    def __init__(self, y: TensorSpec, bias: TensorSpec | None, activation: str | None, device: int) -> None:
        self.device = device
        self._executable = make_epilogue(y, bias, activation, Target(Handle.default(device)))

    def bind(self, handle: Handle, pointers: tuple[int, ...]) -> Callable[[], int]:
        """The launch for (y, y) or (y, bias, y), and no workspace."""
        return self._executable.bind(handle, pointers[:-1], 0)
