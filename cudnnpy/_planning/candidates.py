"""What could run a problem: one Candidate for each engine configuration and each v7 algorithm, from two sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cudnnpy._core.validation import check_flag
from cudnnpy._planning import known_issues
from cudnnpy._planning.engines import EngineConfiguration, GraphExecutable, Target, engine, heuristics
from cudnnpy._planning.engines import engines as every_engine
from cudnnpy._runtime.executables import Executable
from cudnnpy.backend import Descriptor
from cudnnpy.convolution import legacy, operation_graph
from cudnnpy.convolution.lowering import Form, forms
from cudnnpy.convolution.problem import Options, Problem
from cudnnpy.errors import StatusError

_NO_COPIES = "needs copies, which int8 and float8 tensors cannot have"

# Some of these engines take 15 s to compile, and some give wrong results (forward-not-proposed in known_issues.py).
_NOT_PROPOSED = "compiled at run time, and cuDNN's heuristics do not propose it"

# Fewest channels for which an engine that the heuristics leave out is worth asking first (see _strict_winograd).
_WINOGRAD_CHANNELS = 64


@dataclass(frozen=True)
class Engine:
    """A graph-API engine to force with `algorithm=`: its global index, and its knobs.

    `knobs` are {cudnnBackendKnobType_t: value}, or pairs of these; None for the engine's own. `in_blocks`: on blocks of
    pixels, as candidates whose names end in "blocks" do it (strided convolutions of few channels).
    """

    index: int
    knobs: Any = None
    in_blocks: bool = False

    def __post_init__(self) -> None:
        try:
            given = dict(self.knobs or {}).items()
        except (TypeError, ValueError):
            given = {None: None}.items()
        for number in (self.index, *(n for pair in given for n in pair)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"index and knobs must be integers; got Engine({self.index!r}, {self.knobs!r})")
        check_flag("in_blocks", self.in_blocks)
        pairs = tuple(sorted((int(kind), value) for kind, value in given))
        object.__setattr__(self, "knobs", pairs or None)  # a tuple, so that options can be hashed


@dataclass
class Candidate:
    """One way to run a problem, and what became of it.

    `source` is "heuristics", "engines" (every engine at its own knobs), "legacy" (a v7 algorithm) or "saved".
    `refused` says why it was left out, "" if it was not. `workspace_size` (bytes) is None until it was planned, and
    `milliseconds` None until it was measured.
    """

    source: str
    name: str
    notes: tuple[str, ...]
    deterministic: bool
    make: Callable[[], Executable] = field(repr=False)
    compiled_at_run_time: bool = False
    engine: Engine | None = None
    form: Form | None = field(default=None, repr=False)
    refused: str = ""
    workspace_size: int | None = None
    milliseconds: float | None = None
    executable: Executable | None = field(default=None, repr=False)

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 inputs are rounded to tf32 (or less) before they are multiplied."""
        return not {"tensor_core", "down_convert_inputs"}.isdisjoint(self.notes)

    @property
    def is_plain(self) -> bool:
        """Whether it computes the sums of products as they are written, in the precision of what it is given."""
        approximations = {"winograd", "fft", "reduced_precision_reduction", "down_convert_inputs"}
        return approximations.isdisjoint(self.notes) and not self.compiled_at_run_time

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and pickled: all that is told of it, without what belongs to this process."""
        return {**self.__dict__, "make": _made_elsewhere, "form": None, "executable": None}

    def prepare(self) -> Executable | None:
        """The planned executable; None, with the reason in `refused`, where cuDNN cannot run it here."""
        if self.executable is None and not self.refused:
            try:
                self.executable = self.make()
            except (StatusError, ValueError) as error:
                self.refused = f"not supported here: {_reason(error)}"
            else:
                self.workspace_size = self.executable.workspace_size
        return self.executable


def _made_elsewhere() -> Executable:
    raise ValueError("a candidate must come from candidates() to be planned; got a copy")


def _reason(error: Exception) -> str:
    if isinstance(error, StatusError):
        detail = " ".join(error.detail.split())
        return f"{error.name} ({error.status})" + (f": {detail[:160]}" if detail else "")
    return str(error)


def is_strict(problem: Problem, options: Options) -> bool:
    """Whether float32 has to be multiplied as it is, not as tf32."""
    return problem.x.dtype == "float32" and not options.tf32


def all_candidates(problem: Problem, options: Options, target: Target) -> Iterator[Candidate]:
    """Every candidate, each once: as the heuristics rank them, then every engine, then the v7 algorithms."""
    seen: set[str] = set()
    for candidate in (
        *likely(problem, options, target),
        *engines(problem, target),
        *legacy_candidates(problem, options, target),
    ):
        if candidate.name not in seen:
            seen.add(candidate.name)
            yield candidate


def likely(problem: Problem, options: Options, target: Target) -> Iterator[Candidate]:
    """What is worth trying first, best guess first: cuDNN's heuristics on the fused graph, then unfused."""
    for form in forms(problem, strict=is_strict(problem, options)):
        try:
            built = operation_graph.operation_graph(form.part, target)
        except StatusError as error:
            yield _refused("heuristics", f"graph{form.suffix}", f"not supported here: {_reason(error)}")
            continue
        yield from _strict_winograd(form, options, target, built)
        for configuration in heuristics(built, target):
            yield from_configuration(form, target, "heuristics", configuration)


