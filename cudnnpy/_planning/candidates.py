"""Candidates for a problem: every engine configuration of each of its lowerings, with rejection reason and measured time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from cudnnpy._launch.steps import Executable
from cudnnpy._options.base import Options
from cudnnpy._options.checks import bounded, check_flag, error_repr
from cudnnpy._options.limits import MAX_KNOBS
from cudnnpy._planning import known_issues
from cudnnpy._planning.engines import EngineConfiguration, Target, engine, engine_name, engines, heuristics
from cudnnpy._planning.issue_conditions import ProblemTraits
from cudnnpy.backend import Descriptor
from cudnnpy.errors import StatusError

# The options of an Engine that determine its lowering
LOWERING_OPTIONS = ("space_to_depth", "channels_last_copies", "flipped_forward")


@dataclass(frozen=True, repr=False)
class Engine(Options):
    """An engine of the graph API, which the option `algorithm` forces.

    Parameters
    ----------
    index : int
        The global index of the engine.
    knobs : mapping or pairs of ints, optional
        {cudnnBackendKnobType_t: value}; by default the engine's own.
    space_to_depth : bool
        Whether the engine runs on space-to-depth tensors, as candidates whose names end in "blocks" do (strided
        convolutions of few channels).
    channels_last_copies : bool
        Whether the engine runs on copies that are channels last, as candidates whose names end in "channels last" do.
    flipped_forward : bool
        Whether the engine computes the gradient with respect to x of a depthwise convolution as a forward convolution with the
        filter flipped, as candidates whose names end in "forward" do.

    Raises
    ------
    TypeError
        An index or knob is not an int.

    Examples
    --------
    >>> import cudnnpy
    >>> cudnnpy.Convolution(padding=1, algorithm=cudnnpy.Engine(0)).algorithm
    Engine(0)
    """

    index: int
    knobs: Mapping[int, int] | Iterable[tuple[int, int]] | None = None
    _: KW_ONLY
    space_to_depth: bool = False
    channels_last_copies: bool = False
    flipped_forward: bool = False

    @property
    def _lowering_options(self) -> dict[str, bool]:
        """The options that select the lowering that it runs on (Lowering.lowering_options)."""
        return {name: True for name in LOWERING_OPTIONS if getattr(self, name)}

    def __repr__(self) -> str:
        knobs = [repr(dict(self.knobs))] if self.knobs else []
        return f"Engine({', '.join([str(self.index), *knobs, *(f'{name}=True' for name in self._lowering_options)])})"

    def _canonical(self) -> dict[str, Any]:
        try:
            pairs = self.knobs if isinstance(self.knobs, Mapping) else bounded(self.knobs or (), MAX_KNOBS)
            given = dict(pairs).items() if len(pairs) <= MAX_KNOBS else None
        except (TypeError, ValueError):
            given = None
        numbers: list[object] = (
            [None] if given is None else [self.index, *(number for pair in given for number in pair)]
        )
        if given is None or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            raise TypeError(
                f"index and knobs must be integers; got Engine({error_repr(self.index)}, {error_repr(self.knobs)})"
            )
        for name in LOWERING_OPTIONS:
            check_flag(name, getattr(self, name))
        ordered = tuple(sorted((int(kind), value) for kind, value in given))
        return {"knobs": ordered or None}  # a tuple, so that options can be hashed


class Lowering(Protocol):
    """One way to compute a problem: an operation graph, and the copies and functions around it."""

    @property
    def suffix(self) -> str:
        """The conversions around the graph, as a suffix of candidates' names: "", " + copies"."""

    @property
    def lowering_options(self) -> dict[str, bool]:
        """The options of an Engine that runs on it: {}, or {"space_to_depth": True}, for instance."""

    def build_graph(self, target: Target) -> Descriptor:
        """Return the finalized operation graph. Raises StatusError if cuDNN rejects it."""

    def executable(self, plan: Descriptor, target: Target) -> Executable:
        """Return the executable of the whole problem for an execution plan of the graph."""

    @property
    def traits(self) -> ProblemTraits:
        """The properties that known issues of engines depend on."""

    @property
    def part_text(self) -> str:
        """The notation of the part that the graph computes, which identifies the lowering; "" for the whole problem."""


