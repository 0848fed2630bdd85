"""PyTorch's tensors on the CPU: their metadata, rejected tensors, and dtypes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import cudnnpy
from cudnnpy import Convolution, TensorSpec, reference
from cudnnpy._arrays import array_libraries
from cudnnpy._arrays.array_libraries import library_of, read, spec_of
from cudnnpy._core.cuda_python import replaced
from cudnnpy._core.dtypes import dtype_of

# What is read


def test_a_signature_in_plain_terms() -> None:
    signature = (torch.Size([2, 3]), (3, 1), torch.bfloat16, 1)
    assert spec_of(signature, 4) == TensorSpec((2, 3), "bfloat16", (3, 1), 4)
    assert type(spec_of(signature).shape) is tuple
    with pytest.raises(TypeError, match="complex64"):
        spec_of(((2,), None, torch.complex64, 0))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32", "float8_e4m3fn", "float8_e5m2"]
)
def test_torch_tensors_are_read_by_their_own_methods(dtype: str) -> None:
    tensor = torch.zeros(2, 3, 4, 5, dtype=getattr(torch, dtype))
    for view in (tensor, tensor.transpose(1, 3), tensor[:, 1:, ::2], tensor[1:]):
        pointer, signature = library_of(view).read(view)
        assert pointer == view.data_ptr()
        assert spec_of(signature) == TensorSpec(tuple(view.shape), dtype, tuple(view.stride()))
        assert signature[3] == -1  # on the host
    assert library_of(tensor).name == "torch"
    assert hash(library_of(tensor).read(tensor)[1])


def test_torch_tensors_with_a_gradient_and_parameters_are_read_like_others() -> None:
    for tensor in (torch.zeros(3, requires_grad=True), torch.nn.Parameter(torch.zeros(3))):
        assert library_of(tensor).name == "torch"
        assert library_of(tensor).read(tensor)[0] == tensor.data_ptr()


def test_a_subclass_of_a_librarys_array_belongs_to_it() -> None:
    kind = type("Mine", (torch.Tensor,), {})
    assert library_of(torch.zeros(3).as_subclass(kind)).name == "torch"


# Tensors on the host


@pytest.mark.parametrize(
    "call",
    [
        lambda a: read(a, "x"),
        lambda a: Convolution().forward(a, a),
        lambda a: Convolution().plan("forward", a, a),
        lambda a: cudnnpy.to_numpy(a),
    ],
)
def test_a_host_tensor_is_refused_with_the_two_ways_on(call: Any) -> None:
    with replaced(libcuda=object()), pytest.raises(TypeError) as caught:  # with a driver
        call(torch.zeros(1, 2, 3, 3))
    for part in ("got a host array (torch.", "of shape (1, 2, 3, 3)", "cudnnpy.to_device(array)", "cudnnpy.reference"):
        assert part in str(caught.value)
    assert str(caught.value).endswith("cudnnpy.reference, with array.numpy(force=True)")


@pytest.mark.parametrize("given", [torch.ones(1, 1, 3, 3), torch.nn.Parameter(torch.ones(1, 1, 3, 3))])
def test_the_reference_refuses_tensors(given: Any) -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    for call in (
        lambda: reference.Convolution().forward(given, x),
        lambda: reference.Convolution().forward(x, given),
        lambda: reference.Pooling().forward(given),
        lambda: reference.Activation("relu").forward(x, out=given),
        lambda: reference.Softmax().backward(x, given),
    ):
        with pytest.raises(TypeError, match=r"must be a numpy.ndarray; got a torch\..*\.numpy\(force=True\)$"):
            call()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_conversion_that_both_errors_advise_is_accepted(dtype: str) -> None:
    """Of a tensor that requires a gradient, too; bfloat16, which NumPy lacks, becomes float32 first."""
    x = torch.ones(1, 1, 3, 3, dtype=getattr(torch, dtype), requires_grad=True)
    for call in (lambda: reference.Softmax().forward(x), lambda: Convolution().forward(x, x)):
        with pytest.raises(TypeError) as caught:
            call()
        advice = re.search(r"\b(?:x|array)(\.(?:float\(\)\.)?numpy\(force=True\))$", str(caught.value))
        assert advice is not None
        result = reference.Softmax().forward(eval(f"x{advice[1]}", {"x": x}))
        assert result.shape == (1, 1, 3, 3)


# Dtypes


def test_torchs_dtypes_name_ours() -> None:
    x, w = TensorSpec((2, 3, 5, 5), torch.float32), TensorSpec((4, 3, 3, 3), torch.float32)
    ours = [TensorSpec(spec.shape, "float32") for spec in (x, w)]
    layer = Convolution(tf32=False)
    asked = [layer._problem("forward", *given, *[None] * 4, 1.0, 0.0, 0) for given in ((x, w), ours)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(("count", "current", "fast"), [(1, 0, True), (4, 0, True), (4, 1, False)])
def test_results_are_allocated_by_the_fast_function_on_the_current_device(monkeypatch, count, current, fast):
    """PyTorch's function for compiled programs allocates on the current device only."""
    calls = []
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", lambda *given: calls.append(("fast", *given)))
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **options: calls.append(("slow", *given, options)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    make = array_libraries._torch().maker((2, 3), (3, 1), dtype_of("float16"), 0)
    make()
    slow = ("slow", (2, 3), (3, 1), {"dtype": torch.float16, "device": torch.device("cuda", 0)})
    assert calls == [("fast", (2, 3), (3, 1), torch.float16) if fast else slow]
