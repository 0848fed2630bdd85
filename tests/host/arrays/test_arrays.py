"""Arrays of other libraries: their metadata, rejected arrays, and new ones. No GPU here."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest

import cudnnpy
from cudnnpy import Convolution, TensorSpec
from cudnnpy._arrays import array_libraries, device_array
from cudnnpy._arrays.array_libraries import library_of, read, spec_of
from cudnnpy._arrays.device_array import DeviceArray
from cudnnpy._core.cuda_python import replaced
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import packed_strides
from cudnnpy._process.cuda_state import NO_DRIVER

# What is read


def test_a_signature_in_plain_terms() -> None:
    signature = ((2, 3), (3, 1), "bfloat16", 1)
    assert spec_of(signature, 4) == TensorSpec((2, 3), "bfloat16", (3, 1), 4)
    assert spec_of(((2,), None, "float64", 0)) == TensorSpec((2,), "float64", None, 16)
    with pytest.raises(TypeError, match="complex64"):
        spec_of(((2,), None, "complex64", 0))


def test_other_arrays_are_read_through_their_protocols() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    array = np.zeros((4, 6, 2), np.float32)
    for view in (array, array.transpose(2, 0, 1), array[1:, ::2]):
        pointer, signature = library_of(view).read(view)
        assert pointer == view.ctypes.data
        assert tuple(signature[0]) == view.shape
        strides = packed_strides(view.shape) if signature[1] is None else tuple(signature[1])
        assert strides == tuple(stride // 4 for stride in view.strides)
        assert signature[2:] == ("float32", -1)


def test_whether_an_array_can_be_written() -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    array = np.zeros(3)
    assert library_of(array).writable(array)
    array.flags.writeable = False
    assert not library_of(array).writable(array)


# Which library


class Named:
    """An array type of a library that is not installed here."""


def of_module(module: str) -> type:
    return type("Array", (Named,), {"__module__": module, "__dlpack__": lambda self: None})


@pytest.mark.parametrize(
    ("module", "imported", "name"),
    [
        ("cupy", "cupy", "cupy"),
        ("cupy._core.core", "cupy", "cupy"),
        ("jaxlib._jax", "jax", "jax"),
        ("jax", "jax", "jax"),
    ],
)
def test_an_arrays_library_is_told_by_its_types_module(
    monkeypatch: pytest.MonkeyPatch, module: str, imported: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, imported, object())
    assert library_of(of_module(module)()).name == name


def test_any_array_that_speaks_a_protocol_is_taken() -> None:
    assert library_of(of_module("strange.new")()).name == "other"
    speaks = type("Other", (), {"__cuda_array_interface__": {}})
    assert library_of(speaks()).name == "other"


@pytest.mark.parametrize("given_", [None, 5, [1, 2], "x", object(), {"x": 1}])
def test_what_is_no_array_is_refused_by_name(given_: Any) -> None:
    for call in (library_of, read):
        with pytest.raises(
            TypeError, match=r"w must be a device array \(PyTorch, CuPy, JAX, Numba, cudnnpy\.to_device\(\.\.\.\), or.*"
        ):
            call(given_, "w")


# Host arrays


@pytest.mark.parametrize("array", [np.zeros((2, 3)), np.zeros((2, 3), np.float16).T], ids=["numpy", "numpy view"])
def test_a_host_array_is_refused_with_the_two_ways_on(array: Any) -> None:
    with replaced(libcuda=object()), pytest.raises(TypeError) as caught:
        read(array, "x")
    text = str(caught.value)
    assert f"x must be an array on a CUDA device; got a host array ({type(array).__module__.split('.')[0]}." in text
    for part in (f"of shape {tuple(array.shape)}", "cudnnpy.to_device(array)", "cudnnpy.reference"):
        assert part in text


def test_to_numpy_of_a_numpy_array_is_the_array() -> None:
    with replaced(libcuda=object()):
        array = np.zeros((2, 3), np.float32)
        assert cudnnpy.to_numpy(array) is array


def test_without_a_driver_nobody_is_sent_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnnpy._arrays.array_libraries.can_load_driver", lambda: False)
    for call in (lambda a: Convolution().forward(a, a), lambda a: Convolution().plan("forward", a, a)):
        with pytest.raises(TypeError) as caught:
            call(np.zeros((1, 1, 3, 3), np.float32))
        assert str(caught.value) == (
            f"{NO_DRIVER}. x must be an array on a CUDA device; got a host array (numpy.ndarray of shape (1, 1, 3, 3)). "
            "A plan takes cudnnpy.TensorSpec((1, 1, 3, 3), 'float32')"
        )
        assert "cudnnpy.reference" in NO_DRIVER


# What has no memory


def test_a_tensor_spec_is_for_plans() -> None:
    with pytest.raises(
        TypeError, match=r"x must be a device array .* A TensorSpec has no memory: it is for plan, cand"
    ):
        Convolution().forward(TensorSpec((1, 1, 3, 3)), TensorSpec((1, 1, 3, 3)))


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), [1, 1, 3, 3]])
def test_a_shape_is_told_how_to_plan(shape: Any) -> None:
    with pytest.raises(
        TypeError, match=r"To plan without an array, pass cudnnpy\.TensorSpec\(\(1, 1, 3, 3\), dtype\)$"
    ):
        Convolution().plan("forward", shape, shape)
    with pytest.raises(TypeError, match=r"got \[0\.5\]$"):
        read([0.5], "x")


@pytest.mark.parametrize(("shape", "shown"), [(3, "3"), ("8x3", "'8x3'"), (np.zeros(2), "an array (numpy.ndarray of")])
def test_the_shape_of_a_tensor_spec_is_a_tuple(shape: Any, shown: str) -> None:
    with pytest.raises(
        TypeError, match=re.escape(f"shape must be a tuple of sizes, such as (8, 64, 56, 56); got {shown}")
    ):
        TensorSpec(shape)


# Our own


class Memory:
    """A buffer's address, without memory behind it."""

    handle = 1 << 20


