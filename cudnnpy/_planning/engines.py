"""cuDNN's engines by its graph API: heuristics, engines by index, knobs, execution plans and their workspace.

The operations of a graph are created by cudnnpy.graph.descriptors.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from ctypes import addressof, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, cached_property, lru_cache, partial
from typing import Any, TypeVar, cast

from cudnnpy import raw
from cudnnpy._core.cuda_python import gpu_facts
from cudnnpy._planning.choice import GpuKind
from cudnnpy._process.module_state import declare
from cudnnpy.backend import Descriptor
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle
from cudnnpy.names import short_name

T = TypeVar("T")
# The properties that knobs select: reading through textures, and the division of a sum among processors. Attention of releases
# without the knob STREAM_K, such as 9.19, has a kernel for it.
_SELECTED = {
    (int(raw.CUDNN_KNOB_TYPE_USE_TEX), 1): "texture",
    (int(raw.CUDNN_KNOB_TYPE_STREAM_K), 1): "stream_k",
    (int(raw.CUDNN_KNOB_TYPE_KERNEL_CFG), 35): "stream_k",
}
_MORE_KNOBS = 16  # for which room is made at a time; engines have 10 at most


@dataclass(frozen=True)
class Target:
    """The device that plans are built for: a handle's device, or one that a device profile (cuDNN's JSON) describes.

    A profile requires cuDNN 9.8 and no GPU. Its plans have a workspace size and can be serialized, but cannot run.
    Descriptors that the candidates of one problem share, such as the operation graph, are built once for a target.
    """

    handle: Handle | None = None
    profile: str | None = None
    _shared: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def device(self) -> Descriptor | None:
        """Return the device property descriptor of a profile; None for a handle."""
        if self.profile is None:
            return None
        attributes = {raw.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION: self.profile}
        return self.descriptor(raw.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, attributes)

    def descriptor(self, kind: int, attributes: Mapping[Any, Any]) -> Descriptor:
        """Return the finalized descriptor with these attributes, which is made once. Raises StatusError."""
        return self.memoize(kind, *attributes.items(), make=lambda: Descriptor(kind, attributes))

    def memoize(self, *key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`, which is called once for each key. A copy of a StatusError that it raises is raised."""
        if key not in self._shared:
            try:
                self._shared[key] = make()
            except StatusError as error:
                self._shared[key] = error.with_traceback(None)
        found = self._shared[key]
        if isinstance(found, StatusError):
            raise copy(found)  # the traceback of a raised error refers to the callers' objects, such as arrays
        return cast(T, found)


def gpu_kind(target: Target) -> GpuKind:
    """Return the kind of the GPU of a target. GPUs of one kind share stored choices and plans."""
    if target.profile is not None:
        return _of_profile(target.profile)
    return GpuKind("", "", 0) if target.handle is None else GpuKind(*gpu_facts(target.handle.device))


@lru_cache(maxsize=8)
def _of_profile(profile: str) -> GpuKind:
    properties = json.loads(profile)
    number = properties.get("deviceVer", 0)  # 900
    capability = f"{number // 100}.{number % 100 // 10}" if number else ""
    return GpuKind(str(properties.get("deviceName", "")), capability, int(properties.get("multiProcessorCount", 0)))


@dataclass(frozen=True)
class EngineConfiguration:
    """An engine by its global index, with its knobs; None for the defaults of the engine."""

    engine: int
    knobs: tuple[tuple[int, int], ...] | None
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    descriptor: Descriptor
    target: Target

    @property
    def name(self) -> str:
        """The name from engine_name."""
        return engine_name(self.engine, self.knobs)

    @property
    def notes(self) -> tuple[str, ...]:
        """The properties that known issues depend on: the notes, and those that the knobs select."""
        selected = (_SELECTED[knob] for knob in self.knobs or () if knob in _SELECTED)
        return (*self.numerical_notes, *self.behavior_notes, *selected)

    def finalize(self) -> Descriptor:
        """Return the execution plan. Raises StatusError if cuDNN does not support this configuration."""
        return _execution_plan(self.target, raw.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, self.descriptor)


def _execution_plan(target: Target, attribute: int, value: Any) -> Descriptor:
    attributes: dict[int, Any] = {
        raw.CUDNN_ATTR_EXECUTION_PLAN_HANDLE: target.handle,
        raw.CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP: target.device(),
        attribute: value,
    }
    return Descriptor(raw.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, attributes)


