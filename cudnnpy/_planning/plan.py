"""Plan: a chosen candidate that runs on raw addresses, and that other processes can load from its text (choice.py)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from cudnnpy import raw
from cudnnpy._checks.byte_counts import bytes_text
from cudnnpy._checks.option_values import check_integer, error_repr
from cudnnpy._checks.public_dir import PublicDir
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch.address_validation import AddressCheck, address_check
from cudnnpy._launch.launcher import Launcher
from cudnnpy._launch.plan_cache import DEFAULT_LIMIT
from cudnnpy._launch.program import Operand, check_overlaps
from cudnnpy._launch.steps import Executable, is_relocatable, with_implicit_operands
from cudnnpy._planning.candidates import Candidate, configured, recorded
from cudnnpy._planning.choice import Choice, Engine, GpuKind, NamedOperand, SerializedPlan, deserialize, invalid_text
from cudnnpy._planning.chooser import chooser_class
from cudnnpy._planning.engines import Target, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy._planning.problem_notation import parse_plannable, text_of
from cudnnpy._process.module_state import declare
from cudnnpy.errors import CudnnError, LibraryVersionError, StatusError
from cudnnpy.handle import Handle, on_device, stream_address

if TYPE_CHECKING:  # a copy of the package may lack tuning
    from cudnnpy.tuning.profiles.device_profile import DeviceProfile
    from cudnnpy.tuning.store.entry import Entry

_ALIGNMENT = 16  # of the workspace, in bytes
_SOURCES = ("ranking", "heuristics", "engines", "knobs", "legacy")  # of choices in texts
_BEFORE_STREAM = slice(-1)  # of the addresses; a constant, because making a slice is noticeable in a launch

# A plan owns the kernels that were compiled for it at run time, and a CUDA graph that was captured from it may launch them
# later. Therefore the last ones stay, as many as a plan cache holds by default, though nothing else refers to them.
_compiled: deque[Executable] = deque(maxlen=DEFAULT_LIMIT)

declare(__name__, "_compiled")


def executable_of(candidate: Candidate) -> Executable:
    """Return the executable of a planned candidate, whose kernels a captured CUDA graph may launch later."""
    if not isinstance(candidate, Candidate):
        raise TypeError(
            f"candidate must be a planned Candidate; got {error_repr(candidate)}. "
            'Convolution(...).plan("forward", x, w) makes a plan for arrays'
        )
    executable = candidate.executable
    if executable is None:
        raise ValueError(
            f"candidate must be planned; got {candidate.name}: {candidate.rejection_reason or 'call prepare() first'}"
        )
    if candidate.compiled_at_run_time:
        _compiled.append(executable)
    return executable


def check_pointers(
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    results: int,
    size: int,
    pointers: Sequence[int],
    space: int,
) -> None:
    """Raise ValueError for an address that is null or misaligned, and for a result or workspace that overlaps an operand.

    The last `results` operands are results. The workspace has `size` bytes at the address `space`.
    """
    named = list(zip(names, specs, pointers, strict=True))
    for name, spec, pointer in named:
        if not pointer or pointer % spec.alignment:
            raise ValueError(
                f"{name} must be aligned to {spec.alignment} bytes; got address {pointer:#x}. Plan with "
                "TensorSpec(..., alignment=...) for less"
            )
    first = len(named) - results
    check_overlaps([Operand(name, spec, at >= first) for at, (name, spec, _) in enumerate(named)], pointers)
    if not size:
        return
    if not space:
        raise ValueError(f"workspace must be the address of {bytes_text(size)}; got {space:#x}")
    if space % _ALIGNMENT:
        raise ValueError(f"workspace must be aligned to {_ALIGNMENT} bytes; got address {space:#x}")
    for name, spec, pointer in named:
        if pointer < space + size and space < pointer + byte_extent(spec):
            raise ValueError(f"workspace must not overlap {name} in memory; got {bytes_text(size)} at {space:#x}")


class Plan(PublicDir):
    """One operation planned for one device: the chosen engine, and its execution with raw addresses.

    `Convolution.plan`, `FusedConvolution.plan` and `Graph.plan` make plans, and `Plan.from_json` reads one. A plan may be used
    by several threads: each has its own cuDNN handle. It stays valid as long as it is referenced.

    Examples
    --------
    >>> # on a GPU
    >>> import cudnnpy
    >>> x, w = cudnnpy.TensorSpec((8, 64, 56, 56)), cudnnpy.TensorSpec((64, 64, 3, 3))
    >>> plan = cudnnpy.Convolution(padding=1, prefer="no_workspace").plan("forward", x, w)
    >>> plan.operands, plan.workspace_size
    (('x', 'w', 'y'), 0)
    """

    problem: Problem  #: the operation, tensors and options that it was planned for
    operation: str  #: "forward", "backward_data", "backward_filter", or "graph"
    operands: tuple[str, ...]  #: the order of the addresses that execute() takes
    device: int  #: the ordinal of the device; 0 for a plan for a device profile
    #: the GPU that it is for, if it was planned without that GPU and cannot run here; otherwise None
    profile: DeviceProfile | None
    #: the plan of a device profile as an entry of a store, for `Store.put`; None for a GPU of this machine
    entry: Entry | None
    executable: Executable  #: the executable of a launch
    choice: Choice  #: the chosen candidate as data
    candidates: list[Candidate]  #: of a plan from a method plan(), all that were considered; see `candidates_table`
    workspace_size: int  #: in bytes
    #: the source of the candidate: "ranking", "heuristics", "engines", "knobs" or "legacy". If the ranking was not measured
    #: with the loaded release, with a note: "ranking of 9.19", or "heuristics (the ranking was not measured for 9.29)"
    source: str
    name: str = recorded()  #: the engine with its knobs, or the v7 algorithm
    engine: Engine | None = recorded()  #: the engine, which `algorithm=` takes; None for a v7 algorithm
    notes: tuple[str, ...] = recorded()  #: cuDNN's numerical notes
    deterministic: bool = recorded()  #: whether the result has the same bits every time
    milliseconds: float | None = recorded()  #: the time that autotune measured; None if it was not measured
    #: the layer of the store that had the choice, "user" or "application PATH"; "" if it was made now
    store_layer: str = recorded()
    is_relocatable: bool  #: whether the same kernels serve all addresses, so that they may be launched directly
    #: raises ValueError for addresses that are null or misaligned, or whose memory overlaps
    check_addresses: AddressCheck

    def __init__(
        self,
        problem: Problem,
        candidate: Candidate,
        *,
        operands: CallerOperands | None = None,
        options: PlanningOptions | None = None,
        planning_ms: float = 0.0,
        candidates: Sequence[Candidate] = (),
        is_provisional: bool = False,
        profile: DeviceProfile | None = None,
        entry: Entry | None = None,
    ) -> None:
        self.problem, self.device = problem, problem.device
        executable, names = executable_of(candidate), problem.operands
        self._caller = caller = operands or CallerOperands(names, tuple(range(len(names))))
        if operands is not None and problem.kind == "graph":  # of a text, which has them beside the graph
            self.problem = replace(cast(Any, problem), names=tuple(map(operands.names.__getitem__, operands.order)))
        self.executable = executable = with_implicit_operands(executable, list(caller.order), len(names))
        self.operation, self.operands = problem.operation, caller.names
        problem_specs = problem.specs
        specs = [problem_specs[position] for position in caller.positions]
        if problem.kind == "graph":
            ragged = [cast(Any, problem).ragged[position] for position in caller.positions]
            specs = [
                spec._replace(shape=(0,) * len(spec.shape)) if is_ragged else spec
                for spec, is_ragged in zip(specs, ragged, strict=True)
            ]
        self._address_count = len(names) + 2
        self.workspace_size = executable.workspace_size
        self.choice = candidate.choice._replace(workspace_size=self.workspace_size)
        self.source, self.candidates = chooser_class().source_text(candidate.source), list(candidates)
        self.profile, self.entry = profile, entry
        self._is_serializable = candidate.lowering is not None or entry is not None
        self._is_provisional = is_provisional  # whether to choose again, since a freeze forbade to measure
        self._options = PlanningOptions(tf32=not candidate.strict) if options is None else options
        self._planning_ms = planning_ms
        self.is_relocatable = all(s.alignment >= _ALIGNMENT for s in specs) and is_relocatable(executable)
        self.check_addresses = address_check(
            [byte_extent(spec) for spec in specs],
            range(len(specs) - problem.results, len(specs)),
            partial(check_pointers, caller.names, specs, problem.results, self.workspace_size),
            max((_ALIGNMENT, *(spec.alignment for spec in specs))),
            self.workspace_size,
        )
        self._of_thread = threading.local()

    def __repr__(self) -> str:
        end = "" if self.profile is None else f"; for {self.profile.description}"
        return f"<Plan {self.name} for {self.problem}; workspace {bytes_text(self.workspace_size)}{end}>"

    def execute(self, /, *addresses: int, **named: int) -> None:
        """Run on raw addresses: `execute(*operands, workspace, stream)`, each by position or by name.

            plan.execute(x_ptr, w_ptr, y_ptr, workspace_ptr, stream_ptr)
            plan.execute(x_ptr, w_ptr, y_ptr, workspace=workspace_ptr, stream=stream_ptr)

        The work is queued (cudnnBackendExecute, or the v7 function), and the memory must stay valid until it is done. From
        the third launch on, the kernels may be passed to the driver directly. New addresses are checked.

        Parameters
        ----------
        *addresses : int
            One for each of `operands`, in that order, then the workspace's, then the stream's. The workspace has
            `workspace_size` bytes, aligned to 16 bytes, and is 0 where that size is 0. Stream 0 is the default stream.
        **named : int
            Those that are not given by position: `workspace`, `stream`, and names in `operands`.

        Raises
        ------
        TypeError
            An address is missing or given twice, or a name is unknown.
        ValueError
            An address is null or misaligned, or memory overlaps.
        CudnnError
            The plan is for a device profile; or StatusError: cuDNN fails.
        """
        if named or len(addresses) != self._address_count:
            addresses = self._ordered(addresses, named)
        try:
            launcher = self._of_thread.launcher
        except AttributeError:
            self._check_runs()
            planned = object.__new__(Plan)  # without the launchers, so that no reference cycle delays the end of both
            planned.__dict__.update(vars(self), _of_thread=None)
            launcher = self._of_thread.launcher = Launcher(planned)
        stream = addresses[-1]
        if type(stream) is not int or stream >> 64:
            stream = stream_address(stream)
        launcher.run(addresses[_BEFORE_STREAM], stream)

    def _ordered(self, addresses: tuple[int, ...], named: dict[str, int]) -> tuple[int, ...]:
        """Return the addresses in the order of execute(), completed by the named ones."""
        self._check_runs()
        names = (*self.operands, "workspace", "stream")
        if len(addresses) + len(named) == len(names):
            try:
                return addresses + tuple(map(named.__getitem__, names[len(addresses) :]))
            except KeyError:
                pass
        given = "".join(f" and {name}=" for name in named)
        raise TypeError(f"addresses must be {', '.join(names)}; got {len(addresses)} addresses{given}")

    def _check_runs(self) -> None:
        """Raise CudnnError for a plan for a GPU that a profile describes."""
        if (profile := self.profile) is not None:
            raise CudnnError(
                f"plan must be for a GPU of this process to run; got one for {profile.description}, the device profile "
                f"{profile.source}. On such a GPU, load it by Plan.from_json(plan.to_json())"
            )

    def _trace_text(self) -> str:
        """Return the beginning of a traced line: the problem in the notation, and its choice as a comment."""
        if self.store_layer:
            source = f"from the store ({self.store_layer})"
        elif self._options.algorithm is not None:
            source = "algorithm="
        else:
            source = self.source if self.milliseconds is None else f"autotune ({self.milliseconds:.4g} ms)"
        return f"{text_of(self.problem, self._options)} # {self.name}; {source}"

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Any, ...]]:
        """By the text of to_json, so that a plan, and options that force one, can be pickled and copied."""
        if self.profile is not None and self.entry is not None:
            return profile_plan, (self.entry, self.profile, self._caller)
        return Plan.from_json, (self.to_json(), self.device)

    def check_serves(self, problem: Problem, operands: CallerOperands | None = None) -> None:
        """ValueError unless this is a plan for the problem, wherever its tensors lie, on the same device.

        `operands` are the caller's names and order, if they are not the problem's.
        """
        if self.profile is not None:
            raise ValueError(
                f"algorithm must be a plan for a GPU of this process; got one for {self.profile.description}, a device "
                "profile. Load it by Plan.from_json(plan.to_json())"
            )
        if self.device != problem.device:
            raise ValueError(
                f"algorithm must be a plan for device {problem.device}, where the arrays are; got one for device "
                f"{self.device}. Plan there, or move it there by Plan.from_json(plan.to_json(), device)"
            )
        if self.problem.aligned() != problem.aligned():
            raise ValueError(
                f"algorithm must be a plan for this problem; got one for another:\n  {self.problem}\n  not {problem}"
            )
        if operands is not None and operands != self._caller:
            raise ValueError(
                f"algorithm must be a plan with the operands {', '.join(operands.names)} in this order; "
                f"got one with {', '.join(self.operands)}"
            )

    def to_json(self) -> str:
        """The plan as text, which `from_json` reads: its problem, its engine with the knobs, and its GPU and cuDNN."""
        if self.entry is not None:
            return self.entry.serialized._replace(operands=self._named).text
        self._check_serializable()
        gpu = str(gpu_kind(Target(Handle.default(self.device))))
        return SerializedPlan(raw.version(), gpu, text_of(self.problem), self.choice.stored, self._named).text

    @property
    def _named(self) -> tuple[NamedOperand, ...]:
        """The operands as a text has them: none if names and order are the problem's own."""
        named = tuple(map(NamedOperand, self.operands, self._caller.positions))
        return () if named == tuple(map(NamedOperand, self.problem.operands, count())) else named

    def _check_serializable(self) -> None:
        """Raise TypeError for a plan of a candidate that another process cannot make again."""
        if not self._is_serializable:
            raise TypeError(f"candidate must come from candidates() to be serialized; got {self.name}")

    @classmethod
    def from_json(cls, text: str, device: int = 0) -> Plan:
        """Read a plan that `to_json` wrote. cuDNN plans its engine again.

        The text is never executed. An engine that is compiled at run time is compiled again.

        Parameters
        ----------
        text : str
            The result of `to_json`.
        device : int
            The ordinal of the device.

        Returns
        -------
        Plan
            The plan, ready to run.

        Raises
        ------
        TypeError, ValueError
            The text is not a serialized plan, was changed or truncated, is of an older cudnnpy, or is for another kind of
            GPU. Plan again then.
        LibraryVersionError
            Another release of cuDNN made the plan.
        StatusError
            cuDNN does not support the engine on this GPU.
        """
        content = deserialize(text)
        problem = parsed_problem(content, check_integer("device", device, 0))
        with on_device(device):  # an engine may be compiled for it
            candidate = serialized_candidate(content, problem, Target(Handle.default(device)))
            if candidate.rejection_reason:
                raise invalid_text(f"{candidate.name[:200]} {candidate.rejection_reason}")
            try:
                candidate.executable = candidate.make()
            except StatusError:
                raise
            except ValueError as error:  # the functions around the plan do not support its sizes
                raise invalid_text(str(error)) from error
        return Plan(problem, candidate, operands=_caller_operands(content, problem))


