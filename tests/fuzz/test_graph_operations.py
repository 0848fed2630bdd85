"""Operations of every kind with drawn operands and options: added, or refused with an error that names what does not fit.

A refusal leaves the graph as it was, and the reference computes what was added. Most operands have one shape and most options
a plausible value, so that many draws come as far as the rule of the kind.
"""

from __future__ import annotations

import math
import re
from enum import EnumMeta
from random import Random
from typing import Any

import numpy as np
from campaign import Campaign

from cudnnpy import Graph, TensorSpec, reference
from cudnnpy._core.dtypes import numpy_dtype
from cudnnpy._layers.graph import Node
from cudnnpy.graph.kinds import DTYPE, FLAG, INTEGER, KINDS, NUMBER, Option

_DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "int8", "int32", "int64", "bool")
_SIZES = (0, 1, 2, 3, 4, 8, 16)
_ODD: tuple[Any, ...] = (
    *(
        None,
        -1,
        2**31,
        2**70,
        1.5,
        float("nan"),
        "x",
        b"x",
        (),
        [],
        (1,),
        (0, 0, 0, 0),
        (-1, 2, 3, 4),
        (2**40,) * 4,
        {},
    ),
    *(True, np.float32(2), np.int64(3), np.array(1), np.array([1, 2]), "cmp_ge", [None], slice(1), 1j, range(10**9)),
)
# Messages of Python itself, in place of one that says what was expected
_PYTHONS = re.compile(r"NoneType|object is not|unsupported operand|has no attribute|unhashable|out of range$|zip\(\)")


def _shape(random: Random, rank: int) -> tuple[int, ...]:
    return tuple(random.choice(_SIZES) for _ in range(rank))


def _value(random: Random, option: Option, rank: int) -> Any:
    """A value of an option, which is odd now and then."""
    if random.random() < 0.07:
        return random.choice(_ODD)
    if isinstance(option.type, EnumMeta):
        return random.choice([*option.type])
    plain = {DTYPE: ("float32",), FLAG: (True, False), NUMBER: (0.5, 2, 0), INTEGER: (0, 1, 2, 3, 4, 5)}
    return random.choice(plain.get(option.type) or [_shape(random, random.choice((rank, max(rank - 2, 1))))])


def draw(random: Random) -> tuple[list[tuple[tuple[int, ...], str]], str, dict[str, Any]]:
    """The shapes and data types of inputs, a kind, and its arguments, in which ("node", n) is an input."""
    rank = random.choice((0, 1, 2, 3, 3, 4, 4, 4, 4, 5))
    first = _shape(random, rank)
    others = [first] * 6 + [(1,) * rank] * 2 + [(*first[:1], *(1,) * (rank - 1)), (1, *first[1:2], *(1,) * (rank - 2))]
    shapes = [random.choice([*others, _shape(random, rank), _shape(random, rank)]) for _ in range(random.randint(1, 6))]
    kind = random.choice([*KINDS])
    row, arguments = KINDS[kind], dict[str, Any]()

    def operand() -> Any:
        return random.choice(_ODD) if random.random() < 0.05 else ("node", random.randrange(len(shapes)))

    for name, end in row.operands.items():
        if random.random() < (0.25 if "?" in end else 0.97):
            arguments[name] = [operand() for _ in range(random.randint(0, 3))] if "*" in end else operand()
    for name, option in row.all_options.items():
        if option.is_required or random.random() < 0.8:
            arguments[name] = _value(random, option, rank)
    for name, usual in (("results", tuple(row.results)), ("dtype", "float32"), ("unknown", 1)):
        if random.random() < 0.1:
            arguments[name] = random.choice((usual, random.choice(_ODD)))
    return (
        [(shape, random.choice(_DTYPES[:3] if random.random() < 0.7 else _DTYPES)) for shape in shapes],
        kind,
        arguments,
    )


def run(case: tuple[list[tuple[tuple[int, ...], str]], str, dict[str, Any]]) -> str:
    specs, kind, arguments = case
    graph, message = Graph(), ""

    def given(value: Any) -> Any:
        if isinstance(value, list):
            return [*map(given, value)]
        return graph.inputs[value[1]] if isinstance(value, tuple) and value[:1] == ("node",) else value

    try:
        for number, (shape, dtype) in enumerate(specs):
            graph.tensor(f"t{number}", TensorSpec(shape, dtype))  # type: ignore[arg-type]
        made = graph.add(kind, **{name: given(value) for name, value in arguments.items()})
    except (TypeError, ValueError) as error:
        message = str(error)
    if message:
        assert not _PYTHONS.search(message), message
        assert graph.operations == []
        return "refused"
    assert graph.operations == [kind]
    assert set(made) <= set(KINDS[kind].results)
    return _evaluated(graph, made)


def _evaluated(graph: Graph, made: dict[str, Node]) -> str:
    """Compute the results in NumPy, unless they are large, and the tolerances."""
    for name, node in made.items():
        graph.output(f"result {name}", node)
    nodes = [*graph.inputs, *graph.outputs]
    if not graph.outputs or sum(math.prod(node.shape) for node in nodes) > 50_000:
        return "added"
    generator = np.random.default_rng(len(nodes))
    arrays = {one.name: generator.integers(0, 3, one.shape).astype(numpy_dtype(one.spec.dtype)) for one in graph.inputs}
    message = ""
    try:
        with np.errstate(all="ignore"):
            results = reference.run(graph, arrays)
            reference.tolerance(graph, arrays)
    except ValueError as error:
        message = str(error)
    if message:
        assert "for the reference" in message or "random bits" in message, message
        return "not in the reference"
    assert [array.shape for array in results.values()] == [node.shape for node in graph.outputs]
    return "evaluated"


CAMPAIGN = Campaign(draw, run)


def test_an_operation_is_added_or_refused_by_name() -> None:
    outcomes = CAMPAIGN.carry_out(__file__, "CAMPAIGN", least=10_000)
    assert set(outcomes) == {"refused", "added", "evaluated", "not in the reference"}
    assert outcomes["evaluated"] > 200
