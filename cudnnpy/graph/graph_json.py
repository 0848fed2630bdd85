"""Graphs as JSON, for the notation of problems: the calls that built a graph, which are repeated to parse it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from cudnnpy._core.layouts import extent
from cudnnpy._planning.untrusted_json import LIMIT, integers, spec_of
from cudnnpy.graph.nodes import Call, Node
from cudnnpy.graph.operations import Nodes
from cudnnpy.names import short_name

_MOST_CALLS = 1000


def plain_calls(calls: Iterable[Call]) -> list[Any]:
    """Return the calls that built a graph as JSON, in order. Nodes are written as their unique ids, modes as their names."""
    return [[method, {name: _plain(value) for name, value in arguments.items()}] for method, arguments in calls]


def _plain(value: Any) -> Any:
    if isinstance(value, Node):
        return value.uid
    if isinstance(value, IntEnum):
        return short_name(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity and no NaN
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def read_calls(compute_dtype: Any, calls: Any) -> Nodes:
    """Return the graph of a compute_dtype and of the calls from plain_calls. Raises ValueError for anything else."""
    if not isinstance(calls, list) or len(calls) > _MOST_CALLS:
        raise ValueError(f"its graph must have a list of {_MOST_CALLS} calls at most; got another")
    graph: Nodes = _valid(Nodes, compute_dtype=compute_dtype)
    for call in calls:
        _make(graph, call)
    for node in graph._by_uid.values():
        if extent(node.spec) >= LIMIT or math.prod(node.shape) >= LIMIT:
            raise ValueError(f"its graph must have tensors that fit into memory; got shape {node.shape}")
    if not graph.outputs:
        raise ValueError("its graph has no output")
    return graph


def _make(graph: Nodes, call: Any) -> None:
    """Repeat one call. Its method checks the arguments; the readers below check only what JSON has no types for."""
    if not isinstance(call, list) or len(call) != 2 or not isinstance(call[0], str) or not isinstance(call[1], dict):
        raise ValueError("a call of its graph is not a method and arguments")
    method, arguments = call
    readers = _METHODS.get(method)
    if readers is None or arguments.keys() != readers.keys():
        raise ValueError(f"{method[:60]!r}, with {', '.join(sorted(arguments))[:200]}, is not a call of a graph")
    _valid(getattr(graph, method), **{name: read(graph, arguments[name]) for name, read in readers.items()})


def _valid(function: Callable[..., Any], **arguments: Any) -> Any:
    """Return the result of a function. If it raises for its arguments, the text is invalid."""
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its graph is invalid: {error}") from error


# Readers of arguments


def _node(graph: Nodes, given: Any) -> Node:
    node = graph._by_uid.get(given) if type(given) is int else None
    if node is None:
        raise ValueError(f"a node must be one that its graph has; got {str(given)[:60]}")
    return node


def _node_or_none(graph: Nodes, given: Any) -> Node | None:
    return None if given is None else _node(graph, given)


def _two_nodes(graph: Nodes, given: Any) -> tuple[Node, Node] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise ValueError("running must be two nodes")
    return _node(graph, given[0]), _node(graph, given[1])


def _spec(graph: Nodes, given: Any) -> Any:
    return spec_of("a tensor of its graph", given)


def _text(graph: Nodes, given: Any) -> str:
    if not isinstance(given, str) or len(given) > 1000:
        raise ValueError("a name of its graph is not a str")
    return given


def _flag(graph: Nodes, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError("an option of its graph is neither true nor false")
    return given


def _integer(graph: Nodes, given: Any) -> int:
    return integers("an option of its graph", [given], 0)[0]


def _integers(graph: Nodes, given: Any) -> tuple[int, ...]:
    return integers("an option of its graph", given, 0)


def _pairs(graph: Nodes, given: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= 3:
        raise ValueError("the padding of its graph is not in pairs")
    return tuple(integers("the padding of its graph", pair, 0, 2) for pair in given)


def _number(graph: Nodes, given: Any) -> float:
    if given in ("inf", "-inf") or type(given) in (int, float):
        return float(given)
    raise ValueError(f"a number of its graph must be a number; got {str(given)[:60]}")


def _numbers(graph: Nodes, given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise ValueError("the options of an elementwise operation are not an object")
    return {name: _number(graph, value) for name, value in given.items()}


# The methods of a graph, with the readers of their arguments
_METHODS: dict[str, dict[str, Callable[[Nodes, Any], Any]]] = {
    "tensor": {"name": _text, "like": _spec},
    "number": {"value": _number, "rank": _integer},
    "output": {"name": _text, "node": _node, "dtype": _text, "strides": _integers},
    "convolution": {
        "x": _node,
        "w": _node,
        "padding": _pairs,
        "stride": _integers,
        "dilation": _integers,
        "mode": _text,
    },
    "pointwise": {"mode": _text, "x": _node, "b": _node_or_none, "t": _node_or_none, "how": _numbers},
    "reduction": {"op": _text, "x": _node, "axes": _integers},
    "matmul": {"a": _node, "b": _node},
    "resample": {"mode": _text, "x": _node, "window": _integers, "padding": _integers, "stride": _integers},
    "normalization": {
        "mode": _text,
        "x": _node,
        "scale": _node,
        "bias": _node_or_none,
        "epsilon": _number,
        "training": _flag,
        "running": _two_nodes,
        "average_factor": _number,
    },
    "normalization_backward": {
        "mode": _text,
        "dy": _node,
        "x": _node,
        "scale": _node,
        "mean": _node_or_none,
        "inverse": _node,
        "bias": _flag,
    },
}
