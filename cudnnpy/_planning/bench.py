"""Measure candidates on the GPU: run each, check its result, and time it.

Candidates run on the caller's stream, read the caller's inputs and write to scratch memory, so that no array of the
caller changes. With beta, the scratch memory starts as a copy of the caller's result.

Each result is compared on the device, by cudnnAddTensor and cudnnReduceTensor, with that of the anchor: the first
candidate that runs, which is what prefer="fastest" chooses. The first candidate of plain arithmetic confirms the anchor, or
replaces it. A candidate whose result differs by more than `tolerance` is rejected. Results that are infinite, NaN or all 0,
as those of uninitialized inputs can be, cannot be compared; then random numbers replace the caller's inputs. A candidate
that fails or runs out of memory is rejected with the reason. The workspace never exceeds the limit.

Buffers are rotated so that each timed run starts with a cold L2 cache, as in a network in which other layers run in
between. For tensors of about the size of the cache, the fastest candidate with a warm cache can be 15 % slower than the
fastest with a cold one. The candidates that are about as fast as the fastest are timed again, in alternation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_double, c_float
from statistics import median
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of, numpy_dtype
from cudnnpy._core.layouts import TensorSpec, extent, is_dense
from cudnnpy._memory.workspace import take
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.descriptors import ReduceTensorDescriptor, TensorDescriptor
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle
from cudnnpy.typing import ElementName

# The unit roundoff of each element type: half the distance from 1 to the next representable number.
ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
_GIVE_UP = 3.0  # a candidate that takes more than this many times as long as the best so far is not timed again
_HOPELESS = 20.0  # the same for the first run of a candidate
_ROUND_MS = 2.0  # the approximate duration of one timed round
_ROUNDS = 2
_LEAST, _MOST = 3, 32  # the fewest and the most runs of one round
_COLD = 3  # the rotated buffers together have at least this many times the size of the L2 cache
_MOST_SETS = 16
_QUEUEING_MS = 0.012  # fills keep the GPU busy for this long per run, so that launch overhead on the host is not timed
_FILL_GB_S = 2000.0  # the approximate rate of these fills
_CLOSE = 1.1  # candidates that take up to this many times as long as the fastest are timed again
_FAR = 1.5  # the same for the guess
_FINALISTS, _FINAL_ROUNDS = 6, 9


def tolerance(problem: Problem, tf32: bool) -> float:
    """Return the largest difference from the anchor's result that is accepted, relative to its largest element.

    The sum of L products of numbers with unit roundoff u, accumulated with unit roundoff v, has an error of about
    u + v sqrt(L) relative to the sum of the magnitudes of the products, which is about sqrt(L) times the result. The bound
    is 16 (u + v sqrt(L)), far below the error of a wrong algorithm, which is of the order of 1.
    """
    stored = problem.specs[-1].dtype
    inputs = "tf32" if tf32 and problem.specs[0].dtype == "float32" else problem.specs[0].dtype
    u = max(ROUNDOFF.get(inputs, 0.0), ROUNDOFF.get(stored, 0.0))
    v = ROUNDOFF.get(problem.compute_dtype, 0.0)
    return min(0.25, 16.0 * (u + v * math.sqrt(problem.reduction_length)) + 1e-6)


def milliseconds(candidate: Candidate) -> float:
    """Return the time of a candidate; infinity if it was not measured."""
    return candidate.milliseconds or math.inf


class Bench:
    """The measurement of the candidates of one problem: its scratch memory, the result of the anchor, and the timing."""

    def __init__(
        self,
        problem: Problem,
        options: PlanningOptions,
        handle: Handle,
        inputs: tuple[int, ...],
        result: int | None,
        stream: int,
    ) -> None:
        self.problem, self.options, self.handle, self.stream = problem, options, handle, stream
        self.has_random_inputs = False
        self._owners: list[Any] = []
        device, count = problem.device, problem.results
        self.results = problem.specs[-count:]
        self.start = result if problem.beta else None
        self.inputs = inputs
        if not inputs:
            self._use_random_inputs()
        self.scratch = [take(extent(spec), device, stream) for spec in self.results]
        self._make_buffers()
        self.anchor: list[tuple[tuple[int, int, Any], float]] = []  # the memory of each result, and its largest element
        self.unconfirmed: Candidate | None = None  # that of the anchor, until a plain one has the same result
        self.workspace: tuple[int, int, Any] = (0, 0, None)
        self.best = math.inf

    def _use_random_inputs(self) -> None:
        """Replace the caller's arrays by random numbers."""
        operands = self.problem.specs
        self.inputs = tuple(self._noise(spec) for spec in operands[: len(operands) - len(self.results)])
        self.start = self._noise(self.results[0]) if self.problem.beta else None
        self.has_random_inputs = True

    def _noise(self, spec: Any) -> int:
        """Return memory with random numbers between -1 and 1, or from -4 to 4 for an integer type."""
        import numpy as np
        from cuda.bindings import driver

        memory = take(extent(spec), self.problem.device, self.stream)
        dtype = dtype_of(spec.dtype)
        numbers = np.random.default_rng(len(self._owners)).uniform(-1.0, 1.0, 1 << 20)  # a seed for each tensor
        block = (numbers if "float" in dtype.name else np.rint(4 * numbers)).astype(numpy_dtype(dtype.name))
        for at in range(0, memory[1], block.nbytes):
            count = min(block.nbytes, memory[1] - at)
            driver.cuMemcpyHtoDAsync(memory[0] + at, block.ctypes.data, count, self.stream)
        driver.cuStreamSynchronize(self.stream)
        self._owners.append(memory)
        return memory[0]

    def _reset(self) -> None:
        """Fill scratch memory with NaN, which reveals elements that are not written, or with the caller's result for beta."""
        from cuda.bindings import driver

        for spec, (address, size, _) in zip(self.results, self.scratch, strict=True):
            if self.start is not None:
                driver.cuMemcpyDtoDAsync(address, self.start, size, self.stream)
            else:
                # Memory between the elements of a result with gaps is compared too, and must not be NaN.
                driver.cuMemsetD8Async(address, 0xFF if is_dense(spec) else 0, size, self.stream)

    def _make_buffers(self) -> None:
        """Make copies of the inputs, and results, that are rotated so that each run starts with a cold L2 cache."""
        from cuda.bindings import driver

        device, stream, cache = self.problem.device, self.stream, _cache_size(self.problem.device)
        sizes = [extent(spec) for spec in self.problem.specs]
        count = min(max(1, -(-_COLD * cache // sum(sizes))), _MOST_SETS)
        self.filler = take(cache, device, stream)
        self.sets = [(*self.inputs, *(memory[0] for memory in self.scratch))]
        self._copies = [[take(size, device, stream) for size in sizes] for _ in range(count - 1)]
        for copies in self._copies:
            self.sets.append(tuple(memory[0] for memory in copies))
            for memory, source in zip(copies, self.inputs, strict=False):
                driver.cuMemcpyDtoDAsync(memory[0], source, memory[1], stream)
            for memory in copies[len(self.inputs) :]:
                driver.cuMemsetD8Async(memory[0], 0, memory[1], stream)

    def measure(self, candidate: Candidate) -> bool:
        """Run, check and time a planned candidate; return False, with the reason in `refused`, if it is rejected."""
        try:
            launches = self._run_first(candidate)
            if self.anchor:
                candidate.refused = self._compare()
                if candidate.is_plain:
                    self._confirm(candidate)
            else:
                launches = self._anchor(candidate, launches)
            assert candidate.milliseconds is not None
            if not candidate.refused and candidate.milliseconds < _HOPELESS * self.best:
                candidate.milliseconds = self._time(launches)
        except MemoryError as error:
            candidate.refused = f"out of memory: {error}"
        except CudnnError as error:
            candidate.refused = f"failed when run: {error}"
        if candidate.refused:
            candidate.executable = None
            return False
        self.best = min(self.best, milliseconds(candidate))
        return True

    def _anchor(self, candidate: Candidate, launches: list[Callable[[], int]]) -> list[Callable[[], int]]:
        """Make the result of a first candidate the anchor, if it can be compared; return its launches."""
        largest = self._all_largest()
        if not self.has_random_inputs and not all(0 < number < math.inf for number in largest):
            self._use_random_inputs()
            self._make_buffers()
            launches = self._run_first(candidate)
            largest = self._all_largest()
        self._become_anchor(candidate, largest)
        return launches

    def _confirm(self, candidate: Candidate) -> None:
        """Let a plain candidate, which was compared, confirm the anchor of one that is not plain, or replace it."""
        unsure = self.unconfirmed
        if unsure is None:
            return
        self.unconfirmed = None
        if candidate.refused:
            reason = candidate.refused
            self._run_first(candidate)  # the comparison has overwritten the result
            self._become_anchor(candidate, self._all_largest())
            if candidate.refused:
                self.unconfirmed = unsure
            else:
                unsure.refused, unsure.executable, self.best = reason, None, math.inf

    def _run_first(self, candidate: Candidate) -> list[Callable[[], int]]:
        """Run a candidate once, into scratch memory, and return its launches."""
        launches = self._bind(candidate)
        self._reset()
        candidate.milliseconds = self._first(launches[0])
        return launches

    def _bind(self, candidate: Candidate) -> list[Callable[[], int]]:
        executable = candidate.executable
        assert executable is not None
        if executable.workspace_size > self.workspace[1]:
            self.workspace = (0, 0, None)  # freed before the larger one is allocated
            self.workspace = take(executable.workspace_size, self.problem.device, self.stream)
        return [executable.bind(self.handle, pointers, self.workspace[0]) for pointers in self.sets]

    def _compare(self) -> str:
        """Return why a result in scratch memory is wrong; "" if all are right."""
        share = tolerance(self.problem, self.options.tf32)
        for spec, memory, (right, largest) in zip(self.results, self.scratch, self.anchor, strict=True):
            if not math.isfinite(largest):  # the result of a graph, which cannot be compared
                continue
            difference = self._largest(spec, memory, minus=right[0])
            allowed = share * largest + (spec.dtype == "int8")  # integers may be rounded up or down
            if not difference <= allowed:
                return f"wrong result: off by {difference:.3g} from another candidate, {allowed:.3g} is allowed"
        return ""

    def _all_largest(self) -> list[float]:
        """Return the largest absolute element of each result in scratch memory."""
        return [self._largest(spec, memory) for spec, memory in zip(self.results, self.scratch, strict=True)]

    def _become_anchor(self, candidate: Candidate, largest: list[float]) -> None:
        """Keep the results in scratch memory as the anchor; reject the candidate if they cannot be it."""
        if self.problem.is_finite and not all(map(math.isfinite, largest)):
            candidate.refused = "wrong result: infinite or no number for random numbers"
            return
        candidate.refused = ""
        self._keep(largest)
        self.unconfirmed = None if candidate.is_plain else candidate

    def _keep(self, largest: list[float]) -> None:
        from cuda.bindings import driver

        self.anchor = []
        for memory, number in zip(self.scratch, largest, strict=True):
            kept = take(memory[1], self.problem.device, self.stream)
            driver.cuMemcpyDtoDAsync(kept[0], memory[0], memory[1], self.stream)
            self.anchor.append((kept, number))

    def _largest(self, spec: TensorSpec, memory: tuple[int, int, Any], minus: int | None = None) -> float:
        """Return the largest absolute element of a result, or of its difference from another one. NaN propagates.

        The memory is overwritten: cudnnAddTensor subtracts in place.
        """
        (address, size, _), dtype = memory, spec.dtype
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            return self._largest_by_numpy(dtype, address, size, minus)
        double = dtype == "float64"
        number = c_double if double else c_float
        count = size // dtype_of(dtype).itemsize
        flat = TensorDescriptor((1, 1, 1, count), dtype)
        zero = number(0.0)
        one = number(1.0)
        if minus is not None:
            less = number(-1.0)
            raw.call("cudnnAddTensor", self.handle, byref(less), flat, minus, byref(one), flat, address)
        wide = None
        if dtype == "bfloat16":  # cudnnReduceTensor does not support it
            wide = take(4 * count, self.problem.device, self.stream)
            floats = TensorDescriptor((1, 1, 1, count), "float32")
            raw.call("cudnnTransformTensor", self.handle, byref(one), flat, address, byref(zero), floats, wide[0])
            flat, address, dtype = floats, wide[0], "float32"
        largest = ReduceTensorDescriptor("amax", compute_dtype="float64" if double else "float32", propagate_nan=True)
        return _reduce(self.handle, largest, flat, address, dtype, self.problem.device, self.stream)

    def _largest_by_numpy(self, dtype: str, address: int, size: int, minus: int | None) -> float:
        """Return the same for integers and float8, which cudnnAddTensor and cudnnReduceTensor do not support."""
        import numpy as np
        from cuda.bindings import driver

        def read(at: int) -> Any:
            values = np.empty(size // dtype_of(dtype).itemsize, numpy_dtype(dtype))
            driver.cuMemcpyDtoHAsync(values.ctypes.data, at, size, self.stream)
            driver.cuStreamSynchronize(self.stream)
            return values.astype(np.float64)

        found = read(address) if minus is None else read(address) - read(minus)
        return float(np.abs(found).max())

    def finalists(self, ran: list[Candidate], guess: Candidate | None) -> list[Candidate]:
        """Return the guess and the candidates that are about as fast as the fastest.

        They are timed again, in alternation, since clock rates drift; the guess only if it is not much slower.
        """
        ranked = sorted(ran, key=milliseconds)
        close = [c for c in ranked[:_FINALISTS] if milliseconds(c) <= _CLOSE * milliseconds(ranked[0])]
        if guess in ran and guess not in close and milliseconds(guess) <= _FAR * milliseconds(ranked[0]):
            close.append(guess)
        if len(close) > 1:
            with suppress(MemoryError, CudnnError):  # then the times from before stand
                self._time_in_turns(close)
        return close

    def _time_in_turns(self, close: list[Candidate]) -> None:
        times: dict[str, list[float]] = {candidate.name: [] for candidate in close}
        # The largest workspace is bound first, so that the workspace grows once.
        needs = sorted(close, key=lambda candidate: -(candidate.workspace_size or 0))
        launches = {candidate.name: self._bind(candidate) for candidate in needs}
        for _ in range(_FINAL_ROUNDS):
            for candidate in close:
                times[candidate.name].append(self._run(launches[candidate.name], self._count(candidate.milliseconds)))
        for candidate in close:
            candidate.milliseconds = median(times[candidate.name])

    def _first(self, launch: Callable[[], int]) -> float:
        """Return the milliseconds of a first run on the GPU, without the time in which the host loads code."""
        queued: list[float] = []

        def timed() -> int:
            begin = time.perf_counter()
            status = launch()
            queued.append((time.perf_counter() - begin) * 1e3)
            return status

        whole = self._run([timed], 1)
        return max(whole - queued[0], 0.0)

    def _time(self, launches: list[Callable[[], int]]) -> float:
        """Return the milliseconds of one run: the minimum over a few rounds."""
        once = self._run(launches, _LEAST)
        if once > _GIVE_UP * self.best:
            return once
        return min(self._run(launches, self._count(once)) for _ in range(_ROUNDS))

    def _count(self, once: float | None) -> int:
        return max(_LEAST, min(_MOST, round(_ROUND_MS / max(once or 0.0, 1e-3))))

    def _run(self, launches: list[Callable[[], int]], count: int) -> float:
        """Return the mean milliseconds of `count` runs on rotated buffers, measured between two events."""
        from cuda.bindings import driver

        begin, end = (driver.cuEventCreate(0)[1] for _ in range(2))
        try:
            for _ in range(math.ceil(count * _QUEUEING_MS * _FILL_GB_S * 1e6 / self.filler[1])):
                driver.cuMemsetD8Async(self.filler[0], 0, self.filler[1], self.stream)
            driver.cuEventRecord(begin, self.stream)
            for number in range(count):
                raw.check(launches[number % len(launches)](), "timed run")
            driver.cuEventRecord(end, self.stream)
            self._synchronize()
            return float(driver.cuEventElapsedTime(begin, end)[1]) / count
        finally:
            driver.cuEventDestroy(begin)
            driver.cuEventDestroy(end)

    def _synchronize(self) -> None:
        from cuda.bindings import driver

        (status,) = driver.cuStreamSynchronize(self.stream)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CudnnError(f"the GPU reported {status.name} while a candidate ran")


def _cache_size(device: int) -> int:
    """Return the size of the L2 cache in bytes."""
    from cuda.core import Device

    return max(1 << 20, int(Device(device).properties.l2_cache_size))


def _reduce(
    handle: Handle,
    how: ReduceTensorDescriptor,
    flat: TensorDescriptor,
    address: int,
    dtype: ElementName,
    device: int,
    stream: int,
) -> float:
    """Reduce a whole tensor to one number by cudnnReduceTensor."""
    from ctypes import c_size_t

    import numpy as np
    from cuda.bindings import driver

    one = TensorDescriptor((1, 1, 1, 1), dtype)
    size = c_size_t()
    raw.call("cudnnGetReductionWorkspaceSize", handle, how, flat, one, byref(size))
    number = c_double if dtype == "float64" else c_float
    scale, zero = number(1.0), number(0.0)
    memory = take(size.value + 256, device, stream)
    space = memory[0] + 256
    raw.call(
        "cudnnReduceTensor", handle, how, None, 0, space, size, byref(scale), flat, address, byref(zero), one, memory[0]
    )
    host = np.zeros(1, numpy_dtype(dtype))
    driver.cuMemcpyDtoHAsync(host.ctypes.data, memory[0], host.nbytes, stream)
    driver.cuStreamSynchronize(stream)
    return abs(float(host[0]))
