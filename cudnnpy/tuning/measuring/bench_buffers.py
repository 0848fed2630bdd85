"""The operands of a measurement: random numbers in guarded memory for verified runs, and rotated copies for timed runs.

In guarded memory a read or write outside an operand or the workspace is a GPU fault: each has a mapping of its own
(cuMemAddressReserve, cuMemCreate, cuMemMap), with unmapped addresses on both sides. An operand is placed flush with the end of
its mapping, as far as its alignment allows, or with the beginning. Results never share memory with another operand
(check_pointers in plan.py), and inputs are only read. Therefore operands that share memory need no separate run.

Timed runs take the copies in turn, so that each starts with a cold L2 cache, as in a network in which other layers run in
between. For tensors of about the size of the cache, the fastest candidate with a warm cache can be 15 % slower with a cold
cache than another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

from cudnnpy._arrays.workspace import allocate, release_workspace
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense, packed_strides
from cudnnpy._launch.steps import aligned_size
from cudnnpy._planning.problem import Problem, StridedSlice, Values
from cudnnpy.errors import CudnnError

STREAM = 0  # all work of a measurement goes to the default stream
_WORKSPACE_ALIGNMENT = 16  # bytes, as Plan.execute requires
_POOL_ALIGNMENT = 256  # bytes, of ordinary memory
_COLD = 3  # the rotated buffers together have at least this many times the size of the L2 cache
_MAX_SETS = 16
_MIN_FILLER = 1 << 20  # bytes; the filler where memory is scarce
_ALIGNED = 16  # bytes; an operand with this alignment or more is timed at a multiple of 256

# The random numbers of a tensor, which repeat in memory. It is prime, so that no two images of a batch are alike.
_NUMBERS = 262_139


# Random numbers on the host


@lru_cache(maxsize=32)
def numbers(dtype: str, seed: int, values: Values) -> Any:
    """Return random numbers, or lengths or indices, as an array of a data type."""
    import numpy as np

    if values.step is not None:
        return (values.low + values.step * np.arange(_NUMBERS)).astype(numpy_dtype(dtype))
    drawn = np.random.default_rng(seed).uniform(values.low, values.high, _NUMBERS)
    return (np.rint(drawn) if values.is_whole else drawn).astype(numpy_dtype(dtype))


def drawn(problem: Problem, operand: int) -> Any:
    """Return the numbers that repeat in an operand of a problem; of a result, those of its initial content for beta."""
    return numbers(problem.specs[operand].dtype, operand, problem.value_ranges[operand])


def image(spec: TensorSpec, elements: Any, gaps: int) -> Any:
    """Return the bytes of a tensor: elements from a repeated array, or filled with one byte; gaps filled with another byte."""
    import numpy as np

    assert spec.strides is not None
    memory, size = np.full(byte_extent(spec), gaps, np.uint8), dtype_of(spec.dtype).itemsize
    view = np.lib.stride_tricks.as_strided(
        memory.view(f"u{size}"), spec.shape, [size * stride for stride in spec.strides]
    )
    if isinstance(elements, int):
        elements = np.full(view.itemsize, elements, np.uint8)
    view[...] = np.resize(elements.view(view.dtype), spec.shape)
    return memory


def part(problem: Problem, operand: int, box: StridedSlice) -> Any:
    """Return a slice of an operand as float64: its numbers repeat in memory, or between gaps in logical order."""
    import numpy as np

    spec, index = problem.specs[operand], np.zeros((), np.int64)
    strides = spec.strides if spec.strides and is_dense(spec) else packed_strides(spec.shape)
    for begin, count, step, stride in zip(*box, strides, strict=True):
        index = index[..., None] + stride * (begin + step * np.arange(count))
    return drawn(problem, operand)[index % _NUMBERS].astype(np.float64)


def to_host(address: int, size: int, dtype: str) -> Any:
    """Return elements in device memory as an array of their data type."""
    import numpy as np

    driver = cuda_python("bindings.driver")
    values = np.empty(size // dtype_of(dtype).itemsize, numpy_dtype(dtype))
    driver.cuMemcpyDtoHAsync(values.ctypes.data, address, values.nbytes, STREAM)
    driver.cuStreamSynchronize(STREAM)
    return values


# Guarded memory


class _Mapping:
    """Memory between at least `guard` bytes of unmapped addresses on each side. `close` frees it when no work uses it."""

    def __init__(self, size: int, guard: int, device: int) -> None:
        driver = cuda_python("bindings.driver")
        memory = driver.CUmemAllocationProp()
        memory.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        memory.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        memory.location.id = device
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        grain = int(_checked(driver.cuMemGetAllocationGranularity(memory, least)))
        guard, self.size = (-(-max(length, 1) // grain) * grain for length in (guard, size))
        reserved = self.size + 2 * guard
        with ExitStack() as stack:
            base = int(_checked(driver.cuMemAddressReserve(reserved, 0, 0, 0)))
            stack.callback(driver.cuMemAddressFree, base, reserved)
            self.start = base + guard
            handle = _checked(driver.cuMemCreate(self.size, memory, 0))
            try:
                _checked(driver.cuMemMap(self.start, self.size, 0, handle, 0))
            finally:
                driver.cuMemRelease(handle)  # the mapping still holds the memory
            stack.callback(driver.cuMemUnmap, self.start, self.size)
            access = driver.CUmemAccessDesc()
            access.location = memory.location
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            _checked(driver.cuMemSetAccess(self.start, self.size, [access], 1))
            self.close = stack.pop_all().close


class GuardedMemory:
    """The memory of operands and of a workspace that grows, each in a mapping of its own.

    Raises MemoryError if there is no memory for the operands.
    """

    def __init__(self, specs: Sequence[TensorSpec], device: int) -> None:
        self._specs, self._device = specs, device
        self.is_at_end = True  #: whether the operands are flush with the ends of their mappings, or with the beginnings
        self._guard = max(map(byte_extent, specs))
        self._spaces: list[_Mapping] = []
        self._workspace: _Mapping | None = None
        try:
            for spec in specs:
                self._spaces.append(self._obtained(byte_extent(spec)))
        except BaseException:
            self.close()  # the traceback refers to the memory
            raise

    def close(self) -> None:
        """Free the memory once the GPU does not use it any more."""
        _wait()
        for space in (*self._spaces, *([self._workspace] if self._workspace else [])):
            space.close()

    @property
    def pointers(self) -> tuple[int, ...]:
        """The addresses of the operands."""
        if not self.is_at_end:
            return tuple(space.start for space in self._spaces)
        return tuple(
            (space.start + space.size - byte_extent(spec)) // spec.alignment * spec.alignment
            for space, spec in zip(self._spaces, self._specs, strict=True)
        )

    def workspace(self, size: int) -> int:
        """Return the address of a workspace that is a multiple of 16 and not of 256; 0 for no bytes. Raises MemoryError.

        The previous workspace is freed if it has to grow.
        """
        if not size:
            return 0
        space = self._grown(size)
        if not self.is_at_end:
            return space.start + _WORKSPACE_ALIGNMENT
        address = (space.start + space.size - size) // _WORKSPACE_ALIGNMENT * _WORKSPACE_ALIGNMENT
        return address if address % _POOL_ALIGNMENT else address - _WORKSPACE_ALIGNMENT

    def aligned_workspace(self, size: int) -> int:
        """Return the address of a workspace for timing, aligned as ordinary memory; 0 for no bytes. Raises MemoryError."""
        return self._grown(size).start if size else 0

    def _grown(self, size: int) -> _Mapping:
        size += 2 * _WORKSPACE_ALIGNMENT
        if self._workspace is None or size > self._workspace.size:
            if self._workspace is not None:
                _wait()
                self._workspace.close()  # before the larger one is allocated
                self._workspace = None
            self._workspace = self._obtained(size)
        return self._workspace

    def _obtained(self, size: int) -> _Mapping:
        try:
            return _Mapping(size, self._guard, self._device)
        except MemoryError:
            release_workspace()  # the pool may hold unused memory, which no mapping can have
            return _Mapping(size, self._guard, self._device)


def _wait() -> None:
    driver = cuda_python("bindings.driver")
    driver.cuStreamSynchronize(STREAM)


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the result of a driver call. Raises MemoryError without memory, and CudnnError for other errors."""
    status, *result = answer
    if not int(status):
        return result[0] if result else None
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise MemoryError("the device has no memory for a mapping of an operand or workspace")
    raise CudnnError(f"device memory could not be mapped: the driver reported {status.name}")


