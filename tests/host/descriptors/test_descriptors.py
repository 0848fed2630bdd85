"""Descriptors: values come back, and wrong ones are rejected with a reason and do no harm."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in_library import LibcudnnFixture

from cudnnpy import names, raw
from cudnnpy.descriptors import (
    ActivationDescriptor,
    ConvolutionDescriptor,
    DropoutDescriptor,
    FilterDescriptor,
    FusedOpsPlan,
    LRNDescriptor,
    OpTensorDescriptor,
    PoolingDescriptor,
    ReduceTensorDescriptor,
    TensorDescriptor,
)
from cudnnpy.errors import StatusError

# Those that every release of cuDNN 9 takes for tensors and filters both.
ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
DTYPES = st.sampled_from(list(ITEMSIZE))
SIZES = st.integers(1, 12)


def tuples(values: st.SearchStrategy[int], least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(values, min_size=least, max_size=most).map(tuple)


def packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[at + 1 :])) for at in range(len(shape)))


# Round trips


@given(shape=tuples(st.integers(1, 6), 3, 8), dtype=DTYPES)
def test_a_packed_tensor(shape: tuple[int, ...], dtype: str) -> None:
    with TensorDescriptor(shape, dtype) as made:
        assert (made.shape, made.dtype, made.strides) == (shape, dtype, packed(shape))
        assert made.nbytes == int(np.prod(shape)) * ITEMSIZE[dtype]


@given(shape=tuples(SIZES, 4, 5), dtype=DTYPES)
def test_a_tensor_with_channels_last(shape: tuple[int, ...], dtype: str) -> None:
    n, c, *spatial = shape
    n_, *spatial_, c_ = packed((n, *spatial, c))
    with TensorDescriptor(shape, dtype, format="NHWC") as made:
        assert (made.shape, made.strides) == (shape, (n_, c_, *spatial_))


@given(data=st.data(), shape=tuples(SIZES, 3, 8), dtype=DTYPES)
def test_a_tensor_by_strides(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    strides = data.draw(tuples(st.integers(1, 5000), len(shape), len(shape)))
    with TensorDescriptor(shape, dtype, strides=strides) as made:
        assert (made.shape, made.dtype, made.strides) == (shape, dtype, strides)


@given(shape=tuples(SIZES, 3, 8), dtype=DTYPES, order=st.sampled_from(["nchw", "nhwc"]))
def test_a_filter(shape: tuple[int, ...], dtype: str, order: str) -> None:
    with FilterDescriptor(shape, dtype, format=order) as made:
        assert (made.shape, made.dtype, made.format) == (shape, dtype, order)
        assert made.nbytes == int(np.prod(shape)) * ITEMSIZE[dtype]


@given(
    geometry=st.integers(1, 6).flatmap(
        lambda rank: st.tuples(tuples(st.integers(0, 9), rank, rank), *[tuples(SIZES, rank, rank)] * 2)
    ),
    mode=st.sampled_from(["cross_correlation", "convolution"]),
    compute=st.sampled_from(["float32", "float64", "float16", "int32"]),
    groups=st.integers(1, 1000),
    math=st.sampled_from(["default_math", "tensor_op_math", "tensor_op_math_allow_conversion", "fma_math"]),
)
def test_a_convolution(geometry: Any, mode: str, compute: str, groups: int, math: str) -> None:
    with ConvolutionDescriptor(*geometry, mode=mode, compute_dtype=compute, groups=groups, math_type=math) as made:
        assert (made.padding, made.stride, made.dilation) == geometry
        assert (made.mode, made.compute_dtype, made.groups, made.math_type) == (mode, compute, groups, math)


@given(
    mode=st.sampled_from(["sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish"]),
    coefficient=st.floats(0, 1e30),
    nan=st.booleans(),
    beta=st.floats(-10, 10),
)
def test_an_activation(mode: str, coefficient: float, nan: bool, beta: float) -> None:
    with ActivationDescriptor(mode, coefficient=coefficient, propagate_nan=nan, swish_beta=beta) as made:
        assert (made.mode, made.coefficient, made.propagate_nan) == (mode, coefficient, nan)
        assert made.swish_beta == beta


@given(
    mode=st.sampled_from(["max", "average_include_padding", "average_exclude_padding", "max_deterministic"]),
    geometry=st.integers(1, 6).flatmap(
        lambda rank: st.tuples(
            tuples(st.integers(6, 12), rank, rank), tuples(st.integers(0, 5), rank, rank), tuples(SIZES, rank, rank)
        )
    ),
    nan=st.booleans(),
)
def test_a_pooling(mode: str, geometry: Any, nan: bool) -> None:
    window, padding, stride = geometry
    with PoolingDescriptor(mode, window, padding=padding, stride=stride, propagate_nan=nan) as made:
        assert (made.mode, made.window, made.padding, made.stride) == (mode, window, padding, stride)
        assert made.propagate_nan == nan


@given(operation=st.sampled_from(["add", "mul", "min", "max", "sqrt", "not"]), nan=st.booleans())
def test_an_elementwise_operation(operation: str, nan: bool) -> None:
    with OpTensorDescriptor(operation, compute_dtype="float64", propagate_nan=nan) as made:
        assert (made.operation, made.compute_dtype, made.propagate_nan) == (operation, "float64", nan)


@given(
    operation=st.sampled_from(["add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros"]),
    nan=st.booleans(),
    indices=st.sampled_from(["no_indices", "flattened_indices"]),
    width=st.sampled_from(["8bit_indices", "16bit_indices", "32bit_indices", "64bit_indices"]),
)
def test_a_reduction(operation: str, nan: bool, indices: str, width: str) -> None:
    with ReduceTensorDescriptor(operation, propagate_nan=nan, indices=indices, indices_type=width) as made:
        assert (made.operation, made.compute_dtype, made.propagate_nan) == (operation, "float32", nan)
        assert (made.indices, made.indices_type) == (indices, width)


@given(n=st.integers(1, 16), alpha=st.floats(-10, 10), beta=st.floats(0.01, 10), k=st.floats(1e-5, 10))
def test_a_local_response_normalisation(n: int, alpha: float, beta: float, k: float) -> None:
    with LRNDescriptor(n, alpha, beta, k) as made:
        assert (made.n, made.alpha, made.beta, made.k) == (n, alpha, beta, k)


@given(
    x=st.tuples(SIZES, SIZES, st.integers(20, 40), st.integers(20, 40)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_output_shapes(x: Any, window: Any, padding: Any, stride: Any, dilation: Any) -> None:
    expected = [
        (size + 2 * pad - (dil * (k - 1) + 1)) // step + 1
        for size, k, pad, step, dil in zip(x[2:], window, padding, stride, dilation, strict=True)
    ]
    with (
        TensorDescriptor(x) as tensor,
        FilterDescriptor((7, x[1], *window)) as filter_,
        ConvolutionDescriptor(padding, stride, dilation) as convolution,
    ):
        assert convolution.output_shape(tensor, filter_) == (x[0], 7, *expected)
    padding = tuple(min(pad, k - 1) for pad, k in zip(padding, window, strict=True))
    expected = [
        (size + 2 * pad - k) // step + 1 for size, k, pad, step in zip(x[2:], window, padding, stride, strict=True)
    ]
    with TensorDescriptor(x) as tensor, PoolingDescriptor("max", window, padding=padding, stride=stride) as pooling:
        assert pooling.output_shape(tensor) == (*x[:2], *expected)


def test_defaults() -> None:
    with ConvolutionDescriptor((1, 2, 3)) as convolution:
        assert (convolution.stride, convolution.dilation, convolution.groups) == ((1, 1, 1), (1, 1, 1), 1)
        assert (convolution.mode, convolution.compute_dtype) == ("cross_correlation", "float32")
    with PoolingDescriptor("max", (2, 3)) as pooling:
        assert (pooling.padding, pooling.stride) == ((0, 0), (2, 3))
    with ConvolutionDescriptor((1, 1), 2, 3) as convolution:
        assert (convolution.stride, convolution.dilation) == ((2, 2), (3, 3))
    with TensorDescriptor((1, 8, 2, 2), "int8x4", format="nchw_vect_c") as tensor:
        assert (tensor.shape, tensor.dtype) == ((1, 8, 2, 2), "int8x4")


def test_dtypes_and_modes_are_taken_in_every_form() -> None:
    for dtype in ("float16", "FLOAT16", np.dtype("float16"), raw.CUDNN_DATA_HALF):
        with TensorDescriptor((1, 1, 1, 1), dtype) as made:
            assert made.dtype == "float16"
    for mode in ("relu", "ReLU", raw.CUDNN_ACTIVATION_RELU):
        with ActivationDescriptor(mode) as made:
            assert made.mode == "relu"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (TensorDescriptor((1, 3, 4, 5)), "shape=(1, 3, 4, 5), strides=(60, 20, 5, 1), dtype=float32, nbytes=240"),
        (FilterDescriptor((2, 3, 1), "float16"), "shape=(2, 3, 1), dtype=float16, format=nchw, nbytes=12"),
        (
            ConvolutionDescriptor((1,), 2, mode="convolution", groups=3, math_type="fma_math"),
            "padding=(1,), stride=(2,), dilation=(1,), mode=convolution, compute_dtype=float32, groups=3, math_type=fma_math",
        ),
        (
            PoolingDescriptor("max", (2, 2)),
            "mode=max, propagate_nan=False, window=(2, 2), padding=(0, 0), stride=(2, 2)",
        ),
        (LRNDescriptor(3, 0.5), "n=3, alpha=0.5, beta=0.75, k=2.0"),
        (OpTensorDescriptor("add"), "operation=add, compute_dtype=float32, propagate_nan=False"),
    ],
)
def test_a_descriptor_prints_what_it_describes(made: Any, shown: str) -> None:
    assert repr(made) == f"<{type(made).__name__} {shown}>"
    made.close()
    assert repr(made) == f"<{type(made).__name__} closed>"


# What comes back is what was given


@pytest.mark.parametrize("kind", [TensorDescriptor, FilterDescriptor])
@pytest.mark.parametrize("dtype", ["int8", "float32", "int8x4", "uint8x4", "int8x32"])
@given(data=st.data(), order=st.sampled_from(["nchw", "nhwc", "nchw_vect_c"]))
def test_a_shape_comes_back_or_is_refused(kind: Any, dtype: str, data: st.DataObject, order: str) -> None:
    channels = st.sampled_from([1, 3, 4, 8, 31, 32, 33, 64])
    shape = data.draw(st.tuples(SIZES, channels, SIZES, SIZES) | st.tuples(SIZES, channels, SIZES, SIZES, SIZES))
    try:
        made = kind(shape, dtype, format=order)
    except (ValueError, StatusError):
        assert order == "nchw_vect_c"
        assert dtype not in ("int8x4", "uint8x4", "int8x32") or shape[1] % int(dtype.split("x")[1])
    else:
        with made:
            assert (made.shape, made.dtype) == (shape, dtype)


# Bad values that Python can tell


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: TensorDescriptor("abcd"), TypeError, "shape must be a sequence; got 'abcd'"),
        (lambda: TensorDescriptor((1, 2.0, 3, 4)), TypeError, r"shape\[1\] must be an integer; got 2\.0"),
        (lambda: TensorDescriptor((1, 2, 3, 1 << 31)), ValueError, r"shape\[3\] must be an integer.*; got 2147483648"),
        (lambda: TensorDescriptor((1, 2, 3, 4), 0), TypeError, "dtype must be a name or a cudnnDataType_t; got 0"),
        (lambda: TensorDescriptor((1, 2, 3, 4), raw.CUDNN_TENSOR_NCHW), TypeError, "dtype must be a name"),
        (lambda: TensorDescriptor((1, 2, 3, 4), strides=(1, 2, 3)), ValueError, "strides must be 4 integers"),
        (
            lambda: TensorDescriptor((1,) * 4, strides=(1,) * 4, format="nchw"),
            ValueError,
            "format must be None where strides are passed; got 'nchw'",
        ),
        (lambda: TensorDescriptor((1,) * 4, format="hwcn"), ValueError, r"format must be .*; got 'hwcn'"),
        (lambda: FilterDescriptor((1, 2, 3, 4), "x"), ValueError, r"dtype must be one of 'float32'.*; got 'x'"),
        (lambda: FilterDescriptor((64, 8, 3, 4), "int8x32", format="nchw_vect_c"), ValueError, r"shape must .*; got 8"),
        (
            lambda: TensorDescriptor((10**5000, 2, 3, 4)),
            ValueError,
            r"shape\[0\] must be an integer that fits c_int; got an integer of 16610 bits",
        ),
        (lambda: TensorDescriptor((np.array([1, 2]), 2)), TypeError, r"shape\[0\] must be an integer; got an array"),
        (lambda: TensorDescriptor(itertools.count()), ValueError, "shape must have 1048576 elements at most"),
        (lambda: TensorDescriptor(np.array(5)), TypeError, r"shape must be a sequence; got array\(5\)"),
        (
            lambda: ActivationDescriptor("elu", coefficient=10**400),
            ValueError,
            "coefficient must be a number that fits",
        ),
        (lambda: DropoutDescriptor(None, 1e300), ValueError, r"probability must be a number that fits.*; got 1e\+300"),
        (lambda: FilterDescriptor(None), TypeError, r"shape must be a sequence; got None \(NoneType\)"),
        (
            lambda: ConvolutionDescriptor(1),
            TypeError,
            r"padding must be a sequence; got 1 \(int\)\. Write \(1, 1\) for two dimensions",
        ),
        (lambda: ConvolutionDescriptor((1, 1), (1, 1, 1)), ValueError, r"stride must be 2 integers; got \(1, 1, 1\)"),
        (lambda: ConvolutionDescriptor((1, 1), compute_dtype="?"), ValueError, r"compute_dtype must .*; got '\?'"),
        (lambda: ConvolutionDescriptor((1, 1), math_type="fast"), ValueError, r"math_type must .*; got 'fast'"),
        (lambda: ActivationDescriptor("rely"), ValueError, r"mode must be one of 'sigmoid', 'relu'.*; got 'rely'"),
        (lambda: ActivationDescriptor("relu", coefficient="1"), TypeError, "coefficient must be a number; got '1'"),
        (lambda: ActivationDescriptor("relu", propagate_nan=1), TypeError, "propagate_nan must be a bool"),
        (lambda: PoolingDescriptor("average", (2, 2)), ValueError, r"mode must be one of 'max'.*; got 'average'"),
        (lambda: PoolingDescriptor("max", (2, 2), padding=(1,)), ValueError, "padding must be 2 integers"),
        (lambda: OpTensorDescriptor("subtract"), ValueError, r"operation must be one of 'add'.*; got 'subtract'"),
        (lambda: ReduceTensorDescriptor("add", indices="all"), ValueError, r"indices must be .*; got 'all'"),
        (lambda: LRNDescriptor(-1), ValueError, "n must be an integer that fits c_uint; got -1"),
        (lambda: DropoutDescriptor(None, states=-1), ValueError, "states must be an integer that fits c_ulong; got -1"),
        (lambda: FusedOpsPlan("bake"), ValueError, r"ops must be .*; got 'bake'"),
    ],
)
def test_what_python_can_tell_is_refused_by_name(
    make: Any, kind: type[Exception], message: str, libcudnn: LibcudnnFixture
) -> None:
    library = libcudnn()
    with pytest.raises(kind, match=f"^{message}"):
        make()
    assert not library.names


# Bad values that C must tell

BAD_SIZE = st.integers(-(2**31), 0)
GOOD: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "tensor": (lambda: TensorDescriptor((2, 3, 4, 5)), "cudnnSetTensor4dDescriptor", ("nchw", "float32", 2, 3, 4, 5)),
    "filter": (lambda: FilterDescriptor((2, 3, 4, 5)), "cudnnSetFilter4dDescriptor", ("float32", "nchw", 2, 3, 4, 5)),
    "convolution": (
        lambda: ConvolutionDescriptor((1, 2)),
        "cudnnSetConvolution2dDescriptor",
        (1, 2, 1, 1, 1, 1, "cross_correlation", "float32"),
    ),
    "pooling": (
        lambda: PoolingDescriptor("max", (2, 3), padding=1, stride=1),
        "cudnnSetPooling2dDescriptor",
        ("max", "not_propagate_nan", 2, 3, 1, 1, 1, 1),
    ),
    "LRN": (lambda: LRNDescriptor(), "cudnnSetLRNDescriptor", (5, 1e-4, 0.75, 2.0)),
}
# Which of the setter's arguments is made bad, and by what.
BAD = [
    *(("tensor", at, BAD_SIZE) for at in (2, 3, 4, 5)),
    *(("filter", at, BAD_SIZE) for at in (2, 3, 4, 5)),
    *(("convolution", at, st.integers(-(2**31), -1)) for at in (0, 1)),
    *(("convolution", at, BAD_SIZE) for at in (2, 3, 4, 5)),
    *(("pooling", at, BAD_SIZE) for at in (2, 3, 6, 7)),
    ("LRN", 0, st.integers(17, 2**32 - 1)),
    ("LRN", 3, st.floats(-1e9, 0)),
]


def state(made: Any) -> dict[str, Any]:
    """Everything that the properties read back from C."""
    found = {name for kind in type(made).__mro__ for name, value in vars(kind).items() if isinstance(value, property)}
    return {name: getattr(made, name) for name in found - {"pointer", "address", "_as_parameter_", "swish_beta"}}


@given(data=st.data(), case=st.sampled_from(BAD))
def test_what_c_refuses_raises_its_text_and_leaves_the_descriptor_usable(data: st.DataObject, case: Any) -> None:
    kind, at, bad = case
    make, setter, arguments = GOOD[kind]
    value = data.draw(bad)
    with make() as made:
        before = state(made)
        assert len(before) >= 4
        with pytest.raises(StatusError) as caught:
            made._set(setter, *arguments[:at], value, *arguments[at + 1 :])
        assert caught.value.function == setter
        assert caught.value.status // 1000 in (2, 3)
        assert caught.value.detail
        assert caught.value.detail in str(caught.value)
        made._set(setter, *arguments)
        assert state(made) == before


# Short names


def test_every_enumerator_has_a_short_name_of_its_own() -> None:
    for kind in raw._api.ENUMS:
        table = names.short_names(kind)
        assert list(table.values()) == list(kind.__members__.values())
        for name, member in table.items():
            assert name
            assert name == name.lower()
            assert names.enumerator(kind, name, "x") is member
            assert table[names.short_name(member)] is member


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint32", "bool"])
def test_data_types_have_the_names_of_numpy(name: str) -> None:
    assert np.dtype(name).name == name
    assert names.data_type(np.dtype(name)) is names.data_type(name)


def test_an_array_argument_is_copied() -> None:
    """A sequence of any kind does, and C sees its numbers."""
    for shape in ([1, 2, 3, 4, 5], np.array([1, 2, 3, 4, 5]), range(1, 6)):
        with TensorDescriptor(shape) as made:
            assert made.shape == (1, 2, 3, 4, 5)


def test_a_format_in_place_of_the_data_type_is_told_its_keyword() -> None:
    with pytest.raises(ValueError, match=r"got 'NHWC'\. The memory format is format='nhwc', or strides=$"):
        TensorDescriptor((1, 3, 8, 8), "NHWC")
    assert TensorDescriptor((1, 3, 8, 8), format="nhwc").shape == (1, 3, 8, 8)