def engine_name(index: int, knobs: tuple[tuple[int, int], ...] | None) -> str:
    """Return the name of an engine: "engine 38 (tile_size=2, stages=4)"."""
    if not knobs:
        return f"engine {index}"
    named = (f"{_name(raw.cudnnBackendKnobType_t, kind)}={value}" for kind, value in knobs)
    return f"engine {index} ({', '.join(named)})"


@cache
def _name(kind: type[IntEnum], number: int) -> str:
    """Return the name of a knob or of a note: "tile_size"."""
    try:
        return short_name(kind(number))
    except ValueError:  # a release newer than the headers
        return f"{'knob' if kind is raw.cudnnBackendKnobType_t else 'note'} {number}"


def _described(engine: Descriptor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the numerical and the behavior notes of an engine."""
    numerical = (
        _name(raw.cudnnBackendNumericalNote_t, note) for note in engine.get(raw.CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)
    )
    behavior = (_name(raw.cudnnBackendBehaviorNote_t, note) for note in engine.get(raw.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE))
    return tuple(sorted(numerical)), tuple(sorted(behavior))


def heuristics(graph: Descriptor, target: Target) -> Iterator[EngineConfiguration]:
    """Yield the proposals of cuDNN's heuristics, best first: mode A, then the fallback mode. A mode that fails is skipped."""
    seen = set()
    reader = _configuration_reader()
    for mode in (raw.CUDNN_HEUR_MODE_A, raw.CUDNN_HEUR_MODE_FALLBACK):
        try:
            found = target.memoize("heuristics", graph, mode, make=partial(_proposals, graph, target, mode))
        except StatusError:
            continue
        for descriptor in found:
            index, knobs = reader.read(descriptor)
            if (index, knobs) not in seen:
                seen.add((index, knobs))
                notes = target.memoize("notes", graph, index, make=partial(_described, reader.engine))
                yield EngineConfiguration(index, knobs, *notes, descriptor, target)


def _proposals(graph: Descriptor, target: Target, mode: int) -> list[Descriptor]:
    answer = Descriptor(
        raw.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: graph,
            raw.CUDNN_ATTR_ENGINEHEUR_MODE: mode,
            raw.CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: target.device(),
        },
    )
    return answer.children(raw.CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)