@dataclass
class Candidate:
    """One way to run a problem, with the reason if it is rejected.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> x, w = cudnnpy.TensorSpec((8, 64, 56, 56)), cudnnpy.TensorSpec((64, 64, 3, 3))
    >>> candidates = cudnnpy.Convolution(padding=1).candidates("forward", x, w)
    >>> any(not candidate.rejection_reason for candidate in candidates)
    True
    """

    #: "ranking" (the model of measurements), "heuristics", "engines" (all engines), "knobs" (autotune) or "legacy"
    #: (v7 algorithms)
    source: str
    name: str  #: the engine with its knobs, or the v7 algorithm
    notes: tuple[str, ...]  #: cuDNN's numerical notes
    deterministic: bool  #: whether the result has the same bits every time
    make: Callable[[], Executable] = field(repr=False)
    compiled_at_run_time: bool = False  #: whether the engine is compiled when it is planned
    engine: Engine | None = None  #: the engine, which `algorithm` takes; None for a v7 algorithm
    strict: bool = False  #: whether a C function multiplies float32 as it is, not as tf32
    lowering: Lowering | None = field(default=None, repr=False)
    rejection_reason: str = ""  #: the rejection reason; "" if there is none
    workspace_size: int | None = None  #: in bytes; None if it was not planned
    milliseconds: float | None = None  #: the time that autotune measured; None if it was not measured
    #: (largest - smallest) / median of the times that autotune compared; None if there were fewer than two
    spread: float | None = None
    #: the largest error of its result, relative to float64 or another candidate, in units of the tolerance; None if it was not
    #: compared
    error: float | None = None
    #: the time over the fastest candidate's that the ranking model predicts; None without a model
    expected: float | None = None
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

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without this process's objects, so that it can be copied and pickled."""
        return {**self.__dict__, "make": _made_elsewhere, "lowering": None, "plan": None, "executable": None}

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


def _made_elsewhere() -> Executable:
    raise ValueError("a candidate must come from candidates() to be planned; got a copy")


def detached_candidate(
    name: str,
    source: str,
    workspace_size: int | None,
    milliseconds: float | None,
    notes: tuple[str, ...],
    deterministic: bool,
    rejection_reason: str,
) -> Candidate:
    """Return a candidate that was considered in another process. Like a copy, it cannot be planned."""
    return Candidate(
        source,
        name,
        notes,
        deterministic,
        _made_elsewhere,
        rejection_reason=rejection_reason,
        workspace_size=workspace_size,
        milliseconds=milliseconds,
    )


def unsupported(error: Exception) -> str:
    """Return the rejection reason for an error that was raised while a candidate was planned."""
    reason = str(error)
    if isinstance(error, StatusError):
        detail = " ".join(error.detail.split())
        reason = f"{error.name} ({error.status})" + (f": {detail[:160]}" if detail else "")
    return f"not supported here: {reason}"


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

    made = Candidate(
        source,
        found.name + lowering.suffix,
        found.numerical_notes,
        known_issues.is_deterministic(*what),
        make,
        compiled_at_run_time=compiled,
        engine=Engine(found.engine, found.knobs, **lowering.lowering_options),
        lowering=lowering,
        rejection_reason=rejection(target, *what),
    )
    candidate = weakref.ref(made)
    return made


def rejection(target: Target, traits: ProblemTraits, engine: int, notes: tuple[str, ...]) -> str:
    """Return the reason to reject an engine with these notes before it is planned; "" if there is none."""
    if "runtime_compilation" in notes and target.profile is not None:
        return "compiled at run time: needs the GPU itself"
    return known_issues.rejection(traits, engine, notes)


def rejected(source: str, name: str, reason: str) -> Candidate:
    """Return a candidate that cannot run, with the rejection reason."""

    def make() -> Executable:
        raise ValueError(reason)

    return Candidate(source, name, (), True, make, rejection_reason=reason)


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text: [1, 2, 3, 7] -> "1-3, 7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
