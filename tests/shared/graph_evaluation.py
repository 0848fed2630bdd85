"""Evaluate single operations, and graphs of operations that are written as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from cudnnpy import Graph, TensorSpec, reference
from cudnnpy._core.layouts import packed_strides
from cudnnpy._layers.graph import Node
from cudnnpy.graph.operation_graph import Operation
from cudnnpy.reference import graph as evaluator
from cudnnpy.reference._kinds import FUNCTIONS

OPTIONS = {"lower_bandwidth": 0, "upper_bandwidth": 0, "axis": 2}  # of a band


def operation(
    kind: str, options: Mapping[str, Any], arrays: Mapping[str, Any], specs: Any = None, **shapes: Any
) -> dict[str, Any]:
    """The results of one operation, unrounded. Operands are float64; results have these specs, or float64 and these shapes."""
    made = {name: TensorSpec(shape, "float64") for name, shape in shapes.items()}
    given = {name: TensorSpec(np.shape(one), "float64") for name, one in arrays.items() if not isinstance(one, tuple)}
    with np.errstate(all="ignore"):
        return FUNCTIONS[kind](options, arrays, {**given, **made, **(specs or {})})


def graph_of(
    steps: Sequence[tuple[str, Mapping[str, Any], Mapping[str, str], Mapping[str, tuple[str, str]]]],
    arrays: Mapping[str, np.ndarray],
    outputs: Collection[str],
    numbers: Mapping[str, float] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Graph:
    """A graph of (kind, options, operands by name, results by name with their dtypes), for arrays by the inputs' names.

    Results and numbers have one shape or number of axes, by default of the last array.
    """
    g = Graph()
    shape = list(arrays.values())[-1].shape if shape is None else shape
    nodes = {name: g.tensor(name, TensorSpec(array.shape, array.dtype.name)) for name, array in arrays.items()}
    nodes |= {name: g.number(number, len(shape)) for name, number in (numbers or {}).items()}
    for kind, options, operands, results in steps:
        for name, dtype in results.values():
            nodes[name] = Node(TensorSpec(shape)._replace(dtype=dtype, strides=packed_strides(shape)))
            g._keep(nodes[name])
            if name in outputs:
                nodes[name].name, nodes[name].virtual = name, False
                g.outputs.append(nodes[name])
        taken = tuple((name, nodes[other].uid) for name, other in operands.items())
        made = tuple((name, nodes[other].uid) for name, (other, _) in results.items())
        g._operations.append(Operation(kind, tuple(options.items()), taken, made))
    return g


def run_in_float32(
    g: Graph, arrays: Mapping[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> dict[str, np.ndarray]:
    """`reference.run` with operands in float32, so that NumPy computes in it."""
    number = evaluator._number

    def narrow(array: np.ndarray) -> np.ndarray:
        found = number(array)
        return found.astype(np.float32) if found.dtype == np.float64 else found

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "_number", narrow)
        return reference.run(g, arrays)
