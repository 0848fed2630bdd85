"""Fills of memory with one value, and the programs of operations with empty inputs.

The driver fills dense memory, and cudnnSetTensor the rest: see slow-fill in docs/known-issues.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense, to_packed
from cudnnpy._cuda_python import cuda_python
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.steps import (
    BoundLaunch,
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    copy,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.handle import Handle


def fill(out: TensorSpec, value: float) -> Executable:
    """Return the executable that fills a tensor of floats with a value."""
    if is_dense(out):
        if out.dtype != "float64":
            return Memset(out, value)
        out = TensorSpec((math.prod(out.shape),), out.dtype, (1,))
    number = scaling_arguments(0.0, 0.0, out.dtype)[0]
    number.value = value
    return FunctionCall("cudnnSetTensor", tensor_descriptor(out), OperandAddress(0), number)


def zero_fill(size: int) -> Executable:
    """Return the executable that sets bytes of scratch memory to 0, which is the number 0 in every dtype."""
    return Memset(TensorSpec((-(-size // 4),), "float32", (1,)), 0.0)


def program_for_empty_input(
    name: str, device: int, operands: Sequence[Operand], value: float = 0.0, beta: float = 0.0
) -> Program:
    """Return the program of an operation with empty inputs: result = value + beta * result. An empty result is not written.

    The result is the last operand.
    """
    at, out = len(operands) - 1, operands[-1].spec
    if not byte_extent(out):
        return Program(name, device, operands, [])
    if not beta or math.isnan(value):
        return Program(name, device, operands, [Step(fill(out, value), (at,))])
    if not value:
        factor = scaling_arguments(beta, 0.0, out.dtype)[0]
        scale = FunctionCall("cudnnScaleTensor", tensor_descriptor(out), OperandAddress(0), factor)
        return Program(name, device, operands, [Step(scale, (at,))])
    filled = to_packed(out)
    steps = [Step(fill(filled, value), (at + 1,)), Step(copy(filled, out, 1.0, beta), (at + 1, at))]
    return Program(name, device, operands, steps, (byte_extent(filled),))


class Memset:
    """A fill of dense memory by the driver: cuMemsetD16Async, cuMemsetD32Async."""

    workspace_size = 0
    name = "memset"

    def __init__(self, out: TensorSpec, value: float) -> None:
        self._count, self._width = math.prod(out.shape), dtype_of(out.dtype).itemsize
        self._pattern = _bits(value, out.dtype)

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> BoundLaunch:
        """Return the launch that fills the memory at an address, on the stream of the handle."""
        driver = cuda_python("bindings.driver")
        memset = driver.cuMemsetD16Async if self._width == 2 else driver.cuMemsetD32Async
        address, pattern, count = addresses[0], self._pattern, self._count

        def launch() -> int:
            failed = int(memset(address, pattern, count, handle._address)[0])
            return int(raw.CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) if failed else 0

        launch.owners = (self, handle)  # type: ignore[attr-defined]
        return launch


def _bits(value: float, dtype: str) -> int:
    """Return the bits of a value rounded to a dtype, to nearest, ties to even."""
    import numpy as np

    if dtype == "float16":
        with np.errstate(over="ignore"):
            return int(np.float64(value).astype(np.float16).view(np.uint16))
    with np.errstate(over="ignore"):
        single = np.float64(value).astype(np.float32)
    bits = int(single.view(np.uint32))
    if dtype == "float32":
        return bits
    if math.isnan(value):
        return 0x7FC0
    # the first rounding is to odd, so that the second one cannot end on the wrong side of a tie
    if math.isfinite(value) and float(single) != value:
        if abs(float(single)) > abs(value):
            bits -= 1
        bits |= 1
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
