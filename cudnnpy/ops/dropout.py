"""Dropout and its gradient: cudnnDropoutForward and cudnnDropoutBackward, with the states of their random numbers."""

from __future__ import annotations

import math
from ctypes import byref, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._core.cache_token import CacheToken
from cudnnpy._core.layouts import TensorSpec, byte_extent, has_same_layout, is_dense, to_packed
from cudnnpy._launch.device_operation import DeviceOperation
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.operands import check_input, check_no_overlaps, resolve_output
from cudnnpy._launch.program import Operand, Program, with_conversion_copies
from cudnnpy._launch.steps import FunctionCall, OperandAddress
from cudnnpy._memory import workspace as memory
from cudnnpy._options.dropout import DropoutBase
from cudnnpy.descriptors import DropoutDescriptor, TensorDescriptor
from cudnnpy.handle import Handle


class Dropout(DropoutBase, DeviceOperation):
    _states: dict[int, tuple[Any, DropoutDescriptor]]

    def _derived(self) -> dict[str, Any]:
        # Each object has a cache token of its own, since plans contain the state of its random numbers.
        return {"_token": CacheToken(), "_states": {}}

    def _descriptor(self, call: Call) -> DropoutDescriptor:
        held = self._states.get(call.device)
        if held is None:
            handle = Handle.default(call.device)
            handle.set_stream(call.stream)
            size = DropoutDescriptor.needed_states_size(handle)
            states = memory.allocate_from_pool(size, call.device, call.stream)
            how = DropoutDescriptor(handle, self.probability, states=states[0], states_size=size, seed=self.seed)
            held = self._states[call.device] = (states, how)
        return held[1]

    def _forward(self, call: Call) -> tuple[Program, list[TensorSpec]]:
        x = check_input(call, "x", empty=True)
        y = resolve_output(call, "out", x.shape, x.dtype, x)
        reserve = TensorSpec((reserve_size(x),), "uint8", (1,))
        operands = check_no_overlaps(
            call, (Operand("x", x), Operand("out", y, True), Operand("reserve", reserve, True))
        )
        if not byte_extent(y):  # no random numbers are drawn
            return Program("dropout", call.device, operands, []), [y, reserve]
        required_specs = *_rows(x, y), reserve
        how, one, two, _ = self._descriptor(call), *map(_row, required_specs)
        tensors = one, OperandAddress(0), two, OperandAddress(1), OperandAddress(2)
        function = FunctionCall("cudnnDropoutForward", how, *tensors, reserve.shape[0])
        return with_conversion_copies("dropout", call.device, operands, function, required_specs), [y, reserve]

    def _backward(self, call: Call) -> tuple[Program, list[TensorSpec]]:
        dy = check_input(call, "dy", empty=True)
        dx = resolve_output(call, "out", dy.shape, dy.dtype, dy)
        reserve = check_input(call, "reserve", range(1, 2), ("uint8",), empty=True)
        size = reserve_size(dy)
        if reserve.shape != (size,) or reserve.strides != (1,):
            raise ValueError(
                f"reserve must have shape ({size},), as forward returns it for x of shape {dy.shape}; "
                f"got shape {reserve.shape}"
            )
        operands = check_no_overlaps(call, (Operand("dy", dy), Operand("reserve", reserve), Operand("out", dx, True)))
        if not byte_extent(dx):
            return Program("dropout gradient", call.device, operands, []), [dx]
        one, three = _rows(dy, dx)
        required_specs = one, reserve, three
        tensors = _row(one), OperandAddress(0), _row(three), OperandAddress(2), OperandAddress(1)
        function = FunctionCall("cudnnDropoutBackward", self._descriptor(call), *tensors, size)
        return with_conversion_copies("dropout gradient", call.device, operands, function, required_specs), [dx]


def reserve_size(spec: TensorSpec) -> int:
    """Bytes that forward saves for backward (cudnnDropoutGetReserveSpaceSize); 0 for no elements."""
    size = c_size_t()
    if not byte_extent(spec):
        return 0
    dtype = "float32" if spec.dtype == "bfloat16" else spec.dtype
    raw.call("cudnnDropoutGetReserveSpaceSize", _row(spec._replace(dtype=dtype)), byref(size))
    return size.value


def _row(spec: TensorSpec) -> TensorDescriptor:
    """A tensor as one row: which elements are dropped depends only on their order in memory."""
    return TensorDescriptor((1, 1, 1, math.prod(spec.shape)), spec.dtype)


def _rows(x: TensorSpec, y: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """x and y as the functions take them: dense, in one memory format, and not bfloat16."""
    if x.dtype != "bfloat16" and is_dense(x) and has_same_layout(x, y):
        return x, y
    dtype = "float32" if x.dtype == "bfloat16" else x.dtype
    return to_packed(x, dtype), to_packed(y, dtype)
