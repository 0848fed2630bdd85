"""Graph: operation graphs of cuDNN, built from tensors and operations; and reductions by such graphs."""

from typing import TYPE_CHECKING

__all__ = ["Graph"]

if TYPE_CHECKING:
    from cudnnpy.graph.graph import Graph
else:

    def __getattr__(name: str) -> object:  # the modules of convolutions import this package, and Graph imports them
        if name != "Graph":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from cudnnpy.graph.graph import Graph

        return Graph
