"""`Plan`, with both kinds of problems imported: the module of each adds the reader of its serialized plans."""

from cudnnpy._planning.plan import Plan
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.graph.problem import GraphProblem

__all__ = ["ConvolutionProblem", "GraphProblem", "Plan"]
