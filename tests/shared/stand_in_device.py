"""Stand-ins for arrays, C's functions and a device, for calls without a GPU. Keys, caches, launchers and handles are real.

Every call of an operation on the stand-ins is checked: its launches must be on the memory of that call's arrays, or in the
workspace of its stream, and on its stream and device, whether they are launched by cuDNN or directly.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from ctypes import c_void_p, cast
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from made_up_candidates import made_up
from stand_in_driver import DONE, DriverFixture, StandInDriver

from cudnnpy import raw
from cudnnpy._arrays import array_libraries as arrays
from cudnnpy._arrays import workspace
from cudnnpy._arrays.array_libraries import ArrayLibrary
from cudnnpy._core.layouts import TensorSpec, byte_extent, packed_strides
from cudnnpy._core.owned import Owned
from cudnnpy._launch import dispatch, launcher
from cudnnpy._launch.direct import direct_launch
from cudnnpy._launch.dispatch import ArrayOperation
from cudnnpy._layers import convolution
from cudnnpy._layers.lowerings.convolution_candidates import ConvolutionProblem
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.chooser import Chooser, Chosen
from cudnnpy._planning.engines import GraphExecutable
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.backend import Descriptor
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import Handle, stream_address

STREAM, OTHER = 0x5000, 0x6000
_addresses = itertools.count(1 << 20, 1 << 24)


class Recorded:
    """A plan that keeps the addresses it is given."""

    name, device, is_relocatable, workspace_size = "recorded", 0, False, 0

    def __init__(self) -> None:
        self.bound: list[tuple[int, ...]] = []

    @property
    def executable(self) -> Recorded:
        return self

    def check_addresses(self, operands: Any, workspace: int) -> None:
        """Takes any."""

    def bind(self, handle: Any, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        self.bound.append((*pointers, workspace))
        return lambda: 0


class Array:
    """A stand-in for a device array: an address, and what a signature holds."""

    def __init__(
        self,
        *shape: int,
        dtype: str = "float32",
        strides: tuple[int, ...] | None = None,
        device: int = 0,
        pointer: int | None = None,
        writable: bool = True,
    ) -> None:
        self.shape, self.dtype, self.device, self.writable = shape, dtype, device, writable
        self.strides = strides or packed_strides(shape)
        self.pointer = next(_addresses) if pointer is None else pointer


class StandInPlan(Descriptor):
    """A stand-in for an execution plan, which says what workspace it needs."""

    def __init__(self, workspace_size: int = 0) -> None:
        self._pointer = cast(c_void_p(next(_numbers)), raw.cudnnBackendDescriptor_t)
        self._workspace_size = workspace_size

    def __getitem__(self, attribute: int) -> Any:
        assert attribute == raw.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE
        return self._workspace_size


_numbers = itertools.count(0x1000, 0x10)  # of C objects
_FILL_BYTES = {f"cuMemsetD{8 * size}Async": size for size in (1, 2, 4)}  # of an element


def number_of(pointer: Any) -> int:
    """The number of a C object."""
    return c_void_p.from_buffer_copy(pointer).value or 0


class Launch(NamedTuple):
    """What a C function was launched with. `addresses` are those of device memory, by the names of C's parameters.

    Those of a graph are by the names of its problem's operands, and "workspace", of which it needs `space` bytes.
    """

    name: str
    arguments: tuple[Any, ...]
    addresses: dict[str, int]
    stream: int
    device: int
    space: int = 0

    @property
    def is_fill(self) -> bool:
        """Whether the driver fills memory."""
        return self.name.startswith("cuMemset")


class Memory(NamedTuple):
    """Device memory: its first byte, and its size in bytes."""

    start: int
    size: int

    def holds(self, address: int, size: int = 1) -> bool:
        """Whether bytes from an address on are all inside."""
        return self.start <= address and address + size <= self.start + self.size


def memory_of(array: Array) -> Memory:
    """Where an array lies."""
    return Memory(array.pointer, byte_extent(TensorSpec(array.shape, array.dtype, array.strides)))


class ThreadState(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.device = 0  # the current one
        self.captured: list[Launch] | None = None  # what a direct launch is being made of
        self.launches: list[Launch] = []
        self.handles: dict[int, Handle] = {}


class Direct:
    """A stand-in for a launch of a plan's kernels without cuDNN."""

    def __init__(self, stand_in: StandInDevice, bind: Callable[[tuple[int, ...]], Callable[[], int]]) -> None:
        self.stand_in, self.bind = stand_in, bind
        self.addresses: tuple[int, ...] | None = None
        self.other_pointers = 0

    def launch(self, addresses: tuple[int, ...], stream: int) -> bool:
        self.addresses = addresses
        for launch in self.stand_in.captured(lambda: self.bind(addresses)()):
            self.stand_in.c_calls[launch.name] += 1
            self.stand_in.note(launch._replace(stream=stream))
        return True


