"""Decide which of two differing results is right, by the elements that differ most, computed in float64 on the host."""

from __future__ import annotations

import math
from typing import Any

from cudnnpy._arrays.workspace import allocate
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, byte_extent, packed_strides
from cudnnpy._launch.steps import copy
from cudnnpy._planning.problem import Problem, StridedSlice
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle
from cudnnpy.tuning.measuring.bench_buffers import BenchBuffers
from cudnnpy.tuning.measuring.guarded_memory import STREAM

_ELEMENTS = 64  # the most elements that are computed
_PRODUCTS = 1 << 24  # about the most products that are summed for them
_MIN_ELEMENTS = 4  # the fewest elements, however many products they have
_CHUNK = 1 << 26  # bytes of a result that are compared at a time
_CHUNKS = 8  # the most chunks, spread over the result
_SAMPLES, _SAMPLE_PRODUCTS = 16, 1 << 20  # the most elements of one result alone, and about the most products for them


class Float64Checker:
    """Compares results of a problem with its float64 elements (Problem.float64_elements)."""

    def __init__(self, problem: Problem, memory: BenchBuffers, handle: Handle) -> None:
        self._problem, self._memory, self._handle = problem, memory, handle
        self._boxes: dict[tuple[int, StridedSlice], Any] = {}  # data that one comparison reads, up to hundreds of MiB

    def errors(self, one: int, other: int) -> tuple[float, float] | None:
        """Return the errors of the results at two addresses; None if the problem has no float64 elements.

        An error is the largest error of the elements in which the results differ most, relative to the largest of these
        elements. The error of NaN is infinite.
        """
        if not self._can_judge():
            return None
        try:
            found = self._most_different(one, other)
            exact = self._problem.float64_elements([position for position, *_ in found], self._read)
        except (MemoryError, CudnnError, ValueError, OverflowError):  # strides beyond 32 bits, sums beyond float64
            return None
        if exact is None or not found:
            return None
        return _error([a for _, a, _ in found], *exact), _error([b for *_, b in found], *exact)

    def error(self, address: int) -> float | None:
        """Return the error of the result at an address in a few elements, the first, the last and others drawn at random.

        It is relative to the largest of them. None if the problem has no float64 elements.
        """
        if not self._can_judge():
            return None
        spec = self._problem.specs[-1]
        item, strides = dtype_of(spec.dtype).itemsize, spec.strides or packed_strides(spec.shape)
        try:
            positions = self._sampled(spec.shape)
            exact = self._problem.float64_elements(positions, self._read)
            if exact is None:
                return None
            offsets = [sum(at * stride for at, stride in zip(p, strides, strict=True)) for p in positions]
            values = [float(self._to_host(address + item * offset, item, spec.dtype)[0]) for offset in offsets]
        except (MemoryError, CudnnError, ValueError, OverflowError):
            return None
        return _error(values, *exact)

    def _can_judge(self) -> bool:
        """Drop the data of the last comparison, and return whether elements of the problem may be computed."""
        self._boxes.clear()
        return self._problem.results == 1 and dtype_of(self._problem.specs[0].dtype).itemsize > 1

    def _sampled(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        import numpy as np

        count = max(_MIN_ELEMENTS, min(_SAMPLES, _SAMPLE_PRODUCTS // max(self._problem.reduction_length, 1)))
        drawn = np.random.default_rng(0).integers(0, shape, (count - 2, len(shape))).tolist()
        return list(dict.fromkeys([(0,) * len(shape), tuple(size - 1 for size in shape), *map(tuple, drawn)]))

    def _most_different(self, one: int, other: int) -> list[tuple[tuple[int, ...], float, float]]:
        """Return the positions in which two results differ most, with the elements of both."""
        import numpy as np

        spec = self._problem.specs[-1]
        wanted = max(_MIN_ELEMENTS, min(_ELEMENTS, _PRODUCTS // max(self._problem.reduction_length, 1)))
        size, item = byte_extent(spec), dtype_of(spec.dtype).itemsize
        starts = list(range(0, size, _CHUNK))
        found: list[tuple[float, int, float, float]] = []
        for start in starts[:: -(-len(starts) // _CHUNKS)]:
            a, b = (self._to_host(at + start, min(_CHUNK, size - start), spec.dtype) for at in (one, other))
            with np.errstate(invalid="ignore", over="ignore"):
                off = np.nan_to_num(np.abs(a - b), nan=np.inf)
            worst = np.argpartition(off, -min(wanted, off.size))[-min(wanted, off.size) :]
            found += [(float(off[at]), start // item + int(at), float(a[at]), float(b[at])) for at in worst]
        found.sort(reverse=True)
        places = ((_position(spec, offset), a, b) for _, offset, a, b in found[:wanted])
        return [(position, a, b) for position, a, b in places if position is not None]

    def _read(self, operand: int, box: StridedSlice) -> Any:
        """Return a slice of an operand, packed on the device, as float64; of the result, its initial content for beta."""
        if (operand, box) not in self._boxes:
            spec = self._problem.specs[operand]
            assert spec.strides is not None
            inputs = self._memory.inputs
            address = inputs[operand] if operand < len(inputs) else self._memory.start
            assert address is not None
            item = dtype_of(spec.dtype).itemsize
            address += item * sum(at * stride for at, stride in zip(box.start, spec.strides, strict=True))
            strides = tuple(step * stride for step, stride in zip(box.step, spec.strides, strict=True))
            source = TensorSpec(box.shape, spec.dtype, strides)
            packed = TensorSpec(box.shape, spec.dtype, packed_strides(box.shape))
            size = item * math.prod(box.shape)
            room = allocate(size, self._problem.device, STREAM)
            if copy(source, packed).bind(self._handle, (address, room[0]), 0)():
                raise CudnnError("part of an operand could not be copied")
            self._boxes[operand, box] = self._to_host(room[0], size, spec.dtype, np_type="float64").reshape(box.shape)
        return self._boxes[operand, box]

    def _to_host(self, address: int, size: int, dtype: str, np_type: str = "float32") -> Any:
        import numpy as np

        driver = cuda_python("bindings.driver")
        values = np.empty(size // dtype_of(dtype).itemsize, numpy_dtype(dtype))
        driver.cuMemcpyDtoHAsync(values.ctypes.data, address, values.nbytes, STREAM)
        driver.cuStreamSynchronize(STREAM)
        return values if dtype == "float64" else values.astype(np_type)


def _error(values: list[float], right: list[float], sizes: list[float]) -> float:
    """Return the largest error of elements, relative to the largest of them."""
    size = max(sizes)
    off = max((abs(a - b) for a, b in zip(values, right, strict=True)), key=lambda n: (math.isnan(n), n))
    return math.inf if math.isnan(off) else off / size if size else off and math.inf


def _position(spec: TensorSpec, offset: int) -> tuple[int, ...] | None:
    """Return the position of the element at an offset in memory; None for a gap between elements."""
    strides = spec.strides or packed_strides(spec.shape)
    position = [0] * len(spec.shape)
    for axis in sorted(range(len(spec.shape)), key=strides.__getitem__, reverse=True):
        if spec.shape[axis] > 1:
            position[axis], offset = divmod(offset, strides[axis])
    inside = offset == 0 and all(at < size for at, size in zip(position, spec.shape, strict=True))
    return tuple(position) if inside else None
