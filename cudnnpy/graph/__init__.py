"""Operation graphs of cuDNN: `Graph`."""

from cudnnpy.graph.graph import Graph

__all__ = ["Graph"]
