"""A user's program near C: cudnnpy.raw, handles, descriptors, the graph API's descriptors, names and errors.

It is checked, not run: see tests/host/project/test_typed.py.
"""

from __future__ import annotations

import logging
import sys
from ctypes import byref, c_int, c_size_t
from typing import assert_type

from arrays import CoreDevice, CoreStream, CupyStream, NumpyDtype, TorchStream

import cudnnpy
from cudnnpy import backend, descriptors, errors, names, raw
from cudnnpy.raw import CUDNN_DATA_HALF, cudnnCreate, cudnnHandle_t

# Functions of C, with ctypes' own objects and with objects that own a handle

handle = raw.cudnnHandle_t()
raw.check(raw.cudnnCreate(byref(handle)))
assert_type(cudnnCreate(byref(cudnnHandle_t())), int)
raw.cudnnSetStream(handle, 0)
raw.cudnnSetStream(handle, None)
tensor = raw.cudnnTensorDescriptor_t()
raw.call("cudnnCreateTensorDescriptor", byref(tensor))
raw.cudnnSetTensor4dDescriptor(tensor, raw.CUDNN_TENSOR_NCHW, raw.CUDNN_DATA_FLOAT, 1, 3, 224, 224)
raw.cudnnSetTensor4dDescriptor(tensor, 0, 0, 1, 3, 224, 224)
shape = (c_int * 3)(1, 2, 3)
raw.cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_HALF, 3, shape, shape)
size = c_size_t()
raw.cudnnGetTensorSizeInBytes(tensor, byref(size))
assert_type(raw.cudnnGetErrorString(raw.CUDNN_STATUS_BAD_PARAM), bytes)
status = raw.cudnnStatus_t(raw.cudnnDestroyTensorDescriptor(tensor))
name: str = status.name
number: int = raw.CUDNN_DIM_MAX + raw.CUDNN_VERSION
perf = raw.cudnnConvolutionFwdAlgoPerf_t()
assert_type(perf.memory, int)
assert_type(perf.algo, raw.cudnnConvolutionFwdAlgo_t)
status_name: str = perf.status.name
perf.algo = 1
perf.mathType = raw.CUDNN_FMA_MATH
if perf.status == 0 or perf.status == raw.CUDNN_STATUS_NOT_SUPPORTED or not perf.status:
    raw.cudnnSetConvolutionMathType(None, perf.mathType)

# Functions of the module that are not C's

assert_type(raw.functions(), tuple[str, ...])
assert_type(raw.parameters("cudnnCreate")[0][1], str)
assert_type(raw.since("cudnnCreate"), str | None)
assert_type(raw.deprecated("cudnnCreate"), tuple[str, ...] | None)
assert_type(raw.version_text(raw.version()), str)
assert_type(raw.HEADER_VERSION, str)
assert_type(raw.path(), str)
assert_type(raw.last_error(), str)
assert_type(raw.prototype("cudnnCreate"), str)
assert_type(raw.attribute_types(raw.CUDNN_ATTR_TENSOR_DATA_TYPE), tuple[int, ...])
assert_type(raw.error_of(raw.CUDNN_STATUS_BAD_PARAM), errors.CudnnError)
assert_type(raw.unchecked("cudnnCreate")(None), int)

# Handles

with cudnnpy.Handle() as mine, cudnnpy.Handle(CoreDevice(), CoreStream()) as other:
    mine.set_stream(0x7F00)
    for stream in (None, CoreStream(), TorchStream(), CupyStream()):
        other.set_stream(stream)
    assert_type(mine.stream, int)
    assert_type(mine.device, int)
    assert_type(mine.address, int)
    assert_type(mine.pointer, raw.cudnnHandle_t)
    raw.cudnnSetStream(mine, mine.stream)
assert_type(cudnnpy.Handle.default(0), cudnnpy.Handle)

# Descriptors

