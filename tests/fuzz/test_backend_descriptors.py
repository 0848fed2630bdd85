"""Backend descriptors, set and finalized with drawn values: refused with an error, or done; Python lives and stays small.

The real libcudnn plans for a device that JSON describes, with a stand-in for the driver: without one nothing is finalized.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import planning
from campaign import Campaign

from cudnnpy import raw
from cudnnpy._core.layouts import TensorSpec
from cudnnpy._planning import engines
from cudnnpy.backend import Descriptor
from cudnnpy.errors import CudnnError
from cudnnpy.graph.descriptors import graph_tensor
from cudnnpy.graph.operation_graph import Tensor
from cudnnpy.raw import _api

# A kind is drawn with attributes of the same beginning, mostly: a few are shortened.
_SHORTENED = {
    "OPERATION_GEN_STATS": "OPERATION_GENSTATS",
    "OPERATION_BN_FINALIZE_STATISTICS": "OPERATION_BN_FINALIZE",
    "OPERATION_CONVOLUTION_BACKWARD_DATA": "OPERATION_CONVOLUTION_BWD_DATA",
    "OPERATION_CONVOLUTION_BACKWARD_FILTER": "OPERATION_CONVOLUTION_BWD_FILTER",
    "OPERATION_NORM_FORWARD": "OPERATION_NORM_FWD",
    "OPERATION_NORM_BACKWARD": "OPERATION_NORM_BWD",
}
_NUMBERS = (0, 1, 2, 3, 4, 8, 16, 64, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 10**400)
_ODD = (
    None,
    True,
    1.5,
    float("nan"),
    "",
    "x",
    "{}",
    b"x",
    [],
    (),
    {},
    [[1]],
    np.array([1, 2]),
    np.float32(2),
    object(),
)
_KINDS = list(raw.cudnnBackendDescriptorType_t)


def _of(kind: raw.cudnnBackendDescriptorType_t) -> list[raw.cudnnBackendAttributeName_t]:
    name = kind.name.removeprefix("CUDNN_BACKEND_").removesuffix("_DESCRIPTOR")
    start = f"CUDNN_ATTR_{_SHORTENED.get(name, name)}_"
    found = [attribute for attribute in raw.cudnnBackendAttributeName_t if attribute.name.startswith(start)]
    return [attribute for attribute in found if raw.CUDNN_TYPE_HANDLE not in raw.attribute_types(attribute)]


def draw(random: Random) -> tuple[int, list[tuple[int, int | None, Any]], list[tuple[int, int]]]:
    """A kind; the attributes to set, each with an attribute type and a value; attributes to read with a child's kind."""
    kind = random.choice([k for k in _KINDS if _of(k)] + [raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR] * 5)
    attributes, odd = _of(kind), random.choice([0.0, 0.0, 0.02, 0.2])
    chosen = [a for a in attributes if random.random() < random.choice([0.5, 0.9, 1.0])]
    random.shuffle(chosen)
    if random.random() < odd:
        chosen.append(random.choice(list(raw.cudnnBackendAttributeName_t)))
    setting = []
    for attribute in chosen:
        of = random.choice(raw.attribute_types(attribute))
        if random.random() < odd:
            of = random.choice(list(raw.cudnnBackendAttributeType_t))
        setting.append((int(attribute), int(of), _value(random, attribute, of, odd)))
    reading = [(int(a), int(random.choice(_api.ATTRIBUTE_KINDS.get(a, _KINDS)))) for a in attributes]
    return int(kind), setting, reading


def _value(random: Random, attribute: int, of: int, odd: float) -> Any:
    if random.random() < odd:  # a number for a pointer is an address, which is C's to follow
        return random.choice([*_ODD, *_NUMBERS] if of != raw.CUDNN_TYPE_VOID_PTR else _ODD)
    count = 1 if attribute in _api.SINGLE_ATTRIBUTES else random.choice([1, 1, 2, 4, 5, 9, 100])
    return [_element(random, attribute, of, odd) for _ in range(count)] if of != raw.CUDNN_TYPE_CHAR else "{}"


