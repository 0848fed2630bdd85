"""Build cuDNN's descriptors from an operation graph by the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._planning.engines import Target, graph_of, tensor
from cudnnpy.backend import Descriptor
from cudnnpy.graph.kinds import DTYPE, KINDS, NUMBER, Option
from cudnnpy.graph.operation_graph import OperationGraph, Uids


def build_graph(graph: OperationGraph, target: Target) -> Descriptor:
    """Return the finalized descriptor of a graph. Raises StatusError if cuDNN rejects it."""
    tensors = {one.uid: one for one in graph.tensors}
    made: dict[int, Descriptor] = {}

    def of(uids: Uids) -> Any:
        if isinstance(uids, tuple):
            return [of(uid) for uid in uids]
        if uids not in made:
            one = tensors[uids]
            made[uids] = tensor(uids, one.spec, virtual=one.is_virtual, by_value=one.number is not None)
        return made[uids]

    operations = []
    for operation in graph.operations:
        kind, options = KINDS[operation.kind], dict(operation.options)
        prefix, names = kind.attribute_prefix, {**kind.operands, **kind.results}
        attributes = {prefix + names[name].rstrip("?*"): of(uids) for name, uids in operation.tensors.items()}
        if kind.nested:
            nested = _descriptor(f"CUDNN_BACKEND_{kind.nested}_DESCRIPTOR")
            _set_options(nested, f"CUDNN_ATTR_{kind.nested}_", kind.nested_options, options)
            nested.finalize()
            attributes[prefix + kind.nested_attribute] = nested
        made_operation = _descriptor(f"CUDNN_BACKEND_OPERATION_{kind.descriptor}_DESCRIPTOR")
        for name, value in attributes.items():
            made_operation[getattr(raw, name)] = value
        _set_options(made_operation, prefix, kind.options, options)
        made_operation.finalize()
        operations.append(made_operation)
    return graph_of(operations, target)


def _descriptor(name: str) -> Descriptor:
    return Descriptor(getattr(raw, name))


def _set_options(descriptor: Descriptor, prefix: str, table: Mapping[str, Option], options: Mapping[str, Any]) -> None:
    """Set the attributes of the options that are given. Numbers are doubles where float64 is computed."""
    is_wide = options.get("compute_dtype") == "float64"
    for name, option in table.items():
        if name not in options or not option.attribute:
            continue
        attribute, value = getattr(raw, prefix + option.attribute), options[name]
        if option.type == DTYPE:
            descriptor[attribute] = dtype_of(value).number
        else:
            descriptor.set(attribute, value, raw.CUDNN_TYPE_DOUBLE if option.type == NUMBER and is_wide else None)
