"""The order of the candidates of attention, on both sides of each limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attention_problems import graph_of
from made_up_candidates import made_up
from sample_graphs import as_graph

from cudnnpy import Attention, raw
from cudnnpy._layers import attention
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import Target
from cudnnpy.tuning.ranking.attention_order import attention_order

PROPOSALS = [  # an engine, its tile, and whether it accumulates
    (6, 3, 2, ""),
    (2, 3, 2, ""),
    (2, 3, 1, ""),
    (1, 3, 1, ""),
    (1, 2, 1, ""),
    (7, 2, 1, " + accumulation"),
    (7, 2, 1, ""),
]
TILE_M, TILE_N = int(raw.CUDNN_KNOB_TYPE_TILE_M), int(raw.CUDNN_KNOB_TYPE_TILE_N)


@pytest.fixture(autouse=True)
def _every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are made with every release; which one has engines for them is another test."""
    for name in ("_MASKS", "_DROPOUT", "_RAGGED"):
        monkeypatch.setattr(attention, name, 0)


def order(
    operation: str,
    sizes: tuple[int, ...],
    bias: bool = False,
    lengths: bool = False,
    packed: bool = False,
    **options: Any,
) -> str:
    """The name of the first candidate; "as proposed" if the order is that of the proposals."""
    batch, heads, queries, keys, size, value_size = sizes

    def made(rows: int, columns: int) -> Any:
        shape = (batch * rows, heads, columns) if packed else (batch, heads, rows, columns)
        return np.empty(shape, np.float16)

    arrays: dict[str, Any] = {"q": made(queries, size), "k": made(keys, size), "v": made(keys, value_size)}
    if packed:
        arrays |= dict.fromkeys(("lengths_q", "lengths_kv"), np.empty(batch, np.int32))
        arrays |= dict.fromkeys(("offsets_q", "offsets_kv"), np.empty(batch + 1, np.int32))
        arrays |= {"max_length_q": queries, "max_length_kv": keys}
    if bias:
        arrays["bias"] = np.empty((1, 1, queries, keys), np.float16)
    if lengths:
        arrays["lengths_kv"] = np.empty(batch, np.int32)
    if "dropout" in options:
        arrays["mask"] = np.empty((batch, heads, queries, keys), np.float32)
    if operation == "backward":
        out = made(queries, value_size)
        arrays |= {"dout": out, "out": out, "statistics": np.empty((batch, heads, queries, 1), np.float32)}
    proposed = [
        made_up(f"{index} {m} {n}{more}", engine=Engine(index, {TILE_M: m, TILE_N: n}, accumulation=bool(more)))
        for index, m, n, more in PROPOSALS
    ]
    problem: Any = SimpleNamespace(
        graph=as_graph(graph_of(Attention(**options), operation, arrays)).graph, proposed_candidates=lambda _: proposed
    )
    found = [candidate.name for candidate in attention_order(problem, Target())]
    names = [candidate.name for candidate in proposed]
    assert sorted(found) == sorted(names)
    return "as proposed" if found == names else found[0]


ONE, TWO, SEVEN = "1 2 1", "2 3 1", "7 2 1"
PROPOSED = "as proposed"


@pytest.mark.parametrize(
    ("sizes", "more", "first"),
    [
        ((2, 4, 33, 64, 64, 64), {}, ONE),
        ((2, 4, 64, 33, 72, 256), {"causal": True}, ONE),
        ((2, 4, 33, 65, 64, 64), {}, PROPOSED),
        ((2, 4, 33, 64, 64, 72), {}, PROPOSED),
        ((1, 1, 1, 64, 64, 64), {}, PROPOSED),
        ((12, 44, 64, 64, 96, 96), {}, ONE),
        ((12, 44, 65, 64, 96, 96), {}, PROPOSED),
        ((12, 11, 64, 64, 160, 32), {}, ONE),
        ((12, 11, 65, 64, 160, 32), {}, TWO),
        ((1, 2, 300, 512, 136, 136), {}, TWO),
        ((1, 2, 300, 513, 136, 136), {}, PROPOSED),
        ((1, 2, 300, 520, 136, 136), {"bias": True}, TWO),
        ((1, 2, 300, 520, 136, 136), {"lengths": True}, TWO),
        ((1, 2, 300, 520, 128, 136), {"bias": True}, PROPOSED),
        ((2, 4, 33, 64, 64, 64), {"dropout": 0.5}, PROPOSED),
        ((300, 4, 128, 256, 64, 64), {"packed": True}, ONE),  # 32 tiles of a sequence
        ((300, 4, 129, 256, 64, 64), {"packed": True}, PROPOSED),
        ((3, 66, 128, 128, 64, 64), {"packed": True}, ONE),  # 6 tiles of a processor
        ((3, 67, 128, 128, 64, 64), {"packed": True}, PROPOSED),
        ((3, 4, 64, 128, 160, 160), {"packed": True, "causal": True}, ONE),
        ((3, 4, 64, 129, 160, 160), {"packed": True}, TWO),
    ],
)
def test_engines_of_forward(sizes: tuple[int, ...], more: dict[str, Any], first: str) -> None:
    assert order("forward", sizes, **more) == first


@pytest.mark.parametrize(
    ("sizes", "more", "first"),
    [
        ((2, 4, 33, 64, 64, 32), {}, SEVEN),
        ((2, 4, 33, 65, 64, 32), {}, PROPOSED),
        ((12, 44, 65, 64, 64, 32), {}, PROPOSED),
        ((2, 4, 33, 64, 64, 32), {"dropout": 0.5}, PROPOSED),
        ((2, 4, 33, 64, 64, 64), {"packed": True}, PROPOSED),
    ],
)
def test_engines_of_gradients(sizes: tuple[int, ...], more: dict[str, Any], first: str) -> None:
    assert order("backward", sizes, **more) == first
