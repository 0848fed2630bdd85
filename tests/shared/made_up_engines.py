"""A made-up kind of problem, and a stand-in for cuDNN whose engines for it are made up, too: see test_chooser.py."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_candidates import made_up

from cudnnpy import Engine, Plan, TensorSpec, raw
from cudnnpy._arrays import workspace
from cudnnpy._planning import candidates, problem_notation, selection
from cudnnpy._planning import plan as plans
from cudnnpy._planning.candidates import (
    Candidate,
    Lowering,
    all_engines,
    candidate_for_engine,
    heuristic_candidates,
    rejected,
)
from cudnnpy._planning.chooser import Request
from cudnnpy._planning.engines import Target, engine_name
from cudnnpy._planning.known_issues import ProblemTraits
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import Values, values_of
from cudnnpy.errors import StatusError
from cudnnpy.tuning import chooser as tuning_chooser
from cudnnpy.tuning.chooser import TuningChooser
from cudnnpy.tuning.measuring import search
from cudnnpy.tuning.measuring.search import Search
from cudnnpy.tuning.store.levels import Layers
from cudnnpy.tuning.store.store import Store

TARGET = Target()
LOTS = 1 << 40
Knobs = Mapping[int, int]


@dataclass
class Made:
    """An engine of the stand-in: its time in milliseconds and its workspace in bytes, by its knobs."""

    index: int
    time: Callable[[Knobs], float] = lambda knobs: 10.0
    size: Callable[[Knobs], int] = lambda knobs: 0
    ranges: Mapping[int, range] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    default: Knobs = field(default_factory=dict)
    refuses: Callable[[Knobs], bool] = lambda knobs: False
    compiled: bool = False
    plans_in: float = 0.0  # seconds
    runs_for: float = 1e-3  # seconds


class Executable:
    """A planned engine."""

    def __init__(self, made: Made, knobs: Knobs) -> None:
        self.made, self.knobs, self.workspace_size = made, knobs, made.size(knobs)

    def bind(self, handle: Any, pointers: tuple[int, ...], space: int) -> Callable[[], int]:
        return lambda: 0


class Function(Executable):
    """A plain C function."""

    def __init__(self) -> None:
        super().__init__(Made(-1, lambda knobs: 50.0), {})


@dataclass(frozen=True)
class MadeUpLowering:
    """The made-up problem as a graph, or in blocks."""

    problem: MadeUp
    suffix: str = ""
    space_to_depth: bool = False

    @property
    def lowering_options(self) -> dict[str, bool]:
        return {"space_to_depth": True} if self.space_to_depth else {}

    @property
    def traits(self) -> ProblemTraits:
        return ProblemTraits("made up")

    @property
    def is_deterministic(self) -> bool:
        return True

    def build_graph(self, target: Target) -> Any:
        return self.problem

    def executable(self, plan: Any, target: Target) -> Any:
        return plan

    @property
    def part_text(self) -> str:
        return "in blocks" if self.space_to_depth else ""


@dataclass(frozen=True)
class MadeUp:
    """A problem that is neither a convolution nor a graph."""

    name: str = "sums"
    dtype: Any = "float32"
    alignment: int = 16
    device: int = 0
    operation: str = "made up"
    kind: str = "made up"
    broken_rule: str = ""
    format_advice: str = ""
    operands: tuple[str, ...] = ("a", "b")
    results: int = 1
    beta: float = 0.0
    compute_dtype: str = "float32"
    reduction_length: int = 9
    has_finite_results: bool = True

    @property
    def value_ranges(self) -> tuple[Values, ...]:
        return tuple(map(values_of, self.specs))

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec((4,), self.dtype, (1,), self.alignment), TensorSpec((4,), self.dtype, (1,), self.alignment))

    def lowerings(self) -> Iterator[Lowering]:
        yield MadeUpLowering(self)
        yield MadeUpLowering(self, " + blocks", True)

    def aligned(self) -> MadeUp:
        return replace(self, alignment=16)

    def proposed_candidates(self, target: Target) -> Iterator[Candidate]:
        for lowering in self.lowerings():
            yield from heuristic_candidates(lowering, target)

    def engines(self, target: Target) -> Iterator[Candidate]:
        for lowering in self.lowerings():
            yield from all_engines(lowering, target)

    def functions(self, options: PlanningOptions, target: Target) -> Iterator[Candidate]:
        executable: Any = Function()
        yield made_up("plain", "legacy", make=lambda: executable)

    def forced_candidate(self, options: PlanningOptions, target: Target) -> Candidate:
        given = options.algorithm
        if not isinstance(given, Engine):
            raise ValueError(f"algorithm must be an Engine; got {given!r}")
        lowering = next((one for one in self.lowerings() if one.space_to_depth == given.space_to_depth), None)
        return (
            rejected("engines", "none", "no such lowering")
            if lowering is None
            else candidate_for_engine(lowering, target, given)
        )


def _read(given: problem_notation.ParsedText, device: int) -> MadeUp:
    return MadeUp(given.operands[0].text.removeprefix("problem_"), given.values.get("dtype", "float32"), device=device)


SYNTAX = problem_notation.ProblemSyntax(
    ("made_up",),
    re.compile("problem_"),
    {"dtype": str},
    {},
    {},
    {},
    lambda problem: [
        "made_up",
        f"problem_{problem.name}",
        *([f"dtype={problem.dtype}"] * (problem.dtype != "float32")),
    ],
    _read,
)


class Cudnn:
    """The engines, which of them the heuristics propose (with knobs), and what was measured."""

    def __init__(self) -> None:
        self.engines: dict[int, Made] = {}
        self.proposed: list[tuple[int, Knobs]] = []
        self.measured: list[str] = []
        self.scarce: Callable[[Candidate], bool] = lambda candidate: False
        self.no_memory = False
        self.confirmed: list[str] = []  # the candidates that were run once, of choices from a store
        self.wrong: set[str] = set()  # those whose results are wrong then
        self.clock = 0.0  # seconds
        self.default: Candidate | None = None  # what every candidate is measured against
        self.memory = 4 * LOTS  # bytes of the device
        self.log: list[str] = []  # when memory is taken, freed, and given back

    def add(self, *made: Made, propose: bool = True) -> None:
        for one in made:
            self.engines[one.index] = one
            if propose:
                self.proposed.append((one.index, one.default))

    def configured(self, index: int, knobs: Knobs | None = None) -> Any:
        made = self.engines.get(index)
        if made is None or made.refuses(knobs or {}):
            raise raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize")
        pairs = tuple(sorted((knobs or {}).items())) or None
        return SimpleNamespace(
            engine=index,
            knobs=pairs,
            name=engine_name(index, pairs),
            notes=(*made.notes, *(("runtime_compilation",) if made.compiled else ())),
            numerical_notes=made.notes,
            behavior_notes=("runtime_compilation",) if made.compiled else (),
            finalize=lambda: self.planned(made, dict(knobs or {})),
        )

    def planned(self, made: Made, knobs: Knobs) -> Executable:
        self.clock += made.plans_in
        return Executable(made, knobs)

    # What takes the place of cudnnpy._planning.engines

    def heuristics(self, graph: Any, target: Target) -> list[Any]:
        return [self.configured(index, knobs) for index, knobs in self.proposed]

    def all_engines(self, graph: Any, target: Target, others: dict[int, StatusError]) -> Iterator[Any]:
        for index in range(max(self.engines) + 1):
            try:
                yield self.configured(index)
            except StatusError as error:
                others[index] = error

    def engine(self, graph: Any, target: Target, index: int, knobs: Knobs | None = None) -> Any:
        return self.configured(index, knobs)

    def knob_ranges(self, graph: Any, target: Target, index: int) -> Mapping[int, range]:
        ranges = self.engines[index].ranges
        if ranges is None:
            raise raw.error_of(raw.CUDNN_STATUS_NOT_SUPPORTED, "cudnnBackendFinalize")
        return ranges


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> Cudnn:
    there = Cudnn()

    class Bench:
        """In place of autotune's: a clock that the engines tell."""

        def __init__(self, *_: Any, **__: Any) -> None:
            if there.no_memory:
                raise MemoryError("no memory for tensors")
            there.log.append("taken")

        def close(self) -> None:
            there.log.append("freed")

        def measure(self, candidate: Candidate) -> bool:
            executable: Any = candidate.executable
            there.measured.append(candidate.name)
            there.clock += executable.made.runs_for
            if there.scarce(candidate):
                candidate.rejection_reason = "out of memory: no more"
            else:
                candidate.milliseconds = executable.made.time(executable.knobs)
            return not candidate.rejection_reason

        def finalists(self, ran: list[Candidate], default: Candidate | None) -> list[Candidate]:
            there.default = default
            return ran

        def confirm(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
            there.confirmed.append(candidate.name)
            if there.scarce(candidate):
                candidate.rejection_reason, candidate.executable = "out of memory: no more", None
                raise MemoryError("no more")
            candidate.rejection_reason = "wrong result: off by 1 of float64" if candidate.name in there.wrong else ""

    @contextlib.contextmanager
    def temporary(device: int, stream: int) -> Iterator[None]:
        try:
            yield
        finally:
            there.log.append("given back")

    for name, function in (("heuristics", there.heuristics), ("engines", there.all_engines), ("engine", there.engine)):
        monkeypatch.setattr(candidates, name, function)
    stand_in = SimpleNamespace(engine=there.engine, knob_ranges=there.knob_ranges)
    monkeypatch.setattr(search, "engines", stand_in)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: there.clock))
    monkeypatch.setattr(search, "Bench", Bench)
    handle = SimpleNamespace(default=lambda device: SimpleNamespace(set_stream=lambda stream: None))
    for module in (selection, plans, search):
        monkeypatch.setattr(module, "Handle", handle, raising=False)
        if hasattr(module, "Target"):
            monkeypatch.setattr(module, "Target", lambda *_: TARGET)
        monkeypatch.setattr(module, "on_device", lambda device: contextlib.nullcontext(), raising=False)
    monkeypatch.setattr(tuning_chooser, "measurer_of", measures_by(tuner()))
    monkeypatch.setattr(workspace, "free_bytes", lambda device: LOTS)
    monkeypatch.setattr(workspace, "total_bytes", lambda device: there.memory)
    monkeypatch.setattr(workspace, "trim_pool_afterwards", temporary)
    monkeypatch.setitem(problem_notation.SYNTAXES, "made up", __name__)
    return there


def tuner() -> Search:
    """Return a measurer that measures in this process, as the measuring process does."""
    return Search(SimpleNamespace(set_stream=lambda stream: None, _in_use=None))  # type: ignore[arg-type]


def asked(
    problem: Any, options: PlanningOptions | None = None, memory_limit: int | None = None, **how: Any
) -> TuningChooser:
    """Return a chooser with an empty store of its own, for a request on the made-up device."""
    options = options or PlanningOptions()
    limit = selection.limit_of(options, LOTS, memory_limit)
    return TuningChooser(
        Request(problem, options, TARGET, limit, may_run=memory_limit is None, **how), store=Layers(Store(""))
    )


def plan_with(measurer: Search | None, problem: Any, options: PlanningOptions, **how: Any) -> Plan:
    """Return the plan of a problem that a measurer measures, in place of `tuner()`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning_chooser, "measurer_of", measures_by(measurer))
        return selection.plan_for(problem, options, **how)


def measures_by(measurer: Search | None) -> Callable[[Request], Search | None]:
    """Return what takes the place of tuning.chooser.measurer_of."""
    return lambda request: measurer if request.options.prefer == "autotune" and request.may_run else None
