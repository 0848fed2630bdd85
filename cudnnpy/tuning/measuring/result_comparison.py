"""Compare results of candidates: the tolerance, the largest difference on the GPU, and the errors of elements in float64."""

from __future__ import annotations

import math
from ctypes import byref, c_double, c_float, c_size_t
from functools import partial
from typing import Any

from cudnnpy import raw
from cudnnpy._arrays.workspace import allocate
from cudnnpy._core.dtypes import ROUNDOFF, dtype_of
from cudnnpy._core.layouts import MAX_TENSOR_ELEMENTS, TensorSpec, byte_extent, packed_strides
from cudnnpy._planning.problem import Problem
from cudnnpy.descriptors import ReduceTensorDescriptor, TensorDescriptor
from cudnnpy.handle import Handle
from cudnnpy.tuning.measuring.bench_buffers import STREAM, part, to_host

_ADDED = ("float16", "bfloat16", "float32", "float64")  # the data types that cudnnAddTensor supports
_ELEMENTS = 64  # the most elements that are computed in float64
_PRODUCTS = 1 << 24  # about the most products that are summed for them
_MIN_ELEMENTS = 4  # the fewest elements, however many products they have
_CHUNK = 1 << 26  # bytes of a result that are compared at a time
_CHUNKS = 8  # the most chunks, spread over the result
_SAMPLES, _SAMPLE_PRODUCTS = 16, 1 << 20  # the most elements of one result alone, and about the most products for them


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


# All elements, on the GPU


class MaxAbs:
    """Computes the largest absolute element of a tensor, on one device."""

    def __init__(self, handle: Handle, device: int) -> None:
        self._handle, self._device = handle, device

    def __call__(self, spec: TensorSpec, address: int, size: int, minus: int | None = None) -> float:
        """Return the largest absolute element of `size` bytes, or of their difference from the bytes at `minus`.

        NaN propagates.
        The memory is overwritten: cudnnAddTensor subtracts in place.
        """
        largest = self._by_cudnn if spec.dtype in _ADDED else self._by_numpy
        most = MAX_TENSOR_ELEMENTS * dtype_of(spec.dtype).itemsize
        found = [
            largest(spec.dtype, address + at, min(most, size - at), None if minus is None else minus + at)
            for at in range(0, size, most)
        ]
        return math.nan if any(map(math.isnan, found)) else max(found)

    def _by_numpy(self, dtype: str, address: int, size: int, minus: int | None) -> float:
        """Return the same for integers and float8, which cudnnAddTensor and cudnnReduceTensor do not support."""
        import numpy as np

        found = to_host(address, size, dtype).astype(np.float64)
        if minus is not None:
            found -= to_host(minus, size, dtype).astype(np.float64)
        return float(np.abs(found).max())

    def _by_cudnn(self, dtype: Any, address: int, size: int, minus: int | None) -> float:
        """Return the same for the other data types."""
        double, count = dtype == "float64", size // dtype_of(dtype).itemsize
        one, zero, less = map(c_double if double else c_float, (1.0, 0.0, -1.0))
        flat = TensorDescriptor((1, 1, 1, count), dtype)
        if minus is not None:
            raw.call("cudnnAddTensor", self._handle, byref(less), flat, minus, byref(one), flat, address)
        if dtype == "bfloat16":  # cudnnReduceTensor does not support it
            wide = allocate(4 * count, self._device, STREAM)
            narrow, flat, dtype = flat, TensorDescriptor((1, 1, 1, count), "float32"), "float32"
            raw.call("cudnnTransformTensor", self._handle, byref(one), narrow, address, byref(zero), flat, wide[0])
            address = wide[0]
        # cudnnReduceTensor rejects a tensor of one element: reduction-of-one-shape in docs/known-issues.md
        if count > 1:
            how = ReduceTensorDescriptor("amax", compute_dtype="float64" if double else "float32", propagate_nan=True)
            single, needed = TensorDescriptor((1, 1, 1, 1), dtype), c_size_t()
            raw.call("cudnnGetReductionWorkspaceSize", self._handle, how, flat, single, byref(needed))
            room = allocate(needed.value + 256, self._device, STREAM)
            raw.call(
                "cudnnReduceTensor",
                *(self._handle, how, None, 0, room[0] + 256, needed, byref(one), flat, address),
                *(byref(zero), single, room[0]),
            )
            address = room[0]
        return abs(float(to_host(address, dtype_of(dtype).itemsize, dtype)[0]))


