"""Drawn graphs without a GPU: their text, their canonical form, the arrays for their inputs, and their evaluation in NumPy."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
from drawn_graphs import FAMILIES, drawn, operands_of

from cudnnpy import Graph
from cudnnpy.graph.graph_json import graph_from_json, graph_to_json
from cudnnpy.graph.kinds import KINDS, pointwise_name
from cudnnpy.graph.operation_graph import Operation, OperationGraph, Uids, canonical_graph, each_uid
from cudnnpy.reference.graph import compare, evaluate, random_results

GRAPHS = [drawn(number) for number in range(300)]
NOT_DRAWN = {  # no engine takes them, or none with another operation
    *("concat", "transpose", "signal", "paged_cache_load", "expand_band_matrix", "contract_band_matrix"),
    *("rope_fwd", "rope_bwd"),
}


def data_of(graph: Graph) -> OperationGraph:
    return graph._operation_graph({})


def arrays_for(graph: Graph) -> dict[str, np.ndarray]:
    """The inputs, and for random bits a mask of ones."""
    random = random_results(data_of(graph))
    masks = {node.name: np.ones(node.shape, np.float32) for node in graph.outputs if node.uid in random}
    return {**operands_of(graph), **masks}


def test_every_family_and_every_kind_is_drawn() -> None:
    families, kinds = Counter(family for family, _ in GRAPHS), Counter(k for _, g in GRAPHS for k in g.operations)
    assert min(families[family] for family in FAMILIES) >= 3
    assert set(kinds) == set(KINDS) - NOT_DRAWN
    modes = {pointwise_name(one.option("mode")) for _, g in GRAPHS for one in g._operations if one.kind == "pointwise"}
    assert len(modes) >= 40


def test_graphs_come_back_from_their_text() -> None:
    for _, graph in GRAPHS:
        canonical, _ = canonical_graph(data_of(graph))
        assert graph_from_json(graph_to_json(canonical)) == canonical


def test_the_order_in_which_a_graph_is_made_does_not_change_its_text() -> None:
    random = Random(0)
    for _, graph in GRAPHS:
        given = data_of(graph)
        assert canonical_graph(shuffled(given, random))[0] == canonical_graph(given)[0]


def shuffled(graph: OperationGraph, random: Random) -> OperationGraph:
    """The graph with other unique ids, and with operations and tensors in another order; that of the outputs stays."""
    outputs = [one for one in graph.tensors if one.uid in graph.outputs]
    others = [one for one in graph.tensors if one.uid not in graph.outputs]
    uids = {one.uid: number for number, one in enumerate(random.sample(graph.tensors, len(graph.tensors)), 100)}

    def of(given: Uids) -> Uids:
        return tuple(uids[uid] for uid in given) if isinstance(given, tuple) else uids[given]

    waiting = random.sample(graph.operations, len(graph.operations))
    made = {uid for one in graph.operations for _, uid in one.results}
    operations: list[Operation] = []
    while waiting:
        ready = next(one for one in waiting if not any(uid in made for _, u in one.operands for uid in each_uid(u)))
        waiting.remove(ready)
        made.difference_update(uid for _, uid in ready.results)
        operands = tuple((name, of(given)) for name, given in ready.operands)
        operations.append(
            ready._replace(operands=operands, results=tuple((name, uids[uid]) for name, uid in ready.results))
        )
    tensors = [*random.sample(others, len(others)), *outputs]
    renumbered = tuple(one._replace(uid=uids[one.uid], ragged=uids.get(one.ragged, 0)) for one in tensors)
    return graph._replace(tensors=renumbered, operations=tuple(operations))


@cache
def evaluated(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The results and the tolerances of a graph."""
    graph = GRAPHS[number][1]
    return evaluate(graph, arrays_for(graph))


def test_graphs_are_evaluated() -> None:
    """No result is NaN, nearly all are finite, and nearly all have a finite tolerance."""
    uncertain = 0
    for number, (family, graph) in enumerate(GRAPHS):
        results, allowed = evaluated(number)
        for node in graph.outputs:
            values, bounds = results[node.name].astype(np.float64), allowed[node.name]
            assert values.shape == bounds.shape == node.shape
            assert not np.isnan(values).any(), family
            assert not np.isnan(bounds).any(), family
            if node.reordering:
                assert np.isinf(bounds).all()
                continue
            uncertain += np.isinf(values).mean() > 0.1 or np.isinf(bounds).mean() > 0.1
    assert uncertain <= 6  # overflows, and comparisons that may go either way


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_wrong_element_is_found_in_nearly_all_outputs(is_missing: bool) -> None:
    """The largest element is NaN, or wrong by a quarter; by 2 if it is an integer."""
    missed, outputs = Counter[str](), 0
    for number, (family, _) in enumerate(GRAPHS):
        results, allowed = evaluated(number)
        for name, right in results.items():
            is_integer = right.dtype.kind in "iub"
            if not right.any() or (is_missing and is_integer):
                continue
            outputs += 1
            sizes = np.where(np.isfinite(allowed[name]), np.abs(right.astype(np.float64)), 0.0)
            place = np.unravel_index(np.argmax(sizes), right.shape)
            value = float(right[place])
            wrong = right.copy()
            wrong[place] = np.nan if is_missing else np.asarray(value - 2 if is_integer else 1.25 * value, right.dtype)
            assert compare(right, right, allowed[name]).is_right
            missed[family] += compare(wrong, right, allowed[name]).is_right
    assert missed.total() <= 0.03 * outputs, missed
