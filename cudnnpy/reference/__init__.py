"""NumPy twins of cudnnpy's operations: the oracle that they are tested against, and the default on a CPU.

Same names, same signatures, same meaning; host arrays in and out. Floating-point inputs accumulate in float64 and are
rounded once, at the end. Nothing here imports the rest of the package.
"""

from cudnnpy.reference.activation import Activation, sigmoid
from cudnnpy.reference.convolution import Convolution
from cudnnpy.reference.dropout import Dropout
from cudnnpy.reference.fused import FusedConvolution
from cudnnpy.reference.instance_normalization import InstanceNormalization
from cudnnpy.reference.layer_normalization import LayerNormalization, RMSNormalization
from cudnnpy.reference.local_response import LocalResponseNormalization
from cudnnpy.reference.normalization import BatchNormalization
from cudnnpy.reference.pooling import Pooling
from cudnnpy.reference.softmax import Softmax
from cudnnpy.reference.tensors import add_tensor, reduce_tensor, scale_tensor, set_tensor, transform_tensor
from cudnnpy.reference.transpose import ConvolutionTranspose

__all__ = [
    "Activation",
    "BatchNormalization",
    "Convolution",
    "ConvolutionTranspose",
    "Dropout",
    "FusedConvolution",
    "InstanceNormalization",
    "LayerNormalization",
    "LocalResponseNormalization",
    "Pooling",
    "RMSNormalization",
    "Softmax",
    "add_tensor",
    "reduce_tensor",
    "scale_tensor",
    "set_tensor",
    "sigmoid",
    "transform_tensor",
]
