"""Candidates measured on the GPU: each is run, its result checked, and timed.

Candidates run on the caller's stream, read the caller's inputs, and write to scratch memory: nothing of the caller's is
changed, and with beta the scratch starts as a copy of the caller's result. Each result is compared with that of the
first candidate that runs (the anchor; selection.py puts one first that does plain arithmetic), on the device, by cuDNN's
own cudnnAddTensor and cudnnReduceTensor; one that is off by more than `tolerance` is refused. Nothing can be told from
results that are infinite or no numbers, as a first call on empty memory has, or all 0: then random numbers stand in for
the caller's. A candidate that fails, or whose memory cannot be had, is refused with its reason. Never more than the limit
is allocated for workspace.

Runs are timed on copies of the tensors that take turns, so that none is in the L2 cache when its turn comes, as in a
network whose other layers ran in between: on tensors of about the cache's size the fastest candidate of a warm cache can
be 15 % slower than the best of a cold one. The few that come close to the fastest are timed again, in turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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

# unit roundoff of what is multiplied or stored: half the distance from 1 to the next number
ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
_GIVE_UP = 3.0  # a candidate this many times slower than the best so far is not measured further
_HOPELESS = 20.0  # the same for its first run
_ROUND_MS = 2.0  # about how long one timed round lasts
_ROUNDS = 2
_LEAST, _MOST = 3, 32  # timed runs
_COLD = 3  # tensors that take turns are this many times the L2 cache together
_MOST_SETS = 16
_QUEUEING_MS = 0.012  # for which the GPU is kept busy for each run, so that the host's queueing is not measured
_FILL_GB_S = 2000.0  # at which it fills memory, about
_CLOSE = 1.1  # candidates within this of the fastest are timed again, in turns
_FINALISTS, _FINAL_ROUNDS = 6, 9


def tolerance(problem: Problem, tf32: bool) -> float:
    """How far a right result may be from the anchor's, as a share of the largest element of the result.

    A sum of L products of numbers rounded to roundoff u, accumulated at roundoff v, errs by about u + v sqrt(L) of
    the sum of the products' sizes, which is about sqrt(L) times the result; 16 times that is far below what a wrong
    algorithm gives, which is of the order of 1.
    """
    stored = problem.specs[-1].dtype
    inputs = "tf32" if tf32 and problem.specs[0].dtype == "float32" else problem.specs[0].dtype
    u = max(ROUNDOFF.get(inputs, 0.0), ROUNDOFF.get(stored, 0.0))
    v = ROUNDOFF.get(problem.compute_dtype, 0.0)
    return min(0.25, 16.0 * (u + v * math.sqrt(problem.reduction_length)) + 1e-6)


def milliseconds(candidate: Candidate) -> float:
    """A candidate's time; infinity where it has none."""
    return candidate.milliseconds or math.inf


