"""What type checkers must refuse near C. Each marked line has an error of the code named, and no other line has one."""

from __future__ import annotations

import sys
from ctypes import byref

from arrays import Torch

import cudnnpy
from cudnnpy import backend, descriptors, names, raw

# Names that do not exist

cudnnpy.Convolutoin()  # E: attr-defined reportAttributeAccessIssue
cudnnpy.descriptors.TensorDescripter  # E: attr-defined reportAttributeAccessIssue
raw.cudnnCreat  # E: attr-defined reportAttributeAccessIssue
raw.CUDNN_DATA_FLAOT  # E: attr-defined reportAttributeAccessIssue
raw.FUNCTIONS  # E: attr-defined reportAttributeAccessIssue
raw.cudnnDataType_t.CUDNN_DATA_FLAOT  # E: attr-defined reportAttributeAccessIssue

# Functions of C

handle, tensor = raw.cudnnHandle_t(), raw.cudnnTensorDescriptor_t()
raw.cudnnCreate(handle, handle)  # E: call-arg reportCallIssue
raw.cudnnCreate("handle")  # E: arg-type reportArgumentType
raw.cudnnSetStream(tensor, 0)  # E: arg-type reportArgumentType
raw.cudnnSetStream(descriptors.LRNDescriptor(), 0)  # E: arg-type reportArgumentType
raw.cudnnSetTensor4dDescriptor(tensor, "nchw", raw.CUDNN_DATA_FLOAT, 1, 3, 8, 8)  # E: arg-type reportArgumentType
raw.cudnnSetTensor4dDescriptor(tensor, 0, 0, 1, 3, 8)  # E: call-arg reportCallIssue
raw.cudnnSetLRNDescriptor(None, 5, "1e-4", 0.75, 2.0)  # E: arg-type reportArgumentType
raw.cudnnConvolutionFwdAlgoPerf_t().algo = "gemm"  # E: assignment reportAttributeAccessIssue
raw.cudnnConvolutionFwdAlgoPerf_t().algo.bytes  # E: attr-defined reportAttributeAccessIssue
raw.call(raw.cudnnCreate, byref(handle))  # E: arg-type reportArgumentType
raw.check("CUDNN_STATUS_BAD_PARAM")  # E: arg-type reportArgumentType
raw.bound(raw.cudnnCreate)  # E: arg-type reportArgumentType
raw.unchecked("cudnnCreate", handle)  # E: call-arg reportCallIssue
raw.version_text("9.28.0")  # E: arg-type reportArgumentType

# Objects over the C API

cudnnpy.Handle("cuda:0")  # E: arg-type reportArgumentType
cudnnpy.Handle(stream=1.5)  # E: arg-type reportArgumentType
cudnnpy.Handle(stream=Torch())  # E: arg-type reportArgumentType
cudnnpy.Handle().stream = 1  # E: misc reportAttributeAccessIssue
descriptors.TensorDescriptor((1, 3), "floot16")  # E: arg-type reportArgumentType
descriptors.TensorDescriptor((1, 3), object())  # E: arg-type reportArgumentType
descriptors.TensorDescriptor((1, 3), format="nwhc")  # E: arg-type reportArgumentType
descriptors.TensorDescriptor("1, 3")  # E: arg-type reportArgumentType
descriptors.ConvolutionDescriptor((1, 1), mode="cross-correlation")  # E: arg-type reportArgumentType
descriptors.ConvolutionDescriptor((1, 1), math_type=raw.CUDNN_DATA_FLOAT)  # E: arg-type reportArgumentType
descriptors.ActivationDescriptor("gelu")  # E: arg-type reportArgumentType
descriptors.PoolingDescriptor("maximum", (2, 2))  # E: arg-type reportArgumentType
descriptors.OpTensorDescriptor("sub")  # E: arg-type reportArgumentType
descriptors.ReduceTensorDescriptor("sum")  # E: arg-type reportArgumentType
descriptors.FusedOpsPlan("conv")  # E: arg-type reportArgumentType
descriptors.DropoutDescriptor(0, 0.5)  # E: arg-type reportArgumentType
descriptors.LRNDescriptor(5).set("cudnnSetLRNDescriptor")  # E: attr-defined reportAttributeAccessIssue
cudnnpy.log_to(print)  # E: arg-type reportArgumentType
cudnnpy.log_to("cudnnpy", "DEBUG")  # E: call-arg reportCallIssue
cudnnpy.trace("2")  # E: arg-type reportArgumentType
cudnnpy.trace(1, sys.stderr)  # E: call-arg reportCallIssue
backend.Descriptor("tensor")  # E: arg-type reportArgumentType
backend.Descriptor(raw.CUDNN_BACKEND_TENSOR_DESCRIPTOR, {"dimensions": 1})  # E: dict-item reportArgumentType
names.short_name("float32")  # E: arg-type reportArgumentType
names.short_names(raw.CUDNN_DATA_FLOAT)  # E: arg-type reportArgumentType
