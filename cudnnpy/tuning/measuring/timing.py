"""Time launches on the GPU by CUDA events, and check that the CUDA context survived them; callbacks that report a search."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from cudnnpy import raw
from cudnnpy._core.cuda_python import cuda_python
from cudnnpy._planning.candidates import Candidate
from cudnnpy.errors import CudnnError
from cudnnpy.tuning.measuring.bench_buffers import STREAM

LONG_MS = 20.0  # a candidate whose run takes longer is timed by single runs
_QUEUEING_MS = 0.012  # fills keep the GPU busy for this long per run, so that launch overhead on the host is not timed
_FILL_GB_S = 2000.0  # the approximate rate of these fills
_MANY_KERNELS_MS = 0.1  # host time of a launch above which it has dozens of kernels; eight kernels take less
_SURELY = 1.5  # the fills of the retry take this many times as long as the host needed


class Watch(NamedTuple):
    """Callbacks of a search. The default ones do nothing."""

    #: Called before each step that may crash or hang, with the candidate (None for a step of no single candidate) and the most
    #: seconds until the next call of any callback.
    begin: Callable[[Candidate | None, float], object] = lambda candidate, seconds: None
    #: called after each candidate, also a rejected one
    measured: Callable[[Candidate], object] = lambda candidate: None
    best: Callable[[Candidate], object] = lambda candidate: None  #: called with each new fastest, verified candidate


SILENT = Watch()


class ContextLost(Exception):
    """The CUDA context was lost while a candidate ran: this process can use the GPU no more."""

    def __init__(self, name: str, error: str) -> None:
        super().__init__(f"{name} ended the CUDA context: {error}")
        self.name, self.error = name, error  #: the candidate and the driver's name of the error


class Timer:
    """Times launches. `filler` is the address and size of memory whose fills keep the GPU busy until the runs are queued."""

    def __init__(self, filler: tuple[int, int]) -> None:
        driver = cuda_python("bindings.driver")
        self._filler = filler
        self._events = [driver.cuEventCreate(0)[1] for _ in range(2)]
        self.running: Candidate | None = None
        self.first_queued_ms = 0.0  #: the milliseconds of the host in the last first run

    def close(self) -> None:
        """Destroy the events."""
        driver = cuda_python("bindings.driver")
        for event in self._events:
            driver.cuEventDestroy(event)

    def first(self, launch: Callable[[], int], queued: Callable[[], object]) -> float:
        """Return the milliseconds of a first run on the GPU, without the time in which the host loads code.

        `queued` is called when the host is done.
        """

        def timed() -> int:
            begin = time.perf_counter()
            status = launch()
            queued()
            self.first_queued_ms = (time.perf_counter() - begin) * 1e3
            return status

        whole = self.run([timed], 1)
        return max(whole - self.first_queued_ms, 0.0)

    def run(self, launches: list[Callable[[], int]], count: int) -> float:
        """Return the mean milliseconds of `count` runs on rotated buffers.

        If queueing them took longer than the GPU was busy, so that it may have waited, they run again. Queueing dozens of
        kernels takes longer than running them, and such a launch cannot become a direct launch: then host time counts.
        """
        busy = count * _QUEUEING_MS
        whole, queued = self._run_after(busy, launches, count)
        if count > 1 and queued > max(busy, whole / 2):
            whole, again = self._run_after(min(_SURELY * queued, LONG_MS), launches, count)
            queued = min(queued, again)
            if queued > count * _MANY_KERNELS_MS:
                whole = max(whole, queued)
        return whole / count

    def _run_after(self, busy: float, launches: list[Callable[[], int]], count: int) -> tuple[float, float]:
        """Return the milliseconds of `count` runs, measured between two events, and the milliseconds of queueing them.

        Fills keep the GPU busy for about `busy` milliseconds before the first event.
        """
        driver = cuda_python("bindings.driver")
        (begin, end), (filler, size) = self._events, self._filler
        for _ in range(math.ceil(busy * _FILL_GB_S * 1e6 / size)):
            driver.cuMemsetD8Async(filler, 0, size, STREAM)
        driver.cuEventRecord(begin, STREAM)
        started = time.perf_counter()
        for number in range(count):
            if failed := launches[number % len(launches)]():
                self._check_context()
                raw.check(failed, "timed run")
        queued = (time.perf_counter() - started) * 1e3
        driver.cuEventRecord(end, STREAM)
        (status,) = driver.cuStreamSynchronize(STREAM)
        if status != driver.CUresult.CUDA_SUCCESS:
            self._check_context()
            raise CudnnError(f"the GPU reported {status.name} while a candidate ran")
        return float(driver.cuEventElapsedTime(begin, end)[1]), queued

    def _check_context(self) -> None:
        """Raise ContextLost if the context is lost, in which case every driver call repeats the error."""
        driver = cuda_python("bindings.driver")
        (status,) = driver.cuStreamSynchronize(STREAM)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise ContextLost("a candidate" if self.running is None else self.running.name, status.name)