# The buffers of a bench


# The initial bytes of a verified run: in results without beta and the workspace, and in the gaps of results
Fills = tuple[int, int]
FIRST: Fills = 0xFF, 0  # NaN, which reveals elements that are not written; gaps are compared like elements
SECOND: Fills = 0x7B, 0x7B  # large finite numbers of every data type


class BenchBuffers(GuardedMemory):
    """The operands of one problem, the baseline's results, and the workspace.

    Without memory for copies, timed runs take the guarded operands. No function
    but candidates uses guarded operands, and so can be the cause of an access outside. Raises MemoryError without memory for
    the operands.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.specs, problem.device)
        self._problem = problem
        self.results = problem.specs[-problem.results :]
        self._first_result = len(problem.specs) - problem.results
        self._owner: Any = None
        self._images: dict[Any, Any] = {}  # the bytes of operands with gaps
        try:
            self._allocate()
            self._draw_inputs()
            self._copy_inputs()
        except BaseException:
            self.close()  # the traceback refers to the memory
            raise

    def close(self) -> None:
        """Free the memory."""
        super().close()
        self._owner = None

    # Addresses

    @property
    def scratch(self) -> tuple[int, ...]:
        """The addresses of the guarded results."""
        return self.pointers[self._first_result :]

    @property
    def timing_sets(self) -> list[tuple[int, ...]]:
        """The addresses of the operands of timed runs in turn."""
        return self._copies or [self.pointers]

    def _allocate(self) -> None:
        results = [byte_extent(spec) for spec in self.results]
        cache = _cache_size(self._device)
        sizes = [byte_extent(spec) + _offset(spec) for spec in self._specs]
        count = min(max(1, -(-_COLD * cache // sum(sizes))), _MAX_SETS)
        try:
            parts = self._take([*results, *results, cache, *(sizes * count)])
        except MemoryError:
            count, cache = 0, min(cache, _MIN_FILLER)
            parts = self._take([*results, *results, cache])
        self.kept = parts[: len(results)]  #: the addresses of the baseline's results
        self.compared = parts[len(results) : 2 * len(results)]  #: the addresses of results while they are compared
        #: memory that is filled to keep the GPU busy: its address and size
        self.filler = parts[2 * len(results)], cache
        copies = iter(parts[2 * len(results) + 1 :])
        self._copies = [tuple(next(copies) + _offset(spec) for spec in self._specs) for _ in range(count)]
        self.has_copies = count > 0  #: whether timed runs use copies, so that the guarded operands are unchanged

    def _take(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses of parts of one allocation."""
        address, _, self._owner = allocate(sum(map(aligned_size, sizes)), self._device, STREAM)
        addresses = []
        for size in sizes:
            addresses.append(address)
            address += aligned_size(size)
        return addresses

    # Contents

    def place(self, *, at_end: bool) -> None:
        """Move the operands flush with the ends or the beginnings of their mappings. The results are undefined afterwards."""
        if at_end != self.is_at_end:
            self.is_at_end = at_end
            self._draw_inputs()

    def reset(self, workspace_size: int, fills: Fills = FIRST) -> None:
        """Fill the guarded results and the workspace before a run; with beta, the first result gets its initial content."""
        driver = cuda_python("bindings.driver")
        byte, gaps = fills
        for operand in range(self._first_result, len(self._specs)):
            is_drawn = bool(self._problem.beta) and operand == self._first_result
            self._fill(operand, None if is_drawn else byte, gaps)
        if workspace_size:
            driver.cuMemsetD8Async(self.workspace(workspace_size), byte, workspace_size, STREAM)

    def copy_results(self, to: Sequence[int]) -> None:
        """Copy the guarded results to other addresses."""
        driver = cuda_python("bindings.driver")
        for spec, source, address in zip(self.results, self.scratch, to, strict=True):
            driver.cuMemcpyDtoDAsync(address, source, byte_extent(spec), STREAM)

    def have_gaps_changed(self) -> bool:
        """Return whether a run after a reset with SECOND has changed the gaps of a result.

        The gaps become 0, since results are compared with gaps.
        """
        have_changed = False
        for spec, address in zip(self.results, self.scratch, strict=True):
            if not is_dense(spec):
                memory, is_gap = to_host(address, byte_extent(spec), "uint8"), image(spec, 0, 1).view(bool)
                have_changed |= bool((memory[is_gap] != SECOND[1]).any())
                memory[is_gap] = 0
                self._upload(address, memory)
        return have_changed

    def _draw_inputs(self) -> None:
        """Fill the guarded inputs with random numbers, equal at every placement, and their gaps with NaN or extremes."""
        for operand in range(self._first_result):
            self._fill(operand, None, 0xFF if "float" in self._specs[operand].dtype else 0x80)

    def _copy_inputs(self) -> None:
        driver = cuda_python("bindings.driver")
        for copies in self._copies:
            for spec, address, source in zip(self._specs[: self._first_result], copies, self.pointers, strict=False):
                driver.cuMemcpyDtoDAsync(address, source, byte_extent(spec), STREAM)

    def _fill(self, operand: int, byte: int | None, gaps: int) -> None:
        """Fill a guarded operand with one byte, or with its random numbers; and its gaps with another byte."""
        driver = cuda_python("bindings.driver")
        spec, address = self._specs[operand], self.pointers[operand]
        if not is_dense(spec):
            if (operand, byte, gaps) not in self._images:
                elements = drawn(self._problem, operand) if byte is None else byte
                self._images[operand, byte, gaps] = image(spec, elements, gaps)
            self._upload(address, self._images[operand, byte, gaps])
        elif byte is None:
            self._repeat(spec, address, drawn(self._problem, operand))
        else:
            driver.cuMemsetD8Async(address, byte, byte_extent(spec), STREAM)

    def _repeat(self, spec: TensorSpec, address: int, block: Any) -> None:
        """Fill a dense tensor with a repeated block: once from the host, then by copies of doubling size."""
        driver = cuda_python("bindings.driver")
        size = byte_extent(spec)
        done = min(size, int(block.nbytes))
        driver.cuMemcpyHtoDAsync(address, block.ctypes.data, done, STREAM)
        while done < size:
            more = min(done, size - done)
            driver.cuMemcpyDtoDAsync(address + done, address, more, STREAM)
            done += more

    def _upload(self, address: int, memory: Any) -> None:
        driver = cuda_python("bindings.driver")
        driver.cuMemcpyHtoDAsync(address, memory.ctypes.data, memory.nbytes, STREAM)
        driver.cuStreamSynchronize(STREAM)  # the memory of the host may be freed now


def _offset(spec: TensorSpec) -> int:
    """Return the offset from a multiple of 256 bytes that gives a copy exactly the alignment of the spec."""
    return spec.alignment if spec.alignment < _ALIGNED else 0


def _cache_size(device: int) -> int:
    """Return the size of the L2 cache in bytes."""
    return max(1 << 20, int(cuda_python("core").Device(device).properties.l2_cache_size))
