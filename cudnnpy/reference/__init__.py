"""The reference implementation of cudnnpy's operations, in NumPy, for the tests and for machines without a GPU.

Names, signatures and meanings are as in `cudnnpy`, whose classes these are subclasses of; arrays are NumPy arrays.
Floating-point inputs are accumulated in float64 and the result is rounded once. The numerics are independent of the code for
GPUs. Neither libcudnn nor cuda.core is loaded.
"""

from types import ModuleType

from cudnnpy._checks.public_dir import complete_module
from cudnnpy.reference.activation import Activation, sigmoid
from cudnnpy.reference.attention import Attention
from cudnnpy.reference.batch_normalization import BatchNormalization
from cudnnpy.reference.convolution import Convolution, ConvolutionTranspose, FusedConvolution
from cudnnpy.reference.graph import run, tolerance
from cudnnpy.reference.pooling import Pooling
from cudnnpy.reference.softmax import Softmax

__all__ = [
    "Activation",
    "Attention",
    "BatchNormalization",
    "Convolution",
    "ConvolutionTranspose",
    "FusedConvolution",
    "Pooling",
    "Softmax",
    "run",
    "sigmoid",
    "tolerance",
]

TYPE_CHECKING = False
if not TYPE_CHECKING:  # type checkers report unknown names

    def __getattr__(name):
        from cudnnpy._checks.unknown_names import missing_in_reference

        raise AttributeError(missing_in_reference(name, __all__))


complete_module(globals())

# Modules are no names of this one, so that reference.softmax(x) raises the error that names the class.
for _name in [name for name, value in globals().items() if isinstance(value, ModuleType) and not name.startswith("_")]:
    del globals()[_name]
