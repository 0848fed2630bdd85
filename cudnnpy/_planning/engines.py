"""Operation graphs and what can run them: devices, engines by index, their knobs and notes, and execution plans.

What the nodes of a graph are is the business of those who build it (cudnnpy.graph, convolution/operation_graph.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import addressof
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import TensorSpec
from cudnnpy.backend import Descriptor
from cudnnpy.errors import StatusError
from cudnnpy.handle import Handle


@dataclass(frozen=True)
class Target:
    """What plans are made for: a handle's device, or a device described by the JSON that cuDNN itself gives of one.

    A profile needs cuDNN 9.8 and no GPU; its plans can be listed, measured in bytes and saved, not run.
    """

    handle: Handle | None = None
    profile: str | None = None
    _descriptor: list[Descriptor] = field(default_factory=list)

    def device(self) -> Descriptor | None:
        """The device property descriptor of a profile; None where the handle tells the device."""
        if self.profile is None:
            return None
        if not self._descriptor:
            attributes: dict[int, Any] = {raw.CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION: self.profile}
            self._descriptor.append(Descriptor(raw.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, attributes))
        return self._descriptor[0]


def tensor(uid: int, spec: TensorSpec, *, virtual: bool = False, by_value: bool = False) -> Descriptor:
    """A tensor of a graph, under its unique id.

    A virtual one exists only between two operations; of one by value the address is that of a number on the host.
    """
    return Descriptor(
        raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_TENSOR_UNIQUE_ID: uid,
            raw.CUDNN_ATTR_TENSOR_DATA_TYPE: dtype_of(spec.dtype).number,
            raw.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: spec.alignment,
            raw.CUDNN_ATTR_TENSOR_DIMENSIONS: spec.shape,
            raw.CUDNN_ATTR_TENSOR_STRIDES: spec.strides,
            raw.CUDNN_ATTR_TENSOR_IS_VIRTUAL: True if virtual else None,
            raw.CUDNN_ATTR_TENSOR_IS_BY_VALUE: True if by_value else None,
        },
    )


def graph_of(operations: Sequence[Descriptor], target: Target) -> Descriptor:
    """Operations as a finalized graph."""
    return Descriptor(
        raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
        {raw.CUDNN_ATTR_OPERATIONGRAPH_HANDLE: target.handle, raw.CUDNN_ATTR_OPERATIONGRAPH_OPS: list(operations)},
    )


@dataclass(frozen=True)
class EngineConfiguration:
    """One way to run a graph: an engine by its global index, with its knobs; None for the engine's own defaults."""

    engine: int
    knobs: tuple[tuple[int, int], ...] | None
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    descriptor: Descriptor
    target: Target

    @property
    def name(self) -> str:
        """For people: see engine_name."""
        return engine_name(self.engine, self.knobs)

    def finalize(self) -> Descriptor:
        """The execution plan. Raises StatusError where cuDNN cannot run this configuration."""
        return Descriptor(
            raw.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
            {
                raw.CUDNN_ATTR_EXECUTION_PLAN_HANDLE: self.target.handle,
                raw.CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP: self.target.device(),
                raw.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: self.descriptor,
            },
        )


def engine_name(index: int, knobs: tuple[tuple[int, int], ...] | None) -> str:
    """An engine for people: "engine 38 (tile_size=2, stages=4)"."""
    if not knobs:
        return f"engine {index}"
    return f"engine {index} ({', '.join(f'{_knob_name(kind)}={value}' for kind, value in knobs)})"


def _knob_name(kind: int) -> str:
    try:
        return raw.cudnnBackendKnobType_t(kind).name.removeprefix("CUDNN_KNOB_TYPE_").lower()
    except ValueError:  # a release newer than the headers
        return f"knob {kind}"


def _notes(engine: Descriptor, attribute: int, enum: Any, prefix: str) -> tuple[str, ...]:
    names = []
    for number in engine.get(attribute):
        try:
            names.append(enum(number).name.removeprefix(prefix).lower())
        except ValueError:  # a release newer than the headers
            names.append(f"note {number}")
    return tuple(sorted(names))


def _configuration(descriptor: Descriptor, engine: Descriptor, knobs: Any, target: Target) -> EngineConfiguration:
    return EngineConfiguration(
        int(engine[raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX]),
        knobs,
        _notes(engine, raw.CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, raw.cudnnBackendNumericalNote_t, "CUDNN_NUMERICAL_NOTE_"),
        _notes(engine, raw.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, raw.cudnnBackendBehaviorNote_t, "CUDNN_BEHAVIOR_NOTE_"),
        descriptor,
        target,
    )