class Bench:
    """Scratch memory, the anchor's result, and the clock, for one problem."""

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
        self.is_made_up = False
        self._owners: list[Any] = []
        device, count = problem.device, problem.results
        self.results = problem.specs[-count:]
        self.start = result if problem.beta else None
        self.inputs = inputs
        if not inputs:
            self._make_up()
        self.scratch = [take(extent(spec), device, stream) for spec in self.results]
        self._take_turns()
        self.anchor: list[tuple[tuple[int, int, Any], float]] = []  # each result's memory, and its largest element
        self.workspace: tuple[int, int, Any] = (0, 0, None)
        self.best = math.inf

    def _make_up(self) -> None:
        """Random numbers in place of the caller's arrays."""
        operands = self.problem.specs
        self.inputs = tuple(self._noise(spec) for spec in operands[: len(operands) - len(self.results)])
        self.start = self._noise(self.results[0]) if self.problem.beta else None
        self.is_made_up = True

    def _noise(self, spec: Any) -> int:
        """Memory with random numbers between -1 and 1, or small whole ones where the type has no others."""
        import numpy as np
        from cuda.bindings import driver

        memory = take(extent(spec), self.problem.device, self.stream)
        dtype = dtype_of(spec.dtype)
        numbers = np.random.default_rng(len(self._owners)).uniform(-1.0, 1.0, 1 << 20)  # each tensor has others
        block = (numbers if "float" in dtype.name else np.rint(4 * numbers)).astype(numpy_dtype(dtype.name))
        for at in range(0, memory[1], block.nbytes):
            count = min(block.nbytes, memory[1] - at)
            driver.cuMemcpyHtoDAsync(memory[0] + at, block.ctypes.data, count, self.stream)
        driver.cuStreamSynchronize(self.stream)
        self._owners.append(memory)
        return memory[0]

    def _reset(self) -> None:
        """NaN everywhere (so that an element that is not written shows), or the caller's result where it counts."""
        from cuda.bindings import driver

        for spec, (address, size, _) in zip(self.results, self.scratch, strict=True):
            if self.start is not None:
                driver.cuMemcpyDtoDAsync(address, self.start, size, self.stream)
            else:
                # what lies between the elements of a result with gaps is compared too, and must not be NaN
                driver.cuMemsetD8Async(address, 0xFF if is_dense(spec) else 0, size, self.stream)

    def _take_turns(self) -> None:
        """Copies of the inputs, and results, whose turns come after the cache has forgotten them."""
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
        """Runs, checks and times a planned candidate; False, with the reason in `refused`, if it is of no use."""
        try:
            launches = self._run_first(candidate)
            if self.anchor:
                candidate.refused = self._compare()
            else:
                largest = self._all_largest()
                if not self.is_made_up and not all(0 < number < math.inf for number in largest):
                    self._make_up()
                    self._take_turns()
                    launches = self._run_first(candidate)
                    largest = self._all_largest()
                candidate.refused = self._become_anchor(largest)
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

    def _run_first(self, candidate: Candidate) -> list[Callable[[], int]]:
        """Runs a candidate once, into scratch; its launches, for more."""
        launches = self._bind(candidate)
        self._reset()
        candidate.milliseconds = self._first(launches[0])
        return launches

    def _bind(self, candidate: Candidate) -> list[Callable[[], int]]:
        executable = candidate.executable
        assert executable is not None
        if executable.workspace_size > self.workspace[1]:
            self.workspace = (0, 0, None)  # given back before more is taken
            self.workspace = take(executable.workspace_size, self.problem.device, self.stream)
        return [executable.bind(self.handle, pointers, self.workspace[0]) for pointers in self.sets]

    def _compare(self) -> str:
        """Why a result in scratch is wrong, "" if all are right."""
        share = tolerance(self.problem, self.options.tf32)
        for spec, memory, (right, largest) in zip(self.results, self.scratch, self.anchor, strict=True):
            if not math.isfinite(largest):  # a graph's, whose operations may make what cannot be compared
                continue
            difference = self._largest(spec, memory, minus=right[0])
            allowed = share * largest + (spec.dtype == "int8")  # whole numbers, which may be rounded up or down
            if not difference <= allowed:
                return f"wrong result: off by {difference:.3g} from the first plain candidate, {allowed:.3g} is allowed"
        return ""

    def _all_largest(self) -> list[float]:
        """The largest absolute element of each result in scratch."""
        return [self._largest(spec, memory) for spec, memory in zip(self.results, self.scratch, strict=True)]

    def _become_anchor(self, largest: list[float]) -> str:
        """Keeps the results in scratch for others to be compared with; why that cannot be, "" if it can."""
        if self.problem.is_finite and not all(map(math.isfinite, largest)):
            return "wrong result: infinite or no number for random numbers"
        self._keep(largest)
        return ""

    def _keep(self, largest: list[float]) -> None:
        from cuda.bindings import driver

        for memory, number in zip(self.scratch, largest, strict=True):
            kept = take(memory[1], self.problem.device, self.stream)
            driver.cuMemcpyDtoDAsync(kept[0], memory[0], memory[1], self.stream)
            self.anchor.append((kept, number))

    def _largest(self, spec: TensorSpec, memory: tuple[int, int, Any], minus: int | None = None) -> float:
        """The largest absolute element, of a result's memory or of its difference from another. NaN propagates.

        The memory is used up: cuDNN subtracts in place.
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
        if dtype == "bfloat16":  # which cudnnReduceTensor does not take
            wide = take(4 * count, self.problem.device, self.stream)
            floats = TensorDescriptor((1, 1, 1, count), "float32")
            raw.call("cudnnTransformTensor", self.handle, byref(one), flat, address, byref(zero), floats, wide[0])
            flat, address, dtype = floats, wide[0], "float32"
        largest = ReduceTensorDescriptor("amax", compute_dtype="float64" if double else "float32", propagate_nan=True)
        return _reduce(self.handle, largest, flat, address, dtype, self.problem.device, self.stream)

    def _largest_by_numpy(self, dtype: str, address: int, size: int, minus: int | None) -> float:
        """The same of integers and float8, which the v7 functions do not add and reduce."""
        import numpy as np
        from cuda.bindings import driver

        def read(at: int) -> Any:
            values = np.empty(size // dtype_of(dtype).itemsize, numpy_dtype(dtype))
            driver.cuMemcpyDtoHAsync(values.ctypes.data, at, size, self.stream)
            driver.cuStreamSynchronize(self.stream)
            return values.astype(np.float64)

        found = read(address) if minus is None else read(address) - read(minus)
        return float(np.abs(found).max())

    def run_off(self, ran: list[Candidate]) -> None:
        """Times those that are about as fast as the fastest once more, in turns: clocks move while one tunes."""
        ranked = sorted(ran, key=milliseconds)
        close = [c for c in ranked[:_FINALISTS] if milliseconds(c) <= _CLOSE * milliseconds(ranked[0])]
        if len(close) < 2:
            return
        times: dict[str, list[float]] = {candidate.name: [] for candidate in close}
        needs = sorted(close, key=lambda candidate: -(candidate.workspace_size or 0))  # so that workspace grows once
        launches = {candidate.name: self._bind(candidate) for candidate in needs}
        for _ in range(_FINAL_ROUNDS):
            for candidate in close:
                times[candidate.name].append(self._run(launches[candidate.name], self._count(candidate.milliseconds)))
        for candidate in close:
            candidate.milliseconds = median(times[candidate.name])

    def _first(self, launch: Callable[[], int]) -> float:
        """Milliseconds of the GPU for a first run, in which the host may spend a hundred times as long loading code."""
        queued: list[float] = []

        def timed() -> int:
            begin = time.perf_counter()
            status = launch()
            queued.append((time.perf_counter() - begin) * 1e3)
            return status

        whole = self._run([timed], 1)
        return max(whole - queued[0], 0.0)

    def _time(self, launches: list[Callable[[], int]]) -> float:
        """Milliseconds of one run: the least of a few rounds."""
        once = self._run(launches, _LEAST)
        if once > _GIVE_UP * self.best:
            return once
        return min(self._run(launches, self._count(once)) for _ in range(_ROUNDS))

    def _count(self, once: float | None) -> int:
        return max(_LEAST, min(_MOST, round(_ROUND_MS / max(once or 0.0, 1e-3))))

    def _run(self, launches: list[Callable[[], int]], count: int) -> float:
        """Milliseconds of each of `count` runs that take turns through the sets of tensors, between two events."""
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
    """Bytes of the device's L2 cache."""
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
    """cudnnReduceTensor of everything to one number."""
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
