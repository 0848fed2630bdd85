"""Device arrays of every library, in and out: values, element types, memory order, streams, devices.

A library that is not installed, or has no GPU, is skipped by name; so are the tests that need two GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from whole_numbers import assert_same, exact_result, whole_numbers

import cudnnpy
from cudnnpy import Convolution, ConvolutionTranspose, DeviceArray

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory at its import

# Other libraries' own warnings are no failures here.
pytestmark = pytest.mark.filterwarnings("default")

X, W, Y = (2, 8, 9, 7), (12, 8, 3, 3), (2, 12, 9, 7)  # with padding 1
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "float8_e4m3fn", "float8_e5m2")


class Library(NamedTuple):
    """How a library's arrays are made from NumPy's, and what its results are."""

    make: Callable[[np.ndarray], Any]
    result: type
    has_bfloat16: bool = True
    writes: bool = True
    copies_any_strides: bool = True


def _torch() -> Library:
    return Library(
        lambda a: torch.from_numpy(a.astype(np.float64)).to("cuda", getattr(torch, a.dtype.name)), torch.Tensor
    )


def _cupy() -> Library:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return Library(cupy.asarray, cupy.ndarray, has_bfloat16=False)


def _jax() -> Library:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX is installed without its GPU part")
    return Library(jax.device_put, jax.Array, writes=False, copies_any_strides=False)


def _numba() -> Library:
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    if not cuda.is_available():
        pytest.skip("Numba finds no GPU")
    return Library(cuda.to_device, type(cuda.to_device(np.zeros(1))), has_bfloat16=False, copies_any_strides=False)


def _own() -> Library:
    return Library(cudnnpy.to_device, DeviceArray)


def _view() -> Library:
    from cuda.core.utils import StridedMemoryView

    def make(array: Any) -> Any:
        return StridedMemoryView.from_any_interface(cudnnpy.to_device(array), stream_ptr=-1)

    return Library(make, DeviceArray, has_bfloat16=False)


LIBRARIES = {"torch": _torch, "cupy": _cupy, "jax": _jax, "numba": _numba, "cudnnpy": _own, "StridedMemoryView": _view}


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]()


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Whole numbers from -2 to 2, of any element type."""
    kind = np.dtype(getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype)
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32).astype(kind)


def float64(array: Any) -> np.ndarray:
    return np.asarray(cudnnpy.to_numpy(array)).astype(np.float64)


# Every library in and out


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_operation_in_every_library(library: Library, dtype: str) -> None:
    if dtype == "bfloat16" and not library.has_bfloat16:
        pytest.skip("this library has no bfloat16")
    if dtype == "float64" and library.result.__module__.startswith("jax"):
        pytest.skip("JAX has float64 by a switch for the whole process")
    x, w, dy = numbers(*X, dtype=dtype), numbers(*W, dtype=dtype, seed=1), numbers(*Y, dtype=dtype, seed=2)
    bias = numbers(W[1], dtype=dtype, seed=3)
    on = [library.make(array) for array in (x, w, dy, bias)]
    conv, up = Convolution(padding=1), ConvolutionTranspose(padding=1)
    wide = [array.astype(np.float64) for array in (x, w, dy, bias)]
    turned: dict[str, Any] = {"bias": wide[3], "activation": "relu", "transpose": True, "padding": 1}
    for found, right in (
        (conv.forward(on[0], on[1]), exact_result("forward", wide[0], wide[1], padding=1)),
        (conv.backward_data(on[2], on[1], X), exact_result("backward_data", wide[2], wide[1], X, padding=1)),
        (conv.backward_filter(on[2], on[0], W), exact_result("backward_filter", wide[2], wide[0], W, padding=1)),
        (conv.backward_bias(on[2]), wide[2].sum(axis=(0, 2, 3))),
        (up.forward(on[2], on[1], on[3], "relu"), exact_result("forward", wide[2], wide[1], **turned)),
    ):
        assert isinstance(found, library.result)
        assert cudnnpy.to_numpy(found).dtype == x.dtype
        np.testing.assert_allclose(float64(found), right, rtol=2.0**-8, atol=0.05)