x = descriptors.TensorDescriptor((1, 3, 224, 224), "float16", format="nhwc")
x = descriptors.TensorDescriptor([1, 3, 224, 224], raw.CUDNN_DATA_HALF, strides=(1, 1, 1, 1))
x = descriptors.TensorDescriptor((1, 3), NumpyDtype(), format=raw.CUDNN_TENSOR_NHWC)
w = descriptors.FilterDescriptor((64, 3, 3, 3), "int8x4", format="nchw_vect_c")
conv = descriptors.ConvolutionDescriptor((1, 1), 2, [1, 1], mode="convolution", math_type="fma_math", groups=1)
assert_type(conv.output_shape(x, w), tuple[int, ...])
choice = descriptors.choose_algorithm(
    "forward", x, w, conv.pointer, tensor, prefer="autotune", arrays=(1, 2, 3), handle=handle
)
assert_type(choice.candidates[0].time, float | None)
raw.cudnnSetConvolutionMathType(conv, choice.math_type)
assert_type(descriptors.workspace_size("forward", x, w, conv, x, choice.algorithm), int)
assert_type(cudnnpy.candidates_table(choice.candidates), str)
assert_type(x.strides, tuple[int, ...])
assert_type(x.nbytes, int)
raw.cudnnGetTensorSizeInBytes(x, byref(size))
raw.call("cudnnGetTensorSizeInBytes", x, byref(size))
assert_type(x.pointer, raw.cudnnTensorDescriptor_t)
descriptors.ActivationDescriptor("clipped_relu", coefficient=6.0)
descriptors.PoolingDescriptor("max_deterministic", (2, 2), padding=0, stride=(2, 2))
descriptors.OpTensorDescriptor("add", compute_dtype="float64")
descriptors.ReduceTensorDescriptor("norm2", indices="flattened_indices", indices_type="64bit_indices")
descriptors.LRNDescriptor(5, 1e-4)
descriptors.DropoutDescriptor(cudnnpy.Handle(), 0.5, states=0x7F00, states_size=64, seed=1)
descriptors.FusedOpsPlan("scale_bias_activation_wgrad").close()
ctc = descriptors.CTCLossDescriptor()
ctc.set("cudnnSetCTCLossDescriptor_v9", compType="float32", normMode="softmax")
assert_type(list(ctc.get("cudnnGetCTCLossDescriptor_v9")), list[str])

# The graph API

node = backend.Descriptor(
    raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR,
    {
        raw.CUDNN_ATTR_TENSOR_DIMENSIONS: (1, 3, 224, 224),
        raw.CUDNN_ATTR_TENSOR_DATA_TYPE: raw.CUDNN_DATA_FLOAT,
    },
)
node[raw.CUDNN_ATTR_TENSOR_UNIQUE_ID] = 1
node.set(raw.CUDNN_ATTR_TENSOR_IS_VIRTUAL, True)
node.finalize()
assert_type(node.children(raw.CUDNN_ATTR_OPERATIONGRAPH_OPS, 0, limit=4), list[backend.Descriptor])

# Names and errors

assert_type(names.short_names(raw.cudnnActivationMode_t), dict[str, raw.cudnnActivationMode_t])
assert_type(names.short_name(raw.CUDNN_DATA_FLOAT), str)
assert_type(names.data_type("float16"), raw.cudnnDataType_t)
try:
    raw.check(1)
except errors.StatusError as error:
    assert_type(error.status, int)
    assert_type(error.function + error.name + error.detail, str)
except cudnnpy.NoAlgorithmError as error:
    assert_type(error.problem, str)
    for candidate in error.candidates:
        assert_type(candidate.name + candidate.rejection_reason, str)
        assert_type(candidate.workspace_size, int | None)
except cudnnpy.CudnnError:
    pass
with cudnnpy.log_to("cudnnpy", level="DEBUG"), cudnnpy.log_to(logging.getLogger(), level=10), cudnnpy.log_to(None):
    pass
with cudnnpy.trace(), cudnnpy.trace(2, file=sys.stderr), cudnnpy.trace(0):
    pass
if not cudnnpy.is_available():
    assert_type(cudnnpy.why_unavailable(), str | None)
