"""Operation graphs: `Graph`."""

from cudnnpy.graph.graph import Graph

__all__ = ["Graph"]