def heuristics(graph: Descriptor, target: Target) -> Iterator[EngineConfiguration]:
    """What cuDNN proposes, best first: mode A, then the fallback engines. A mode that has no answer is passed over."""
    seen = set()
    for mode in (raw.CUDNN_HEUR_MODE_A, raw.CUDNN_HEUR_MODE_FALLBACK):
        try:
            answer = Descriptor(
                raw.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                {
                    raw.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: graph,
                    raw.CUDNN_ATTR_ENGINEHEUR_MODE: mode,
                    raw.CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: target.device(),
                },
            )
            found = answer.children(raw.CUDNN_ATTR_ENGINEHEUR_RESULTS, raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        except StatusError:
            continue
        for descriptor in found:
            (engine,) = descriptor.children(raw.CUDNN_ATTR_ENGINECFG_ENGINE, raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)
            configuration = _configuration(descriptor, engine, _knobs(descriptor), target)
            if (configuration.engine, configuration.knobs) not in seen:
                seen.add((configuration.engine, configuration.knobs))
                yield configuration


def _knobs(configuration: Descriptor) -> tuple[tuple[int, int], ...]:
    choices = configuration.children(
        raw.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        raw.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
        int(raw.CUDNN_KNOB_TYPE_COUNTS),
    )
    pairs = ((c[raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE], c[raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE]) for c in choices)
    return tuple(sorted(pairs))


def engine_count(graph: Descriptor) -> int:
    """How many engines there are by global index, whether they can run the graph or not."""
    return int(graph[raw.CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT])


def _engine_descriptor(graph: Descriptor, target: Target, index: int) -> Descriptor:
    return Descriptor(
        raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_ENGINE_OPERATION_GRAPH: graph,
            raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX: index,
            raw.CUDNN_ATTR_ENGINE_DEVICEPROP: target.device(),
        },
    )


def engine(
    graph: Descriptor, target: Target, index: int, knobs: Mapping[int, int] | None = None
) -> EngineConfiguration:
    """An engine by its global index, with the given knobs or its own. Raises StatusError if it cannot run the graph."""
    found = _engine_descriptor(graph, target, index)
    choices = [
        Descriptor(
            raw.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
            {raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: kind, raw.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: value},
        )
        for kind, value in (knobs or {}).items()
    ]
    descriptor = Descriptor(
        raw.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
        {raw.CUDNN_ATTR_ENGINECFG_ENGINE: found, raw.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: choices or None},
    )
    return _configuration(descriptor, found, tuple(sorted((knobs or {}).items())) or None, target)


def engines(
    graph: Descriptor, target: Target, refused: dict[int, StatusError] | None = None
) -> Iterator[EngineConfiguration]:
    """Every engine that takes the graph, with its own knobs, by global index; into `refused` go the errors of the others."""
    for index in range(engine_count(graph)):
        try:
            found = engine(graph, target, index)
        except StatusError as error:
            if refused is not None:
                refused[index] = error
            continue
        yield found


def knob_ranges(graph: Descriptor, target: Target, index: int) -> dict[int, range]:
    """The values that each knob of an engine may have, by cudnnBackendKnobType_t."""
    found = _engine_descriptor(graph, target, index)
    knobs = found.children(
        raw.CUDNN_ATTR_ENGINE_KNOB_INFO, raw.CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, int(raw.CUDNN_KNOB_TYPE_COUNTS)
    )
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


class GraphExecutable:
    """A finalized execution plan, with the unique ids of its tensors in the order of the addresses.

    `constants` are tensors by value: pairs of a unique id and a number of ctypes.
    """

    def __init__(self, plan: Descriptor, uids: tuple[int, ...], constants: tuple[tuple[int, Any], ...] = ()) -> None:
        self.plan, self.uids, self._constants = plan, (*uids, *(uid for uid, _ in constants)), constants
        self._hosts = tuple(addressof(number) for _, number in constants)
        self.workspace_size = int(plan[raw.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE])

    def bind(self, handle: Handle, pointers: tuple[int, ...], workspace: int) -> Callable[[], int]:
        """A call without arguments that runs the plan on these addresses and returns the status."""
        pack = Descriptor(
            raw.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
            {
                raw.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: self.uids,
                raw.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: (*pointers, *self._hosts),
                raw.CUDNN_ATTR_VARIANT_PACK_WORKSPACE: workspace,
            },
        )
        # Without argtypes ctypes takes these prepared pointers as they are: half the cost of a call.
        launch = partial(raw.unchecked("cudnnBackendExecute"), handle.pointer, self.plan.pointer, pack.pointer)
        launch.owners = (handle, self.plan, pack, self._constants)  # type: ignore[attr-defined]  # alive as long as the call
        return launch

    def to_json(self) -> str:
        """cuDNN's own text of the plan."""
        return str(self.plan[raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION])


def load_plan(text: str, target: Target) -> Descriptor:
    """The execution plan of a text from GraphExecutable.to_json. Raises StatusError if this cuDNN or GPU cannot take it."""
    return Descriptor(
        raw.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_EXECUTION_PLAN_HANDLE: target.handle,
            raw.CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP: target.device(),
            raw.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: text,
        },
    )