def test_empty_batches_in_every_library(library: Library) -> None:
    """Results of the right shape, type and library; gradients of parameters are 0."""
    x, w, dy = library.make(numbers(0, *X[1:])), library.make(numbers(*W)), library.make(numbers(0, *Y[1:]))
    conv, up = Convolution(padding=1), ConvolutionTranspose(padding=1)
    plans = cudnnpy.cache_info().misses
    for _ in range(2):
        for found, shape in (
            (conv.forward(x, w), (0, *Y[1:])),
            (conv.backward_data(dy, w, (0, *X[1:])), (0, *X[1:])),
            (up.forward(dy, w), (0, *X[1:])),
            (up.backward_data(x, w), (0, *Y[1:])),
            (conv.backward_filter(dy, x, W), W),
            (conv.backward_bias(dy), W[:1]),
            (cudnnpy.Pooling().forward(x), (0, 8, 4, 3)),
            (cudnnpy.Softmax().forward(x), (0, *X[1:])),
        ):
            assert isinstance(found, library.result)
            assert tuple(found.shape) == shape
            assert cudnnpy.to_numpy(found).dtype == np.float32
            assert not float64(found).any()
    assert cudnnpy.cache_info().misses == plans + 8


def test_results_given(library: Library) -> None:
    x, w = numbers(*X), numbers(*W, seed=1)
    out = library.make(np.full(Y, np.nan, np.float32))
    conv = Convolution(padding=1)
    if not library.writes:
        with pytest.raises(ValueError, match="out must be a writable array; got a read-only one"):
            conv.forward(library.make(x), library.make(w), out=out)
        return
    assert conv.forward(library.make(x), library.make(w), out=out) is out
    np.testing.assert_allclose(float64(out), exact_result("forward", x, w, padding=1), atol=0.05)


def test_a_bias_and_many_calls(library: Library) -> None:
    """Enough calls that launches are direct, and the second on other memory than the first."""
    w, bias = numbers(*W, seed=1), numbers(W[0], seed=2)
    conv = Convolution(padding=1)
    on = library.make(w), library.make(bias)
    for seed in range(8):
        x = numbers(*X, seed=seed)
        y = conv.forward(library.make(x), *on, "relu")
        right = exact_result("forward", x, w, padding=1, bias=bias, activation="relu")
        np.testing.assert_allclose(float64(y), right, atol=0.05)


def test_libraries_can_be_mixed(library: Library) -> None:
    """The result is in the first one's."""
    x, w = numbers(*X), numbers(*W, seed=1)
    conv = Convolution(padding=1)
    right = exact_result("forward", x, w, padding=1)
    y = conv.forward(library.make(x), cudnnpy.to_device(w))
    assert isinstance(y, library.result)
    np.testing.assert_allclose(float64(y), right, atol=0.05)
    tensor = conv.forward(torch.from_numpy(x).cuda(), library.make(w))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(float64(tensor), right, atol=0.05)


def test_channels_last_in_every_library_that_has_strides(library: Library) -> None:
    if not library.copies_any_strides:
        pytest.skip("this library copies arrays in C order alone to the device")
    x = numbers(*X).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    w = numbers(*W, seed=1).transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    on_x, on_w = library.make(x), library.make(w)
    y = Convolution(padding=1).forward(on_x, on_w)
    np.testing.assert_allclose(float64(y), exact_result("forward", x, w, padding=1), atol=0.05)
    found = cudnnpy.to_numpy(on_x)
    if found.strides == x.strides:  # the library kept the order of memory when it copied x
        assert cudnnpy.to_numpy(y).transpose(0, 2, 3, 1).flags.c_contiguous


