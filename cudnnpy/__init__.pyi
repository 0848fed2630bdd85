# GENERATED from cudnnpy/__init__.py by `python -m tools.generate`; do not edit: types
# seal: sha256:d2540e4c0957fc7e96176c4166db9d691b71d59afa6f87358fccaf39f6c96f4c
from cudnnpy import backend as backend
from cudnnpy import descriptors as descriptors
from cudnnpy import errors as errors
from cudnnpy import names as names
from cudnnpy import raw as raw
from cudnnpy import reference as reference
from cudnnpy import workspace as workspace
from cudnnpy._version import __version__ as __version__
from cudnnpy.activation import Activation as Activation
from cudnnpy.arrays import DeviceArray as DeviceArray
from cudnnpy.arrays import empty as empty
from cudnnpy.arrays import to_device as to_device
from cudnnpy.arrays import to_numpy as to_numpy
from cudnnpy.availability import is_available as is_available
from cudnnpy.availability import why_unavailable as why_unavailable
from cudnnpy.convolution.candidates import Candidate as Candidate
from cudnnpy.convolution.candidates import Engine as Engine
from cudnnpy.convolution.candidates import table as candidates_table
from cudnnpy.convolution.convolution import Convolution as Convolution
from cudnnpy.convolution.plan import Plan as Plan
from cudnnpy.convolution.transpose import ConvolutionTranspose as ConvolutionTranspose
from cudnnpy.dropout import Dropout as Dropout
from cudnnpy.errors import CudnnError as CudnnError
from cudnnpy.errors import NoAlgorithmError as NoAlgorithmError
from cudnnpy.fused import FusedConvolution as FusedConvolution
from cudnnpy.graph import Graph as Graph
from cudnnpy.handle import Handle as Handle
from cudnnpy.instance_normalization import InstanceNormalization as InstanceNormalization
from cudnnpy.layer_normalization import LayerNormalization as LayerNormalization
from cudnnpy.layer_normalization import RMSNormalization as RMSNormalization
from cudnnpy.layouts import TensorSpec as TensorSpec
from cudnnpy.local_response import LocalResponseNormalization as LocalResponseNormalization
from cudnnpy.normalization import BatchNormalization as BatchNormalization
from cudnnpy.plan_cache import cache_info as cache_info
from cudnnpy.plan_cache import clear_cache as clear_cache
from cudnnpy.plan_cache import set_cache_limit as set_cache_limit
from cudnnpy.pooling import Pooling as Pooling
from cudnnpy.reduction import reduce_tensor as reduce_tensor
from cudnnpy.softmax import Softmax as Softmax
from cudnnpy.tensors import add_tensor as add_tensor
from cudnnpy.tensors import scale_tensor as scale_tensor
from cudnnpy.tensors import set_tensor as set_tensor
from cudnnpy.tensors import transform_tensor as transform_tensor
from cudnnpy.workspace import release_workspace as release_workspace
from cudnnpy.workspace import set_allocator as set_allocator

_LAZY: dict[str, str]

__all__ = [
    'Activation',
    'BatchNormalization',
    'Candidate',
    'Convolution',
    'ConvolutionTranspose',
    'CudnnError',
    'DeviceArray',
    'Dropout',
    'Engine',
    'FusedConvolution',
    'Graph',
    'Handle',
    'InstanceNormalization',
    'LayerNormalization',
    'LocalResponseNormalization',
    'NoAlgorithmError',
    'Plan',
    'Pooling',
    'RMSNormalization',
    'Softmax',
    'TensorSpec',
    'add_tensor',
    'backend',
    'cache_info',
    'candidates_table',
    'clear_cache',
    'descriptors',
    'empty',
    'errors',
    'is_available',
    'names',
    'raw',
    'reduce_tensor',
    'reference',
    'release_workspace',
    'scale_tensor',
    'set_allocator',
    'set_cache_limit',
    'set_tensor',
    'to_device',
    'to_numpy',
    'transform_tensor',
    'why_unavailable',
    'workspace',
    '__version__',
]
