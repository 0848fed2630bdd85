"""What type checkers must refuse of the functions on device arrays: marked as in near_c_errors.py."""

from __future__ import annotations

import numpy as np
from arrays import Cupy, Torch

import cudnnpy
import cudnnpy.torch
from cudnnpy import TensorSpec
from cudnnpy.typing import Padding, PerAxis, Preference

torch, cupy = Torch(), Cupy()

# Arrays

softmax = cudnnpy.Softmax()
softmax.forward(1)  # E: type-var reportArgumentType
softmax.forward([1.0])  # E: type-var reportArgumentType
softmax.backward(torch, "y")  # E: arg-type reportArgumentType
softmax.backward(torch)  # E: call-arg reportCallIssue
softmax.forward(torch, alpha="2")  # E: arg-type reportArgumentType
softmax.forward(torch, stream="default")  # E: arg-type reportArgumentType
softmax.forward(torch, axis=1)  # E: call-arg reportCallIssue
softmax.forward(torch).get()  # E: attr-defined reportAttributeAccessIssue
softmax.forward(cupy).relu()  # E: attr-defined reportAttributeAccessIssue
cudnnpy.to_numpy([1.0])  # E: arg-type reportArgumentType
cudnnpy.to_numpy(torch).cuda()  # E: attr-defined reportAttributeAccessIssue
cudnnpy.to_device(np.ones(3), "floot32")  # E: arg-type reportArgumentType
cudnnpy.to_device(np.ones(3), device="cuda:0")  # E: arg-type reportArgumentType
cudnnpy.empty(3)  # E: arg-type reportArgumentType
cudnnpy.empty((1, 2.5))  # E: arg-type reportArgumentType
cudnnpy.empty((1, 3), layout="NHWC")  # E: arg-type reportArgumentType
cudnnpy.empty((1, 3), dtype=np.ones(3))  # E: arg-type reportArgumentType
cudnnpy.empty((1, 3)).data_ptr()  # E: attr-defined reportAttributeAccessIssue

# Tensors without memory, workspace, plans that are kept

TensorSpec((1, 3), "floot32")  # E: arg-type reportArgumentType
TensorSpec((1, 3.5))  # E: arg-type reportArgumentType
cudnnpy.set_allocator(lambda size: Torch())  # E: arg-type reportArgumentType


def address(size: int, device: int, stream: int) -> int:
    """An allocator that keeps nothing alive."""
    return size


cudnnpy.set_allocator(address)  # E: arg-type reportArgumentType
cudnnpy.set_cache_limit("100")  # E: arg-type reportArgumentType
cudnnpy.set_cache_limit(direct="no")  # E: arg-type reportArgumentType
cudnnpy.cache_info().hits  # E: attr-defined reportAttributeAccessIssue

# Annotations

padding: Padding = "nonsense"  # E: assignment reportAssignmentType
sides: Padding = ("same", "same")  # E: assignment reportAssignmentType
half: Padding = 0.5  # E: assignment reportAssignmentType
stride: PerAxis = "same"  # E: assignment reportAssignmentType
steps: PerAxis = ((1, 2), 1)  # E: assignment reportAssignmentType
prefer: Preference = "quickest"  # E: assignment reportAssignmentType

# Programs of PyTorch

cudnnpy.torch.enable("autotune")  # E: call-arg reportCallIssue
cudnnpy.torch.enable(prefer="speed")  # E: arg-type reportArgumentType
cudnnpy.torch.enable(workspace_limit="1 GiB")  # E: arg-type reportArgumentType
cudnnpy.torch.enable(tune_seconds=None)  # E: arg-type reportArgumentType
cudnnpy.torch.stats().rejection_reason  # E: attr-defined reportAttributeAccessIssue
