"""Search the fastest candidate by measuring (prefer="autotune"): which to run, in which order, and when to stop.

The candidates come in tuning order (candidate_order.py), then the best engines with other knobs, by coordinate descent.

- Predicted times: a candidate is measured unless several in a row gained nothing. The longer its predicted time is, the fewer
  suffice; and fewer, if it is compiled at run time, which takes up to 0.8 s.
- Time: candidates that may take long are measured last, if they fit into the remaining time. An engine that is far from the
  fastest is not tried with other knobs or in other lowerings.
- Memory: a candidate that needs a large part of the device's memory is measured only if the caller's limit permits it. Memory
  of the measurement is returned to the driver, for other allocators.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain

from cudnnpy import raw
from cudnnpy._arrays import workspace as memory
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import printable
from cudnnpy._planning import engines
from cudnnpy._planning.candidates import Candidate, from_configuration, try_plan
from cudnnpy._planning.choice import Choice, Engine, SerializedPlan
from cudnnpy._planning.engines import Target, gpu_kind, save_plan
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan import Plan, serialized_candidate
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy.errors import CudnnError, StatusError
from cudnnpy.handle import Handle, in_use
from cudnnpy.tuning.measurement import UNPROMISING, Measurement
from cudnnpy.tuning.measuring.bench import HOPELESS, PLANNING_SECONDS, Bench, milliseconds
from cudnnpy.tuning.measuring.bench_buffers import STREAM
from cudnnpy.tuning.measuring.timing import SILENT, Watch
from cudnnpy.tuning.ranking.candidate_order import ranked_candidates, tuning_order
from cudnnpy.tuning.stored_choice import entry_of

_FAILED = ("failed when run", "wrong result")  # the rejection reasons of candidates that ran
_ORDERING_SECONDS = 30.0  # for the heuristics, until the first candidate is planned
_NOISE = 1.01  # times whose ratio is at most this are equal
_PROMISING = 8  # the first candidates, which are measured however long they, or others of their engines, may take
_LATE = 0.05  # seconds; a candidate that may take longer is measured last
_SLOW = 2.0  # so are other candidates of an engine that took this many times as long as the best, or was slow to plan
_COMPILING = 3  # a candidate that is compiled at run time counts as this many
_SHARE = 4  # without a limit, the workspace of a candidate may be the device's memory divided by this
_PREPARING_SECONDS = 10.0  # the limit for allocating the memory and drawing the inputs

# The search for candidates ends when the number of candidates since the last gain, times the square of the next one's least
# expected time over the best, exceeds this. On networks that the ranking was not trained on, 7.6 candidates are measured in the
# mean, and 0.6 are compiled for a depthwise convolution (docs/dev/ranking.md).
_PATIENCE = 16

# Multiply-accumulates in a second, including zeros of strides and padding, of the slowest engines in a survey of 1,816
# convolutions of networks on an H200 with cuDNN 9.19: engines without tensor cores, Winograd or FFT, and engines with the note
# strict_nan_prop. A single run of one took 33 s, where the fastest took 0.3 ms.
_PLAIN_RATE, _STRICT_RATE = 5e11, 5e10


_REFINED = 3  # the number of engines for which other knobs are tried
_MAX_KNOB_RATIO = 2.0  # an engine that takes more than this many times as long as the fastest keeps its knobs
_PASSES = 3  # maximum passes over the knobs of one engine
_SAMPLES = 16  # approximate maximum of values of a knob in one pass
# The search ends after this many candidates in a row that are not faster by 1 %. In a survey of 1,736 convolutions on an H100
# with cuDNN 9.19 that leaves a quarter of its candidates, and costs 0.35 % of the chosen time; no search of knobs costs 1.3 %.
_KNOB_PATIENCE, _GAIN = 8, 1.01


class Search:
    """Measures the candidates of a problem as tuner.Tuner does, but runs them in this process, and chooses the fastest.

    The first run of a candidate is between unmapped addresses, where an access outside loses the CUDA context.

    Parameters
    ----------
    handle : Handle
        The handle of the device. The work goes to the default stream.
    watch : Watch
        Callbacks that report each step before and after it.
    """

    def __init__(self, handle: Handle, *, watch: Watch = SILENT) -> None:
        self._handle, self._target, self._watch = handle, Target(handle), watch

    def measure(
        self,
        problem: Problem,
        options: PlanningOptions,
        limit: int,
        left_out: Mapping[str, str],
        known: Mapping[str, Choice] | None = None,
        best: Callable[[Measurement], object] = lambda measurement: None,
    ) -> Measurement:
        """Measure the candidates of a problem within a workspace limit, except the ones in `left_out`.

        `known` has the measurements of an earlier process. `best` is called with each new fastest candidate.
        """
        considered: list[Candidate] = []

        def ordered() -> Iterator[Candidate]:
            for candidate in tuning_order(problem, options, self._target):
                considered.append(candidate)
                yield candidate

        def chosen(choice: Candidate, *, is_complete: bool) -> Measurement:
            is_own = all(candidate is not choice for candidate in considered)  # its knobs are from the knob search
            found = [*considered, choice] if is_own else considered
            plan = Plan(problem, choice)
            plan._check_serializable()
            entry = entry_of(problem, options, self._target, plan.choice, found, complete=is_complete)
            return Measurement(entry, compiled=_compiled(choice))

        self._watch.begin(None, _ORDERING_SECONDS)
        self._watch = self._watch._replace(best=lambda choice: best(chosen(choice, is_complete=False)))
        try:
            choice = self(problem, options, ordered(), limit, left_out=left_out, known=known)
            if choice is not None:
                measurement = chosen(choice, is_complete=self.is_complete)
                return measurement._replace(was_memory_limited=self.was_memory_limited)
        except (MemoryError, TypeError) as error:  # TypeError: a candidate whose plan cannot be serialized
            return Measurement(None, printable(" ".join(str(error).split())), isinstance(error, MemoryError))
        rejected = [candidate.choice.stored for candidate in considered if candidate.rejection_reason]
        counts = Counter(one.rejection_reason for one in rejected)
        reasons = "; ".join(reason for reason, _ in counts.most_common(3)) or "there is no candidate"
        failed = {one.name: one.rejection_reason for one in rejected if one.rejection_reason.startswith(_FAILED)}
        return Measurement(None, f"no candidate can be used: {reasons}", self.was_memory_limited, rejected=failed)

    def confirm(self, problem: Problem, options: PlanningOptions, choice: Choice, limit: int) -> str | None:
        """Return why the result of a choice is wrong here; "" if it is right; None if it could not be run."""
        plan = SerializedPlan(raw.version(), str(gpu_kind(self._target)), text_of(problem), choice)
        try:
            candidate = serialized_candidate(plan, problem, self._target)
        except (ValueError, CudnnError) as error:
            return str(error)
        self._watch.begin(candidate, _ORDERING_SECONDS)
        try:
            if try_plan(candidate, problem, options, limit):
                self.verify(problem, options, candidate, limit)
        except CudnnError as error:
            return str(error)
        except MemoryError:
            return None
        return candidate.rejection_reason

    def __call__(
        self,
        problem: Problem,
        options: PlanningOptions,
        candidates: Iterable[Candidate],
        limit: int,
        *,
        left_out: Mapping[str, str] | None = None,
        known: Mapping[str, Choice] | None = None,
    ) -> Candidate | None:
        """Return the fastest of the candidates, or None if none ran. After `tune_seconds`, return the fastest so far.

        The first candidate that can be used is the default choice. The result is never slower. Without memory to measure the
        default choice a MemoryError is raised, since no other candidate can be shown to be faster.

        Parameters
        ----------
        problem, options, candidates, limit
            The problem, its options, its candidates, and the largest workspace in bytes.
        left_out : mapping of str to str, optional
            The rejection reasons of candidates that must not run, by their names, including ones with knobs from the knob
            search.
        known : mapping of str to Choice, optional
            The measurements of an earlier process that ended, by candidates' names. These candidates are not measured again,
            except for the default choice, and verified only if they are among the finalists.
        """
        self._problem, self._options, self._limit = problem, options, limit
        self._known, self._left_out = known or {}, left_out or {}
        self._most = _largest_workspace(problem, options)
        self._deadline = time.monotonic() + options.tune_seconds
        self._ran: list[Candidate] = []
        self._slow: dict[tuple[int, str], float] = {}  # the seconds of slow engines, by engine and lowering
        self._fastest: dict[tuple[int, str], float] = {}  # the shortest milliseconds, by engine and lowering
        self._products = math.prod(problem.specs[-1].shape) * problem.reduction_length
        self.default: Candidate | None = None
        self._stale = 0  # the number of measured candidates since the last gain
        self._scarce = 0  # the number of candidates that ran out of memory
        self.is_complete = True  #: whether every candidate that should be was measured, with enough time and memory
        with self._new_bench(problem, options) as self._bench:
            self._measure_all(candidates)
            return _winner(self._bench.finalists(self._right(), self.default), self.default)

    def verify(self, problem: Problem, options: PlanningOptions, candidate: Candidate, limit: int) -> None:
        """Run a planned candidate, and reject it if its result is wrong. Raises MemoryError without memory for that."""
        most = min(limit, _largest_workspace(problem, options))

        def others() -> Iterator[Candidate]:
            for other in chain(ranked_candidates(problem, options, self._target), problem.engines(self._target)):
                if other.is_conventional and other.name != candidate.name:
                    self._watch.begin(other, PLANNING_SECONDS)
                    if try_plan(other, problem, options, most):
                        yield other

        with self._new_bench(problem, options) as bench:
            bench.confirm(candidate, others())

    @contextmanager
    def _new_bench(self, problem: Problem, options: PlanningOptions) -> Iterator[Bench]:
        """Yield a bench, whose memory is freed with the context."""
        with in_use(self._handle, STREAM), memory.trim_pool_afterwards(problem.device, STREAM):
            self._watch.begin(None, _PREPARING_SECONDS)
            with closing(Bench(problem, options, self._handle, watch=self._watch)) as bench:
                yield bench

    def _measure_all(self, candidates: Iterable[Candidate]) -> None:
        """Measure candidates, then the best engines with other knobs, then candidates that may take long."""
        late: list[Candidate] = []
        for number, candidate in enumerate(candidates):
            if not self._has_time():
                self._skip(candidate)
            elif reason := self._why_unpromising(candidate):
                candidate.rejection_reason = candidate.rejection_reason or reason
            elif self._should_defer(candidate, is_promising := number < _PROMISING):
                late.append(candidate)
            else:
                self._measure(candidate, is_promising)
        for candidate in _other_knobs(self._right(), self._target):
            if not self._has_time():
                self._skip(candidate)
                break
            self._measure(candidate)
        for candidate in sorted(late, key=self._seconds):
            if self._has_time(self._seconds(candidate)):
                self._measure(candidate)
            else:
                self._skip(candidate)

    def _why_unpromising(self, candidate: Candidate) -> str:
        """Return the reason not to measure a candidate, since several in a row gained nothing; "" to measure it.

        Without a predicted time, only candidates that are compiled at run time have such a reason.
        """
        is_ranked, is_compiled = candidate.expected is not None, candidate.compiled_at_run_time
        if self._options.thorough or not (is_ranked or is_compiled):
            return ""
        count = (1 + self._stale) * (_COMPILING if is_compiled else 1)
        if count * self._least_ratio(candidate) ** 2 <= _PATIENCE:
            return ""
        return UNPROMISING if is_ranked else "not measured: it is compiled at run time, and others gained nothing"

    def _least_ratio(self, candidate: Candidate) -> float:
        """Return the least time that a candidate is expected to take over the best; 1 if it has no predicted time.

        The largest overestimate of a measured candidate reduces the prediction.
        """
        errors = [milliseconds(one) / one.expected for one in self._right() if one.expected]
        return candidate.expected * min(errors) / self._best if candidate.expected and errors else 1.0

    def _right(self) -> list[Candidate]:
        """Return the candidates that ran and were not found to be wrong."""
        return [candidate for candidate in self._ran if not candidate.rejection_reason]

    def _has_time(self, seconds: float = 0.0) -> bool:
        """Return whether there is time for a candidate that takes this long. The first one is always measured."""
        return not self._ran or time.monotonic() + seconds < self._deadline

    def _seconds(self, candidate: Candidate) -> float:
        """Return the seconds that measuring a candidate may take; 0 if it is not expected to be slow."""
        return max(_most_seconds(candidate, self._products), self._slow.get(_engine_of(candidate), 0.0))

    def _should_defer(self, candidate: Candidate, is_promising: bool) -> bool:
        """Return whether to measure a candidate last: its engine took long, or it may take long and is not promising.

        None is deferred before the default choice is known, since the result must not be slower than that.
        """
        if self.default is None or candidate.name in self._known:
            return False
        return _engine_of(candidate) in self._slow or (not is_promising and self._seconds(candidate) > _LATE)

    def _skip(self, candidate: Candidate) -> None:
        """Reject a candidate for which there is no time."""
        self.is_complete = False
        if not candidate.rejection_reason:
            candidate.rejection_reason = f"not measured: tune_seconds={self._options.tune_seconds} were used up"

    def _measure(self, candidate: Candidate, is_promising: bool = False) -> None:
        """Plan and measure a candidate, unless it is known or far from the fastest.

        Raises MemoryError if there is no memory for the default choice.
        """
        candidate.rejection_reason = candidate.rejection_reason or self._left_out.get(candidate.name, "")
        row = self._known.get(candidate.name)
        if row is not None and (row.rejection_reason or self.default is not None):
            self._take_over(candidate, row)
            return
        if not self._is_compiled_again(candidate) and (is_promising or not self._is_far(candidate)):
            self._run(candidate)
        self._watch.measured(candidate)

    def _take_over(self, candidate: Candidate, row: Choice) -> None:
        """Take the measurement of a candidate from a process that ended."""
        candidate.rejection_reason = candidate.rejection_reason or row.rejection_reason
        candidate.workspace_size, candidate.milliseconds = row.workspace_size, row.milliseconds
        self._note_memory(row.rejection_reason.startswith("out of memory"))
        if not candidate.rejection_reason:
            self._note_time(candidate)

    def _note_time(self, candidate: Candidate) -> None:
        engine = _engine_of(candidate)
        self._stale = 0 if milliseconds(candidate) * _GAIN < self._best else self._stale + 1
        self._ran.append(candidate)
        self._fastest[engine] = min(milliseconds(candidate), self._fastest.get(engine, math.inf))

    def _is_compiled_again(self, candidate: Candidate) -> bool:
        """Reject a candidate whose engine was compiled with other knobs and ran.

        Compiling takes up to 0.8 s. Other knobs than the first ones were the fastest in one of 529 problems, by 1.4 %.
        """
        if (
            not candidate.compiled_at_run_time
            or candidate.rejection_reason
            or _engine_of(candidate) not in self._fastest
        ):
            return False
        candidate.rejection_reason = "not measured: its engine was compiled with other knobs"
        return True

    def _is_far(self, candidate: Candidate) -> bool:
        """Reject a candidate that is not expected to win and may take long.

        Its engine took far longer than the fastest (in another lowering: even longer).
        """
        if candidate.engine is None or candidate.rejection_reason or self.default is None:
            return False
        index, suffix = _engine_of(candidate)
        best = self._best
        here = self._fastest.get((index, suffix), 0.0)
        anywhere = min((time for (other, _), time in self._fastest.items() if other == index), default=0.0)
        if here <= HOPELESS * best and anywhere <= HOPELESS**2 * best:
            return False
        ratio = max(here, anywhere) / best
        candidate.rejection_reason = f"not measured: engine {index} took {ratio:.3g} times as long as the fastest"
        return True

    @property
    def _best(self) -> float:
        return min(map(milliseconds, self._right()), default=math.inf)

    def _run(self, candidate: Candidate) -> None:
        begin = time.monotonic()
        self._watch.begin(candidate, PLANNING_SECONDS)
        can_run = try_plan(candidate, self._problem, self._options, self._limit)
        if self._exceeds_default_limit(candidate):
            return
        if not can_run:
            asked = self._options.workspace_limit
            self._note_memory(candidate.workspace_size is not None and (asked is None or self._limit < asked))
            return
        planned = time.monotonic()
        self.default = self.default or candidate
        is_right = self._bench.measure(candidate)
        is_scarce = candidate.rejection_reason.startswith("out of memory")
        self._note_memory(is_scarce)
        if is_right:
            self._note_time(candidate)
        elif candidate is self.default and is_scarce:
            raise MemoryError(f"{candidate.name}, the default choice, cannot be measured: {candidate.rejection_reason}")
        end = time.monotonic()
        is_slow = end - planned > _LATE and milliseconds(candidate) > _SLOW * self._best
        if is_slow or planned - begin > _LATE:  # other knobs of its engine are measured last
            self._slow[_engine_of(candidate)] = end - begin

    def _exceeds_default_limit(self, candidate: Candidate) -> bool:
        """Return whether a planned candidate, other than the default choice, needs too much workspace without a limit."""
        size = candidate.workspace_size
        if self.default is None or size is None or self._options.workspace_limit is not None or size <= self._most:
            return False
        reason = f"needs {bytes_text(size)}, more than a quarter of the device's memory; workspace_limit= admits it"
        candidate.rejection_reason = f"not measured: {reason}"
        return True

    def _note_memory(self, is_scarce: bool) -> None:
        """Count a candidate that ran out of memory."""
        self._scarce += is_scarce
        self.is_complete = self.is_complete and not is_scarce

    @property
    def was_memory_limited(self) -> bool:
        """Whether the search lacked memory for at least as many candidates as it ran. Then its choice is not stored."""
        return 0 < self._scarce >= len(self._ran)


def _compiled(choice: Candidate) -> dict[str, str]:
    """Return the serialized plan of a choice by its name, if its engine was compiled at run time."""
    with suppress(CudnnError):  # a plan that cuDNN does not serialize is compiled again
        return {} if choice.plan is None else {choice.name: save_plan(choice.plan)}
    return {}


def _largest_workspace(problem: Problem, options: PlanningOptions) -> int:
    """Return the workspace limit of every candidate but the default choice: `workspace_limit`, or a share of the memory."""
    if options.workspace_limit is not None:
        return options.workspace_limit
    return memory.total_bytes(problem.device) // _SHARE or sys.maxsize


def _engine_of(candidate: Candidate) -> tuple[int, str]:
    """Return the engine's index and the lowering's suffix, which are equal for all knobs."""
    suffix = "" if candidate.lowering is None else candidate.lowering.suffix
    return -1 if candidate.engine is None else candidate.engine.index, suffix


def _most_seconds(candidate: Candidate, products: int) -> float:
    """Return the seconds that one run of a candidate may take; 0 for engines that are not known to be slow."""
    if candidate.engine is None or not {"tensor_core", "winograd", "fft"}.isdisjoint(candidate.notes):
        return 0.0
    return products / (_STRICT_RATE if "strict_nan_prop" in candidate.notes else _PLAIN_RATE)


def _winner(finalists: list[Candidate], default: Candidate | None) -> Candidate | None:
    """Return the fastest. If several are equal within noise, prefer the default choice, then the smallest workspace."""
    fastest = min(finalists, key=milliseconds, default=None)
    if fastest is None:
        return None
    equal = [candidate for candidate in finalists if milliseconds(candidate) <= _NOISE * milliseconds(fastest)]
    return min(equal, key=lambda c: (c is not default, c.workspace_size or 0, milliseconds(c)))


# Other knobs


def _other_knobs(ran: list[Candidate], target: Target) -> Iterator[Candidate]:
    """Yield the fastest engines with other knobs. The caller measures each candidate before it takes the next."""
    fastest, patience = min(map(milliseconds, ran), default=math.inf), _KNOB_PATIENCE
    for candidate in _descents(ran, target):
        yield candidate
        is_faster = not candidate.rejection_reason and milliseconds(candidate) * _GAIN < fastest
        fastest, patience = (milliseconds(candidate), _KNOB_PATIENCE) if is_faster else (fastest, patience - 1)
        if not patience:
            break


def _descents(ran: list[Candidate], target: Target) -> Iterator[Candidate]:
    """Yield the fastest engines with other knobs, without an end by patience.

    This is a coordinate descent: one knob after the other, knobs with few values first, is set to its fastest value, until a
    pass over all knobs brings no improvement.
    """
    best: dict[Engine, Candidate] = {}  # by engine and lowering
    ranked = sorted(ran, key=milliseconds)
    for candidate in ranked:
        if milliseconds(candidate) > _MAX_KNOB_RATIO * milliseconds(ranked[0]):
            break
        if candidate.engine is not None and candidate.engine.knobs:
            best.setdefault(replace(candidate.engine, knobs=None), candidate)
    known = {candidate.name for candidate in ran}
    for current in list(best.values())[:_REFINED]:
        if current.lowering is None or current.engine is None:
            continue
        lowering, index, fastest = current.lowering, current.engine.index, current
        built = lowering.build_graph(target)
        try:
            ranges = engines.knob_ranges(built, target, index)
        except StatusError:  # an engine that the heuristics return but that cannot be created by its index
            continue
        for _ in range(_PASSES):
            before = fastest
            for kind, values in sorted(ranges.items(), key=lambda item: len(item[1])):
                knobs = dict(fastest.engine.knobs or ()) if fastest.engine else {}
                if kind not in knobs:
                    continue
                for value in _sample(values, knobs[kind]):
                    try:
                        found = engines.engine(built, target, index, {**knobs, kind: value})
                    except StatusError:
                        continue
                    candidate = from_configuration(lowering, target, "knobs", found)
                    if candidate.name not in known:
                        known.add(candidate.name)
                        yield candidate
                        if not candidate.rejection_reason:
                            fastest = min(fastest, candidate, key=milliseconds)
            if fastest is before:
                break


def _sample(values: range, current: int) -> list[int]:
    """Return the values of a knob to try: all, or, if there are many, a sample and the neighbours of the current value."""
    if len(values) <= _SAMPLES:
        chosen = set(values)
    else:
        at = (current - values.start) // values.step
        near = values[max(at - _SAMPLES // 4, 0) : at + _SAMPLES // 4 + 1]
        chosen = {*values[:: -(-len(values) // _SAMPLES)], *near}
    return sorted(chosen - {current})