# Some elements, in float64 on the host


class Float64Checker:
    """Compares results of a problem, whose operands are random (bench_buffers), with its float64 elements."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._spec = problem, problem.specs[-1]
        self._strides = self._spec.strides or packed_strides(self._spec.shape)

    def errors(self, *addresses: int) -> list[float] | None:
        """Return the errors of one or two results; None if the problem has no float64 elements.

        An error is the largest error of some elements, relative to the largest of them: of two results, the elements in
        which they differ most; of one, the first, the last and others drawn at random. The error of NaN is infinite.
        """
        if self._problem.results != 1 or dtype_of(self._problem.specs[0].dtype).itemsize == 1:
            return None
        try:
            positions = self._most_different(*addresses) if len(addresses) > 1 else self._sampled()
            exact = self._problem.float64_elements(positions, partial(part, self._problem))
        except (MemoryError, ValueError, OverflowError):  # sums beyond float64
            return None
        if exact is None or not positions:
            return None
        return [_error([self._element(address, position) for position in positions], *exact) for address in addresses]

    def _element(self, address: int, position: tuple[int, ...]) -> float:
        offset = sum(at * stride for at, stride in zip(position, self._strides, strict=True))
        item = dtype_of(self._spec.dtype).itemsize
        return float(to_host(address + item * offset, item, self._spec.dtype)[0])

    def _count(self, most: int, products: int) -> int:
        """Return the number of elements whose sums have about so many products together."""
        return max(_MIN_ELEMENTS, min(most, products // max(self._problem.reduction_length, 1)))

    def _sampled(self) -> list[tuple[int, ...]]:
        import numpy as np

        shape, count = self._spec.shape, self._count(_SAMPLES, _SAMPLE_PRODUCTS)
        drawn = np.random.default_rng(0).integers(0, shape, (count - 2, len(shape))).tolist()
        return list(dict.fromkeys([(0,) * len(shape), tuple(size - 1 for size in shape), *map(tuple, drawn)]))

    def _most_different(self, one: int, other: int) -> list[tuple[int, ...]]:
        """Return the positions in which two results differ most."""
        import numpy as np

        dtype, wanted = self._spec.dtype, self._count(_ELEMENTS, _PRODUCTS)
        size, item = byte_extent(self._spec), dtype_of(dtype).itemsize
        starts = range(0, size, _CHUNK)
        found: list[tuple[float, int]] = []
        for start in starts[:: -(-len(starts) // _CHUNKS)]:
            a, b = (to_host(at + start, min(_CHUNK, size - start), dtype) for at in (one, other))
            with np.errstate(invalid="ignore", over="ignore"):
                if dtype != "float64":
                    a, b = a.astype(np.float32), b.astype(np.float32)
                off = np.nan_to_num(np.abs(a - b), nan=np.inf)
            worst = np.argpartition(off, -min(wanted, off.size))[-min(wanted, off.size) :]
            found += [(float(off[at]), start // item + int(at)) for at in worst]
        places = (self._position(offset) for _, offset in sorted(found, reverse=True)[:wanted])
        return [position for position in places if position is not None]

    def _position(self, offset: int) -> tuple[int, ...] | None:
        """Return the position of the element at an offset in memory; None for a gap between elements."""
        shape, strides = self._spec.shape, self._strides
        position = [0] * len(shape)
        for axis in sorted(range(len(shape)), key=strides.__getitem__, reverse=True):
            if shape[axis] > 1:
                position[axis], offset = divmod(offset, strides[axis])
        inside = offset == 0 and all(at < size for at, size in zip(position, shape, strict=True))
        return tuple(position) if inside else None


def _error(values: list[float], right: list[float], sizes: list[float]) -> float:
    """Return the largest error of elements, relative to the largest of them."""
    size = max(sizes)
    off = max((abs(a - b) for a, b in zip(values, right, strict=True)), key=lambda n: (math.isnan(n), n))
    return math.inf if math.isnan(off) else off / size if size else off and math.inf
