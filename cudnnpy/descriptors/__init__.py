"""An owner for every descriptor of the C API beneath the graph API.

Those that convolutions and simple layers need take everything when they are made, and do not change afterwards; their
properties read it back from C. The others are made empty, set and read by the names of C (GeneralDescriptor). dtypes
and modes are short names ("float32", "relu": see cudnnpy.names) or enumerators of cudnnpy.raw; they come back as short
names. The values that C can judge are left to C: it refuses them with BadParameterError or NotSupportedError.
"""

from cudnnpy.descriptors.arithmetic import (
    OpTensorDescriptor,
    ReduceTensorDescriptor,
)
from cudnnpy.descriptors.convolution import (
    ConvolutionDescriptor,
)
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
from cudnnpy.descriptors.layers import (
    ActivationDescriptor,
    DropoutDescriptor,
    LRNDescriptor,
    PoolingDescriptor,
)
from cudnnpy.descriptors.tensors import (
    FilterDescriptor,
    TensorDescriptor,
)

__all__ = [
    "ActivationDescriptor",
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
]

for _name in __all__:  # which module it lies in is no one's business: it is cudnnpy.descriptors' to users
    globals()[_name].__module__ = __name__
