"""The numbers that the operands of a graph are drawn from, so that results are numbers that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnnpy import Graph, TensorSpec
from cudnnpy._planning.problem import FLAGS, POSITIVE, Values
from cudnnpy.tuning.measuring.random_operands import numbers

ANY, WHOLE = Values(-1.0, 1.0), Values(-4.0, 4.0, is_whole=True)
X = TensorSpec((2, 8, 4, 4))


def ranges(build: Callable[..., Any], count: int, spec: TensorSpec = X) -> list[Values]:
    """The ranges of `count` inputs of a graph, which `build` makes a result of."""
    g = Graph()
    made = build(g, *(g.tensor(f"x{at}", spec) for at in range(count)))
    g.output("y", made[0] if isinstance(made, tuple) else made, dtype="float32")
    *found, result = g.problem(0).value_ranges
    assert result == ANY
    return found


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("add", [ANY, ANY]),
        ("div", [ANY, POSITIVE]),
        ("mod", [ANY, POSITIVE]),
        ("pow", [POSITIVE, ANY]),
        ("sqrt", [POSITIVE]),
        ("rsqrt", [POSITIVE]),
        ("log", [POSITIVE]),
        ("exp", [ANY]),
        ("logical_and", [FLAGS, FLAGS]),
        ("logical_not", [FLAGS]),
        ("binary_select", [ANY, ANY, FLAGS]),
    ],
)
def test_operands_of_elementwise_operations(mode: str, expected: list[Values]) -> None:
    assert ranges(lambda g, *x: g.pointwise(mode, *x), len(expected)) == expected


def test_what_a_square_root_is_computed_from_is_positive_too() -> None:
    """rsqrt(variance + x), and a sum of products whose logarithm is taken."""
    found = ranges(lambda g, x, v, e: g.pointwise("mul", x, g.pointwise("rsqrt", g.pointwise("add", v, e))), 3)
    assert found == [ANY, POSITIVE, POSITIVE]
    assert ranges(lambda g, x: g.pointwise("log", g.reduction("add", x, [1])), 1) == [POSITIVE]
    assert ranges(lambda g, x: g.pointwise("sqrt", g.pointwise("exp", x)), 1) == [ANY]
    square = TensorSpec((2, 4, 4))
    assert ranges(lambda g, a, b: g.pointwise("log", g.matmul(a, b)), 2, square) == [POSITIVE] * 2


def test_a_length_that_indices_are_compared_with_is_the_size_of_their_axis() -> None:
    def masked(g: Graph, x: Any, length: Any) -> Any:
        flag = g.pointwise("cmp_lt", g.pointwise("gen_index", x, axis=1), length)
        return g.pointwise("binary_select", x, g.number(0.0), flag)

    g = Graph()
    g.output("y", masked(g, g.tensor("x", X), g.tensor("length", TensorSpec((2, 1, 1, 1), "int32"))))
    problem = g.problem()
    found = {spec.dtype: values for spec, values in zip(problem.specs[:2], problem.value_ranges[:2], strict=True)}
    assert found == {"float32": ANY, "int32": Values(X.shape[1], X.shape[1], is_whole=True, step=0)}


def test_variances_of_normalizations_are_positive() -> None:
    g = Graph()
    x = g.tensor("x", X)
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (g.tensor(name, TensorSpec((1, 8, 1, 1))) for name in names)
    y, *_ = g.normalization("batch_norm", x, scale, bias, 1e-5, running=(mean, variance))
    g.output("y", y)
    found = dict(zip(g.problem(0).operands, g.problem(0).value_ranges, strict=True))
    assert [name for name, values in found.items() if values == POSITIVE] == ["input_running_var"]
    g = Graph()
    dy, x = g.tensor("dy", X), g.tensor("x", X)
    scale, mean, inverse = (g.tensor(name, TensorSpec((1, 8, 1, 1))) for name in ("scale", "mean", "inverse"))
    g.output("dx", g.normalization_backward("batch_norm", dy, x, scale, mean, inverse)[0])
    found = dict(zip(g.problem(0).operands, g.problem(0).value_ranges, strict=True))
    assert [name for name, values in found.items() if values == POSITIVE] == ["inv_variance"]


def test_scales_of_blocks_are_positive() -> None:
    """Engine 7 loses the sign of a scale."""
    g = Graph()
    x, scale = g.tensor("x", TensorSpec((1, 64, 128), "float8_e4m3fn")), g.tensor("scale", TensorSpec((1, 64, 4)))
    w = g.tensor("w", TensorSpec((1, 128, 64), "float32"))
    g.output("y", g.matmul(g.add("block_scale_dequantize", x=x, scale=scale, block_size=(32,))["y"], w))
    found = dict(zip(g.problem(0).operands, g.problem(0).value_ranges, strict=True))
    assert [name for name, values in found.items() if values == POSITIVE] == ["scale"]


def test_whole_numbers_are_drawn_for_integers() -> None:
    assert ranges(lambda g, x: g.pointwise("identity", x), 1, X._replace(dtype="int8")) == [WHOLE]


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
