"""The order of the candidates of attention: engines that are faster than the heuristics' first proposal come before it.

Measured on H200s with cuDNN 9.19 (docs/dev/ranking.md). The first proposal is mostly engine 2 with tiles of 128 queries and 128
keys. For head sizes above 128, its tiles of 64 keys take as little as half the time. Engine 1, and engine 7 for gradients,
start sooner, which decides where there are few tiles of queries and one of keys. Engine 2 takes a while for each packed
sequence, which decides up to more tiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from cudnnpy._planning.candidates import Candidate
from cudnnpy._planning.engines import Target
from cudnnpy.graph.graph_facts import attention_sizes, of_kind
from cudnnpy.graph.operation_graph import OperationGraph
from cudnnpy.graph.problem import GraphProblem

TILE = 64  # of queries and of keys
PROCESSORS = 132
WIDE = 128  # head sizes above are wide
MANY_KEYS = 512  # with more, and without a mask in memory, both tiles of wide heads take the same time
PACKED_TILES = 32  # of queries and keys of a packed sequence, for which engine 2 takes as long as engine 1


def attention_order(problem: GraphProblem, target: Target) -> Iterable[Candidate]:
    """Return the proposals of the heuristics. An engine that is known to be faster comes first, with its smallest tile."""
    faster, found = faster_engine(problem.graph), problem.proposed_candidates(target)
    if faster is None:
        return found

    def place(candidate: Candidate) -> tuple[bool, bool, list[int]]:
        engine = candidate.engine
        if engine is None or engine.index != faster:
            return True, False, []
        knobs = list(dict(engine.knobs or ()).values())  # the smallest tile has the least numbers
        return False, engine.accumulation, knobs

    return sorted(found, key=place)


def faster_engine(graph: OperationGraph) -> int | None:
    """Return the engine whose smallest tiles are faster than the first proposal for attention; None if none is known.

    Gradients with a dropout must draw what forward drew, so that their engines stay.
    """
    sizes, is_packed = attention_sizes(graph), any(one.ragged for one in graph.tensors)
    if sizes is None or sizes.queries == 1 or of_kind(graph, "rng"):
        return None
    tiles, is_wide = -(-sizes.queries // TILE), sizes.head_size > WIDE
    is_small = sizes.keys <= TILE and sizes.rows * tiles <= PROCESSORS * (1 if is_wide else 4)
    if is_packed:
        tiles *= -(-sizes.keys // TILE)
        is_small = sizes.heads * tiles <= PACKED_TILES or sizes.rows * tiles <= PROCESSORS * 6
        is_small = is_small and (not is_wide or sizes.keys <= 2 * TILE)
    if sizes.is_gradient:
        return 7 if is_small and not is_packed else None
    if is_small and not sizes.value_size > sizes.head_size == TILE:  # for which engine 1 is slow
        return 1
    has_mask = len(graph.in_memory) - len(graph.outputs) > len(("q", "k", "v"))
    return 2 if is_wide and (has_mask or sizes.keys <= MANY_KEYS) else None
