"""OperationGraph: tensors and operations as immutable data, from which descriptors, texts and values are computed."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from cudnnpy._core.layouts import TensorSpec

Uids: TypeAlias = int | tuple[int, ...]  # of an operand; several for one that is a list of tensors


class Tensor(NamedTuple):
    """A tensor of a graph: in memory, virtual (an intermediate result), or a number, which is passed by value."""

    uid: int  #: the unique id
    spec: TensorSpec
    is_virtual: bool = False
    number: float | None = None


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
    def tensors(self) -> dict[str, Uids]:
        """The unique ids of the operands and of the results, by name."""
        return dict((*self.operands, *self.results))


class OperationGraph(NamedTuple):
    """Operations, each after those whose results it takes, with their tensors."""

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]

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


def each_uid(uids: Uids) -> tuple[int, ...]:
    """Return the unique ids of an operand."""
    return uids if isinstance(uids, tuple) else (uids,)


def canonical_graph(graph: OperationGraph) -> tuple[OperationGraph, dict[int, int]]:
    """Return a graph with its tensors numbered from the results backwards, and the new unique id of each tensor.

    Operations and tensors on which no output depends are left out. Equal computations that are written in another order of
    operations and inputs get equal graphs; the operands of an operation are not exchanged.
    """
    maker = {uid: operation for operation in graph.operations for _, uid in operation.results}
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
        if operation is None or operation in done:
            continue
        for _, other in operation.results:
            new.setdefault(other, len(new) + 1)
        before = [uid for _, uids in operation.operands for uid in each_uid(uids)]
        pending += [(uid, True), *((one, False) for one in reversed(before))]
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    renumbered = tuple(tensors[uid]._replace(uid=number) for uid, number in new.items())
    return OperationGraph(renumbered, tuple(_renumbered(operation, new) for operation in done)), new


def _renumbered(operation: Operation, new: dict[int, int]) -> Operation:
    def of(uids: Uids) -> Uids:
        return tuple(new[uid] for uid in uids) if isinstance(uids, tuple) else new[uids]

    return operation._replace(
        operands=tuple((name, of(uids)) for name, uids in operation.operands),
        results=tuple((name, new[uid]) for name, uid in operation.results),
    )
