"""PyTorch's tensors, given to the reference: refused with the conversion, which converts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from cudnnpy.reference import Convolution, Softmax

VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)
TENSORS = {
    "plain": torch.tensor(VALUES),
    "records gradients": torch.tensor(VALUES, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.tensor(VALUES)),
    "conjugated": torch.complex(torch.tensor(VALUES), torch.tensor(VALUES)).conj().real,
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_is_refused_with_the_conversion(tensor: torch.Tensor) -> None:
    text = r"^x must be a numpy\.ndarray; got a torch\.[a-zA-Z.]+\. Convert it with x\.numpy\(force=True\)$"
    with pytest.raises(TypeError, match=text) as caught:
        Softmax().forward(tensor)
    converted = eval(re.findall("Convert it with (.*)", str(caught.value))[0], {"x": tensor})  # what the message says
    np.testing.assert_array_equal(Softmax().forward(converted), Softmax().forward(VALUES))


def test_every_array_of_a_call_is_looked_at() -> None:
    x, w = np.ones((2, 4, 5), np.float32), np.ones((4, 4, 3), np.float32)
    for name, arrays in (("w", {"x": x, "w": torch.tensor(w)}), ("out", {"x": x, "w": w, "out": torch.ones(2, 4, 3)})):
        with pytest.raises(
            TypeError, match=rf"^{name} must be .*; got a torch\.Tensor\. Convert it with {name}\.numpy"
        ):
            Convolution().forward(**arrays)
