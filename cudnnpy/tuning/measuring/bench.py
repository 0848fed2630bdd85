"""Measure candidates on the GPU: run each between unmapped addresses, time it, and verify its result.

The first run of a candidate is the guarded one: its operands and the workspace are flush with the ends of their mappings
(bench_buffers.py). Then it is timed in ordinary memory (bench_buffers.py), unless its first run shows that it cannot be the
fastest. Its result is verified before it is chosen, or before others are measured against its time.

A candidate that fails or runs out of memory is rejected with the reason. The workspace never exceeds the limit. Candidates that
are about as fast as the fastest are timed again, in alternation.

Results are compared with the baseline, the result of the first candidate that runs, the default choice. Two runs of each
candidate are compared with it on the device (result_comparison.py). In the second run the operands are flush with the
beginnings of their mappings, and the initial content of results, workspace and gaps is different. If two results differ by more
than `tolerance`, float64 elements decide which one is right; without them, the result of conventional arithmetic counts as
right. A wrong baseline is replaced, and all candidates that agreed with it are verified again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import Any

from cudnnpy._core.layouts import byte_extent
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem
from cudnnpy.errors import CudnnError
from cudnnpy.handle import Handle
from cudnnpy.tuning.measuring.bench_buffers import FIRST, SECOND, BenchBuffers, Fills
from cudnnpy.tuning.measuring.result_comparison import Float64Checker, MaxAbs, tolerance
from cudnnpy.tuning.measuring.timing import LONG_MS, SILENT, Timer, Watch

HOPELESS = 4.0  # a candidate whose first run takes more than this many times as long as the best is not timed further
_SLOW_HOST_MS = 1.0  # after a first launch that took the host longer, a single run is timed before rounds of runs
_COLD_MS = 0.1  # allowed for a first run in addition
_MAX_RATIO = 1.15  # a candidate that takes up to this many times as long as the best is timed in a second round
_TRY_MS, _ROUND_MS = 0.2, 1.0  # the approximate duration of a short round, and of a long one
_MIN_RUNS = 2  # of a round
_MAX_FIRST_RUNS, _MAX_RUNS = 4, 32  # of the first round, of any round
_CLOSE = 1.1  # candidates that take up to this many times as long as the fastest are timed again
_MAX_DEFAULT_RATIO = 1.5  # the same for the default choice
_FINALISTS, _FINAL_ROUNDS, _FINAL_MS = 5, 5, 200.0  # no further round begins after this many milliseconds

PLANNING_SECONDS = 5.0  # the limit for planning a candidate
COMPARING_SECONDS = 30.0  # the limit for comparing two results, some of whose elements the host may compute
_LOADING_SECONDS = 5.0  # the limit for loading and compiling the kernels of a candidate in its first run
_TIMES, _RUN_SECONDS = 50.0, 0.5  # a run may take this many times as long as the best, or this long


def milliseconds(candidate: Candidate) -> float:
    """Return the time of a candidate; infinity if it was not measured."""
    return candidate.milliseconds or math.inf


def _count(once: float, duration: float) -> int:
    """Return the number of runs in a round of a duration, if one run takes about `once` milliseconds."""
    if once > LONG_MS:
        return 1
    return max(_MIN_RUNS, min(_MAX_RUNS, round(duration / max(once, 1e-3))))


def engine_of(candidate: Candidate) -> Any:
    """Return the engine's index, or a v7 algorithm's name, whatever the knobs and the lowering."""
    return candidate.name if candidate.engine is None else candidate.engine.index


class Bench:
    """The measurement of the candidates of one problem: its memory, the runs of candidates there, and the baseline.

    Any method raises ContextLost if a candidate ends the CUDA context.
    """

    def __init__(self, problem: Problem, options: PlanningOptions, handle: Handle, *, watch: Watch = SILENT) -> None:
        self.problem, self.options, self.handle, self._watch = problem, options, handle, watch
        self.memory = BenchBuffers(problem)
        self.timer = Timer(self.memory.filler)
        self._max_abs = MaxAbs(handle, problem.device)
        self._checker = Float64Checker(problem)
        self.baseline: list[float] = []  # the largest element of each of its results
        self.baseline_of: Candidate | None = None
        self.verified: dict[str, Any] = {}  # the engines of the candidates that agree with it, by the candidates' names
        self.best = math.inf  # the time of the fastest candidate that was verified
        self._ran: Candidate | None = None  # the candidate whose result of a first run is in guarded memory

    def close(self) -> None:
        """Free the memory. Exceptions and their tracebacks may outlive it."""
        self.memory.close()
        self.timer.close()

    @property
    def _tolerance(self) -> float:
        return tolerance(self.problem, self.options.tf32)

    @property
    def _run_seconds(self) -> float:
        """The time limit of a candidate's run in seconds."""
        if self.best == math.inf:
            return max(self.options.tune_seconds, _RUN_SECONDS)
        return max(_TIMES * self.best / 1e3, _RUN_SECONDS)

    def _begin(self, seconds: float) -> None:
        self._watch.begin(self.timer.running, seconds)

    # One candidate

    def measure(self, candidate: Candidate) -> bool:
        """Run and time a planned candidate; return False, with the reason in `rejection_reason`, if it is rejected.

        Its result is verified if it is faster than all earlier candidates.
        """
        if not self._attempt(candidate, self._timed):
            return False
        if milliseconds(candidate) < self.best and self.verify(candidate):
            self.best = milliseconds(candidate)
            self._watch.best(candidate)
        return not candidate.rejection_reason

    def _timed(self, candidate: Candidate) -> None:
        """Time a candidate: by its first run if that is hopeless, else by rounds of runs on rotated buffers."""
        candidate.milliseconds = first = self._run_guarded(candidate)
        if not self.baseline:
            self._become_baseline(candidate)
        if not candidate.rejection_reason and first <= HOPELESS * self.best + _COLD_MS:
            candidate.milliseconds = self._time(self._timed_launches(candidate), first)

    def _timed_launches(self, candidate: Candidate) -> list[Callable[[], int]]:
        """Return the launches of a candidate, one for each set of buffers."""
        executable = candidate.executable
        assert executable is not None
        if not self.memory.has_copies:
            self._ran = None
        workspace = self.memory.aligned_workspace(executable.workspace_size)
        return [executable.bind(self.handle, pointers, workspace) for pointers in self.memory.timing_sets]

    def _time(self, launches: list[Callable[[], int]], first: float) -> float:
        """Return the milliseconds of one run. Candidates near the best are timed longer."""
        self._begin(_MAX_FIRST_RUNS * self._run_seconds)
        if first > LONG_MS:
            return min(first, self.timer.run(launches, 1))
        if self.timer.first_queued_ms > _SLOW_HOST_MS:  # it loaded code, or it queued kernels no faster than they ran
            once = self.timer.run(launches, 1)
            if once > HOPELESS * self.best + _COLD_MS:
                return once
        # Few runs at first: the time of a first run is too short if the host waited for it while it loaded code.
        once = self.timer.run(launches, min(_MAX_FIRST_RUNS, _count(first, _TRY_MS)))
        if once > _MAX_RATIO * self.best:
            return once
        once = min(once, self.timer.run(launches, _count(once, _TRY_MS)))
        return once if once >= self.best else min(once, self.timer.run(launches, _count(once, _ROUND_MS)))

    def verify(self, candidate: Candidate) -> bool:
        """Return whether the results of a candidate are right. This may reject the baseline's candidate instead."""
        if candidate.rejection_reason or candidate.name in self.verified:
            return not candidate.rejection_reason
        return self._attempt(candidate, self._verified)

    def _attempt(self, candidate: Candidate, action: Callable[[Candidate], object]) -> bool:
        """Return whether a candidate is not rejected by an action, which may fail or set the reason."""
        self.timer.running = candidate
        try:
            action(candidate)
        except MemoryError as error:
            candidate.rejection_reason = f"out of memory: {error}"
        except CudnnError as error:
            candidate.rejection_reason = f"failed when run: {error}"
        if candidate.rejection_reason:
            candidate.executable = None
            if candidate is self.baseline_of:
                self.baseline, self.baseline_of, self.verified = [], None, {}
        return not candidate.rejection_reason

    def _run_guarded(self, candidate: Candidate, fills: Fills = FIRST) -> float:
        """Run a candidate once in guarded memory, and return its time."""
        if candidate.executable is None:  # it was measured in another process
            self._begin(PLANNING_SECONDS)
            if candidate.prepare() is None:
                raise CudnnError(candidate.rejection_reason)
        assert candidate.executable is not None
        size = candidate.executable.workspace_size
        self.memory.place(at_end=fills == FIRST)
        launch = candidate.executable.bind(self.handle, self.memory.pointers, self.memory.workspace(size))
        self.memory.reset(size, fills)
        self._ran = candidate if fills == FIRST else None
        allowed = self._run_seconds  # besides, a first run loads and compiles its kernels
        self._begin(_LOADING_SECONDS + allowed)
        return self.timer.first(launch, lambda: self._begin(allowed))

    # Results

    def _verified(self, candidate: Candidate) -> None:
        if self._ran is not candidate and candidate is not self.baseline_of:
            self._run_guarded(candidate)
        if not self.baseline:
            self._become_baseline(candidate)
        elif candidate is not self.baseline_of and (reason := self._compare(candidate)):
            self._resolve_mismatch(candidate, reason)
        if not candidate.rejection_reason and self._agrees_at_start(candidate):
            self.verified[candidate.name] = engine_of(candidate)

    def _agrees_at_start(self, candidate: Candidate) -> bool:
        """Reject a candidate whose result differs at other addresses or with other initial content of the memory."""
        self._run_guarded(candidate, SECOND)
        changed = "wrong result: changes the gaps of its result" if self.memory.have_gaps_changed() else ""
        reason = changed or self._compare(candidate)
        if not reason or (not changed and candidate is not self.baseline_of and self._is_exact()):
            return True
        candidate.rejection_reason = reason
        return False

    def _is_exact(self) -> bool:
        """Return whether the result in guarded memory agrees with float64 elements."""
        errors = self._checker.errors(self.memory.scratch[0], self.memory.kept[0])
        return errors is not None and errors[0] <= self._tolerance

    def _resolve_mismatch(self, candidate: Candidate, reason: str) -> None:
        """Reject a candidate whose result in guarded memory differs from the baseline, or the baseline if that is wrong."""
        wrong, memory = self.baseline_of, self.memory
        assert wrong is not None
        errors = self._checker.errors(memory.scratch[0], memory.kept[0])
        if errors is None:
            is_right, baseline_is_right = candidate.is_conventional and not wrong.is_conventional, False
        else:
            is_right, baseline_is_right = (error <= self._tolerance for error in errors)
        if not is_right:
            candidate.rejection_reason = reason
        elif not baseline_is_right:
            self._become_baseline(candidate)
            if not candidate.rejection_reason:
                wrong.rejection_reason, wrong.executable, self.best = reason, None, math.inf

    def _become_baseline(self, candidate: Candidate) -> None:
        """Make the results in guarded memory the baseline; reject the candidate if they must be finite and are not."""
        largest = self._largest()
        are_finite = [*map(math.isfinite, largest)]
        if not all(are_finite):
            if self.problem.has_finite_results:
                candidate.rejection_reason = "wrong result: unwritten, infinite or NaN"
                return
            self._run_guarded(candidate, SECOND)
            if self.memory.have_gaps_changed() or [*map(math.isfinite, self._largest())] != are_finite:
                candidate.rejection_reason = "wrong result: depends on the content of the memory before"
                return
            self._run_guarded(candidate)
        self.memory.copy_results(self.memory.kept)
        self.baseline, self.baseline_of, self.verified = largest, candidate, {}

    def _compare(self, candidate: Candidate) -> str:
        """Return why a candidate's results in guarded memory are wrong; "" if they are right. Note the largest difference."""
        errors: list[float] = []
        differences = self._largest(self.memory.kept)
        for difference, largest, spec in zip(differences, self.baseline, self.memory.results, strict=True):
            if not math.isfinite(largest):  # the result of a graph, which cannot be compared
                continue
            allowed = self._tolerance * largest + (spec.dtype == "int8")  # integers may be rounded up or down
            if allowed:
                errors.append(difference / allowed)
            if not difference <= allowed:
                return f"wrong result: off by {difference:.3g} from another candidate, {allowed:.3g} is allowed"
        candidate.error = max(errors, default=None)
        return ""

    def _largest(self, others: Iterable[int] = ()) -> list[float]:
        """Return the largest absolute element of each result in guarded memory, or of its difference from another one."""
        self._watch.begin(None, COMPARING_SECONDS)
        memory = self.memory
        memory.copy_results(memory.compared)
        return [
            self._max_abs(spec, address, byte_extent(spec), minus=other)
            for spec, address, other in zip_longest(memory.results, memory.compared, others)
        ]

    # The finalists

    def finalists(self, ran: list[Candidate], default: Candidate | None) -> list[Candidate]:
        """Return the default choice and the candidates that are about as fast as the fastest, all of them verified.

        They are timed again, in alternation, since clock rates drift; the default choice only if it is not much slower.
        """
        while True:
            baseline_of = self.baseline_of
            close = self._close(ran, default)
            if baseline_of is self.baseline_of:  # otherwise a verification has replaced the baseline
                break
        if close:
            with suppress(MemoryError, CudnnError):  # then the earlier times remain
                self._time_in_turns(close)
        return close

    def _close(self, ran: list[Candidate], default: Candidate | None) -> list[Candidate]:
        """Return the finalists by the earlier times. The results of at least two engines are compared."""
        ranked = sorted((candidate for candidate in ran if not candidate.rejection_reason), key=milliseconds)
        close: list[Candidate] = []
        for candidate in ranked:
            if close and (len(close) == _FINALISTS or milliseconds(candidate) > _CLOSE * milliseconds(close[0])):
                break
            if self.verify(candidate):
                close.append(candidate)
        if (
            close
            and default in ranked
            and default not in close
            and milliseconds(default) <= _MAX_DEFAULT_RATIO * milliseconds(close[0])
        ):
            close += [default] if self.verify(default) else []
        for candidate in ranked:
            if len(set(self.verified.values())) > 1 or milliseconds(candidate) > _FINAL_MS:
                break
            if engine_of(candidate) not in self.verified.values():
                self.verify(candidate)
        return [candidate for candidate in close if not candidate.rejection_reason]

    def _time_in_turns(self, close: list[Candidate]) -> None:
        """Time candidates in rounds. A candidate whose best round is slower than every round of the fastest is dropped."""
        times: dict[str, list[float]] = {candidate.name: [] for candidate in close}
        # The largest workspace is bound first, so that the workspace grows once.
        needs = sorted(close, key=lambda candidate: -(candidate.workspace_size or 0))
        launches = {candidate.name: self._timed_launches(candidate) for candidate in needs}
        begin = time.monotonic()
        left = close
        for done in range(1, _FINAL_ROUNDS + 1):
            for candidate in left:
                self.timer.running = candidate
                self._begin(self._run_seconds)
                count = _count(milliseconds(candidate), _ROUND_MS)
                times[candidate.name].append(self.timer.run(launches[candidate.name], count))
            slowest = max(min((times[candidate.name] for candidate in left), key=median))
            if done > 1:
                left = [candidate for candidate in left if min(times[candidate.name]) <= slowest]
            if (done > 2 and len(left) == 1) or time.monotonic() - begin > _FINAL_MS / 1e3:
                break
        for candidate in close:
            found = times[candidate.name]
            candidate.milliseconds = median(found)
            if len(found) > 1 and candidate.milliseconds:
                candidate.spread = (max(found) - min(found)) / candidate.milliseconds

    # A stored choice

    def confirm(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
        """Run a planned candidate at both ends of its mappings, and reject it if its result is wrong.

        The result is compared with float64 elements, or else with the result of the first of `others` that runs. Without both,
        it must only be finite if the problem has finite results. Raises MemoryError if there is no memory for it.
        """
        self._attempt(candidate, partial(self._confirmed, others=others))
        if candidate.rejection_reason.startswith("out of memory"):
            raise MemoryError(candidate.rejection_reason)

    def _confirmed(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
        self._run_guarded(candidate)
        self._become_baseline(candidate)
        if candidate.rejection_reason:
            return
        self._watch.begin(None, COMPARING_SECONDS)
        errors = self._checker.errors(self.memory.kept[0])
        if not self._agrees_at_start(candidate):
            return
        if errors is not None:
            candidate.error = errors[0] / self._tolerance
            if not errors[0] <= self._tolerance:
                off = f"off by {errors[0]:.3g} of float64, {self._tolerance:.3g} is allowed"
                candidate.rejection_reason = f"wrong result: {off}"
            return
        for other in others:
            if self._attempt(other, self._run_guarded):
                candidate.rejection_reason = self._compare(candidate)
                return