def engines(problem: Problem, target: Target) -> Iterator[Candidate]:
    """Every engine by global index, with its own knobs: the heuristics' list does not have them all.

    Engines that do not take the graph follow, together where cuDNN gives the same reason.
    """
    for form in forms(problem):
        try:
            built = operation_graph.operation_graph(form.part, target)
        except StatusError:  # `likely` says so
            continue
        others: dict[int, StatusError] = {}
        for configuration in every_engine(built, target, others):
            candidate = from_configuration(form, target, "engines", configuration)
            if candidate.compiled_at_run_time and not candidate.refused:
                candidate.refused = _NOT_PROPOSED
            yield candidate
        reasons: dict[str, list[int]] = {}
        for index, error in others.items():
            reasons.setdefault(f"{error.name} ({error.status})", []).append(index)
        for reason, indices in reasons.items():
            name = f"engine{'s' * (len(indices) > 1)} {_ranges(indices)}{form.suffix}"
            yield _refused("engines", name, f"not supported here: {reason}")


def legacy_candidates(problem: Problem, options: Options, target: Target) -> Iterator[Candidate]:
    """The v7 algorithms by name. They need a handle: for a device profile there are none."""
    if target.handle is not None:
        for name in legacy.algorithm_names(problem.operation):
            yield from_algorithm(problem, options, target, name)


def forced(problem: Problem, options: Options, target: Target) -> Candidate:
    """The one candidate that `options.algorithm` names. Raises ValueError or TypeError for what is no algorithm."""
    given = options.algorithm
    if isinstance(given, Engine):
        form = next((form for form in forms(problem) if form.in_blocks == given.in_blocks), None)
        if form is None:
            reason = "the problem has no blocks of pixels" if given.in_blocks else _NO_COPIES
            return _refused("engines", f"engine {given.index}", reason)
        try:
            built = operation_graph.operation_graph(form.part, target)
            configuration = engine(built, target, given.index, dict(given.knobs or {}))
        except StatusError as error:
            return _refused("engines", f"engine {given.index}", f"not supported here: {_reason(error)}")
        return from_configuration(form, target, "engines", configuration)
    if isinstance(given, str):
        return from_algorithm(problem, options, target, legacy.algorithm_named(problem.operation, given))
    raise TypeError(f"algorithm must be a v7 algorithm's name, a cudnnpy.Engine or a Plan; got {given!r}")


def _refused(source: str, name: str, reason: str) -> Candidate:
    """A candidate that is listed with the reason why it cannot run."""

    def make() -> Executable:
        raise ValueError(reason)

    return Candidate(source, name, (), True, make, refused=reason)


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers for people: [1, 2, 3, 7] -> "1-3, 7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _strict_winograd(form: Form, options: Options, target: Target, built: Descriptor) -> Iterator[Candidate]:
    """Winograd engines for strict float32, which the heuristics leave out.

    Measured on an H200 with cuDNN 9.19 (docs/benchmarks): for 3x3 filters of stride 1 they take 0.30 to 1.08 of the
    time of the heuristics' best strict engine from 64 channels on.
    """
    problem = form.part
    g = problem.geometry
    if not (
        is_strict(problem, options)
        and problem.operation != "backward_filter"
        and problem.w.shape[2:] == (3, 3)
        and g.stride == g.dilation == (1, 1)
        and problem.groups == 1
        and min(problem.w.shape[:2]) >= _WINOGRAD_CHANNELS
    ):
        return
    for configuration in every_engine(built, target):
        if "winograd" in configuration.numerical_notes:
            yield from_configuration(form, target, "engines", configuration)


def from_configuration(form: Form, target: Target, source: str, found: EngineConfiguration) -> Candidate:
    """A candidate of the graph API."""
    problem = form.part

    def make() -> Executable:
        return form.complete(GraphExecutable(found.finalize(), operation_graph.uids(problem.operands)), target)

    compiled = "runtime_compilation" in found.behavior_notes
    what = problem.facts, found.engine, (*found.numerical_notes, *found.behavior_notes)
    return Candidate(
        source,
        found.name + form.suffix,
        found.numerical_notes,
        known_issues.is_deterministic(*what),
        make,
        compiled_at_run_time=compiled,
        engine=Engine(found.engine, found.knobs, form.in_blocks),
        form=form,
        refused="compiled at run time: needs the GPU itself"
        if compiled and target.handle is None
        else known_issues.rejection(*what),
    )


def from_algorithm(problem: Problem, options: Options, target: Target, name: str) -> Candidate:
    """A candidate of the v7 functions."""
    strict = is_strict(problem, options)
    # the first of the plain ones: v7 functions fuse nothing
    plain = (form for form in forms(problem) if not form.in_blocks)
    form = next((form for form in plain if (form.part.bias, form.part.activation) == (None, None)), None)
    if form is None:
        return _refused("legacy", name, _NO_COPIES)

    def make() -> Executable:
        if target.handle is None:
            raise ValueError("the v7 functions need a GPU")
        return form.complete(legacy.LegacyExecutable(form.part, name, strict, target.handle), target)

    return Candidate(
        "legacy", name + form.suffix, (), legacy.is_deterministic(problem.operation, name), make, form=form
    )


def table(candidates: Iterable[Candidate]) -> str:
    """The candidates as text, a line each: what each needs, and why it was left out."""
    rows = [("candidate", "source", "workspace", "ms", "deterministic", "notes", "left out because")]
    for c in candidates:
        size = "?" if c.workspace_size is None else bytes_text(c.workspace_size)
        time = "" if c.milliseconds is None else f"{c.milliseconds:.4f}"
        notes = ", ".join(note for note in c.notes if note != "nondeterministic")
        rows.append((c.name, c.source, size, time, "yes" if c.deterministic else "no", notes, c.refused or "-"))
    if len(rows) == 1:
        return "  (there is no candidate)"
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def bytes_text(size: int) -> str:
    """A size for people: 1536 -> "1.5 KiB"."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:.4g} {unit}"
