"""Build cuDNN's descriptors from an operation graph by the table of kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._planning.engines import Target
from cudnnpy.backend import Descriptor
from cudnnpy.errors import FunctionNotAvailableError
from cudnnpy.graph.kinds import DTYPE, FRACTIONS, GRAPH_OPTIONS, KINDS, NUMBER, Option
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Tensor, Uids
from cudnnpy.names import enumerator
from cudnnpy.raw._library_files import version_number


def build_graph(graph: OperationGraph, target: Target) -> Descriptor:
    """Return the finalized descriptor of a graph.

    Raises StatusError if cuDNN rejects it, and FunctionNotAvailableError if the loaded release lacks a part of it.
    """
    check_release(graph)
    tensors = {one.uid: one for one in graph.tensors}
    made: dict[int, Descriptor] = {}

    def of(uids: Uids) -> Any:
        if isinstance(uids, tuple):
            return [of(uid) for uid in uids]
        if uids not in made:
            offsets = tensors[uids].ragged
            made[uids] = graph_tensor(tensors[uids], of(offsets) if offsets else None)
        return made[uids]

    operations = []
    for operation in graph.operations:
        kind, options = KINDS[operation.kind], dict(operation.options)
        prefix = kind.attribute_prefix
        attributes = {kind.attribute(name): of(uids) for name, uids in operation.tensors.items()}
        if kind.nested:
            nested = _descriptor(f"CUDNN_BACKEND_{kind.nested}_DESCRIPTOR")
            _set_options(nested, f"CUDNN_ATTR_{kind.nested}_", kind.nested_options, options)
            nested.finalize()
            attributes[prefix + kind.nested_attribute] = nested
        made_operation = _descriptor(kind.descriptor_name)
        for name, value in attributes.items():
            made_operation.set(getattr(raw, name), value, raw.CUDNN_TYPE_BACKEND_DESCRIPTOR)
        _set_options(made_operation, prefix, kind.options, options)
        made_operation.finalize()
        operations.append(made_operation)
    whole = _descriptor("CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR")
    if target.handle is not None:
        whole[raw.CUDNN_ATTR_OPERATIONGRAPH_HANDLE] = target.handle
    whole[raw.CUDNN_ATTR_OPERATIONGRAPH_OPS] = operations
    _set_options(whole, "CUDNN_ATTR_OPERATIONGRAPH_", GRAPH_OPTIONS, dict(graph.options))
    whole.finalize()
    return whole


def check_release(graph: OperationGraph) -> None:
    """Raise FunctionNotAvailableError for a graph with a part that the loaded release of cuDNN lacks."""
    loaded = raw.version()
    for name, part in _parts(graph):
        since = raw.since(name)
        if since is not None and loaded < version_number(since):
            raise FunctionNotAvailableError(
                f"{part} needs cuDNN {since}, which has {name}; the loaded release is {raw.version_text(loaded)}. "
                "Install a newer nvidia-cudnn-cu12 or nvidia-cudnn-cu13."
            )


def _parts(graph: OperationGraph) -> Iterator[tuple[str, str]]:
    """Yield the enumerators that a graph needs, each with the part of the graph that needs it."""
    for operation in graph.operations:
        kind = KINDS[operation.kind]
        yield kind.descriptor_name, operation.kind
        for name in operation.tensors:
            yield kind.attribute(name), f"{name} of {operation.kind}"
        yield from _option_parts(operation, kind.attribute_prefix, kind.options)
        yield from _option_parts(operation, f"CUDNN_ATTR_{kind.nested}_", kind.nested_options)
    for tensor in graph.tensors:
        yield _data_type(tensor).name, f"a tensor of {tensor.spec.dtype}"
    for name, _ in graph.options:
        yield f"CUDNN_ATTR_OPERATIONGRAPH_{GRAPH_OPTIONS[name].attribute}", f"{name} of a graph"


def _option_parts(operation: Operation, prefix: str, table: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    for name, value in operation.options:
        if name in table and table[name].attribute:
            yield table[name].attribute_name(prefix), f"{name} of {operation.kind}"
            if isinstance(value, IntEnum):
                yield value.name, operation.kind


def _data_type(tensor: Tensor) -> raw.cudnnDataType_t:
    """Return the data type of a tensor; flags have one byte in memory, and no layout in an intermediate result."""
    if tensor.spec.dtype == "bool" and tensor.is_virtual:
        return raw.CUDNN_DATA_BOOLEAN
    return dtype_of(tensor.spec.dtype).number


def graph_tensor(tensor: Tensor, offsets: Descriptor | None) -> Descriptor:
    """Return the descriptor of a tensor. `offsets` is the tensor of the offsets of a ragged one."""
    spec, (count, axis) = tensor.spec, tensor.vector
    reordering = enumerator(raw.cudnnBackendTensorReordering_t, tensor.reordering or "none", "reordering")
    return Descriptor(
        raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR,
        {
            raw.CUDNN_ATTR_TENSOR_UNIQUE_ID: tensor.uid,
            raw.CUDNN_ATTR_TENSOR_DATA_TYPE: _data_type(tensor),
            raw.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: spec.alignment,
            raw.CUDNN_ATTR_TENSOR_DIMENSIONS: spec.shape,
            raw.CUDNN_ATTR_TENSOR_STRIDES: spec.strides,
            raw.CUDNN_ATTR_TENSOR_IS_VIRTUAL: True if tensor.is_virtual else None,
            raw.CUDNN_ATTR_TENSOR_IS_BY_VALUE: True if tensor.number is not None else None,
            raw.CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC: offsets,
            raw.CUDNN_ATTR_TENSOR_REORDERING_MODE: reordering if tensor.reordering else None,
            raw.CUDNN_ATTR_TENSOR_VECTOR_COUNT: count if count > 1 else None,
            raw.CUDNN_ATTR_TENSOR_VECTORIZED_DIMENSION: axis if count > 1 else None,
        },
    )


def _descriptor(name: str) -> Descriptor:
    return Descriptor(getattr(raw, name))


def _set_options(descriptor: Descriptor, prefix: str, table: Mapping[str, Option], options: Mapping[str, Any]) -> None:
    """Set the attributes of the options that are given. Numbers are doubles where float64 is computed."""
    is_wide = options.get("compute_dtype") == "float64"
    for name, option in table.items():
        if name not in options or not option.attribute:
            continue
        attribute, value, kind = getattr(raw, option.attribute_name(prefix)), options[name], None
        if option.type == DTYPE:
            value = raw.CUDNN_DATA_BOOLEAN if value == "bool" else dtype_of(value).number
        elif option.type == NUMBER and is_wide:
            kind = raw.CUDNN_TYPE_DOUBLE
        elif option.type == FRACTIONS and any(isinstance(one, tuple) for one in value):
            kind = raw.CUDNN_TYPE_FRACTION
            value = [one if isinstance(one, tuple) else (one, 1) for one in value]
        descriptor.set(attribute, value, kind)
