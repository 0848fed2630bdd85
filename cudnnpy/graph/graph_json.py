"""Convert graphs to and from JSON for the problem notation: the calls that built a graph, which are repeated to parse it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from cudnnpy._core.layouts import byte_extent
from cudnnpy._core.untrusted_json import LIMIT, invalid_json, spec_of
from cudnnpy.graph.nodes import Node, RecordedCall
from cudnnpy.graph.operations import GraphOperations
from cudnnpy.names import short_name

_MAX_CALLS = 1000
_METHODS = {
    *("tensor", "number", "output", "convolution", "pointwise", "reduction", "matmul", "resample"),
    *("normalization", "normalization_backward"),
}
_NODES = {
    "x",
    "w",
    "b",
    "t",
    "a",
    "node",
    "dy",
    "scale",
    "mean",
    "inverse",
    "bias",
    "running",
}  # arguments that are nodes


def calls_to_json(calls: Iterable[RecordedCall]) -> list[Any]:
    """Return the calls that built a graph as JSON, in order. Nodes are written as their unique ids, modes as their names."""
    return [[method, {name: _to_json(value) for name, value in arguments.items()}] for method, arguments in calls]


def _to_json(value: Any) -> Any:
    if isinstance(value, Node):
        return value.uid
    if isinstance(value, IntEnum):
        return short_name(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity and no NaN
    if isinstance(value, tuple | list):
        return [_to_json(one) for one in value]
    return {name: _to_json(one) for name, one in value.items()} if isinstance(value, dict) else value


def graph_from_json(compute_dtype: Any, calls: Any) -> GraphOperations:
    """Return the graph of a compute_dtype and of the calls from calls_to_json.

    Raises ValueError for anything else. JSON that is not canonical may be accepted: the caller compares it with calls_to_json.
    """
    if not isinstance(calls, list) or len(calls) > _MAX_CALLS:
        raise invalid_json(f"its graph must have a list of {_MAX_CALLS} calls at most; got another")
    graph: GraphOperations = _valid(GraphOperations, compute_dtype=compute_dtype)
    for call in calls:
        _repeat(graph, call)
    for node in graph._by_uid.values():
        if byte_extent(node.spec) >= LIMIT or math.prod(node.shape) >= LIMIT:
            raise invalid_json(f"its graph must have tensors that fit into memory; got shape {node.shape}")
    if not graph.outputs:
        raise invalid_json("its graph has no output")
    return graph


def _repeat(graph: GraphOperations, call: Any) -> None:
    """Repeat one call, whose method checks the arguments."""
    if not isinstance(call, list) or len(call) != 2 or not isinstance(call[0], str) or not isinstance(call[1], dict):
        raise invalid_json("a call of its graph is not a method and arguments")
    method, arguments = call
    if method not in _METHODS:
        raise invalid_json(f"{method[:60]!r} is not a method of a graph")
    _valid(getattr(graph, method), **{name: _argument(graph, name, value) for name, value in arguments.items()})


def _argument(graph: GraphOperations, name: str, value: Any) -> Any:
    """Return the argument of a method for its JSON."""
    if name in _NODES and not isinstance(value, bool):  # `bias` of normalization_backward is a bool
        return _nodes(graph, value)
    if name == "like":
        return spec_of("a tensor of its graph", value)
    if isinstance(value, list):
        return tuple(_argument(graph, "", one) for one in value)
    if isinstance(value, dict):
        return {key: _argument(graph, "", one) for key, one in value.items()}
    return float(value) if value in ("inf", "-inf") else value


def _nodes(graph: GraphOperations, value: Any) -> Any:
    """Return a node for its unique id, a tuple of nodes for a list, and None for null."""
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_nodes(graph, one) for one in value)
    if type(value) is not int or value not in graph._by_uid:
        raise invalid_json(f"a node must be one that its graph has; got {str(value)[:60]}")
    return graph._by_uid[value]


def _valid(function: Callable[..., Any], **arguments: Any) -> Any:
    """Return the result of a function. If it raises for its arguments, the JSON is invalid."""
    try:
        return function(**arguments)
    except (TypeError, ValueError) as error:
        raise invalid_json(f"its graph is invalid: {error}") from error
