"""The numbers that the operands of a graph are drawn from, so that results are numbers that can be compared."""

from __future__ import annotations

from cudnnpy import Graph, TensorSpec
from cudnnpy.tuning.measuring.bench_buffers import numbers


def test_lengths_and_indices_are_valid() -> None:
    g = Graph()
    q, k = g.tensor("q", TensorSpec((2, 4, 16, 8), "float16")), g.tensor("k", TensorSpec((6, 4, 32, 8), "float16"))
    lengths = g.tensor("lengths", TensorSpec((2, 1, 1, 1), "int32"))
    table = g.tensor("table", TensorSpec((2, 1, 3, 1), "int32"))
    given = {"seq_len_q": lengths, "seq_len_kv": lengths, "page_table_k": table, "page_table_v": table}
    g.output("o", g.add("sdpa_fwd", q=q, k=k, v=k, scale=0.5, **given)["o"])
    found = dict(zip(g.problem(0).operands, g.problem(0).value_ranges, strict=True))
    assert numbers("int32", 0, found["seq_len_q"])[:2].tolist() == [16, 16]  # of q; k has pages of 96
    assert numbers("int32", 0, found["page_table_k"])[:6].tolist() == [0] * 6
    g = Graph()
    offsets = g.tensor("offsets", TensorSpec((3, 1, 1, 1), "int32"))
    x = g.tensor("x", TensorSpec((2, 4, 16, 8), "float16"), ragged=offsets)
    g.output("y", g.pointwise("relu_fwd", x))
    ragged = next(values for values in g.problem(0).value_ranges if values.step is not None)
    assert numbers("int32", 0, ragged)[:3].tolist() == [0, 512, 1024]
