# GENERATED from cudnnpy/__init__.py by `python -m tools.generate`; do not edit: types
# seal: sha256:c1fa6282b5fed6c10430f4b2ccf67d0c0cfad38c236fba736b2f2a093b7a0f03
from cudnnpy import backend as backend
from cudnnpy import descriptors as descriptors
from cudnnpy import errors as errors
from cudnnpy import names as names
from cudnnpy import raw as raw
from cudnnpy import reference as reference
from cudnnpy import store as store
from cudnnpy import workspace as workspace
from cudnnpy._arrays.copies import to_device as to_device
from cudnnpy._arrays.copies import to_numpy as to_numpy
from cudnnpy._arrays.device_array import DeviceArray as DeviceArray
from cudnnpy._arrays.device_array import empty as empty
from cudnnpy._arrays.workspace import release_workspace as release_workspace
from cudnnpy._arrays.workspace import set_allocator as set_allocator
from cudnnpy._core.candidate_table import table as candidates_table
from cudnnpy._core.layouts import TensorSpec as TensorSpec
from cudnnpy._core.logging_bridge import log_to as log_to
from cudnnpy._launch.launcher import set_direct_launches as set_direct_launches
from cudnnpy._launch.plan_cache import cache_info as cache_info
from cudnnpy._launch.plan_cache import clear_cache as clear_cache
from cudnnpy._launch.plan_cache import set_cache_limit as set_cache_limit
from cudnnpy._launch.tracing import trace as trace
from cudnnpy._layers.activation import Activation as Activation
from cudnnpy._layers.attention import Attention as Attention
from cudnnpy._layers.batch_normalization import BatchNormalization as BatchNormalization
from cudnnpy._layers.convolution import Convolution as Convolution
from cudnnpy._layers.fused import FusedConvolution as FusedConvolution
from cudnnpy._layers.graph import Graph as Graph
from cudnnpy._layers.pooling import Pooling as Pooling
from cudnnpy._layers.softmax import Softmax as Softmax
from cudnnpy._layers.transpose import ConvolutionTranspose as ConvolutionTranspose
from cudnnpy._planning.candidates import Candidate as Candidate
from cudnnpy._planning.choice import Engine as Engine
from cudnnpy._planning.plan import Plan as Plan
from cudnnpy._planning.selection import plan as plan
from cudnnpy._version import __version__ as __version__
from cudnnpy.availability import is_available as is_available
from cudnnpy.availability import why_unavailable as why_unavailable
from cudnnpy.cli.explain import explain as explain
from cudnnpy.errors import CudnnError as CudnnError
from cudnnpy.errors import NoAlgorithmError as NoAlgorithmError
from cudnnpy.handle import Handle as Handle
from cudnnpy.tuning.profiles.device_profile import DeviceProfile as DeviceProfile
from cudnnpy.tuning.recording import freeze as freeze
from cudnnpy.tuning.recording import record as record

_LAZY: dict[str, str]

__all__ = [
    'Activation',
    'Attention',
    'BatchNormalization',
    'Candidate',
    'Convolution',
    'ConvolutionTranspose',
    'CudnnError',
    'DeviceArray',
    'DeviceProfile',
    'Engine',
    'FusedConvolution',
    'Graph',
    'Handle',
    'NoAlgorithmError',
    'Plan',
    'Pooling',
    'Softmax',
    'TensorSpec',
    'backend',
    'cache_info',
    'candidates_table',
    'clear_cache',
    'descriptors',
    'empty',
    'errors',
    'explain',
    'freeze',
    'is_available',
    'log_to',
    'names',
    'plan',
    'raw',
    'record',
    'reference',
    'release_workspace',
    'set_allocator',
    'set_cache_limit',
    'set_direct_launches',
    'store',
    'to_device',
    'to_numpy',
    'trace',
    'why_unavailable',
    'workspace',
    '__version__',
]
