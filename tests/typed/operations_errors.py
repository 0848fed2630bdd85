"""What type checkers must refuse of the operations: marked as in near_c_errors.py."""

from __future__ import annotations

import numpy as np
from arrays import Torch

import cudnnpy
from cudnnpy import reference

x, w, host = Torch(), Torch(), np.ones((1, 3, 8, 8))
conv = cudnnpy.Convolution()

# Names that do not exist

cudnnpy.Convolution(paddings=1)  # E: call-arg reportCallIssue
cudnnpy.Convolution().forwards(x, w)  # E: attr-defined reportAttributeAccessIssue
cudnnpy.Pooling().options  # E: attr-defined reportAttributeAccessIssue
conv.forward(x, w, bias_=w)  # E: call-arg reportCallIssue
conv.forward(x)  # E: call-arg reportCallIssue
conv.plan("forward", x, w).run()  # E: attr-defined reportAttributeAccessIssue
cudnnpy.Graph().convolve(x, w)  # E: attr-defined reportAttributeAccessIssue

# Values of another type

cudnnpy.Activation("gelu")  # E: arg-type reportArgumentType
cudnnpy.Convolution(deterministic="yes")  # E: arg-type reportArgumentType
cudnnpy.Convolution(workspace_limit="1 GiB")  # E: arg-type reportArgumentType
conv.forward(x, w, alpha="2")  # E: arg-type reportArgumentType
conv.plan("forward", x, w).execute(x, w, x, 0, 0)  # E: arg-type reportArgumentType
cudnnpy.Plan.from_json(b"{}")  # E: arg-type reportArgumentType
cudnnpy.Graph().pointwise("add", x)  # E: arg-type reportArgumentType

# Options are fixed

conv.groups = 2  # E: misc reportAttributeAccessIssue

# The reference implementation

reference.reduce_tensor(host, "total")  # E: arg-type reportArgumentType
reference.transform_tensor(host, layout="NHWC")  # E: arg-type reportArgumentType
reference.scale_tensor("x", 2.0)  # E: arg-type reportArgumentType
reference.Convolutoin()  # E: attr-defined reportAttributeAccessIssue
