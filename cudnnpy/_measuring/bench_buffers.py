"""The device memory in which candidates are measured: taken once for a problem, and the workspace as it is needed.

Candidates read the caller's inputs, or copies of them, and write to scratch memory, so that no array of the caller changes.
Buffers are rotated so that each timed run starts with a cold L2 cache, as in a network in which other layers run in
between. For tensors of about the size of the cache, the fastest candidate with a warm cache can be 15 % slower than the
fastest with a cold one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, extent, is_dense
from cudnnpy._memory.workspace import take
from cudnnpy._planning.problem import Problem
from cudnnpy._runtime.executables import rounded

_COLD = 3  # the rotated buffers together have at least this many times the size of the L2 cache
_MOST_SETS = 16
_LEAST_FILLER = 1 << 20  # bytes; the filler where memory is scarce
_NOISE = 1 << 20  # the number of random numbers, which repeat in memory


class TimingMemory:
    """Scratch memory for the results and a second copy of them, rotated copies of all operands, and the workspace.

    Raises MemoryError if there is no memory for the results. Without memory for copies, or if `rotates` is false, all runs
    use the same addresses.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: tuple[int, ...],
        result: int | None,
        limit: int,
        stream: int,
        rotates: bool = True,
    ) -> None:
        self._problem, self._stream, self._limit, self._rotates = problem, stream, limit, rotates
        self.results = problem.specs[-problem.results :]
        self.has_random_inputs = False
        self._owners: list[Any] = []
        self.inputs, self.start = inputs, result if problem.beta else None  #: `start`: what beta * out reads
        self._workspace: tuple[int, int, Any] = (0, 0, None)
        try:
            if not inputs:
                self.use_random_inputs()
            self._allocate()
        except MemoryError:
            self.close()  # the traceback must not keep it alive
            raise
        self.copy_inputs()

    def close(self) -> None:
        """Free the memory, in the order of the stream."""
        self._owners.clear()
        self._workspace = (0, 0, None)

    def _allocate(self) -> None:
        cache, sizes = _cache_size(self._problem.device), [extent(spec) for spec in self._problem.specs]
        count = min(max(1, -(-_COLD * cache // sum(sizes))), _MOST_SETS) - 1
        results = sizes[-len(self.results) :]
        if not self._rotates:
            count, cache = 0, min(cache, _LEAST_FILLER)
        try:
            parts = self._take([*results, *results, cache, *(sizes * count)])
        except MemoryError:
            count, cache = 0, min(cache, _LEAST_FILLER)
            parts = self._take([*results, *results, cache])
        self.scratch, self.kept = parts[: len(results)], parts[len(results) : 2 * len(results)]
        at = 2 * len(results)
        self.filler = parts[at], cache  #: memory that is filled to keep the GPU busy: its address and size
        copies = parts[at + 1 :]
        self._copies = [tuple(copies[k * len(sizes) : (k + 1) * len(sizes)]) for k in range(count)]

    def _take(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses of parts of one allocation."""
        address, _, owner = take(sum(map(rounded, sizes)), self._problem.device, self._stream)
        self._owners.append(owner)
        addresses = []
        for size in sizes:
            addresses.append(address)
            address += rounded(size)
        return addresses

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The addresses of the operands of runs in turn: the inputs and scratch memory, then copies."""
        return [(*self.inputs, *self.scratch), *self._copies]

    def copy_inputs(self) -> None:
        """Copy the inputs to the rotated buffers, and fill the results there with 0."""
        from cuda.bindings import driver

        sizes = [extent(spec) for spec in self._problem.specs]
        for copies in self._copies:
            for at, (address, size) in enumerate(zip(copies, sizes, strict=True)):
                if at < len(self.inputs):
                    driver.cuMemcpyDtoDAsync(address, self.inputs[at], size, self._stream)
                else:
                    driver.cuMemsetD8Async(address, 0, size, self._stream)

    def use_random_inputs(self) -> None:
        """Replace the caller's arrays by random numbers. `copy_inputs` copies them."""
        specs = self._problem.specs[: -len(self.results)]
        made = (*specs, self.results[0]) if self._problem.beta else specs
        addresses = self._take([extent(spec) for spec in made])
        for seed, (spec, address) in enumerate(zip(made, addresses, strict=True)):
            self._fill_with_noise(spec, address, seed)
        self.inputs = tuple(addresses[: len(specs)])
        self.start = addresses[-1] if self._problem.beta else None
        self.has_random_inputs = True

    def _fill_with_noise(self, spec: TensorSpec, address: int, seed: int) -> None:
        """Fill memory with random numbers between -1 and 1, or from -4 to 4 for an integer type."""
        import numpy as np
        from cuda.bindings import driver

        dtype, size = dtype_of(spec.dtype), extent(spec)
        numbers = np.random.default_rng(seed).uniform(-1.0, 1.0, min(_NOISE, size // dtype.itemsize))
        block = (numbers if "float" in dtype.name else np.rint(4 * numbers)).astype(numpy_dtype(dtype.name))
        for at in range(0, size, block.nbytes):
            driver.cuMemcpyHtoDAsync(address + at, block.ctypes.data, min(block.nbytes, size - at), self._stream)
        driver.cuStreamSynchronize(self._stream)

    def reset(self) -> None:
        """Fill scratch memory with NaN, which reveals elements that are not written, or with the caller's result for beta."""
        from cuda.bindings import driver

        for spec, address in zip(self.results, self.scratch, strict=True):
            if self.start is not None:
                driver.cuMemcpyDtoDAsync(address, self.start, extent(spec), self._stream)
            else:
                # Memory between the elements of a result with gaps is compared too, and must not be NaN.
                driver.cuMemsetD8Async(address, 0xFF if is_dense(spec) else 0, extent(spec), self._stream)

    def keep(self) -> None:
        """Copy the results in scratch memory to `kept`."""
        from cuda.bindings import driver

        for spec, address, to in zip(self.results, self.scratch, self.kept, strict=True):
            driver.cuMemcpyDtoDAsync(to, address, extent(spec), self._stream)

    def workspace(self, size: int) -> int:
        """Return the address of the workspace, which grows to at least `size` bytes. Raises MemoryError."""
        if size > self._workspace[1]:
            room = max(size, min(2 * self._workspace[1], self._limit))  # so that it grows a few times only
            self._workspace = (0, 0, None)  # freed before the larger one is allocated
            try:
                self._workspace = take(room, self._problem.device, self._stream)
            except MemoryError:
                self._workspace = take(size, self._problem.device, self._stream)
        return self._workspace[0]


def _cache_size(device: int) -> int:
    """Return the size of the L2 cache in bytes."""
    from cuda.core import Device

    return max(1 << 20, int(Device(device).properties.l2_cache_size))