# To the device and back


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)], ids=["C", "channels last", "F"])
def test_smoke_there_and_back(dtype: str, order: tuple[int, ...]) -> None:
    """The same bits, the same element type, the same order in memory."""
    inverse = tuple(int(axis) for axis in np.argsort(order))
    array = numbers(2, 3, 4, 5, dtype=dtype).transpose(order).copy().transpose(inverse)
    there = cudnnpy.to_device(array)
    assert (there.shape, there.dtype) == (array.shape, dtype)
    assert there.strides == tuple(stride // array.itemsize for stride in array.strides)
    back = cudnnpy.to_numpy(there)
    assert back.dtype == array.dtype
    assert back.strides == array.strides
    assert back.tobytes() == array.tobytes()


def test_conversions_on_the_way() -> None:
    there = cudnnpy.to_device([[1, 2], [3, 4]], "bfloat16")
    assert (there.dtype, there.shape) == ("bfloat16", (2, 2))
    np.testing.assert_array_equal(float64(there), [[1, 2], [3, 4]])
    assert cudnnpy.to_device(np.zeros(3)).dtype == "float64"
    assert cudnnpy.to_numpy(cudnnpy.to_device(np.zeros((3, 0)), "float16")).shape == (3, 0)
    for wrong in (np.zeros(3, np.complex64), np.zeros(3, np.int16), np.array(["a"])):
        with pytest.raises(TypeError, match="dtype must be one of"):
            cudnnpy.to_device(wrong)


def test_slices_come_back_whole(library: Library) -> None:
    array = numbers(6, 5)
    there = library.make(array)
    if not hasattr(there, "__getitem__"):
        pytest.skip("these arrays cannot be sliced")
    np.testing.assert_array_equal(cudnnpy.to_numpy(there[1:5, ::2]), array[1:5, ::2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_come_back(dtype: str) -> None:
    array = numbers(3, 4, dtype=dtype)
    tensor = torch.from_numpy(array.astype(np.float32)).cuda().to(getattr(torch, dtype))
    back = cudnnpy.to_numpy(tensor)
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_types_that_dlpack_export_lacks_are_refused() -> None:
    with pytest.raises(BufferError, match="bfloat16"):
        torch.from_dlpack(cudnnpy.to_device([[1, 2]], "bfloat16"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32", "float64"])
def test_device_arrays_go_to_torch_without_a_copy(dtype: str) -> None:
    there = cudnnpy.to_device(numbers(2, 3, 4, dtype=dtype))
    tensor = torch.from_dlpack(there)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.data_ptr() == there.pointer
    np.testing.assert_array_equal(tensor.cpu().double().numpy(), float64(there))


def test_negative_strides_are_refused() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x, w = cupy.ones(X, "float32"), cupy.ones(W, "float32")
    with pytest.raises(ValueError, match="x must have strides of 1 or more; got"):
        Convolution().forward(x[:, :, ::-1], w)
    with pytest.raises(ValueError, match="array must have strides of 0 or more; got"):
        cudnnpy.to_numpy(x[::-1])


def test_memory_goes_when_the_array_goes() -> None:
    """One array after another, three times as much in all as the device has."""
    size = torch.cuda.get_device_properties(0).total_memory // 1000
    for _ in range(3000):
        cudnnpy.empty((size,), "int8")


# Streams


def test_torchs_current_stream() -> None:
    x, w = whole_numbers(*X), whole_numbers(*W, seed=1)
    conv = Convolution(padding=1)
    conv.forward(x, w)
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # some 50 ms
        late.copy_(x)
        y = conv.forward(late, w)
        values = cudnnpy.to_numpy(y)  # waits for this stream
    np.testing.assert_allclose(values, exact_result("forward", x, w, padding=1), atol=0.05)


def test_cupys_current_stream() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    x, w = numbers(*X), numbers(*W, seed=1)
    conv = Convolution(padding=1)
    on_x, on_w = cupy.asarray(x), cupy.asarray(w)
    late = cupy.zeros_like(on_x)
    conv.forward(on_x, on_w)
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
            torch.cuda._sleep(100_000_000)
        late[...] = on_x
        y = conv.forward(late, on_w)
        values = cudnnpy.to_numpy(y)
    np.testing.assert_allclose(values, exact_result("forward", x, w, padding=1), atol=0.05)


def test_jax_arrays_are_waited_for() -> None:
    """They are futures: a large product is still being computed when the convolution is asked for."""
    library = _jax()
    import jax
    import jax.numpy as jnp

    x, w = numbers(*X), numbers(*W, seed=1)
    big = jax.device_put(np.eye(4096, dtype=np.float32))
    on_x, on_w = library.make(x), library.make(w)

    @jax.jit
    def slowly(x: Any, big: Any) -> Any:
        product = big
        for _ in range(10):
            product = product @ big
        return x * product[0, 0] + product[1, 2]

    y = Convolution(padding=1).forward(slowly(on_x, big), on_w)
    doubled = jnp.asarray(y) * 2
    np.testing.assert_allclose(np.asarray(doubled), 2 * exact_result("forward", x, w, padding=1), atol=0.1)


# Several devices

two_devices = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs"
)


@two_devices
@pytest.mark.parametrize("prefer", ["fastest", "autotune"])
def test_the_arrays_device_is_used(prefer: str) -> None:
    """Arrays on device 1 while device 0 is current, and stays so; then the other, by the same objects."""
    conv = Convolution(padding=1, prefer=prefer, tune_seconds=1.0)
    for device in (1, 0, 1):
        x, w = whole_numbers(*X, device=f"cuda:{device}"), whole_numbers(*W, seed=1, device=f"cuda:{device}")
        dy = whole_numbers(*Y, seed=2, device=f"cuda:{device}")
        for _ in range(6):
            results = [
                conv.forward(x, w, whole_numbers(W[0], device=x.device), "relu"),
                conv.backward_data(dy, w, X),
                conv.backward_filter(dy, x, W),
                conv.backward_bias(dy),
            ]
        assert {result.get_device() for result in results} == {device}
        assert torch.cuda.current_device() == 0
        bias = whole_numbers(W[0])
        assert_same(results[0], exact_result("forward", x, w, padding=1, bias=bias, activation="relu"))
        assert_same(results[1], exact_result("backward_data", dy, w, X, padding=1))
        assert_same(results[2], exact_result("backward_filter", dy, x, W, padding=1))
        assert_same(results[3], dy.double().sum(dim=(0, 2, 3)).cpu().numpy())


@two_devices
def test_workspace_and_streams_are_of_the_arrays_device() -> None:
    asked: list[tuple[int, int]] = []

    def allocate(size: int, device: int, stream: int) -> torch.Tensor:
        asked.append((device, stream))
        return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

    x, w = whole_numbers(*X, device="cuda:1"), whole_numbers(*W, seed=1, device="cuda:1")
    needy = next(
        c for c in Convolution(padding=1).candidates("forward", x, w) if not c.rejection_reason and c.workspace_size
    )
    conv = Convolution(padding=1, algorithm=needy.engine or needy.name)
    cudnnpy.set_allocator(allocate)
    side = torch.cuda.Stream(device=1)
    torch.cuda.synchronize(1)
    with torch.cuda.stream(side):
        y = conv.forward(x, w)
    side.synchronize()
    assert asked == [(1, side.cuda_stream)]
    assert_same(y, exact_result("forward", x, w, padding=1))


@two_devices
def test_own_arrays_on_the_second_device() -> None:
    x, w = numbers(*X), numbers(*W, seed=1)
    on_x, on_w = cudnnpy.to_device(x, device=1), cudnnpy.to_device(w, device=1)
    before = torch.cuda.current_device()
    y = Convolution(padding=1).forward(on_x, on_w)
    assert (on_x.device, y.device) == (1, 1)
    assert torch.cuda.current_device() == before
    np.testing.assert_allclose(float64(y), exact_result("forward", x, w, padding=1), atol=0.05)