def _caller_operands(content: SerializedPlan, problem: Problem) -> CallerOperands | None:
    """Return the names and the order of a text's operands; None for the problem's own. Raises ValueError for others."""
    if not content.operands:
        return None
    names, indices = zip(*content.operands, strict=True)
    results = [*range(len(problem.operands))][-problem.results :]
    if sorted(indices) != [*range(len(problem.operands))] or len({*names}) < len(names) or "" in names:
        raise invalid_text(f"its operands must name each of {', '.join(problem.operands)} once")
    if sorted(indices[-problem.results :]) != results:
        raise invalid_text("its results must be its last operands")
    return CallerOperands(names, tuple(map(indices.index, range(len(indices)))))


def parsed_problem(content: SerializedPlan, device: int) -> Problem:
    """Return the problem of a serialized plan for a device. Raises ValueError if it is not a problem."""
    try:
        return parse_plannable(content.problem, device)[0]
    except ValueError as error:
        raise invalid_text(f"its problem is invalid: {error}") from error


def serialized_candidate(content: SerializedPlan, problem: Problem, target: Target) -> Candidate:
    """Return the candidate of a serialized plan, not yet planned, with its measured time and error.

    Raises LibraryVersionError if another release of cuDNN made the plan, ValueError if it was made for another GPU or its parts
    contradict each other, and StatusError if cuDNN does not support the engine here.
    """
    _check_origin(content, gpu_kind(target))
    given = content.choice
    if given.source not in _SOURCES:
        raise invalid_text(f"its source is {given.source[:60]!r}, which proposes no plans")
    if given.engine is None:
        options = PlanningOptions(algorithm=given.name.partition(" + ")[0], tf32=not given.strict)
        try:
            candidate = problem.forced_candidate(options, target)
        except (TypeError, ValueError) as error:
            raise invalid_text(f"its algorithm is invalid: {error}") from error
    else:
        lowering = next((one for one in problem.lowerings() if one.part_text == given.lowering), None)
        if lowering is None:
            raise invalid_text(f"its lowering is not one of {problem}")
        candidate = configured(lowering, target, given.engine)
        candidate.source = given.source
    for field in ("name", "source", "engine", "lowering", "strict"):
        expected, actual = getattr(candidate.choice, field), getattr(given, field)
        if expected != actual:
            raise invalid_text(f"its {field} must be {expected!r}; got {str(actual)[:200]!r}")
    measured = ("milliseconds", "spread", "error", "expected")
    candidate.choice = candidate.choice._replace(**{field: getattr(given, field) for field in measured})
    return candidate


def _check_origin(content: SerializedPlan, gpu: GpuKind) -> None:
    if content.cudnn != raw.version():
        release = raw.version_text(content.cudnn) if 90000 <= content.cudnn < 100000 else str(content.cudnn)[:20]
        raise LibraryVersionError(
            f"text must be a plan of the loaded cuDNN, {raw.version_text(raw.version())}; got one of cuDNN {release}, "
            "whose engines have other numbers: plan again"
        )
    if content.gpu != str(gpu):
        raise ValueError(f"text must be a plan for this GPU, {gpu}; got one for {content.gpu[:200]}: plan again")


def profile_plan(entry: Entry, profile: DeviceProfile, operands: CallerOperands | None = None) -> Plan:
    """Return the plan for a device profile of an entry that the planner's child process returned. It cannot run."""
    size_alone = SimpleNamespace(workspace_size=entry.choice.workspace_size or 0)  # execute refuses to launch it
    chosen = Candidate(entry.choice, executable=cast(Executable, size_alone))
    considered = [*map(Candidate, entry.candidates)]
    problem = parsed_problem(entry.serialized, 0)
    return Plan(problem, chosen, operands=operands, candidates=considered, profile=profile, entry=entry)