@pytest.fixture
def own() -> DeviceArray:
    return DeviceArray(Memory(), (2, 3, 4), (12, 1, 3), dtype_of("float16"), 1)


def test_a_device_array_is_read_and_described(own: DeviceArray) -> None:
    assert library_of(own).name == "cudnnpy"
    assert read(own, "x") == (1 << 20, ((2, 3, 4), (12, 1, 3), "float16", 1))
    assert repr(own) == "DeviceArray(shape=(2, 3, 4), dtype='float16', strides=(12, 1, 3), device=1)"
    assert own.__dlpack_device__() == (2, 1)
    interface = own.__cuda_array_interface__
    assert interface["shape"] == (2, 3, 4)
    assert interface["typestr"] == "<f2"
    assert interface["data"] == (1 << 20, False)
    assert interface["strides"] == (24, 2, 6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_cuda_array_interface_has_no_name_for_some_types(dtype: str) -> None:
    array = DeviceArray(Memory(), (2,), (1,), dtype_of(dtype), 0)
    assert not hasattr(array, "__cuda_array_interface__")
    assert hasattr(array, "__dlpack__")


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[DeviceArray]:
    made: list[DeviceArray] = []

    def allocate(shape: Any, strides: Any, dtype: Any, device: int) -> DeviceArray:
        made.append(DeviceArray(Memory(), shape, strides, dtype, device))
        return made[-1]

    for module in (array_libraries, device_array):
        monkeypatch.setattr(module, "allocate", allocate)
    monkeypatch.setattr(device_array, "current_device", lambda: 3)
    return made


@pytest.mark.usefixtures("allocated")
def test_empty_arrays_have_the_asked_memory_order() -> None:
    assert cudnnpy.empty((2, 3, 4, 5)).strides == (60, 20, 5, 1)
    last = cudnnpy.empty([2, 3, 4, 5], "bfloat16", layout="channels_last", device=1)
    assert (last.strides, last.dtype, last.device) == ((60, 1, 15, 3), "bfloat16", 1)
    assert cudnnpy.empty((2, 3, 4), np.float16, layout="channels_last").strides == (12, 1, 3)
    assert cudnnpy.empty((2,)).device == 3


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind", "text"),
    [
        (((2, -1),), {}, ValueError, r"shape must be a tuple of sizes of 0 or more; got \(2, -1\)"),
        (((2, 2), "complex64"), {}, TypeError, r"dtype must be one of 'float32'.*; got 'complex64'"),
        (((2, 2),), {"layout": "NHWC"}, ValueError, r"layout must be one of 'C', 'channels_last'.*; got 'NHWC'"),
    ],
)
def test_bad_arguments_of_empty(
    allocated: list[DeviceArray], arguments: Any, keywords: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        cudnnpy.empty(*arguments, **keywords)
    assert allocated == []


@pytest.mark.parametrize("strides", [(4, 4, 1), (4, 1, 1), (4, 99, 1)])
def test_a_result_in_jax_is_in_c_order_whatever_an_axis_of_size_1_has(strides: Any) -> None:
    library = array_libraries._jax()
    assert callable(library.maker((3, 1, 4), strides, dtype_of("float32"), 0))
    with pytest.raises(TypeError, match=r"a result in JAX must be packed in C order, .*; got another memory format"):
        library.maker((3, 4, 1), (1, 3, strides[1]), dtype_of("float32"), 0)
