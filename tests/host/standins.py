"""Arrays, C functions and a device that are none, for calls without a GPU. Keys, caches, launchers and handles are real."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from ctypes import c_void_p, cast
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver

from cudnnpy import raw
from cudnnpy._core import driver as driver_calls
from cudnnpy._core.layouts import packed_strides
from cudnnpy._core.owned import Owned
from cudnnpy._memory import arrays, workspace
from cudnnpy._memory.arrays import ArrayLibrary
from cudnnpy._planning import selection
from cudnnpy._planning.candidates import Candidate, Engine
from cudnnpy._planning.engines import GraphExecutable
from cudnnpy._planning.options import PlanningOptions
from cudnnpy._runtime import dispatch, launcher, plan_cache
from cudnnpy.backend import Descriptor
from cudnnpy.convolution import convolution, operation
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.descriptors import DropoutDescriptor
from cudnnpy.graph import graph
from cudnnpy.graph.problem import GraphProblem
from cudnnpy.handle import Handle
from cudnnpy.ops import parameters

STREAM, OTHER = 0x5000, 0x6000
_addresses = itertools.count(1 << 20, 1 << 24)


class Array:
    """A device array: an address, and what a signature holds."""

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


class Unreal(Descriptor):
    """An execution plan that no C function has made."""

    def __init__(self) -> None:
        self._pointer = cast(c_void_p(0x99), raw.cudnnBackendDescriptor_t)


class World:
    """What the stand-ins record and may be told."""

    def __init__(self) -> None:
        self.c: Counter[str] = Counter()  # calls of C functions
        self.stream = STREAM
        self.capturing: set[int] = set()
        self.chosen: list[tuple[ConvolutionProblem, PlanningOptions, Engine | None]] = []  # for convolutions
        self.graphs: list[GraphProblem] = []  # that were planned
        self.workspace_size = 0
        self.reserve_size = 64  # what C says that dropout needs
        self.source = "legacy"  # whose launches are not replayed; the rest is test_launcher.py's
        self.allocated: list[tuple[int, int, int]] = []
        self.launches: list[tuple[str, tuple[Any, ...]]] = []  # C functions that were launched, with their arguments

    def executable(self, uids: tuple[int, ...]) -> GraphExecutable:
        made = GraphExecutable.__new__(GraphExecutable)
        made.plan = Unreal()
        made.uids = uids
        made._constants = made._hosts = ()
        made.workspace_size = self.workspace_size
        return made

    def choose(
        self,
        problem: ConvolutionProblem | GraphProblem,
        options: PlanningOptions,
        target: Any,
        free: int,
        tune: Any,
        before: Engine | None,
        *_: Any,
    ) -> tuple[Candidate, list[Candidate]]:
        if isinstance(problem, GraphProblem):
            found = next(self.guesses(problem))
        else:
            self.chosen.append((problem, options, before))
            executable = self.executable(tuple(range(len(problem.operands))))
            found = Candidate(self.source, "made up", (), True, lambda: executable, engine=Engine(7, {1: 2}))
        assert found.prepare() is not None
        return found, [found]

    def guesses(self, problem: GraphProblem, *_: Any) -> Iterator[Candidate]:
        self.graphs.append(problem)
        uids = tuple(node.uid for node in (*problem.graph.inputs, *problem.graph.outputs))
        yield Candidate(self.source, "made up", (), True, lambda: self.executable(uids))

    def called(self, name: str, *arguments: Any) -> int:
        """A C function that does nothing, and succeeds; only the size of dropout's reserve is told."""
        self.c[name] += 1
        if name == "cudnnDropoutGetReserveSpaceSize":
            arguments[-1]._obj.value = self.reserve_size
        return 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    there = World()
    library = ArrayLibrary(
        "made up",
        lambda array: (array.pointer, (array.shape, array.strides, array.dtype, array.device)),
        lambda device: there.stream,
        lambda shape, strides, dtype, device: lambda: Array(*shape, dtype=dtype.name, strides=strides, device=device),
        lambda array: array.writable,
        lambda array: array.pointer,
    )
    monkeypatch.setitem(arrays._libraries, Array, library)

    def launched(name: str) -> Callable[..., int]:
        def launch(*arguments: Any) -> int:
            there.launches.append((name, arguments))
            return there.called(name, *arguments)

        return launch

    def created(self: Owned, *_: Any) -> Any:
        there.c[self._create] += 1
        return cast(c_void_p(0x88), raw.cudnnBackendDescriptor_t)

    def allocate(size: int, device: int, stream: int, capturing: bool = False) -> tuple[int, int, Any]:
        there.allocated.append((size, device, stream))
        return next(_addresses), size, None

    monkeypatch.setattr(raw, "call", there.called)
    monkeypatch.setattr(raw, "unchecked", launched)
    monkeypatch.setattr(raw, "bound", launched)
    monkeypatch.setattr(Owned, "_new", created)
    monkeypatch.setattr(
        Owned, "_when_collected", lambda self, pointer: lambda: None
    )  # there is nothing to destroy, ever
    for fill in ("cuMemsetD16Async", "cuMemsetD32Async"):
        monkeypatch.setattr(driver, fill, lambda *arguments, fill=fill: (launched(fill)(*arguments),))
    handles = threading.local()

    def default(cls: type[Handle], device: Any = None) -> Handle:
        """A real Handle for each thread, made without a GPU."""
        if not hasattr(handles, "one"):
            handles.one = Handle.__new__(Handle)
            handles.one._pointer = cast(c_void_p(0x1230), raw.cudnnHandle_t)
            handles.one._address = 0
        one: Handle = handles.one
        return one

    monkeypatch.setattr(Handle, "default", classmethod(default))
    for module in (dispatch, operation, launcher, convolution, graph):
        monkeypatch.setattr(module, "on_device", lambda device: contextlib.nullcontext())
    for module in (driver_calls, workspace):
        monkeypatch.setattr(module, "is_capturing", lambda stream: stream in there.capturing)
    monkeypatch.setattr(workspace, "capture_id", lambda stream: 1)
    monkeypatch.setattr(driver_calls, "_torch_captures", driver_calls._ask_torch)
    monkeypatch.setattr(launcher, "several_devices", lambda: False)
    monkeypatch.setattr(launcher, "current_device", lambda: 0)
    monkeypatch.setattr(launcher.Replay, "of", classmethod(lambda cls, launch, handle: None))
    monkeypatch.setattr(selection, "choose", there.choose)
    monkeypatch.setattr(graph, "guesses", there.guesses)
    monkeypatch.setattr(DropoutDescriptor, "needed_states_size", classmethod(lambda cls, handle: 1 << 10))
    monkeypatch.setattr(parameters, "synchronize", lambda stream, device: None)
    monkeypatch.setattr(workspace, "free_bytes", lambda device: 1 << 30)
    monkeypatch.setattr(workspace, "allocate", allocate)
    plan_cache.clear_cache()

    def allocator(size: int, device: int, stream: int) -> Any:
        there.allocated.append((size, device, stream))
        return SimpleNamespace(handle=next(_addresses))

    workspace.set_allocator(allocator)
    yield there
    workspace.set_allocator(None)
    workspace.release_workspace(captured=True)
    plan_cache.clear_cache()


def made(world: World) -> dict[str, int]:
    """Calls of C, but for destroying what earlier tests left."""
    return {name: count for name, count in world.c.items() if not name.startswith("cudnnDestroy")}
