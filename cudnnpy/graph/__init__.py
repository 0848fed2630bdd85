"""Graph: operation graphs of cuDNN, built from tensors and operations; and reductions by such graphs."""

from cudnnpy.graph.graph import Graph

__all__ = ["Graph"]
