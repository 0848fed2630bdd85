"""Add an activation to a graph, by the mode's short name."""

from __future__ import annotations

from cudnnpy import raw
from cudnnpy._layers.graph import Graph, Node
from cudnnpy.names import enumerator


def activated(graph: Graph, x: Node, mode: str, coefficient: float = 1.0) -> Node:
    """Add an activation of x to a graph; return its node. "identity" is not one of the modes."""
    if mode == "clipped_relu":
        return graph.pointwise("relu_fwd", x, how={"relu_upper_clip": coefficient})
    options = {"elu": {"elu_alpha": coefficient}, "swish": {"swish_beta": coefficient}}.get(mode, {})
    return graph.pointwise(enumerator(raw.cudnnPointwiseMode_t, f"{mode}_fwd", "mode"), x, how=options)
