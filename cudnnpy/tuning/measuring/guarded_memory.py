"""Device memory with guard pages: a read or write outside an operand or the workspace is a GPU fault.

Each operand and the workspace have a mapping of their own (cuMemAddressReserve, cuMemCreate, cuMemMap), with unmapped addresses
on both sides. An operand is placed flush with the end of its mapping, as far as its alignment allows, or with the beginning.

Results never share memory with another operand (check_pointers in plan.py), and inputs are only read. Therefore operands that
share memory need no separate run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from cudnnpy._arrays.workspace import release_workspace
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy.errors import CudnnError

STREAM = 0  # all work of a measurement goes to the default stream
_WORKSPACE_ALIGNMENT = 16  # bytes, as Plan.execute requires
_POOL_ALIGNMENT = 256  # bytes, of ordinary memory


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
