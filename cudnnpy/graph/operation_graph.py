"""OperationGraph: tensors and operations as immutable data; its canonical order; numbers that are passed by value."""

from __future__ import annotations

import struct
from ctypes import c_bool, c_double, c_float, c_int8, c_int32, c_int64, c_uint8, c_uint16
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from cudnnpy._checks.option_values import check_integer, check_number, error_repr
from cudnnpy._core.dtypes import bits_of
from cudnnpy._core.layouts import TensorSpec

Uids: TypeAlias = int | tuple[int, ...]  # of an operand; several for one that is a list of tensors


class Tensor(NamedTuple):
    """A tensor of a graph: in memory, virtual (an intermediate result), or a number, which is passed by value."""

    uid: int  #: the unique id
    spec: TensorSpec
    is_virtual: bool = False
    number: float | None = None  #: an int for a tensor of integers
    ragged: int = 0  #: the unique id of the tensor with the offsets of a ragged tensor's sequences; 0 for no ragged one
    reordering: str = ""  #: the short name of a cudnnBackendTensorReordering_t
    vector: tuple[int, int] = (1, -1)  #: the number of elements of a vector, and the axis that it is taken from


class Operation(NamedTuple):
    """An operation: a kind of the table KINDS with its options, and the unique ids of its operands and results by name."""

    kind: str
    options: tuple[tuple[str, Any], ...]  #: those that are set, in the order of the table
    operands: tuple[tuple[str, Uids], ...]
    results: tuple[tuple[str, int], ...]

    def option(self, name: str) -> Any:
        """Return an option; None if it is not set."""
        return dict(self.options).get(name)

    @property
    def tensors(self) -> dict[str, Any]:
        """The unique ids of the operands and of the results, by name; a tuple of them for a list."""
        return dict((*self.operands, *self.results))


class OperationGraph(NamedTuple):
    """Operations, each after those whose results it takes, with their tensors."""

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    options: tuple[tuple[str, Any], ...] = ()  #: options of the table GRAPH_OPTIONS

    @property
    def outputs(self) -> tuple[int, ...]:
        """The unique ids of the results in memory."""
        made = {uid for operation in self.operations for _, uid in operation.results}
        return tuple(one.uid for one in self.tensors if one.uid in made and not one.is_virtual)

    @property
    def in_memory(self) -> tuple[int, ...]:
        """The unique ids of the tensors in memory: the inputs, then the outputs."""
        outputs = self.outputs
        there = (one.uid for one in self.tensors if not one.is_virtual and one.number is None)
        return (*(uid for uid in there if uid not in outputs), *outputs)

    @property
    def specs(self) -> dict[int, TensorSpec]:
        """The specs by unique id."""
        return {tensor.uid: tensor.spec for tensor in self.tensors}

    @property
    def numbers(self) -> tuple[tuple[int, float, str], ...]:
        """The tensors by value: unique id, number and dtype."""
        return tuple((one.uid, one.number, one.spec.dtype) for one in self.tensors if one.number is not None)


# The ctypes types of numbers by data type; float16 and bfloat16 are passed as their bits.
_C_TYPES: dict[str, Any] = {
    "float32": c_float,
    "float64": c_double,
    "float16": c_uint16,
    "bfloat16": c_uint16,
    "int8": c_int8,
    "uint8": c_uint8,
    "int32": c_int32,
    "int64": c_int64,
    "bool": c_bool,
}


def number_of(name: str, value: Any, dtype: str) -> float:
    """Return a number as a data type holds it. Raises TypeError or ValueError, which names the argument."""
    if dtype not in _C_TYPES:
        raise TypeError(f"{name} must be of one of {', '.join(_C_TYPES)}; got {dtype}")
    if "float" in dtype:
        number = check_number(name, value)
        held = _from_c(_to_c(number, dtype), dtype)
        if isfinite(number) and not isfinite(held):
            raise ValueError(f"{name} must be a number that fits {dtype}; got {error_repr(value)}")
        return held
    bits, is_unsigned = (1, True) if dtype == "bool" else (int(dtype.lstrip("uint")), dtype[0] == "u")
    low = 0 if is_unsigned else -(1 << bits - 1)
    return check_integer(
        name, int(value) if dtype == "bool" and value in (True, False) else value, low, low + (1 << bits) - 1
    )


def c_number(number: float, dtype: str) -> Any:
    """Return a number as the ctypes object that cuDNN reads."""
    return _C_TYPES[dtype](_to_c(number, dtype))


def _to_c(number: float, dtype: str) -> float:
    return bits_of(number, dtype) if dtype in ("float16", "bfloat16") else number


def _from_c(value: float, dtype: str) -> float:
    if dtype == "float16":
        return float(struct.unpack("<e", int(value).to_bytes(2, "little"))[0])
    if dtype == "bfloat16":
        return c_float.from_buffer_copy((int(value) << 16).to_bytes(4, "little")).value
    return float(_C_TYPES[dtype](value).value)


def each_uid(uids: Uids) -> tuple[int, ...]:
    """Return the unique ids of an operand."""
    return uids if isinstance(uids, tuple) else (uids,)


def canonical_graph(graph: OperationGraph) -> tuple[OperationGraph, dict[int, int]]:
    """Return a graph with its tensors numbered from the results backwards, and the new unique id of each tensor.

    Operations and tensors on which no output depends are left out. Equal computations that are written in another order of
    operations and inputs get equal graphs; the operands of an operation are not exchanged.
    """
    maker = {uid: operation for operation in graph.operations for _, uid in operation.results}
    offsets = {tensor.uid: tensor.ragged for tensor in graph.tensors if tensor.ragged}
    new: dict[int, int] = {}
    done: dict[Operation, None] = {}
    # Depth first, without recursion: a graph may have a thousand operations in a row.
    pending: list[tuple[int, bool]] = [(uid, False) for uid in reversed(graph.outputs)]
    while pending:
        uid, is_done = pending.pop()
        operation = maker.get(uid)
        if is_done:
            assert operation is not None
            done.setdefault(operation)
            continue
        new.setdefault(uid, len(new) + 1)
        if uid in offsets:
            new.setdefault(offsets[uid], len(new) + 1)
        if operation is None or operation in done:
            continue
        for _, other in operation.results:
            new.setdefault(other, len(new) + 1)
            if other in offsets:
                new.setdefault(offsets[other], len(new) + 1)
        before = [uid for _, uids in operation.operands for uid in each_uid(uids)]
        pending += [(uid, True), *((one, False) for one in reversed(before))]
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    renumbered = tuple(
        tensors[uid]._replace(uid=number, ragged=new.get(tensors[uid].ragged, 0)) for uid, number in new.items()
    )
    operations = tuple(_renumbered(operation, new) for operation in done)
    return graph._replace(tensors=renumbered, operations=operations), new


def _renumbered(operation: Operation, new: dict[int, int]) -> Operation:
    def of(uids: Uids) -> Uids:
        return tuple(new[uid] for uid in uids) if isinstance(uids, tuple) else new[uids]

    return operation._replace(
        operands=tuple((name, of(uids)) for name, uids in operation.operands),
        results=tuple((name, new[uid]) for name, uid in operation.results),
    )