class _ConfigurationReader:
    """Reads configurations into descriptors that are made once in a thread: new ones for each take 25 times as long."""

    def __init__(self) -> None:
        self.engine = Descriptor(raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        self._engines = (c_void_p * 1)(self.engine.address)
        self._choices: list[Descriptor] = []
        self._make_room()
        self._count, self._number, self._kind = c_int64(), c_int64(), c_int32()
        self._count_at, self._number_at, self._kind_at = map(byref, (self._count, self._number, self._kind))
        self._get = raw.unchecked("cudnnBackendGetAttribute")

    def read(self, configuration: Descriptor) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the index of the engine, which `engine` is then, and the knobs that have a choice, with their values."""
        read, number, kind = self._read, self._number, self._kind
        descriptors, int64 = raw.CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.CUDNN_TYPE_INT64
        read(configuration.pointer, raw.CUDNN_ATTR_ENGINECFG_ENGINE, descriptors, 1, self._engines)
        read(self.engine.pointer, raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX, int64, 1, self._number_at)
        index = number.value
        self._read_choices(configuration)
        while self._count.value >= len(self._choices):  # there may be more: cuDNN does not tell the number before
            self._make_room()
            self._read_choices(configuration)
        pairs = []
        for choice in self._pointers[: self._count.value]:
            read(choice, raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, raw.CUDNN_TYPE_KNOB_TYPE, 1, self._kind_at)
            read(choice, raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, int64, 1, self._number_at)
            pairs.append((kind.value, number.value))
        return index, tuple(sorted(pairs))

    def _make_room(self) -> None:
        self._choices += [Descriptor(raw.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR) for _ in range(_MORE_KNOBS)]
        self._pointers = [choice.pointer for choice in self._choices]
        self._addresses = (c_void_p * len(self._choices))(*(choice.address for choice in self._choices))

    def _read_choices(self, configuration: Descriptor) -> None:
        attribute, kind = raw.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR
        self._read(configuration.pointer, attribute, kind, len(self._choices), self._addresses)

    def _read(self, pointer: Any, attribute: int, kind: int, most: int, elements: Any) -> None:
        if status := self._get(pointer, attribute, kind, most, self._count_at, elements):
            raw.check(status, "cudnnBackendGetAttribute")


_of_thread = threading.local()  # .reader

declare(__name__, "_of_thread")


def _configuration_reader() -> _ConfigurationReader:
    """Return the calling thread's reader. In a forked child, which cannot use the parent's, it is a new one."""
    reader: _ConfigurationReader | None = _of_thread.__dict__.get("reader")
    if reader is None or reader.engine.closed:
        reader = _of_thread.reader = _ConfigurationReader()
    return reader


def engine_count(graph: Descriptor) -> int:
    """Return the number of engines by global index, including those that do not support the graph."""
    return int(graph[raw.CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT])


def _engine_descriptor(graph: Descriptor, target: Target, index: int) -> Descriptor:
    """Return the descriptor of an engine. Raises StatusError if it does not support the graph."""
    attributes = {
        raw.CUDNN_ATTR_ENGINE_OPERATION_GRAPH: graph,
        raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX: index,
        raw.CUDNN_ATTR_ENGINE_DEVICEPROP: target.device(),
    }
    return target.descriptor(raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR, attributes)


def _knob_choice(target: Target, kind: int, value: int) -> Descriptor:
    attributes = {raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: kind, raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: value}
    return target.descriptor(raw.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, attributes)


def engine(
    graph: Descriptor, target: Target, index: int, knobs: Mapping[int, int] | None = None
) -> EngineConfiguration:
    """Return an engine with the given or its default knobs. Raises StatusError if it does not support the graph."""
    found = _engine_descriptor(graph, target, index)
    choices = [_knob_choice(target, kind, value) for kind, value in (knobs or {}).items()]
    descriptor = Descriptor(
        raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        {raw.CUDNN_ATTR_ENGINECFG_ENGINE: found, raw.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: choices or None},
    )
    pairs = tuple(sorted((knobs or {}).items())) or None
    notes = target.memoize("notes", graph, index, make=partial(_described, found))
    return EngineConfiguration(index, pairs, *notes, descriptor, target)


def engines(
    graph: Descriptor, target: Target, errors: dict[int, StatusError] | None = None
) -> Iterator[EngineConfiguration]:
    """Yield each engine that supports the graph, with its default knobs; store the errors of the others in `errors`."""
    for index in range(engine_count(graph)):
        try:
            found = engine(graph, target, index)
        except StatusError as error:
            if errors is not None:
                errors[index] = error.with_traceback(None)
            continue
        yield found


def knob_ranges(graph: Descriptor, target: Target, index: int) -> Mapping[int, range]:
    """Return the values that each knob of an engine accepts, by cudnnBackendKnobType_t."""
    return target.memoize("ranges", graph, index, make=lambda: _ranges(_engine_descriptor(graph, target, index)))


def _ranges(found: Descriptor) -> dict[int, range]:
    attribute, kind = raw.CUDNN_ATTR_ENGINE_KNOB_INFO, raw.CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR
    knobs = found.children(attribute, kind, _MORE_KNOBS)
    if len(knobs) == _MORE_KNOBS:  # there may be more
        knobs = found.children(attribute, kind, int(raw.CUDNN_KNOB_TYPE_COUNTS))
    ranges = {}
    for knob in knobs:
        low, high, step = (
            knob.get(attribute)[0]
            for attribute in (
                raw.CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE,
                raw.CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
                raw.CUDNN_ATTR_KNOB_INFO_STRIDE,
            )
        )
        ranges[int(knob.get(raw.CUDNN_ATTR_KNOB_INFO_TYPE)[0])] = range(low, high + 1, max(step, 1))
    return ranges


# Variant packs, which pass the addresses of a launch to cudnnBackendExecute, each made in five C calls. A finalized pack takes
# no other addresses, and serves any number of launches. Plain ints, which ctypes passes fastest:
_KIND = int(raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
_UNIQUE_IDS = int(raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
_DATA_POINTERS = int(raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
_WORKSPACE = int(raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE)
_INT64, _VOID_PTR = int(raw.CUDNN_TYPE_INT64), int(raw.CUDNN_TYPE_VOID_PTR)
_ONE = c_int64(1)
_address = struct.Struct("Q").pack

_process = object()  # replaced in a forked child, which must not destroy objects that were made before the fork

declare(__name__, "_process", in_child=True, resets=False)


class VariantPack(c_void_p):
    """A cudnnBackendDescriptor_t of a variant pack, which is destroyed with its last reference.

    It owns the numbers whose host addresses it holds.
    """

    def __init__(self, destroy: Callable[..., int], numbers: tuple[Any, ...]) -> None:
        super().__init__()
        self.destroy, self.numbers, self.process = destroy, numbers, _process

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self and self.process is _process:  # at exit, the names of this module may be gone
            self.destroy(self)


class GraphExecutable:
    """A finalized execution plan, with the unique ids of its tensors in the order of the addresses.

    `constants` are the tensors by value, as pairs of a unique id and a ctypes number. The numbers are copied, so that every
    launch has the same ones, and the kernels the same parameters but for the addresses.
    """

    name = "cudnnBackendExecute"

    def __init__(self, plan: Descriptor, uids: tuple[int, ...], constants: tuple[tuple[int, Any], ...] = ()) -> None:
        self.plan, self.uids = plan, (*uids, *(uid for uid, _ in constants))
        self.workspace_size = int(plan[raw.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE])
        # All of a variant pack that does not depend on the addresses is prepared here.
        self._numbers = tuple(type(number)(number.value) for _, number in constants)
        self._hosts = tuple(map(addressof, self._numbers))
        self._count, self._ids = c_int64(len(self.uids)), (c_int64 * len(self.uids))(*self.uids)
        self._addresses = struct.Struct(f"{len(self.uids)}Q").pack
        # Without argtypes, ctypes passes these objects unchecked, which halves the cost of a call.
        self._execute = raw.unchecked("cudnnBackendExecute")
        self._create = raw.unchecked("cudnnBackendCreateDescriptor")
        self._set = raw.unchecked("cudnnBackendSetAttribute")
        self._finalize = raw.unchecked("cudnnBackendFinalize")
        self._destroy = raw.unchecked("cudnnBackendDestroyDescriptor")

    def bind(self, handle: Handle, addresses: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """Return the launch on these addresses. The end of the launch object destroys its variant pack."""
        return partial(self._execute, handle.pointer, self.plan.pointer, self._pack(addresses, workspace))

    def _pack(self, pointers: tuple[int, ...], workspace: int) -> Any:
        """Return the finalized pack of these addresses. Raises StatusError if cuDNN rejects it."""
        try:
            # C copies the values. Bytes are created faster than ctypes arrays, and threads need not share them.
            addresses, space = self._addresses(*pointers, *self._hosts), _address(workspace)
        except struct.error:  # not integers of 64 bits: the error names the attribute
            attributes: dict[int, Any] = {
                _UNIQUE_IDS: self.uids,
                _DATA_POINTERS: (*pointers, *self._hosts),
                _WORKSPACE: workspace,
            }
            return Descriptor(_KIND, attributes).pointer
        pack = VariantPack(self._destroy, self._numbers)
        if status := self._create(_KIND, byref(pack)):
            raise raw.error_of(status, "cudnnBackendCreateDescriptor")
        set_attribute, count = self._set, self._count
        status = (
            set_attribute(pack, _UNIQUE_IDS, _INT64, count, self._ids)
            or set_attribute(pack, _DATA_POINTERS, _VOID_PTR, count, addresses)
            or set_attribute(pack, _WORKSPACE, _VOID_PTR, _ONE, space)
        )
        if status:
            raise raw.error_of(status, "cudnnBackendSetAttribute")
        if status := self._finalize(pack):
            raise raw.error_of(status, "cudnnBackendFinalize")
        return pack

    @cached_property
    def is_relocatable(self) -> bool:
        """Whether the same kernels serve all addresses: False for kernels that may read an operand through a texture.

        cuDNN finalizes the plan, with all of its kernels, before it gets the addresses. But it creates a texture object for
        an address, holds it for a while, and creates new ones for other addresses.
        """
        (configuration,) = self.plan.children(
            raw.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1
        )
        (found,) = configuration.children(raw.CUDNN_ATTR_ENGINECFG_ENGINE, raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)
        ranges, texture = _ranges(found), int(raw.CUDNN_KNOB_TYPE_USE_TEX)
        return texture not in ranges or dict(_configuration_reader().read(configuration)[1]).get(texture) == 0


def save_plan(plan: Descriptor) -> str:
    """Return an execution plan with its compiled code as cuDNN serializes it. Raises StatusError."""
    return str(plan[raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION])


def load_plan(text: str, target: Target) -> Descriptor:
    """Load an execution plan that save_plan serialized. Raises StatusError if it does not load here."""
    return _execution_plan(target, raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, text)
