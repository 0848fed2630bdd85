"""Sum 16-bit tensors by matrix products with a vector of ones: exact products, float32 sums, one pass over the memory.

Measured on an H200 (docs/benchmarks), as multiples of PyTorch's time: sums along rows 0.6 to 1.2, where the reduction of a
graph takes 0.6 to 1.5; over columns 0.3 to 1.4 against 0.7 to 2.7; over images channels last 0.3 to 0.8, where one pooling
takes up to 8.
"""

from __future__ import annotations

from typing import NamedTuple

from cudnnpy._core.layouts import TensorSpec
from cudnnpy._launch.dispatch import Call
from cudnnpy._launch.implicit_operands import ConstantBuffer, WithImplicitOperands
from cudnnpy._launch.steps import Executable
from cudnnpy.graph.graph import Graph
from cudnnpy.typing import ElementName

_ROWS = 512  # minimum of rows that occupy the GPU as the rows of a product
_IMAGE = 64  # minimum length of a reduced middle axis for which a pooling is slower
_MAX_ONES = 1 << 24  # 32 MiB, which stay allocated as long as the plan


class MatmulSum(NamedTuple):
    """Sums over the middle axis of (outer, size, inner), in C order; outer or inner may be 1."""

    outer: int
    size: int
    inner: int
    dtype: ElementName
    factor: float  # of each sum

    def is_faster(self) -> bool:
        """Return whether the product is the fastest strategy, by measurement."""
        if self.dtype not in ("float16", "bfloat16"):  # the tensor cores round float32
            return False
        if self.inner == 1:
            return self.outer >= _ROWS
        return self.outer == 1 or self.size >= _IMAGE

    def executable(self, call: Call) -> Executable | None:
        """Return the executable that takes x and the sums, of x's dtype and packed.

        None if no engine supports it, or if the vector of ones would take too much memory beside the workspace.
        """
        outer, size, inner, dtype, factor = self
        if size > _MAX_ONES:
            return None
        graph = Graph()
        is_rows = inner == 1
        rows = (1, outer, size) if is_rows else (outer, size, inner)
        x = graph.tensor("x", TensorSpec(rows, dtype, (rows[1] * rows[2], rows[2], 1)))
        shape, strides = ((1, size, 1), (size, 1, size)) if is_rows else ((1, 1, size), (size, size, 1))
        ones = graph.tensor("ones", TensorSpec(shape, dtype, strides))
        made = graph.matmul(x, ones) if is_rows else graph.matmul(ones, x)
        if factor != 1.0:
            made = graph.pointwise("mul", made, graph.number(factor, 3))
        graph.output("sums", made, dtype)
        # For columns of one matrix the heuristics' first proposal is the fastest. Otherwise the second one takes 0.6 to 1.1
        # of the time of the first.
        planned = graph.executable(call.device, 0 if outer == 1 and not is_rows else 1)
        if planned is None:
            return None
        return WithImplicitOperands(planned, [0, ConstantBuffer(TensorSpec((size,), dtype, (1,)), 1.0, call), 1])