class StandInDevice:
    """What the stand-ins record and may be told."""

    def __init__(self) -> None:
        self.c_calls: Counter[str] = Counter()  # calls of C functions
        self.driver: StandInDriver
        self.stream = STREAM
        self.capturing: set[int] = set()
        self.choices: list[tuple[ConvolutionProblem, PlanningOptions, Engine | None]] = []  # for convolutions
        self.planned_graphs: list[GraphProblem] = []
        self.workspace_size = 0
        self.is_relocatable = False  # so that no launch of a plan is direct
        self.allocated: list[tuple[int, int, int]] = []
        self.launches: list[Launch] = []
        self.thread_state = ThreadState()
        self.streams: dict[int, int] = {}  # of handles, by their numbers
        self.attributes: dict[int, dict[int, list[Any]]] = {}  # attributes of backend descriptors, by their numbers
        self.workspace_needed: dict[int, int] = {}  # bytes of workspace, by the plans' numbers
        self.operand_names: dict[int, dict[int, str]] = {}  # names by unique ids, by the plans' numbers
        self.workspaces: list[tuple[Memory, int, int, int]] = []  # with the device, the stream and the thread
        self.constants: list[Memory] = []
        self.direct_launches = 0  # that were made
        self.packs: set[int] = set()  # the variant packs that have not been destroyed, by their numbers

    def executable(self, uids: tuple[int, ...], operands: tuple[str, ...]) -> GraphExecutable:
        plan = StandInPlan(self.workspace_size)
        self.operand_names[number_of(plan.pointer)] = dict(zip(uids, operands, strict=True))
        self.workspace_needed[number_of(plan.pointer)] = self.workspace_size
        executable = GraphExecutable(plan, uids)
        executable.__dict__["is_relocatable"] = self.is_relocatable
        return executable

    def choose(self, chooser: Chooser) -> Chosen:
        problem: Any = chooser.request.problem
        assert self.thread_state.device == problem.device
        if isinstance(problem, GraphProblem):
            found = next(self.guesses(problem))
        else:
            self.choices.append((problem, chooser.request.options, chooser.request.preferred_engine))
            executable = self.executable(tuple(range(len(problem.operands))), problem.operands)
            found = made_up("made up", make=lambda: executable, engine=Engine(7, {1: 2}))
        assert found.prepare() is not None
        return Chosen(found, lambda: [found])

    def guesses(self, problem: Any) -> Iterator[Candidate]:
        assert self.thread_state.device == problem.device
        self.planned_graphs.append(problem)
        uids = problem.graph.in_memory
        yield made_up("made up", make=lambda: self.executable(uids, problem.operands))

    def called(self, name: str, *arguments: Any) -> int:
        """A C function that does nothing, and succeeds; sizes are told, and what launches are on is noted."""
        if self.thread_state.captured is None:
            self.c_calls[name] += 1
        if name.startswith("cudnnGetConvolution") and name.endswith("WorkspaceSize"):
            arguments[-1]._obj.value = self.workspace_size
        elif name == "cudnnSetStream":
            self.streams[number_of(arguments[0].pointer)] = arguments[1]
        elif name == "cudnnBackendCreateDescriptor":
            c_void_p.from_buffer(arguments[1]._obj).value = number = next(_numbers)
            self.packs.add(number)
        elif name == "cudnnBackendDestroyDescriptor":
            self.packs.discard(number_of(arguments[0]))
            self.attributes.pop(number_of(arguments[0]), None)
        elif name == "cudnnBackendSetAttribute":
            descriptor, attribute, _, _, values = arguments
            held = list(memoryview(values).cast("Q")) if isinstance(values, bytes) else list(values)
            self.attributes.setdefault(number_of(descriptor), {})[attribute] = held
        return 0

    def launched(self, name: str, *arguments: Any) -> int:
        """A C function that launches work: it is noted, or becomes part of the direct launch that is being made."""
        space = 0
        if name.startswith("cuMemset"):
            addresses, stream = {"destination": arguments[0]}, arguments[3]
        elif name == "cudnnBackendExecute":
            addresses, stream = self.in_pack(*arguments[1:]), self.streams.get(number_of(arguments[0]), 0)
            space = self.workspace_needed.get(number_of(arguments[1]), 0)
        else:
            addresses = {
                parameter: argument
                for (parameter, kind, _), argument in zip(raw.parameters(name), arguments, strict=True)
                if kind.removeprefix("const ") == "void *" and isinstance(argument, int)
            }
            stream = self.streams.get(number_of(arguments[0]), 0)
        noted = arguments[:2] if name == "cudnnBackendExecute" else arguments  # a reference to the pack would keep it
        launch = Launch(name, noted, addresses, stream, self.thread_state.device, space)
        captured = self.thread_state.captured
        if captured is not None:
            captured.append(launch)
            return 0
        self.note(launch)
        return self.called(name, *arguments)

    def note(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.thread_state.launches.append(launch)

    def in_pack(self, plan: Any, pack: Any) -> dict[str, int]:
        """The addresses of a variant pack."""
        held, names = self.attributes[number_of(pack)], self.operand_names.get(number_of(plan), {})
        uids = held[raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS]
        (space,) = held[raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE]
        addresses = zip(uids, held[raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS], strict=True)
        return {**{names.get(uid, str(uid)): address for uid, address in addresses}, "workspace": space or 0}

    def captured(self, launch: Callable[[], int]) -> list[Launch]:
        """What a launch queues."""
        captured = self.thread_state.captured = []
        try:
            assert launch() == 0
        finally:
            self.thread_state.captured = None
        return captured

    def direct(
        self, bind: Callable[[tuple[int, ...]], Callable[[], int]], handle: Handle, pointers: tuple[int, ...]
    ) -> Direct:
        """A launch of a plan's kernels at all addresses."""
        self.direct_launches += 1
        return Direct(self, bind)

    def check(self, arrays: list[Array], stream: int, launches: list[Launch]) -> None:
        """What was launched for a call: on the call's arrays, all of them, and on its stream and device."""
        mine = [memory_of(array) for array in arrays]
        device, thread = arrays[0].device, threading.get_ident()
        scratch = [m for m, *whose in self.workspaces if whose == [device, stream, thread]]
        for launch in launches:
            assert launch.stream == stream, f"{launch.name} runs on stream {launch.stream:#x}, not on {stream:#x}"
            assert launch.device == device, f"{launch.name} runs on device {launch.device}, not on {device}"
            size = launch.arguments[2] * _FILL_BYTES[launch.name] if launch.is_fill else 1
            for name, address in launch.addresses.items():
                if name == "workspace" and (address or launch.space):
                    known = any(memory.holds(address, launch.space) for memory in scratch)
                else:
                    known = not address or any(m.holds(address, size) for m in (*mine, *scratch, *self.constants))
                assert known, f"{launch.name}: {name}, {address:#x}, is not in this call's arrays or workspace"
        if launches and all(memory.size for memory in mine):
            used = {address for launch in launches for address in launch.addresses.values()}
            unused = [hex(m.start) for m in mine if not any(map(m.holds, used))]
            assert not unused, f"no launch has {', '.join(unused)} of this call's arrays"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, cuda_driver: DriverFixture) -> StandInDevice:
    stand_in = StandInDevice()
    library = ArrayLibrary(
        "made up",
        lambda array: (array.pointer, (array.shape, array.strides, array.dtype, array.device)),
        lambda device: stand_in.stream,
        lambda shape, strides, dtype, device: lambda: Array(*shape, dtype=dtype.name, strides=strides, device=device),
        lambda array: array.writable,
        lambda array: array.pointer,
    )
    monkeypatch.setitem(arrays._libraries, Array, library)

    def bound(name: str) -> Callable[..., int]:
        return lambda *arguments: stand_in.launched(name, *arguments)

    def unchecked(name: str) -> Callable[..., int]:
        return bound(name) if name == "cudnnBackendExecute" else lambda *arguments: stand_in.called(name, *arguments)

    def created(self: Owned, *_: Any) -> Any:
        stand_in.c_calls[self._create] += 1
        return cast(c_void_p(next(_numbers)), raw.cudnnBackendDescriptor_t)

    def allocate(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
        stand_in.allocated.append((size, device, stream))
        stand_in.constants.append(Memory(next(_addresses), size))
        return stand_in.constants[-1].start, size, None

    monkeypatch.setattr(raw, "call", stand_in.called)
    monkeypatch.setattr(raw, "unchecked", unchecked)
    monkeypatch.setattr(raw, "bound", bound)
    monkeypatch.setattr(Owned, "_new", created)
    monkeypatch.setattr(
        Owned, "_when_collected", lambda self, pointer: lambda: None
    )  # there is nothing to destroy, ever

    def is_capturing(stream: int, state: Any) -> int:
        state._obj.value = stream in stand_in.capturing
        return 0

    def current_device(device: Any) -> int:
        device._obj.value = stand_in.thread_state.device
        return 0

    stand_in.driver = cuda_driver(
        cuMemsetD8Async=lambda *arguments: (stand_in.launched("cuMemsetD8Async", *arguments),),
        cuMemsetD16Async=lambda *arguments: (stand_in.launched("cuMemsetD16Async", *arguments),),
        cuMemsetD32Async=lambda *arguments: (stand_in.launched("cuMemsetD32Async", *arguments),),
        cuStreamIsCapturing=is_capturing,
        cuCtxGetDevice=current_device,
        cuStreamGetCaptureInfo=lambda stream: (*DONE, None, 1),
        cuStreamSynchronize=lambda stream: DONE,
        cuThreadExchangeStreamCaptureMode=lambda mode: (*DONE, mode),
    )

    def default(cls: type[Handle], device: Any = None) -> Handle:
        """A real Handle for each thread and device, made without a GPU."""
        handles = stand_in.thread_state.handles
        if device not in handles:
            made = handles[device] = Handle.__new__(Handle)
            made._pointer = cast(c_void_p(next(_numbers)), raw.cudnnHandle_t)
            made._address = 0
        return handles[device]

    @contextlib.contextmanager
    def on_device(device: int) -> Iterator[tuple[int, int]]:
        before, stand_in.thread_state.device = stand_in.thread_state.device, device
        try:
            yield device, 1
        finally:
            stand_in.thread_state.device = before

    real = dispatch.run

    def run(
        operation: str, owner: Any, prepare: Any, names: Any, inputs: Any, outs: Any, stream: Any, *rest: Any
    ) -> Any:
        launches = stand_in.thread_state.launches = []
        results = real(operation, owner, prepare, names, inputs, outs, stream, *rest)
        given = (*inputs, *outs, *(results if isinstance(results, tuple) else (results,)))
        arrays = list({id(array): array for array in given if isinstance(array, Array)}.values())
        if isinstance(inputs[0], Array):
            stand_in.check(arrays, stand_in.stream if stream is None else stream_address(stream), launches)
        return results

    monkeypatch.setattr(dispatch, "run", run)
    monkeypatch.setattr(ArrayOperation, "_run", staticmethod(run))
    monkeypatch.setattr(Handle, "default", classmethod(default))
    for module in (dispatch, launcher, convolution, selection):
        monkeypatch.setattr(module, "on_device", on_device)
    monkeypatch.setattr(launcher, "has_several_devices", lambda: True)
    monkeypatch.setattr(direct_launch, "make_direct_launch", stand_in.direct)
    launcher.set_direct_launches(True)
    monkeypatch.setattr(selection, "choose", stand_in.choose)
    monkeypatch.setattr(workspace, "free_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(workspace, "allocate_from_pool", allocate)
    real_take = workspace.allocate

    def take(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
        found = real_take(size, device, stream, capturing)
        stand_in.workspaces.append((Memory(found[0], size), device, stream, threading.get_ident()))
        return found

    monkeypatch.setattr(workspace, "allocate", take)

    def allocator(size: int, device: int, stream: int) -> Any:
        stand_in.allocated.append((size, device, stream))
        return SimpleNamespace(handle=next(_addresses))

    workspace.set_allocator(allocator)
    return stand_in


def calls_of_c(stand_in: StandInDevice) -> dict[str, int]:
    """Calls of C, but for destroying what earlier tests left."""
    return {name: count for name, count in stand_in.c_calls.items() if not name.startswith("cudnnDestroy")}
