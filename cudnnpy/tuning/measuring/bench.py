"""Measure candidates on the GPU: run each between unmapped addresses, time it, and verify its result.

The first run of a candidate is the guarded one: its operands and the workspace are flush with the ends of their mappings
(guarded_memory.py). Then it is timed in ordinary memory (bench_buffers.py), unless its first run shows that it cannot be the
fastest. Its result is verified (verification.py) before it is chosen, or before others are measured against its time.

A candidate that fails or runs out of memory is rejected with the reason. The workspace never exceeds the limit. Candidates that
are about as fast as the fastest are timed again, in alternation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from statistics import median

from cudnnpy._planning.candidates import Candidate
from cudnnpy.errors import CudnnError
from cudnnpy.tuning.measuring.timing import LONG_MS
from cudnnpy.tuning.measuring.verification import COMPARING_SECONDS, Verifier, engine_of

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


def milliseconds(candidate: Candidate) -> float:
    """Return the time of a candidate; infinity if it was not measured."""
    return candidate.milliseconds or math.inf


def _count(once: float, duration: float) -> int:
    """Return the number of runs in a round of a duration, if one run takes about `once` milliseconds."""
    if once > LONG_MS:
        return 1
    return max(_MIN_RUNS, min(_MAX_RUNS, round(duration / max(once, 1e-3))))


class Bench(Verifier):
    """The measurement of the candidates of one problem."""

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
                reason = f"wrong result: off by {errors[0]:.3g} of float64, {self._tolerance:.3g} is allowed"
                candidate.rejection_reason = self._explained(candidate, reason)
            return
        for other in others:
            if self._attempt(other, self._run_guarded):
                candidate.rejection_reason = self._compare(candidate)
                return

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
