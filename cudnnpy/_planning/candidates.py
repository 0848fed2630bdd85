"""Candidates for a problem: every engine configuration of each of its lowerings, and which of them the options reject."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.public_dir import list_attributes
from cudnnpy._launch.steps import Executable
from cudnnpy._planning import known_issues
from cudnnpy._planning.choice import Choice, Engine
from cudnnpy._planning.engines import EngineConfiguration, Target, engine, engine_name, engines, heuristics
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Problem, is_strict
from cudnnpy.backend import Descriptor
from cudnnpy.errors import StatusError

if TYPE_CHECKING:  # both import this module
    from cudnnpy._layers.lowerings.convolution_lowerings import ConvolutionLowering
    from cudnnpy.graph.problem import GraphLowering

#: One way to compute a problem: an operation graph, and the copies and functions around it
Lowering: TypeAlias = "ConvolutionLowering | GraphLowering"


class _Recorded:
    """An attribute that is a field of the object's `choice`. To set it replaces the choice."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, candidate: Any, owner: type) -> Any:
        return self if candidate is None else getattr(candidate.choice, self._name)

    def __set__(self, candidate: Any, value: Any) -> None:
        candidate.choice = candidate.choice._replace(**{self._name: value})


def recorded() -> Any:
    """Return the descriptor of an attribute that is a field of the object's `choice`. The annotation has its type."""
    return _Recorded()


def _made_elsewhere() -> Executable:
    """Raise ValueError: a candidate of another process, and a copy of one, cannot be planned."""
    raise ValueError("a candidate must come from candidates() to be planned; got a copy")


class _Described:
    """The attributes of a candidate that are fields of its choice. They are no fields of the dataclass."""

    choice: Choice

    #: "ranking" (the model of measurements), "heuristics", "engines" (all engines), "knobs" (autotune) or "legacy"
    #: (v7 algorithms)
    source: str = recorded()
    name: str = recorded()  #: the engine with its knobs, or the v7 algorithm
    notes: tuple[str, ...] = recorded()  #: cuDNN's numerical notes
    deterministic: bool = recorded()  #: whether the result has the same bits every time
    compiled_at_run_time: bool = recorded()  #: whether the engine is compiled when it is planned
    engine: Engine | None = recorded()  #: the engine, which `algorithm` takes; None for a v7 algorithm
    strict: bool = recorded()  #: whether a C function multiplies float32 as it is, not as tf32
    rejection_reason: str = recorded()  #: the rejection reason; "" if there is none
    workspace_size: int | None = recorded()  #: in bytes; None if it was not planned
    milliseconds: float | None = recorded()  #: the time that autotune measured; None if it was not measured
    #: (largest - smallest) / median of the times that autotune compared; None if there were fewer than two
    spread: float | None = recorded()
    #: the largest error of its result, relative to float64 or another candidate, in units of the tolerance; None if it was not
    #: compared
    error: float | None = recorded()
    #: the time over the fastest candidate's that the ranking model predicts; None without a model
    expected: float | None = recorded()
    store_layer: str = recorded()  #: the layer of the store that had the choice; "" if it was made now


@list_attributes
@dataclass
class Candidate(_Described):
    """One way to run a problem, with the reason if it is rejected: a choice, and the means to plan it.

    A candidate of another process, or a copy of one, cannot be planned.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> x, w = cudnnpy.TensorSpec((8, 64, 56, 56)), cudnnpy.TensorSpec((64, 64, 3, 3))
    >>> candidates = cudnnpy.Convolution(padding=1).candidates("forward", x, w)
    >>> any(not candidate.rejection_reason for candidate in candidates)
    True
    """

    choice: Choice  #: the candidate as data
    make: Callable[[], Executable] = field(default=_made_elsewhere, repr=False)
    lowering: Lowering | None = field(default=None, repr=False)
    plan: Descriptor | None = field(default=None, repr=False)  #: the execution plan of an engine compiled at run time
    executable: Executable | None = field(default=None, repr=False)

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 inputs are rounded to tf32 (or less) before they are multiplied."""
        return uses_tf32(self.notes)

    @property
    def is_conventional(self) -> bool:
        """Whether it uses conventional arithmetic: no Winograd, FFT or reduced precision."""
        approximations = {"winograd", "fft", "reduced_precision_reduction", "down_convert_inputs"}
        return approximations.isdisjoint(self.notes) and not self.compiled_at_run_time

    def __reduce__(self) -> tuple[type[Candidate], tuple[Choice]]:
        """Copy and pickle the choice alone, without this process's objects."""
        return Candidate, (self.choice,)

    def prepare(self) -> Executable | None:
        """Plan the candidate and return its executable, or None with a `rejection_reason` if cuDNN cannot run it here."""
        if self.executable is None and not self.rejection_reason:
            try:
                self.executable = self.make()
            except (StatusError, ValueError) as error:
                self.rejection_reason = unsupported(error)
            else:
                self.workspace_size = self.executable.workspace_size
        return self.executable


