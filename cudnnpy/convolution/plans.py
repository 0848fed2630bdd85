"""`Plan`, with the kinds of problems whose plans it reads from text: the module of a kind adds its reader."""

from cudnnpy._planning.plan import Plan
from cudnnpy.convolution.candidates import ConvolutionProblem
from cudnnpy.graph.problem import GraphProblem

__all__ = ["ConvolutionProblem", "GraphProblem", "Plan"]
