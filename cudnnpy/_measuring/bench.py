"""Measure candidates on the GPU: run each, check its result, and time it.

Candidates run on the caller's stream, in the memory of bench_buffers.py. With beta, the scratch memory starts as a copy of
the caller's result.

Candidates are timed first. A result is checked before its candidate is chosen, or becomes what others are measured against:
it is compared on the device (result_comparison.py) with the anchor, which is the result of the first candidate that runs, the
choice of prefer="fastest". Where two results differ by more than `tolerance`, the arbiter (float64_check.py) tells which one is
right; without one, plain arithmetic is. A wrong anchor is replaced, and what was compared with it is checked again.

Results that are infinite, NaN or all 0, as those of uninitialized inputs can be, cannot be compared; then random numbers
replace the caller's inputs. A candidate that fails or runs out of memory is rejected with the reason. The workspace never
exceeds the limit. One run tells of most candidates that they cannot be the fastest. Those that are about as fast as the
fastest are timed again, in alternation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

from cudnnpy import raw
from cudnnpy._core.layouts import extent
from cudnnpy._measuring.bench_buffers import TimingMemory
from cudnnpy._measuring.float64_check import Arbiter
from cudnnpy._measuring.result_comparison import Largest, tolerance
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle

_HOPELESS = 4.0  # a candidate whose first run takes more than this many times as long as the best is not timed further
_COLD_MS = 0.1  # what a first run may take in addition
_NEAR = 1.15  # a candidate that takes up to this many times as long as the best is timed in a second round
_TRY_MS, _ROUND_MS = 0.2, 1.0  # the approximate duration of a short round, and of a long one
_LONG_MS = 20.0  # a candidate whose run takes longer is timed by single runs
_LEAST, _FEW, _MOST = 2, 4, 32  # the fewest runs of one round, the most of the first one, and of any
_QUEUEING_MS = 0.012  # fills keep the GPU busy for this long per run, so that launch overhead on the host is not timed
_FILL_GB_S = 2000.0  # the approximate rate of these fills
_MANY_KERNELS_MS = 0.1  # what the host takes for a launch of dozens of kernels, and for none of eight
_SURELY = 1.5  # the fills of a second try take this many times as long as the host needed
_CLOSE = 1.1  # candidates that take up to this many times as long as the fastest are timed again
_FAR = 1.5  # the same for the guess
_FINALISTS, _FINAL_ROUNDS, _FINAL_MS = 5, 5, 200.0  # no further round begins after this many milliseconds


def milliseconds(candidate: Candidate) -> float:
    """Return the time of a candidate; infinity if it was not measured."""
    return candidate.milliseconds or math.inf


def _count(once: float, duration: float) -> int:
    """Return the number of runs in a round of a duration, of which one takes about `once` milliseconds."""
    if once > _LONG_MS:
        return 1
    return max(_LEAST, min(_MOST, round(duration / max(once, 1e-3))))


def _engine_of(candidate: Candidate) -> Any:
    return candidate.name if candidate.engine is None else candidate.engine.index


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
        limit: int,
        times: bool = True,
    ) -> None:
        """Allocate the memory: with `times` false, that of a single run (`confirm`)."""
        self.problem, self.options, self.handle, self.stream = problem, options, handle, stream
        self.memory = TimingMemory(problem, inputs, result, limit, stream, times)
        self._largest = Largest(handle, problem.device, stream)
        self.anchor: list[float] = []  # the largest element of each result that is kept
        self._arbiter = Arbiter(problem, self.memory, handle, stream)
        self.anchored: Candidate | None = None  # the candidate of the anchor
        self.right: dict[str, Any] = {}  # the candidates that have its result, and their engines, by name
        self.best = math.inf  # the time of the fastest candidate that was checked

    def close(self) -> None:
        """Free the memory, in the order of the stream. Exceptions and their tracebacks may outlive it."""
        self.memory.close()
        self._largest.close()

    @property
    def _tolerance(self) -> float:
        return tolerance(self.problem, self.options.tf32)

    def measure(self, candidate: Candidate) -> bool:
        """Run and time a planned candidate; return False, with the reason in `refused`, if it is rejected.

        It is checked if it is faster than all before.
        """
        if not self._attempt(candidate, self._timed):
            return False
        if milliseconds(candidate) < self.best and self.check(candidate):
            self.best = milliseconds(candidate)
        return not candidate.refused

    def _attempt(self, candidate: Candidate, action: Callable[[Candidate], object]) -> bool:
        """Return whether a candidate is not rejected by an action, which may fail or set the reason."""
        try:
            action(candidate)
        except MemoryError as error:
            candidate.refused = f"out of memory: {error}"
        except CudnnError as error:
            candidate.refused = f"failed when run: {error}"
        if candidate.refused:
            candidate.executable = None
        return not candidate.refused

    def _timed(self, candidate: Candidate) -> None:
        """Time a candidate: by its first run if that is hopeless, else by rounds of runs on rotated buffers."""
        first = self._run_first(candidate)
        if not self.anchor:
            first = self._anchor(candidate, first)
        candidate.milliseconds = first
        if not candidate.refused and first <= _HOPELESS * self.best + _COLD_MS:
            candidate.milliseconds = self._time(self._bind(candidate), first)

    def _anchor(self, candidate: Candidate, first: float) -> float:
        """Make the result of a first candidate the anchor, if it can be compared; return the time of its first run."""
        largest = self._all_largest()
        if not self.memory.has_random_inputs and not all(0 < number < math.inf for number in largest):
            self.memory.use_random_inputs()
            self.memory.copy_inputs()
            first = self._run_first(candidate)
            largest = self._all_largest()
        self._become_anchor(candidate, largest)
        return first

    def check(self, candidate: Candidate) -> bool:
        """Return whether the result of a candidate is right, which may reject the candidate of the anchor instead."""
        return candidate.name in self.right or self._attempt(candidate, self._checked)

    def _checked(self, candidate: Candidate) -> None:
        self._run_first(candidate)
        reason = self._compare(candidate)
        if reason:
            self._run_first(candidate)  # the comparison has overwritten the result
            candidate.refused = self._judged(candidate, reason)
        if not candidate.refused:
            self.right[candidate.name] = _engine_of(candidate)

    def _judged(self, candidate: Candidate, reason: str) -> str:
        """Return why a candidate is rejected whose result, in scratch memory, is not the anchor's; "" if it is right."""
        wrong, memory = self.anchored, self.memory
        assert wrong is not None
        errors = self._arbiter.errors(memory.scratch[0], memory.kept[0])
        if errors is None:
            is_right, anchor_is_right = candidate.is_plain and not wrong.is_plain, False
        else:
            is_right, anchor_is_right = (error <= self._tolerance for error in errors)
        if not is_right:
            return reason
        if not anchor_is_right:
            self._become_anchor(candidate, self._all_largest())
            if not candidate.refused:
                wrong.refused, wrong.executable, self.best = reason, None, math.inf
        return candidate.refused

    def _run_first(self, candidate: Candidate) -> float:
        """Run a candidate once, into scratch memory, and return its time."""
        (launch,) = self._bind(candidate, 1)
        self.memory.reset()
        return self._first(launch)

    def _bind(self, candidate: Candidate, most: int | None = None) -> list[Callable[[], int]]:
        """Return the launches of a candidate, one for each set of buffers, or the first few."""
        executable = candidate.executable
        assert executable is not None
        workspace = self.memory.workspace(executable.workspace_size)
        return [executable.bind(self.handle, pointers, workspace) for pointers in self.memory.sets[:most]]

    def _compare(self, candidate: Candidate) -> str:
        """Return why a candidate's result in scratch memory is wrong; "" if all are right. Note the largest error."""
        share, memory = self._tolerance, self.memory
        errors: list[float] = []
        for spec, address, right, largest in zip(memory.results, memory.scratch, memory.kept, self.anchor, strict=True):
            if not math.isfinite(largest):  # the result of a graph, which cannot be compared
                continue
            difference = self._largest(spec, address, extent(spec), minus=right)
            allowed = share * largest + (spec.dtype == "int8")  # integers may be rounded up or down
            if allowed:
                errors.append(difference / allowed)
            if not difference <= allowed:
                return f"wrong result: off by {difference:.3g} from another candidate, {allowed:.3g} is allowed"
        candidate.error = max(errors, default=None)
        return ""

    def _all_largest(self) -> list[float]:
        """Return the largest absolute element of each result in scratch memory."""
        memory = self.memory
        return [
            self._largest(spec, address, extent(spec))
            for spec, address in zip(memory.results, memory.scratch, strict=True)
        ]

    def _become_anchor(self, candidate: Candidate, largest: list[float]) -> None:
        """Keep the results in scratch memory as the anchor; reject the candidate if they cannot be it."""
        if self.problem.is_finite and not all(map(math.isfinite, largest)):
            candidate.refused = "wrong result: infinite or no number for random numbers"
            return
        self.memory.keep()
        self.anchor, self.anchored, self.right = largest, candidate, {candidate.name: _engine_of(candidate)}

    def finalists(self, ran: list[Candidate], guess: Candidate | None) -> list[Candidate]:
        """Return the guess and the candidates that are about as fast as the fastest, all of them right.

        They are timed again, in alternation, since clock rates drift; the guess only if it is not much slower.
        """
        while True:
            anchored = self.anchored
            close = self._close(ran, guess)
            if anchored is self.anchored:  # else a check has replaced the anchor
                break
        if close:
            with suppress(MemoryError, CudnnError):  # then the times from before stand
                self._time_in_turns(close)
        return close

    def _close(self, ran: list[Candidate], guess: Candidate | None) -> list[Candidate]:
        """Return what `finalists` does by the times from before. The results of at least two engines are compared."""
        ranked = sorted((candidate for candidate in ran if not candidate.refused), key=milliseconds)
        close: list[Candidate] = []
        for candidate in ranked:
            if close and (len(close) == _FINALISTS or milliseconds(candidate) > _CLOSE * milliseconds(close[0])):
                break
            if self.check(candidate):
                close.append(candidate)
        if close and guess in ranked and guess not in close and milliseconds(guess) <= _FAR * milliseconds(close[0]):
            close += [guess] if self.check(guess) else []
        for candidate in ranked:
            if len(set(self.right.values())) > 1 or milliseconds(candidate) > _FINAL_MS:
                break
            if _engine_of(candidate) not in self.right.values():
                self.check(candidate)
        return [candidate for candidate in close if not candidate.refused]

    def _time_in_turns(self, close: list[Candidate]) -> None:
        times: dict[str, list[float]] = {candidate.name: [] for candidate in close}
        # The largest workspace is bound first, so that the workspace grows once.
        needs = sorted(close, key=lambda candidate: -(candidate.workspace_size or 0))
        launches = {candidate.name: self._bind(candidate) for candidate in needs}
        begin = time.monotonic()
        for _ in range(_FINAL_ROUNDS):
            for candidate in close:
                count = _count(milliseconds(candidate), _ROUND_MS)
                times[candidate.name].append(self._run(launches[candidate.name], count))
            if time.monotonic() - begin > _FINAL_MS / 1e3:
                break
        for candidate in close:
            found = times[candidate.name]
            candidate.milliseconds = median(found)
            if len(found) > 1 and candidate.milliseconds:
                candidate.spread = (max(found) - min(found)) / candidate.milliseconds

    def note_error(self, candidate: Candidate) -> None:
        """Run a candidate once more, and note its error from float64. Where single elements cannot be computed, nothing."""
        with suppress(MemoryError, CudnnError):
            self._run_first(candidate)
            error = self._arbiter.error(self.memory.scratch[0])
            if error is not None:
                candidate.error = error / self._tolerance

    def confirm(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
        """Run a planned candidate once, and reject it if its result is wrong.

        The result is compared with elements in float64, or else with the result of the first of `others` that runs; with
        neither, it must only be finite where it has to be. Raises MemoryError if there is no memory for it.
        """
        self._attempt(candidate, partial(self._confirmed, others=others))
        if candidate.refused.startswith("out of memory"):
            raise MemoryError(candidate.refused)

    def _confirmed(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
        self._anchor(candidate, self._run_first(candidate))
        if candidate.refused:
            return
        error = self._arbiter.error(self.memory.kept[0])
        if error is not None:
            candidate.error = error / self._tolerance
            if not error <= self._tolerance:
                candidate.refused = f"wrong result: off by {error:.3g} of float64, {self._tolerance:.3g} is allowed"
            return
        for other in others:
            if self._attempt(other, self._run_first):
                candidate.refused = self._compare(candidate)
                return

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

    def _time(self, launches: list[Callable[[], int]], first: float) -> float:
        """Return the milliseconds of one run. The nearer a candidate is to the best, the longer it is timed."""
        if first > _LONG_MS:
            return min(first, self._run(launches, 1))
        # Few runs at first: a first run seems short that the host waited for while it loaded code.
        once = self._run(launches, min(_FEW, _count(first, _TRY_MS)))
        if once > _NEAR * self.best:
            return once
        once = min(once, self._run(launches, _count(once, _TRY_MS)))
        return once if once >= self.best else min(once, self._run(launches, _count(once, _ROUND_MS)))

    def _run(self, launches: list[Callable[[], int]], count: int) -> float:
        """Return the mean milliseconds of `count` runs on rotated buffers.

        If the host took longer to queue them than the GPU was kept busy, so that the GPU may have waited, they run again.
        Dozens of kernels take the host longer than the GPU, and cannot be passed to the driver directly: then the host's
        time counts.
        """
        busy = count * _QUEUEING_MS
        whole, queued = self._run_after(busy, launches, count)
        if count > 1 and queued > max(busy, whole / 2):
            whole, again = self._run_after(min(_SURELY * queued, _LONG_MS), launches, count)
            queued = min(queued, again)
            if queued > count * _MANY_KERNELS_MS:
                whole = max(whole, queued)
        return whole / count

    def _run_after(self, busy: float, launches: list[Callable[[], int]], count: int) -> tuple[float, float]:
        """Return the milliseconds of `count` runs, measured between two events, and those in which the host queued them.

        The GPU is kept busy before for about `busy` milliseconds.
        """
        from cuda.bindings import driver

        begin, end = (driver.cuEventCreate(0)[1] for _ in range(2))
        filler, size = self.memory.filler
        try:
            for _ in range(math.ceil(busy * _FILL_GB_S * 1e6 / size)):
                driver.cuMemsetD8Async(filler, 0, size, self.stream)
            driver.cuEventRecord(begin, self.stream)
            started = time.perf_counter()
            for number in range(count):
                raw.check(launches[number % len(launches)](), "timed run")
            queued = (time.perf_counter() - started) * 1e3
            driver.cuEventRecord(end, self.stream)
            self._synchronize()
            return float(driver.cuEventElapsedTime(begin, end)[1]), queued
        finally:
            driver.cuEventDestroy(begin)
            driver.cuEventDestroy(end)

    def _synchronize(self) -> None:
        from cuda.bindings import driver

        (status,) = driver.cuStreamSynchronize(self.stream)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CudnnError(f"the GPU reported {status.name} while a candidate ran")
