"""Where PyTorch cannot use CUDA, host tensors are refused as host arrays, and everything else says its own error."""

from __future__ import annotations

import pytest
from fresh_process import python

PREAMBLE = """
import torch, cudnnpy
from cudnnpy._core import driver
x, w = torch.rand(2, 3, 8, 8), torch.rand(4, 3, 3, 3)
specs = cudnnpy.TensorSpec((2, 3, 8, 8)), cudnnpy.TensorSpec((4, 3, 3, 3))
assert not driver.is_stream_or_torch_capturing(0)
try:
    {}
except Exception as error:
    print(type(error).__name__, str(error).replace(str(cudnnpy.why_unavailable()), "WHY"))
"""


HOST = "TypeError x must be an array on a CUDA device; got a host array (torch.Tensor of shape (2, 3, 8, 8))"


@pytest.mark.parametrize(
    ("use", "answer"),
    [
        ("cudnnpy.Convolution().forward(x, w)", HOST),
        ("cudnnpy.Convolution().forward(x, w, stream=5)", HOST),
        ("cudnnpy.Convolution().plan('forward', x, w)", HOST),
        ("cudnnpy.Softmax().forward(x)", HOST),
        ("cudnnpy.to_numpy(x)", "TypeError array must be an array on a CUDA device; got a host array (torch.Tensor"),
        (
            "cudnnpy.Convolution().plan('forward', *specs)",
            "NotInitializedError WHY\nCUDNN_STATUS_NOT_INITIALIZED (1001): ",
        ),
        ("cudnnpy.to_device(x)", "NotInitializedError WHY\nCUDNN_STATUS_NOT_INITIALIZED (1001): "),
    ],
)
def test_the_documented_error_and_none_of_pytorchs(use: str, answer: str) -> None:
    printed = python(PREAMBLE.format(use), CUDA_VISIBLE_DEVICES="")
    assert printed.replace("TypeError WHY. ", "TypeError ").startswith(answer)  # without a driver the sentence is first
