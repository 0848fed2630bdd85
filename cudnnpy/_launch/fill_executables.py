"""Fills of memory with one value, and the programs of operations with empty inputs.

The driver fills dense memory, and cudnnSetTensor the rest: see slow-fill in docs/known-issues.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudnnpy import raw
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import bits_of, dtype_of
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense
from cudnnpy._launch.program import Operand, Program
from cudnnpy._launch.steps import (
    BoundLaunch,
    Executable,
    FunctionCall,
    OperandAddress,
    Step,
    scaling_arguments,
    tensor_descriptor,
)
from cudnnpy.handle import Handle


def fill(out: TensorSpec, value: float) -> Executable:
    """Return the executable that fills a tensor of floats with 0, 1 or NaN, or one of float32 or int32 with any number."""
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


def program_for_empty_input(name: str, device: int, operands: Sequence[Operand], beta: float) -> Program:
    """Return the program of sums over nothing: result = 0 + beta * result. An empty result is not written.

    The result is the last operand.
    """
    at, out = len(operands) - 1, operands[-1].spec
    if not byte_extent(out):
        return Program(name, device, operands, [])
    if not beta:
        return Program(name, device, operands, [Step(fill(out, 0.0), (at,))])
    factor = scaling_arguments(beta, 0.0, out.dtype)[0]
    scale = FunctionCall("cudnnScaleTensor", tensor_descriptor(out), OperandAddress(0), factor)
    return Program(name, device, operands, [Step(scale, (at,))])


class Memset:
    """A fill of dense memory by the driver: cuMemsetD16Async, cuMemsetD32Async."""

    workspace_size = 0
    name = "memset"

    def __init__(self, out: TensorSpec, value: float) -> None:
        self._count, self._width = math.prod(out.shape), dtype_of(out.dtype).itemsize
        self._pattern = bits_of(value, out.dtype)

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