def _element(random: Random, attribute: int, of: int, odd: float) -> Any:
    if of == raw.CUDNN_TYPE_BACKEND_DESCRIPTOR:
        kinds = _api.ATTRIBUTE_KINDS.get(attribute, _KINDS)
        kind = random.choice(_KINDS if random.random() < odd else kinds)
        return "descriptor", int(kind), random.choice(["open", "made", "made", "made"]), random.randrange(8)
    if of == raw.CUDNN_TYPE_BOOLEAN:
        return random.random() < 0.5
    if of in (raw.CUDNN_TYPE_FLOAT, raw.CUDNN_TYPE_DOUBLE):
        return random.choice([0.0, 1.0, -1.0, 1e30])
    if of == raw.CUDNN_TYPE_FRACTION:
        return random.choice([(1, 1), (1, 2), (0, 1), (1, 0), (-1, 3)])
    if of in (raw.CUDNN_TYPE_HANDLE, raw.CUDNN_TYPE_VOID_PTR):
        return 0
    enum = getattr(_api, _api.ATTRIBUTE_C_TYPES[of], None)
    return random.choice(list(enum) if enum is not None else _NUMBERS[:9] if random.random() < 0.9 else _NUMBERS)


@cache
def finished() -> dict[int, list[Descriptor]]:
    """Finalized descriptors of the kinds that need not much."""
    target = engines.Target(profile=Path(planning.profile()).read_text())
    shapes = [(8, 16, 8, 8), (16, 16, 3, 3), (8, 16, 8, 8), (8, 1, 1, 1), (1, 16, 1, 1), (4, 8, 8), (1, 1, 1, 1)]
    strides = [tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape))) for shape in shapes]
    specs = [TensorSpec(shape, "float32", stride) for shape, stride in zip(shapes, strides, strict=True)]
    x, w, y, *others = (graph_tensor(Tensor(at, spec), None) for at, spec in enumerate(specs, 1))
    convolution = Descriptor(
        raw.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_CONVOLUTION_COMP_TYPE: raw.CUDNN_DATA_FLOAT,
            raw.CUDNN_ATTR_CONVOLUTION_CONV_MODE: raw.CUDNN_CROSS_CORRELATION,
            raw.CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS: 2,
            raw.CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS: (1, 1),
            raw.CUDNN_ATTR_CONVOLUTION_POST_PADDINGS: (1, 1),
            raw.CUDNN_ATTR_CONVOLUTION_DILATIONS: (1, 1),
            raw.CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES: (1, 1),
        },
    )
    operation = Descriptor(
        raw.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X: x,
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W: w,
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y: y,
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC: convolution,
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA: 1.0,
            raw.CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA: 0.0,
        },
    )
    graph = Descriptor(raw.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, {raw.CUDNN_ATTR_OPERATIONGRAPH_OPS: [operation]})
    configuration = next(engines.heuristics(graph, target))
    index = int(configuration.engine)
    device = target.device()
    assert device is not None
    engine = Descriptor(
        raw.CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_ENGINE_OPERATION_GRAPH: graph,
            raw.CUDNN_ATTR_ENGINE_GLOBAL_INDEX: index,
            raw.CUDNN_ATTR_ENGINE_DEVICEPROP: device,
        },
    )
    every = [x, w, y, *others, convolution, operation, graph, configuration.descriptor, engine, device]
    for kind in _KINDS:  # and those that are complete when they are empty
        try:
            every.append(Descriptor(kind, {}))
        except (CudnnError, ValueError):
            continue
    found: dict[int, list[Descriptor]] = {}
    for descriptor in every:
        found.setdefault(descriptor.kind, []).append(descriptor)
    return found


def _child(element: Any) -> Any:
    if not (isinstance(element, tuple) and element[:1] == ("descriptor",)):
        return element
    _, kind, how, at = element
    made = finished().get(kind, [])
    return made[at % len(made)] if how == "made" and made else Descriptor(kind)


def run(case: tuple[int, list[tuple[int, int | None, Any]], list[tuple[int, int]]]) -> str:
    kind, setting, reading = case
    finished()
    outcome, made = "finalized", None
    try:
        made = Descriptor(kind)
        for attribute, of, value in setting:
            try:
                made.set(attribute, [_child(one) for one in value] if isinstance(value, list) else value, of)
            except CudnnError:  # as often as not: what is set goes on to finalize()
                continue
        made.finalize()
    except CudnnError:
        outcome = "refused by cuDNN"
    except (TypeError, ValueError):
        outcome = "refused"
    if made is not None:
        for attribute, of_child in reading:
            for read in (lambda a=attribute: made[a], lambda a=attribute, k=of_child: made.children(a, k, 3)):
                try:
                    read()
                except (CudnnError, TypeError, ValueError):
                    continue
        made.close()
    return outcome


CAMPAIGN = Campaign(draw, run)


def test_no_backend_descriptor_ends_python(planning_environment: dict[str, str]) -> None:
    outcomes = CAMPAIGN.carry_out(__file__, "CAMPAIGN", least=300, environment=planning_environment)
    assert set(outcomes) == {"refused", "refused by cuDNN", "finalized"}
