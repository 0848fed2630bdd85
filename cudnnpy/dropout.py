"""Dropout, and its gradient: cudnnDropoutForward and cudnnDropoutBackward, with their random state."""

from __future__ import annotations

import math
from ctypes import byref, c_size_t
from itertools import count
from typing import Any

from cudnnpy import calling, raw
from cudnnpy import workspace as memory
from cudnnpy.arrays import TensorSpec, packed_strides
from cudnnpy.calling import Call
from cudnnpy.descriptors import DropoutDescriptor, TensorDescriptor
from cudnnpy.dtypes import dtype_of
from cudnnpy.functions import (
    At,
    Function,
    Operand,
    Program,
    Step,
    check_integer,
    check_number,
    copy,
    given,
    is_dense,
    result,
    same_memory,
)
from cudnnpy.handle import Handle

_numbers = count()


class Dropout:
    """Elements set to 0 at random and the others divided by 1 - probability, and the gradient, on device arrays.

    probability: of an element to become 0; at least 0, less than 1. seed: 0 to 2 ** 64 - 1. The object holds the state
    of its random numbers, one for each device, in device memory; forward changes it: the same seed and the same calls
    give the same masks again. One thread and one stream at a time.

    Arrays are float16, bfloat16, float32 or float64, of 1 to 5 axes. Raises TypeError and ValueError for options and
    arrays that do not fit, NotSupportedError for what cuDNN lacks.
    """

    def __init__(self, probability: float = 0.5, seed: int = 0) -> None:
        self._probability = check_number("probability", probability, 0.0)
        if self._probability >= 1:
            raise ValueError(f"probability: {probability!r} given; expected at least 0 and less than 1")
        self._seed = check_integer("seed", seed, 0, 2**64 - 1)
        self._number = next(_numbers)
        self._states: dict[int, tuple[Any, DropoutDescriptor]] = {}

    def __repr__(self) -> str:
        return f"Dropout(probability={self.probability}, seed={self.seed})"

    @property
    def probability(self) -> float:
        """The probability of an element to become 0."""
        return self._probability

    @property
    def seed(self) -> int:
        """What the random numbers began with."""
        return self._seed

    def forward(self, x: Any, out: Any = None, stream: Any = None) -> Any:
        """(y, reserve): y in `out` or a new array like x, and a uint8 array of what backward needs to know."""
        head = self._number, "Dropout.forward"
        return calling.run(head, ("x", "out", "reserve"), (x,), (out, None), stream, self._forward)

    def backward(self, dy: Any, reserve: Any, out: Any = None, stream: Any = None) -> Any:
        """The gradient in x, in `out` or a new array like dy; `reserve` is what forward returned beside y."""
        head = self._number, "Dropout.backward"
        return calling.run(head, ("dy", "reserve", "out"), (dy, reserve), (out,), stream, self._backward)

    def _descriptor(self, call: Call) -> DropoutDescriptor:
        held = self._states.get(call.device)
        if held is None:
            handle = Handle.default(call.device)
            handle.set_stream(call.stream)
            size = DropoutDescriptor.needed_states_size(handle)
            states = memory.allocate(size, call.device, call.stream)
            how = DropoutDescriptor(handle, self._probability, states=states[0], states_size=size, seed=self._seed)
            held = self._states[call.device] = (states, how)
        return held[1]

    def _forward(self, call: Call) -> tuple[Program, list[TensorSpec]]:
        x = given(call, "x")
        y = result(call, "out", x.shape, x.dtype, x)
        reserve = TensorSpec((reserve_size(x),), "uint8", (1,))
        how = self._descriptor(call)
        operands = Operand("x", x), Operand("out", y, True), Operand("reserve", reserve, True)
        function = "cudnnDropoutForward", how, _row(x), At(0), _row(x), At(1), At(2), reserve.shape[0]
        return _program("dropout", call.device, operands, Function(*function), (x, y), 2), [y, reserve]

    def _backward(self, call: Call) -> tuple[Program, list[TensorSpec]]:
        dy = given(call, "dy")
        dx = result(call, "out", dy.shape, dy.dtype, dy)
        reserve = given(call, "reserve", range(1, 2), ("uint8",))
        size = reserve_size(dy)
        if reserve.shape != (size,) or reserve.strides != (1,):
            raise ValueError(
                f"reserve: shape {reserve.shape} given; expected ({size},), what forward gives for x of shape {dy.shape}"
            )
        how = self._descriptor(call)
        operands = Operand("dy", dy), Operand("reserve", reserve), Operand("out", dx, True)
        function = Function("cudnnDropoutBackward", how, _row(dy), At(0), _row(dy), At(1), At(2), size)
        return _program("dropout gradient", call.device, operands, function, (dy, dx), 1), [dx]


def reserve_size(spec: TensorSpec) -> int:
    """Bytes of what forward keeps for backward: cudnnDropoutGetReserveSpaceSize."""
    size = c_size_t()
    raw.call("cudnnDropoutGetReserveSpaceSize", _row(spec), byref(size))
    return size.value


def _row(spec: TensorSpec) -> TensorDescriptor:
    """All elements as one row: which of them is dropped depends on the order in memory alone."""
    return TensorDescriptor((1, 1, 1, math.prod(spec.shape)), spec.dtype)


def _program(
    name: str,
    device: int,
    operands: tuple[Operand, ...],
    function: Function,
    ends: tuple[TensorSpec, TensorSpec],
    reserve: int,
) -> Program:
    """The function on rows: with copies in and out where x has gaps or the result lies otherwise. Its At are x, y, reserve."""
    x, y = ends
    source = 0
    target = next(at for at, operand in enumerate(operands) if operand.name == "out")
    if is_dense(x) and same_memory(x, y):
        return Program(name, device, operands, [Step(function, (source, target, reserve))])
    packed = x._replace(strides=packed_strides(x.shape))
    size = math.prod(x.shape) * dtype_of(x.dtype).itemsize
    there, back = len(operands), len(operands) + 1
    steps = [
        Step(copy(x, packed), (source, there)),
        Step(function, (there, back, reserve)),
        Step(copy(packed, y), (back, target)),
    ]
    return Program(name, device, operands, steps, (size, size))