def uses_tf32(notes: tuple[str, ...]) -> bool:
    """Return whether an engine with these notes rounds float32 inputs to tf32 (or less) before it multiplies them."""
    return not {"tensor_core", "down_convert_inputs"}.isdisjoint(notes)


def unsupported(error: Exception) -> str:
    """Return the rejection reason for an error that was raised while a candidate was planned."""
    reason = str(error)
    if isinstance(error, StatusError):
        detail = " ".join(error.detail.split())
        reason = f"{error.name} ({error.status})" + (f": {detail[:160]}" if detail else "")
    return f"not supported here: {reason}"


def rejection_by_options(candidate: Candidate, problem: Problem, options: PlanningOptions) -> str:
    """Return the reason to reject a candidate before it is planned; "" if the options permit it."""
    if candidate.rejection_reason:
        return candidate.rejection_reason
    if options.deterministic and not candidate.deterministic:
        return "not deterministic"
    if is_strict(problem, options) and candidate.uses_tf32:
        return "uses tf32"
    return ""


def try_plan(candidate: Candidate, problem: Problem, options: PlanningOptions, limit: int) -> bool:
    """Plan a candidate unless an option or the workspace limit rejects it.

    Return whether it is planned; otherwise its `rejection_reason` has the reason.
    """
    candidate.rejection_reason = rejection_by_options(candidate, problem, options)
    executable = None if candidate.rejection_reason else candidate.prepare()
    if executable is None:
        return False
    if executable.workspace_size > limit:
        candidate.rejection_reason = f"needs {bytes_text(executable.workspace_size)}, the limit is {bytes_text(limit)}"
        return False
    return True


def heuristic_candidates(lowering: Lowering, target: Target) -> Iterator[Candidate]:
    """Yield the proposals of cuDNN's heuristics, best first; one rejected candidate if cuDNN rejects the graph."""
    try:
        graph = lowering.build_graph(target)
    except StatusError as error:
        yield rejected_graph(lowering, error)
        return
    for configuration in heuristics(graph, target):
        yield from_configuration(lowering, target, "heuristics", configuration)


def rejected_graph(lowering: Lowering, error: StatusError) -> Candidate:
    """Return the candidate of a lowering whose graph cuDNN rejects."""
    return rejected("heuristics", f"graph{lowering.suffix}", unsupported(error))


def all_engines(lowering: Lowering, target: Target) -> Iterator[Candidate]:
    """Yield every engine by global index with its default knobs, also those that the heuristics omit.

    Engines that do not support the graph follow, grouped by cuDNN's reason.
    """
    try:
        graph = lowering.build_graph(target)
    except StatusError:  # `heuristic_candidates` yields a rejected candidate
        return
    others: dict[int, StatusError] = {}
    for configuration in engines(graph, target, others):
        yield from_configuration(lowering, target, "engines", configuration)
    reasons: dict[str, list[int]] = {}
    for index, error in others.items():
        reasons.setdefault(f"{error.name} ({error.status})", []).append(index)
    for reason, indices in reasons.items():
        name = f"engine{'s' * (len(indices) > 1)} {_ranges(indices)}{lowering.suffix}"
        yield rejected("engines", name, f"not supported here: {reason}")


def candidate_for_engine(lowering: Lowering, target: Target, given: Engine) -> Candidate:
    """Return the candidate of one engine with the given knobs, or with its defaults; a rejected one if cuDNN rejects it."""
    try:
        return configured(lowering, target, given)
    except StatusError as error:
        name = engine_name(given.index, tuple(dict(given.knobs or {}).items())) + lowering.suffix
        return rejected("engines", name, unsupported(error))


def configured(lowering: Lowering, target: Target, given: Engine) -> Candidate:
    """Return the candidate of one engine with the given knobs, or with its defaults. Raises StatusError if cuDNN rejects it."""
    configuration = engine(lowering.build_graph(target), target, given.index, dict(given.knobs or {}))
    return from_configuration(lowering, target, "engines", configuration)


def from_configuration(lowering: Lowering, target: Target, source: str, found: EngineConfiguration) -> Candidate:
    """Return the candidate of an engine configuration."""
    compiled = "runtime_compilation" in found.behavior_notes
    what = lowering.traits, found.engine, found.notes

    def make() -> Executable:
        one = candidate()  # a weak reference: a cycle would keep the plan until garbage collection
        plan = (one and one.plan) or found.finalize()
        if one is not None:
            one.plan = plan if compiled else None
        return lowering.executable(plan, target)

    choice = Choice(
        found.name + lowering.suffix,
        source,
        Engine(found.engine, found.knobs, **lowering.lowering_options),
        lowering.part_text,
        found.numerical_notes,
        lowering.is_deterministic and known_issues.is_deterministic(*what),
        compiled,
        rejection_reason=known_issues.rejection_by_issues(*what),
    )
    made = Candidate(choice, make, lowering)
    candidate = weakref.ref(made)
    return made


def rejected(source: str, name: str, reason: str) -> Candidate:
    """Return a candidate that cannot run, with the rejection reason."""
    return Candidate(Choice(name, source, rejection_reason=reason))


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text: [1, 2, 3, 7] -> "1-3, 7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
