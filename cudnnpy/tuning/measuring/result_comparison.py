"""Compare results of candidates on the GPU: the tolerance, and the largest element of a result or of a difference."""

from __future__ import annotations

import math
from ctypes import byref, c_double, c_float, c_size_t
from typing import Any

from cudnnpy import raw
from cudnnpy._arrays.workspace import allocate
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import ROUNDOFF, dtype_of, numpy_dtype
from cudnnpy._core.layouts import MAX_TENSOR_ELEMENTS, TensorSpec
from cudnnpy._planning.problem import Problem
from cudnnpy.descriptors import ReduceTensorDescriptor, TensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.tuning.measuring.guarded_memory import STREAM
from cudnnpy.typing import ElementName


def tolerance(problem: Problem, tf32: bool) -> float:
    """Return the largest difference between two right results, relative to the largest element.

    The sum of L products of numbers with unit roundoff u, accumulated with unit roundoff v, has an error of about
    u + v sqrt(L) relative to the sum of the magnitudes of the products, which is about sqrt(L) times the result. The bound
    is 16 (u + v sqrt(L)), far below the error of a wrong algorithm, which is of the order of 1.
    """
    stored = problem.specs[-1].dtype
    inputs = "tf32" if tf32 and problem.specs[0].dtype == "float32" else problem.specs[0].dtype
    u = max(ROUNDOFF.get(inputs, 0.0), ROUNDOFF.get(stored, 0.0))
    v = ROUNDOFF.get(problem.compute_dtype, 0.0)
    return min(0.25, 16.0 * (u + v * math.sqrt(problem.reduction_length)) + 1e-6)


class MaxAbs:
    """Computes the largest absolute element of a tensor, on one device. Its scratch memory is freed by `close`."""

    def __init__(self, handle: Handle, device: int) -> None:
        self._handle, self._device = handle, device
        self._scratch: dict[str, tuple[int, int, Any]] = {}

    def close(self) -> None:
        """Free the scratch memory, in the order of the stream."""
        self._scratch.clear()

    def __call__(self, spec: TensorSpec, address: int, size: int, minus: int | None = None) -> float:
        """Return the largest absolute element of `size` bytes, or of their difference from the bytes at `minus`.

        NaN propagates.
        The memory is overwritten: cudnnAddTensor subtracts in place.
        """
        dtype, itemsize = spec.dtype, dtype_of(spec.dtype).itemsize
        if size > MAX_TENSOR_ELEMENTS * itemsize:
            return self._of_parts(spec, address, size, minus)
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            return self._by_numpy(dtype, address, size, minus)
        number = c_double if dtype == "float64" else c_float
        one, zero, less = number(1.0), number(0.0), number(-1.0)
        count = size // itemsize
        flat = TensorDescriptor((1, 1, 1, count), dtype)
        if minus is not None:
            raw.call("cudnnAddTensor", self._handle, byref(less), flat, minus, byref(one), flat, address)
        if dtype == "bfloat16":  # cudnnReduceTensor does not support it
            wide = self._take("wide", 4 * count)
            floats = TensorDescriptor((1, 1, 1, count), "float32")
            raw.call("cudnnTransformTensor", self._handle, byref(one), flat, address, byref(zero), floats, wide)
            flat, address, dtype = floats, wide, "float32"
        return self._reduced(flat, address, dtype)

    def _of_parts(self, spec: TensorSpec, address: int, size: int, minus: int | None) -> float:
        """Return the same for more elements than a tensor descriptor can have."""
        part = MAX_TENSOR_ELEMENTS * dtype_of(spec.dtype).itemsize
        found = [
            self(spec, address + at, min(part, size - at), None if minus is None else minus + at)
            for at in range(0, size, part)
        ]
        return math.nan if any(map(math.isnan, found)) else max(found)

    def _take(self, name: str, size: int) -> int:
        """Return the address of scratch memory, which is replaced only by a larger one."""
        if name not in self._scratch or self._scratch[name][1] < size:
            self._scratch.pop(name, None)  # freed before the larger one is allocated
            self._scratch[name] = allocate(size, self._device, STREAM)
        return self._scratch[name][0]

    def _by_numpy(self, dtype: str, address: int, size: int, minus: int | None) -> float:
        """Return the same for integers and float8, which cudnnAddTensor and cudnnReduceTensor do not support."""
        import numpy as np

        driver = cuda_python("bindings.driver")

        def read(at: int) -> Any:
            values = np.empty(size // dtype_of(dtype).itemsize, numpy_dtype(dtype))
            driver.cuMemcpyDtoHAsync(values.ctypes.data, at, size, STREAM)
            driver.cuStreamSynchronize(STREAM)
            return values.astype(np.float64)

        found = read(address) if minus is None else read(address) - read(minus)
        return float(np.abs(found).max())

    def _reduced(self, flat: TensorDescriptor, address: int, dtype: ElementName) -> float:
        """Return the largest absolute element of a whole tensor."""
        import numpy as np

        driver = cuda_python("bindings.driver")
        # cudnnReduceTensor rejects a tensor of one element: reduction-of-one-shape in docs/known-issues.md
        found = address if flat.shape == (1, 1, 1, 1) else self._reduction(flat, address, dtype)
        host = np.zeros(1, numpy_dtype(dtype))
        driver.cuMemcpyDtoHAsync(host.ctypes.data, found, host.nbytes, STREAM)
        driver.cuStreamSynchronize(STREAM)
        return abs(float(host[0]))

    def _reduction(self, flat: TensorDescriptor, address: int, dtype: ElementName) -> int:
        """Return the address of the largest absolute element of a tensor, by cudnnReduceTensor."""
        double = dtype == "float64"
        how = ReduceTensorDescriptor("amax", compute_dtype="float64" if double else "float32", propagate_nan=True)
        one = TensorDescriptor((1, 1, 1, 1), dtype)
        size = c_size_t()
        raw.call("cudnnGetReductionWorkspaceSize", self._handle, how, flat, one, byref(size))
        number = c_double if double else c_float
        scale, zero = number(1.0), number(0.0)
        found = self._take("reduction", size.value + 256)
        space = found + 256
        raw.call(
            "cudnnReduceTensor",
            *(self._handle, how, None, 0, space, size, byref(scale), flat, address, byref(zero), one, found),
        )
        return found
