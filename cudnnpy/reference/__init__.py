"""NumPy twins of cudnnpy's operations: the oracle that they are tested against, and the default on a CPU.

Same names, same signatures, same meaning; host arrays in and out. Floating-point inputs accumulate in float64 and are
rounded once, at the end. Nothing here imports the rest of the package.
"""

from cudnnpy.reference.activation import sigmoid
from cudnnpy.reference.convolution import Convolution
from cudnnpy.reference.transpose import ConvolutionTranspose

__all__ = ["Convolution", "ConvolutionTranspose", "sigmoid"]
