"""The operands of a measurement: guarded for verified runs, and rotated copies for timed runs.

Timed runs take the copies in turn, so that each starts with a cold L2 cache, as in a network in which other layers run in
between. For tensors of about the size of the cache, the fastest candidate with a warm cache can be 15 % slower with a cold
cache than another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cudnnpy._arrays.workspace import allocate
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._core.layouts import TensorSpec, byte_extent, is_dense
from cudnnpy._launch.steps import aligned_size
from cudnnpy._planning.problem import Problem
from cudnnpy.tuning.measuring.guarded_memory import STREAM, GuardedMemory
from cudnnpy.tuning.measuring.random_operands import drawn, image

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
            self._copy_operands()
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

    @property
    def has_copies(self) -> bool:
        """Whether timed runs use copies, so that the guarded operands are unchanged."""
        return bool(self._copies)

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
        self.filler = (
            parts[2 * len(results)],
            cache,
        )  #: memory that is filled to keep the GPU busy: its address and size
        copies = iter(parts[2 * len(results) + 1 :])
        self._copies = [tuple(next(copies) + _offset(spec) for spec in self._specs) for _ in range(count)]

    def _take(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses of parts of one allocation."""
        address, _, self._owner = allocate(sum(map(aligned_size, sizes)), self._device, STREAM)
        addresses = []
        for size in sizes:
            addresses.append(address)
            address += aligned_size(size)
        return addresses

    # Contents

    def place(self, at_end: bool) -> None:
        """Move the operands flush with the ends or the beginnings of their mappings. The results are undefined afterwards."""
        if at_end != self.is_at_end:
            self.is_at_end = at_end
            self._draw_inputs()

    def reset(self, workspace_size: int, fills: Fills = FIRST) -> None:
        """Fill the guarded results and the workspace before a run; with beta, the first result gets its initial content."""
        driver = cuda_python("bindings.driver")
        for operand in range(self._first_result, len(self._specs)):
            is_drawn = bool(self._problem.beta) and operand == self._first_result
            self._fill(operand, None if is_drawn else fills.results, fills.gaps)
        if workspace_size:
            driver.cuMemsetD8Async(self.workspace(workspace_size), fills.workspace, workspace_size, STREAM)

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
                memory, is_gap = np.empty(byte_extent(spec), np.uint8), image(spec, 0, 1).view(bool)
                driver.cuMemcpyDtoHAsync(memory.ctypes.data, address, memory.nbytes, STREAM)
                driver.cuStreamSynchronize(STREAM)
                have_changed |= bool((memory[is_gap] != fills.gaps).any())
                memory[is_gap] = 0
                self._upload(address, memory)
        return have_changed

    def _draw_inputs(self) -> None:
        """Fill the guarded inputs with random numbers, equal at every placement, and their gaps with NaN or extremes."""
        for operand in range(self._first_result):
            self._fill(operand, None, 0xFF if "float" in self._specs[operand].dtype else 0x80)

    def _copy_operands(self) -> None:
        driver = cuda_python("bindings.driver")
        for copies in self._copies:
            for operand, (spec, address) in enumerate(zip(self._specs, copies, strict=True)):
                if operand < self._first_result:
                    driver.cuMemcpyDtoDAsync(address, self.pointers[operand], byte_extent(spec), STREAM)
                else:
                    driver.cuMemsetD8Async(address, 0, byte_extent(spec), STREAM)

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
