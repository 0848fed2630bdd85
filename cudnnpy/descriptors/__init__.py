"""A class for every descriptor of the C API below the graph API, and the choice of a v7 algorithm.

The descriptors of convolutions and simple layers are set when they are created. They do not change afterwards, except for the
math type that choose_algorithm sets; their properties read the values from C. The others are created empty, and are set and
read by C's names (GeneralDescriptor). Data types and modes are short names ("float32", "relu": see cudnnpy.names) or
enumerators of cudnnpy.raw, and are read back as short names. Values that C checks are not checked here: C rejects them with
BadParameterError or NotSupportedError.
"""

from cudnnpy._checks.public_dir import complete_module
from cudnnpy.descriptors.arithmetic import OpTensorDescriptor, ReduceTensorDescriptor
from cudnnpy.descriptors.choosing import AlgorithmCandidate, AlgorithmChoice, choose_algorithm, workspace_size
from cudnnpy.descriptors.convolution import ConvolutionDescriptor
from cudnnpy.descriptors.general import (
    AttnDescriptor,
    CTCLossDescriptor,
    FusedOpsConstParamPack,
    FusedOpsPlan,
    FusedOpsVariantParamPack,
    RNNDataDescriptor,
    RNNDescriptor,
    SeqDataDescriptor,
    SpatialTransformerDescriptor,
    TensorTransformDescriptor,
)
from cudnnpy.descriptors.layers import ActivationDescriptor, DropoutDescriptor, LRNDescriptor, PoolingDescriptor
from cudnnpy.descriptors.tensors import FilterDescriptor, TensorDescriptor

__all__ = [
    "ActivationDescriptor",
    "AlgorithmCandidate",
    "AlgorithmChoice",
    "AttnDescriptor",
    "CTCLossDescriptor",
    "ConvolutionDescriptor",
    "DropoutDescriptor",
    "FilterDescriptor",
    "FusedOpsConstParamPack",
    "FusedOpsPlan",
    "FusedOpsVariantParamPack",
    "LRNDescriptor",
    "OpTensorDescriptor",
    "PoolingDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "ReduceTensorDescriptor",
    "SeqDataDescriptor",
    "SpatialTransformerDescriptor",
    "TensorDescriptor",
    "TensorTransformDescriptor",
    "choose_algorithm",
    "workspace_size",
]

for _name in __all__:  # users find them in cudnnpy.descriptors
    globals()[_name].__module__ = __name__

complete_module(globals())
