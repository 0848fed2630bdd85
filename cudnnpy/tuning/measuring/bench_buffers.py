"""The device memory of a measurement: guarded operands for verified runs, and rotated copies for timed runs.

Timed runs take the copies in turn, so that each starts with a cold L2 cache, as in a network in which other layers run in
between. For tensors of about the size of the cache, the fastest candidate with a warm cache can be 15 % slower with a cold
cache than another one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from cudnnpy._arrays.workspace import allocate
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense
from cudnnpy._launch.steps import aligned_size
from cudnnpy._planning.problem import Problem
from cudnnpy.tuning.measuring.guarded_memory import STREAM, GuardedMemory
from cudnnpy.tuning.measuring.random_operands import have_gaps_changed, image, numbers, without_gaps

_COLD = 3  # the rotated buffers together have at least this many times the size of the L2 cache
_MAX_SETS = 16
_MIN_FILLER = 1 << 20  # bytes; the filler where memory is scarce
_ALIGNED = 16  # bytes; an operand with this alignment or more is timed at a multiple of 256


class Fills(NamedTuple):
    """The initial bytes of a verified run: in results without beta, in the workspace, and in the gaps of results."""

    results: int = 0xFF  # NaN, which reveals elements that are not written
    workspace: int = 0xFF
    gaps: int = 0  # compared like elements


FIRST = Fills()
SECOND = Fills(0x7B, 0x7B, 0x7B)  # large finite numbers of every data type


class BenchBuffers:
    """The operands of one problem, the baseline's results, and the workspace.

    With `times` false there is one copy. Without memory for copies, timed runs take the guarded operands. Otherwise only
    candidates use guarded operands, so that no other function can be the cause of an access outside. Raises MemoryError without
    memory for the operands.
    """

    def __init__(self, problem: Problem, limit: int = sys.maxsize, *, times: bool = True) -> None:
        self._problem = problem
        self.results = problem.specs[-problem.results :]
        self.is_at_end = True  #: whether the operands are flush with the ends of their mappings
        self._owners: list[Any] = []
        self._images: dict[int, Any] = {}  # the bytes of operands with gaps, by operand index
        self._guarded = GuardedMemory(problem.specs, problem.device, limit=limit)
        try:
            self._allocate(times)
            self._draw()
        except BaseException:
            self.close()  # the traceback refers to the memory
            raise

    def close(self) -> None:
        """Free the memory."""
        self._guarded.close()
        self._owners.clear()

    # Addresses

    @property
    def pointers(self) -> tuple[int, ...]:
        """The addresses of the guarded operands."""
        return self._guarded.addresses(self.is_at_end)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The addresses at which the host reads inputs: in ordinary memory, if there is a copy."""
        return self.timing_sets[0][: -len(self.results)]

    @property
    def scratch(self) -> tuple[int, ...]:
        """The addresses of the guarded results."""
        return self.pointers[-len(self.results) :]

    @property
    def start(self) -> int | None:
        """The address of the result's initial content, which beta multiplies; None without beta."""
        return self._templates[0] if self._problem.beta else None

    @property
    def timing_sets(self) -> list[tuple[int, ...]]:
        """The addresses of the operands of timed runs in turn."""
        return self._copies or [self.pointers]

    @property
    def has_copies(self) -> bool:
        """Whether timed runs use copies, so that the guarded operands are unchanged."""
        return bool(self._copies)

    def workspace(self, size: int) -> int:
        """Return the address of the guarded workspace. Raises MemoryError."""
        return self._guarded.workspace(size, self.is_at_end)

    def timing_workspace(self, size: int) -> int:
        """Return the address of the workspace of timed runs. Raises MemoryError."""
        return self._guarded.aligned_workspace(size)

    def _allocate(self, times: bool) -> None:
        specs, results = self._problem.specs, [byte_extent(spec) for spec in self.results]
        needs_template = [not is_dense(spec) or (not at and self._problem.beta) for at, spec in enumerate(self.results)]
        templates = [size for size, is_needed in zip(results, needs_template, strict=True) if is_needed]
        cache = _cache_size(self._problem.device)
        sizes = [byte_extent(spec) + _offset(spec) for spec in specs]
        count = min(max(1, -(-_COLD * cache // sum(sizes))), _MAX_SETS)
        if not times:
            count, cache = 1, min(cache, _MIN_FILLER)
        fixed = [*results, *results, *templates]
        try:
            parts = self._take([*fixed, cache, *(sizes * count)])
        except MemoryError:
            count, cache = 0, min(cache, _MIN_FILLER)
            parts = self._take([*fixed, cache])
        self.kept = parts[: len(results)]  #: the addresses of the baseline's results
        self.compared = parts[len(results) : 2 * len(results)]  #: the addresses of results while they are compared
        given = iter(parts[2 * len(results) : len(fixed)])
        self._templates = [next(given) if is_needed else None for is_needed in needs_template]
        self.filler = parts[len(fixed)], cache  #: memory that is filled to keep the GPU busy: its address and size
        copies = iter(parts[len(fixed) + 1 :])
        self._copies = [tuple(next(copies) + _offset(spec) for spec in specs) for _ in range(count)]

    def _take(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses of parts of one allocation."""
        address, _, owner = allocate(sum(map(aligned_size, sizes)), self._problem.device, STREAM)
        self._owners.append(owner)
        addresses = []
        for size in sizes:
            addresses.append(address)
            address += aligned_size(size)
        return addresses

    # Contents

    def _draw(self) -> None:
        """Fill the inputs, the result's initial content for beta, and the copies."""
        driver = cuda_python("bindings.driver")
        specs = self._problem.specs
        self._draw_inputs()
        for at, (spec, address) in enumerate(zip(self.results, self._templates, strict=True)):
            if address is not None and is_dense(spec):
                self._repeat(spec, address, self._start_elements())
            elif address is not None:
                self._upload(address, self._result_image(at, FIRST))
        for copies in self._copies:
            for at, (spec, address) in enumerate(zip(specs, copies, strict=True)):
                if at < len(specs) - len(self.results):
                    driver.cuMemcpyDtoDAsync(address, self.pointers[at], byte_extent(spec), STREAM)
                else:
                    driver.cuMemsetD8Async(address, 0, byte_extent(spec), STREAM)

    def place(self, at_end: bool) -> None:
        """Move the operands flush with the ends or the beginnings of their mappings. The results are undefined afterwards."""
        if at_end != self.is_at_end:
            self.is_at_end = at_end
            self._draw_inputs()

    def reset(self, workspace_size: int, fills: Fills = FIRST) -> None:
        """Fill the guarded results and the workspace before a run; with beta, the first result gets its initial content."""
        driver = cuda_python("bindings.driver")
        for at, (spec, address) in enumerate(zip(self.results, self.scratch, strict=True)):
            template = self._templates[at]
            if template is None:
                driver.cuMemsetD8Async(address, fills.results, byte_extent(spec), STREAM)
            elif is_dense(spec) or fills == FIRST:
                driver.cuMemcpyDtoDAsync(address, template, byte_extent(spec), STREAM)
            else:
                self._upload(address, self._result_image(at, fills))
        if workspace_size:
            driver.cuMemsetD8Async(self.workspace(workspace_size), fills.workspace, workspace_size, STREAM)

    def keep(self) -> None:
        """Copy the guarded results to the baseline."""
        self.copy_results(self.kept)

    def copy_results(self, to: Sequence[int]) -> None:
        """Copy the guarded results to other addresses."""
        driver = cuda_python("bindings.driver")
        for spec, source, address in zip(self.results, self.scratch, to, strict=True):
            driver.cuMemcpyDtoDAsync(address, source, byte_extent(spec), STREAM)

    def have_gaps_changed(self, fills: Fills = SECOND) -> bool:
        """Return whether a run has changed the gaps of a result. The gaps become 0, since results are compared with gaps."""
        import numpy as np

        driver = cuda_python("bindings.driver")
        have_changed = False
        for spec, address in zip(self.results, self.scratch, strict=True):
            if not is_dense(spec):
                memory = np.empty(byte_extent(spec), np.uint8)
                driver.cuMemcpyDtoHAsync(memory.ctypes.data, address, memory.nbytes, STREAM)
                driver.cuStreamSynchronize(STREAM)
                have_changed |= have_gaps_changed(memory, spec, fills.gaps)
                self._upload(address, without_gaps(memory, spec))
        return have_changed

    def _draw_inputs(self) -> None:
        """Fill the guarded inputs with random numbers, equal at every placement, and their gaps with NaN or extremes."""
        ranges = self._problem.value_ranges
        inputs = self._problem.specs[: -len(self.results)]
        for at, (spec, address) in enumerate(zip(inputs, self.pointers, strict=False)):
            drawn = numbers(spec.dtype, at, ranges[at])
            if is_dense(spec):
                self._repeat(spec, address, drawn)
                continue
            if at not in self._images:
                self._images[at] = image(spec, drawn, 0xFF if "float" in spec.dtype else 0x80)
            self._upload(address, self._images[at])

    def _start_elements(self) -> Any:
        at = len(self._problem.specs) - len(self.results)
        return numbers(self.results[0].dtype, at, self._problem.value_ranges[at])

    def _result_image(self, at: int, fills: Fills) -> Any:
        elements = self._start_elements() if self._problem.beta and not at else fills.results
        return image(self.results[at], elements, fills.gaps)

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
