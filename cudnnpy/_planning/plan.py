"""Plan: a chosen candidate that runs on raw addresses, and that other processes can load as text."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec, byte_extent
from cudnnpy._launch.address_validation import AddressCheck, address_check
from cudnnpy._launch.implicit_operands import with_implicit_operands
from cudnnpy._launch.launcher import Launcher
from cudnnpy._launch.plan_cache import DEFAULT_LIMIT
from cudnnpy._launch.steps import Executable, is_relocatable
from cudnnpy._options.byte_counts import bytes_text
from cudnnpy._options.checks import check_integer, error_repr
from cudnnpy._options.public_dir import PublicDir
from cudnnpy._planning.candidates import Candidate, Engine
from cudnnpy._planning.chooser import chooser_class
from cudnnpy._planning.engines import Target
from cudnnpy._planning.gpu_kind import GpuKind, gpu_kind
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._planning.plan_serialization import (
    SerializedPlan,
    candidate_of,
    deserialize,
    invalid_text,
    parsed_problem,
    serialize,
)
from cudnnpy._planning.problem import CallerOperands, Problem
from cudnnpy._planning.problem_notation import text_of
from cudnnpy._process_state import declare
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle, on_device, stream_address

if TYPE_CHECKING:  # a copy of the package may lack tuning
    from cudnnpy._planning.device_profile import DeviceProfile
    from cudnnpy._store.entry import Entry

_ALIGNMENT = 16  # of the workspace, in bytes
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
    pointers: Sequence[int],
    workspace: tuple[int, int] = (0, 0),
) -> None:
    """Raise ValueError for an address that is null or misaligned, and for a result or workspace that overlaps an operand.

    The last `results` operands are results. `workspace` is its address and its size in bytes.
    """
    named = list(zip(names, specs, pointers, strict=True))
    for name, spec, pointer in named:
        if not pointer or pointer % spec.alignment:
            raise ValueError(
                f"{name} must be aligned to {spec.alignment} bytes; got address {pointer:#x}. Plan with "
                "TensorSpec(..., alignment=...) for less"
            )
    for result, spec, start in named[-results:]:
        end = start + byte_extent(spec)
        for name, other, pointer in named:
            if name == result:
                continue
            if pointer < end and start < pointer + byte_extent(other):
                raise ValueError(f"{result} must not overlap {name} in memory; got overlapping arrays")
    space, size = workspace
    if not size:
        return
    if not space:
        raise ValueError(f"workspace must be the address of {bytes_text(size)}; got {space:#x}")
    if space % _ALIGNMENT:
        raise ValueError(f"workspace must be aligned to {_ALIGNMENT} bytes; got address {space:#x}")
    for name, spec, pointer in named:
        if pointer < space + size and space < pointer + byte_extent(spec):
            raise ValueError(f"workspace must not overlap {name} in memory; got {bytes_text(size)} at {space:#x}")


def _explain(
    names: Sequence[str], specs: Sequence[TensorSpec], results: int, size: int, operands: Sequence[int], workspace: int
) -> None:
    check_pointers(names, specs, results, operands, (workspace, size))


def _line(problem: Problem, options: PlanningOptions, name: str, source: str) -> str:
    """Return the beginning of a traced line: the problem in the notation, and its choice as a comment."""
    return f"{text_of(problem, options)} # {name}; {source}"


@dataclass(slots=True)
class _Work:
    """A Launchable (launcher.py) of a plan."""

    name: str
    device: int
    workspace_size: int
    is_relocatable: bool
    executable: Executable
    check_addresses: AddressCheck
    _trace_text: Callable[[], str]
    _planning_ms: float


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
    profile: DeviceProfile | None = None
    #: the plan of a device profile as an entry of a store, for `Store.put`; None for a GPU of this machine
    entry: Entry | None = None
    executable: Executable  #: the executable of a launch
    workspace_size: int  #: in bytes
    #: the source of the candidate: "ranking", "heuristics", "engines", "knobs" or "legacy". If the ranking was not measured
    #: with the loaded release, with a note: "ranking of 9.19", or "heuristics (the ranking was not measured for 9.29)"
    source: str
    name: str  #: the engine with its knobs, or the v7 algorithm
    engine: Engine | None  #: the engine, which `algorithm=` takes; None for a v7 algorithm
    notes: tuple[str, ...]  #: cuDNN's numerical notes
    deterministic: bool  #: whether the result has the same bits every time
    milliseconds: float | None  #: the time that autotune measured; None if it was not measured
    is_relocatable: bool  #: whether the same kernels serve all addresses, so that they may be launched directly
    #: raises ValueError for addresses that are null or misaligned, or whose memory overlaps
    check_addresses: AddressCheck
    store_layer: str  #: the layer of the store that had the choice, "user" or "application PATH"; "" if it was made now
    candidates: list[Candidate]  #: of a plan from a method plan(), all that were considered; see `candidates_table`

    def __init__(self, problem: Problem, candidate: Candidate, operands: CallerOperands | None = None) -> None:
        count = len(problem.operands)
        self._caller = caller = operands or CallerOperands(problem.operands, tuple(range(count)))
        executable = with_implicit_operands(executable_of(candidate), list(caller.order), count)
        specs = [problem.specs[caller.order.index(at)] for at in range(count)]
        self.problem, self.executable = problem, executable
        self.operation, self.operands = problem.operation, caller.names
        self._address_count = len(self.operands) + 2
        self.source, self._source = chooser_class().source_text(candidate.source), candidate.source
        self.name, self.notes = candidate.name, candidate.notes
        self.deterministic, self.milliseconds = candidate.deterministic, candidate.milliseconds
        self._strict, self._lowering = candidate.strict, candidate.lowering
        self.engine = candidate.engine
        self.workspace_size = executable.workspace_size
        self.device = problem.device
        self.is_relocatable = all(s.alignment >= _ALIGNMENT for s in specs) and is_relocatable(executable)
        self.store_layer, self.candidates = "", []
        self._is_provisional = False  # whether the choice is to be made again, since a freeze forbade to measure it
        self._options, self._planning_ms = PlanningOptions(tf32=not candidate.strict), 0.0
        self.check_addresses = address_check(
            [byte_extent(spec) for spec in specs],
            range(count - problem.results, count),
            partial(_explain, caller.names, specs, problem.results, self.workspace_size),
            max((_ALIGNMENT, *(spec.alignment for spec in specs))),
            self.workspace_size,
        )
        self._of_thread = threading.local()

    def __repr__(self) -> str:
        return f"<Plan {self.name} for {self.problem}; workspace {bytes_text(self.workspace_size)}>"

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
        StatusError
            cuDNN fails.
        """
        if named or len(addresses) != self._address_count:
            addresses = self._ordered(addresses, named)
        try:
            launcher = self._of_thread.launcher
        except AttributeError:
            launcher = self._of_thread.launcher = Launcher(self._work())
        stream = addresses[-1]
        if type(stream) is not int or stream >> 64:
            stream = stream_address(stream)
        launcher.run(addresses[_BEFORE_STREAM], stream)

    def _ordered(self, addresses: tuple[int, ...], named: dict[str, int]) -> tuple[int, ...]:
        """Return the addresses in the order of execute(), completed by the named ones."""
        names = (*self.operands, "workspace", "stream")
        if len(addresses) + len(named) == len(names):
            try:
                return addresses + tuple(map(named.__getitem__, names[len(addresses) :]))
            except KeyError:
                pass
        given = "".join(f" and {name}=" for name in named)
        raise TypeError(f"addresses must be {', '.join(names)}; got {len(addresses)} addresses{given}")

    def _work(self) -> _Work:
        """Return the launchable part. It does not refer to the plan, so that no reference cycle delays the end of both."""
        return _Work(
            self.name,
            self.device,
            self.workspace_size,
            self.is_relocatable,
            self.executable,
            self.check_addresses,
            self._trace_text,
            self._planning_ms,
        )

    @property
    def _trace_text(self) -> Callable[[], str]:
        """The function that returns the beginning of a traced line. It does not refer to the plan."""
        if self.store_layer:
            source = f"from the store ({self.store_layer})"
        elif self._options.algorithm is not None:
            source = "algorithm="
        else:
            source = self.source if self.milliseconds is None else f"autotune ({self.milliseconds:.4g} ms)"
        return partial(_line, self.problem, self._options, self.name, source)

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Any, ...]]:
        """By the text of to_json, so that a plan, and options that force one, can be pickled and copied."""
        return Plan.from_json, (self.to_json(), self.device)

    def check_serves(self, problem: Problem) -> None:
        """ValueError unless this is a plan for the problem, wherever its tensors lie, on the same device."""
        if self.device != problem.device:
            raise ValueError(
                f"algorithm must be a plan for device {problem.device}, where the arrays are; got one for device "
                f"{self.device}. Plan there, or move it there by Plan.from_json(plan.to_json(), device)"
            )
        if self.problem.aligned() != problem.aligned():
            raise ValueError(
                f"algorithm must be a plan for this problem; got one for another:\n  {self.problem}\n  not {problem}"
            )

    def to_json(self) -> str:
        """The plan as text, which `from_json` reads: its problem, its engine with the knobs, and its GPU and cuDNN."""
        return self._serialized(gpu_kind(Target(Handle.default(self.device))))

    def _serialized(self, gpu: GpuKind) -> str:
        lowering, engine = self._lowering, self.engine
        if lowering is None:
            raise TypeError(f"candidate must come from candidates() to be serialized; got {self.name}")
        content = SerializedPlan(
            cudnn=raw.version(),
            gpu=str(gpu),
            problem=text_of(self.problem, PlanningOptions(tf32=not self._strict)),
            part=lowering.part_text,
            name=self.name,
            engine=None if engine is None else engine.index,
            knobs=[] if engine is None else [list(pair) for pair in dict(engine.knobs or {}).items()],
            algorithm=self.name.removesuffix(lowering.suffix) if engine is None else None,
            source=self._source,
            milliseconds=self.milliseconds,
        )
        return serialize(content)

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
        problem, options = parsed_problem(content, check_integer("device", device, 0))
        with on_device(device):  # an engine may be compiled for it
            candidate = candidate_of(content, problem, options, Target(Handle.default(device)))
            if candidate.rejection_reason:
                raise invalid_text(f"{candidate.name[:200]} {candidate.rejection_reason}")
            try:
                candidate.executable = candidate.make()
            except StatusError:
                raise
            except ValueError as error:  # the functions around the plan do not support its sizes
                raise invalid_text(str(error)) from error
        return Plan(problem, candidate)
